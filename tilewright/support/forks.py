"""Fork safety of locks. A forked process has one thread: a lock that another one held is never released in it, and
what that thread was about to change is left half-changed."""

from __future__ import annotations

import os
import threading

#: seconds that a fork waits for a lock
PATIENCE = 30.0


def wait_for(lock: threading.Lock | threading.RLock) -> None:
    """Let forks wait until this lock is free, which is held for a short time: what it guards is whole in the child.

    A lock that is taken while another is held must come before that one: forks take the latest first."""
    held: list[bool] = []

    def before() -> None:
        held.append(lock.acquire(timeout=PATIENCE))

    def after() -> None:
        if held.pop():
            lock.release()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)
