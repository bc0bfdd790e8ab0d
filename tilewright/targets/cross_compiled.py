"""The runner of cross-compiled packages, which cannot run in this process: its error says what to do instead."""

from __future__ import annotations

from typing import NoReturn

from ..support.errors import UsageError
from .base import ProgramRunner


class CrossCompiledRunner(ProgramRunner):
    """Raises an error when run, which says what to do instead."""

    threads = 1

    def __init__(self, name: str, hint: str) -> None:
        self.name, self.hint = name, hint

    def context(self) -> NoReturn:
        raise UsageError(f"code for {self.name} does not run in this process", stage="run", hint=self.hint)

    timed = context
