"""Programs with open sizes, brought to those of their arguments by MLIR's passes, and by what these leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import func

from ....ir.context import run_passes
from ....ir.graph import from_dense
from ....ir.types import type_of

#: composite operators are their decompositions here: these have to have the types of their operands
ARGUMENTS = "func.func(stablehlo-legalize-composite-to-call),inline,stablehlo-refine-arguments{{types={types}}}"
SHAPES = "stablehlo-refine-shapes,func.func(stablehlo-canonicalize-dynamism)"
WINDOWS = "stablehlo.dynamic_reduce_window"


def refine(module: ir.Module, types: Sequence[ir.Type]) -> None:
    """Give the arguments of @main these types, and all values theirs, in place. CompileError if they do not fit."""
    listed = ",".join(map(str, types))
    run_passes(module, f"builtin.module({ARGUMENTS.format(types=listed)},{SHAPES})", stage="import")
    while _windows(module):
        run_passes(module, f"builtin.module({SHAPES})", stage="import")


def _windows(module: ir.Module) -> int:
    """How many calls of a reduction over windows, which JAX writes where sizes are open, have become that operator.

        %1 = custom_call @stablehlo.dynamic_reduce_window(%x, %zero, %sizes, %strides, ...) : ... -> tensor<?x?xf32>
    ->  %0 = reduce_window %x, %zero {window_dimensions = ...} : ... -> tensor<3x4xf32>
        %1 = convert %0 : (tensor<3x4xf32>) -> tensor<?x?xf32>
    """
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "stablehlo.custom_call" and ir.StringAttr(op.attributes["call_target_name"]).value == WINDOWS:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    done = 0
    for op in found:
        x, init, *numbers = op.operands
        arrays = [_constant(v) for v in numbers]
        if len(arrays) == 5 and not any(a is None for a in arrays) and ir.RankedTensorType(x.type).has_static_shape:
            with ir.InsertionPoint(op), op.location:
                made = _reduce_window(op, x, init, [a for a in arrays if a is not None])
                back = ir.Operation.create("stablehlo.convert", [op.results[0].type], [made]).results[0]
            op.results[0].replace_all_uses_with(back)
            op.erase()
            done += 1
    return done


def _reduce_window(op: ir.Operation, x: ir.Value, init: ir.Value, numbers: Sequence[np.ndarray]) -> ir.Value:
    names = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    attributes: Mapping[str, ir.Attribute] = {
        n: ir.DenseI64ArrayAttr.get([int(v) for v in a]) for n, a in zip(names, numbers, strict=False)
    }
    pads = numbers[4].astype(np.int64)
    size, stride, base, dilation = (a.astype(np.int64) for a in numbers[:4])
    around = (np.array(type_of(x).dims) - 1) * base + 1 + pads.sum(1)
    out = np.maximum((around - ((size - 1) * dilation + 1)) // stride + 1, 0)
    element = ir.RankedTensorType(x.type).element_type
    scalar = ir.RankedTensorType.get([], element)
    made = ir.Operation.create(
        "stablehlo.reduce_window",
        [ir.RankedTensorType.get([int(v) for v in out], element)],
        [x, init],
        {**attributes, "padding": ir.DenseElementsAttr.get(pads)},
        regions=1,
    )
    block = ir.Block.create_at_start(made.regions[0], [scalar, scalar], [op.location] * 2)
    (body,) = ir.ArrayAttr(op.attributes["called_computations"])
    with ir.InsertionPoint(block):  # inlined later
        result = func.CallOp([scalar], ir.FlatSymbolRefAttr(body).value, list(block.arguments)).results[0]
        ir.Operation.create("stablehlo.return", [], [result])
    return made.results[0]


def _constant(value: ir.Value) -> np.ndarray | None:
    """The array that a value is, None for one that is computed."""
    if isinstance(value.owner, ir.Block) or value.owner.name != "stablehlo.constant":
        return None
    return from_dense(value.owner.attributes["value"], type_of(value))


__all__ = ["refine"]
