"""Steps that several forms of plans share."""

from __future__ import annotations

from dataclasses import dataclass

from ...tensor.kernel import Stage
from ..machine import Machine
from ..schedule import Schedule
from .plan import Plan
from .product import Product


@dataclass(frozen=True)
class Sum:
    """What is carried out, on what."""

    s: Schedule
    anchor: Stage
    last: str
    plan: Plan
    product: Product
    machine: Machine

    @property
    def block(self) -> str:
        return self.anchor.name

    @property
    def sums(self) -> str:
        """The buffer in which the sums are."""
        return self.s.store(self.block).targets[0].buffer

    def pack(self, columns: str, block: int) -> None:
        """Pack constants in tiles of so many columns."""
        for x in self.product.layouts(columns, block):
            self.s.pack(x.buffer, x.splits, x.order)

    def unroll(self, reductions: list[str]) -> None:
        """Unroll inner loops of the reduction, and some steps of the next one."""
        whole = len(reductions) - self.plan.unroll_loops
        for k in reversed(reductions[whole:]):
            self.s.unroll(k)
        if self.plan.unroll > 1:
            self.s.unroll(self.s.split(reductions[whole - 1], self.plan.unroll)[1])


def registers(s: Schedule, loops: list[str], width: int) -> None:
    """The loops over a tile: rows unrolled, the last one in vectors of `width`, or (0) unrolled too."""
    if not loops:
        return
    *rows, n = loops
    for m in rows:
        s.unroll(m)
    if width == 0:
        s.unroll(n)
        return
    vector, lane = s.split(n, width)
    s.unroll(vector)
    s.vectorize(lane)


__all__ = ["Sum", "registers"]
