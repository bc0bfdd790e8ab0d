"""The devices of a driver by number and name: listed, chosen, and opened once each for this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ...support.errors import TilewrightError, UsageError
from ..base import Check
from .device import Device

Listed = TypeVar("Listed")
Opened = TypeVar("Opened", bound=Device)


class Devices(Generic[Listed, Opened]):
    """`listed` gives what a driver has, the one that is taken where none is named first (UsageError if there is none);
    `name` is what it is called, `open_one` opens it."""

    def __init__(
        self,
        target: str,
        listed: Callable[[], Sequence[Listed]],
        name: Callable[[Listed], str],
        open_one: Callable[[Listed], Opened],
    ) -> None:
        self.target, self.listed, self.name, self.open_one = target, listed, name, open_one
        self._open: dict[int, Opened] = {}
        #: what was wanted before, so that drivers list their devices once
        self._wanted: dict[str, Opened] = {}
        self._opening = threading.Lock()

    def names(self) -> list[str]:
        """What the devices are called, by number."""
        return [self.name(d) for d in self.listed()]

    def open(self, wanted: str = "") -> Opened:
        """The device of that number, or the first one that has this text in its name (in any case); the first without.
        UsageError lists those that there are. A device that was lost is opened again."""
        with self._opening:
            device = self._wanted.get(wanted)
            if device is None or device.lost:
                there = self.listed()
                number = self.number(wanted, [self.name(d) for d in there])
                device = self._open.get(number)
                if device is None or device.lost:
                    device = self._open[number] = self.open_one(there[number])
                self._wanted[wanted] = device
            return device

    def number(self, wanted: str, names: Sequence[str]) -> int:
        """The number of the wanted device among these."""
        if not names:
            raise UsageError(f"{self.target} has no device here", stage="load", hint="`tilewright doctor` says more")
        if not wanted:
            return 0
        if wanted.isdecimal():
            if int(wanted) < len(names):
                return int(wanted)
        else:
            for number, name in enumerate(names):
                if wanted.lower() in name.lower():
                    return number
        known = "; ".join(f"{i}: {n}" for i, n in enumerate(names))
        raise UsageError(f"{self.target} has no device {wanted!r} here", stage="load", hint=f"devices: {known}")

    def forget(self) -> None:
        """Open all anew from now on."""
        with self._opening:
            self._open.clear()
            self._wanted.clear()

    def check(self, title: str) -> Check:
        """What `tilewright doctor` says."""
        try:
            names = self.names()
        except TilewrightError as e:
            return Check(title, "note", e.message, e.hint or "")
        if not names:
            return Check(title, "note", f"{self.target} has no device here")
        return Check(title, "ok", "; ".join(f"device={i}: {n}" for i, n in enumerate(names)))


__all__ = ["Devices"]
