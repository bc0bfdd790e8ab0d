"""The progress line of a compilation on the terminal: the stage, and how many kernels are done.

It is on stderr, only if that is a terminal, only after half a second, and gone when the compilation ends. The
environment variable TILEWRIGHT_PROGRESS=0 turns it off.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from .options import get

if TYPE_CHECKING:
    from rich.status import Status

#: seconds of silence before the line appears: what is quicker needs none
DELAY_S = 0.5
#: False: no line on any terminal (the command line's --quiet)
allowed = True
#: whether a line is on the terminal: what is compiled within a compilation, or beside it, has none
_shown = False


class Progress:
    """The line of one compilation; a context manager.

    >>> with Progress("model") as progress:
    ...     progress.stage("schedule")
    ...     progress.kernel(12, 26, "matmul_add")
    >>> progress.text
    'compiling model: schedule, kernel 12/26'
    """

    def __init__(self, name: str, quiet: bool = False) -> None:
        """`quiet`: something else writes to the terminal meanwhile."""
        self.name, self._stage = "".join(c if c.isprintable() else "?" for c in name), ""
        self.text = f"compiling {self.name}"
        self._begin = time.monotonic()
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._wanted = allowed and not quiet and terminal and get("TILEWRIGHT_PROGRESS")
        self._status: Status | None = None

    def stage(self, name: str) -> None:
        """A stage begins."""
        self._stage = name
        self._show(name)

    def kernel(self, done: int, count: int, symbol: str = "") -> None:
        """So many kernels of the stage are done."""
        self._show(f"{self._stage}, kernel {done}/{count}")

    def _show(self, what: str) -> None:
        self.text = f"compiling {self.name}: {what}"
        global _shown
        if not self._wanted or time.monotonic() - self._begin < DELAY_S:
            return
        if self._status is None:
            if _shown:
                return
            from rich.console import Console

            _shown = True
            self._status = Console(stderr=True).status("")
            self._status.start()
        from rich.text import Text

        self._status.update(Text(self.text))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        global _shown
        if self._status is not None:
            self._status.stop()
            _shown = False


__all__ = ["Progress"]
