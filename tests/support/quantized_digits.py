"""The digits CNN of the examples, quantized to 8 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.modules import load_module

REPOSITORY = Path(__file__).resolve().parents[2]


def digits_int8(unsigned=False):
    """(test images as the model's 8-bit inputs, labels, model); calibrated on training images."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install tilewright[demo]")
    folder = REPOSITORY / "examples" / "digits"
    data = load_module("digits_data", folder / "data.py")
    tools = load_module("quantize_tool", REPOSITORY / "benchmarks" / "quantize.py")
    (train, _), (test, labels) = data.load()
    calibration = [{"image": x[None]} for x in train[:200]]
    model = tools.quantize(onnx.load(folder / "digits.onnx"), calibration, unsigned=unsigned, integers=True)
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    scale, zero = arrays["image_scale"], arrays["image_zero"]
    info = np.iinfo(zero.dtype)
    return np.clip(np.rint(test / scale) + zero, info.min, info.max).astype(zero.dtype), labels, model
