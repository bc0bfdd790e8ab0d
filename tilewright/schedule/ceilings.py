"""Measured rooflines of this machine: operations a second by precision, bytes a second by level of the memory
hierarchy.

Measured once for each machine, target and number of threads, by loops that do nothing else, and kept in the cache
folder. A target that can be measured has a method ``measure_ceilings(threads) -> Ceilings``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..support.errors import TilewrightError, UsageError
from ..support.files import own_folder, replacing
from ..support.forks import wait_for
from ..support.options import get

#: raised when the loops that measure change, so that older measurements are not used
VERSION = 1


@dataclass(frozen=True)
class Level:
    """A level of the memory: what fits in it (None: no limit), and bytes a second of reading, writing, and copying
    (where both the bytes read and those written count)."""

    name: str
    capacity: int | None
    read: float
    write: float
    copy: float

    def seconds(self, read: float, written: float) -> float:
        """The least time for so many bytes: what is read and written in equal parts at the speed of a copy.

        >>> Level("L2", 1 << 20, 100.0, 50.0, 80.0).seconds(300, 100)
        4.5
        """
        both = min(read, written)
        return 2 * both / self.copy + (read - both) / self.read + (written - both) / self.write


@dataclass(frozen=True)
class Ceilings:
    """`compute`: operations a second by precision ("f32" is always there); `levels` from the fastest memory to the
    slowest. `quiet`: nothing else took part of the cores while this was measured."""

    machine: str
    threads: int
    compute: Mapping[str, float]
    levels: tuple[Level, ...]
    quiet: bool = True

    def peak(self, precision: str) -> float:
        """Operations a second in a precision; what was not measured counts as f32."""
        return self.compute.get(precision, self.compute["f32"])

    def level(self, nbytes: float) -> Level:
        """The fastest memory that holds so many bytes."""
        return next((v for v in self.levels if v.capacity is None or nbytes <= v.capacity), self.levels[-1])

    def best(self, other: Ceilings) -> Ceilings:
        """The higher of every two ceilings: what disturbs a measurement only makes it slower."""
        compute = {k: max(v, other.compute.get(k, v)) for k, v in self.compute.items()}
        known = {v.name: v for v in other.levels}
        levels = tuple(
            Level(v.name, v.capacity, max(v.read, w.read), max(v.write, w.write), max(v.copy, w.copy))
            for v in self.levels
            for w in (known.get(v.name, v),)
        )
        return replace(self, compute=compute, levels=levels, quiet=self.quiet or other.quiet)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "version": VERSION, "levels": [asdict(v) for v in self.levels]}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Ceilings:
        """The inverse of `to_json`; KeyError, TypeError or ValueError if damaged or of another version."""
        if data["version"] != VERSION:
            raise ValueError("measured by another version")
        levels = tuple(Level(**v) for v in data["levels"])
        found = Ceilings(data["machine"], int(data["threads"]), dict(data["compute"]), levels, bool(data["quiet"]))
        if not levels or not all(x > 0 for x in (*found.compute.values(), *(v.read for v in levels))):
            raise ValueError("a ceiling is not positive")
        found.compute["f32"]
        return found


_measuring = threading.RLock()
wait_for(_measuring)


def ceilings(target: Any, threads: int, *, again: bool = False) -> Ceilings:
    """The ceilings of this machine with so many threads: from the cache folder, else measured now, as with `again`.

    What was measured while the machine was busy is measured again the next time, and the higher numbers are kept.
    UsageError if the target cannot be measured.
    """
    if not target.machine_name():
        raise UsageError(f"target {target.name} has no measured ceilings", stage="profile")
    path = _path(target, threads)
    with _measuring:  # two at once would measure each other
        known = None if again else _read(path)
        if known is not None and known.quiet:
            return known
        found: Ceilings = target.measure_ceilings(threads)
        found = found.best(known) if known is not None else found
        with contextlib.suppress(OSError):  # a folder that cannot be written only means measuring again
            if own_folder(path.parent, get("TILEWRIGHT_CACHE")):
                with replacing(path, private=True) as f:
                    f.write(json.dumps({**found.to_json(), "target": target.name}, indent=1).encode() + b"\n")
    return found


def known(target: Any, threads: int) -> Ceilings | None:
    """What was measured of a target's machine before; None if nothing was, or the device is not there."""
    with contextlib.suppress(TilewrightError, OSError, ValueError, AttributeError):
        files = (Path(get("TILEWRIGHT_CACHE")) / "ceilings").glob("*.json")
        if any(json.loads(f.read_text(encoding="utf-8")).get("target") == target.name for f in files):
            return _read(_path(target, threads))  # to know its machine a device may have to be opened
    return None


def _read(path: Path) -> Ceilings | None:
    try:
        return Ceilings.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, ValueError):  # not measured yet, or by another version
        return None


def _path(target: Any, threads: int) -> Path:
    key = hashlib.sha256(f"{VERSION}\0{target.name}\0{target.machine_name()}\0{threads}".encode()).hexdigest()
    return Path(get("TILEWRIGHT_CACHE")) / "ceilings" / f"{key[:24]}.json"


__all__ = ["Ceilings", "Level", "ceilings", "known"]
