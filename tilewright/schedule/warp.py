"""Warp-level instructions (`machine.WarpProduct`, `WarpLoad`, `WarpFold`): the loops that one instruction runs.

Loops with a note ``warp`` on the innermost one stand for an instruction; `read_product`, `read_copy` and `read_fold`
say what it works on, or raise CompileError because they are something else. The primitive `tensorize` and code
generators ask.

    for m in serial(16): for n in serial(8):
        for k in serial(16, notes={'warp': 'mma_bf16'}): acc[m, n] += extf(x[m, k]) * extf(w[k, n])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..support.errors import CompileError
from ..tensor.expr import Buffer, Expr, Load, Op, Target, Var, linear, variables, walk
from .machine import WarpFold, WarpLoad, WarpProduct
from .nest import For, Stmt, Store

#: the note of the innermost loop
NOTE = "warp"
#: how many loops an instruction is
PRODUCT_LOOPS, COPY_LOOPS = 3, 2
#: what folds a row
FOLDS = ("addf", "maxnumf")


@dataclass(frozen=True)
class Block:
    """A block of a matrix: its buffer and place; `turned` if the second loop of the pair selects its row."""

    load: Load
    turned: bool = False


@dataclass(frozen=True)
class ProductLoops:
    """Loops over rows, columns and the sum, and the blocks of the sums and the factors."""

    product: WarpProduct
    m: For
    n: For
    k: For
    acc: Block
    x: Block
    w: Block


@dataclass(frozen=True)
class CopyLoops:
    """Loops over rows and columns of the target, and what is copied."""

    load: WarpLoad
    row: For
    column: For
    target: Block
    source: Load


@dataclass(frozen=True)
class FoldLoops:
    """Loops over rows and columns, the place of a row's result, the operation (`FOLDS`), and what is folded."""

    row: For
    column: For
    target: Target
    operation: str
    value: Expr


def noted(s: Stmt) -> str | None:
    """The name of the instruction that perfectly nested loops stand for, if they do."""
    while isinstance(s, For):
        if (name := s.note(NOTE)) is not None:
            return str(name)
        s = s.body
    return None


def read_product(s: Stmt, product: WarpProduct, buffers: Mapping[str, Buffer]) -> ProductLoops:
    """The loops of a product; CompileError if they are not as it is."""
    loops, store = _chain(s, product.name, PRODUCT_LOOPS)
    (t,) = store.targets
    if not isinstance(t.value, Op) or t.value.op != ("addf" if product.sums == "f32" else "addi"):
        raise _refuse(product.name, f"block {store.block} adds no product")
    acc = Load(t.buffer, t.indices, product.sums)
    terms = [e for e in t.value.args if e != acc]
    if len(terms) != 1 or not isinstance(terms[0], Op) or terms[0].op != ("mulf" if product.sums == "f32" else "muli"):
        raise _refuse(product.name, f"block {store.block} adds no product")
    factors = [_factor(product, e) for e in terms[0].args]
    k = next((f for f in loops if not _uses(acc, f)), None)
    if k is None or k is not loops[-1]:
        raise _refuse(product.name, "the innermost loop does not run over the sum")
    for x, w in (factors, factors[::-1]):
        rows = [f for f in loops[:-1] if _uses(x, f) and not _uses(w, f)]
        columns = [f for f in loops[:-1] if _uses(w, f) and not _uses(x, f)]
        if len(rows) == len(columns) == 1 and (rows[0].trip, columns[0].trip) == (product.rows, product.columns):
            break
    else:
        raise _refuse(product.name, f"the loops are not {product.rows} rows by {product.columns} columns")
    m, n = rows[0], columns[0]
    if k.trip != product.depth:
        raise _refuse(product.name, f"the sum has {k.trip} steps, not {product.depth}")
    blocks = [_block(product.name, product.memory, buffers, acc, m, n)]
    for load, row, column, memory in ((x, m, k, product.first or product.operands), (w, k, n, product.operands)):
        if memory == product.memory:
            blocks.append(_block(product.name, product.memory, buffers, load, row, column))
        elif buffers[load.buffer].scope != memory:
            raise _refuse(product.name, f"{load.buffer} is in {buffers[load.buffer].scope}, not in {memory}")
        else:  # in memory, in a layout that the code generator knows
            blocks.append(Block(load))
    for load, dtype in ((acc, product.sums), (x, product.dtype), (w, product.dtype)):
        if buffers[load.buffer].dtype != dtype:
            raise _refuse(product.name, f"{load.buffer} is {buffers[load.buffer].dtype}, not {dtype}")
    return ProductLoops(product, m, n, k, *blocks)


