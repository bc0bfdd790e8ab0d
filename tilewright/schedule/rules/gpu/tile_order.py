"""Tile order (rasterization) of a matrix product: which block computes which tiles of the result, in which order.

Tiles that are computed at the same time should lie close to each other, for they share rows and columns of the factors,
which then come from the L2 cache: some rows of tiles are gone along together, column by column. A block may compute
several tiles, one after the other (`turns`, a persistent kernel): the loads of the next one overlap with the stores of
the last one. Blocks of a cluster compute tiles of neighbouring rows and the same columns, whose factor they load once
for all of them (multicast).
"""

from __future__ import annotations

from dataclasses import dataclass

from ....tensor.expr import Const, Expr, Op, minimum

#: how many rows of tiles are gone along together: what is tried
TOGETHER = (1, 2, 4, 8, 16, 32)
#: blocks of a cluster: what is tried
CLUSTERS = (1, 2)


@dataclass(frozen=True)
class TileOrder:
    """Tiles of a result: `rows` by `columns` of them, `batch` times; `turns` for each block; `together` rows of tiles
    that are gone along at once. With clusters of several blocks a tile is here one of the cluster, `cluster` times as
    high, and so is a block.

    >>> from tilewright.tensor.expr import Var
    >>> order = TileOrder(5, 3, 1, turns=2, together=2)
    >>> order.blocks, str(order.number(Var("b"), Var("t")))
    (8, 'minsi(((t * 8) + b), 14)')
    >>> [[e.value for e in order.place(Const(n, "index"))[1:]] for n in (0, 1, 2, 6, 12, 13)]
    [[0, 0], [1, 0], [0, 1], [2, 0], [4, 0], [4, 1]]
    """

    rows: int
    columns: int
    batch: int
    turns: int
    together: int
    cluster: int = 1

    @property
    def tiles(self) -> int:
        return self.rows * self.columns * self.batch

    @property
    def blocks(self) -> int:
        """As few as make all tiles in so many turns."""
        return -(-self.tiles // self.turns)

    @property
    def beyond(self) -> bool:
        """Whether there are turns without a tile: those make the last one again, and write nothing."""
        return self.blocks * self.turns > self.tiles

    def first(self, block: Expr, turn: Expr) -> Expr:
        """The number of a block's tile in a turn, which may be one beyond the last."""
        return turn * self.blocks + block

    def number(self, block: Expr, turn: Expr) -> Expr:
        """The number of the tile that it makes."""
        n = self.first(block, turn)
        return minimum(n, self.tiles - 1) if self.beyond else n

    def place(self, number: Expr) -> tuple[Expr, Expr, Expr]:
        """Batch, row and column of the tile of a number."""
        each = self.rows * self.columns
        batch: Expr = number // each if self.batch > 1 else Const(0, "index")
        n = number % each if self.batch > 1 else number
        whole, rest = divmod(self.rows, self.together)
        row, column = self._along(n, self.together)
        if rest:
            main = whole * self.together
            last, across = self._along(n - main * self.columns, rest)
            inside = Op("cmpi.slt", (n, Const(main * self.columns, "index")), "i1")
            row, column = (_either(inside, a, b) for a, b in ((row, last + main), (column, across)))
        return batch, row, column

    def _along(self, n: Expr, together: int) -> tuple[Expr, Expr]:
        """Row and column if so many rows are gone along at once."""
        many = together * self.columns
        return n // many * together + n % many % together, n % many // together

    def __str__(self) -> str:
        who = f"{self.blocks} clusters of {self.cluster} blocks" if self.cluster > 1 else f"{self.blocks} blocks"
        return f"{self.turns} for each of {who}, {self.together * self.cluster} rows of them at once"


def _either(condition: Expr, a: Expr, b: Expr) -> Expr:
    match condition:
        case Op(_, (Const(low), Const(high)), _):
            return a if low < high else b
    return Op("select", (condition, a, b), "index")


def orders(rows: int, columns: int, batch: int, at_once: int, largest: int) -> list[TileOrder]:
    """Those that there are for so many blocks at once: with a tile for each block, or with as few blocks as that.
    Clusters have so many blocks at most."""
    found = []
    for cluster in (c for c in CLUSTERS if c <= min(largest, at_once) and rows % c == 0):
        down = rows // cluster
        turns = sorted({1, -(-down * columns * batch // (at_once // cluster))})
        together = [n for n in TOGETHER if n <= down] + ([down] if down < TOGETHER[-1] and down not in TOGETHER else [])
        found += [TileOrder(down, columns, batch, t, n, cluster) for t in turns for n in together]
    return found


def far(order: TileOrder, at_once: int, rows: int, columns: int) -> int:
    """Rows and columns of the factors that so many blocks load together, whose tiles have `rows` by `columns`."""
    each = min(order.blocks, at_once // order.cluster, order.rows * order.columns)
    down = min(order.together, each)
    return down * order.cluster * rows + -(-each // down) * columns


__all__ = ["TileOrder", "far", "orders"]
