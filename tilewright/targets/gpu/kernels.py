"""How compiled GPU kernels are stored in a package: a JSON header, and the source or SPIR-V that the driver
compiles."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...codegen.clike.dialect import Dialect
from ...codegen.clike.function import ClikeFunction
from ...codegen.gpu.open_launch import Launch, LaunchAt, OpenLaunch
from ...program.program import align_up
from .device import BufferSlice

#: what parameters begin at multiples of
SCRATCH_ALIGN_BYTES = 256
#: of a number of typed scratch memory
_BYTES = {"f32": 4, "i32": 4, "u32": 4, "f64": 8, "i64": 8}
_HEAD = b"tilewright kernel 3\n"
#: outputs and the inputs whose place they take, by position
Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class GpuKernel:
    """The entry `name` of `text`, threads to start, which parameters it writes, and bytes of scratch memory of a
    thread: one more parameter for each number. Argument i is bound as so many parameters as `pieces` says, of
    `piece_bytes` each but for the last one. A `binary` text is SPIR-V in base 64. With `open` the last parameter is a
    table of sizes, and `launch` is that for typical ones."""

    name: str
    text: str
    launch: Launch
    writes: tuple[bool, ...]
    scratch: tuple[int, ...] = ()
    pieces: tuple[int, ...] = ()
    piece_bytes: int = 0
    binary: bool = False
    open: OpenLaunch | None = None
    #: the kernels of calls where outputs are these inputs: pairs by position
    in_place: tuple[tuple[Pairs, GpuKernel], ...] = ()

    @property
    def variants(self) -> tuple[GpuKernel, ...]:
        """See `device.DeviceKernel`."""
        return self, *(k for _, k in self.in_place)

    def at(self, launch: LaunchAt) -> GpuKernel:
        """See `device.DeviceKernel`."""
        return replace(self, launch=replace(self.launch, grid=launch.grid))

    @property
    def table(self) -> int | None:
        """The number of the parameter that is a table of sizes, where its text says that it is for reading only."""
        return None if self.open is None or self.binary else len(self.writes) - 1

    def placed(self, arguments: Sequence[BufferSlice]) -> tuple[GpuKernel, tuple[BufferSlice, ...]]:
        """The kernel of a call with these arguments, and those that it takes: one for an output and the inputs whose
        place it takes."""
        pairs = {p for some, _ in self.in_place for p in some}
        same = tuple(sorted((o, i) for o, i in pairs if arguments[o] == arguments[i]))
        found = next((k for some, k in self.in_place if tuple(sorted(some)) == same), None)
        gone = {i for _, i in same} if found is not None else set()
        return found or self, tuple(a for n, a in enumerate(arguments) if n not in gone)

    @property
    def code(self) -> str | bytes:
        """What the driver takes."""
        return base64.b64decode(self.text) if self.binary else self.text

    @property
    def scratch_bytes(self) -> int:
        """Of all threads."""
        return sum(n for _, n in self.scratch_parts)

    @property
    def scratch_parts(self) -> tuple[tuple[int, int], ...]:
        """Where each parameter's scratch memory begins in one buffer, and its bytes."""
        sizes = [align_up(n * self.launch.all_threads, SCRATCH_ALIGN_BYTES) for n in self.scratch]
        return tuple((sum(sizes[:i]), n) for i, n in enumerate(sizes))

    @property
    def bindings(self) -> int:
        """All parameters."""
        return len(self.writes) + len(self.scratch)

    def pack(self) -> bytes:
        return _HEAD + json.dumps(asdict(self)).encode()

    @staticmethod
    def unpack(data: bytes) -> GpuKernel:
        """The inverse of `pack`; ValueError if it is something else."""
        if not data.startswith(_HEAD):
            raise ValueError("not a kernel of a GPU")
        return GpuKernel.from_json(json.loads(data[len(_HEAD) :]))

    @staticmethod
    def from_json(told: dict[str, Any]) -> GpuKernel:
        """The inverse of `dataclasses.asdict`."""
        launch = Launch.from_json(told["launch"])
        tuples = {n: tuple(told[n]) for n in ("writes", "scratch", "pieces")}
        others = tuple((tuple(map(tuple, pairs)), GpuKernel.from_json(k)) for pairs, k in told["in_place"])
        return GpuKernel(
            **{**told, "launch": launch, **tuples, "in_place": others, "open": OpenLaunch.from_json(told["open"])}
        )


def kernel(f: ClikeFunction, dialect: Dialect) -> GpuKernel:
    """A printed kernel, with all that its text needs in front of it."""
    text = dialect.file([f.text(dialect)], f.helpers)
    writes = tuple(w for _, _, w in f.params)
    piece_bytes = dialect.pieces.bytes if dialect.pieces is not None else 0
    scratch = (int(f.scratch),) if f.scratch else tuple(size * _BYTES[kind] for _, kind, size in f.arrays)
    return GpuKernel(f.name, text, f.launch, writes, scratch, f.pieces, piece_bytes, open=f.open)
