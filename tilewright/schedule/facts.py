"""What `explain` and `profile` show of a kernel: its work, its schedule, and whether it fell to a rule that is not made
for it."""

from __future__ import annotations

from collections.abc import Mapping

from ..tensor.analysis import is_contraction
from ..tensor.expr import Expr, Op, walk
from ..tensor.kernel import Kernel
from .coalescing import scattered
from .nest import Nest
from .open_nest import kernel_at, nest_at, typical_sizes
from .rules import Scheduled
from .work import Work, work_of

#: what a kernel does -> the last rule that is made for it
EXPECTED = {"contraction": "contraction", "reduction": "rows", "elementwise": "elementwise", "opaque": "opaque"}
#: operations of a loop nest that stand for an instruction of another precision than the kernel's own
INSTRUCTIONS = {"dot2": "bf16", "dot4": "i8"}
#: operations of a product from which on the instructions that it misses are named
LARGE = 1_000_000


def about(kernel: Kernel, scheduled: Scheduled, seconds: Mapping[str, float]) -> dict[str, object]:
    """A kernel's part of the report: ``symbol``, ``kind``, ``compile_s`` (the sum of `seconds`, if there are any), and
    its facts."""
    return {
        "symbol": kernel.name,
        "kind": scheduled.rule,
        **({"compile_s": round(sum(seconds.values()), 3)} if seconds else {}),
        **kernel_facts(kernel, scheduled),
    }


def kernel_facts(kernel: Kernel, scheduled: Scheduled) -> dict[str, object]:
    """JSON data: ``does``, ``flops``, ``integer_ops``, ``precision``, ``touched`` (bytes of each parameter),
    ``decisions``, ``plan`` (of a sum of products, in words), ``trace``, ``refused`` ([rule, reason] of the rules
    that did not take it), ``fell`` (why a rule that is made for such kernels did not; empty if one did), ``slow``
    (sentences: what keeps its schedule far from its bound; see `schedule.executed` and `schedule.coalescing`) and,
    where that is counted, ``executed`` (how many times its own work it does) and ``remark`` (what it computes again
    although that is too little to matter; empty if nothing)."""
    kernel, nest = _at_known_sizes(kernel, scheduled)
    work = _work(kernel, nest)
    return {
        "does": kernel.opaque.mnemonic if kernel.opaque else what(kernel),
        "flops": work.flops,
        "integer_ops": work.integer_ops,
        "precision": work.precision,
        "touched": list(work.touched),
        "decisions": {n: d.chosen for n, d in scheduled.schedule.decisions.items()},
        "plan": scheduled.schedule.plan,
        "trace": [str(step) for step in scheduled.schedule.trace],
        "refused": [list(r) for r in scheduled.refused],
        "fell": fell(kernel, scheduled),
        "slow": [
            *scheduled.problems,
            *scattered(nest, scheduled.schedule.machine()),
            *unpaired(scheduled, kernel, work),
        ],
        **(
            {"executed": round(x.recomputation, 3), "remark": x.remark} if (x := scheduled.executed) is not None else {}
        ),
    }


def what(kernel: Kernel) -> str:
    """``contraction``, ``reduction``, ``elementwise`` or ``opaque``."""
    if kernel.opaque is not None:
        return "opaque"
    if any(is_contraction(s) for s in kernel.stages):
        return "contraction"
    return "reduction" if any(t.init is not None for s in kernel.stages for t in s.targets) else "elementwise"


def fell(kernel: Kernel, scheduled: Scheduled) -> str:
    """Why no rule for kernels of this kind applied; empty if one did.

    Such a kernel is right, but may be many times slower than it need be.
    """
    tried, expected = [rule for rule, _ in scheduled.refused], EXPECTED[what(kernel)]
    if expected not in tried or scheduled.rule in tried[: tried.index(expected) + 1]:
        return ""  # none made it (it was given), or one that is meant for such kernels
    passed = scheduled.refused[tried.index(expected) :]
    return "; ".join(f"{rule}: {reason}" for rule, reason in passed)


def unpaired(scheduled: Scheduled, kernel: Kernel, work: Work) -> list[str]:
    """Why a large product of bf16 does not use the machine's instruction for pairs or tiles of them."""
    reads = any(p.dtype == "bf16" for p in kernel.inputs) and "bf16" in scheduled.schedule.machine().paired_dtypes
    if not reads or work.precision == "bf16" or work.operations < LARGE or what(kernel) != "contraction":
        return []
    why = dict(scheduled.refused).get("bf16-contraction", "")
    if not why or why.startswith("not a "):  # there is nothing to sum in pairs
        return []
    return [f"it multiplies bf16 in f32, without the instruction for pairs: {why}"]


def _at_known_sizes(kernel: Kernel, scheduled: Scheduled) -> tuple[Kernel, Nest]:
    """A kernel and its nest; with typical sizes in place of those that are open."""
    nest = scheduled.schedule.nest()
    if sizes := typical_sizes():
        return kernel_at(kernel, sizes), nest_at(nest, sizes)
    return kernel, nest


def _work(kernel: Kernel, nest: Nest) -> Work:
    work = work_of(kernel, nest)
    seen: set[Expr] = set()
    used = {x.op for s in nest.body.stores for t in s.targets for x in walk(t.value, seen) if isinstance(x, Op)}
    special = next((INSTRUCTIONS[op] for op in INSTRUCTIONS if op in used), None)
    tiled = any(s.note("tiles") is not None for s in nest.body.loops)
    if tiled and any(p.dtype == "bf16" for p in kernel.inputs):
        special = "bf16"
    return Work(work.flops, work.integer_ops, special or work.precision, work.touched)


__all__ = ["EXPECTED", "about", "fell", "kernel_facts", "what"]
