"""Memory-aware scheduling of kernel calls: the order with the lowest peak memory.

What lives after a set of calls has been made does not depend on the order within the set, so the best order is a path
through the sets that can be reached, judged by its highest point. The search goes through them best first and is exact;
where there are too many, it stops and a greedy order is taken if it is better than the given one. One thing is left
out: an operand with several readers may come to lie in the caller's buffer of an output, if the step that makes that
output in its place happens to be the last of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from .plan import CallEffects, StorageValue
from .program import ALIGN, align_up

#: sets of calls looked at before the exact search gives up
LIMIT = 20_000


@dataclass(frozen=True)
class Order:
    """The steps in a new order, its highest point in bytes, that of the given order, and whether none is better."""

    steps: tuple[int, ...]
    peak: int
    given_peak: int
    exact: bool


def best_order(
    values: Sequence[StorageValue],
    steps: Sequence[CallEffects],
    outputs: Sequence[int],
    align: int = ALIGN,
    limit: int = LIMIT,
) -> Order:
    """The order of `steps` with the lowest peak; the given one if none is better.

    >>> values = [StorageValue(4, home=("input", 0)), *map(StorageValue, (100, 100, 1, 1, 1))]
    >>> calls = ((0,), (1,)), ((0,), (2,)), ((1,), (3,)), ((2,), (4,)), ((3, 4), (5,))
    >>> steps = [CallEffects(*c) for c in calls]
    >>> best_order(values, steps, outputs=[5], align=1)
    Order(steps=(0, 2, 1, 3, 4), peak=102, given_peak=201, exact=True)
    """
    g = _Graph(values, steps, outputs, align)
    given = tuple(range(len(steps)))
    peak = g.peak_of(given)
    floor = g.lower_bound()
    if peak <= floor:
        return Order(given, peak, peak, True)
    found = _search(g, limit)
    if found is not None:
        best, order = found
        return Order(order, best, peak, True) if best < peak else Order(given, peak, peak, True)
    order = _greedy(g)
    best = g.peak_of(order)
    return Order(order, best, peak, best <= floor) if best < peak else Order(given, peak, peak, False)


class _Graph:
    """Steps as bit masks: what each needs, frees and makes."""

    def __init__(
        self, values: Sequence[StorageValue], steps: Sequence[CallEffects], outputs: Sequence[int], align: int
    ) -> None:
        self.count = len(steps)
        roots = [_root(values, v) for v in range(len(values))]
        # an output has a home of its own, unless it is a view, which is copied there
        homes = {v for v, value in enumerate(values) if value.home is not None}
        kept = {roots[v] for v in outputs}
        whole = {v for v in outputs if values[v].view_of is None and v not in homes}
        self.size = {r: 0 if r in homes or r in whole else align_up(values[r].nbytes, align) for r in set(roots)}
        self.reads = [tuple(dict.fromkeys(roots[v] for v in s.reads)) for s in steps]
        self.writes = [tuple(dict.fromkeys(roots[v] for v in s.writes)) for s in steps]
        self.inplace = [self._pairs(values, roots, s) for s in steps]
        writers: dict[int, int] = {}
        readers: dict[int, int] = {}
        for n in range(self.count):
            for v in self.writes[n]:
                writers[v] = writers.get(v, 0) | 1 << n
            for v in self.reads[n]:
                readers[v] = readers.get(v, 0) | 1 << n
        #: value -> mask of the steps that touch it
        self.users = {v: writers.get(v, 0) | readers.get(v, 0) for v in set(writers) | set(readers)}
        # an operand with one reader dies there in every order: if its result is an output, both lie in its buffer
        for n in reversed(range(self.count)):
            for w, r in self.inplace[n]:
                if w in whole and readers[r] == 1 << n and r not in kept and r not in homes and writers[w] == 1 << n:
                    self.size[r] = 0
                    whole.add(r)
        self.keep = kept
        self.needs = [0] * self.count
        for n in range(self.count):
            for v in self.reads[n]:
                self.needs[n] |= writers.get(v, 0) & ~(1 << n)
            for v in self.writes[n]:  # several writers of one value keep their order
                self.needs[n] |= writers[v] & ((1 << n) - 1)

    @staticmethod
    def _pairs(values: Sequence[StorageValue], roots: list[int], s: CallEffects) -> tuple[tuple[int, int], ...]:
        found = []
        for w, r in s.inplace:
            a, b = s.writes[w], s.reads[r]
            if values[a].view_of is None and roots[a] != roots[b] and values[a].nbytes <= values[roots[b]].nbytes:
                found.append((roots[a], roots[b]))
        return tuple(found)

    def run(self, done: int, live: int, n: int) -> tuple[int, int]:
        """(bytes live during step n, bytes live after it), given the steps done and the bytes live before."""
        after = done | 1 << n
        during = live
        for v in self.writes[n]:
            if not self.users[v] & done:
                during += self.size[v]
        freed = 0
        dying = set()
        for v in (*self.reads[n], *self.writes[n]):
            if v not in dying and v not in self.keep and not self.users[v] & ~after:
                dying.add(v)
                freed += self.size[v]
        result = during - freed
        taken: set[int] = set()
        for w, r in self.inplace[n]:
            if (
                r in dying
                and w not in taken
                and r not in taken
                and not self.users[w] & done
                and self.size[w] <= self.size[r]
            ):
                during -= self.size[w]
                taken |= {w, r}
        return during, result

    def ready(self, done: int) -> list[int]:
        return [n for n in range(self.count) if not done >> n & 1 and self.needs[n] & ~done == 0]

    def peak_of(self, order: Sequence[int]) -> int:
        done = live = peak = 0
        for n in order:
            during, live = self.run(done, live, n)
            peak, done = max(peak, during), done | 1 << n
        return peak

    def lower_bound(self) -> int:
        """No order needs less than one step does by itself, in place where it may be."""
        worst = 0
        for n in range(self.count):
            sizes = {v: self.size[v] for v in (*self.reads[n], *self.writes[n])}
            shared: set[int] = set()
            for w, r in self.inplace[n]:
                if w not in shared and r not in shared:
                    shared |= {w, r}
                    sizes[w] = 0
            worst = max(worst, sum(sizes.values()))
        return worst


def _root(values: Sequence[StorageValue], v: int) -> int:
    while True:
        up = values[v].view_of
        if up is None:
            return v
        v = up


def _search(g: _Graph, limit: int) -> tuple[int, tuple[int, ...]] | None:
    """(peak, order) of the best path through the sets of steps; None after `limit` sets."""
    full = (1 << g.count) - 1
    heap: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]  # peak, minus steps done, live, set
    came: dict[int, tuple[int, int]] = {}
    best = {0: 0}
    closed: set[int] = set()
    while heap:
        peak, minus, live, done = heapq.heappop(heap)
        if done in closed:
            continue
        closed.add(done)
        if done == full:
            order: list[int] = []
            while done:
                done, n = came[done]
                order.append(n)
            return peak, tuple(reversed(order))
        if len(closed) > limit:
            return None
        for n in g.ready(done):
            during, after = g.run(done, live, n)
            high, key = max(peak, during), done | 1 << n
            if key not in best or high < best[key]:
                best[key] = high
                came[key] = (done, n)
                heapq.heappush(heap, (high, minus - 1, after, key))
    return None


def _greedy(g: _Graph) -> tuple[int, ...]:
    """Always the step that leaves the least alive; of equals the one that needs least while it runs, then the first."""
    done = live = 0
    order = []
    for _ in range(g.count):
        choices = [(*reversed(g.run(done, live, n)), n) for n in g.ready(done)]
        live, _, n = min(choices)
        order.append(n)
        done |= 1 << n
    return tuple(order)
