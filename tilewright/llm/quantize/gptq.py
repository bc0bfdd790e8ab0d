"""GPTQ (Frantar et al., 2022): columns are rounded one after the other, and what each loses is made up for by those
that follow, as the second moments of the activations say."""

from __future__ import annotations

import numpy as np

from ...ops.block_weights import BlockWeights
from .rounding import Format

#: part of the mean of the diagonal that is added to it
DAMPING = 0.01


def gptq(w: np.ndarray, moments: np.ndarray, form: Format) -> BlockWeights:
    """Weights [N, K] in a format, for inputs with second moments [K, K]."""
    w = np.array(w, np.float32)
    inverse = _inverse_root(w, moments)
    codes = np.empty((len(w), w.shape[1] // form.block, form.block), np.uint8)
    parameters = []
    for b in range(codes.shape[1]):
        first, last = b * form.block, (b + 1) * form.block
        scale, minimum = form.parameters(w[:, None, first:last])
        losses = np.empty((len(w), form.block), np.float32)
        for j in range(form.block):
            column = w[:, first + j, None, None]
            q = form.codes(column, scale, minimum)
            codes[:, b, j] = q[:, 0, 0]
            row = inverse[first + j]
            losses[:, j] = (column - form.values(q, scale, minimum))[:, 0, 0] / row[first + j]
            w[:, first + j + 1 : last] -= losses[:, j, None] * row[first + j + 1 : last]
        w[:, last:] -= losses @ inverse[first:last, last:]
        parameters.append((scale[:, 0], None if minimum is None else minimum[:, 0]))
    scales, minima = zip(*parameters, strict=True)
    return form.packed(codes, np.stack(scales, 1), None if minima[0] is None else np.stack(minima, 1))


def _inverse_root(w: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """The upper Cholesky factor of the inverse of the moments; columns of w that no input has become 0."""
    h = moments.astype(np.float64)
    diagonal = h.diagonal().copy()
    dead = diagonal <= 0
    w[:, dead] = 0
    diagonal[dead] = 1
    np.fill_diagonal(h, diagonal + DAMPING * diagonal.mean())
    return np.ascontiguousarray(np.linalg.cholesky(np.linalg.inv(h)).T, np.float32)


__all__ = ["gptq"]
