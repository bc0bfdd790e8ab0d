"""Limits of one compilation, in operators and seconds. A small file can describe an endless model:
functions that call each other twice, loops in loops."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from .errors import CompileError, ModelError

#: operators and seconds where the options do not say
OPERATORS, SECONDS = 100_000, 7200.0


@dataclass
class Budget:
    """The limits of a compilation that began at `began` (of `time.monotonic`)."""

    operators: int = OPERATORS
    seconds: float = SECONDS
    began: float = field(default_factory=lambda: time.monotonic())


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextlib.contextmanager
def limited(operators: int | None, seconds: float | None) -> Iterator[None]:
    """Hold what is compiled inside to these limits (None: the defaults), unless a compilation is going on already."""
    if _current.get() is not None:
        yield
        return
    token = _current.set(Budget(operators or OPERATORS, seconds or SECONDS))
    try:
        yield
    finally:
        _current.reset(token)


def check_time(stage: str, at: str = "") -> None:
    """CompileError if the compilation has taken longer than it may; `at` says what it was at."""
    budget = _current.get()
    if budget is not None and time.monotonic() - budget.began > budget.seconds:
        raise CompileError(
            f"the compilation takes longer than {budget.seconds:g} s",
            stage=stage,
            operator=at or None,
            hint="allow more with the option deadline (--deadline)",
        )


class Counter:
    """Counts the operators of one import."""

    def __init__(self) -> None:
        self.limit = (_current.get() or Budget()).operators
        self.count = self.before = 0
        self.outermost = ""

    def add(self, label: str, outermost: bool) -> None:
        """One operator; ModelError names that of the model itself which has become too many."""
        if outermost:
            self.before, self.outermost = self.count, label
        self.count += 1
        if self.count > self.limit:
            raise ModelError(
                f"the model has more than {self.limit} operators, of which this one alone has become "
                f"{self.count - self.before}",
                stage="import",
                operator=self.outermost,
                hint="its functions or loops unfold too far; allow more with the option operators (--operators)",
            )
        if self.count % 64 == 0:
            check_time("import", self.outermost)
