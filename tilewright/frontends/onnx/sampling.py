"""Grid sampling, regions, deformable convolution, windows put back together."""

from __future__ import annotations

import math

import numpy as np

from ...ir.types import NUMPY
from .nn import window
from .registry import onnx_op

MODES = {"bilinear": "linear", "bicubic": "cubic"}


@onnx_op("GridSample", since=16)
def grid_sample(n, x, grid):
    mode = n.attr("mode", "linear" if n.opset >= 20 else "bilinear")
    attributes = {"mode": MODES.get(mode, mode), "padding": n.attr("padding_mode", "zeros")}
    return n("grid_sample", x, grid, align_corners=bool(n.attr("align_corners", 0)), **attributes)


@onnx_op("RoiAlign", since=10)
def roi_align(n, x, rois, batch):
    half = (
        n.attr("coordinate_transformation_mode", "half_pixel" if n.opset >= 16 else "output_half_pixel") == "half_pixel"
    )
    mode = n.attr("mode", "avg")
    if mode not in ("avg", "max"):
        raise n.error(f"mode is avg or max, not {mode!r}")
    attributes = {"height": n.attr("output_height", 1), "width": n.attr("output_width", 1), "half_pixel": half}
    attributes |= {"samples": n.attr("sampling_ratio", 0), "scale": float(n.attr("spatial_scale", 1.0))}
    return n("roi_align", x, n.cast(rois, x.dtype), batch, maximum=mode == "max", **attributes)


@onnx_op("DeformConv", since=19)
def deform_conv(n, x, w, offset, bias=None, mask=None):
    if x.rank != 4 or w.rank != 4:
        raise n.error(f"takes images of two dimensions, got {x.type} and {w.type}")
    kernel = tuple(n.attr("kernel_shape") or w.shape[2:])
    strides, pads, dilations = window(n, x.shape[2:], kernel)
    groups, out = n.attr("group", 1), w.shape[0]
    attributes = {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    columns = n("deform_columns", x, offset, mask, offset_groups=n.attr("offset_group", 1), **attributes)
    weights = n.reshape(w, (groups, out // groups, w.shape[1] * kernel[0] * kernel[1]))
    product = n("matmul", weights, columns)
    result = n.reshape(product, (x.shape[0], out, *offset.shape[2:]))
    return result if bias is None else n("add", result, n.reshape(bias, (out, 1, 1)))


@onnx_op("Col2Im", since=18)
def col2im(n, x, image, block):
    image, block = tuple(n.ints(image, "image_shape")), tuple(n.ints(block, "block_shape"))
    strides, pads, dilations = window(n, image, block)
    return n("col2im", x, image=image, block=block, strides=strides, pads=pads, dilations=dilations)


@onnx_op("AffineGrid", since=20)
def affine_grid(n, theta, size):
    """The places of the elements of an image, moved by a matrix: a product with constant coordinates."""
    sizes = n.ints(size, "size")
    spatial, align = sizes[2:], bool(n.attr("align_corners", 0))
    axes = []
    for s in spatial:
        step = np.arange(s)
        axes.append(-1 + 2 * step / (s - 1) if align and s > 1 else (step * 2 + 1) / s - 1 if not align else step * 0.0)
    places = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(spatial)], -1)  # the last dimension first
    flat = n.constant(places.reshape(-1, len(spatial) + 1).astype(NUMPY[theta.dtype]))
    grid = n("matmul", flat, n.transpose(theta, (0, 2, 1)))
    return n.reshape(grid, (theta.shape[0], *spatial, len(spatial)))


@onnx_op("MaxUnpool", since=9)
def max_unpool(n, x, indices, output_shape=None):
    """The elements at their positions, which count in the tensor before pooling, and 0 between them."""
    r = x.rank - 2
    kernel = n.required("kernel_shape")
    strides, pads = n.attr("strides") or [1] * r, n.attr("pads") or [0] * 2 * r
    sizes = [(x.shape[2 + i] - 1) * strides[i] - pads[i] - pads[r + i] + kernel[i] for i in range(r)]
    own = (*x.shape[:2], *sizes)
    flat = n.expand(n.zero(x), (math.prod(own),))
    count = (math.prod(x.shape),)
    out = n.reshape(n("scatter_elements", flat, n.reshape(indices, count), n.reshape(x, count), axis=0), own)
    shape = own if output_shape is None else tuple(n.ints(output_shape, "output_shape"))
    if shape == own:
        return [out]
    if len(shape) != len(own) or any(s < o for s, o in zip(shape, own, strict=True)):
        raise n.error(f"output_shape {shape} is smaller than {own}")
    return n("pad", out, low=(0,) * len(own), high=tuple(s - o for s, o in zip(shape, own, strict=True)))
