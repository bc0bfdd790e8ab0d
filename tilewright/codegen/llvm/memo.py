"""Disk cache of scheduled and emitted kernels, beside the cache of their objects: a second compilation of a model does
neither. Worker processes make the entries of a model's new kernels, several at a time.

The key is the level-3 text of the kernel, the machine, and the source of this package: with another version of a rule
nothing is found. What the tuner found for a kernel is not kept here.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping

from ...schedule.split import Divided
from ...support.digests import source_digest
from ..kernel_info import KernelInfo
from .cache import KernelCache
from .machine import LlvmMachine
from .memo_entry import MemoEntry, outcome
from .pool import Job, Progress, compile_each

#: part of every key; another one for another form of the entries
FORM = "memo 2"


class KernelMemo:
    """The kernels of one machine; see the module docstring. `maker` (``module:function``) is what takes a kernel at
    level 3 all the way, in a worker process; see `pool.Job`."""

    def __init__(self, machine: LlvmMachine, maker: str, cache: KernelCache | None = None) -> None:
        self.cache, self.machine, self.maker = cache or KernelCache(), machine, maker
        self.description = json.dumps(machine.to_json(), sort_keys=True)

    def key(self, function: str) -> str:
        return hashlib.sha256("\0".join((FORM, function, self.description, source_digest())).encode()).hexdigest()

    def recall(self, function: str) -> MemoEntry | Divided | None:
        """What is known of the kernel with this level-3 text: what it is made into, or that it is cut."""
        found = self.cache.get(self.key(function))
        return None if found is None else outcome(json.loads(zlib.decompress(found[0])))

    def remember(self, function: str, nest: str, emitted: str, info: KernelInfo, report: Mapping[str, object]) -> None:
        """Keep what was made of the kernel with this level-3 text; see `MemoEntry`."""
        self.keep(function, MemoEntry(nest, emitted, info, report))

    def keep(self, function: str, made: MemoEntry | Divided) -> None:
        """Keep what was made of the kernel with this level-3 text, or what it is cut into."""
        self.cache.put(self.key(function), zlib.compress(json.dumps(made.to_json()).encode(), 1), {})

    def make(
        self, functions: Mapping[str, str], workers: int, progress: Progress | None = None
    ) -> tuple[dict[str, MemoEntry | Divided], dict[str, float]]:
        """Schedule, emit and compile kernels (level-3 texts by symbol) in worker processes, and keep what they make, or
        into which parts they say that a kernel is to be cut; with the seconds that all workers together spent in each
        stage.

        Those that fail are not in the result: compiled here, stage by stage, they say what is wrong.
        """
        # those of operators take longest: one that begins last would end alone
        first = sorted(functions, key=lambda name: ('"tw.' not in functions[name], -len(functions[name])))
        jobs = [Job(name, functions[name], maker=self.maker) for name in first]
        found: dict[str, MemoEntry | Divided] = {}
        seconds: dict[str, float] = {}
        for name, done in compile_each(jobs, self.machine, workers=workers, progress=progress).items():
            if isinstance(done, str):
                continue
            known = found[name] = outcome(done.made)
            for stage, taken in done.stats.pop("stages").items():
                seconds[stage] = seconds.get(stage, 0.0) + taken
            self.keep(functions[name], known)
            if isinstance(known, MemoEntry):
                self.cache.put(self.cache.key(known.emitted, self.machine), done.data, done.stats)
        return found, seconds
