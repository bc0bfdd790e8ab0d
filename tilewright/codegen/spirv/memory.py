"""Buffers of a kernel: parameters as storage buffers, shared memory, and a thread's own.

Elements of 8 and 16 bits share words of 32 in parameters, as in WGSL (`clike.dialect.Packed`): units write their parts
of a word by atomic operations. Elsewhere each element has the type that it is computed in. A register buffer is one
variable an element.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...support.errors import CompileError, UnsupportedError
from ...tensor.expr import Buffer, Const, Expr, Load, Target
from ...tensor.mathlib.build import V, i32
from ..gpu.indices import Indices
from ..gpu.text import Value
from . import legal
from .builder import KINDS, SpirvText, pointer
from .expressions import Expressions, leaf

#: bits of elements that share words
PACKED = {"i1": 8, "i8": 8, "i16": 16, "f16": 16, "bf16": 16}
#: bytes of the largest local array: drivers take minutes over larger ones
LOCAL_BYTES = 1 << 14
_STORAGE, _SHARED, _OWN = "StorageBuffer", "Workgroup", "Function"
_BITS = {"si32": 32, "f32": 32, "si64": 64, "f64": 64}


@dataclass(frozen=True)
class Place:
    """A buffer's pointer with its type, the type of an element, and where it is."""

    name: str
    type: str
    kind: str
    storage: str


class Memory:
    """`globals` are the lines that declare what stands outside of the kernel."""

    def __init__(self, text: SpirvText, at: Indices, buffers: dict[str, Buffer], expressions: Expressions) -> None:
        self.text, self.at, self.buffers, self.expressions = text, at, buffers, expressions
        self.places: dict[str, Place] = {}
        self.slots: dict[tuple[str, int], str] = {}
        self.globals: list[str] = []
        expressions.load = self.load

    # ---- places

    def begin_parameter(self, b: Buffer, number: int) -> None:
        kind = "si32" if b.dtype in PACKED else KINDS[b.dtype]
        array = f"!spirv.struct<(!spirv.rtarray<{kind}, stride={_BITS[kind] // 8}> [0]), Block>"
        self._outside(b.name, f"p{number}", array, kind, _STORAGE, f" bind(0, {number})")

    def begin_shared(self, b: Buffer) -> None:
        kind = element(b)
        if b.name not in self.places:
            array = f"!spirv.array<{max(b.size, 1)} x {kind}>"
            self._outside(b.name, f"shared{len(self.globals)}", array, kind, _SHARED)

    def _outside(self, name: str, symbol: str, array: str, kind: str, storage: str, bound: str = "") -> None:
        whole, address = pointer(array, storage), self.text.fresh()
        self.globals.append(f"spirv.GlobalVariable @{symbol}{bound} : {whole}")
        self.text.entry.append(f"  {address} = spirv.mlir.addressof @{symbol} : {whole}")
        self.places[name] = Place(address, whole, kind, storage)

    def begin_own(self, b: Buffer) -> None:
        kind = element(b)
        if b.scope == "register":
            self.slots = {k: v for k, v in self.slots.items() if k[0] != b.name}
            return
        size = max(b.size, 1) * _BITS[kind] // 8
        if size > LOCAL_BYTES:
            raise UnsupportedError(
                f"SPIR-V has no local array of {size} bytes", stage="emit", operator=self.expressions.operator,
                hint="it has neither pointers nor scratch memory",
            )  # fmt: skip
        array = f"!spirv.array<{max(b.size, 1)} x {kind}>"
        self.places[b.name] = Place(self.text.variable(array), pointer(array, _OWN), kind, _OWN)

    def where(self, b: Buffer, indices: tuple[Expr, ...]) -> str:
        """The pointer to an element."""
        if b.scope == "register":
            return self._slot(b, indices)
        varying, constant = self.at.place(b, indices)
        return self._pointer(self.places[b.name], self.at.index(varying + Const(constant, "index")))

    def _pointer(self, place: Place, index: str) -> str:
        steps = [self.text.number(0), index] if place.storage == _STORAGE else [index]
        kinds = ", ".join(["si32"] * len(steps))
        to = pointer(place.kind, place.storage)
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
        """The pointer to the word that an element is a part of, and at which bit it begins."""
        several, bits = 32 // PACKED[b.dtype], PACKED[b.dtype]
        varying, constant = self.at.place(b, indices)
        index = self.at.index(varying + Const(constant, "index"))
        word = self.text.integer("ashr", index, self.text.number(several.bit_length() - 1))
        return self._pointer(self.places[b.name], word), (V(leaf(Value(index, "i32"))) & (several - 1)) * bits

    # ---- reading and writing

    def load(self, x: Load) -> Value:
        b = self.buffers[x.buffer]
        kind, storage = self._kept(b)
        if self._packed(b):
            where, first = self._word(b, x.indices)
            word = V(leaf(Value(self.text.load(where, kind, storage), "i32")))
            bits = legal.low(legal.own("lshr", "i32", word, first), PACKED[b.dtype])
            return self._value(bits, b.dtype)
        value = self.text.load(self.where(b, x.indices), kind, storage)
        return self._value(V(leaf(Value(value, "i32"))), "i1") if b.dtype == "i1" else Value(value, b.dtype)

    def _value(self, bits: V, dtype: str) -> Value:
        """What an element's bits are."""
        if dtype == "i1":
            made = bits.ne(0)
        else:
            made = legal.HALVES[dtype][0](bits) if dtype in legal.HALVES else legal.narrowed(bits, PACKED[dtype])
        return Value(self.expressions.expr(made.e).ssa, dtype)

    def store(self, t: Target, value: Value) -> None:
        b = self.buffers[t.buffer]
        kind, storage = self._kept(b)
        if not self._packed(b):
            ssa = self.text.truth(value.ssa) if b.dtype == "i1" else value.ssa
            self.text.store(self.where(b, t.indices), ssa, kind, storage)
            return
        where, first = self._word(b, t.indices)
        if b.dtype == "i1":
            bits = V(leaf(Value(self.text.truth(value.ssa), "i32")))
        else:
            wide = V(leaf(value))
            bits = legal.HALVES[b.dtype][1](wide) if b.dtype in legal.HALVES else legal.low(wide, PACKED[b.dtype])
        mask = legal.own("shl", "i32", i32((1 << PACKED[b.dtype]) - 1), first) ^ -1
        for name, operand in (("AtomicAnd", mask), ("AtomicOr", legal.own("shl", "i32", bits, first))):
            given = self.expressions.expr(operand.e).ssa
            self.text.result(f"spirv.{name} <Device> <None> {where}, {given} : {pointer('si32', storage)}")


def element(b: Buffer) -> str:
    """The type of an element outside of parameters."""
    return "si32" if b.dtype == "i1" else KINDS[b.dtype]
