"""Weights in device memory, each array uploaded once: the entry points of one package share theirs."""

from __future__ import annotations

import threading
import weakref

import numpy as np

from .device import Device


class Uploaded:
    """An array and its copy on a device; both go when no program has this any more."""

    def __init__(self, device: Device, array: np.ndarray) -> None:
        self.array, self.buffer = array, device.allocate(array.nbytes)
        if array.nbytes:
            device.write(self.buffer, array.reshape(-1).view(np.uint8))


_known: weakref.WeakKeyDictionary[object, weakref.WeakValueDictionary[int, Uploaded]] = weakref.WeakKeyDictionary()
_uploading = threading.Lock()


def uploaded(device: Device, array: np.ndarray) -> Uploaded:
    """A constant on a device, copied there unless a program has it there. Nobody may write to the array."""
    with _uploading:
        there = _known.setdefault(device, weakref.WeakValueDictionary())
        found = there.get(id(array))  # the array lives as long as its copy: nothing else has its number
        if found is None:
            found = there[id(array)] = Uploaded(device, array)
        return found


__all__ = ["Uploaded", "uploaded"]
