"""CPU and memory limits of this process: affinity mask and control groups (Linux)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

#: where control groups are mounted, and what says in which this process is
ROOT = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")


def usable_cores() -> int:
    """The number of cores this process may use: the affinity mask of this thread (the cpuset of a control group is in
    it), and the share of time its control groups have. Both may change while it runs; asking reads a few small files.

    >>> usable_cores() >= 1
    True
    """
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        count = os.process_cpu_count()
    elif hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count()
    quota = cpu_quota()
    return max(1, min(count or 1, math.ceil(quota)) if quota is not None else count or 1)


def free_memory() -> int | None:
    """Bytes of memory this process can still have: of the machine, and of its control groups. None if unknown."""
    known = [_available(), *(_room(folder, *names) for folder, names in _groups("memory", _MEMORY))]
    found = [n for n in known if n is not None]
    return max(0, min(found)) if found else None


def cpu_quota() -> float | None:
    """Cores' worth of time that the control groups allow, None if they do not limit it."""
    quotas = []
    for folder, names in _groups("cpu", (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))):
        words = " ".join(_read(folder / name) for name in names).split()
        if len(words) == 2 and all(w.isdecimal() for w in words) and int(words[1]):  # else "max", or -1
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


#: limit, use, and what of the use the system can take back, in both versions
_MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _groups(controller: str, names: tuple[tuple[str, ...], ...]) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The folders of this process's groups and of those around them, with the names of their files: of version 2, and
    of version 1, whose controllers have trees of their own. In a container the tree may begin at its own group."""
    return ((folder, names[old]) for folder, old in _folders(_read(SELF), ROOT, controller))


@lru_cache(maxsize=8)
def _folders(member: str, root: Path, controller: str) -> tuple[tuple[Path, bool], ...]:
    """The folders, and whether they are of version 1, by what the system says in which groups the process is."""
    found: dict[Path, bool] = {}
    for line in member.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        for tree in (root / c for c in (controllers, controller)) if controllers else (root, root / "unified"):
            inner = tree / group.strip("/")
            if tree.is_dir() and ".." not in inner.parts:
                around = (p for p in (inner, *inner.parents) if p == tree or tree in p.parents)
                found |= dict.fromkeys(around, bool(controllers))
    return tuple(found.items())


def _room(folder: Path, limit: str, use: str, reclaimable: str) -> int | None:
    most, used = _read(folder / limit).strip(), _read(folder / use).strip()
    if not most.isdecimal() or not used.isdecimal() or int(most) >= 1 << 60:
        return None
    stat = dict(line.split(maxsplit=1) for line in _read(folder / "memory.stat").splitlines() if " " in line)
    return int(most) - int(used) + int(stat.get(reclaimable, "0"))


def _available() -> int | None:
    for line in _read(MEMINFO).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
