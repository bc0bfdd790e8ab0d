"""Vectors that a few rows share: each row has as many lanes as the next one.

    for j in vector(16):
        acc[j // 8, j % 8] += x[j // 8 * 100] * w[j % 8]     # two rows of eight columns
        y[j // 8 * 40 + j % 8] = acc[j // 8, j % 8]

What is the same along a row (x) is loaded once for each and repeated in its lanes, what is the same in all rows (w) is
a short vector, loaded once and repeated. A result is written row by row. Elements kept in registers are one value, as
long as they are always used in these lanes.
"""

from __future__ import annotations

from itertools import groupby, pairwise

from ...support.errors import CompileError
from ...tensor.expr import (
    Buffer,
    Const,
    Expr,
    const_value,
    from_linear,
    linear,
    simplify,
    substitute,
    variables,
)
from .strided import StridedEmitter
from .values import Value, element

#: rows that may share a vector
ROWS = 4


class SharedVectorEmitter(StridedEmitter):
    """Emission of such accesses."""

    features: tuple[str, ...]

    def __init__(self, buffers: dict[str, Buffer], lanes: int) -> None:
        super().__init__(buffers, lanes)
        self._known: dict[tuple, tuple[int, ...]] = {}  # what was found out about terms of an index
        # the lanes of elements in registers, None: neighbours
        self._order: dict[tuple[str, int], tuple[int, ...] | None] = {}
        self._lanes: tuple[int, ...] | None = None  # those of the element at hand

    def strided(self, buffer: Buffer, indices: tuple[Expr, ...], shape: Value) -> Value | None:
        found = self.lane_offsets(self.flat(buffer, indices))
        if found is not None and shape.width >= ROWS:
            base, offsets = found
            runs = [(o, len(list(lanes))) for o, lanes in groupby(offsets)]
            if 2 <= len(runs) <= ROWS and runs[0][1] > 1 and max(offsets) - min(offsets) >= ROWS:
                return self._rows(buffer, base, runs, shape)
            period = next((i for i in range(1, len(offsets)) if offsets[i] == 0), 0)
            if 2 <= period <= shape.width // 2 and offsets == tuple(i % period for i in range(len(offsets))):
                return self._repeated(buffer, base, period, len(offsets), shape)
        return super().strided(buffer, indices, shape)

    def lane_offsets(self, flat: Expr) -> tuple[Expr, tuple[int, ...]] | None:
        """A flat index in the first lane, and how far from it each active lane is; None if that is not known."""
        vector = self.vector
        if vector is None or not vector.count:
            return None
        terms, constant = linear(flat)
        own = {t: c for t, c in terms.items() if vector.var in variables(t)}
        if any(variables(t) != {vector.var} for t in own):
            return None
        key = (vector.var, vector.count, *sorted((str(t), c) for t, c in own.items()))
        known = self._known
        if key not in known:
            values = []
            for lane in range(vector.count):
                at: dict[str, Expr] = {vector.var: Const(lane, "index")}
                place = const_value(simplify(substitute(from_linear(own, 0), at), {}))
                if place is None:
                    return None
                values.append(place)
            known[key] = tuple(values)
        first = known[key][0]
        base = from_linear({t: c for t, c in terms.items() if t not in own}, constant + first)
        return base, tuple(v - first for v in known[key])

    def _rows(self, buffer: Buffer, base: Expr, runs: list[tuple[int, int]], shape: Value) -> Value:
        """A number for each row, repeated in so many lanes."""
        memory, kind = self.memory[buffer.name], self.memref(buffer)
        one, ends = Value("", element(buffer.dtype)), [sum(n for _, n in runs[: i + 1]) for i in range(len(runs))]
        texts = [f"memref.load {memory}[{self.index(base + o).ssa}] : {kind}" for o, _ in runs]
        rows = [self.as_vector(self.remember(buffer, text, one), shape.width) for text in texts]
        result = rows[-1]
        for row, end in zip(rows[-2::-1], ends[-2::-1], strict=True):
            mask, kinds = self._first(end, shape.width), f"vector<{shape.width}xi1>, {row.type}"
            result = self.op_value(f"arith.select {mask}, {row.ssa}, {result.ssa} : {kinds}", row)
        return result

    def _first(self, count: int, width: int) -> str:
        """The mask of the first lanes. Where masks are registers LLVM is not told what it is: it would make shuffles,
        which fewer units do than blends."""
        if {16: "avx512f", 8: "avx512vl"}.get(width) not in self.features:
            return self.op(f"vector.constant_mask [{count}] : vector<{width}xi1>")
        bits = self.const((1 << count) - 1, f"i{width}")
        hidden = self.at_first(f'llvm.inline_asm "", "=r,0" {bits} : (i{width}) -> i{width}')
        return self.at_first(f"llvm.bitcast {hidden} : i{width} to vector<{width}xi1>")

    def at_first(self, text: str) -> str:
        """An operation at the beginning of the kernel, as constants are."""
        if text not in self.constants:
            self.constants[text] = f"{self.fresh()} = {text}"
        return self.constants[text].split(" = ", 1)[0]

    def _repeated(self, buffer: Buffer, base: Expr, count: int, active: int, shape: Value) -> Value:
        """`count` neighbouring elements, and the same again until all active lanes are filled."""
        short = self.elements(buffer, base, count, Value("", shape.dtype, _power_of_two(count)))
        places = [i % count if i < active else 0 for i in range(shape.width)]
        return Value(self.shuffle(short, short, places).ssa, shape.dtype, shape.width)

    def write_rows(self, buffer: Buffer, indices: tuple[Expr, ...], value: Value) -> bool:
        """Store the active lanes of a vector where they are a few runs of neighbours; False if they are not."""
        found = self.lane_offsets(self.flat(buffer, indices))
        if found is None:
            return False
        base, offsets = found
        runs = _runs(offsets)
        if len(runs) > ROWS:
            return False
        memory, kind = self.memory[buffer.name], self.memref(buffer)
        for start, count in runs:
            where = f"{memory}[{self.index(base + offsets[start]).ssa}]"
            size = _power_of_two(count)
            places = [start + min(i, count - 1) for i in range(size)]
            part = value if places == list(range(value.width)) else self.shuffle(value, value, places)
            part = Value(part.ssa, value.dtype, size)
            if count == 1:  # as in `emit.Emitter.write_memory`: never a masked store of one byte
                one = self.op(f"vector.extract {part.ssa}[0] : {part.dtype} from {part.type}")
                self.line(f"memref.store {one}, {where} : {kind}")
            elif count == size:
                self.line(f"vector.store {part.ssa}, {where} : {kind}, {part.type}")
            else:
                mask = self.op(f"vector.constant_mask [{count}] : vector<{size}xi1>")
                kinds = f"{kind}, vector<{size}xi1>, {part.type}"
                self.line(f"vector.maskedstore {where}, {mask}, {part.ssa} : {kinds}")
        return True

    # ---- registers ----

    def slot_key(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[str, int]:
        self._lanes = None
        key = super().slot_key(buffer, indices)
        if self._order.setdefault(key, self._lanes) != self._lanes:
            raise CompileError(f"register {buffer.name}[{key[1]}] is used in lanes of different orders", stage="emit")
        return key

    def odd_slot(self, buffer: Buffer, indices: tuple[Expr, ...], term: Expr) -> tuple[str, int]:
        """The element in the first lane stands for all of a vector; they must always be the same ones."""
        found = self.lane_offsets(self.flat(buffer, indices))
        if found is None:
            return super().odd_slot(buffer, indices, term)
        base, self._lanes = found
        values: dict[str, Expr] = {v: Const(x, "index") for v, x in self.env.items() if isinstance(x, int)}
        place = const_value(simplify(substitute(base, values), {}))
        return super().odd_slot(buffer, indices, term) if place is None else (buffer.name, place)

    def forget_lanes(self, buffer: str) -> None:
        """Another buffer of this name may be used in other lanes."""
        self._order = {k: v for k, v in self._order.items() if k[0] != buffer}


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _runs(offsets: tuple[int, ...]) -> list[tuple[int, int]]:
    """(first lane, lanes) of neighbours.

    >>> _runs((0, 1, 2, 40, 41, 42))
    [(0, 3), (3, 3)]
    """
    found = [0, *(i for i in range(1, len(offsets)) if offsets[i] != offsets[i - 1] + 1), len(offsets)]
    return [(a, b - a) for a, b in pairwise(found)]
