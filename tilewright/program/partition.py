"""Device placement: the assignment of tasks to devices with the least time, copies between devices included.

    tasks = [(1e-6, 5e-6), (9e-6, 2e-6)]        seconds of each on devices 0 and 1, infinity where it cannot run
    values = [Crossing(0, (1,), 4096)]          what a task gives, and who reads it
    partition(tasks, values, lambda a, b, nbytes: 1e-6 + nbytes / 1e9)

A value is copied once to each device that reads it. Between two devices this is a minimal cut of a graph,
which is found exactly; of more, two at a time are cut again until no pair of them gains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isinf

#: capacities are whole numbers of this part of a second
_SECOND = 1e12
_NO_CUT = 1 << 62

#: seconds of a copy from a device to another one of so many bytes
CopyCost = Callable[[int, int, int], float]


@dataclass(frozen=True)
class Crossing:
    """A value: the task that makes it, the tasks that read it, and its bytes. What comes from outside is made by a task
    that can run on one device only."""

    maker: int
    readers: tuple[int, ...]
    nbytes: int


def partition(tasks: Sequence[Sequence[float]], values: Sequence[Crossing], copy: CopyCost) -> list[int]:
    """The device of each task; ValueError if one can run on none.

    >>> from math import inf
    >>> values = [Crossing(0, (1,), 0), Crossing(1, (2,), 0)]
    >>> partition([(0.0, inf), (3.0, 1.0), (0.0, inf)], values, lambda a, b, nbytes: 0.5)
    [0, 1, 0]
    >>> partition([(0.0, inf), (3.0, 1.0), (0.0, inf)], values, lambda a, b, nbytes: 2.0)
    [0, 0, 0]
    """
    for number, costs in enumerate(tasks):
        if all(map(isinf, costs)):
            raise ValueError(f"task {number} can run nowhere")
    count = max(map(len, tasks), default=1)
    devices = range(count)
    best = min(([_near(t, d) for t in tasks] for d in devices), key=lambda p: total(tasks, values, copy, p))
    least, improved = total(tasks, values, copy, best), True
    while improved:
        improved = False
        for pair in combinations(devices, 2):
            tried = _cut(tasks, values, copy, best, *pair)
            found = total(tasks, values, copy, tried)
            if found < least * (1 - 1e-9):
                best, least, improved = tried, found, count > 2
    return best


def total(tasks: Sequence[Sequence[float]], values: Sequence[Crossing], copy: CopyCost, placed: Sequence[int]) -> float:
    """Seconds of an assignment."""
    copies = sum(copy(*c) for v in values for c in _copies(v, placed))
    return sum(t[d] for t, d in zip(tasks, placed, strict=True)) + copies


def _copies(v: Crossing, placed: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    here = placed[v.maker]
    yield from ((here, there, v.nbytes) for there in sorted({placed[r] for r in v.readers}) if there != here)


def _near(costs: Sequence[float], device: int) -> int:
    """The device if a task can run there, else its fastest."""
    return device if not isinf(costs[device]) else min(range(len(costs)), key=costs.__getitem__)


def _cut(
    tasks: Sequence[Sequence[float]], values: Sequence[Crossing], copy: CopyCost, placed: Sequence[int], a: int, b: int
) -> list[int]:
    """The best assignment that differs in tasks of devices `a` and `b` only, which are on these two. Tasks of `a` are
    on the side of the source; a node for each value and direction makes its copy count once."""
    flow = _Flow(len(tasks))
    movable = [d in (a, b) for d in placed]

    def seconds(*told: int) -> int:
        return _capacity(copy(*told))

    for n, costs in enumerate(tasks):
        if movable[n]:
            flow.edge(n, flow.sink, _capacity(costs[a]))
            flow.edge(flow.source, n, _capacity(costs[b]))
    for v in values:
        readers = [r for r in v.readers if movable[r] and r != v.maker]
        if not movable[v.maker]:
            here = placed[v.maker]
            flow.once(flow.source, readers, seconds(here, b, v.nbytes))
            flow.once_back(flow.sink, readers, seconds(here, a, v.nbytes))
            continue
        flow.once(v.maker, readers, seconds(a, b, v.nbytes))
        flow.once_back(v.maker, readers, seconds(b, a, v.nbytes))
        for there in {placed[r] for r in v.readers if not movable[r]}:
            flow.edge(v.maker, flow.sink, seconds(a, there, v.nbytes))
            flow.edge(flow.source, v.maker, seconds(b, there, v.nbytes))
    side = flow.source_side()
    return [(a if n in side else b) if movable[n] else d for n, d in enumerate(placed)]


def _capacity(seconds: float) -> int:
    return _NO_CUT if isinf(seconds) else round(seconds * _SECOND)


class _Flow:
    """A network with whole capacities; its minimal cut by Dinic's algorithm."""

    def __init__(self, nodes: int) -> None:
        self.source, self.sink = nodes, nodes + 1
        self.edges: list[list[int]] = [[] for _ in range(nodes + 2)]  # numbers of edges by node
        self.to: list[int] = []  # edge n and n ^ 1 lie against each other
        self.capacity: list[int] = []

    def edge(self, a: int, b: int, capacity: int) -> None:
        if capacity and a != b:
            for here, there, amount in ((a, b, capacity), (b, a, 0)):
                self.edges[here].append(len(self.to))
                self.to.append(there)
                self.capacity.append(amount)

    def node(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def once(self, first: int, others: Sequence[int], capacity: int) -> None:
        """Costs `capacity` if `first` is on the source's side and any of the others is not."""
        if others:
            middle = self.node()
            self.edge(first, middle, capacity)
            for n in others:
                self.edge(middle, n, _NO_CUT)

    def once_back(self, first: int, others: Sequence[int], capacity: int) -> None:
        """Costs `capacity` if `first` is not on the source's side and any of the others is."""
        if others:
            middle = self.node()
            self.edge(middle, first, capacity)
            for n in others:
                self.edge(n, middle, _NO_CUT)

    def source_side(self) -> set[int]:
        """The nodes on the source's side of the minimal cut with the fewest of them."""
        while self.sink in (levels := self.levels()):
            used = [0] * len(self.edges)
            while self.push(levels, used):
                pass
        return set(levels)

    def levels(self) -> dict[int, int]:
        found, queue = {self.source: 0}, deque([self.source])
        while queue:
            n = queue.popleft()
            for e in self.edges[n]:
                if self.capacity[e] and self.to[e] not in found:
                    found[self.to[e]] = found[n] + 1
                    queue.append(self.to[e])
        return found

    def push(self, levels: dict[int, int], used: list[int]) -> int:
        """Send flow along one shortest path; without recursion: paths may be longer than Python's stack."""
        path: list[int] = []
        at = self.source
        while at != self.sink:
            while used[at] < len(self.edges[at]):
                e = self.edges[at][used[at]]
                if self.capacity[e] and levels.get(self.to[e]) == levels[at] + 1:
                    path.append(e)
                    at = self.to[e]
                    break
                used[at] += 1
            else:
                if not path:
                    return 0
                at = self.to[path.pop() ^ 1]
                used[at] += 1
        amount = min(self.capacity[e] for e in path)
        for e in path:
            self.capacity[e] -= amount
            self.capacity[e ^ 1] += amount
        return amount


__all__ = ["CopyCost", "Crossing", "partition", "total"]
