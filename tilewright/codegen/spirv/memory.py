"""A SPIR-V kernel's memory: storage buffers, workgroup (shared) memory, and an invocation's private variables.

Elements of 8 and 16 bits share words of 32 in parameters, as in WGSL (`clike.dialect.Packed`): threads write their
parts of a word by atomic operations, unless all write whole words. Elsewhere each element has the type that it is
computed in. Where all that is written of an array is whole vectors it is an array of vectors (`gpu.vectors`). A
register buffer is one variable an element. Parameters that are larger than what devices bind at once are bound in
pieces; local arrays that are too large for a thread's private memory are parts of a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...support.errors import CompileError
from ...tensor.expr import Buffer, Const, Expr, Load, Target
from ...tensor.mathlib.build import V, i32
from ..clike.pieces import SplitBindings
from ..gpu.indices import GpuIndices
from ..gpu.text import SsaValue
from ..gpu.vectors import divided
from . import legal
from .builder import KINDS, SpirvText, pointer
from .expressions import SpirvExpressions, leaf

#: bits of elements that share words
PACKED = {"i1": 8, "i8": 8, "i16": 16, "f16": 16, "bf16": 16}
#: bytes of the largest local array: drivers take minutes over larger ones
LOCAL_BYTES = 1 << 14
#: elements of a vector
VECTOR = 4
#: what every device binds at once
PIECES = SplitBindings(1 << 27)
_STORAGE, _SHARED, _OWN = "StorageBuffer", "Workgroup", "Function"
_BITS = {"si32": 32, "f32": 32, "si64": 64, "f64": 64}


@dataclass(frozen=True)
class SpirvPointer:
    """A buffer's pointer with its type, the type of an element, where it is, and how many elements are a vector."""

    name: str
    type: str
    kind: str
    storage: str
    lanes: int = 1
    #: the pieces of a parameter that is bound in several, each of `each` elements of its array
    pieces: tuple[SpirvPointer, ...] = ()
    each: int = 0
    #: where a thread's own part of the array begins
    first: str = ""

    @property
    def vector(self) -> str:
        """The type of what the array has."""
        return self.kind if self.lanes == 1 else f"vector<{self.lanes}x{self.kind}>"


