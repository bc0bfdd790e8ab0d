"""Garbage collection during a compilation, which makes many objects that stay, and few that refer to themselves."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: new objects until a collection: a large model makes about 300,000 that stay. Python's 700 cost a seventh of the time
OBJECTS = 500_000


def collect_rarely() -> None:
    """In a process that does nothing but compile."""
    gc.set_threshold(OBJECTS, 20, 50)


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Inside: the process collects rarely, as `collect_rarely` or another thread may have asked already."""
    often = gc.get_threshold()
    if not 0 < often[0] < OBJECTS:
        yield
        return
    gc.set_threshold(OBJECTS, *often[1:])
    try:
        yield
    finally:
        gc.set_threshold(*often)


__all__ = ["collect_rarely", "rarely_collected"]
