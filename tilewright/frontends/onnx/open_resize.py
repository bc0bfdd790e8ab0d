"""Resize along a dimension of open size: the program computes the tables that are constants for known sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...support.sizes import Undecided, is_open, less


def open_resize(r: Any, x: Any, axis: int, size: int, scale: float | None) -> Any:
    """x with `size` elements along `axis`, by the attributes of the `Resize` r; `scale` is None where it is another one
    for every size. Undecided for what only known sizes decide."""
    if r.coordinates == "tf_crop_and_resize":
        raise Undecided(f"{r.n.label}: tf_crop_and_resize takes sizes that are known when the model is compiled")
    if r.antialias and scale is None:
        raise Undecided(f"{r.n.label}: how many elements a result is made of is not known when the model is compiled")
    position = _positions(r, x.shape[axis], size, scale)
    if r.mode == "nearest":
        index = _inside(r.n, _rounded(r.n, position, r.rounding_of(scale)), x.shape[axis])
        return r.n("gather", x, index, axis=axis)
    return _weighted(r, x, axis, position, scale)


def _number(n: Any, value: float) -> Any:
    """A number, or a size, as an f64 tensor without dimensions."""
    if is_open(value):
        return n.cast(n.constant(np.int64(value)), "f64")
    return n.constant(np.float64(value))


def _positions(r: Any, before: int, after: int, scale: float | None) -> Any:
    """The place in the source of every element of the result, f64[after]; see `Resize._positions`."""
    n, mode = r.n, r.coordinates
    at, source, result = n("arange", count=after, dtype="f64"), _number(n, before), _number(n, after)
    by = n("div", result, source) if scale is None else _number(n, scale)
    length = n("mul", source, by)
    if mode == "asymmetric":
        return n("div", at, by)
    if mode == "align_corners":  # of a single result, `at` is 0
        return n("div", n("mul", at, n("sub", source, 1.0)), n("max", n("sub", length, 1.0), _number(n, 1e-9)))
    middle = n("div", n("add", at, 0.5), by)
    if mode == "tf_half_pixel_for_nn":
        return middle
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and less(1, after)):
        return n("sub", middle, 0.5)
    if mode == "half_pixel_symmetric":
        less_of = n("sub", _number(n, 1.0), n("div", result, length))
        return n("sub", n("add", middle, n("mul", n("div", source, 2.0), less_of)), 0.5)
    raise Undecided(f"{r.n.label}: whether {after} is 1 decides where its results lie (mode {mode!r})")


def _rounded(n: Any, position: Any, rounding: str) -> Any:
    if rounding == "round_prefer_floor":
        return n("ceil", n("sub", position, 0.5))
    if rounding == "round_prefer_ceil":
        return n("floor", n("add", position, 0.5))
    if rounding not in ("floor", "ceil"):
        raise n.error(f"nearest_mode {rounding!r} is not known")
    return n(rounding, position)


def _inside(n: Any, index: Any, size: int) -> Any:
    """Places (f64) as indices of a dimension, those outside at its ends."""
    last = n("sub", _number(n, size), 1.0)
    return n.cast(n("min", n("max", index, _number(n, 0.0)), last), "i64")


def _weighted(r: Any, x: Any, axis: int, position: Any, scale: float | None) -> Any:
    """Linear or cubic: a few neighbours of every position with their weights; see `Resize._weighted`."""
    n, size = r.n, x.shape[axis]
    shrink = min(scale, 1.0) if r.antialias and scale is not None else 1.0
    reach = int(np.ceil((1 if r.mode == "linear" else 2) / shrink))
    place = n.unsqueeze(position, 1)
    index = n("add", n("floor", place), n.constant(np.arange(1.0 - reach, 1.0 + reach)[None]))
    distance = n("mul", n("abs", n("sub", index, place)), shrink)
    weights = n("max", n("sub", _number(n, 1.0), distance), _number(n, 0.0))
    if r.mode == "cubic":
        weights = _cubic(n, distance, r.cubic)
    if r.antialias:
        weights = n("div", weights, n("reduce_sum", weights, axes=(1,), keepdims=True))
    if r.exclude:
        below = n("less", index, _number(n, 0.0))
        beyond = n("greater_equal", index, _number(n, size))
        weights = n("where", n("or", below, beyond), _number(n, 0.0), weights)
        weights = n("div", weights, n("reduce_sum", weights, axes=(1,), keepdims=True))
    return n("resample", x, _inside(n, index, size), n.cast(weights, x.dtype), axis=axis)


def _cubic(n: Any, distance: Any, a: float) -> Any:
    """Weights of the cubic convolution kernel."""

    def polynomial(*coefficients: float) -> Any:
        value = _number(n, coefficients[0])
        for c in coefficients[1:]:
            value = n("add", n("mul", value, distance), c)
        return value

    near, far = polynomial(a + 2, -(a + 3), 0.0, 1.0), polynomial(a, -5 * a, 8 * a, -4 * a)
    zero = _number(n, 0.0)
    outer = n("where", n("less", distance, _number(n, 2.0)), far, zero)
    return n("where", n("less_equal", distance, _number(n, 1.0)), near, outer)


__all__ = ["open_resize"]
