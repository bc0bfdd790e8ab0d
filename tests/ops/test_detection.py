"""Operators of object detection that ONNX's own suite does not have, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from support.against_onnxruntime import check, floats


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_max_roi_pool(scale):
    rois = [[0, 0, 0, 7, 5], [1, 2, 3, 6, 4], [1, 5, 5, 5, 5], [0, 3.5, 2.5, 20, 9], [0, 1, 4, 0, 2]]
    inputs = {"x": floats(2, 3, 6, 8), "rois": np.array(rois, np.float32)}
    check("MaxRoiPool", inputs, domain="", pooled_shape=[2, 3], spatial_scale=scale, native=True)
