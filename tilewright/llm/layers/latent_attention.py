"""Multi-head latent attention (MLA): the cache has one small vector a position, which all heads share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...ir.types import Type
from ...ops.block_weights import BlockWeights
from ...ops.write_quantized_pages import rotation
from ...support.errors import UnsupportedError
from ..config import Norm
from . import cache
from .norm import normalized
from .rope import rotated

if TYPE_CHECKING:
    from torch_mlir import ir

    from ..config import CachePool, Rope
    from ..scope import LayerScope


@dataclass(frozen=True)
class LatentAttention:
    """Attention of `heads` heads whose keys and values are products of a latent vector of `rank` numbers: keys of
    `head_dim` numbers, behind which come those of `rope`, one for all heads; values of `v_head_dim`.

    The products are absorbed: queries are multiplied with the keys' weights, and what the attention gives with the
    values', so that it works on latent vectors as they lie in the cache, whose rows are [latent, rotated].

    Weights: ``q``, or ``q_a``, ``q_a_norm`` and ``q_b`` of a low rank; ``kv_a`` [rank + rope, hidden], ``kv_a_norm``,
    ``kv_b`` [heads (head_dim + v_head_dim), rank] and ``o``. State: pages ``k``.
    """

    heads: int
    rank: int
    head_dim: int
    v_head_dim: int
    rope: Rope
    scale: float
    norm: Norm
    low_rank_q: bool = False

    recurrent = False

    def states(self, pool: CachePool) -> dict[str, Type]:
        depth = self.rank + self.rope.dim
        if pool.dtype in cache.BITS and self.rank % rotation(depth):
            raise UnsupportedError(f"vectors of {self.rank} + {self.rope.dim} numbers have no {pool.dtype} cache")
        return cache.pages(pool, 1, "k", depth)

    def build(self, at: LayerScope, x: ir.Value) -> ir.Value:
        make, heads, turned = at.make, self.heads, self.rope.dim
        q, kv = self._projected(at, x)
        q, q_turned = make("split", make("reshape", q, shape=(-1, heads, self.head_dim + turned)),
                           sizes=(self.head_dim, turned), axis=2)  # fmt: skip
        latent, k_turned = make("split", kv, sizes=(self.rank, turned), axis=1)
        latent = normalized(at / "kv_a_norm", self.norm, latent)
        both = make("concat", q_turned, make("reshape", k_turned, shape=(-1, 1, turned)), axis=1)
        both = rotated(make, both, *at.step.angles(self.rope), self.rope)
        q_turned, k_turned = make("split", both, sizes=(heads, 1), axis=1)
        row = make("concat", make("reshape", latent, shape=(-1, 1, self.rank)), k_turned, axis=2)
        cache.write(at, "k", row)
        keys, values = self._absorbed(at)
        q = make("concat", make("einsum", q, keys, equation="thn,hnl->thl"), q_turned, axis=2)
        out = cache.attend(at, q, scale=self.scale, width=self.rank)
        out = make("einsum", out, values, equation="thl,hvl->thv")
        return at.linear(make("reshape", out, shape=(-1, heads * self.v_head_dim)), "o")

    def _projected(self, at: LayerScope, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Queries of all heads, and the latent vector with the part that is rotated."""
        width = self.rank + self.rope.dim
        if not self.low_rank_q:
            both = at.linear(x, "q", "kv_a")
            q, kv = at.make("split", both, sizes=(self.heads * (self.head_dim + self.rope.dim), width), axis=1)
            return q, kv
        rank = at.weight("q_a.weight").shape[0]
        q, kv = at.make("split", at.linear(x, "q_a", "kv_a"), sizes=(rank, width), axis=1)
        return at.linear(normalized(at / "q_a_norm", self.norm, q), "q_b"), kv

    def _absorbed(self, at: LayerScope) -> tuple[ir.Value, ir.Value]:
        """The weights of keys [heads, head_dim, rank] and of values [heads, v_head_dim, rank]."""
        given = at.weight("kv_b.weight")
        weights = given.dequantized() if isinstance(given, BlockWeights) else np.asarray(given, np.float32)
        weights = weights.reshape(self.heads, self.head_dim + self.v_head_dim, self.rank)
        parts = weights[:, : self.head_dim], weights[:, self.head_dim :]
        keys, values = (at.make.constant(np.ascontiguousarray(p), f"{at.name}.kv_b") for p in parts)
        return keys, values


__all__ = ["LatentAttention"]
