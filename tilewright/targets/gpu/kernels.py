"""Kernels of GPUs as they lie in a package: facts as JSON, and the text or SPIR-V that the device's driver compiles."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass

from ...codegen.clike.dialect import Dialect
from ...codegen.clike.function import Function, Launch

_HEAD = b"tilewright kernel 1\n"


@dataclass(frozen=True)
class GpuKernel:
    """The entry `name` of `text`, units to start, which parameters it writes, and bytes of scratch memory of a unit,
    whose buffer is one more parameter. A `binary` text is SPIR-V in base 64."""

    name: str
    text: str
    launch: Launch
    writes: tuple[bool, ...]
    scratch: int = 0
    binary: bool = False

    @property
    def code(self) -> str | bytes:
        """What the driver takes."""
        return base64.b64decode(self.text) if self.binary else self.text

    @property
    def scratch_bytes(self) -> int:
        """Of all units."""
        return self.scratch * self.launch.units

    def pack(self) -> bytes:
        return _HEAD + json.dumps(asdict(self)).encode()

    @staticmethod
    def unpack(data: bytes) -> GpuKernel:
        """The inverse of `pack`; ValueError if it is something else."""
        if not data.startswith(_HEAD):
            raise ValueError("not a kernel of a GPU")
        told = json.loads(data[len(_HEAD) :])
        launch = Launch(tuple(told["launch"]["block"]), tuple(told["launch"]["grid"]))
        return GpuKernel(**{**told, "launch": launch, "writes": tuple(told["writes"])})


def kernel(f: Function, dialect: Dialect) -> GpuKernel:
    """A printed kernel, with all that its text needs in front of it."""
    text = dialect.file([f.text(dialect)], f.helpers)
    return GpuKernel(f.name, text, f.launch, tuple(w for _, _, w in f.params), int(f.scratch))
