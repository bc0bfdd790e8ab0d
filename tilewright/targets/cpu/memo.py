"""What scheduling and emitting a kernel gave, kept on disk beside the objects: a second compilation of a model does
neither.

The key is the level-3 text of the kernel, the machine, and the source of this package: with another version of a rule
nothing is found. What the tuner found for a kernel is not kept here.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import Any

from ...kept import source_digest
from ...program.build import KernelInfo
from ...schedule.nest import Pack
from .cache import KernelCache
from .host import CpuDescription

#: part of every key; another one for another form of the entries
FORM = "memo 1"


@dataclass(frozen=True)
class Remembered:
    """One kernel: its nest and its MLIR as text, what the program must know of it, and its part of the report."""

    nest: str
    emitted: str
    info: KernelInfo
    report: dict[str, Any]

    def to_bytes(self) -> bytes:
        info = self.info
        packs = [[i, p.source, p.splits, p.order, p.repeats] for i, p in info.packs.items()]
        data = {
            "nest": self.nest,
            "emitted": self.emitted,
            "info": [info.scratch, packs, info.parallel, info.inplace, info.pieces],
            "report": self.report,
        }
        return zlib.compress(json.dumps(data).encode(), 1)

    @staticmethod
    def from_bytes(data: bytes) -> Remembered:
        found = json.loads(zlib.decompress(data))
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


class KernelMemo:
    """The kernels of one machine; see the module docstring."""

    def __init__(self, description: CpuDescription, cache: KernelCache | None = None) -> None:
        self.cache = cache or KernelCache()
        self.machine = json.dumps(description.to_json(), sort_keys=True)

    def key(self, function: str) -> str:
        return hashlib.sha256("\0".join((FORM, function, self.machine, source_digest())).encode()).hexdigest()

    def recall(self, function: str) -> Remembered | None:
        """What is known of the kernel with this level-3 text."""
        found = self.cache.get(self.key(function))
        return None if found is None else Remembered.from_bytes(found[0])

    def remember(self, function: str, nest: str, emitted: str, info: KernelInfo, report: dict[str, Any]) -> None:
        """Keep what was made of the kernel with this level-3 text; see `Remembered`."""
        self.cache.put(self.key(function), Remembered(nest, emitted, info, report).to_bytes(), {})
