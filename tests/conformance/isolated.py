"""A function applied to many items in worker processes: a crash, a hang or too much memory costs one item."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
#: items after which a worker process is replaced, so that memory stays bounded
ITEMS_PER_WORKER = 150
#: seconds between two looks at the workers, one second apart, that show that the machine or we were suspended
ASLEEP = 5


def _serve(function: Callable, items: Sequence[Any], connection: Connection, memory: int | None) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what C++ libraries print
    if memory is not None and sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    while True:
        position = connection.recv()
        if position is None:
            return
        connection.send(function(items[position]))


class _Worker:
    """One process and the item it is at."""

    def __init__(self, function: Callable, items: Sequence[Any], memory: int | None) -> None:
        # forked: what the parent has prepared is there at once (nothing of the compiler should be loaded in it)
        context = multiprocessing.get_context("fork" if sys.platform != "win32" else "spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(function, items, other, memory), daemon=True)
        self.process.start()
        other.close()
        self.position, self.started, self.done = -1, 0.0, 0

    def give(self, position: int) -> None:
        self.position, self.started = position, time.monotonic()
        self.connection.send(position)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def run_isolated(
    items: Sequence[Item],
    function: Callable[[Item], Outcome],
    lost: Callable[[Item, str, str, float], Outcome],
    *,
    workers: int = 2,
    timeout: float = 60,
    memory: int | None = None,
    progress: Callable[[Outcome], None] | None = None,
    seconds: float | None = None,
) -> list[Outcome]:
    """function(item) of all items, in order.

    For an item whose worker died or took longer than `timeout` seconds it is ``lost(item, "crash" or "hang", what
    happened, seconds)``. `memory` bounds the address space of a worker, in bytes. After `seconds` no new item is begun,
    and the results
    of those that were are returned.
    """
    results: dict[int, Outcome] = {}
    waiting = list(range(len(items)))[::-1]
    team: list[_Worker] = []
    begun = time.monotonic()

    def finish(worker: _Worker, result: Outcome, *, gone: bool = False) -> None:
        results[worker.position] = result
        worker.done += 1
        if progress:
            progress(result)
        if seconds is not None and time.monotonic() - begun > seconds:
            waiting.clear()
        gone = gone or worker.done >= ITEMS_PER_WORKER
        if gone or not waiting:
            worker.stop()
            team.remove(worker)
        if gone and waiting:
            worker = _Worker(function, items, memory)
            team.append(worker)
        if waiting:
            worker.give(waiting.pop())

    for _ in range(min(workers, len(items))):
        team.append(_Worker(function, items, memory))
        team[-1].give(waiting.pop())
    woken = time.monotonic()
    while team:
        ready = wait([w.connection for w in team], timeout=1)
        last, woken = woken, time.monotonic()
        if woken - last > ASLEEP:  # everything was stopped, the workers too: that is no hang
            for worker in team:
                worker.started += woken - last
        for worker in list(team):
            passed = round(time.monotonic() - worker.started, 3)
            item = items[worker.position]
            if worker.connection in ready:
                try:
                    found = worker.connection.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    why = f"the process ended with {worker.process.exitcode}"
                    finish(worker, lost(item, "crash", why, passed), gone=True)
                else:
                    finish(worker, found)
            elif passed > timeout:
                finish(worker, lost(item, "hang", f"no result after {timeout:g} s", passed), gone=True)
    return [results[i] for i in sorted(results)]
