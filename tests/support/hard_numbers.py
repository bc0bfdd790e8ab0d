"""Numbers that kernels get wrong: what lies at the ends, in the middle and next to every edge of each element type."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
#: element types by their names in ONNX's and our own IR
DTYPES = {
    **{f"f{8 * np.dtype(t).itemsize}": np.dtype(t) for t in (np.float16, np.float32, np.float64)},
    "bf16": BF16,
    **{f"i{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{f"u{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    "bool": np.dtype(bool),
}
FLOATS = ("f16", "bf16", "f32", "f64")


def is_float(dtype: np.dtype) -> bool:
    """Whether it is one of floats; bfloat16 is no NumPy kind of its own.

    >>> is_float(BF16), is_float(np.dtype("int8"))
    (True, False)
    """
    return dtype.kind == "f" or dtype == BF16


@functools.lru_cache
def hard(dtype: np.dtype) -> np.ndarray:
    """The hard numbers of a type, each once.

    >>> len(hard(np.dtype("float32"))) > 100, hard(np.dtype(bool)).tolist()
    (True, [False, True])
    """
    if dtype.kind == "b":
        return np.array([False, True])
    return _floats(dtype) if is_float(dtype) else _integers(dtype)


def _integers(dtype: np.dtype) -> np.ndarray:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    near = [0, low, high, *(s * 2**k for k in (7, 8, 15, 16, 24, 31, 32, 53, 62, 63) for s in (1, -1))]
    found = {v + d for v in near for d in (-1, 0, 1)} | {
        2,
        3,
        5,
        7,
        -2,
        -3,
        -5,
        10,
        100,
        -100,
        9999,
        10001,
        46341,
        65537,
    }
    return np.array(sorted(v for v in found if low <= v <= high), dtype)


def _floats(dtype: np.dtype) -> np.ndarray:
    info = ml_dtypes.finfo(dtype)
    eps, tiny, small, top = (float(v) for v in (info.eps, info.tiny, info.smallest_subnormal, info.max))
    digits = round(-np.log2(eps)) + 1
    wide = [0.0, np.inf, tiny, tiny * (1 - eps), tiny * (1 + eps), small, 2 * small, 3 * small, tiny / 2, top]
    wide += [top * (1 - eps), top / 2, np.sqrt(top), np.sqrt(top) * 1.01, np.sqrt(tiny), 1 / 3, 0.1, np.pi, np.pi / 2]
    wide += [1.0, 1 + eps, 1 - eps / 2, 0.5, 0.5 - eps / 4, 0.5 + eps / 2, 1.5, 2.5, 3.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0]
    wide += [2.0**k + d for k in (digits - 1, digits, digits + 1) for d in (-1.5, -1, -0.5, 0, 0.5, 1, 2)]
    wide += [2.0**k + d for k in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, -0.5, 0, 1)]
    wide += [9999.0, 1e4, 10001.0, 1e4 + 0.5, 127.5, 255.5, 300.0, 12582912.0, 1e-4, 1e-5, 1e-8, 1e8, 1e30, 1e-30]
    wide += [np.log(top), np.log(top) * (1 + 4 * eps), np.log(tiny), np.log(small), 88.0, 20.0, 30.0, 1e5, 1e9]
    for narrower in (8, 11, 24):  # beside ties of narrower types: rounded twice they go astray
        wide += [m * (1 + 2.0**-narrower + d) for m in (1, 2.0**-14, 2.0**-130) for d in (0, 4 * eps, -4 * eps)]
    with np.errstate(all="ignore"):
        found = np.array([*wide, *(-v for v in wide), np.nan], np.float64).astype(dtype)
    bits = found.view(f"u{dtype.itemsize}")  # signed zeros are two numbers
    return np.unique(bits).view(dtype)


def draw(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...], tame: float = 0.25) -> np.ndarray:
    """An array of hard numbers; a part `tame` of it is ordinary (near 0 to 4, or small integers), so that sums and
    functions meet such numbers beside."""
    numbers = hard(dtype)
    picked = numbers[rng.integers(0, len(numbers), shape)]
    if dtype.kind == "b":
        return picked
    if is_float(dtype):
        ordinary = (rng.standard_normal(shape) * rng.choice([0.1, 1, 4], shape)).astype(dtype)
    else:
        ordinary = rng.integers(-5 if dtype.kind == "i" else 0, 6, shape).astype(dtype)
    return np.where(rng.random(shape) < tame, ordinary, picked).astype(dtype)
