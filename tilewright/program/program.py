"""The compiled program as data: kernel calls in order, their buffers, states and devices.

    Program(
        inputs=(TensorInfo("x", (1, 64), "f32"),),
        outputs=(TensorInfo("y", (1, 10), "f32"),),
        constants=(TensorInfo("w", (64, 10), "f32"),),
        calls=(Call("matmul_0", (BufferRef("input", 0, 0, 256), BufferRef("constant", 0, 0, 2560),
                                 BufferRef("output", 0, 0, 40)), writes=(2,), names=("/fc/MatMul",)),),
        arena_size=0, scratch_size=0)

Buffers lie in spaces: the caller's inputs and outputs, the constants, one arena for all that is in between, and the
states, which live between runs. A state's next value is written in place, or to a second buffer (space "next"); the two
buffers change places when the run is over.

Every buffer lies on a device, and a call has all its buffers on the device where it runs. A program of one device says
nothing of it: all is on device 0. One of several has an arena on each, and calls of `COPY` that bring values from one
to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np

from ..support.aligned import ALIGN as ALIGN
from ..support.dtypes import NUMPY
from .open_sizes import SizeTable

#: the symbol of a call that copies its first argument to its second
COPY = "tw.copy"
#: what becomes of a call where sizes are small
SMALL = ("", "alone", "each")


def align_up(size: int, to: int = ALIGN) -> int:
    return -(-size // to) * to


@dataclass(frozen=True)
class TensorInfo:
    """Name, shape, dtype (a string of `tilewright.support.dtypes`) and device of an input, output or constant.

    >>> t = TensorInfo("x", (2, 3), "f16")
    >>> t.nbytes, t.numpy_dtype, str(t)
    (12, dtype('float16'), 'x: f16[2, 3]')
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: int = 0

    @property
    def numpy_dtype(self) -> np.dtype:
        return NUMPY[self.dtype]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * NUMPY[self.dtype].itemsize

    def __str__(self) -> str:
        where = f" on device {self.device}" if self.device else ""
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]{where}"


@dataclass(frozen=True)
class DeviceInfo:
    """One of several devices: its name, and the bytes of its arena."""

    name: str
    arena_size: int


def whole(x: object) -> int:
    """A number of bytes or elements, or a position, as a package holds it; ValueError for what is none.

    >>> whole(12)
    12
    """
    if type(x) is not int or not 0 <= x < 1 << 62:
        raise ValueError(f"{str(x)[:40]!r} is no number of bytes or elements")
    return x


def text(x: object) -> str:
    """A name that a package holds; ValueError for what is none."""
    if not isinstance(x, str):
        raise ValueError(f"{str(x)[:40]!r} is no name")
    return x


@dataclass(frozen=True)
class Growth:
    """How a state grows whose buffer has room for its largest value: along `axis`, in a run from as many rows as the
    open dimension `before` says to `after`, a formula of open dimensions."""

    axis: int
    before: str
    after: str


@dataclass(frozen=True)
class StateInfo:
    """A state: the tensor, named after the input of the model that reads it, and the output that is its next value.
    `swapped`: it has two buffers, which change places after every run; else its next value is written in place. Of a
    state that several programs share, one may only read it (`output` is empty), another only write it (not `read`).
    `growth`: it is empty at first, and the tensor is the largest that it may become.

    >>> state = StateInfo(TensorInfo("past", (2, 3), "f32"), "present")
    >>> str(state), state.nbytes
    ('past: f32[2, 3] <- present, in place', 24)
    """

    tensor: TensorInfo
    output: str
    swapped: bool = False
    read: bool = True
    growth: Growth | None = None

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def nbytes(self) -> int:
        """Bytes of all its buffers."""
        return self.tensor.nbytes * (2 if self.swapped else 1)

    def __str__(self) -> str:
        if not self.output:
            return f"{self.tensor}, only read"
        how = "two buffers" if self.swapped else "in place" if self.read else "only written"
        grows = f", dimension {self.growth.axis} grows" if self.growth else ""
        return f"{self.tensor} <- {self.output}, {how}{grows}"


@dataclass(frozen=True)
class BufferRef:
    """`nbytes` bytes from byte `offset` of buffer `index` of a space. The arenas are numbered by device.

    `slot`: where open dimensions decide where it begins, the number of its place in the arena (`open_sizes`); offset
    and bytes are those at typical sizes.
    """

    space: str
    index: int
    offset: int
    nbytes: int
    slot: int = -1

    @property
    def empty(self) -> bool:
        """Whether it has no bytes, whatever the sizes are."""
        return not self.nbytes and self.slot < 0

    def overlaps(self, other: BufferRef) -> bool:
        """Whether they may have a byte in common: what has none at typical sizes only may lie anywhere."""
        if (self.space, self.index) != (other.space, other.index) or self.empty or other.empty:
            return False
        if not self.nbytes or not other.nbytes:
            return True
        return self.offset < other.offset + other.nbytes and other.offset < self.offset + self.nbytes

    def __str__(self) -> str:
        place = "arena" if (self.space, self.index) == ("arena", 0) else f"{self.space}{self.index}"
        return f"{place}[{self.offset}:{self.offset + self.nbytes}]"