def read_copy(s: Stmt, load: WarpLoad, buffers: Mapping[str, Buffer]) -> CopyLoops:
    """The loops of a copy to parts of threads; CompileError if they are not as it is."""
    loops, store = _chain(s, load.name, COPY_LOOPS)
    (t,) = store.targets
    if not isinstance(t.value, Load) or buffers[t.value.buffer].scope != load.source:
        raise _refuse(load.name, f"block {store.block} is no copy from {load.source}")
    target = Load(t.buffer, t.indices, t.value.dtype)
    first, second = loops
    block = _block(load.name, load.memory, buffers, target, first, second)
    row, column = (second, first) if block.turned else (first, second)
    return CopyLoops(load, row, column, Block(target), t.value)


def read_fold(s: Stmt, fold: WarpFold, buffers: Mapping[str, Buffer]) -> FoldLoops:
    """The loops of a fold of rows; CompileError if they are not as it is."""
    (row, column), store = _chain(s, fold.name, COPY_LOOPS)
    (t,) = store.targets
    if buffers[t.buffer].scope != fold.memory or len(t.indices) != 1 or column.var in variables(t.indices[0]):
        raise _refuse(fold.name, f"{t.buffer} has no number for each row in {fold.memory}")
    if not isinstance(t.value, Op) or t.value.op not in FOLDS or not _moves(t.indices[0], row, column):
        raise _refuse(fold.name, f"block {store.block} does not fold rows by {' or '.join(FOLDS)}")
    old = Load(t.buffer, t.indices, t.value.dtype)
    terms = [e for e in t.value.args if e != old]
    if len(terms) != 1 or any(isinstance(x, Load) and x.buffer == t.buffer for x in walk(terms[0])):
        raise _refuse(fold.name, f"block {store.block} does not add to {t.buffer}")
    return FoldLoops(row, column, t, t.value.op, terms[0])


def _chain(s: Stmt, name: str, count: int) -> tuple[list[For], Store]:
    loops: list[For] = []
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    if len(loops) != count or not isinstance(s, Store) or len(s.targets) != 1:
        raise _refuse(name, f"it is {count} loops around one statement, these are {len(loops)}")
    return loops, s


def _factor(product: WarpProduct, e: Expr) -> Load:
    if isinstance(e, Op) and e.op == product.extends and isinstance(e.args[0], Load):
        return e.args[0]
    raise _refuse(product.name, f"a factor is no number of dtype {product.dtype} from memory: {e}")


def _uses(x: Load, f: For) -> bool:
    return any(f.var in variables(i) for i in x.indices)


def _block(name: str, memory: str, buffers: Mapping[str, Buffer], x: Load, row: For, column: For) -> Block:
    """The last two indices are those of the loops, in either order, added to something."""
    b = buffers[x.buffer]
    if b.scope != memory:
        raise _refuse(name, f"{x.buffer} is in {b.scope}, not in {memory}")
    if len(x.indices) >= 2:
        for turned, (r, c) in ((False, (row, column)), (True, (column, row))):
            rest = any(f.var in variables(i) for f in (row, column) for i in x.indices[:-2])
            if _moves(x.indices[-2], r, c) and _moves(x.indices[-1], c, r) and not rest:
                return Block(x, turned)
    raise _refuse(name, f"{x.buffer} is not read at rows and columns of the loops: {x}")


def _moves(e: Expr, by: For, other: For) -> bool:
    terms = linear(e)[0]
    return terms.get(Var(by.var)) == 1 and not any(
        {by.var, other.var} & variables(t) for t in terms if t != Var(by.var)
    )


def _refuse(name: str, why: str) -> CompileError:
    return CompileError(f"the loops are no {name}: {why}", stage="schedule")


__all__ = [
    "COPY_LOOPS",
    "FOLDS",
    "NOTE",
    "PRODUCT_LOOPS",
    "Block",
    "CopyLoops",
    "FoldLoops",
    "ProductLoops",
    "noted",
    "read_copy",
    "read_fold",
    "read_product",
]
