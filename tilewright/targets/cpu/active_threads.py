"""The active thread count: how many threads a run gets: no more than there are processors for them, and fewer on a
machine that others use as well.

How many processors there are is asked again once in a while (`PERIOD`): a control group may get another quota and a
process another affinity mask while it runs. More threads than that would only wait for each other.

Threads that share a job wait for each other at barriers. If another process has one of their cores, the system lets the
thread there stand for some milliseconds, and all others wait as long: with a neighbour, two threads can be slower than
one. A program therefore leaves the time that its threads have waited, and a `Team` takes a thread out while that pays.

Of n threads, one stands for a time P of a run T while n - 1 wait. The work done is n (T - P); n - 1 threads with a core
each would do it in n (T - P) / (n - 1), which is less than T if P > T / n.
"""

from __future__ import annotations

from time import perf_counter

#: slow runs, less the good ones between them, after which a thread is taken out
STRIKES = 3
#: seconds until the thread is tried again: the first time, and at most, as it is doubled every time it is in vain
FIRST, LAST = 0.02, 4.0
#: how many times as long as it took to see that a trial was in vain, at least, until the next one
REST = 10
#: seconds from one look at the number of processors to the next
PERIOD = 1.0


class Team:
    """The number of threads of the next run, from what the last ones were like.

    >>> team = Team(2)
    >>> [team.after(ran=100, waited=70) for _ in range(3)]
    [2, 2, 1]
    """

    def __init__(self, threads: int) -> None:
        self.threads = self.most = self.size = threads
        self._strikes = 0
        self._patience, self._again = FIRST, 0.0
        self._tried: float | None = None  # since when the thread that was tried last is on probation

    @property
    def busy(self) -> bool:
        """Whether there was something lately that the next runs have to be judged by, even if nothing waited."""
        return self._strikes > 0 or self.size < self.most

    def allow(self, processors: int) -> int:
        """The size from now on, as there are so many processors for the threads.

        >>> team = Team(4)
        >>> team.allow(2), team.allow(8)
        (2, 4)
        """
        most = max(1, min(self.threads, processors))
        if most != self.most:
            self.most = self.size = most
            self._strikes, self._patience, self._tried = 0, FIRST, None
        return self.size

    def after(self, ran: int, waited: int) -> int:
        """The size for the run after one of `ran` ticks, in which the threads waited long for `waited` ticks in all.

        Runs with a single thread leave 0 and 0."""
        if self.size > 1:
            crowded = waited * self.size > ran * (self.size - 1)
            self._strikes += 1 if crowded else -1 if self._strikes > 0 else 0
            if self._strikes == 0:
                self._tried = None
                if self.size == self.most:
                    self._patience = FIRST
            if self._strikes >= STRIKES:
                self._leave()
                return self.size
        if self.size < self.most and perf_counter() >= self._again:
            self.size += 1
            self._strikes = STRIKES - 2  # out again after two slow runs: the first is, as the thread must wake up
            self._tried = perf_counter()
            self._again = self._tried + self._patience
        return self.size

    def _leave(self) -> None:
        self.size -= 1
        self._strikes = 0
        now = perf_counter()
        if self._tried is not None:
            self._patience = min(max(self._patience, REST * (now - self._tried)), LAST)
        self._again = now + self._patience
        self._patience = min(2 * self._patience, LAST)
