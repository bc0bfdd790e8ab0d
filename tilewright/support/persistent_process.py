"""Persistent child processes, which answer one request after another: imports and the MLIR context are made once.

    ask("from tilewright.support.persistent_process import serve; serve(lambda request: 2 * request)", 21)  # 42

A process stays until nobody has asked it for `IDLE` seconds, its memory exceeds `BYTES`, or the caller ends. Each
request brings the caller's environment and current folder. Messages are pickled, on stdin and stdout.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from . import child_processes
from .errors import TilewrightError

#: REST: seconds after which it takes its time to look for garbage; a caller may be at work before, on the same core
IDLE, REST, BYTES = 60.0, 1.0, 1 << 29
#: variables that a process reads only once
_READ_ONCE = ("TILEWRIGHT_MACHINE",)


class Ended(Exception):
    """A process ended without an answer, with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"a process ended with code {code}")
        self.code = code


receive = pickle.load

#: by what they run: the process that nobody uses now, and where it was started
_kept: dict[str, tuple[child_processes.Child, tuple[object, ...]]] = {}
_lock = threading.Lock()


def ask(call: str, request: object) -> Any:
    """What the process that runs these Python statements, which end in `serve`, answers to the request.

    A thread that asks while another one waits has a process of its own. Whatever interrupts the caller ends the
    process. Raises OSError if none can be started, and `Ended`.
    """
    message = pickle.dumps((*child_processes.surroundings(), request))
    place = _place()
    child = _take(call, place)
    if child is not None:
        with contextlib.suppress(Ended):
            return _ask(child, message, call, place)
        if child.returncode:
            raise Ended(child.returncode)
        # it was about to end when it was asked
    return _ask(child_processes.start(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE), message, call, place)


def _ask(child: child_processes.Child, message: bytes, call: str, place: tuple[object, ...]) -> Any:
    assert child.stdin is not None and child.stdout is not None
    try:
        try:
            child.stdin.write(message)
            child.stdin.flush()
            answer = receive(child.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            with contextlib.suppress(OSError):
                child.stdin.close()
            raise Ended(child.wait()) from None
    except BaseException:
        _end(child)
        raise
    with _lock:
        before = _kept.pop(call, None)
        _kept[call] = child, place
    if before is not None:
        _end(before[0])
    return answer


def _take(call: str, place: tuple[object, ...]) -> child_processes.Child | None:
    with _lock:
        child, where = _kept.pop(call, (None, ()))
    if child is not None and (where != place or child.poll() is not None):
        _end(child)
        return None
    return child


def _place() -> tuple[object, ...]:
    """What a process takes from its caller when it starts: its path, where its messages go, the processors it may use,
    what it reads once."""
    with contextlib.suppress(OSError):
        info = os.fstat(2)
        messages = info.st_dev, info.st_ino
        processors = sorted(getattr(os, "sched_getaffinity", lambda _: ())(0))
        return child_processes.import_path(), messages, processors, *map(os.environ.get, _READ_ONCE)
    return (object(),)  # like no other


def _end(child: child_processes.Child) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        assert stream is not None
        with contextlib.suppress(OSError):
            stream.close()
    child.lifeline.close()


def close() -> None:
    """End the processes that nobody uses; the next requests start new ones."""
    with _lock:
        found = list(_kept.values())
        _kept.clear()
    for child, _ in found:
        _end(child)


atexit.register(close)


def _forget() -> None:
    """In a forked process the pipes belong to the parent."""
    global _lock
    _lock = threading.Lock()
    for child, _ in _kept.values():
        child.returncode = 0  # not ours to wait for
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


# ---- in the child --------------------------------------------------------------------------------------------------


def serve(answer: Callable[[Any], object], tidy: Callable[[bool], None] = lambda changed: None) -> None:
    """Answer requests until there are no more, and end the process.

    `tidy` is called with False when an answer is out, and with True before a request that comes with another
    environment than the one before."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print to stdout must not get into the answers
    first = True
    with contextlib.suppress(EOFError):
        while first or child_processes.resident_bytes() <= BYTES or _collected() <= BYTES:
            environment, folder, request = _next()
            if child_processes.surround(environment, folder) and not first:
                tidy(True)
            found = answer(request)
            os.chdir(os.path.abspath(os.sep))  # some systems delete no folder that a process is in
            pickle.dump(found, answers)
            del found, request
            for stream in (answers, sys.stdout, sys.stderr):
                stream.flush()
            first = False
            tidy(False)
    os._exit(0)  # nothing is left to do, and taking apart what MLIR has made takes time


def answer(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, the TilewrightError that it raises, or as text what else it raises: a fault of ours,
    which the caller reports, with the details on stderr."""
    try:
        return function(*arguments)
    except TilewrightError as e:
        return e
    except Exception as e:
        traceback.print_exc()
        return f"{type(e).__name__}: {e}"


def _next() -> Any:
    asked = threading.Event()
    resting = threading.Thread(target=_rest, args=(asked,), daemon=True)
    resting.start()
    try:
        return pickle.load(sys.stdin.buffer)
    finally:
        asked.set()
        resting.join()  # a process of one thread can be forked


def _rest(asked: threading.Event) -> None:
    """What happens while nobody asks."""
    if not asked.wait(REST) and (_collected() > BYTES or not asked.wait(IDLE)):
        os._exit(0)


def _collected() -> int:
    """The bytes of this process without garbage."""
    gc.collect()
    return child_processes.resident_bytes()
