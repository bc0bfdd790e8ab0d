"""End-to-end measurement: candidates of a kernel timed inside the model.

Alone, a kernel finds its data in the cache; in the model its weights come from memory and its inputs from the other
threads' caches. So the promising candidates of all kernels are also run in the model, one of each at a time in the same
executable, beside the untuned model. What they take there replaces what they took alone: in the search, in what the
cost model learns, and in the results."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..driver.kernel_key import kernel_key
from ..driver.tuning_database import Database, Result
from ..schedule.trace import format_trace
from ..support.errors import TilewrightError
from .measure import Died
from .recheck import by_round, using
from .space import Candidate

if TYPE_CHECKING:
    from ..runtime.executable import Executable
    from .tuner import Tuner

#: candidates up to this ratio alone may turn out to be faster in the model
NEAR = 1.06
#: tasks with a smaller share of the model's time are left as they are
SHARE = 0.004
#: a candidate must be this much faster in the model, in the median of the rounds of two executables, to be kept
KEEP = 0.99
#: races to confirm winners: where the best fails, the next best has its turn
CONFIRM = 5


@dataclass
class InModel:
    """The races of one tuner's candidates in its model. `run` may be called again and goes on.

    `ratios` has the time ratios of every round for each candidate that took part, by task and digest.
    """

    source: object
    options: dict[str, Any]
    tuner: Tuner
    ratios: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    longest: float = 0.0

    def run(self, deadline: float, most: int | None = None) -> None:
        """Race what has not raced yet, the most promising first, until the (monotonic) deadline or `most` races were
        made; then keep what wins again in a last race. At least one race is made."""
        from ..driver.compiler import compile_state

        with tempfile.TemporaryDirectory() as folder:
            self.scratch = Path(folder)
            _, plain = compile_state(self.source, **{**self.options, "tuned": False})
            try:
                group, made = self._group(self._next), 0
                while group:
                    self._race(plain, group)
                    made += 1
                    # one more race must fit, for the winners
                    late = made == most or time.monotonic() + 2.2 * self.longest > deadline
                    group = {} if late else self._group(self._next)
                for _ in range(CONFIRM):
                    group = self._group(self._winner)
                    if not group or self._confirmed(group):
                        break
            finally:
                plain.close()

    # ---- who takes part ----

    def _group(self, choose: Callable[[int], Candidate | None]) -> dict[int, Candidate]:
        """One candidate a task, for the tasks that matter."""
        tasks = self.tuner.tasks
        total = sum(t.seconds for t in tasks)
        found = {i: choose(i) for i, t in enumerate(tasks) if t.seconds >= SHARE * total}
        return {i: c for i, c in found.items() if c is not None}

    def _next(self, i: int) -> Candidate | None:
        """The best of a task that has not been in the model yet."""
        search = self.tuner.searches[i]
        open_ = [(r, c) for r, c in search.ranked if c is not search.space.default and (i, c.digest) not in self.ratios]
        return open_[0][1] if open_ and open_[0][0] <= NEAR else None

    def _winner(self, i: int) -> Candidate | None:
        """The fastest of a task in the model, if it is faster than the default and not what is kept already."""
        search = self.tuner.searches[i]
        raced = [(self.ratio(i, c), c) for _, c in search.ranked if (i, c.digest) in self.ratios]
        if not raced:
            return None
        ratio, best = min(raced, key=lambda r: r[0])
        return best if ratio < KEEP and best is not self.tuner.incumbents[i] else None

    def ratio(self, i: int, c: Candidate) -> float:
        """The time of a candidate in the model over that of the default."""
        return float(np.median(self.ratios[i, c.digest]))

    # ---- races ----

    def _race(self, plain: Executable, group: dict[int, Candidate]) -> None:
        """Run the model with a candidate of each task beside the untuned one, and learn from it."""
        from ..driver.compiler import compile_state

        begin, tuner = time.monotonic(), self.tuner
        database = Database(self.scratch / f"{len(list(self.scratch.iterdir()))}.sqlite")
        try:
            for i, c in group.items():
                number = database.task(tuner.tasks[i].key, tuner.tasks[i].label, tuner.machine)
                database.record(number, Result(c.decisions, c.digest, "", 1.0, 1.0))
            with using(database):
                state, executable = compile_state(self.source, **{**self.options, "tuned": True})
            try:
                rounds, _, _ = by_round(plain, executable)
            finally:
                executable.close()
        finally:
            database.close()
        number_of = {t.key.kernel: i for i, t in enumerate(tuner.tasks)}
        for name, kernel in state.kernels.items():
            i = number_of.get(kernel_key(kernel).kernel, -1)
            if i in group and name in rounds:
                self.ratios.setdefault((i, group[i].digest), []).extend(rounds[name].tolist())
                ratio = self.ratio(i, group[i])
                tuner.searches[i].correct(group[i], ratio)
                tuner.database.correct(tuner.numbers[i], group[i].digest, ratio)
        for i, c in group.items():  # what is not called by its own name in the model cannot be judged there
            self.ratios.setdefault((i, c.digest), [1.0])
        self.longest = max(self.longest, time.monotonic() - begin)

    def _confirmed(self, group: dict[int, Candidate]) -> bool:
        """Race the winners once more, both models in fresh executables, and keep those that win both times and are
        right; whether all were.

        How fast a kernel is depends on where its memory happens to lie: one that is slow in one executable of the
        untuned model would let every candidate win."""
        from ..driver.compiler import compile_state

        before = {i: len(self.ratios[i, c.digest]) for i, c in group.items()}
        _, plain = compile_state(self.source, **{**self.options, "tuned": False})
        try:
            self._race(plain, group)
        finally:
            plain.close()
        good = True
        for i, c in group.items():
            again = float(np.median(self.ratios[i, c.digest][before[i] :] or [1.0]))
            default = seconds_a_call(self.tuner, i)
            doubtful = self.tuner.doubtful(i, default * self.ratio(i, c), default)
            if max(again, self.ratio(i, c)) < KEEP and not doubtful and self._right(i, c):
                self._keep(i, c)
            else:
                self.ratios[i, c.digest] = [max(again, self.ratio(i, c), KEEP)]
                good = False
        return good

    def _right(self, i: int, c: Candidate) -> bool:
        """Whether a candidate computes what the kernel's IR means."""
        tuner = self.tuner
        try:
            race = tuner.meter.contest(tuner.subject(i), tuner.searches[i].space.default, c, c)
        except (Died, TilewrightError) as e:
            tuner.reject(i, c, getattr(e, "status", "build"))
            return False
        if race.error > max(1.0, 1.5 * race.default_error):
            tuner.reject(i, c, "wrong")
            return False
        return True

    def _keep(self, i: int, c: Candidate) -> None:
        """Make a candidate the task's result, whatever was better alone."""
        tuner, ratio = self.tuner, self.ratio(i, c)
        seconds = seconds_a_call(tuner, i)
        number = tuner.numbers[i]
        old = tuner.database.result(tuner.tasks[i].key.kernel, tuner.machine)
        if old is not None:
            tuner.database.withdraw(number, old.digest)
        trace = format_trace(c.schedule)
        tuner.database.record(number, Result(c.decisions, c.digest, trace, seconds * ratio, seconds))
        tuner.settle(i, ratio, c)


def seconds_a_call(tuner: Tuner, i: int) -> float:
    """What a call of a task's kernel takes in the model."""
    return tuner.tasks[i].seconds / max(tuner.tasks[i].calls, 1)


__all__ = ["InModel"]
