"""Vectors that end in the padding of a row: their last lanes hold nothing, and nothing reads what they write there. So
they need no mask, whose cost is that what was just written cannot be read before it has reached the cache."""

from __future__ import annotations

from ...schedule.nest import Nest, stores
from ...tensor.expr import Buffer, Const, Expr, bounds, substitute
from .emit_expr import ExprEmitter


class PaddingEmitter(ExprEmitter):
    """Says which vectors end in padding."""

    nest: Nest

    def ends_in_padding(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        """Whether the lanes masked off of a contiguous vector of a temporary are elements of the same row that no
        statement writes."""
        vector = self.vector
        if buffer.scope != "local" or vector is None or vector.first is None or not indices:
            return False
        if any(self.depends_on_lane(i) for i in indices[:-1]):
            return False
        values = {v: Const(at, "index") for v, at in self.env.items() if isinstance(at, int)}
        start = bounds(substitute(indices[-1], {**values, vector.var: Const(0, "index")}), self.ranges)
        if start is None or start[0] != start[1]:
            return False
        return self.written_to(buffer) < start[0] + vector.first and start[0] + vector.width <= buffer.shape[-1]

    def written_to(self, buffer: Buffer) -> int:
        """The largest last index at which a buffer is written; its end if that is not known."""
        targets = [t for s in stores(self.nest.body) for t in s.targets if t.buffer == buffer.name]
        limits = [bounds(t.indices[-1], self.ranges) for t in targets]
        return max((buffer.shape[-1] if x is None else x[1] for x in limits), default=buffer.shape[-1])
