"""What products of a model are given on calibration text: the model runs layer by layer, compiled, with one layer's
weights at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.graph_builder import Maker
from ...ir.types import Type
from ..config import CachePool, DecoderModel
from ..decoder import INPUTS, RECURRENT
from ..layers.norm import normalized
from ..scope import DecoderStep, LayerScope

if TYPE_CHECKING:
    from torch_mlir import ir

PAGE = 16


@dataclass(frozen=True)
class _Recording(LayerScope):
    """A place whose products are written down."""

    found: dict[tuple[str, ...], ir.Value] = field(default_factory=dict)

    def linear(self, x: ir.Value, *names: str) -> ir.Value:
        joined = "".join(names)
        used = (joined,) if self.has(f"{joined}.weight") else names
        self.found[tuple(f"{self.name}.{n}.weight" for n in used)] = x
        return super().linear(x, *names)


def step_inputs(sequences: int, length: int, page: int = PAGE) -> dict[str, np.ndarray]:
    """The inputs of a step (`batch.Batch`) of whole sequences of one length, each in pages of its own."""
    pages = -(-length // page)
    at = np.arange(length)
    arrays = {
        "tokens": np.zeros(sequences * length),
        "positions": np.tile(at, sequences),
        "slots": np.concatenate([n * pages * page + at for n in range(sequences)]),
        "starts": np.arange(sequences + 1) * length,
        "lengths": np.full(sequences, length),
        "table": np.arange(sequences * pages).reshape(sequences, pages),
        "rows": np.arange(sequences * length),
        "initial": np.full(sequences, -1),
        "keep": np.full(sequences * length, -1),
    }
    return {n: a.astype(np.int32) for n, a in arrays.items()}


class LayerProgram:
    """A layer compiled for steps of these sizes."""

    def __init__(
        self,
        model: DecoderModel,
        number: int,
        weights: Mapping[str, Any],
        inputs: Mapping[str, np.ndarray],
        threads: int | None,
    ) -> None:
        import tilewright as tw

        sequences, pages = inputs["table"].shape
        pool = CachePool(sequences * pages, PAGE, 1, "f32")
        states = {n: t for n, t in model.states(pool).items() if n.endswith(f".{number}")}
        names = [*INPUTS, *(RECURRENT if model.recurrent else ())]
        tokens = len(inputs["tokens"])
        types = [("x", Type((tokens, model.hidden), "f32")), *((n, Type(inputs[n].shape, "i32")) for n in names)]
        make = Maker([*types, *states.items()], name=f"layer{number}")
        values = dict(zip(make.names, make.inputs, strict=True))
        of = {n: values[n] for n in names}
        step = DecoderStep(make, model, weights, tokens, "f32", of, {n: values[n] for n in states})
        #: the inputs of products, by the names of the weights that they are multiplied with
        found: dict[tuple[str, ...], ir.Value] = {}
        y = values["x"]
        for block in model.layers[number].blocks:
            at = _Recording(step, f"layers.{number}.{block.name}", number, found)
            inner = block.body.build(at, normalized(at / "before", block.before, y))
            inner = normalized(at / "after", block.after, inner)
            scaled = (
                inner if block.scale == 1 else make("mul", inner, make.constant(np.asarray(block.scale, np.float32)))
            )
            y = make("add", y, scaled)
        outputs = [("y", y), *((f"p{i}", v) for i, v in enumerate(found.values()))]
        self.products = list(found)
        self._executable = tw.compile(make.finish(outputs), threads=threads, cache=False)
        zeros = (np.zeros([d or 0 for d in t.shape], np.float32) for t in states.values())
        self._rest = [*(inputs[n] for n in names), *zeros]

    def __call__(self, x: np.ndarray) -> tuple[np.ndarray, dict[tuple[str, ...], np.ndarray]]:
        """What the layer makes of x [T, hidden], and the inputs [T, K] of its products."""
        y, *given = (np.array(a) for a in self._executable(x, *self._rest))
        return y, dict(zip(self.products, given, strict=True))

    def __enter__(self) -> LayerProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self._executable.close()


def embedded(model: DecoderModel, weights: Mapping[str, Any], tokens: np.ndarray) -> np.ndarray:
    """What the first layer is given for sequences [S, length] of tokens: f32 [S * length, hidden]."""
    x = np.asarray(weights["embedding.weight"][tokens.ravel()], np.float32) * np.float32(model.embedding_scale)
    if model.positions:
        places = np.arange(tokens.shape[1]) + model.position_offset
        x += np.tile(np.asarray(weights["positions.weight"], np.float32)[places], (len(tokens), 1))
    return x


__all__ = ["PAGE", "LayerProgram", "embedded", "step_inputs"]
