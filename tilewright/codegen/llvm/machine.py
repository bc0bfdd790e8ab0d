"""The machine as LLVM sees it: target triple, processor, features and ABI.

A target's description may have these attributes itself; `LlvmRecord` is for one of which there is nothing more to say:

    assemble(mlir_to_llvm(text, "k"), LlvmRecord("riscv64-unknown-linux-gnu", "generic-rv64", ("m", "f", "d"), "lp64d"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from typing import Self  # Python 3.11


class LlvmMachine(Protocol):
    """A machine that LLVM makes code for.

    A worker process makes it anew from the name of its class and `to_json`: the class stands in a module that can be
    imported, and has `from_json`.
    """

    @property
    def triple(self) -> str: ...
    @property
    def cpu(self) -> str: ...
    @property
    def abi(self) -> str:
        """The calling convention, "" for the triple's own."""

    @property
    def reloc(self) -> str:
        """``pic`` for code that may be loaded at any address, ``static``."""

    @property
    def index_bits(self) -> int: ...
    @property
    def vector_bytes(self) -> int:
        """The longest vectors that a kernel keeps on its stack."""

    @property
    def few_passes(self) -> bool:
        """Whether few passes of LLVM have been measured to give code as fast as all of them."""

    def llvm_features(self) -> str:
        """What the processor has and has not, for LLVM: ``+neon,-sve``."""

    def define(self, llvm_ir: str) -> str:
        """LLVM IR of a kernel with bodies for the functions of this machine that it declares and calls."""

    def sources(self) -> Sequence[Path]:
        """The files that `define` takes its text from, for cache keys."""

    def to_json(self) -> dict[str, object]: ...

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self: ...


@dataclass(frozen=True)
class LlvmRecord:
    """An `LlvmMachine` as plain data.

    >>> LlvmRecord("aarch64-unknown-none-elf", "cortex-a76", ("neon", "dotprod")).llvm_features()
    '+neon,+dotprod'
    """

    triple: str
    cpu: str = ""
    features: tuple[str, ...] = ()
    abi: str = ""
    reloc: str = "pic"
    index_bits: int = 64
    vector_bytes: int = 16
    few_passes: bool = False

    def llvm_features(self) -> str:
        return ",".join(f"+{f}" for f in self.features)

    def define(self, llvm_ir: str) -> str:
        return llvm_ir

    def sources(self) -> Sequence[Path]:
        return ()

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "features": list(self.features)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(**{**data, "features": tuple(data["features"])})


def code_key(machine: LlvmMachine) -> str:
    """All of a machine that decides the object code of a kernel, for cache keys."""
    m = machine
    return f"{m.triple}|{m.cpu}|{m.llvm_features()}|{m.index_bits}|{m.abi}|{m.reloc}"


def named(name: str) -> Any:
    """What ``module:name`` stands for."""
    module, _, attribute = name.partition(":")
    return attrgetter(attribute)(import_module(module))


def to_message(machine: LlvmMachine) -> dict[str, object]:
    """What `from_message` makes the machine of in another process."""
    kind = type(machine)
    return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": machine.to_json()}


def from_message(message: dict[str, Any]) -> LlvmMachine:
    """The machine that `to_message` was given."""
    return named(message["class"]).from_json(message["fields"])
