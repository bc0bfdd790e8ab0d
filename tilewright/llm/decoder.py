"""The graph of one step of a language model: T tokens of B sequences in, logits of R of them out (`batch.Batch`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir.graph_builder import Maker
from ..ir.types import Type
from ..ops.block_weights import BlockWeights
from ..support.dims import Dim
from ..support.errors import ModelError, UnsupportedError
from .batch import ModelLimits
from .config import CachePool, DecoderModel
from .layers.linear import block_operands, linear, linear_tiled, rows_of_tiled, tiled_rows
from .layers.norm import normalized
from .plan import REPORT
from .scope import DecoderStep, LayerScope, UsedWeights

if TYPE_CHECKING:
    from torch_mlir import ir

    from ..ir.graph import Graph
    from ..program.package import Package
    from ..support.options import Options
    from .plan import Hook, ModelPlan

#: name of an input -> its sizes, by the names of dimensions; all are i32
INPUTS: dict[str, tuple[str, ...]] = {
    "tokens": ("T",),
    "positions": ("T",),
    "slots": ("T",),
    "starts": ("B+1",),
    "lengths": ("B",),
    "table": ("B", "N"),
    "rows": ("R",),
}
#: those of models with recurrent layers
RECURRENT = {"initial": ("B",), "keep": ("T",)}


def step_graph(
    model: DecoderModel, weights: Mapping[str, Any], pool: CachePool, context: int, precision: str = "auto"
) -> Graph:
    """The graph of a step: inputs as in `INPUTS` and the states; outputs ``logits`` f32 [R, vocabulary], ``hidden`` f32
    [R, hidden] and, as ``next:NAME``, the states. Sizes by name are open.

    context: the most positions that a sequence will have. precision: see `linear`. ModelError for a checkpoint without
    one of the weights.
    """
    inputs = INPUTS | (RECURRENT if model.recurrent else {})
    states = model.states(pool)
    types = [(n, Type((None,) * len(sizes), "i32")) for n, sizes in inputs.items()]
    make = Maker([*types, *states.items()], name=model.architecture)
    values = dict(zip(make.names, make.inputs, strict=True))
    step = DecoderStep(
        make, model, weights, context, precision, {n: values[n] for n in inputs}, {n: values[n] for n in states}
    )
    x = _embedded(step)
    for i, layer in enumerate(model.layers):
        for block in layer.blocks:
            at = LayerScope(step, f"layers.{i}.{block.name}", i)
            y = block.body.build(at, normalized(at / "before", block.before, x))
            y = normalized(at / "after", block.after, y)
            x = make("add", x, y if block.scale == 1 else make("mul", y, make.constant(np.float32(block.scale))))
    hidden = normalized(LayerScope(step, "norm"), model.norm, make("gather", x, step.inputs["rows"], axis=0))
    logits = _logits(step, hidden)
    return make.finish([("logits", logits), ("hidden", hidden), *((f"next:{n}", v) for n, v in step.states.items())])


def _embedded(step: DecoderStep) -> ir.Value:
    """Embeddings of the tokens in f32, [T, hidden]."""
    make, model = step.make, step.model
    table, tokens = _table(step, "embedding.weight", model.vocabulary), step.inputs["tokens"]
    if isinstance(table, BlockWeights):
        operands = block_operands(make, table, "embedding")
        x = make("block_lookup", tokens, *operands, **table.attributes, place="embedding")
    elif model.tied:
        step.tied = make.constant(tiled_rows(table), "embedding")
        x = rows_of_tiled(make, step.tied, tokens)
    else:
        x = _rows(make, table, tokens, "embedding")
    if model.embedding_scale != 1:
        x = make("mul", x, make.constant(np.float32(model.embedding_scale)))
    if model.positions:
        at = step.inputs["positions"]
        if model.position_offset:
            at = make("add", at, make.constant(np.int32(model.position_offset)))
        x = make(
            "add",
            x,
            _rows(make, _table(step, "positions.weight", model.positions + model.position_offset), at, "positions"),
        )
    return x


def _table(step: DecoderStep, name: str, rows: int) -> Any:
    """A weight whose rows are looked up: ModelError if it has others than config.json says."""
    table = LayerScope(step, "").weight(name)
    if tuple(table.shape) != (rows, step.model.hidden):
        said = f"config.json says {[rows, step.model.hidden]}"
        raise ModelError(f"{name} is {list(table.shape)}, {said}", stage="import", hint="vocab_size, hidden_size")
    return table


def _rows(make: Maker, table: np.ndarray, indices: ir.Value, name: str) -> ir.Value:
    rows = make("gather", make.constant(table, name), indices, axis=0, place=name)
    return make("cast", rows, to="f32")


def _logits(step: DecoderStep, hidden: ir.Value) -> ir.Value:
    make, model, root = step.make, step.model, LayerScope(step, "")
    if step.tied is not None:
        logits = linear_tiled(make, hidden, step.tied, model.vocabulary)
    elif model.tied:
        logits = linear(make, hidden, [root.weight("embedding.weight")], place="head", precision=step.precision)
    else:
        _table(step, "head.weight", model.vocabulary)
        logits = root.linear(hidden, "head")
    if model.logits_scale != 1:
        logits = make("mul", logits, make.constant(np.float32(model.logits_scale)))
    if model.logits_softcap:
        cap = np.float32(model.logits_softcap)
        logits = make("mul", make("tanh", make("mul", logits, make.constant(1 / cap))), make.constant(cap))
    return logits


def compiled(
    model: DecoderModel,
    weights: Mapping[str, Any],
    plan: ModelPlan,
    options: Options,
    progress: Hook | None = None,
    *,
    unloaded: bool = False,
) -> dict[str, Package]:
    """The entries "decode" and "prefill" of a model; see `program.compile_model`, and `entry_packages`."""
    from ..driver.entries import entry_packages

    report = progress or (lambda stage, part: None)
    report("reading the model", 0.05)
    given = UsedWeights(weights)
    graph = step_graph(model, given, plan.pool, plan.context, plan.precision)
    if unused := sorted(set(weights) - given.used):
        more = f" and {len(unused) - 8} more" if len(unused) > 8 else ""
        raise UnsupportedError(
            f"the checkpoint has weights that this {model.architecture} model does not use: "
            + ", ".join(unused[:8])
            + more,
            stage="import",
        )
    states = model.states(plan.pool)
    inputs = {
        f"{entry}:{name}": sizes
        for entry, dims in plan.dims().items()
        for name, sizes in input_sizes(model, dims).items()
    }
    options = replace(options, inputs=inputs, states={n: f"next:{n}" for n in states})
    report("compiling", 0.1)
    made = entry_packages(dict.fromkeys(plan.dims(), graph), options, unloaded=unloaded)
    limits = ModelLimits(
        model.vocabulary, plan.page_length, plan.pages, plan.snapshots if model.recurrent else 0, plan.tokens,
        plan.sequences, plan.context,
    )  # fmt: skip
    made["decode"].report[REPORT] = {
        "architecture": model.architecture,
        "limits": asdict(limits),
        "snapshots": model.snapshots(plan.pool),
    }
    return made


def input_sizes(model: DecoderModel, dims: Mapping[str, Dim]) -> dict[str, tuple[Any, ...]]:
    """The option ``inputs`` of `tilewright.compile`: the sizes of a step's inputs, with these dimensions."""
    inputs = INPUTS | (RECURRENT if model.recurrent else {})
    return {n: tuple(dims.get(s, s) for s in sizes) for n, sizes in inputs.items()}


__all__ = ["INPUTS", "RECURRENT", "compiled", "input_sizes", "step_graph"]
