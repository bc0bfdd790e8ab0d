"""What tests count in loop nests."""

from __future__ import annotations

from tilewright.schedule.nest import For, Store, children
from tilewright.tensor.expr import Op, bounds, walk


def scalar_products(s, times: int = 1) -> int:
    """How many multiplications of floats a nest makes one by one, outside of vectors, at most."""
    if isinstance(s, Store):
        return times * sum(isinstance(x, Op) and x.op == "mulf" for t in s.targets for x in walk(t.value))
    if isinstance(s, For):
        limit = bounds(s.extent, {})
        return 0 if s.kind == "vector" else scalar_products(s.body, times * (limit[1] if limit else 1))
    return sum(scalar_products(c, times) for c in children(s))