@dataclass(frozen=True)
class Call:
    """One kernel call. `writes` are the positions in `args` that the kernel writes; it reads all others.

    A kernel that is not `parallel` does not divide its work: thread 0 alone runs it. `scratch` is its working memory
    where that lies in the arena (else it is the thread's own). `pieces`: any thread may do any part of it, as all that
    it does is divided. `sizes`: it takes the table of sizes behind its arguments (`open_sizes`). A call of `COPY`
    copies args[0] to args[1], from any device to `device`.

    `small`: what becomes of it where sizes are small and there are several threads (`small_calls`): thread 0 runs it
    "alone", or "each" thread runs it for itself, with its results in `own`, memory that the thread has for itself.
    """

    symbol: str
    args: tuple[BufferRef, ...]
    writes: tuple[int, ...]
    names: tuple[str, ...] = ()
    parallel: bool = True
    scratch: BufferRef | None = None
    pieces: bool = False
    device: int = 0
    sizes: bool = False
    small: str = ""
    own: tuple[BufferRef, ...] = ()

    def accesses(self) -> Iterator[tuple[BufferRef, bool]]:
        """Every buffer with whether it is written."""
        for position, ref in enumerate(self.args):
            yield ref, position in self.writes
        if self.scratch is not None:
            yield self.scratch, True

    def __str__(self) -> str:
        args = ", ".join(f"{'&' if i in self.writes else ''}{a}" for i, a in enumerate(self.args))
        notes = [f"device {self.device}"] * bool(self.device) + ["one thread"] * (not self.parallel)
        return f"{self.symbol}({args}){'  # ' + ', '.join(notes) if notes else ''}"


