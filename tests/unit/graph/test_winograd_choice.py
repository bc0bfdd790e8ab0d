"""Winograd's method: its rounding, as docs/performance.md and the pass `winograd` state it, and how work is cut."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from support.machines import MACHINES

from tilewright.ops import winograd
from tilewright.ops.conv import convolve_numpy
from tilewright.schedule.rules.custom.winograd_nest import Shape, _blocks


def error(tile: int, channels: int) -> float:
    """The largest error of f32 relative to the largest result of 12 x 12 positions of 64 filters."""
    rng = np.random.default_rng(channels)
    x = np.maximum(rng.standard_normal((1, 14, 14, channels)), 0).astype(np.float32)
    w = (rng.standard_normal((64, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
    u = winograd.transform_weights(w, tile)
    got = winograd.WinogradConv.reference(x, u, tile=tile, size=(12, 12))
    exact = convolve_numpy(np.moveaxis(x, -1, 1).astype(float), w.astype(float), (1, 1), (1, 1), 1)
    return np.abs(got - np.moveaxis(exact, 1, -1)).max() / np.abs(exact).max()


@pytest.mark.parametrize("channels", [64, 256])
@pytest.mark.parametrize("tile, bound", [(2, 1e-6), (4, 3e-6)])
def test_error_is_what_the_documentation_says(tile, bound, channels):
    assert error(tile, channels) < bound


def test_points_are_better_than_the_textbooks(monkeypatch):
    ours = error(4, 64)
    monkeypatch.setitem(winograd.POINTS, 4, tuple(map(Fraction, (0, 1, -1, 2, -2))))
    winograd.matrices.cache_clear()
    try:
        assert error(4, 64) > 2 * ours
    finally:
        winograd.matrices.cache_clear()


@pytest.mark.parametrize("channels, tile", [(64, 4), (512, 4), (1024, 2), (2048, 4), (4096, 4)])
def test_blocks_are_large_enough_for_their_weights(channels, tile):
    """Weights come anew for each block of tiles: of many channels few tiles fit the cache, and one is too few."""
    shape = Shape(1, 28, 28, channels, 512, tile, "x", "u", "y", "f32")
    for cores in (1, 2, 8):
        machine = replace(MACHINES["zen4"], cores=cores)
        blocks = _blocks(shape, machine, lambda name, candidates, default: default)
        weights_read = -(-shape.tiles // blocks.tiles) * blocks.shares * (512 // blocks.shares)
        assert weights_read <= max(512 * shape.tiles // machine.winograd_costs.weight, 512 * cores)
