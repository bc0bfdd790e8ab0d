"""Loads and stores in LLVM IR for GPUs: global and shared memory, a thread's local arrays, and its registers.

A vector loop around one statement becomes one access, 16 bytes at most, where the elements are contiguous and aligned
to its size. A register buffer is an alloca whose indices are all constants, which LLVM promotes to registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from ...support.errors import CompileError
from ...tensor.expr import Buffer, Const, Expr, Load, Target
from ..gpu.indices import GpuIndices
from ..gpu.open_launch import BYTES
from .builder import GpuLlvmBuilder, GpuLlvmValue, storage

#: the longest access of a thread, and what parameters and shared memory begin at a multiple of
ACCESS_BYTES, ALIGN_BYTES = 16, 128
GLOBAL, SHARED, OWN = "ptr addrspace(1)", "ptr addrspace(3)", "ptr"
Indexes = tuple[Expr, ...]


@dataclass
class Lanes:
    """A vector loop around a statement: its variable and iterations, and what was read for all of them."""

    var: str
    count: int
    loaded: dict[int, list[GpuLlvmValue]] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()  # buffers that are read one element at a time


class GpuLlvmMemory:
    def __init__(
        self, text: GpuLlvmBuilder, at: GpuIndices, buffers: dict[str, Buffer], operator: str, own: str = OWN
    ) -> None:
        self.text, self.at, self.buffers, self.operator, self.own = text, at, buffers, operator, own
        #: names of values by buffer, with the kind of pointer
        self.pointers: dict[str, tuple[str, str]] = {}
        #: buffers that lie in a way of their own: what gives the address of an element
        self.special: dict[str, Callable[[Buffer, Indexes], str]] = {}
        #: buffers distributed over lanes, which read each other's parts by shuffles: what emits a read
        self.asked: dict[str, Callable[[Buffer, Indexes, GpuLlvmValue], GpuLlvmValue]] = {}
        self.lanes: Lanes | None = None

    # ---- places

    def begin_own(self, b: Buffer) -> None:
        """An array of the thread's own."""
        name = self.text.stack(storage(b.dtype), max(b.size, 1), ACCESS_BYTES, self.own.removeprefix("ptr").lstrip())
        self.pointers[b.name] = (name, self.own)

    def begin_shared(self, b: Buffer, kernel: str, align: int = ALIGN_BYTES) -> None:
        """An array that the threads of a block share: what it holds at first is undefined."""
        name = f"@{kernel}.{b.name}"
        if not any(g.startswith(f"{name} =") for g in self.text.globals_):
            array = f"[{max(b.size, 1)} x {storage(b.dtype)}] undef, align {align}"
            self.text.globals_.append(f"{name} = internal addrspace(3) global {array}")
        self.pointers[b.name] = (name, SHARED)

    def address(self, b: Buffer, indices: Indexes) -> str:
        """``pointer-type name`` of an element."""
        if b.name in self.special:
            return self.special[b.name](b, indices)
        varying, constant = self.at.place(b, indices)
        pointer, kind = self.pointers[b.name]
        if b.scope == "register" and not isinstance(varying, Const):
            raise CompileError(
                f"{b.name} is in registers, and which of them is used is not known: {varying}",
                stage="emit", operator=self.operator, hint="unroll the loops that select it, or use local memory",
            )  # fmt: skip
        if isinstance(varying, Const):
            constant, offset = constant + varying.value, ""
        else:
            offset = self.at.index(varying)
        for part in (offset, str(constant) if constant else ""):
            if part:
                pointer = self.text.op(f"getelementptr {storage(b.dtype)}, {kind} {pointer}, i32 {part}")
        return f"{kind} {pointer}"

    def run(self, b: Buffer, indices: Indexes, lanes: Lanes) -> int:
        """How many lanes one access can take."""
        return self.at.run(b, indices, lanes.var, lanes.count, ACCESS_BYTES // BYTES[b.dtype])

    def at_lane(self, lanes: Lanes, i: int) -> AbstractContextManager[None]:
        return self.at.at_lane(lanes.var, i)

    @contextmanager
    def one_lane(self) -> Iterator[None]:
        """Inside: every element is read for itself."""
        saved, self.lanes = self.lanes, None
        yield
        self.lanes = saved

    def _single(self, b: Buffer) -> bool:
        """Whether elements are registers, each of its own."""
        return b.scope == "register" or b.name in self.special

    # ---- reading

    def load(self, x: Load) -> GpuLlvmValue:
        b, lanes = self.buffers[x.buffer], self.lanes
        if lanes is None or self._single(b) or b.name in lanes.alone:
            return self._element(b, x.indices)
        if id(x) not in lanes.loaded:
            lanes.loaded[id(x)] = self._elements(b, x.indices, lanes)
        found = lanes.loaded[id(x)]
        if not found:
            return self._element(b, x.indices)
        at = self.at.values[lanes.var]
        assert isinstance(at, Const)
        return found[at.value]

    def _element(self, b: Buffer, indices: Indexes) -> GpuLlvmValue:
        name = self.text.result(f"load {storage(b.dtype)}, {self.address(b, indices)}, align {BYTES[b.dtype]}")
        found = self._from_storage(GpuLlvmValue(name, b.dtype))
        return self.asked[b.name](b, indices, found) if b.name in self.asked else found

    def _elements(self, b: Buffer, indices: Indexes, lanes: Lanes) -> list[GpuLlvmValue]:
        """Those of all lanes, read together; none if that cannot be."""
        width, found = self.run(b, indices, lanes), []
        if width == 1:
            return []
        kind = f"<{width} x {storage(b.dtype)}>"
        for i in range(0, lanes.count, width):
            with self.at_lane(lanes, i):
                where = self.address(b, indices)
            vector = self.text.result(f"load {kind}, {where}, align {width * BYTES[b.dtype]}")
            parts = (self.text.op(f"extractelement {kind} {vector}, i32 {j}") for j in range(width))
            found += [self._from_storage(GpuLlvmValue(p, b.dtype)) for p in parts]
        return found

    def _from_storage(self, v: GpuLlvmValue) -> GpuLlvmValue:
        return GpuLlvmValue(self.text.op(f"icmp ne i8 {v.ssa}, 0"), "i1") if v.dtype == "i1" else v

    def _to_storage(self, v: GpuLlvmValue) -> str:
        return self.text.op(f"zext i1 {v.ssa} to i8") if v.dtype == "i1" else v.ssa

    # ---- writing

    def store(self, t: Target, value: GpuLlvmValue) -> None:
        b = self.buffers[t.buffer]
        kind = storage(b.dtype)
        self.text.line(f"store {kind} {self._to_storage(value)}, {self.address(b, t.indices)}, align {BYTES[b.dtype]}")

    def store_lanes(self, t: Target, values: list[GpuLlvmValue], lanes: Lanes) -> None:
        """The values of all lanes."""
        b = self.buffers[t.buffer]
        width = 1 if self._single(b) else self.run(b, t.indices, lanes)
        for i in range(0, lanes.count, width):
            with self.at_lane(lanes, i):
                if width == 1:
                    self.store(t, values[i])
                    continue
                where = self.address(b, t.indices)
            kind, vector = f"<{width} x {storage(b.dtype)}>", "poison"
            for j in range(width):
                part = f"{storage(b.dtype)} {self._to_storage(values[i + j])}"
                vector = self.text.op(f"insertelement {kind} {vector}, {part}, i32 {j}")
            self.text.line(f"store {kind} {vector}, {where}, align {width * BYTES[b.dtype]}")


__all__ = ["ACCESS_BYTES", "GLOBAL", "SHARED", "Lanes", "GpuLlvmMemory"]
