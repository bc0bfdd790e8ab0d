"""Byte dot products (like VNNI's) and high halves of products, as calls of functions that the target defines when a
kernel is compiled (``@tw_dot_NAME``). A dot product is an unrolled loop with the note ``dot``, the name of an
instruction:

    for l in vector(16): for q in unroll(4, notes={'dot': NAME}): acc[l] += x[k*4 + q] * w[k, l, q]

``dot4(w, a, b, c, d)`` is such a sum for a word of four bytes, ``acc[l] += dot4(w[l], x[k], x[k+1], x[k+2], x[k+3])``:
``@tw_dot_words7_N`` (bytes of 7 bits at most in w) or ``@tw_dot_words8_N`` for N lanes (0: a scalar). ``table4(w, t0,
t1, t2, t3)`` looks up the bytes of a word in a table of sixteen (``@tw_table_N``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from ...schedule.nest import For, Stmt, Store
from ...support.errors import CompileError
from ...tensor.expr import Const, Expr, Load, Op, Target
from .expressions import Handler
from .part import Part
from .values import Value, accumulated


class ByteProducts(Part):
    """Takes loops with the note ``dot``; ``dot4``, ``table4`` and ``mulhsi``."""

    takes = (For,)

    @property
    def operations(self) -> Mapping[str, Handler]:
        return {
            "mulhsi": self._upper_word,
            "dot4": lambda e, _: self._add(e, Value(self.text.const(0, "i32"), "i32")),
            "table4": self._of_table,
        }

    def improves(self, t: Target) -> bool:
        v = t.value
        return isinstance(v, Op) and v.op == "addi" and any(isinstance(x, Op) and x.op == "dot4" for x in v.args)

    def value(self, t: Target) -> Value | None:
        v = t.value
        if isinstance(v, Op) and not self.at.invariant(t):
            for acc, other in (v.args, v.args[::-1]):
                if isinstance(other, Op) and other.op == "dot4":
                    return self._add(other, self.core.expr(acc))
        return None

    def _upper_word(self, e: Op, emit: Callable[[Expr], Value]) -> Value:
        args, width = self.text.even([emit(a) for a in e.args])
        return self.text.call(f"tw_mulhsi_{width}", args, Value("", "i32", width))

    def _of_table(self, e: Op, emit: Callable[[Expr], Value]) -> Value:
        word, parts = emit(e.args[0]), [x.value for x in e.args[1:] if isinstance(x, Const)]
        if len(parts) != 4:
            raise CompileError("the numbers of a table are not constants", stage="emit")
        table = self.text.at_first(f"arith.constant dense<{[int(x) for x in parts]}> : vector<4xi32>")
        found = Value("", "i32", word.width)
        return self.text.call(f"tw_table_{word.width}", [word, Value(table, "i32", 4)], found)

    def _add(self, e: Op, acc: Value) -> Value:
        """``acc + dot4(w, x0, x1, x2, x3)``."""
        word = self.core.expr(e.args[0])
        args, width = self.text.even([acc, word, self._four_bytes(e.args[1:])])
        return self.text.call(
            f"tw_dot_words{7 if _seven_bits(e.args[0]) else 8}_{width}", args, Value("", "i32", width)
        )

    def _four_bytes(self, parts: tuple[Expr, ...]) -> Value:
        """Four signed bytes as a word: read at once where they lie side by side, the same for all lanes."""
        loads = [x for x in parts if isinstance(x, Load) and self.buffers[x.buffer].scope != "register"]
        side_by_side = len(loads) == 4 and all(self.at.neighbours(x, y) for x, y in pairwise(loads))
        if side_by_side and (not self.text.vector or self.at.lane_stride(loads[0].buffer, loads[0].indices) == 0):
            return self._word(loads[0], 4)
        return self._joined((self.core.expr(x) for x in parts), shift0=True)

    def _word(self, x: Load, count: int) -> Value:
        """`count` neighbouring bytes as an i32, the first lowest; zeros above."""
        text, buffer = self.text, self.buffers[x.buffer]
        base = self.at.address(buffer, x.indices, lane0=text.vector is not None).ssa
        if count == 4:
            loaded = text.read(buffer, base, Value("", "i8", 4))
            one = text.op(f"vector.bitcast {loaded.ssa} : vector<4xi8> to vector<1xi32>")
            return text.lane(Value(one, "i32", 1), 0)
        places = (text.op(f"arith.addi {base}, {text.const(i, 'index')} : index") if i else base for i in range(count))
        return self._joined(text.read(buffer, at, Value("", "i8")) for at in places)

    def _joined(self, parts: Iterable[Value], shift0: bool = False) -> Value:
        """Bytes as a word, the first lowest."""
        word: Value | None = None
        for i, x in enumerate(parts):
            part = self.text.elementwise("arith.extui", [x], "i32")
            if i or shift0:
                part = self.text.elementwise("arith.shli", [part, Value(self.text.const(8 * i, "i32"), "i32")], "i32")
            word = part if word is None else self.text.elementwise("arith.ori", [word, part], "i32")
        assert word is not None
        return word

    # ---- loops ----

    def wants(self, s: Stmt) -> bool:
        return isinstance(s, For) and s.kind == "unroll" and s.note("dot") is not None

    def emit(self, s: Stmt) -> bool:
        assert isinstance(s, For)
        name, vector = s.note("dot"), self.text.vector
        dot = self.core.machine.dot_products.get(name)
        if dot is None:
            raise CompileError(f"there is no instruction {name!r} for products of bytes", stage="emit")
        lanes, depth = dot.lanes, dot.depth
        acc, row, column = self._factors(s)
        if (vector.width if vector else 0) != lanes:
            if lanes:
                raise self._no_dot(s, f"it is not in a vector of {lanes} lanes")
            self.core.refuse(s, "dot", "it is in a vector, and the instruction gives one sum")
            return False
        if lanes == 0 and depth == 4 and s.trip != depth:
            self.core.refuse(s, "dot", f"{s.trip} products are too few for the instruction to pay")
            return False
        with self.text.bind(s.var, 0):
            if lanes:
                if self.at.lane_stride(row.buffer, row.indices) != 0:
                    row, column = column, row
                factors = [self._word(row, s.trip or 0), self._group(column, lanes, depth)]
                factors[0] = self.text.as_vector(factors[0], lanes)
                arguments = [self.text.as_vector(self.core.expr(acc)), *factors]
            elif depth == 4:
                arguments = [self.core.expr(acc), self._word(row, 4), self._word(column, 4)]
            else:
                arguments = [self.core.expr(acc), *(self._bytes(x, depth, s.trip) for x in (row, column))]
            value = self.text.call(f"tw_dot_{name}", arguments, Value("", "i32", lanes))
            assert isinstance(s.body, Store)
            self.core.write(s.body.targets[0], value)
        return True

    def _no_dot(self, s: For, why: str) -> CompileError:
        return CompileError(f"loop {s.var} is no sum of products of bytes: {why}", stage="emit")

    def _factors(self, s: For) -> tuple[Load, Load, Load]:
        """(accumulator, bytes along the rows, bytes along the columns) of ``acc += ext(x) * ext(y)``."""
        t = s.body.targets[0] if isinstance(s.body, Store) and len(s.body.targets) == 1 else None
        if t is not None and isinstance(t.value, Op) and t.value.op == "addi":
            for acc, product in accumulated(t):
                if isinstance(product, Op) and product.op == "muli":
                    x, y = (a.args[0] if isinstance(a, Op) and len(a.args) == 1 else a for a in product.args)
                    if isinstance(x, Load) and isinstance(y, Load) and x.dtype == y.dtype == "i8":
                        return acc, x, y
        raise self._no_dot(s, "it does not add a product of two bytes")

    def _group(self, x: Load, lanes: int, depth: int) -> Value:
        """The words of all lanes; the buffer is packed, so that it may be read to the end of the tile."""
        buffer = self.buffers[x.buffer]
        if self.at.lane_stride(x.buffer, x.indices) != depth or x.buffer not in self.core.nest.packs:
            raise CompileError(f"{x.buffer} is not packed for its instruction", stage="emit")
        base = self.at.address(buffer, x.indices, lane0=True).ssa
        loaded, words = self.text.read(buffer, base, Value("", "i8", lanes * depth)), Value("", "i32", lanes)
        return self.text.op_value(f"vector.bitcast {loaded.ssa} : {loaded.type} to {words.type}", words)

    def _bytes(self, x: Load, depth: int, trip: int | None) -> Value:
        """`depth` neighbouring bytes as a vector, zeros behind the first `trip`."""
        base = self.at.address(self.buffers[x.buffer], x.indices).ssa
        whole = trip == depth or x.buffer in self.core.nest.packs
        mask = None if whole else self.text.first_lanes(trip or 0, depth)
        return self.text.read(self.buffers[x.buffer], base, Value("", "i8", depth), mask)


def _seven_bits(word: Expr) -> bool:
    """Whether the upper bits of all bytes of a word are known to be zero."""
    if not isinstance(word, Op) or word.op not in ("andi", "ori"):
        return False
    if word.op == "ori":
        return all(map(_seven_bits, word.args))
    mask = word.args[1]
    return isinstance(mask, Const) and mask.value >= 0 and mask.value & 0x80808080 == 0
