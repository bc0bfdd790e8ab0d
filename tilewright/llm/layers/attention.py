"""Attention with a paged cache, of the step's tokens to all positions of their sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...ir.types import Type
from . import cache
from .norm import normalized, normalized_heads
from .rope import rotated

if TYPE_CHECKING:
    from torch_mlir import ir

    from ..config import CachePool, Norm, Rope
    from ..scope import LayerScope


@dataclass(frozen=True)
class SelfAttention:
    """Attention of `heads` heads of `head_dim` numbers, whose keys and values `kv_heads` heads share, these of
    `v_head_dim` numbers.

    Weights: ``q k v`` (or ``qkv``) and ``o``, with biases where there are any; ``q_norm.weight`` and
    ``k_norm.weight``; ``sinks`` [heads]. States: pages ``k`` and ``v``.

    scale: of scores; None: head_dim ** -0.5. window: positions that a token sees, 0: all. softcap: see
    `RaggedAttention`. qk_norm: of each head of q and k, or of all of them together (`whole_norm`). clip: q, k and v are
    limited to -clip .. clip. gated: what heads give is multiplied with sigmoid(x @ ``gate``).
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int = 0
    rope: Rope | None = None
    scale: float | None = None
    window: int = 0
    softcap: float = 0.0
    qk_norm: Norm | None = None
    whole_norm: bool = False
    clip: float = 0.0
    sinks: bool = False
    gated: bool = False

    recurrent = False

    @property
    def value_dim(self) -> int:
        """Numbers of a value."""
        return self.v_head_dim or self.head_dim

    def states(self, pool: CachePool) -> dict[str, Type]:
        sizes = {"k": self.head_dim, "v": self.value_dim}
        return {n: t for name, size in sizes.items() for n, t in cache.pages(pool, self.kv_heads, name, size).items()}

    def build(self, at: LayerScope, x: ir.Value) -> ir.Value:
        make = at.make
        q, k, v, gate = self._projected(at, x)
        cache.write(at, "k", k)
        cache.write(at, "v", v)
        out = cache.attend(
            at,
            q,
            at.vector("sinks") if self.sinks else None,
            scale=self.head_dim**-0.5 if self.scale is None else self.scale,
            window=self.window,
            softcap=self.softcap,
        )
        out = make("reshape", out, shape=(-1, self.heads * self.value_dim))
        if gate is not None:
            out = make("mul", out, make("sigmoid", gate))
        return at.linear(out, "o")

    def _projected(self, at: LayerScope, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value | None]:
        """q [T, heads, head_dim], k and v [T, kv_heads, ...], normalized and rotated; the gate [T, ...]."""
        make, heads, shared, depth = at.make, self.heads, self.kv_heads, self.head_dim
        qkv = at.linear(x, "q", "k", "v", *(("gate",) if self.gated else ()))
        if self.clip:
            qkv = make("clip", qkv, low=-self.clip, high=self.clip)
        sizes, gate = (heads * depth, shared * depth, shared * self.value_dim), None
        if self.gated:
            qkv, gate = make("split", qkv, sizes=(sum(sizes), heads * self.value_dim), axis=1)
        if self.qk_norm is not None and self.whole_norm:
            q, k, v = make("split", qkv, sizes=sizes, axis=1)
            q, k = (normalized(at / f"{n}_norm", self.qk_norm, part) for n, part in (("q", q), ("k", k)))
            qk = make("concat", q, k, axis=1)
        else:
            qk, v = make("split", qkv, sizes=(sizes[0] + sizes[1], sizes[2]), axis=1)
        qk = make("reshape", qk, shape=(-1, heads + shared, depth))
        if self.qk_norm is not None and not self.whole_norm:
            qk = normalized_heads(at, self.qk_norm, qk, {"q_norm": heads, "k_norm": shared})
        if self.rope is not None:
            qk = rotated(make, qk, *at.step.angles(self.rope), self.rope)
        q, k = make("split", qk, sizes=(heads, shared), axis=1)
        return q, k, make("reshape", v, shape=(-1, shared, self.value_dim)), gate


__all__ = ["SelfAttention"]