@dataclass(frozen=True)
class Program:
    """Everything about a compiled model but its code and its weights.

    `scratch_size`: bytes that every thread has for itself, the most any kernel asks for; `own_size`: those of the
    results that every thread makes for itself. `arena_bound`: what no plan of these buffers can go below (the most that
    lives at one time). `devices` are named where there are several;
    `arena_size` is of all together. `open` says what becomes of all that for other sizes of open dimensions.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    constants: tuple[TensorInfo, ...]
    calls: tuple[Call, ...]
    arena_size: int = 0
    scratch_size: int = 0
    arena_bound: int = 0
    states: tuple[StateInfo, ...] = ()
    devices: tuple[DeviceInfo, ...] = ()
    open: SizeTable | None = None
    own_size: int = 0

    @property
    def thread_bytes(self) -> int:
        """The memory that every thread has for itself: of kernels, and behind that of results."""
        return align_up(self.scratch_size) + self.own_size if self.own_size else self.scratch_size

    def start(self, ref: BufferRef) -> int:
        """Where a buffer of an arena begins in `arena_size` bytes in which all arenas lie one after the other."""
        return ref.offset + sum(d.arena_size for d in self.devices[: ref.index])

    def device_of(self, ref: BufferRef) -> int:
        """The device that a buffer lies on."""
        if ref.space == "arena":
            return ref.index
        if ref.space in ("state", "next"):
            return self.states[ref.index].tensor.device
        return {"input": self.inputs, "output": self.outputs, "constant": self.constants}[ref.space][ref.index].device

    @property
    def symbols(self) -> list[str]:
        """The kernels that are called, each once, in order of first call."""
        return list(dict.fromkeys(c.symbol for c in self.calls if c.symbol != COPY))

    @property
    def parallel(self) -> bool:
        """Whether more than one thread has anything to do."""
        return any(c.parallel for c in self.calls)

    def check(self) -> None:
        """ValueError if a call refers to bytes that do not exist or writes where it must not."""
        devices = self.devices or (DeviceInfo("", self.arena_size),)
        sizes = {("arena", i): (d.arena_size, i) for i, d in enumerate(devices)}
        for space, infos in (("input", self.inputs), ("output", self.outputs), ("constant", self.constants)):
            sizes.update({(space, i): (t.nbytes, t.device) for i, t in enumerate(infos)})
        for i, state in enumerate(self.states):
            sizes["state", i] = state.tensor.nbytes, state.tensor.device
            if state.swapped:
                sizes["next", i] = sizes["state", i]
        for number, call in enumerate(self.calls):
            where = f"call {number} ({call.symbol})"
            if any(not 0 <= w < len(call.args) for w in call.writes):
                raise ValueError(f"{where}: writes {call.writes} of {len(call.args)} arguments")
            if call.symbol == COPY and (len(call.args) != 2 or call.writes != (1,)):
                raise ValueError(f"{where}: a copy reads one buffer and writes one")
            if call.small not in SMALL or any(
                r.space != "own" or r.offset + r.nbytes > self.own_size for r in call.own
            ):
                raise ValueError(f"{where}: no thread has {', '.join(map(str, call.own))} for itself")
            if len(call.own) != (len(call.writes) if call.small == "each" else 0):
                raise ValueError(f"{where}: {len(call.own)} places for results of each thread")
            for ref, written in call.accesses():
                size, device = sizes.get((ref.space, ref.index), (None, call.device))
                if size is None or ref.offset < 0 or ref.nbytes < 0 or ref.offset + ref.nbytes > size:
                    raise ValueError(f"{where}: {ref} is outside of its buffer ({size} bytes)")
                if self.open and ref.space == "arena" and not self.open.places(ref.slot, ref.nbytes):
                    raise ValueError(f"{where}: {ref} has no place for all sizes")
                if device != call.device and (written or call.symbol != COPY):
                    raise ValueError(f"{where} runs on device {call.device}: {ref} is on device {device}")
                kept = ref.space == "state" and self.states[ref.index].swapped
                if written and (kept or ref.space in ("input", "constant")):
                    raise ValueError(f"{where}: writes to {ref}")

    def __str__(self) -> str:
        lines = [f"inputs: {'; '.join(map(str, self.inputs))}", f"outputs: {'; '.join(map(str, self.outputs))}"]
        lines += [f"state {state}" for state in self.states]
        lines.append(f"arena: {self.arena_size} bytes (no plan needs less than {self.arena_bound})")
        lines += [f"device {i}: {d.name}, arena {d.arena_size} bytes" for i, d in enumerate(self.devices)]
        lines += [f"  {call}" for call in self.calls]
        return "\n".join(lines)

    # ---- JSON, for the package ----

    def to_json(self) -> dict[str, object]:
        def ref(a: BufferRef | None) -> list[object] | None:
            return None if a is None else [a.space, a.index, a.offset, a.nbytes, *([a.slot] if a.slot >= 0 else [])]

        calls = [
            {**asdict(c), "args": [ref(a) for a in c.args], "scratch": ref(c.scratch), "own": [ref(a) for a in c.own]}
            for c in self.calls
        ]
        told = {**asdict(self), "calls": calls}
        return told | ({"open": self.open.to_json()} if self.open else {})

    @staticmethod
    def from_json(data: dict[str, Any]) -> Program:
        """The inverse of `to_json`, also after JSON text; KeyError, TypeError or ValueError if damaged."""

        def infos(key: str) -> tuple[TensorInfo, ...]:
            return tuple(tensor(t) for t in data[key])

        def growth(g: dict[str, Any] | None) -> Growth | None:
            return None if g is None else Growth(int(g["axis"]), str(g["before"]), str(g["after"]))

        def tensor(t: dict[str, Any]) -> TensorInfo:
            if t["dtype"] not in NUMPY:
                raise ValueError(f"{str(t['dtype'])[:40]!r} is no element type")
            return TensorInfo(text(t["name"]), tuple(map(whole, t["shape"])), t["dtype"], whole(t.get("device", 0)))

        def ref(a: list[Any]) -> BufferRef:
            space, *numbers = a
            return BufferRef(text(space), *map(whole, numbers))

        calls = tuple(
            Call(
                text(c["symbol"]),
                tuple(map(ref, c["args"])),
                tuple(map(whole, c["writes"])),
                tuple(map(text, c["names"])),
                bool(c["parallel"]),
                None if c.get("scratch") is None else ref(c["scratch"]),
                bool(c.get("pieces", False)),
                whole(c.get("device", 0)),
                bool(c.get("sizes", False)),
                text(c.get("small", "")),
                tuple(map(ref, c.get("own", ()))),
            )
            for c in data["calls"]
        )
        program = Program(
            infos("inputs"),
            infos("outputs"),
            infos("constants"),
            calls,
            whole(data["arena_size"]),
            whole(data["scratch_size"]),
            whole(data["arena_bound"]),
            tuple(
                StateInfo(tensor(s["tensor"]), s["output"], s["swapped"], s.get("read", True), growth(s.get("growth")))
                for s in data.get("states", ())
            ),
            tuple(DeviceInfo(**d) for d in data.get("devices", ())),
            SizeTable.from_json(data["open"]) if data.get("open") else None,
            whole(data.get("own_size", 0)),
        )
        program.check()
        return program
