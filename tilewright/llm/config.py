"""What a language model is made of, as data: every architecture is read into these records, and one decoder builds the
graph of a step from them (`decoder.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch_mlir import ir

    from ..ir.types import Type
    from .scope import LayerScope


@dataclass(frozen=True)
class Norm:
    """A normalization of the last dimension. rms: x / sqrt(mean(x²) + epsilon); layer: the mean is subtracted first.

    Weights: ``weight`` (and ``bias``) where it has them; `offset` is added to the weight (1 in Gemma).
    """

    kind: Literal["rms", "layer"] = "rms"
    epsilon: float = 1e-5
    weight: bool = True
    bias: bool = False
    offset: float = 0.0


@dataclass(frozen=True)
class Scaling:
    """How the frequencies of a rotary embedding are changed for contexts longer than the model was trained with.

    linear: all divided by `factor`. llama3: those of long waves, with a transition between `low` and `high` waves in
    `original` positions. yarn: a ramp between the dimensions that turn `fast` and `slow` times in `original`
    positions; `rounded` ends of the ramp. longrope: a divisor for each (`short`, or `long` in contexts of more than
    `original` positions). `attention` multiplies cosine and sine.
    """

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    fast: float = 32.0
    slow: float = 1.0
    rounded: bool = True
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    attention: float = 1.0


@dataclass(frozen=True)
class Rope:
    """Rotary positions: of each head the first `dim` numbers are rotated in pairs, pair i by the angle
    position * theta ** (-2 i / dim). Pairs are (i, i + dim / 2), or (2 i, 2 i + 1) if `interleaved`."""

    dim: int
    theta: float = 10000.0
    interleaved: bool = False
    scaling: Scaling | None = None


@dataclass(frozen=True)
class CachePool:
    """The memory of a model between steps: pages of `page_length` positions in `dtype`, and recurrent snapshots."""

    pages: int
    page_length: int
    snapshots: int = 0
    dtype: str = "f32"


class SublayerBody(Protocol):
    """What a block of a layer computes: attention, a recurrence, an MLP. A kind is a frozen dataclass in a file of
    `layers/`: its fields say how, these methods build it. `recurrent`: it has snapshots among its states."""

    recurrent: bool

    def states(self, pool: CachePool) -> dict[str, Type]:
        """Its states in the pool, by name; a layer's number is added to that: ``k`` becomes ``k.3``."""

    def build(self, at: LayerScope, x: ir.Value) -> ir.Value:
        """Append what it computes of x [T, hidden] (f32); `at` gives weights, states and the step's inputs."""


@dataclass(frozen=True)
class Sublayer:
    """x + scale * after(body(before(x))). `name`: of its weights in a layer. Norms have the weights ``before.weight``
    and ``after.weight``."""

    name: str
    body: SublayerBody
    before: Norm | None = None
    after: Norm | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class DecoderLayer:
    """Blocks one after the other: a mixer and an MLP, or one of them."""

    blocks: tuple[Sublayer, ...]


@dataclass(frozen=True)
class DecoderModel:
    """A decoder of tokens.

    Weights: ``embedding.weight`` [vocabulary, hidden], ``positions.weight`` [positions, hidden] if it has learned
    ones, ``layers.I.BLOCK.NAME...``, ``norm.weight`` (``norm.bias``), ``head.weight`` unless `tied`, ``head.bias`` if
    there is one.

    context: positions that it was made for. positions: rows of learned positions, the first `position_offset` unused.
    embedding_norm: of embeddings. logits_scale multiplies logits before `logits_softcap`.
    """

    architecture: str
    vocabulary: int
    hidden: int
    context: int
    layers: tuple[DecoderLayer, ...]
    norm: Norm | None
    tied: bool = False
    positions: int = 0
    position_offset: int = 0
    embedding_scale: float = 1.0
    logits_scale: float = 1.0
    logits_softcap: float = 0.0

    @property
    def recurrent(self) -> bool:
        """Whether any layer has snapshots."""
        return any(body.recurrent for _, body in self._bodies())

    def states(self, pool: CachePool) -> dict[str, Type]:
        """All states by name, in the order of the layers."""
        return {f"{name}.{i}": t for i, body in self._bodies() for name, t in body.states(pool).items()}

    def snapshots(self, pool: CachePool) -> list[str]:
        """The names of states that are snapshots; all others are pages."""
        return [f"{name}.{i}" for i, body in self._bodies() if body.recurrent for name in body.states(pool)]

    def _bodies(self) -> Iterator[tuple[int, SublayerBody]]:
        return ((i, block.body) for i, layer in enumerate(self.layers) for block in layer.blocks)


__all__ = ["Sublayer", "SublayerBody", "DecoderLayer", "DecoderModel", "Norm", "CachePool", "Rope", "Scaling"]
