"""TMA tensor maps (``CUtensorMap``): descriptors of an array and its boxes, encoded by the driver for each address."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ...codegen.nvptx.bulk import MAP_ALIGN_BYTES, MAP_BYTES, TensorMap
from .driver import Driver
from .stages import CudaKernel

#: what the driver calls element types: integers are copied as they are, whatever their sign
_TYPES = {"i1": 0, "i8": 0, "i16": 1, "i32": 2, "i64": 4, "index": 2, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}
#: and swizzles, by the bytes of a row
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
#: elements lie one after the other; lines of the second-level cache are brought whole; zero beyond the array
_NO_INTERLEAVE, _WHOLE_LINES, _ZERO = 0, 2, 0


class TensorMaps:
    """Maps of a device, each encoded once for every address."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.made: dict[tuple[TensorMap, int], Any] = {}

    def of(self, kernel: CudaKernel, addresses: Sequence[int]) -> list[Any]:
        """Those of a kernel's call, which come behind its addresses."""
        return [self.map_of(m, addresses[m.parameter]) for m in kernel.maps]

    def map_of(self, m: TensorMap, address: int) -> Any:
        if (m, address) not in self.made:
            self.made[m, address] = self.encoded(m, address)
        return self.made[m, address]

    def encoded(self, m: TensorMap, address: int) -> Any:
        """Its bytes, where a map may lie; DriverFailed for one that the driver does not take."""
        memory = (ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGN_BYTES))()
        start = -ctypes.addressof(memory) % MAP_ALIGN_BYTES
        found = (ctypes.c_ubyte * MAP_BYTES).from_buffer(memory, start)
        rank = len(m.shape)
        self.driver.call(
            "cuTensorMapEncodeTiled",
            ctypes.byref(found),
            _TYPES[m.dtype],
            rank,
            ctypes.c_uint64(address),
            (ctypes.c_uint64 * rank)(*m.shape[::-1]),
            (ctypes.c_uint64 * max(rank - 1, 1))(*m.steps[::-1]),
            (ctypes.c_uint32 * rank)(*m.sides[::-1]),
            (ctypes.c_uint32 * rank)(*([1] * rank)),
            _NO_INTERLEAVE,
            _SWIZZLES[m.swizzle],
            _WHOLE_LINES,
            _ZERO,
        )
        return found


__all__ = ["TensorMaps"]
