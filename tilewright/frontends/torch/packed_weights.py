"""Products with weights of 4 and 8 bits that ATen has operators for: what they compute, as arithmetic on the stored
numbers, which the pass `match-block-weights` keeps packed."""

from __future__ import annotations

import numpy as np
import torch

from . import arrays
from .node import FxNode, FxTensor
from .quantized import known
from .registry import aten


@aten("_int_mm")
def int_mm(n: FxNode, x: FxTensor, y: FxTensor) -> FxTensor:
    return n("matmul", n.cast(x, "i32"), n.cast(y, "i32"))


@aten("_weight_int8pack_mm")
def weight_int8pack_mm(n: FxNode, x: FxTensor, weight: FxTensor, scales: FxTensor) -> FxTensor:
    """x times the transpose of int8 weights with a scale a row."""
    codes = n.cast(n.transpose(weight, (1, 0)), "f32")
    weights = n("mul", codes, n.cast(n.reshape(scales, (1, weight.shape[0])), "f32"))
    return n("matmul", n.cast(x, "f32"), weights)


@aten("_weight_int4pack_mm_for_cpu")
def weight_int4pack_mm(n: FxNode, x: FxTensor, packed: FxTensor, group: int, scales_and_zeros: FxTensor) -> FxTensor:
    """x times the transpose of ``(codes - 8) * scale + zero``, in groups along its rows. How the codes are packed is
    different from processor to processor."""
    k, columns = x.shape[-1], n.shape[-1]
    codes, both = _codes_of(n, packed, k, columns), known(n, scales_and_zeros)
    n.need(both is not None, "whose scales are computed")
    assert both is not None
    scale, zero = (both[..., i].astype(np.float32).T for i in (0, 1))
    n.need((scale != 0).all(), "with scales of 0")
    form = (columns, k // group, group)
    numbers = n.cast(n.constant(codes.reshape(form)), "f32")
    centre = n.constant(np.ascontiguousarray(8 - zero / scale, np.float32)[..., None])
    weights = n("mul", n("sub", numbers, centre), n.constant(np.ascontiguousarray(scale)[..., None]))
    weights = n.transpose(n.reshape(weights, (columns, k)), (1, 0))
    return n("matmul", n.cast(x, "f32"), weights)


def _codes_of(n: FxNode, packed: FxTensor, k: int, columns: int) -> np.ndarray:
    """The codes [columns, k] of packed weights: PyTorch multiplies them by the identity."""
    array = known(n, packed)
    n.need(array is not None, "whose weights are computed")
    plain = torch.stack([torch.ones(1, columns), torch.zeros(1, columns)], -1)
    block = next((g for g in (256, 128, 64, 32) if k % g == 0), 0)
    n.need(block, f"with rows of {k}")
    plain = plain.expand(k // block, columns, 2).contiguous()
    with torch.no_grad():
        made = torch.ops.aten._weight_int4pack_mm_for_cpu(torch.eye(k), arrays.tensor(np.array(array)), block, plain)
    return np.ascontiguousarray((made + 8).T.round().to(torch.uint8).numpy())
