"""Differences on hard numbers that are allowed, each with its reason, as docs/semantics.md names them."""

from __future__ import annotations

#: of an operator of ONNX -> why its results may differ from both references
OPERATORS: dict[str, str] = {
    "Attention": "keys that a mask hides are not read, so that NaN there does not spread; scores are scaled before or "
    "after they are summed, so that they overflow elsewhere",
    "ConvTranspose": "a sum also over the places between strides, whose zeros times an infinite weight are NaN",
}

#: of an entry of PyTorch's table -> the same
TORCH: dict[str, str] = {}
