"""Where in a model something is built: its weights, states and what all layers of a step share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..support.errors import ModelError
from .layers.linear import linear
from .layers.rope import angles

if TYPE_CHECKING:
    from torch_mlir import ir

    from ..ir.graph_builder import Maker
    from .config import DecoderModel, Rope


class UsedWeights(Mapping[str, Any]):
    """Weights by name, which notes those that are asked for."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self.weights, self.used = weights, set[str]()

    def __getitem__(self, name: str) -> Any:
        self.used.add(name)
        return self.weights[name]

    def __contains__(self, name: object) -> bool:
        return name in self.weights

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


@dataclass
class DecoderStep:
    """A graph that is being made: its inputs by name, the states' values by now, and what all layers share."""

    make: Maker
    model: DecoderModel
    weights: Mapping[str, Any]
    context: int
    precision: str
    inputs: dict[str, ir.Value]
    states: dict[str, ir.Value]
    tied: ir.Value | None = None  # the embedding, which is the head too
    _angles: dict[Rope, tuple[ir.Value, ir.Value]] = field(default_factory=dict)

    def angles(self, rope: Rope) -> tuple[ir.Value, ir.Value]:
        """Cosine and sine for each token, [T, dim / 2]; computed once for all layers."""
        if rope not in self._angles:
            self._angles[rope] = angles(self.make, self.inputs["positions"], rope, self.context)
        return self._angles[rope]


@dataclass(frozen=True)
class LayerScope:
    """A place in a model: what weights and states are called there. ``at / "q"`` is a place within."""

    step: DecoderStep
    name: str
    layer: int = 0

    def __truediv__(self, part: str) -> LayerScope:
        return LayerScope(self.step, f"{self.name}.{part}" if self.name else part, self.layer)

    @property
    def make(self) -> Maker:
        return self.step.make

    def weight(self, name: str) -> Any:
        """A weight of this place, an array or `BlockWeights`; ModelError if the checkpoint has none."""
        full = f"{self.name}.{name}" if self.name else name
        if full not in self.step.weights:
            raise ModelError(
                f"the checkpoint of this {self.step.model.architecture} model has no weight {full!r}", stage="import"
            )
        return self.step.weights[full]

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a weight of that name here."""
        return (f"{self.name}.{name}" if self.name else name) in self.step.weights

    def vector(self, name: str, offset: float = 0.0) -> ir.Value:
        """A small weight as a constant of f32, plus `offset`."""
        array = np.asarray(self.weight(name), np.float32)
        return self.make.constant(array + np.float32(offset) if offset else array, f"{self.name}.{name}")

    def linear(self, x: ir.Value, *names: str) -> ir.Value:
        """x times the weights of these names, joined to one product, plus their biases where the checkpoint has any.

        A checkpoint may have them joined: ``linear(x, "q", "k", "v")`` takes ``qkv.weight`` if there is one."""
        joined = "".join(names)
        names = (joined,) if self.has(f"{joined}.weight") else names
        weights = [self.weight(f"{n}.weight") for n in names]
        biases = [np.asarray(self.weight(f"{n}.bias"), np.float32) if self.has(f"{n}.bias") else None for n in names]
        bias = None
        if any(b is not None for b in biases):
            each = [np.zeros(w.shape[0], np.float32) if b is None else b for b, w in zip(biases, weights, strict=True)]
            bias = np.concatenate(each)
        return linear(self.make, x, weights, bias, f"{self.name}.{joined}", precision=self.step.precision)

    def state(self, name: str) -> ir.Value:
        """The value of a state of this layer by now."""
        return self.step.states[f"{name}.{self.layer}"]

    def set_state(self, name: str, value: ir.Value) -> None:
        """What a state is after this."""
        self.step.states[f"{name}.{self.layer}"] = value


__all__ = ["LayerScope", "DecoderStep", "UsedWeights"]
