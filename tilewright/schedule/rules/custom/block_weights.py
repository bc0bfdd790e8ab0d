"""Numbers of weights in blocks of a few bits (`ops/block_quantized.py`), as expressions of loop nests: four bytes of a
word at once, or floats."""

from __future__ import annotations

from ....ops.block_quantized import POWERS, centre, planes
from ....tensor.expr import Const, Expr, Load, Op
from ...nest import Pack
from .nests import Access, mul

F32, I32 = "f32", "i32"
#: the same byte four times, as a factor
FOUR = 0x01010101
#: what makes signed bytes of a table unsigned
BIAS = 128


def _i32(value: int) -> Const:
    return Const(value - (1 << 32) if value >> 31 else value, I32)


def _moved(word: Expr, by: int, mask: int) -> Expr:
    """Bits of a word, shifted to the left by `by`."""
    if by:
        word = Op("shli" if by > 0 else "shrui", (word, Const(abs(by), I32)), I32)
    return Op("andi", (word, _i32(mask)), I32)


class PackedWeights:
    """Those of a kernel: `first` is the operand with the words; the others follow it.

    A `unit` is the least run of numbers that fills its words, and with them the loops that read numbers are laid out.
    """

    def __init__(self, read: Access, first: int) -> None:
        self.read = read
        operands = [*read.opaque.operands, *[None] * 6]
        self.w, self.scale, self.zero, self.inner, self.minimum, self.inner_minimum = operands[first : first + 6]
        self.dtypes = {name: read.opaque.dtypes[i] or "" for i, name in enumerate(read.opaque.operands) if name}
        attributes = read.opaque.attributes
        self.bits: int = int(attributes["bits"])
        self.table: tuple[int, ...] = tuple(attributes["table"])
        assert self.w is not None and self.scale is not None
        self.columns, self.blocks, words = read.shape(self.w)
        self.block = words * 32 // self.bits
        self.unit = 32 // min(bits for bits, _ in planes(self.bits))
        #: what is subtracted from numbers without zero points
        self.centre = BIAS if self.table else centre(int(attributes["offset"]), self.bits)
        #: bits of a byte that `four` gives
        self.byte_bits = 8 if self.table else self.bits

    def packs(self, factors: tuple[int, int]) -> tuple[Pack, ...]:
        """Constants with the columns of a tile (`factors`: vectors, lanes) beside each other."""
        found = []
        for name in (self.w, self.scale, self.zero, self.inner, self.minimum, self.inner_minimum):
            if name is not None and name in self.read.kernel.constants:
                rank = len(self.read.shape(name))
                found.append(Pack(name, (factors, *[()] * (rank - 1)), (0, *range(3, 2 + rank), 1, 2)))
        return tuple(found)

    # ---- numbers ----

    def four(self, n: Expr, b: Expr, unit: Expr, group: int) -> Expr:
        """The four numbers of a unit from ``4 * group`` on, as unsigned bytes of a word."""
        number: Expr | None = None
        first = 0
        for bits, shift in planes(self.bits):
            word, part = self._word(n, b, unit, group, first, bits)
            if bits == 8:
                return word
            here = _moved(word, shift - bits * part, ((1 << bits) - 1) * FOUR << shift)
            number = here if number is None else Op("ori", (number, here), I32)
            first += self.block * bits // 32
        assert number is not None
        if self.table:
            numbers = [x + BIAS for x in self.table]
            parts = [sum(numbers[i + j] << 8 * j for j in range(4)) for i in range(0, 16, 4)]
            number = Op("table4", (number, *map(_i32, parts)), I32)
        return number

    def _word(self, n: Expr, b: Expr, unit: Expr, group: int, first: int, bits: int) -> tuple[Expr, int]:
        """The word with a group of four numbers of a plane that begins at word `first`, and which of its parts."""
        assert self.w is not None
        each = 8 // bits
        at = unit * (self.unit * bits // 32) + (first + group // each)
        return Load(self.w, (n, b, at), I32), group % each

    def raised(self, n: Expr, b: Expr, unit: Expr, number: int) -> Expr:
        """A number as a float, plus ``2**byte_bits``: its bits are put behind the point of that, without conversion."""
        group, j = divmod(number, 4)
        top = 23 - self.byte_bits
        made: Expr = Const(127 + self.byte_bits << 23, I32)
        if self.table:
            made = Op("ori", (_moved(self.four(n, b, unit, group), top - 8 * j, 255 << top), made), I32)
            return Op("bitcast", (made,), F32)
        first = 0
        for bits, shift in planes(self.bits):
            word, part = self._word(n, b, unit, group, first, bits)
            here = _moved(word, top + shift - 8 * j - bits * part, (1 << bits) - 1 << top + shift)
            made = Op("ori", (here, made), I32)
            first += self.block * bits // 32
        return Op("bitcast", (made,), F32)

    # ---- parameters ----

    def scales(self, n: Expr, b: Expr) -> Expr:
        assert self.scale is not None
        return self._leveled(self.scale, self.inner, n, b)

    def minima(self, n: Expr, b: Expr) -> Expr:
        assert self.minimum is not None
        return self._leveled(self.minimum, self.inner_minimum, n, b)

    def zeros(self, n: Expr, b: Expr) -> Expr:
        """The zero point, as f32."""
        assert self.zero is not None
        return self._float(self.zero, (n, b))

    def whole_zeros(self, n: Expr, b: Expr) -> Expr:
        """A zero point of a byte, as i32."""
        assert self.zero is not None
        return Op("extui", (Load(self.zero, (n, b), "i8"),), I32)

    def _leveled(self, outer: str, inner: str | None, n: Expr, b: Expr) -> Expr:
        if inner is None:
            return self._float(outer, (n, b))
        each = self.blocks // self.read.shape(outer)[1]
        return mul(self._float(outer, (n, b // each if each > 1 else b)), self._float(inner, (n, b)))

    def _float(self, name: str, at: tuple[Expr, ...]) -> Expr:
        """An element of floats or bytes as f32."""
        kind = self.dtypes[name]
        if self.read.dtype(name) != "i8":
            return self.read.read(name, at)
        signed = Load(name, at, "i8")
        byte = Op("extui", (signed,), I32)
        if kind == POWERS:  # the smallest is a subnormal of f32
            exponent = Op("shli", (byte, Const(23, I32)), I32)
            none = Op("cmpi.eq", (byte, Const(0, I32)), "i1")
            return Op("bitcast", (Op("select", (none, Const(1 << 22, I32), exponent), I32),), F32)
        if kind.startswith("f8"):  # f8E4M3FN: exponent and mantissa in their place, then the bias corrected
            size, sign = _moved(byte, 20, 127 << 20), _moved(byte, 24, 1 << 31)
            number = mul(Op("bitcast", (size,), F32), Const(2.0**120, F32))
            return Op("bitcast", (Op("ori", (Op("bitcast", (number,), I32), sign), I32),), F32)
        whole = Op("extsi", (signed,), I32) if kind == "i8" else byte
        return Op("sitofp", (whole,), F32)


__all__ = ["PackedWeights"]
