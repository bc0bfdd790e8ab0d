"""States of programs on several devices: each lives on the device that uses it, and is copied to others on request."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ...program.states import StateBuffer, StateOnDevice
from ..gpu.device import Device
from ..gpu.states import DeviceState, broken


class StateOnADevice(StateOnDevice, Protocol):
    """A state where it lies."""

    def bring(self) -> None: ...
    def done(self, swapped: bool) -> None: ...
    def failed(self, in_place: bool) -> None: ...


class HostState(StateOnDevice):
    """A state in the host's memory: its value is where the host looks, unless a run failed that was writing it."""

    def __init__(self, host: StateBuffer) -> None:
        self.host, self._whole = host, True

    def bring(self) -> None:
        """Before a run: the value is there."""
        self.fetch(self.host.array)

    def done(self, swapped: bool) -> None:
        """After a run that wrote the next value, to the other buffer if `swapped`."""
        if swapped:
            self.host.exchange()

    def failed(self, in_place: bool) -> None:
        """After a run that failed: what it wrote in place is neither the old value nor the next one."""
        self._whole = self._whole and not in_place

    def fetch(self, array: np.ndarray) -> None:
        """See `program.states.StateOnDevice`."""
        if not self._whole:
            raise broken(self.host.tensor.name, "the devices of its program")

    def replaced(self) -> None:
        """See `program.states.StateOnDevice`."""
        self._whole = True


def state_on(device: Device | None, host: StateBuffer, swapped: bool) -> StateOnADevice:
    """A state where a program has it, on a device or (None) the host: what other contexts there have of it, if its
    value is there now."""
    known = host.on_device
    if device is None:
        return known if isinstance(known, HostState) else HostState(host)
    there = isinstance(known, DeviceState) and known.device is device
    made = known if there and isinstance(known, DeviceState) else DeviceState(device, host)
    if swapped:
        made.double()
    return made


def take(state: StateOnADevice, host: StateBuffer) -> None:
    """Before a run: the value, from wherever another program of the same states has left it."""
    known = host.on_device
    if known is not state:
        if known is not None:
            known.fetch(host.array)
        state.replaced()
        host.on_device = state
    state.bring()


__all__ = ["HostState", "StateOnADevice", "state_on", "take"]
