"""Mixtures of experts: a router gives each token to a few of many MLPs, of which only those are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .mlp import Mlp, activated

if TYPE_CHECKING:
    from torch_mlir import ir

    from ...ir.types import Type
    from ..config import Pool
    from ..decoder import Scope


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

    def build(self, at: Scope, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The experts of each token, i32 [T, each], and their shares, f32 [T, each]."""
        make = at.make
        logits = at.linear(x, "router")
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
        return make("cast", chosen, to="i32"), shares

    def _in_best_groups(self, at: Scope, choice: ir.Value) -> ir.Value:
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

    def states(self, pool: Pool) -> dict[str, Type]:
        return {}

    def build(self, at: Scope, x: ir.Value) -> ir.Value:
        make = at.make
        chosen, shares = self.router.build(at, x)
        rows, places, starts = make("expert_order", chosen, count=self.router.count)
        into = at.linear(x, "into") if self.latent else x
        first = self._weights(at, "gate", "up") if self.gated else self._weights(at, "up")
        between = make("expert_matmul", into, first, starts, rows, place=f"{at.name}.up")
        if self.gated:
            gate, between = make("split", between, sizes=(self.size, self.size), axis=1)
            between = make("mul", activated(make, self.activation, gate), between)
        else:
            between = activated(make, self.activation, between)
        out = make("expert_matmul", between, self._weights(at, "down"), starts, place=f"{at.name}.down")
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

    def _weights(self, at: Scope, *names: str) -> ir.Value:
        """Weights of all experts, [count, ...], those of several names one after the other."""
        experts, joined = at / "experts", "".join(names)
        if experts.has(joined):
            array = experts.weight(joined)
        else:
            array = stacked(experts, names, self.router.count)
        return at.make.constant(array, f"{experts.name}.{joined}")


def stacked(experts: Scope, names: tuple[str, ...], count: int) -> np.ndarray:
    """The weights of each expert as one array."""
    parts: list[list[Any]] = [[experts.weight(f"{e}.{n}.weight") for n in names] for e in range(count)]
    sizes = [w.shape[0] for w in parts[0]]
    out = np.empty((count, sum(sizes), parts[0][0].shape[1]), parts[0][0].dtype)
    for e, each in enumerate(parts):
        np.concatenate(each, out=out[e])
    return out


__all__ = ["Experts", "Router"]
