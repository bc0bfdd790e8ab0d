"""Sums of products in blocks (`schedule.planner`): results equal NumPy's with tails, strides and padding and for
every number of threads; what the rule decides, and the nest it makes."""

# ruff: noqa: E501 (nests as text)
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.teams import teams

from tilewright.driver.kernels import BuiltKernel
from tilewright.lang import te
from tilewright.schedule.planner.candidates import best_tile, block_counts, default_runs
from tilewright.schedule.planner.instructions import vectors
from tilewright.schedule.planner.product import sized
from tilewright.targets.base import find
from tilewright.targets.cpu.description import CpuDescription
from tilewright.tune.space import Space

SERVER = CpuDescription(
    "x86_64-unknown-linux-gnu", "x86-64-v4", ("avx512f",), vector_bytes=64, vector_registers=32, cores=2,
    l1_bytes=48 << 10, l2_bytes=1 << 20,
)  # fmt: skip


def small_caches(cores: int = 2):
    """This processor, with caches that make the sums of small kernels long."""
    return replace(find("cpu").describe(), l1_bytes=4 << 10, l2_bytes=16 << 10, cores=cores)


def matmul(m: int, k: int, n: int, constant: bool = True):
    a, b, r = te.placeholder((m, k), "a"), te.placeholder((k, n), "b", constant=constant), te.reduce_axis(k, "r")
    return te.kernel(te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), "c"))


def conv(height: int, width: int, channels: int, filters: int, size: int, stride: int):
    """A convolution of a padded image, with bias, residual and relu."""
    x, w = (
        te.placeholder((height, width, channels), "x"),
        te.placeholder((size, size, channels, filters), "w", constant=True),
    )
    rows, columns = (height - size) // stride + 1, (width - size) // stride + 1
    bias, more = te.placeholder((filters,), "bias", constant=True), te.placeholder((rows, columns, filters), "more")
    ry, rx, rc = te.reduce_axis(size, "ry"), te.reduce_axis(size, "rx"), te.reduce_axis(channels, "rc")
    s = te.compute(
        (rows, columns, filters),
        lambda i, j, f: te.sum(x[i * stride + ry, j * stride + rx, rc] * w[ry, rx, rc, f], ry, rx, rc),
        "s",
    )
    return te.kernel(
        te.compute((rows, columns, filters), lambda i, j, f: te.maximum(s[i, j, f] + bias[f] + more[i, j, f], 0.0), "y")
    )


def arrays_of(kernel) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in kernel.inputs}
    if "x" in arrays:  # the border of zeros that an earlier kernel wrote
        arrays["x"][[0, -1]] = arrays["x"][:, [0, -1]] = 0
    return arrays


def check(kernel, machine, expected, decisions=None) -> dict:
    """Build the kernel for 1, 2 and 3 threads: equal bits, and close to what is expected. Returns the decisions."""
    chosen = Space(kernel, machine).realize({"halves": False, "sum_lanes": False, **(decisions or {})})
    assert chosen is not None and chosen.rule == "contraction"
    arrays = list(arrays_of(kernel).values())
    found = [run(*arrays) for run in teams(BuiltKernel(chosen.nest, find("cpu"), 1), 1, 2, 3)]
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=3e-6 * abs(expected).max())
    return chosen.decisions


@pytest.mark.parametrize(
    "m, k, n", [(64, 768, 64), (13, 768, 37), (50, 1155, 77), (31, 1000, 129), (2, 1536, 16), (7, 2048, 200)]
)
def test_matmul(m, k, n):
    kernel = matmul(m, k, n)
    arrays = arrays_of(kernel)
    expected = arrays["a"].astype(np.float64) @ arrays["b"]
    counts = [c for c in block_counts([k]) if 1 < c < 30]
    for count in (counts[0], counts[-1]):
        assert check(kernel, small_caches(), expected, {"k_blocks": count})["k_blocks"] == count


@pytest.mark.parametrize("cores", [1, 2, 5, 64])
def test_blocks_are_shared_by_cores(cores):
    kernel = matmul(61, 768, 96)
    arrays = arrays_of(kernel)
    assert check(kernel, small_caches(cores), arrays["a"].astype(np.float64) @ arrays["b"])["k_blocks"] > 1


@pytest.mark.parametrize(
    "height, width, channels, filters, size, stride",
    [
        (9, 9, 128, 64, 3, 1),
        (16, 16, 96, 40, 3, 2),
        (9, 12, 128, 33, 3, 1),
        (7, 7, 1024, 48, 1, 1),
        (14, 20, 48, 19, 5, 3),
    ],
)
def test_convolution(height, width, channels, filters, size, stride):
    kernel = conv(height, width, channels, filters, size, stride)
    arrays = {n: a.astype(np.float64) for n, a in arrays_of(kernel).items()}
    windows = np.lib.stride_tricks.sliding_window_view(arrays["x"], (size, size), (0, 1))[::stride, ::stride]
    sums = np.einsum("ijcyx,yxcf->ijf", windows, arrays["w"])
    expected = np.maximum(sums + arrays["bias"] + arrays["more"], 0)
    # 33 columns are cut by default: the blocks are looked at here
    assert check(kernel, small_caches(), expected, {"cut": False})["k_blocks"] > 1


