"""Convolutions, pools and resizing with open image sizes: one compilation, then many sizes against ONNX Runtime."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from onnx import helper
from support.onnx_models import value
from support.open_models import Writer

import tilewright as tw
from tilewright.ops.pool import output_size
from tilewright.ops.windows import clip
from tilewright.support.errors import InputError
from tilewright.support.sizes import Dim, open_sizes

ort = pytest.importorskip("onnxruntime", reason="onnxruntime computes what is expected")

BATCH, HEIGHT, WIDTH = tw.Dim("batch", 1, 3), tw.Dim("height", 7, 61), tw.Dim("width", 9, 70)
EIGHTS = tw.Dim("height", 8, 64, 8), tw.Dim("width", 8, 64, 8)
TIME = tw.Dim("time", 4, 130)


class Images(Writer):
    def op(self, operator, *inputs, **attributes):
        """With "" for an input that is left out."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def conv(self, x, channels, filters, kernel, stride=1, groups=1, rank=2):
        w = self.weights(filters, channels // groups, *[kernel] * rank)
        more = {"strides": [stride] * rank, "pads": [kernel // 2] * 2 * rank, "group": groups}
        return self.op("Conv", x, w, self.weights(filters), **more)

    def pool(self, kind, x, kernel, stride, pads, **more):
        return self.op(kind, x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pads] * 4, **more)

    def norm(self, x, channels):
        ones = (1 + 0.1 * self.rng.random((2, channels))).astype(np.float32)
        scale, variance = map(self.constant, ones)
        return self.op("BatchNormalization", x, scale, self.weights(channels), self.weights(channels), variance)

    def resized(self, x, like="", **more):
        """x twice as large, or as large as another."""
        if not like:
            return self.op("Resize", x, "", self.constant(np.array([1, 1, 2, 2], np.float32)), **more)
        sizes = [self.op("Slice", self.op("Shape", y), self.ints(a), self.ints(a + 2)) for y, a in ((x, 0), (like, 2))]
        return self.op("Resize", x, "", "", self.op("Concat", *sizes, axis=0), **more)


def residual(w):
    """Stride 2, a pool with padding, batch norm, a residual block, the mean of the image."""
    x = w.op("Relu", w.norm(w.conv("x", 3, 16, 7, 2), 16))
    x = w.pool("MaxPool", x, 3, 2, 1)
    y = w.conv(w.op("Relu", w.conv(x, 16, 24, 3, 2)), 24, 24, 3)
    return w.op("GlobalAveragePool", w.op("Relu", w.op("Add", y, w.conv(x, 16, 24, 1, 2))))


def depthwise(w):
    x = w.op("Clip", w.conv("x", 3, 24, 1), w.number(0), w.number(6))
    x = w.op("Clip", w.conv(x, 24, 24, 3, 2, groups=24), w.number(0), w.number(6))
    return w.conv(x, 24, 8, 1)


def winograd(w):
    return w.op("Relu", w.conv(w.op("Relu", w.conv("x", 3, 32, 3)), 32, 32, 3))


def pools(w):
    x = w.pool("AveragePool", "x", 3, 2, 1)
    x = w.pool("MaxPool", x, 2, 2, 0, ceil_mode=1)
    return w.pool("AveragePool", x, 3, 1, 1, count_include_pad=1)


def unet(w):
    """Down by a pool, up by a transposed convolution and by repetition, joined with what was there before."""
    first = w.op("Relu", w.conv("x", 3, 8, 3))
    second = w.op("Relu", w.conv(w.pool("MaxPool", first, 2, 2, 0), 8, 16, 3))
    x = w.op("ConvTranspose", w.pool("MaxPool", second, 2, 2, 0), w.weights(16, 16, 2, 2), strides=[2, 2])
    x = w.resized(w.op("Concat", second, x, axis=1), mode="nearest")
    return w.conv(w.op("Concat", first, x, axis=1), 40, 4, 3)


def pyramid(w):
    """A smaller image brought to the size of a larger one, whatever that is: the ratio is another one for each."""
    small = w.conv("x", 3, 8, 3, 2)
    return w.op("Add", w.conv("x", 3, 8, 1), w.resized(small, "x", mode="linear"))


def cubic(w):
    return w.resized("x", mode="cubic", coordinate_transformation_mode="align_corners")


def stem(w):
    """Two convolutions over time, the second with stride 2, and rows of a table as many as results."""
    x = w.op("Tanh", w.conv("x", 12, 16, 3, rank=1))
    x = w.op("Transpose", w.op("Tanh", w.conv(x, 16, 16, 3, 2, rank=1)), perm=[0, 2, 1])
    length = w.op("Gather", w.op("Shape", x), w.ints(1))
    return w.op("Add", x, w.op("Slice", w.weights(80, 16), w.ints(0), length, w.ints(0)))


IMAGE, DIVIDED, SIGNAL = (BATCH, 3, HEIGHT, WIDTH), (BATCH, 3, *EIGHTS), (BATCH, 12, TIME)
MODELS = {
    "residual": (residual, IMAGE), "depthwise": (depthwise, IMAGE), "winograd": (winograd, IMAGE),
    "pools": (pools, IMAGE), "unet": (unet, DIVIDED), "pyramid": (pyramid, IMAGE), "cubic": (cubic, IMAGE),
    "stem": (stem, SIGNAL),
}  # fmt: skip


@cache
def compiled(name):
    return tw.compile(made(name), inputs={"x": MODELS[name][1]}, threads=1)


def made(name):
    make, shape = MODELS[name]
    w = Images()
    names = [d.name if isinstance(d, tw.Dim) else d for d in shape]
    y = make(w)
    return w.model([value("x", names)], {y: [None] * len(shape)})


def shapes(shape):
    """The smallest and the largest sizes, and some between."""
    rng = np.random.default_rng(3)
    ends = [[d if isinstance(d, int) else getattr(d, end) for d in shape] for end in ("low", "high")]

    def some(d):
        return (
            d if isinstance(d, int) else int(rng.integers(-(-d.low // d.divisor), d.high // d.divisor + 1)) * d.divisor
        )

    between = [[some(d) for d in shape] for _ in range(18)]
    return [*ends, *between]


@pytest.mark.parametrize("name", MODELS)
def test_every_size(name):
    run = compiled(name)
    session = ort.InferenceSession(made(name).SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    for shape in shapes(MODELS[name][1]):
        x = rng.standard_normal(shape).astype(np.float32)
        (want,), (got,) = session.run(None, {"x": x}), run(x)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * abs(want).max(), err_msg=str(shape))


def test_a_size_outside_of_the_range_or_off_the_divisor_is_an_error():
    run = compiled("unet")
    with pytest.raises(InputError, match="height is 72 in input 'x', it has to be 8 to 64"):
        run(np.ones((1, 3, 72, 8), np.float32))
    with pytest.raises(InputError, match="width is 12 in input 'x'"):
        run(np.ones((1, 3, 8, 12), np.float32))


def test_windows_of_an_open_image_keep_every_tap_that_may_be_inside():
    with open_sizes([Dim("n", 8, 64)]) as known:
        (n,) = known.symbols
        found = clip(n, (n + 1) // 2, 3, 2, 1, 1)
        assert (found.taps, found.low, found.high, found.start, found.stop) == (range(3), 1, 1, 0, n)
        far = clip(n, n, 3, 1, 100, 100)  # the outer taps of a dilated window are outside of every size
        assert far.taps == range(1, 2)


@pytest.mark.parametrize("ceil", [False, True])
def test_numbers_of_windows_are_those_of_known_sizes(ceil):
    shapes = [(2, 2, 0, 0, 1), (3, 2, 1, 1, 1), (3, 2, 0, 1, 1), (2, 3, 1, 4, 2)]
    with open_sizes([Dim("n", 5, 40)]) as known:
        (n,) = known.symbols
        for kernel, stride, low, high, dilation in shapes:
            size = output_size(n, kernel, stride, low, high, dilation, ceil)
            for at in range(5, 41):
                assert size.at({"n": at}) == output_size(at, kernel, stride, low, high, dilation, ceil)
