"""Steps of random graphs (`open_graphs.py`) over images and signals [batch, channels, *space] with open sizes."""

from __future__ import annotations

import numpy as np

#: products of a contraction at the largest sizes
PRODUCTS = 30_000_000
WIDTHS = (1, 3, 4, 7, 8, 12, 16, 24, 32, 33, 48, 64)
#: name, smallest size, largest size, divisor
IMAGES = (
    [("batch", 1, 4, 1), ("batch", 1, 3, 1)],
    [("height", 6, 33, 1), ("height", 8, 48, 8), ("height", 7, 20, 1)],
    [("width", 6, 40, 1), ("width", 8, 48, 8), ("width", 16, 50, 2)],
)


def _image(g) -> bool:
    return len(g.shape) in (3, 4) and isinstance(g.shape[1], int)


def windows(n, kernel: int, stride: int, pads: int, ceil: bool = False):
    """How many windows a dimension has; with `ceil` the last may hang over (no pads then)."""
    more = stride - 1 if ceil else 0
    if isinstance(n, int):
        return (n + pads - kernel + more) // stride + 1
    return f"(({n}+{pads - kernel + more})//{stride}+1)" if stride > 1 else f"({n}+{pads - kernel + 1})"


def _sized(space, kernel: int, stride: int, pads: int):
    return [n if stride == 1 and pads == kernel - 1 else windows(n, kernel, stride, pads) for n in space]


def convolution(g) -> bool:
    """Any stride, dense or depthwise."""
    if not _image(g):
        return False
    space, channels = g.shape[2:], g.shape[1]
    k, s, deep = g.rng.choice([1, 3, 3, 5]), g.rng.choice([1, 1, 2, 3]), g.rng.random() < 0.3
    if any(g.low(n) < k for n in space):
        return False
    out = channels if deep else g.rng.choice(WIDTHS)
    result = _sized(space, k, s, 2 * (k // 2))
    if g.most((g.shape[0], out, *result)) * k ** len(space) * (1 if deep else channels) > PRODUCTS:
        return False
    each = 1 if deep else channels
    w = g.weight(out, each, *[k] * len(space), fan=each * k ** len(space))
    more = {"kernel_shape": [k] * len(space), "strides": [s] * len(space), "pads": [k // 2] * 2 * len(space)}
    bias = [g.weight(out)] if g.rng.random() < 0.6 else []
    g.op("Conv", (g.shape[0], out, *result), w, *bias, group=out if deep else 1, **more)
    if g.rng.random() < 0.3:
        g.op("ReduceMean", g.shape[:2], g.numbers(*range(2, len(g.shape))), keepdims=0)
    return True


def conv_transpose(g) -> bool:
    """By two, or by one with a window of three."""
    if not _image(g):
        return False
    space, channels, out = g.shape[2:], g.shape[1], g.rng.choice(WIDTHS[:8])
    k, s, p = g.rng.choice([(2, 2, 0), (4, 2, 1), (3, 1, 1)])
    result = [n if s == 1 else 2 * n if isinstance(n, int) else f"({n}*2)" for n in space]
    if g.most((g.shape[0], out, *result)) * k ** len(space) * channels > PRODUCTS:
        return False
    w = g.weight(channels, out, *[k] * len(space), fan=channels * k)
    g.op(
        "ConvTranspose",
        (g.shape[0], out, *result),
        w,
        strides=[s] * len(space),
        pads=[p] * 2 * len(space),
    )
    return True


def pool(g) -> bool:
    """Maxima or means of windows, the last of which may hang over; or of the whole image."""
    if not _image(g):
        return False
    space, kind = g.shape[2:], g.rng.choice(["MaxPool", "MaxPool", "AveragePool", "Global"])
    if kind == "Global":
        g.op(g.rng.choice(["GlobalAveragePool", "GlobalMaxPool"]), (*g.shape[:2], *[1] * len(space)))
        return True
    k, s, p = g.rng.choice([(2, 2, 0), (3, 2, 1), (3, 1, 1), (3, 2, 0), (5, 1, 2)])
    if any(g.low(n) < k for n in space):
        return False
    more = {"kernel_shape": [k] * len(space), "strides": [s] * len(space), "pads": [p] * 2 * len(space)}
    result = _sized(space, k, s, 2 * p)
    if p == 0 and k == 2 and g.rng.random() < 0.4:
        more["ceil_mode"], result = 1, [windows(n, k, s, 0, ceil=True) for n in space]
    elif kind == "AveragePool":
        more["count_include_pad"] = g.rng.randint(0, 1)
    g.op(kind, (*g.shape[:2], *result), **more)
    return True


def resize(g) -> bool:
    """Twice as large, by scales; or as large as an earlier tensor, by its shape."""
    if not _image(g) or len(g.shape) != 4:
        return False
    mode = g.rng.choice(["nearest", "nearest", "linear", "cubic"])
    more = {"mode": mode}
    if mode == "nearest":
        rounding = g.rng.choice([("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")])
        more["coordinate_transformation_mode"], more["nearest_mode"] = rounding
    else:
        more["coordinate_transformation_mode"] = g.rng.choice(["half_pixel", "asymmetric", "align_corners"])
    before = [s for s in g.seen if len(s[1]) == 4 and s[1][:1] == g.shape[:1] and s[1][2:] != g.shape[2:]]
    if mode != "nearest" and before and g.rng.random() < 0.6:  # nearest: a rounding of the ratio would decide
        name, shape = g.rng.choice(before)
        space = g.node("Slice", g.node("Shape", name), g.numbers(2), g.numbers(4))
        own = g.node("Slice", g.node("Shape", g.name), g.numbers(0), g.numbers(2))
        g.op("Resize", (*g.shape[:2], *shape[2:]), "", "", g.node("Concat", own, space, axis=0), **more)
        return True
    shape = (*g.shape[:2], *[2 * n if isinstance(n, int) else f"({n}*2)" for n in g.shape[2:]])
    g.op("Resize", shape, "", g.constant(np.array([1, 1, 2, 2], np.float32)), **more)
    return True
