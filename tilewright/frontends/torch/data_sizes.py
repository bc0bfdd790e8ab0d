"""Data-dependent shapes and scalars (nonzero, item): computed on the host; the next subgraph gets them."""

from __future__ import annotations

import numpy as np

from ...support.errors import InputError
from .registry import on_host


@on_host("nonzero")
def nonzero(x: np.ndarray) -> np.ndarray:
    return np.stack([a.astype(np.int64) for a in np.nonzero(np.atleast_1d(x))], -1)[:, : x.ndim]


@on_host("masked_select")
def masked_select(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    x, mask = np.broadcast_arrays(x, mask)
    return x[mask]


@on_host("index.Tensor(mask)", "_unsafe_index.Tensor(mask)")
def masked_index(x: np.ndarray, indices: list[np.ndarray | None]) -> np.ndarray:
    """PyTorch's order of dimensions: with None between indices theirs come first, as in NumPy."""
    return x[tuple(slice(None) if i is None else i.astype(bool) if i.dtype == np.uint8 else i for i in indices)]


@on_host("repeat_interleave.Tensor")
def repeated_indices(repeats: np.ndarray, *, output_size: int | None = None) -> np.ndarray:
    """Which element each of the repeated ones is; InputError for a negative number of times."""
    if (repeats < 0).any():
        raise InputError("repeat_interleave: the numbers of repeats must not be negative", stage="run")
    return np.repeat(np.arange(repeats.size, dtype=repeats.dtype), repeats)


@on_host("_local_scalar_dense")
def item(x: np.ndarray) -> np.ndarray:
    return x.reshape(())


@on_host("_unique2")
def unique(
    x: np.ndarray, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> list[np.ndarray]:
    """Sorted in any case, as PyTorch does it on CPUs."""
    values, inverse, counts = np.unique(x.reshape(-1), return_inverse=True, return_counts=True)
    return _unique(values, inverse.reshape(x.shape), counts, return_inverse, return_counts)


@on_host("unique_dim")
def unique_dim(
    x: np.ndarray, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> list[np.ndarray]:
    values, inverse, counts = np.unique(x, return_inverse=True, return_counts=True, axis=dim)
    return _unique(values, inverse.reshape(-1), counts, True, True)


@on_host("unique_consecutive")
def unique_consecutive(
    x: np.ndarray, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> list[np.ndarray]:
    """Of equal ones that follow each other the first."""
    rows = x.reshape(-1) if dim is None else np.moveaxis(x, dim, 0)
    flat = rows.reshape(len(rows), -1)
    first = np.ones(len(rows), bool)
    first[1:] = (flat[1:] != flat[:-1]).any(-1)
    inverse = np.cumsum(first) - 1
    counts = np.diff(np.append(np.flatnonzero(first), len(rows)))
    values = rows[first] if dim is None else np.moveaxis(rows[first], 0, dim)
    inverse = inverse.reshape(x.shape) if dim is None else inverse
    return _unique(values, inverse, counts, return_inverse or dim is not None, return_counts or dim is not None)


def _unique(
    values: np.ndarray, inverse: np.ndarray, counts: np.ndarray, return_inverse: bool, return_counts: bool
) -> list[np.ndarray]:
    empty = np.zeros(0, np.int64)
    return [values, inverse if return_inverse else empty, counts if return_counts else empty]


@on_host("bincount")
def bincount(x: np.ndarray, weights: np.ndarray | None = None, minlength: int = 0) -> np.ndarray:
    return np.bincount(x, weights, minlength)