NEST = """\
def kernel(a: f32[20, 1024], b: packed(f32[2, 1024, 32], splits=((), (32,)), order=(1, 0, 2)), c: out(f32[20, 64])):
    for j_c_o in thread(2):
        c_c = local(f32[20, 32])
        for r_o in serial(4):
            for i_c_o in serial(3):
                c_c_p = register(f32[8, 32])
                for r_i_o in serial(128, prefetch=(b[j_c_o % 2 * 32768 + r_o * 8192 + 8192 + (i_c_o * 4096 + r_i_o * 32)], b[j_c_o % 2 * 32768 + r_o * 8192 + 8192 + (i_c_o * 4096 + r_i_o * 32 + 16)],)):
                    for r_i_i in unroll(2):
                        for i_c_i in unroll(min(8, i_c_o * -8 + 20)):
                            for j_c_i_o in unroll(2):
                                for j_c_i_i in vector(16, lanes=16):
                                    c: c_c_p[i_c_i, j_c_i_o * 16 + j_c_i_i] = reduce(addf(c_c_p[i_c_i, j_c_i_o * 16 + j_c_i_i], mulf(a[i_c_o * 8 + i_c_i, r_o * 256 + (r_i_o * 2 + r_i_i)], b[(j_c_o * 32 + (j_c_i_o * 16 + j_c_i_i)) // 32, r_o * 256 + (r_i_o * 2 + r_i_i), (j_c_i_o * 16 + j_c_i_i) % 32])), init=f32(0.0), over=(r_i_o, r_i_i))
                for m_c_c_p in unroll(min(8, i_c_o * -8 + 20)):
                    for n_c_c_p_o in unroll(2):
                        for n_c_c_p_i in vector(16, lanes=16):
                            c_p: c_c[i_c_o * 8 + m_c_c_p, n_c_c_p_o * 16 + n_c_c_p_i] = reduce(addf(c_c[i_c_o * 8 + m_c_c_p, n_c_c_p_o * 16 + n_c_c_p_i], c_c_p[m_c_c_p, n_c_c_p_o * 16 + n_c_c_p_i]), init=f32(0.0), over=(r_o,))
        for m_c_c_a in serial(20):
            for n_c_c_a_o in unroll(2):
                for n_c_c_a_i in vector(16, lanes=16):
                    c_w: c[m_c_c_a, j_c_o * 32 + (n_c_c_a_o * 16 + n_c_c_a_i)] = c_c[m_c_c_a, n_c_c_a_o * 16 + n_c_c_a_i]"""


def test_the_nest_of_a_blocked_sum():
    chosen = Space(matmul(20, 1024, 64), replace(SERVER, l1_bytes=24 << 10)).realize({"k_blocks": 4, "tile": (8, 1, 2)})
    assert chosen is not None
    assert str(chosen.plain) == NEST


def test_what_is_decided():
    """Few rows and a long sum; many rows only if the sum is longer than the second-level cache takes."""

    def blocks(m, k, n):
        return Space(matmul(m, k, n), SERVER).default.decisions.get("k_blocks", 1)

    assert blocks(128, 3072, 768) == 12 and blocks(49, 2048, 512) == 8 and blocks(16, 768, 768) > 1
    assert blocks(2048, 3072, 768) > 1 and blocks(1024, 1024, 1024) == 1
    assert blocks(1, 4096, 4096) == blocks(196, 512, 512) == 1
    assert "k_blocks" not in Space(matmul(64, 1024, 64, constant=False), SERVER).decisions
    assert "k_blocks" not in Space(matmul(64, 1021, 64), SERVER).decisions  # a prime


def test_rows_from_afar_want_wide_panels():
    """Rows that come from beyond the second-level cache for every panel make wide panels worth more."""

    def tile(m, k):
        return Space(matmul(m, k, 1024), SERVER).default.decisions["tile"]

    assert tile(1024, 1024) == (6, 1, 4) and tile(230, 1024)[2] < 4 and tile(4096, 128)[2] == tile(400, 128)[2]


def test_every_number_of_blocks_is_a_schedule():
    space = Space(matmul(37, 96, 50), small_caches())
    uncut = space.realize({"cut": False})
    assert uncut is not None
    counts = uncut.options["k_blocks"].candidates
    assert counts == (1, 2, 3)
    for count in counts:
        found = space.realize({"cut": False, "k_blocks": count})
        assert found is not None and found.decisions["k_blocks"] == count
        assert ("rows_inside" in found.decisions) == (count == 1)


def test_runs_of_rows():
    """As few as share the work evenly, and fit half of the second-level cache."""
    assert default_runs([1, 2, 4], 8, 100 << 10, SERVER) == 1
    assert default_runs([1, 2, 4], 8, 1 << 20, SERVER) == 2
    assert default_runs([1, 7], 3, 100 << 10, SERVER) == 7
    assert default_runs([1, 5], 1, 100 << 10, SERVER) == 5
    assert best_tile(sized([64], 64, 1, vectors(SERVER, 16)), SERVER)[0] >= 4
