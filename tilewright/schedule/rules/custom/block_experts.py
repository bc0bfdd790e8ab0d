"""Products with weights of experts in blocks of a few bits (`ops/block_experts.py`): the loops of `block_matmul` for a
few rows, for each expert that has some. Rows are read where they come from, weights in the expert's part.

    for tile of an expert's columns: for expert: for up to four of its rows at once: ...
"""

from __future__ import annotations

from collections.abc import Callable

from ....tensor.expr import Expr, Load, Op, Target, Var, map_loads
from ....tensor.kernel import Kernel
from ...machine import Machine
from ...nest import If, Stmt, Store, loop, map_exprs, seq, transform
from .. import Choose, Direct, direct
from .block_matmul import ByteProduct, FloatProduct, Product
from .experts import position
from .nests import index

Row = Callable[[Expr], Expr]


def build(product: Product, beside: tuple[str, ...], first: int) -> Direct:
    """The loop nest of a product. `beside`: buffers that have a row for each row of x; `first` of the operands is that
    with the words."""
    read, operands = product.read, product.read.opaque.operands
    weights = frozenset(n for n in operands[first : first + 6] if n is not None)
    starts = operands[first + 6]
    rows = operands[first + 7] if len(operands) > first + 7 else None
    assert starts is not None
    count, x_rows, total = read.shape(starts)[0] - 1, read.shape(product.x)[0], product.rows
    inputs = frozenset([*operands[:first], *beside])
    e, most = Var("e"), Product.few_high(product)
    product.place = e * (product.columns // product.width) + Var("nt")

    def few(height: int, at: Expr) -> Stmt:
        """The products of so many rows from row `at` of the result on."""

        def here(i: Expr) -> Expr:
            return at + i

        def source(i: Expr) -> Expr:
            return here(i) if rows is None else position(rows, (here(i),), x_rows - 1)

        moves: dict[str, Row] = dict.fromkeys(inputs - {None}, source)  # type: ignore[arg-type]
        moves |= dict.fromkeys(weights, lambda n: e * product.columns + n)
        return moved(product.few(height, f"_{height}", index(0)), moves, {product.out: here})

    begin = position(starts, (e,), total)
    many = Op("maxsi", (position(starts, (e + 1,), total) - begin, index(0)), "index")
    rest = many % most
    parts: list[Stmt] = [loop("m", many // most, few(most, begin + Var("m") * most))]
    parts += [If(Op("cmpi.eq", (rest, index(h)), "i1"), few(h, begin + (many - rest))) for h in range(1, most)]
    tiles = -(-product.tiles // product.vectors)
    nest = loop("nt", tiles, loop("e", count, seq(*parts)), "thread")
    product.rows = x_rows  # what is prepared is so for rows of x
    return Direct(product.prepared(nest), product.weights.packs((product.vectors, product.lanes)))


def moved(s: Stmt, reads: dict[str, Row], writes: dict[str, Row]) -> Stmt:
    """A statement with other rows, the first index, of these buffers."""

    def expr(e: Expr) -> Expr:
        def one(x: Load) -> Expr:
            move = reads.get(x.buffer)
            return Load(x.buffer, (move(x.indices[0]), *x.indices[1:]), x.dtype) if move else x

        return map_loads(e, one)

    def visit(x: Stmt) -> Stmt:
        x = map_exprs(x, expr)
        if isinstance(x, Store) and any(t.buffer in writes for t in x.targets):
            targets = [
                Target(t.buffer, (writes[t.buffer](t.indices[0]), *t.indices[1:]), t.value, t.init)
                if t.buffer in writes
                else t
                for t in x.targets
            ]
            return Store(tuple(targets), x.block, x.reduction)
        return x

    found = transform(s, visit)
    assert found is not None
    return found


@direct("expert_block_matmul", writes_once=True, reuses=True)
def expert_block_matmul(kernel: Kernel, machine: Machine, choose: Choose) -> Direct:
    """The loop nest of ``tw.expert_block_matmul``."""
    return build(FloatProduct(kernel, machine, choose), (), 1)


@direct("expert_integer_block_matmul", writes_once=True, reuses=True)
def expert_integer_block_matmul(kernel: Kernel, machine: Machine, choose: Choose) -> Direct:
    """The loop nest of ``tw.expert_integer_block_matmul``."""
    return build(ByteProduct(kernel, machine, choose), ("starts", "wholes"), 3)


__all__ = ["expert_block_matmul", "expert_integer_block_matmul"]
