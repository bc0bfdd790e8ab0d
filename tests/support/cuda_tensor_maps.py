"""Tensor maps as the emulator has them: what NVIDIA's driver is told of an array, in 128 bytes of our own."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from tilewright.codegen.gpu_llvm.builder import BYTES
from tilewright.codegen.nvptx.bulk import MAP_ALIGN_BYTES, MAP_BYTES, TensorMap
from tilewright.codegen.nvptx.emitter import NvptxKernel

#: bytes of an element, by the driver's number of its type
_SIZES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2}

#: the struct `Map` of cuda_bulk.h
_FIELDS = np.dtype([
    ("address", "u8"), ("size", "u4"), ("rank", "u4"), ("swizzle", "u4"), ("unused", "u4"), ("shape", "u4", 5),
    ("sides", "u4", 5), ("steps", "u8", 5),
])  # fmt: skip


def aligned() -> np.ndarray:
    """Memory for a map, where one may lie."""
    memory = np.zeros(MAP_BYTES + MAP_ALIGN_BYTES, np.uint8)
    start = -memory.ctypes.data % MAP_ALIGN_BYTES
    return memory[start : start + MAP_BYTES]


def encoded(
    address: int, size: int, shape: Sequence[int], steps: Sequence[int], sides: Sequence[int], swizzle: int
) -> np.ndarray:
    """The bytes of a map; dimensions are in the order of the driver, the innermost first."""
    found = aligned()
    fields = found[: _FIELDS.itemsize].view(_FIELDS)[0]
    fields["address"], fields["size"], fields["rank"], fields["swizzle"] = address, size, len(shape), swizzle
    for name, values in (("shape", shape), ("steps", steps), ("sides", sides)):
        fields[name][: len(values)] = values
    return found


def encode(found, dtype, rank, address, shape, steps, sides, strides, interleave, swizzle, lines, fill) -> int:
    """``cuTensorMapEncodeTiled``: 1 for what the driver calls an invalid value."""
    size, span = _SIZES[dtype], (0, 32, 64, 128)[swizzle]
    known = [*steps][: rank - 1]
    row = sides[0] * size
    wrong = address.value % 16 or any(s % 16 for s in known) or not all(1 <= n <= 256 for n in sides) or row % 16
    if wrong or (span and row > span) or any(n != 1 for n in strides) or interleave or fill or not 1 <= rank <= 5:
        return 1
    if ctypes.addressof(found._obj) % MAP_ALIGN_BYTES:
        return 1
    made = encoded(address.value, size, [*shape], known, [*sides], span)
    ctypes.memmove(found._obj, made.ctypes.data, MAP_BYTES)
    return 0


def told(params: Sequence[int], kernel: NvptxKernel) -> list[int | np.ndarray]:
    """The arguments of a launch: addresses, and copies of the tensor maps behind them."""
    count = len(params) - len(kernel.maps)
    found: list[int | np.ndarray] = [ctypes.c_uint64.from_address(p).value for p in params[:count]]
    for p in params[count:]:
        copy = aligned()
        ctypes.memmove(copy.ctypes.data, p, MAP_BYTES)
        found.append(copy)
    return found


def map_of(m: TensorMap, address: int) -> np.ndarray:
    """The map of an array at an address."""
    return encoded(address, BYTES[m.dtype], m.shape[::-1], m.steps[::-1], m.sides[::-1], m.swizzle)
