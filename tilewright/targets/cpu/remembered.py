"""What scheduling and emitting one kernel gave, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...codegen.kernel_info import KernelInfo
from ...schedule.nest import Pack
from ...schedule.split import Divided


@dataclass(frozen=True)
class Remembered:
    """One kernel: its nest and its MLIR as text, what the program must know of it, and its part of the report."""

    nest: str
    emitted: str
    info: KernelInfo
    report: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        info = self.info
        packs = [[i, p.source, p.splits, p.order, p.repeats] for i, p in info.packs.items()]
        return {
            "nest": self.nest,
            "emitted": self.emitted,
            "info": [info.scratch, packs, info.parallel, info.inplace, info.pieces],
            "report": self.report,
        }

    @staticmethod
    def from_json(found: dict[str, Any]) -> Remembered:
        scratch, packs, parallel, inplace, pieces = found["info"]
        info = KernelInfo(
            scratch,
            {
                i: Pack(source, tuple(map(tuple, splits)), tuple(order), tuple(more))
                for i, source, splits, order, more in packs
            },
            parallel,
            tuple((o, i) for o, i in inplace),
            pieces,
        )
        return Remembered(found["nest"], found["emitted"], info, found["report"])


def outcome(found: dict[str, Any]) -> Remembered | Divided:
    """What the JSON of a `Remembered` or a `Divided` means."""
    return Divided(**found) if "module" in found else Remembered.from_json(found)
