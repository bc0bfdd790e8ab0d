"""Collects the errors that wgpu reports outside of any call: it logs them, from any of its threads."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


class Watch(logging.Handler):
    """Errors in wgpu's log, while somebody looks. wgpu has callbacks for lost devices and for errors of the GPU, but
    gives them to nobody: its log is the only place to hear of them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] | None = None
        logging.getLogger("wgpu").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if self.said is not None:
            self.said.append(record.getMessage())

    @contextlib.contextmanager
    def looking(self) -> Iterator[list[str]]:
        """What is logged meanwhile; one at a time, or within another: `WgpuDevice.lock` sees to that."""
        before, self.said = self.said, []
        try:
            yield self.said
        finally:
            if before is not None:
                before.extend(self.said)
            self.said = before


__all__ = ["Watch"]
