"""Random inputs and the distance of two results: what `--check` and `verify` share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def random_inputs(signature: Iterable[tuple[str, tuple[int, ...], np.dtype]], seed: int) -> dict[str, np.ndarray]:
    """Seeded arrays for (name, shape, dtype): normal numbers for floats, 0 or 1 for integers and booleans.

    Integers stay this small because most of them are indices (token numbers, positions), masks or counts.
    """
    generator, arrays = np.random.default_rng(seed), {}
    for name, shape, dtype in signature:
        if np.dtype(dtype).kind in "iub":
            arrays[name] = generator.integers(0, 2, shape).astype(dtype)
        elif np.dtype(dtype).kind == "c":
            arrays[name] = (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
        else:
            arrays[name] = generator.standard_normal(shape).astype(dtype)
    return arrays


def largest_error(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference relative to the largest expected value; places where both are NaN or equal count as 0.

    >>> largest_error(np.array([1.0, 2.5]), np.array([1.0, 2.0]))
    0.25
    """
    a, b = np.asarray(got).astype(np.float64), np.asarray(expected).astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    with np.errstate(invalid="ignore"):  # infinity minus itself, where both are the same
        difference = np.abs(np.where(same, 0.0, a - b))
    if not np.isfinite(difference).all():
        return float("inf")
    largest = np.abs(b[np.isfinite(b)]).max(initial=0.0)
    return float(difference.max() / (largest or 1.0))
