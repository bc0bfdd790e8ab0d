"""Fourier transforms on the host: pocketfft, by SciPy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .registry import on_host


def scaled(x: np.ndarray, sizes: Sequence[int], normalization: int) -> np.ndarray:
    """PyTorch's kinds of normalization: 0 is none, 1 the root of the number of elements, 2 that number."""
    count = math.prod(sizes)
    return x if normalization == 0 else x * (count**-0.5 if normalization == 1 else 1 / count)


@on_host("_fft_c2c")
def complex_to_complex(x: np.ndarray, dim: Sequence[int], normalization: int, forward: bool) -> np.ndarray:
    import scipy.fft

    if not dim:
        return x
    made = scipy.fft.fftn(x, axes=dim) if forward else scipy.fft.ifftn(x, axes=dim, norm="forward")
    return scaled(made, [x.shape[d] for d in dim], normalization)


@on_host("_fft_r2c")
def real_to_complex(x: np.ndarray, dim: Sequence[int], normalization: int, onesided: bool) -> np.ndarray:
    """Of the last one of `dim` half of the frequencies, if that is wanted."""
    import scipy.fft

    made = scipy.fft.rfftn(x, axes=dim) if onesided else scipy.fft.fftn(x, axes=dim)
    return scaled(made, [x.shape[d] for d in dim], normalization)


@on_host("_fft_c2r")
def complex_to_real(x: np.ndarray, dim: Sequence[int], normalization: int, last_dim_size: int) -> np.ndarray:
    """`last_dim_size` real numbers along the last one of `dim`."""
    import scipy.fft

    sizes = [*(x.shape[d] for d in dim[:-1]), last_dim_size]
    return scaled(scipy.fft.irfftn(x, sizes, axes=dim, norm="forward"), sizes, normalization)