class SpirvMemory:
    """`globals` are the lines that declare what stands outside of the kernel; `wholes`: buffers that are arrays of
    vectors, or of words that are written as a whole."""

    def __init__(
        self,
        text: SpirvText,
        at: GpuIndices,
        buffers: dict[str, Buffer],
        expressions: SpirvExpressions,
        wholes: frozenset[str] = frozenset(),
    ) -> None:
        self.wholes = wholes
        self.found: dict[Load, SsaValue] = {}  # what is known of the lane at hand
        self.text, self.at, self.buffers, self.expressions = text, at, buffers, expressions
        self.places: dict[str, SpirvPointer] = {}
        self.slots: dict[tuple[str, int], str] = {}
        self.globals: list[str] = []
        self.bound = 0  # bindings
        expressions.load = self.load

    # ---- places

    def begin_parameter(self, b: Buffer, written: bool) -> int:
        """How many bindings it has."""
        kind, lanes = "si32" if b.dtype in PACKED else KINDS[b.dtype], self.lanes(b)
        step = _BITS[kind] // 8 * lanes
        nbytes = -(-b.size * (PACKED[b.dtype] if b.dtype in PACKED else _BITS[kind]) // 8)
        count = 1 if written else PIECES.count(nbytes)
        found = [self._buffer(kind, lanes, step) for _ in range(count)]
        whole = replace(found[0], pieces=tuple(found), each=PIECES.bytes // step) if count > 1 else found[0]
        self.places[b.name] = whole
        return count

    def begin_scratch(self, kind: str, own: int, thread: str) -> SpirvPointer:
        """A buffer of which each thread has `own` elements."""
        found = self._buffer(kind, 1, _BITS[kind] // 8)
        return replace(found, first=self.text.integer("mul", thread, self.text.number(own)))

    def _buffer(self, kind: str, lanes: int, step: int) -> SpirvPointer:
        vector, number = kind if lanes == 1 else f"vector<{lanes}x{kind}>", self.bound
        array = f"!spirv.struct<(!spirv.rtarray<{vector}, stride={step}> [0]), Block>"
        self.bound += 1
        return self._outside(f"p{number}", array, kind, _STORAGE, lanes, f" bind(0, {number})")

    def lanes(self, b: Buffer) -> int:
        """The elements of a vector, if it is an array of such."""
        return VECTOR if b.name in self.wholes and not self._packed(b) else 1

    def begin_shared(self, b: Buffer) -> None:
        kind = element(b)
        if b.name not in self.places:
            lanes = self.lanes(b)
            vector = kind if lanes == 1 else f"vector<{lanes}x{kind}>"
            array = f"!spirv.array<{max(b.size // lanes, 1)} x {vector}>"
            self.places[b.name] = self._outside(f"shared{len(self.globals)}", array, kind, _SHARED, lanes)

    def _outside(self, symbol: str, array: str, kind: str, storage: str, lanes: int, bound: str = "") -> SpirvPointer:
        whole, address = pointer(array, storage), self.text.fresh()
        self.globals.append(f"spirv.GlobalVariable @{symbol}{bound} : {whole}")
        self.text.entry.append(f"  {address} = spirv.mlir.addressof @{symbol} : {whole}")
        return SpirvPointer(address, whole, kind, storage, lanes)

    def begin_own(self, b: Buffer) -> None:
        kind = element(b)
        if b.scope == "register":
            self.slots = {k: v for k, v in self.slots.items() if k[0] != b.name}
            return
        if own_bytes(b) > LOCAL_BYTES:
            return  # a part of scratch memory, which was given a place before
        array = f"!spirv.array<{max(b.size, 1)} x {kind}>"
        self.places[b.name] = SpirvPointer(self.text.variable(array), pointer(array, _OWN), kind, _OWN)

    def where(self, b: Buffer, indices: tuple[Expr, ...]) -> str:
        """The pointer to an element."""
        if b.scope == "register":
            return self._slot(b, indices)
        place = self.places[b.name]
        return self._chain(place, self._steps(place, self._flat(b, indices)), place.kind)

    def _flat(self, b: Buffer, indices: tuple[Expr, ...]) -> str:
        """The number of an element."""
        varying, constant = self.at.place(b, indices)
        return self.at.index(varying + Const(constant, "index"))

    def _steps(self, place: SpirvPointer, index: str) -> list[str]:
        """Where an element is in an array."""
        if place.first:
            index = self.text.integer("add", place.first, index)
        if place.lanes == 1:
            return [index]
        vector = self.text.integer("ashr", index, self.text.number(place.lanes.bit_length() - 1))
        return [vector, self.text.integer("and", index, self.text.number(place.lanes - 1))]

    def _read(self, place: SpirvPointer, steps: list[str], kind: str) -> str:
        """An element, or a vector, of whichever piece has it."""
        if not place.pieces:
            return self.text.load(self._chain(place, steps, kind), kind, place.storage)
        text, found = self.text, self.text.variable(kind)
        for n, piece in enumerate(place.pieces):
            at = text.integer("sub", steps[0], text.number(n * place.each))
            with text.where(text.test("ult", at, text.number(place.each)), "piece"):
                here = self._chain(piece, [at, *steps[1:]], kind)
                text.store(found, text.load(here, kind, piece.storage), kind)
        return text.load(found, kind)

    def _chain(self, place: SpirvPointer, steps: list[str], kind: str) -> str:
        steps = [self.text.number(0), *steps] if place.storage == _STORAGE else steps
        kinds, to = ", ".join(["si32"] * len(steps)), pointer(kind, place.storage)
        return self.text.op(f"spirv.AccessChain {place.name}[{', '.join(steps)}] : {place.type}, {kinds} -> {to}")

    def _slot(self, b: Buffer, indices: tuple[Expr, ...]) -> str:
        varying, constant = self.at.place(b, indices)
        if not isinstance(varying, Const):
            raise CompileError(
                f"{b.name} is in registers, and which of them is used is not known: {varying}",
                stage="emit", operator=self.expressions.operator,
                hint="unroll the loops that select it, or use local memory",
            )  # fmt: skip
        key = b.name, constant + varying.value
        if key not in self.slots:
            self.slots[key] = self.text.variable(element(b))
        return self.slots[key]

    def _kept(self, b: Buffer) -> tuple[str, str]:
        """The type of an element in memory, and where that is."""
        return (element(b), _OWN) if b.scope == "register" else (self.places[b.name].kind, self.places[b.name].storage)

    def _packed(self, b: Buffer) -> bool:
        return b.dtype in PACKED and b.scope == "param"

    def _word(self, b: Buffer, indices: tuple[Expr, ...]) -> tuple[str, V]:
        """The number of the word that an element is a part of, and at which bit it begins."""
        several, bits = 32 // PACKED[b.dtype], PACKED[b.dtype]
        index = self._flat(b, indices)
        word = self.text.integer("ashr", index, self.text.number(several.bit_length() - 1))
        return word, (V(leaf(SsaValue(index, "i32"))) & (several - 1)) * bits

    # ---- reading and writing

    def load(self, x: Load) -> SsaValue:
        if x in self.found:
            return self.found[x]
        b = self.buffers[x.buffer]
        if self._packed(b):
            number, first = self._word(b, x.indices)
            word = V(leaf(SsaValue(self._read(self.places[b.name], [number], "si32"), "i32")))
            bits = legal.low(legal.own("lshr", "i32", word, first), PACKED[b.dtype])
            return self._value(bits, b.dtype)
        if b.scope == "register":
            value = self.text.load(self._slot(b, x.indices), element(b))
        else:
            place = self.places[b.name]
            value = self._read(place, self._steps(place, self._flat(b, x.indices)), place.kind)
        return self._value(V(leaf(SsaValue(value, "i32"))), "i1") if b.dtype == "i1" else SsaValue(value, b.dtype)

    def _value(self, bits: V, dtype: str) -> SsaValue:
        """What an element's bits are."""
        if dtype == "i1":
            made = bits.ne(0)
        else:
            made = legal.HALVES[dtype][0](bits) if dtype in legal.HALVES else legal.narrowed(bits, PACKED[dtype])
        return SsaValue(self.expressions.expr(made.e).ssa, dtype)

    def _bits(self, dtype: str, value: SsaValue) -> V:
        """The inverse: what stands in a word."""
        if dtype == "i1":
            return V(leaf(SsaValue(self.text.truth(value.ssa), "i32")))
        wide = V(leaf(value))
        return legal.HALVES[dtype][1](wide) if dtype in legal.HALVES else legal.low(wide, PACKED[dtype])

    def store(self, t: Target, value: SsaValue) -> None:
        b = self.buffers[t.buffer]
        kind, storage = self._kept(b)
        if not self._packed(b):
            ssa = self.text.truth(value.ssa) if b.dtype == "i1" else value.ssa
            self.text.store(self.where(b, t.indices), ssa, kind, storage)
            return
        number, first = self._word(b, t.indices)
        where, bits = self._chain(self.places[b.name], [number], "si32"), self._bits(b.dtype, value)
        mask = legal.own("shl", "i32", i32((1 << PACKED[b.dtype]) - 1), first) ^ -1
        for name, operand in (("AtomicAnd", mask), ("AtomicOr", legal.own("shl", "i32", bits, first))):
            given = self.expressions.expr(operand.e).ssa
            self.text.result(f"spirv.{name} <Device> <None> {where}, {given} : {pointer('si32', storage)}")

    # ---- neighbours

    def longest(self, b: Buffer) -> int:
        """Elements of an array that one access may take."""
        if b.scope in ("register", "local"):
            return 1
        if self._packed(b):
            return VECTOR
        kind = element(b) if b.scope != "param" else KINDS[b.dtype]
        return VECTOR if _BITS[kind] == 32 and b.size % VECTOR == 0 else 1

    def least(self, b: Buffer) -> int:
        """How many elements are a whole word, or a whole vector."""
        return 32 // PACKED[b.dtype] if self._packed(b) else self.longest(b)

    def width(self, b: Buffer, indices: tuple[Expr, ...], var: str, count: int, written: bool) -> int:
        """How many lanes of a vector loop an access takes."""
        if b.name not in self.wholes and (written or not self._packed(b)):
            return 1
        found = self.at.run(b, indices, var, count, self.longest(b))
        return found if found >= self.least(b) else 1

    def read_lanes(self, x: Load, var: str, count: int, width: int) -> list[SsaValue]:
        """The elements of all lanes."""
        b, values = self.buffers[x.buffer], list[SsaValue]()
        for i in range(0, count, self.least(b)):
            with self.at.at_lane(var, i):
                values += self._read_word(b, x.indices) if self._packed(b) else self._read_vector(b, x.indices)
        return values

    def _read_vector(self, b: Buffer, indices: tuple[Expr, ...]) -> list[SsaValue]:
        place = self.places[b.name]
        vector = self._read(place, [self._whole(b, indices, place.lanes)], place.vector)
        parts = [
            self.text.op(f"spirv.CompositeExtract {vector}[{i} : i32] : {place.vector}") for i in range(place.lanes)
        ]
        if b.dtype == "i1":
            return [self._value(V(leaf(SsaValue(p, "i32"))), "i1") for p in parts]
        return [SsaValue(p, b.dtype) for p in parts]

    def _read_word(self, b: Buffer, indices: tuple[Expr, ...]) -> list[SsaValue]:
        several, bits = self.least(b), PACKED[b.dtype]
        loaded = self._read(self.places[b.name], [self._whole(b, indices, several)], "si32")
        word = V(leaf(SsaValue(loaded, "i32")))
        parts = (legal.own("lshr", "i32", word, i32(j * bits)) if j else word for j in range(several))
        return [self._value(legal.low(p, bits), b.dtype) for p in parts]

    def _whole(self, b: Buffer, indices: tuple[Expr, ...], several: int) -> str:
        """The number of the word or the vector that begins with an element."""
        varying, constant = self.at.place(b, indices)
        flat = varying + Const(constant, "index")
        part = divided(flat, several)
        if part is not None:
            return self.at.index(part)
        return self.text.integer("ashr", self.at.index(flat), self.text.number(several.bit_length() - 1))

    def write_lanes(self, t: Target, values: list[SsaValue], var: str, width: int) -> None:
        """The values of all lanes."""
        b = self.buffers[t.buffer]
        step = 1 if width == 1 else self.least(b)
        for i in range(0, len(values), step):
            with self.at.at_lane(var, i):
                if width == 1:
                    self.store(t, values[i])
                elif self._packed(b):
                    self._write_word(b, t.indices, values[i : i + step])
                else:
                    self._write_vector(b, t.indices, values[i : i + step])

    def _write_vector(self, b: Buffer, indices: tuple[Expr, ...], values: list[SsaValue]) -> None:
        place = self.places[b.name]
        parts = [self.text.truth(v.ssa) if b.dtype == "i1" else v.ssa for v in values]
        kinds = ", ".join([place.kind] * len(parts))
        made = self.text.op(f"spirv.CompositeConstruct {', '.join(parts)} : ({kinds}) -> {place.vector}")
        where = self._chain(place, [self._whole(b, indices, place.lanes)], place.vector)
        self.text.store(where, made, place.vector, place.storage)

    def _write_word(self, b: Buffer, indices: tuple[Expr, ...], values: list[SsaValue]) -> None:
        word, bits = self._bits(b.dtype, values[0]), PACKED[b.dtype]
        for j, v in enumerate(values[1:], 1):
            word = word | legal.own("shl", "i32", self._bits(b.dtype, v), i32(j * bits))
        where = self._chain(self.places[b.name], [self._whole(b, indices, len(values))], "si32")
        self.text.store(where, self.expressions.expr(word.e).ssa, "si32", _STORAGE)


def element(b: Buffer) -> str:
    """The type of an element outside of parameters."""
    return "si32" if b.dtype == "i1" else KINDS[b.dtype]


def own_bytes(b: Buffer) -> int:
    """Of a local array."""
    return max(b.size, 1) * _BITS[element(b)] // 8
