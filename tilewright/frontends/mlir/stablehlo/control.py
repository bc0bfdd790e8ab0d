"""Control flow and calls: loops with a static trip count are unrolled; where the branch is not known, all branches are
computed and one is selected, but for those with loops. What only a run can tell becomes control flow of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch_mlir import ir

from ....ir.types import type_of
from ....support.errors import UsageError
from ...failures import FAILED
from ...regions import NotMade, either, loop
from .node import HloOp
from .registry import find, hlo
from .values import Complex, HloTensor

#: operators of `ops/` in all steps of a loop, and those of StableHLO that these are made of; what is longer runs as a
#: loop
MAX_UNROLLED, MAX_WALKED = 2048, 20_000
#: calls of functions outside of the program that change nothing on one device
IDENTITIES = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement")


@hlo("while")
def while_(n: HloOp, *state: Any) -> list[Any]:
    condition, body = n.block(0), n.block(1)
    found, start, walked, controls = list(state), n.count[0], n.importer.walked, n.make.controls
    first = None
    while True:
        (going,) = n.importer.walk(condition, found)
        first = going if first is None else first
        if going is FAILED:
            return [FAILED] * len(found)
        if going.array is None:
            break
        if not bool(going.array.reshape(())[()]):
            return found
        found = n.importer.walk(body, found)
        long = n.count[0] - start > MAX_UNROLLED or n.importer.walked - walked > MAX_WALKED
        if long or n.make.controls > controls:  # loops of its steps too: once in the program, not in every step
            break
    return repeated(n, first, state)


def repeated(n: HloOp, going: HloTensor, state: Sequence[Any]) -> list[Any]:
    """A loop of the graph, which the runtime drives."""
    condition, body = n.block(0), n.block(1)
    n.importer.capture(n.op)

    def step(values: Sequence[ir.Value]) -> list[ir.Value]:
        results = n.importer.walk(body, packed(n, state, values))
        return values_of([*([FAILED] if FAILED in results else n.importer.walk(condition, results)), *results])

    try:
        return packed(n, state, loop(n.make, going.ssa, values_of(state), step, n.place))
    except NotMade:
        return [FAILED] * len(state)


@hlo("case")
def case(n: HloOp, index: HloTensor) -> list[Any]:
    blocks = [r.blocks[0] for r in n.op.regions]
    if index.array is not None:
        at = int(index.array.reshape(())[()])
        return n.importer.walk(blocks[at if 0 <= at < len(blocks) else -1], [])
    n.importer.capture(n.op)

    def branch(i: int) -> list[Any]:  # the last one for every index that no branch has
        if i == len(blocks) - 1:
            return n.importer.walk(blocks[i], [])
        return taken(n, lambda: n("equal", index, i), lambda: n.importer.walk(blocks[i], []), lambda: branch(i + 1))

    return branch(0)


@hlo("if")
def if_(n: HloOp, condition: HloTensor) -> Any:
    yes, no = (r.blocks[0] for r in n.op.regions)
    if condition.array is not None:
        return n.importer.walk(yes if bool(condition.array.reshape(())[()]) else no, [])
    n.importer.capture(n.op)
    return taken(n, lambda: condition, lambda: n.importer.walk(yes, []), lambda: n.importer.walk(no, []))


def taken(n: HloOp, condition: Callable[[], HloTensor], *branches: Callable[[], list[Any]]) -> list[Any]:
    """Results of the branch that is taken: both are computed, but for loops."""
    try:
        results, made = either(n.make, lambda: condition().ssa, branches, values_of, n.place)
    except NotMade:
        return [FAILED] * len(n.op.results)
    return chosen(n, condition(), *results) if made is None else packed(n, results[0], made)


def values_of(results: Sequence[Any]) -> list[ir.Value]:
    """The values of tensors, of complex ones those of both parts."""
    if any(v is FAILED for v in results):
        raise NotMade
    return [t.ssa for v in results for t in ((v.re, v.im) if isinstance(v, Complex) else (v,))]


def packed(n: HloOp, like: Sequence[Any], values: Sequence[ir.Value]) -> list[Any]:
    """The inverse of `values_of`."""
    rest = iter([HloTensor(n, type_of(v), v) for v in values])
    return [Complex(next(rest), next(rest)) if isinstance(v, Complex) else next(rest) for v in like]


def chosen(n: HloOp, condition: HloTensor, yes: Sequence[Any], no: Sequence[Any]) -> list[Any]:
    """Results of the branch that is taken; operators have no side effects, so both may be computed."""

    def one(a: Any, b: Any) -> Any:
        if a is FAILED or b is FAILED:
            return FAILED
        if isinstance(a, Complex):
            return Complex(one(a.re, b.re), one(a.im, b.im))
        return a if a is b else n("where", condition, a, b)

    return [one(a, b) for a, b in zip(yes, no, strict=True)]


@hlo("composite")
def composite(n: HloOp, *operands: object) -> Any:
    """By the operator that there is for it, or by its decomposition."""
    own = find(n.text("name"))
    if own is not None and all(isinstance(v, HloTensor) for v in operands):
        return own(n, *operands)
    name = ir.FlatSymbolRefAttr(n.attribute("decomposition")).value
    return n.importer.call(name, operands)


@hlo("custom_call", by_parts=True)
def custom_call(n: HloOp, *operands: Any) -> list[Any] | None:
    name = n.text("call_target_name")
    if name in IDENTITIES and len(operands) == len(n.op.results):
        return list(operands)
    if name == "shape_assertion":
        return _assert_sizes(n, *operands)
    n.need(False, _WHY.get(name.partition("_")[0], "a function that is not part of the program"))
    return None


def _assert_sizes(n: HloOp, holds: HloTensor, *sizes: HloTensor) -> list[Any]:
    """What a program with open sizes expects of them; UsageError for others."""
    n.need(all(v.array is not None for v in (holds, *sizes)), "of sizes that are not known")
    if not np.all(holds.array):
        message = n.text("error_message") if n.attribute("error_message") is not None else "a condition does not hold"
        for i, size in enumerate(sizes):
            message = message.replace(f"{{{i}}}", str(size.array))
        raise UsageError(f"the program is not for these sizes: {message}", stage="import")
    return []


#: what calls of functions of a library are for, by the beginning of their names
_WHY = {
    "lapack": "linear algebra by LAPACK is not imported: compute it outside of the program",
    "cusolver": "linear algebra of another device: export for the platform cpu",
    "stablehlo.dynamic": "its sizes stay open: export the program with fixed sizes",
    "xla": "a call back into Python is not part of the program",
}
