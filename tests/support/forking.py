"""What a forked process does, for tests of forks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable


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
