"""Devices with drivers that tests may use; where there is none they are skipped."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from tilewright.support.errors import UsageError
from tilewright.targets.gpu.device import BufferSlice, Dispatch, Run


def device_of(target: str):
    """The first device of a target's driver, or a skipped test with the reason and what to install."""
    try:
        return importlib.import_module(f"tilewright.targets.{target}.device").device()
    except UsageError as e:
        pytest.skip(f"{e.message}: {e.hint}")


def run_on(device, kernel, arrays) -> None:
    """A kernel (`targets.gpu.kernels.GpuKernel`) on arrays, its results written in place."""
    buffers = [device.allocate(x.nbytes) for x in arrays]
    for buffer, x in zip(buffers, arrays, strict=True):
        device.write(buffer, x.reshape(-1).view(np.uint8))
    parts = tuple(BufferSlice(b, 0, x.nbytes) for b, x in zip(buffers, arrays, strict=True))
    scratch = device.allocate(kernel.scratch_bytes) if kernel.scratch else None
    device.run(device.record(Run((Dispatch(kernel, parts, scratch),))), (), ())
    for buffer, x in zip(buffers, arrays, strict=True):
        device.read(buffer, x.reshape(-1).view(np.uint8))
