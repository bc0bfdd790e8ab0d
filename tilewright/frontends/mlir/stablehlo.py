"""StableHLO operators for which MLIR's way to linalg gives what has no loop nest: they are written as others first."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import tensor


def prepare(module: ir.Module) -> None:
    """Rewrite the operators below, in place.

    ``concatenate`` -> ``tensor.concat``; ``dynamic_slice`` -> ``gather`` of one window, which clamps where it begins as
    ``dynamic_slice`` does.
    """
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in _REWRITES:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        with ir.InsertionPoint(op), op.location:
            new = _REWRITES[op.name](op)
        op.results[0].replace_all_uses_with(new)
        op.erase()


def _concatenate(op: ir.Operation) -> ir.Value:
    return tensor.ConcatOp(
        op.results[0].type, ir.IntegerAttr(op.attributes["dimension"]).value, list(op.operands)
    ).result


def _dynamic_slice(op: ir.Operation) -> ir.Value:
    operand, *starts = op.operands
    rank, element = len(starts), ir.RankedTensorType(starts[0].type).element_type
    if not rank:
        return operand
    one, every = (ir.RankedTensorType.get([n], element) for n in (1, rank))
    begins = [ir.Operation.create("stablehlo.reshape", [one], [s]).result for s in starts]
    begin = tensor.ConcatOp(every, 0, begins).result if rank > 1 else begins[0]
    axes = list(range(rank))
    numbers = f"#stablehlo.gather<offset_dims = {axes}, start_index_map = {axes}, index_vector_dim = 0>"
    attributes = {
        "dimension_numbers": ir.Attribute.parse(numbers),
        "slice_sizes": op.attributes["slice_sizes"],
        "indices_are_sorted": ir.BoolAttr.get(False),
    }
    return ir.Operation.create("stablehlo.gather", [op.results[0].type], [operand, begin], attributes).result


_REWRITES = {"stablehlo.concatenate": _concatenate, "stablehlo.dynamic_slice": _dynamic_slice}
