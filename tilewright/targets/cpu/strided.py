"""Lanes that lie a few elements apart, in reverse, or take turns: whole vectors are loaded and the elements picked out.

    for i in vector(16):
        y[i] = x[i * 2]                   # as the half of a picture
        y[i] = x[i // 2]                  # each element twice
        y[i] = x[i // 2 + i % 2 * 100]    # elements of two rows in turns

A gather takes about as long as loading every element by itself. Two to four vectors and one shuffle less than that have
the same lanes.
"""

from __future__ import annotations

from ...tensor.expr import Buffer, Const, Expr, Op, Var, const_value, linear, substitute
from .emit_expr import ExprEmitter, Value

#: distances of neighbouring lanes that are worth it
APART = (2, 3, 4)
#: how many rows may take turns, or how often an element may come
TURNS = (2, 4, 8)


class StridedEmitter(ExprEmitter):
    """Emission of such loads."""

    def strided(self, buffer: Buffer, indices: tuple[Expr, ...], stride: int | None, shape: Value) -> Value | None:
        """The active lanes of a load with a stride other than 0 and 1, the others hold anything; None where a gather it
        must be. Nothing outside of what the lanes touch is read."""
        assert self.vector is not None
        width, active = shape.width, self.vector.count
        if active is None or active < 2 or width < 4:
            return None
        if stride is None:
            return self._in_turns(buffer, indices, shape, active)
        if stride == -1:
            return self._reversed(buffer, indices, shape, active)
        return self._apart(buffer, indices, stride, shape, active) if stride in APART else None

    def _reversed(self, buffer: Buffer, indices: tuple[Expr, ...], shape: Value, active: int) -> Value:
        assert self.vector is not None
        begin = substitute(self.flat(buffer, indices), {self.vector.var: Const(active - 1, "index")})
        whole = self._elements(buffer, begin, active, shape)
        return self._pick(whole, whole, [max(active - 1 - i, 0) for i in range(shape.width)])

    def _apart(self, buffer: Buffer, indices: tuple[Expr, ...], stride: int, shape: Value, active: int) -> Value:
        assert self.vector is not None
        width, begin = shape.width, substitute(self.flat(buffer, indices), {self.vector.var: Const(0, "index")})
        last = stride * (active - 1)  # the last element wanted
        found: Value | None = None
        done = 0  # lanes that are found
        for j in range(stride):
            first = min(j * width, (stride - 1) * (width - 1))  # so that the last vector ends with the last lane
            if first > last:
                break
            part = self._elements(buffer, begin + first, min(last + 1 - first, width), shape)
            places = [(width if found else 0) + i * stride - first for i in range(width)]
            here = [i for i in range(done, width) if i * stride - first < width]
            found = self._pick(
                found or part, part, [i if i < done else places[i] if i in here else 0 for i in range(width)]
            )
            done = here[-1] + 1 if here else done
        assert found is not None
        return found

    def _in_turns(self, buffer: Buffer, indices: tuple[Expr, ...], shape: Value, active: int) -> Value | None:
        """Lane i is element i // n of row i % n; or of a single row, where each element comes n times."""
        assert self.vector is not None
        lane, width, flat = self.vector.var, shape.width, self.flat(buffer, indices)
        terms = {t: c for t, c in linear(flat)[0].items() if self.depends_on_lane(t)}
        n = next((const_value(t.args[1]) for t in terms if isinstance(t, Op) and t.op == "floordivsi"), None)
        if n not in TURNS or width % n:
            return None
        quotient, rest = (Op(op, (Var(lane), Const(n, "index")), "index") for op in ("floordivsi", "remsi"))
        if terms.get(quotient) != 1 or not terms.keys() <= {quotient, rest}:
            return None
        if rest not in terms:
            whole = self._elements(buffer, substitute(flat, {lane: Const(0, "index")}), -(-active // n), shape)
            return self._pick(whole, whole, [i // n for i in range(width)])
        found: Value | None = None
        for row in range(min(n, active)):
            begin = substitute(flat, {lane: Const(row, "index")})
            part = self._elements(buffer, begin, -(-(active - row) // n), shape)
            start = width if found else 0
            found = self._pick(found or part, part, [i if i % n < row else start + i // n for i in range(width)])
        return found

    def _elements(self, buffer: Buffer, begin: Expr, count: int, shape: Value) -> Value:
        """`count` neighbouring elements."""
        memory, kind, width = self.memory[buffer.name], self.memref(buffer), shape.width
        base = self.index(begin).ssa
        if count == width:
            return self.remember(buffer, f"vector.load {memory}[{base}] : {kind}, {shape.type}", shape)
        mask = self.op(f"vector.constant_mask [{count}] : vector<{width}xi1>")
        zero = self.const(0, shape.dtype, width)
        text = f"vector.maskedload {memory}[{base}], {mask}, {zero} : {kind}, vector<{width}xi1>, {shape.type}"
        return self.remember(buffer, f"{text} into {shape.type}", shape)

    def _pick(self, a: Value, b: Value, places: list[int]) -> Value:
        text = f"vector.shuffle {a.ssa}, {b.ssa} [{', '.join(map(str, places))}] : {a.type}, {b.type}"
        return self.op_value(text, a)
