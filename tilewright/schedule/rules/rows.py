"""Reductions over rows with the elementwise work around them (softmax, layer norm, mean): each thread takes rows, each
row stays in cache.

Sums along a row run in several vector accumulators that are combined at the end in a fixed order.
"""

from __future__ import annotations

from ...tensor.analysis import flat
from ...tensor.expr import COMBINERS, Op, simplify, variables
from ...tensor.kernel import Kernel, Stage
from ..decisions import Decisions
from ..machine import Machine, lanes
from ..nest import Store
from ..region import all_ranges
from ..schedule import Schedule, ScheduleError
from .common import coefficient, fuse_outer, inline_producers, load_strides, store_stride

NAME = "rows"
PRIORITY = 30
#: vector accumulators of one sum: enough to hide the latency of an addition
ACCUMULATORS = 4


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if kernel.opaque:
        return "an operator with a loop nest of its own"
    reductions = [s for s in kernel.stages if s.targets[0].init is not None]
    if not reductions:
        return "it has no reduction"
    s = Schedule(kernel, decisions=decisions)
    _inline_cheap(s, kernel)
    alive = [b for b in (x.name for x in kernel.stages) if _exists(s, b)]
    root = alive[-1]
    rows = _row_loops(s, kernel, root)
    if rows is None:
        return "the last stage does not work row by row"
    try:
        return _schedule(s, kernel, alive, rows, machine)
    except ScheduleError as e:
        return e.message


def _schedule(s: Schedule, kernel: Kernel, alive: list[str], rows: list[str], machine: Machine) -> Schedule:
    root = alive[-1]
    order = [v for v in s.loops(root) if v in rows] + [v for v in s.loops(root) if v not in rows]
    if s.loops(root) and order != s.loops(root):
        s.reorder(*order)
    at = fuse_outer(s, rows) if rows else None
    if at is not None:  # the stages of a single row run one after another, on one thread
        for b in reversed(alive[:-1]):
            s.compute_at(b, at)
    for b in alive:
        inner = [v for v in s.loops(b) if v != at]
        _vectorize(s, b, inner, machine)
    if at is not None:
        s.parallel(at)
    return s


def _exists(s: Schedule, block: str) -> bool:
    try:
        s.store(block)
    except ScheduleError:
        return False
    return True


def _inline_cheap(s: Schedule, kernel: Kernel) -> None:
    """Inline elementwise stages that are read once, or that cost no more than a few arithmetic operations."""
    keep = set()
    for stage in kernel.stages:
        readers = sum(stage.buffer in other.reads for other in kernel.stages)
        if readers and stage.buffer in s.temporaries and not stage.reduction and stage.targets[0].init is None:
            default = readers > 1 and _expensive(stage)
            if readers > 1 and s.sample_choice(f"keep_{stage.name}", (True, False), default):
                keep.add(stage.name)
    inline_producers(s, keep)


def _expensive(stage: Stage) -> bool:
    from ...tensor.expr import walk

    cheap = {
        "addf",
        "subf",
        "mulf",
        "negf",
        "maximumf",
        "minimumf",
        "select",
        "addi",
        "subi",
        "muli",
        "absf",
        "extf",
        "truncf",
    }
    ops = [x.op for t in stage.targets for x in walk(t.value) if isinstance(x, Op) and x.dtype != "index"]
    return any(o not in cheap for o in ops) or len(ops) > 4


def _row_loops(s: Schedule, kernel: Kernel, root: str) -> list[str] | None:
    """The loops of the last stage that enumerate rows: those that index what the reductions made."""
    stage = s.store(root)
    if stage.targets[0].init is not None:
        return [v for v in s.loops(root) if v not in stage.reduction]
    found = _row_variables(s, kernel, root, all_ranges(s.body))
    return None if found is None else [v for v in s.loops(root) if v in found]


def _row_variables(s: Schedule, kernel: Kernel, block: str, ranges: dict[str, tuple[int, int]]) -> set[str] | None:
    """The variables of a block that index what reductions made, or the rows of another result that it reads."""
    made = {x.buffer: x for x in kernel.stages if _exists(s, x.name) and x.name != block}
    found: set[str] = set()
    seen = False
    for x in {str(x): x for v in s.loops(block) for x, _ in load_strides(s, s.store(block), v)}.values():
        if x.buffer not in made:
            continue
        positions: list[int] | None = list(range(len(x.indices)))
        if made[x.buffer].targets[0].init is None:
            inner = _row_variables(s, kernel, made[x.buffer].name, ranges)
            own = s.store(made[x.buffer].name).targets[0].indices
            positions = None if inner is None else [d for d, i in enumerate(own) if variables(i) & inner]
        if positions is not None:
            seen = True
            found |= set().union(*[variables(simplify(x.indices[d], ranges)) for d in positions])
    return found if seen else None


def _vectorize(s: Schedule, block: str, inner: list[str], machine: Machine) -> None:
    """Vectorize the contiguous inner loop of a block; reductions along it get an accumulator for each lane."""
    if not inner:
        return
    store = s.store(block)
    width = lanes(machine)
    n = _contiguous(s, store, inner)
    if n is None or s.extent_or_zero(n) < 4:
        return
    if n != inner[-1]:
        try:
            s.reorder(*[v for v in inner if v != n], n)
        except ScheduleError:
            return
    size = s.extent(n)
    if n not in store.reduction:
        if size > width:
            vectors = s.sample_choice(f"vectors_{block}", [v for v in (1, 2, 4) if v * width <= size], 1)
            n = s.split(n, vectors * width)[1]
            if vectors > 1:
                unrolled, n = s.split(n, width)
                s.unroll(unrolled)
        s.vectorize(n)
        return
    t = store.targets[0]
    known = isinstance(t.value, Op) and t.value.op in COMBINERS and len(store.targets) == 1
    if not known or size < 2 * width:
        return
    counts = [c for c in (1, 2, 4, 8) if c * width <= size]
    count = s.sample_choice(f"accumulators_{block}", counts, min(ACCUMULATORS, size // width))
    _, part = s.split(n, count * width)
    combine = s.rfactor(block, part)
    buffer = next(b for b in s.temporaries if b.startswith(f"{t.buffer}_r"))
    s.set_scope(buffer, "register")
    for b in (block, combine):
        v = s.loops(b)[-1]
        o, lane = s.split(v, width)
        s.unroll(o)
        s.vectorize(lane)


def _contiguous(s: Schedule, store: Store, inner: list[str]) -> str | None:
    """The inner loop along which most accesses are contiguous."""
    best: tuple[int, str] | None = None
    for v in reversed(inner):
        strides = [c for _, c in load_strides(s, store, v)]
        if v not in store.reduction:
            strides.append(store_stride(s, store, v))
        bad = sum(c not in (0, 1) for c in strides)
        if 1 in strides and (best is None or bad < best[0]):
            best = (bad, v)
    return best[1] if best else None


__all__ = ["apply", "coefficient", "flat"]
