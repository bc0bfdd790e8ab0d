"""Kernels of operators with loop nests of their own, as rules get them, and what they compute, in NumPy."""

from __future__ import annotations

import numpy as np

from tilewright.tensor.expr import Buffer
from tilewright.tensor.kernel import Kernel, Opaque

NUMPY = {"f32": "f4", "f64": "f8", "f16": "f2", "i32": "i4", "i64": "i8", "i8": "i1"}


def kernel(mnemonic: str, attributes: dict, operands: dict, results: dict) -> Kernel:
    """`operands` and `results`: (shape, dtype) by name."""
    params = tuple(Buffer(n, tuple(s), d, "param") for n, (s, d) in (operands | results).items())
    dtypes = tuple(d for _, d in operands.values())
    return Kernel(
        "k",
        params,
        tuple(results),
        (),
        (),
        opaque=Opaque(mnemonic, attributes, tuple(operands), tuple(results), dtypes),
    )


def scan(shape, dtype: str, axis: int, reverse: bool, exclusive: bool, product: bool = False) -> Kernel:
    attributes = {"axis": axis, "reverse": reverse, "exclusive": exclusive}
    name = "cumprod" if product else "cumsum"
    return kernel(name, attributes, {"x": (shape, dtype)}, {"y": (shape, dtype)})


def scanned(x: np.ndarray, axis: int, reverse: bool, exclusive: bool, product: bool = False) -> np.ndarray:
    wide = np.flip(x, axis).astype("f8") if reverse else x.astype("f8")
    found = (np.cumprod if product else np.cumsum)(wide, axis)
    if exclusive:
        found = np.roll(found, 1, axis)
        found[tuple(0 if d == axis else slice(None) for d in range(x.ndim))] = float(product)
    return (np.flip(found, axis) if reverse else found).astype(x.dtype)


def top_k(shape, k: int, dtype: str, axis: int, largest: bool) -> Kernel:
    out = [k if d == axis else n for d, n in enumerate(shape)]
    attributes = {"axis": axis, "k": k, "largest": largest, "sorted": True}
    return kernel("top_k", attributes, {"x": (shape, dtype)}, {"y": (out, dtype), "p": (out, "i64")})


def first_of(x: np.ndarray, k: int, axis: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    """Values and positions; NaN counts as the largest number, of equal ones the first comes first."""
    rows = np.moveaxis(x, axis, -1)
    nan = np.isnan(rows) if x.dtype.kind == "f" else np.zeros(rows.shape, bool)
    key = np.where(nan, 0, rows).astype("i8" if x.dtype.kind == "i" else "f8")
    key, nan = (-key, ~nan) if largest else (key, nan)
    places = np.argsort(key, -1, kind="stable")
    places = np.take_along_axis(places, np.argsort(np.take_along_axis(nan, places, -1), -1, kind="stable"), -1)[..., :k]
    return np.moveaxis(np.take_along_axis(rows, places, -1), -1, axis), np.moveaxis(places, -1, axis)


def scatter(mnemonic: str, x, indices, updates, dtype: str, **attributes) -> Kernel:
    operands = {"x": (x, dtype), "i": (indices, "i64"), "u": (updates, dtype)}
    return kernel(mnemonic, attributes, operands, {"y": (x, dtype)})


COMBINED = {
    "none": lambda a, b: b,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": np.maximum,
    "min": np.minimum,
}


def scattered(mnemonic: str, x, indices, updates, reduction: str, axis: int = 0) -> np.ndarray:
    """Updates one after the other."""
    y, combine = x.copy(), COMBINED[reduction]
    for place in np.ndindex(indices.shape if mnemonic == "scatter_elements" else indices.shape[:-1]):
        if mnemonic == "scatter_elements":
            at = tuple(int(indices[place]) if d == axis else i for d, i in enumerate(place))
        else:
            at = tuple(int(v) for v in indices[place])
        y[at] = combine(y[at], updates[place])
    return y


def non_zero(shape, dtype: str) -> Kernel:
    results = {"y": ((len(shape), int(np.prod(shape))), "i64"), "n": ((), "i64")}
    return kernel("non_zero", {}, {"x": (shape, dtype)}, results)
