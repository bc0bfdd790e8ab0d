"""Mixtures of experts: a router gives each token to a few of many MLPs, of which only those are computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...ops.block_experts import COLUMNS
from ...ops.block_weights import BlockWeights
from .linear import below, block_operands, byte_rows, linear
from .mlp import Mlp, activated

if TYPE_CHECKING:
    from torch_mlir import ir

    from ...ir.types import Type
    from ..config import CachePool
    from ..scope import LayerScope


@dataclass(frozen=True)
class Router:
    """Chooses `each` of `count` experts for a token, by scores: softmax or sigmoid of a product with the token.

    With `groups` the experts are in as many groups, and only those of the best `top_groups` may be chosen; a group
    counts as much as its best expert, or its best two together (`pairs`). Weights: ``weight`` [count, hidden], and
    ``correction`` [count] if it has one, which is added to scores for the choice alone. What experts give is weighted
    by their scores, which are divided by their sum (plus `epsilon`) if `normalized`, times `scale`.
    """

    count: int
    each: int
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalized: bool = True
    epsilon: float = 0.0
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    pairs: bool = False

    def build(self, at: LayerScope, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The experts of each token, i64 [T, each], and their shares, f32 [T, each]."""
        make = at.make
        # in f32 whatever the rest is in: near scores would change places
        logits = linear(make, x, [at.weight("router.weight")], place=f"{at.name}.router", precision="f32")
        scores = make("softmax", logits, axis=1) if self.scores == "softmax" else make("sigmoid", logits)
        choice = scores
        if (at / "router").has("correction"):
            choice = make("add", choice, (at / "router").vector("correction"))
        if self.groups > 1:
            choice = self._in_best_groups(at, choice)
        top, chosen = make("top_k", choice, k=self.each, axis=1, place=f"{at.name}.router")
        shares = top if choice is scores else make("gather_elements", scores, chosen, axis=1)
        if self.normalized:
            total = make("reduce_sum", shares, axes=(1,), keepdims=True)
            if self.epsilon:
                total = make("add", total, make.constant(np.asarray(self.epsilon, np.float32)))
            shares = make("div", shares, total)
        if self.scale != 1:
            shares = make("mul", shares, make.constant(np.asarray(self.scale, np.float32)))
        return chosen, shares

    def _in_best_groups(self, at: LayerScope, choice: ir.Value) -> ir.Value:
        """The scores, -inf in all groups but the best."""
        make, size = at.make, self.count // self.groups
        grouped = make("reshape", choice, shape=(-1, self.groups, size))
        if self.pairs:
            best, _ = make("top_k", grouped, k=min(2, size), axis=2)
            best = make("reduce_sum", best, axes=(2,))
        else:
            best = make("reduce_max", grouped, axes=(2,))
        _, chosen = make("top_k", best, k=self.top_groups, axis=1)
        numbers = make.constant(np.arange(self.groups, dtype=np.int64)[None, :, None], "groups")
        same = make("equal", make("reshape", chosen, shape=(-1, 1, self.top_groups)), numbers)
        there = make("reduce_max", make("cast", same, to="i32"), axes=(2,), keepdims=True)
        worst = make.constant(np.asarray(-np.inf, np.float32))
        there = make("equal", there, make.constant(np.asarray(1, np.int32)))
        return make("reshape", make("where", there, grouped, worst), shape=(-1, self.count))


@dataclass(frozen=True)
class Experts:
    """The sum of what the experts of a token give, each an MLP as `Mlp` of `size` numbers between, times their shares;
    and, with `shared`, of an MLP of so many that all tokens go through, times sigmoid(x @ ``shared_gate``) if there is
    such a weight.

    Weights: ``router``, see `Router`; ``experts.gateup`` [count, 2 size, hidden] and ``experts.down`` [count, hidden,
    size] (``experts.up`` where they are not `gated`), or those of each expert, ``experts.I.gate.weight`` ...;
    ``shared`` as of `Mlp`. With `latent` ``into`` and ``outof`` are around the experts, which work on so many numbers.
    """

    router: Router
    size: int
    activation: str = "silu"
    gated: bool = True
    shared: int = 0
    latent: bool = False

    recurrent = False

    def states(self, pool: CachePool) -> dict[str, Type]:
        return {}

    def build(self, at: LayerScope, x: ir.Value) -> ir.Value:
        make = at.make
        chosen, shares = self.router.build(at, x)
        rows, places, starts = make("expert_order", chosen, count=self.router.count)
        into = at.linear(x, "into") if self.latent else x
        between = self._product(at, into, ("gate", "up") if self.gated else ("up",), starts, rows)
        if self.gated:
            gate, between = make("split", between, sizes=(self.size, self.size), axis=1)
            between = make("mul", activated(make, self.activation, gate), between)
        else:
            between = activated(make, self.activation, between)
        out = self._product(at, between, ("down",), starts)
        each = make("gather", out, places, axis=0)
        each = make("mul", each, make("reshape", shares, shape=(-1, self.router.each, 1)))
        out = make("reduce_sum", each, axes=(1,))
        out = at.linear(out, "outof") if self.latent else out
        if self.shared:
            common = Mlp(self.shared, self.activation, self.gated).build(at / "shared", x)
            if at.has("shared_gate.weight"):
                common = make("mul", common, make("sigmoid", at.linear(x, "shared_gate")))
            out = make("add", out, common)
        return out

    def _product(
        self, at: LayerScope, x: ir.Value, names: tuple[str, ...], starts: ir.Value, rows: ir.Value | None = None
    ) -> ir.Value:
        """Rows of x times the weights of their experts, those of several names one after the other."""
        make, experts, joined, count = at.make, at / "experts", "".join(names), self.router.count
        place = f"{experts.name}.{joined}"
        if experts.has(joined):
            return make("expert_matmul", x, make.constant(experts.weight(joined), place), starts, rows, place=place)
        parts = [[experts.weight(f"{e}.{n}.weight") for n in names] for e in range(count)]
        if not isinstance(parts[0][0], BlockWeights):
            flat = below([w for p in parts for w in p])
            stacked = flat.reshape((count, flat.shape[0] // count, flat.shape[1]))
            return make("expert_matmul", x, make.constant(stacked, place), starts, rows, place=place)
        columns = sum(w.shape[0] for w in parts[0])
        padding = -columns % COLUMNS
        whole = BlockWeights.joined([w for p in parts for w in (*p, *([nothing(p[0], padding)] if padding else []))])
        if whole is None:  # kinds differ
            return make("concat", *[self._product(at, x, (n,), starts, rows) for n in names], axis=1)
        name, inputs = "expert_block_matmul", [x]
        if at.step.precision != "f32" and (whole.zero is None or whole.zero.dtype == np.uint8):
            name, inputs = "expert_integer_block_matmul", byte_rows(make, x, whole)
        given = block_operands(make, whole, place)
        y = make(name, *inputs, *given, starts, rows, place=place, **whole.attributes)
        return make("split", y, sizes=(columns, padding), axis=1)[0] if padding else y


def nothing(like: BlockWeights, rows: int) -> BlockWeights:
    """So many rows of zeros, of the form of other weights."""
    zeros: dict[str, Any] = {n: np.zeros((rows, *a.shape[1:]), a.dtype) for n, a in like.arrays.items()}
    return replace(like, **zeros, make=None)


__all__ = ["Experts", "Router"]
