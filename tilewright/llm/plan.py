"""What a language model is compiled from, and what for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..support.dims import Dim
from ..support.errors import UsageError
from .config import CachePool

if TYPE_CHECKING:
    from .config import DecoderModel

#: steps of at most so many tokens are the entry "decode", of more "prefill"
DECODE_TOKENS = 16
#: what a package says of itself, in the report of its entry "decode"
REPORT = "language_model"
#: says how far loading is: what is done now, and which part of all, 0 to 1
Hook = Callable[[str, float], None]


class ModelSource(Protocol):
    """A model that can be compiled. `digest` says all that it is made of; reading it is put off until `read`."""

    def digest(self) -> str: ...

    def read(self) -> tuple[DecoderModel, Mapping[str, Any]]: ...


@dataclass(frozen=True)
class ModelPlan:
    """What a program is made for: names as in `ModelLimits`. dtype: of the cache. precision: of products, see
    `layers.linear.linear`."""

    context: int = 4096
    sequences: int = 16
    tokens: int = 512
    page_length: int = 16
    pages: int = 1024
    snapshots: int = 64
    dtype: str = "bf16"
    precision: str = "auto"

    def __post_init__(self) -> None:
        for name in ("context", "sequences", "page_length", "pages"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is at least 1, not {getattr(self, name)}")
        if self.tokens <= DECODE_TOKENS:
            raise UsageError(f"a step takes more than {DECODE_TOKENS} tokens, not {self.tokens}")
        for name, allowed in (
            ("dtype", ("f32", "bf16", "f16", "int8", "int4")),
            ("precision", ("auto", "f32", "bf16")),
        ):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} is {' or '.join(allowed)}, not {getattr(self, name)!r}")

    @property
    def pool(self) -> CachePool:
        """The memory of the model."""
        return CachePool(self.pages, self.page_length, self.snapshots, self.dtype)

    def dims(self) -> dict[str, dict[str, Dim]]:
        """The open dimensions of each entry."""
        table = -(-self.context // self.page_length)
        # decode first, as weights are packed as the first entry packs them (measured: it is good for prefill too)
        ranges = {"decode": (1, DECODE_TOKENS), "prefill": (DECODE_TOKENS + 1, self.tokens)}
        return {
            entry: {
                "T": Dim("T", low, high),
                "B": Dim("B", 1, min(self.sequences, high)),
                "N": Dim("N", 1, table),
                "R": Dim("R", 1, high),
            }
            for entry, (low, high) in ranges.items()
        }


__all__ = ["DECODE_TOKENS", "REPORT", "Hook", "ModelPlan", "ModelSource"]
