"""Giving back the pages of memory-mapped weights: values stay, memory goes."""

import mmap
import resource
import sys

import numpy as np
import pytest

from tilewright.support.aligned import ALIGN, address, aligned_copy
from tilewright.support.huge_pages import copy_released, release_pages

SIZE = 1 << 20


@pytest.fixture
def mapped(tmp_path):
    path = tmp_path / "weights.bin"
    np.arange(SIZE, dtype=np.float32).tofile(path)
    return np.memmap(path, np.uint8, "r")


@pytest.mark.parametrize("begin, end", [(0, 4 * SIZE), (52, 4 * SIZE - 8), (4 * 1023, 8 * 1023), (400, 404), (8, 8)])
def test_values_stay(mapped, begin, end):
    part = mapped[begin:end].view(np.float32)
    before = part.copy()
    release_pages(part)
    assert (part == before).all()
    assert (mapped.view(np.float32) == np.arange(SIZE, dtype=np.float32)).all()


def test_views_in_any_order(mapped):
    square = mapped.view(np.float32).reshape(1024, 1024)
    for view in (square.T, square[::-1, ::2], square[5:9, 100:], square[3, 4], square[:0]):
        before = view.copy()
        release_pages(view)
        assert (view == before).all()


def test_ordinary_arrays_are_left_alone():
    release_pages(np.ones(10000))
    release_pages(np.frombuffer(b"12345678", np.uint8))


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED") or sys.platform != "linux", reason="reads /proc")
def test_memory_goes(mapped):
    def in_memory():
        with open("/proc/self/statm", encoding="ascii") as f:
            return int(f.read().split()[2]) * resource.getpagesize()

    floats = mapped.view(np.float32)
    floats.sum()
    with_pages = in_memory()
    release_pages(floats)
    assert with_pages - in_memory() > 3 * SIZE


def test_copy_in_pieces(mapped):
    source = mapped[4:].view(np.float32)
    made = aligned_copy(source)
    assert address(made) % ALIGN == 0
    assert (made == source).all()
    out = np.zeros((3, 5))
    copy_released(np.arange(15.0).reshape(5, 3).T, out)
    assert (out == np.arange(15.0).reshape(5, 3).T).all()
    copy_released(np.array(7.0), out[0, 0:1].reshape(()))
    assert out[0, 0] == 7.0
