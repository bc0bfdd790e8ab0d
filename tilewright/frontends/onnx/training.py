"""`ai.onnx.preview.training`: one step of an optimizer, for several tensors at once."""

from __future__ import annotations

from .registry import onnx_op

TRAINING = "ai.onnx.preview.training"


def groups(n, tensors, count):
    """The tensors of `count` lists that follow each other, one tuple for each optimized tensor."""
    if not tensors or len(tensors) % count:
        raise n.error(f"{len(tensors)} tensors do not make {count} lists of one length")
    size = len(tensors) // count
    return [tensors[i::size] for i in range(size)]


def in_order(updated):
    """The results of all tensors, list after list."""
    return [x for part in zip(*updated, strict=True) for x in part]


def regularized(n, x, gradient):
    return n("add", n("mul", x, float(n.attr("norm_coefficient", 0.0))), gradient)


def moved(n, x, rate, direction):
    return n("sub", x, n("mul", rate, direction))


@onnx_op("Adagrad", since=1, domain=TRAINING)
def adagrad(n, rate, step, *tensors):
    decay, epsilon = float(n.attr("decay_factor", 0.0)), float(n.attr("epsilon", 1e-6))
    updated = []
    for x, gradient, squares in groups(n, tensors, 3):
        r = n.cast(rate, x.dtype)
        r = n("div", r, n("add", n("mul", n.cast(step, x.dtype), decay), 1))
        g = regularized(n, x, gradient)
        squares = n("add", squares, n("mul", g, g))
        updated.append((moved(n, x, r, n("div", g, n("add", n("sqrt", squares), epsilon))), squares))
    return in_order(updated)


@onnx_op("Momentum", since=1, domain=TRAINING)
def momentum(n, rate, step, *tensors):
    alpha, beta, mode = float(n.required("alpha")), float(n.required("beta")), n.attr("mode", "standard")
    if mode not in ("standard", "nesterov"):
        raise n.error(f"mode {mode!r} is neither standard nor nesterov")
    updated = []
    for x, gradient, velocity in groups(n, tensors, 3):
        r, t = n.cast(rate, x.dtype), n.cast(step, x.dtype)
        g = regularized(n, x, gradient)
        # the first step takes the whole gradient
        weight = n("where", n("greater", t, 0), n.like(t, beta), n.like(t, 1.0))
        velocity = n("add", n("mul", velocity, alpha), n("mul", g, weight))
        direction = velocity if mode == "standard" else n("add", g, n("mul", velocity, alpha))
        updated.append((moved(n, x, r, direction), velocity))
    return in_order(updated)


@onnx_op("Adam", since=1, domain=TRAINING)
def adam(n, rate, step, *tensors):
    alpha, beta = float(n.attr("alpha", 0.9)), float(n.attr("beta", 0.999))
    epsilon, after = float(n.attr("epsilon", 1e-6)), float(n.attr("norm_coefficient_post", 0.0))
    updated = []
    for x, gradient, mean, squares in groups(n, tensors, 4):
        r, t = n.cast(rate, x.dtype), n.cast(step, x.dtype)
        g = regularized(n, x, gradient)
        mean = n("add", n("mul", mean, alpha), n("mul", g, 1 - alpha))
        squares = n("add", n("mul", squares, beta), n("mul", n("mul", g, g), 1 - beta))
        # the means of the first steps are too small: they start at 0
        scale = n("div", n("sqrt", left(n, beta, t)), left(n, alpha, t))
        r = n("where", n("greater", t, 0), n("mul", r, scale), r)
        new = moved(n, x, r, n("div", mean, n("add", n("sqrt", squares), epsilon)))
        updated.append((n("mul", new, 1 - after) if after else new, mean, squares))
    return in_order(updated)


def left(n, factor, t):
    """1 - factor ** t"""
    return n("sub", n.like(t, 1.0), n("pow", n.like(t, factor), t))
