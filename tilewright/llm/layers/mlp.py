"""MLPs of a decoder, gated and plain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_mlir import ir

    from ...ir.graph_builder import Maker
    from ...ir.types import Type
    from ..config import CachePool
    from ..scope import LayerScope

#: activation, as configurations call it -> operator and its attributes; squares of relu are made of two
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "silu": ("silu", {}),
    "swish": ("silu", {}),
    "gelu": ("gelu", {}),
    "gelu_new": ("gelu", {"approximate": "tanh"}),
    "gelu_pytorch_tanh": ("gelu", {"approximate": "tanh"}),
    "relu": ("relu", {}),
    "relu2": ("relu", {}),
}


def activated(make: Maker, activation: str, x: ir.Value) -> ir.Value:
    """An activation of x; `ACTIVATIONS` lists the names."""
    operator, attributes = ACTIVATIONS[activation]
    y = make(operator, x, **attributes)
    return make("mul", y, y) if activation == "relu2" else y


@dataclass(frozen=True)
class Mlp:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) if it is not `gated`, of `size` numbers between.

    Weights: ``gate up`` (or ``gateup``) and ``down``, with biases where there are any.
    """

    size: int
    activation: str = "silu"
    gated: bool = True

    recurrent = False

    def states(self, pool: CachePool) -> dict[str, Type]:
        return {}

    def build(self, at: LayerScope, x: ir.Value) -> ir.Value:
        make = at.make
        if not self.gated:
            return at.linear(activated(make, self.activation, at.linear(x, "up")), "down")
        gate, up = make("split", at.linear(x, "gate", "up"), sizes=(self.size, self.size), axis=1)
        return at.linear(make("mul", activated(make, self.activation, gate), up), "down")


__all__ = ["ACTIVATIONS", "Mlp", "activated"]
