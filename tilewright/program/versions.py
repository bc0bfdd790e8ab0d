"""Program versions: which sizes have a program of their own, how many are kept, and which goes first.

A program whose sizes are open has two kinds of versions. A *fixed* one serves one combination of sizes, its key; an
*open* one all sizes in its ranges. A call gets the fixed version of its key, else an open one that takes the key. If
there is neither, one is made: by the thread that calls, while others that need the same one wait (`making`), or in the
background, once a key has been called often enough (`Demand`), while an open version serves the calls.

How versions are made is the matter of those who have them: `runtime/staged.py` (subgraphs),
`runtime/open_versions.py` (models whose dimensions have no ranges), `runtime/background.py` (in another process),
`compat/torch_dynamic_shapes.py` (PyTorch's graphs).
What a program computes for each combination of sizes, beside its code, is kept in the same way.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")  # combinations of sizes
V = TypeVar("V")  # versions for one of them
R = TypeVar("R")  # versions for ranges

#: the range of an open version goes to so many times the size that it is made for
TIMES = 16
#: keys of which it is known which open version takes them
BOUND = 4096
#: keys whose versions were dropped and are remembered, to tell when one is made again
DROPPED = 1024

#: held while a version is made: MLIR is not for several threads
_making = threading.RLock()


def reach(size: int, least: int) -> int:
    """Where the range of a dimension ends that is made for a size: far beyond it, and at least at `least`.

    >>> reach(3, 64), reach(100, 64)
    (64, 1600)
    """
    return max(least, TIMES * size)


@contextmanager
def making() -> Iterator[None]:
    """While this thread makes a version, others that want to make one wait."""
    with _making:
        yield


@dataclass(frozen=True)
class Limits:
    """How many fixed versions are kept: `count` in any case, and up to `most` as long as all of them together take no
    more than `nbytes`."""

    count: int
    most: int = 0
    nbytes: int = 0


class Versions(OrderedDict[K, V], Generic[K, V, R]):
    """The fixed versions by key, the one used last at the end, and the `open` ones, the newest first.

    Threads may look keys up and `keep` versions at the same time; `widen` is called by one at a time (`making`).

    >>> kept = Versions(Limits(2))
    >>> for key in "abac":
    ...     kept.used(key) or kept.keep(key, key.upper())
    []
    []
    'A'
    [('b', 'B')]
    """

    def __init__(
        self,
        limits: Limits,
        nbytes: Callable[[V], int] = lambda version: 0,
        bind: Callable[[R, K], V | None] = lambda version, key: None,
        covers: Callable[[R, R], bool] = lambda version, other: False,
        drop: Callable[[R], None] = lambda version: None,
        most: int = 1024,
        bound: int = BOUND,
    ) -> None:
        """`nbytes` says what a fixed version takes. `bind` makes of an open one the version of a key, None if it does
        not take that; `covers` says whether one serves all that another one does, which is then dropped, as `drop`
        does. The `most` latest open ones are kept, and `bound` keys that they serve."""
        super().__init__()
        self.limits, self.nbytes, self._bind, self._covers, self._drop = limits, nbytes, bind, covers, drop
        self._most, self._most_bound = most, bound
        self.open: list[R] = []
        #: open versions, bound to keys
        self.bound: dict[K, V] = {}
        self._dropped: deque[int] = deque(maxlen=DROPPED)

    def used(self, key: K) -> V | None:
        """The fixed version of a key, which is now the one used last."""
        found = self.get(key)
        if found is not None:
            with suppress(KeyError):  # without a lock: it may have been dropped meanwhile
                self.move_to_end(key)
        return found

    def served(self, key: K) -> V | None:
        """The latest open version that takes a key, bound to it."""
        found = self.bound.get(key)
        if found is None and self.open:
            found = next((v for o in list(self.open) if (v := self._bind(o, key)) is not None), None)
            if found is not None:
                if len(self.bound) >= self._most_bound:
                    self.bound.clear()
                self.bound[key] = found
        return found

    def obtain(self, key: K, widen: Callable[[], R | None], make: Callable[[], V] | None = None) -> V | None:
        """The version for a key. Where there is none, one thread makes it while others wait: an open one, if `widen`
        can, else a fixed one by `make`."""
        found = self.used(key) or self.served(key)
        if found is None:
            with making():
                found = self.used(key) or self.served(key)
                if found is None and (wider := widen()) is not None:
                    self.widen(wider)
                    found = self.served(key)
                if found is None and make is not None:
                    found = make()
                    self.keep(key, found)
        return found

    def keep(self, key: K, version: V) -> list[tuple[K, V]]:
        """Add a fixed version. Returns those that make room, the ones used longest ago."""
        self.pop(key, None)  # to the end; `move_to_end` of one that another thread drops meanwhile is an error
        self[key] = version
        gone = []
        while self.full():
            gone.append(self.popitem(last=False))
            self._dropped.append(hash(gone[-1][0]))
        return gone

    def full(self, more: int = 0) -> bool:
        """Whether there are too many, or would be with so many `more` of the average size."""
        count = len(self) + more
        if count <= self.limits.count or count > self.limits.most:
            return count > self.limits.count
        return sum(map(self.nbytes, list(self.values()))) * count > self.limits.nbytes * max(len(self), 1)

    def again(self, key: K) -> bool:
        """Whether a version of this key was dropped before."""
        return hash(key) in self._dropped

    def widen(self, version: R) -> None:
        """Add an open version. Those that serve no more than it does go."""
        others = [(o, self._covers(version, o)) for o in self.open]
        kept = [version, *(o for o, covered in others if not covered)]
        self.open, gone = kept[: self._most], [*kept[self._most :], *(o for o, covered in others if covered)]
        if gone:
            self.bound.clear()
        for o in gone:
            self._drop(o)


class Demand(Versions[K, "deque[int]", None]):
    """When keys without a fixed version were called: the last `calls` times, of the `most` keys that came last."""

    def __init__(self, calls: int, most: int) -> None:
        super().__init__(Limits(most))
        self.calls, self._clock = calls, itertools.count(1)

    def now(self) -> int:
        """A number that is larger in every call."""
        return next(self._clock)

    def called(self, key: K) -> None:
        """Count a call."""
        times = self.get(key)
        if times is None:
            self.keep(key, times := deque(maxlen=self.calls))
        times.append(self.now())

    def since(self, key: K) -> int:
        """When the first of the calls was that are enough for a version of its own; 0 if there were fewer."""
        times = self.get(key)
        return times[0] if times and len(times) == self.calls else 0


def _after_fork() -> None:
    """The thread that was making a version lives in the parent only: the child makes it anew."""
    global _making
    _making = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

__all__ = ["BOUND", "Demand", "Limits", "Versions", "making", "reach"]
