"""An entry of the disk cache of scheduled and emitted kernels (`memo`), as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...schedule.nest import Pack
from ...schedule.split import Divided
from ..kernel_info import KernelInfo


@dataclass(frozen=True)
class MemoEntry:
    """One kernel: its nest and its MLIR as text, what the program must know of it, and its part of the report."""

    nest: str
    emitted: str
    info: KernelInfo
    report: Mapping[str, object]

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_json(found: dict[str, Any]) -> MemoEntry:
        """From what JSON makes of it: keys are text there, tuples lists."""
        info = dict(found["info"])
        info["packs"] = {
            int(i): Pack(p["source"], tuple(map(tuple, p["splits"])), tuple(p["order"]), tuple(p["repeats"]))
            for i, p in info["packs"].items()
        }
        info |= {"inplace": tuple(map(tuple, info["inplace"])), "unmet": tuple(info["unmet"])}
        return MemoEntry(**{**found, "info": KernelInfo(**info)})


def outcome(found: dict[str, Any]) -> MemoEntry | Divided:
    """What the JSON of a `MemoEntry` or a `Divided` means."""
    return Divided(**found) if "module" in found else MemoEntry.from_json(found)
