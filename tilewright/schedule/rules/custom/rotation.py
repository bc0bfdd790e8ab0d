"""Rows times a Hadamard matrix (`ops.write_quantized_pages.rotated`), as steps of sums and differences of neighbours.

    for step in log2(n):  y[i] = x[2 * i] + x[2 * i + 1];  y[n / 2 + i] = x[2 * i] - x[2 * i + 1]

All steps are alike, and read pairs that lie side by side, which vectors take apart by shuffles.
"""

from __future__ import annotations

from collections.abc import Callable

from ....ops.write_quantized_pages import rotation
from ....tensor.expr import Buffer, Expr, Load, Op, Target, Var
from ...nest import Alloc, For, Stmt, Store, loop, seq, store
from .nests import add, index

#: the place of a number of a row: a buffer and the indices there
Place = Callable[[Expr], tuple[str, tuple[Expr, ...]]]


def rotate(name: str, row: Place, size: int, dtype: str, lanes: int) -> Stmt:
    """A row of `size` numbers rotated where it is, sqrt(n) times as long for matrices of n x n. `name`: of the second
    place that it has meanwhile."""
    n = rotation(size)
    if n == 1:
        return seq()
    width = min(lanes, n // 2)

    def other(i: Expr) -> tuple[str, tuple[Expr, ...]]:
        return name, (i,)

    def over(count: int, body: Callable[[Expr], Stmt]) -> Stmt:
        lane = For("turn_l", index(width), body(Var("turn_o") * width + Var("turn_l")), "vector", width)
        return loop("turn_o", count // width, lane if width > 1 else body(Var("turn_o")))

    def step(source: Place, to: Place) -> Stmt:
        first = Var("turn_b") * n

        def pair(i: Expr) -> Stmt:
            a, b = (Load(*source(first + i * 2 + k), dtype) for k in (0, 1))
            sums, differences = to(first + i), to(first + i + n // 2)
            return Store((Target(*sums, add(a, b)), Target(*differences, Op("subf", (a, b), dtype))), "turn")

        return loop("turn_b", size // n, over(n // 2, pair))

    steps = [step(*((row, other) if i % 2 == 0 else (other, row))) for i in range(n.bit_length() - 1)]
    if len(steps) % 2:
        steps.append(over(size // n * n, lambda i: store(*row(i), Load(*other(i), dtype), "turned")))
    return Alloc(Buffer(name, (size,), dtype, "local"), seq(*steps))


__all__ = ["rotate"]
