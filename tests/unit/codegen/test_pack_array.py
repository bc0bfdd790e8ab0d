"""Constants in the layouts that kernels want: whatever way their elements are copied, the result is the same."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.codegen.kernel_info import pack_array, packed_shape
from tilewright.schedule.nest import Pack
from tilewright.support.huge_pages import HugePagePool

LAYOUTS = [
    ((6, 10), ((), (4,)), (1, 0, 2), ()),  # runs of one row
    ((6, 10), ((2,), (4,)), (2, 0, 3, 1), ()),  # two rows interleaved
    ((3, 2, 40, 7), ((), (), (16,), (4,)), (4, 0, 1, 2, 5, 3), ()),  # sixteen
    ((70, 600), ((32,), ()), (0, 2, 1), ()),  # long rows, a piece of all at a time
    ((70, 600), ((16,), (2,)), (0, 2, 1, 3), ()),  # and in pairs
    ((2, 3), ((), ()), (1, 0), ()),
    ((5,), ((),), (0,), (3,)),
    ((4, 0), ((), (4,)), (1, 0, 2), ()),
    ((), ((),), (0,), (3,)),
]


def expected(array, splits, order, repeats):
    array = array.reshape(array.shape or (1,))
    array = np.pad(array, [(0, r) for r in repeats or (0,) * array.ndim], mode="wrap")
    whole = [int(np.prod(f)) for f in splits]
    array = np.pad(array, [(0, -n % w) for n, w in zip(array.shape, whole, strict=True)])
    pairs = zip(array.shape, whole, splits, strict=True)
    return array.reshape([d for n, w, f in pairs for d in (n // w, *f)]).transpose(order)


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("shape, splits, order, repeats", LAYOUTS)
def test_layouts(shape, splits, order, repeats, dtype):
    size = int(np.prod(shape))
    raw = np.random.default_rng(0).integers(-99, 99, size).astype(dtype)
    odd = np.zeros(raw.nbytes + 1, np.uint8)[1:].view(dtype)  # as in a file
    odd[:] = raw
    pack, pool = Pack("b", splits, order, repeats), HugePagePool(reused=True)
    for array in (raw.reshape(shape), odd.reshape(shape), np.asfortranarray(raw.reshape(shape))):
        want = expected(array, splits, order, repeats)
        for got in (pack_array(array, pack), pack_array(array, pack, pool)):
            assert (got.dtype, got.shape) == (array.dtype, packed_shape(shape, pack)) == (want.dtype, want.shape)
            assert got.flags.c_contiguous and got.tobytes() == np.ascontiguousarray(want).tobytes()


def test_memory_of_one_array_at_a_time():
    pool = HugePagePool(reused=True)
    places = [pool.empty(shape, np.float32).ctypes.data for shape in ((4,), (1000,), (7, 3))]
    assert len(set(places)) == 1
    more = pool.empty((100 << 20,), np.uint8)
    assert pool.empty((5,), np.int8).ctypes.data == more.ctypes.data
