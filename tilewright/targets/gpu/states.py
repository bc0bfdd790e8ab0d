"""States in device memory: buffers that keep their value between runs (docs/states.md), copied to the host on
request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...program.states import StateBuffer
from ...support.errors import TilewrightError
from .device import BufferSlice, Device, Move, Run
from .failure import failure

#: bytes at whose multiples parts of buffers begin
WORD = 4


class DeviceState:
    """A state's buffers on a device: one, or two that change places after a run (`program.states.StateOnDevice`).

    The value is where it was written last. What has read it on the host has an array that it may write to, so the next
    run begins with what is there.
    """

    def __init__(self, device: Device, host: StateBuffer) -> None:
        self.device, self.host = device, host
        self.buffers = [device.allocate(host.tensor.nbytes)]
        #: which of the buffers has the value, if the device has it
        self.front = 0
        self._there = False
        self._whole = True

    @staticmethod
    def of(device: Device, host: StateBuffer) -> DeviceState:
        """The state's buffers, which all programs that share the state use."""
        known = host.on_device
        if not isinstance(known, DeviceState):
            known = host.on_device = DeviceState(device, host)
        if known.device is not device:
            doing = f"keeping the state {host.tensor.name!r}"
            raise failure(known.device.name, doing, "the device was opened again since", "lost")
        return known

    def double(self) -> None:
        """Have a second buffer, for a program that cannot write in place."""
        if len(self.buffers) == 1:
            self.buffers.append(self.device.allocate(self.host.tensor.nbytes))

    # ---- for the host ----

    def fetch(self, array: np.ndarray) -> None:
        """Copy the value to the host's array if the device has it."""
        self._check()
        if self._there and array.nbytes:
            self.device.read(self.buffers[self.front], array.reshape(-1).view(np.uint8))
        self._there = False

    def replaced(self) -> None:
        """The host's array has another value now."""
        self._there, self._whole = False, True

    def rows(self, at: Sequence[int], out: np.ndarray) -> bool:
        """See `program.states.StateOnDevice`."""
        return self._moved(Run((), outputs=tuple(map(self._row, at))), (), list(out))

    def put(self, at: Sequence[int], values: np.ndarray) -> bool:
        """See `program.states.StateOnDevice`."""
        given = np.ascontiguousarray(values, self.host.tensor.numpy_dtype)
        return self._moved(Run((), inputs=tuple(map(self._row, at))), list(given), ())

    def move(self, pairs: Sequence[tuple[int, int]]) -> bool:
        """See `program.states.StateOnDevice`. By way of a buffer, as some drivers copy none to itself."""
        if self._row_bytes is None:
            return False
        between = BufferSlice(self.device.allocate(self._row_bytes), 0, self._row_bytes)
        places = [(self._row(old), self._row(new)) for old, new in pairs]
        return self._moved(Run(tuple(m for a, b in places for m in (Move(a, between), Move(between, b)))), (), ())

    @property
    def _row_bytes(self) -> int | None:
        """Of a row, if the device has the value and its rows are whole words."""
        self._check()
        tensor = self.host.tensor
        nbytes = tensor.nbytes // max(tensor.shape[0], 1)
        return nbytes if self._there and nbytes and nbytes % WORD == 0 else None

    def _row(self, number: int) -> BufferSlice:
        nbytes = self.host.tensor.nbytes // self.host.tensor.shape[0]
        return BufferSlice(self.buffers[self.front], number * nbytes, nbytes)

    def _moved(self, run: Run, given: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> bool:
        if self._row_bytes is None:
            return False
        parts = ([row.reshape(-1).view(np.uint8) for row in rows] for rows in (given, wanted))
        self.device.run(self.device.record(run), *parts)
        return True

    # ---- for runs ----

    def bring(self) -> None:
        """Before a run: the value is on the device."""
        self._check()
        if not self._there:
            data = self.host.array
            if data.nbytes:
                self.device.write(self.buffers[self.front], data.reshape(-1).view(np.uint8))
            self._there = True

    def done(self, swapped: bool) -> None:
        """After a run that wrote the next value, to the other buffer if `swapped`."""
        if swapped:
            self.front = 1 - self.front

    def failed(self, in_place: bool) -> None:
        """After a run that failed: what it wrote in place is neither the old value nor the next one."""
        self._whole = self._whole and not in_place

    def _check(self) -> None:
        if not self._whole:
            raise broken(self.host.tensor.name, self.device.name)


def broken(state: str, device: str) -> TilewrightError:
    """The error of a state that has no value."""
    return TilewrightError(
        f"the state {state!r} was being written when a run failed on {device}",
        stage="run",
        hint="call reset(), or assign the state, and go on from there",
    )
