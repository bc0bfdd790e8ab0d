"""The layers of a model that run on an accelerator, in the order of their calls, timed by its simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_mlir import ir

from ..codegen.kernel_info import location_names
from ..support.errors import UsageError
from ..targets.accelerator.binary import Formats
from ..targets.accelerator.layers import LayerRun, work_of
from ..targets.accelerator.match import select
from ..targets.accelerator.stages import ChipKernels, OnChip
from ..targets.base import find
from .compiler import compile_state


@dataclass(frozen=True)
class ChipLayers:
    """The layers of a model that a chip runs, one a call; `notes` say where every kernel went, and why."""

    runs: tuple[LayerRun, ...]
    formats: Formats
    notes: tuple[str, ...]


def chip_layers(source: object, target: str, **options: Any) -> ChipLayers:
    """Compile a model up to its programs. `options` are those of `tilewright.compile`.

    UsageError if the target has no chip, or the chip runs nothing of the model.

        layers = chip_layers("model.onnx", "cpu+systolic32")
        print(layers.runs[0].timing.cycles)
    """
    if not isinstance((found := find(target)).coprocessor, ChipKernels):
        raise UsageError(f"target {found.name!r} has no chip", hint="cpu+systolic32, say: `tilewright targets`")
    state, _ = compile_state(source, target=target, **{**options, "cache": False, "stop_after": "schedule"})
    chip = state.target.coprocessor
    assert isinstance(chip, ChipKernels)
    formats = chip.formats
    runs = []
    for op in state.module.operations():
        if op.name != "func.call":
            continue
        symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        made = state.schedules.get(symbol)
        if isinstance(made, OnChip) and made.planned is not None:
            work = work_of(select(state.kernels[symbol], formats.listing))
            runs.append(LayerRun.of(symbol, location_names(op.location), made.planned, formats, work))
    notes = tuple(chip.notes())
    if not runs:
        raise UsageError(f"{target} runs nothing of the model on the chip", hint="; ".join(notes[:3]))
    return ChipLayers(tuple(runs), formats, notes)
