"""What a forked process does, and whether a process ends, for tests of processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path


def in_child(work: Callable[[], bool]) -> int:
    """The exit code of a forked process that does this: 0 if it returns True; it is ended after two minutes."""
    pid = os.fork()
    if not pid:
        threading.Thread(target=lambda: (time.sleep(120), os._exit(99)), daemon=True).start()
        code = 98
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def ended(pid: int) -> bool:
    """Whether the process ends in time."""
    for _ in range(6000):
        state = Path(f"/proc/{pid}/stat")
        try:
            os.kill(pid, 0)
            if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False
