"""Lookup of tuned schedules in the tuning database: the schedule of a kernel, if it was tuned for this machine and
still means the same, and why it is not used otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ..graph.choose_winograd import ALGORITHMS, Layer
from ..schedule.machine import Machine as Description
from ..schedule.rules import Scheduled, schedule
from ..support.errors import TilewrightError
from ..support.options import get
from ..targets.base import Coprocessor, Target
from ..tensor.kernel import Kernel
from .kernel_key import Key, kernel_key, layer_key, nest_digest

if TYPE_CHECKING:
    from .tuning_database import Database, Machine, Result

log = logging.getLogger("tilewright")
#: what has results: a kernel, or a convolution
_Work = TypeVar("_Work")


@dataclass
class Tuned:
    """Results for one compilation. A database that is not there or cannot be read is the same as an empty one;
    `problem` tells why.

    `used` has the result for every kernel (by name) that was scheduled with one, `algorithms` the way and the result
    for every convolution (by its sizes) whose way was measured; `unused` why a result that there is was not taken, by
    kernel or convolution.
    """

    machine: Machine | None
    #: the coprocessor, if the target has one whose kernels are planned
    coprocessor: Machine | None = None
    database: Database | None = None
    problem: str = ""
    used: dict[str, Result] = field(default_factory=dict)
    algorithms: dict[Layer, tuple[str, Result]] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def open(target: Target, description: Description, threads: int) -> Tuned:
        path = get("TILEWRIGHT_DB")
        if not path.is_file():
            return Tuned(None)
        chip = target.coprocessor
        coprocessor = None if chip is None else coprocessor_machine(chip)
        host = target if chip is None else chip.host
        tuning = None if host is None else host.tuning()
        if not (tuning or coprocessor):
            return Tuned(None)
        from .tuning_database import Database, Machine

        machine = None
        if host is not None and tuning is not None:
            features, toolchain = tuning.measured_on(description)
            machine = Machine(host.name, features, threads, toolchain)
        return Tuned(machine, coprocessor, Database(path, read_only=True))

    def joined(self, other: Tuned) -> Tuned:
        """What was used and what was not, with that of another of several devices."""
        self.used.update(other.used)
        self.unused.update(other.unused)
        self.problem = self.problem or other.problem
        return self

    def close(self) -> None:
        if self.database is not None:
            self.database.close()

    def knows(self, kernel: Kernel) -> bool:
        """Whether the database has a result for a kernel (that may turn out not to mean the same any more)."""
        return self._result(kernel_key, kernel, self.machine) is not None

    def plan(self, kernel: Kernel) -> tuple[dict[str, Any], str] | None:
        """The decisions of a tuned plan for the coprocessor, and the plan that they led to."""
        result = self._result(kernel_key, kernel, self.coprocessor)
        return (result.decisions, result.digest) if result is not None else None

    def taken(self, kernel: Kernel, why: str) -> None:
        """Note that the coprocessor runs a kernel with its tuned plan, or `why` it does not."""
        result = self._result(kernel_key, kernel, self.coprocessor)
        if result is not None and not why:
            self.used[kernel.name] = result
        elif result is not None:
            self._leave(kernel.name, why)

    def schedule(self, kernel: Kernel, description: Description) -> Scheduled:
        """The schedule of a kernel, tuned if possible.

        A result counts only if its decisions lead to the very nest that was measured: another version of the rules may
        mean something else by them."""
        result = self._result(kernel_key, kernel, self.machine)
        if result is not None:
            try:
                made = schedule(kernel, description, result.decisions)
                if nest_digest(made.nest) == result.digest:
                    self.used[kernel.name] = result
                    return made
                self._leave(kernel.name, "its decisions lead to another loop nest now than the one that was measured")
            except TilewrightError as e:
                self._leave(kernel.name, f"its decisions are refused: {e.message}")
        return schedule(kernel, description)

    def way(self, layer: Layer) -> str | None:
        """How a convolution is to be computed (see the pass `winograd`), None if nothing better than the estimate was
        found."""
        result = self._result(layer_key, layer, self.machine)
        way = result.decisions.get("way") if result is not None else None
        if result is None:
            return None
        if way not in ALGORITHMS:
            self._leave(layer.described("direct").partition(" by ")[0], f"there is no way {way!r}")
            return None
        self.algorithms[layer] = way, result
        return str(way)

    def _leave(self, what: str, why: str) -> None:
        """Note that a result is not used."""
        self.unused[what] = why
        log.info("%s", _note(what, why))

    def notes(self) -> list[str]:
        """What `explain` tells of the database: that it could not be read, and which results were not used."""
        return [self.problem] * bool(self.problem) + [_note(what, why) for what, why in self.unused.items()]

    def _result(self, key: Callable[[_Work], Key], what: _Work, machine: Machine | None) -> Result | None:
        if self.database is None or machine is None:
            return None
        import sqlite3

        known = key(what)
        try:
            return self.database.result(known.kernel, machine)
        except (TilewrightError, sqlite3.Error, ValueError, TypeError) as e:
            self.problem, self.database = f"the tuning database was not used: {e}".split("\n")[0], None
            return None


def coprocessor_machine(chip: Coprocessor) -> Machine | None:
    """What plans of the processor beside a host are valid for, if its kernels are planned; it has no threads."""
    from .tuning_database import Machine

    if (told := chip.tuned_on()) is None:
        return None
    name, design, version = told
    return Machine(name, design, 1, version)


def _note(what: str, why: str) -> str:
    return f"the tuned result of {what} was not used: {why}; tune it again"


__all__ = ["Tuned", "coprocessor_machine"]
