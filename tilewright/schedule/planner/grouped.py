"""Sums of products on dot-product and matrix instructions, which take several neighbours of the reduction at once:
pairs of bf16, groups of bytes, rows of matrices. The operand of the rows has such neighbours in memory; a constant
one is packed so."""

from __future__ import annotations

from typing import NamedTuple

from ...support.sizes import gcd, is_open
from ...tensor.expr import Const, Load, Op, Var, walk
from ...tensor.kernel import Stage
from ..legality import is_update
from ..rules.common import store_stride
from ..schedule import Schedule
from .instructions import Instruction
from .product import Operand, Product, operands_of


class Grouped(NamedTuple):
    """The columns, the operand of the rows and that of the columns, rows (innermost first), and the loops of the
    reduction along which the operand of the rows has neighbours."""

    columns: str
    x: Operand
    w: Operand
    rows: tuple[str, ...]
    runs: list[str]
    operands: tuple[Operand, ...]

    def product(self, s: Schedule, anchor: Stage, run: str, instruction: Instruction) -> Product:
        parallel = tuple(v for v, _ in anchor.parallel)
        guarded = any(isinstance(y, Op) and y.op == "guard" for y in walk(s.store(anchor.name).targets[0].value))
        rows = () if guarded else self.rows  # every guarded load is a branch: rows would multiply them
        return Product(
            instruction, anchor.extents, self.columns, rows, parallel, tuple(anchor.reduction), self.operands,
            run=run, live=frozenset(s.loops()),
            divides={v: gcd(d) for v, d in anchor.extents.items() if is_open(d)},
            layouts_before=s.kernel.layouts,
        )  # fmt: skip


def find_grouped(s: Schedule, anchor: Stage, factors: tuple[Load, Load], *, constant: bool) -> Grouped | str:
    """What the loops and the factors of a sum are, or why it is none of this kind; with `constant` the operand of the
    columns must be one."""
    operands = operands_of(s, anchor)
    pair = [next(y for y in operands if str(y.load) == str(f)) for f in factors]
    parallel, store = [v for v, _ in anchor.parallel], s.store(anchor.name)
    if constant and [y.constant for y in sorted(pair, key=lambda y: y.constant)] != [False, True]:
        return "its weights are not constant"
    reason = "no loop is contiguous in the result"
    for n in reversed(parallel):
        if store_stride(s, store, n) != 1:
            continue
        still, moved = [y for y in pair if y.steps[n] == 0], [y for y in pair if y.steps[n] != 0]
        if len(still) != 1 or (constant and still[0].constant):
            reason = "its operand moves along the contiguous loop of the result"
            continue
        (x,), (w,) = still, moved
        if not w.constant and w.steps[n] != 1:
            reason = "its operand is not contiguous along the result"
            continue
        if constant and not all(isinstance(i, (Var, Const)) for i in w.load.indices):
            return "its weights are not read in whole rows"
        runs = [k for k in anchor.reduction if x.steps[k] == 1 and w.steps[k]]
        if not runs:
            return "no loop of the reduction has neighbours in the operand along the rows"
        rows = tuple(v for v in reversed(parallel) if v != n and w.steps[v] == 0 and x.steps[v])
        return Grouped(n, x, w, rows, runs, operands)
    return reason


def byte_factors(s: Schedule, anchor: Stage) -> tuple[tuple[str, Load], tuple[str, Load]] | None:
    """(signedness, bytes) of both factors of ``acc + ext(x) * ext(w)``, the constant one last."""
    t = s.store(anchor.name).targets[0]
    v = t.value
    if not (is_update(t) and isinstance(v, Op) and v.op == "addi"):
        return None
    product = next(a for a in v.args if not (isinstance(a, Load) and a.buffer == t.buffer))
    if not (isinstance(product, Op) and product.op == "muli" and len(product.args) == 2):
        return None
    found = []
    for a in product.args:
        if not (isinstance(a, Op) and a.op in ("extsi", "extui") and isinstance(a.args[0], Load)):
            return None
        if a.args[0].dtype != "i8":
            return None
        found.append((a.op[3], a.args[0]))
    x, w = found
    return (w, x) if x[1].buffer in s.kernel.constants else (x, w)


__all__ = ["Grouped", "byte_factors", "find_grouped"]
