"""A CPU as LLVM sees it, as plain data (triple, processor, features): what machine records of such targets are made
of."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schedule.machine import DotProduct, Machine
from ..support.errors import PackageError

if TYPE_CHECKING:
    from typing import Self  # Python 3.11


@dataclass(frozen=True)
class Processor(Machine):
    """LLVM's options (triple, cpu, features) and what the schedule rules ask (vectors, caches, cores).

    >>> Processor("aarch64-unknown-none-elf", "cortex-a76", ("neon", "dotprod"), reloc="static").llvm_features()
    '+neon,+dotprod'
    """

    triple: str
    cpu: str
    features: tuple[str, ...]
    vector_bytes: int = 16
    vector_registers: int = 16
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    l3_bytes: int = 8 << 20
    cores: int = 1
    index_bits: int = 64
    abi: str = ""
    reloc: str = "pic"
    line_bytes: int = 64
    same_set_bytes: int = 4096

    @property
    def arch(self) -> str:
        """``x86_64``, ``aarch64`` or whatever the triple begins with."""
        name = self.triple.split("-")[0]
        return {"arm64": "aarch64", "amd64": "x86_64"}.get(name, name)

    @property
    def dot_products(self) -> tuple[DotProduct, ...]:
        from .instructions import dot_products

        return dot_products(self)

    @property
    def few_passes(self) -> bool:
        """See `tilewright.codegen.llvm.machine.LlvmMachine`: measured with vectors of AVX2 and AVX-512."""
        return self.arch == "x86_64" and self.vector_bytes >= 32

    def llvm_features(self) -> str:
        """The feature string for LLVM."""
        return ",".join(f"+{f}" for f in self.features)

    def define(self, llvm_ir: str) -> str:
        """See `tilewright.codegen.llvm.machine.LlvmMachine`."""
        from .instructions import with_definitions

        return with_definitions(llvm_ir, self)

    def sources(self) -> tuple[Path, ...]:
        """See `tilewright.codegen.llvm.machine.LlvmMachine`."""
        from .instructions import SOURCES

        return SOURCES

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "features": list(self.features)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """PackageError if it is that of another version, or damaged."""
        try:
            return cls(**{**data, "features": tuple(data["features"])})
        except (KeyError, TypeError) as e:
            hint = "compile the model again with this version"
            raise PackageError(f"the description of its processor cannot be read: {e}", stage="load", hint=hint) from e


__all__ = ["Processor"]
