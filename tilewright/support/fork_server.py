"""A fork server: a process that forks others, which have what it imported and built from their first moment.

    server = start("tilewright.codegen.llvm.worker", "")  # it calls the function `prepare` of this module
    child = server.fork(log)                              # it calls `work`: requests on stdin, answers on stdout

A fork is safe in a process of one thread: no other one holds a lock that the child would wait for. (The threads of
NumPy's BLAS end before a fork.) A process of our own forks its server from itself while it has one; the server of any
other process is a new interpreter. A server runs nothing else, so it lives on when what it forked crashes.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Sequence
from importlib import import_module
from typing import IO, NoReturn

from . import child_processes

_NUMBERS = struct.Struct("<qq")


class Forked:
    """What a server forked. It is used like a `child_processes.Child`, and ends like one when who asked for it does."""

    def __init__(self, server: ForkServer, log: IO[bytes]) -> None:
        (requests, to), (of, answers), (line, held) = os.pipe(), os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(to, "wb"), os.fdopen(of, "rb")
        self.lifeline = child_processes.Lifeline(held)
        weakref.finalize(self, self.lifeline.close)
        self.returncode: int | None = None
        self._server = server
        try:
            self.pid, _ = server.ask(0, (requests, answers, log.fileno(), line))
        finally:
            for fd in (requests, answers, line):
                os.close(fd)
        pickle.dump(child_processes.surroundings(), self.stdin)
        self.stdin.flush()

    def kill(self) -> None:
        self.lifeline.close()

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = self._server.ask(self.pid)
            except OSError:  # the server is gone, and with it who knows how this one ends
                self.kill()
                pid, status = self.pid, signal.SIGKILL
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(0.002)
        return code


class ForkServer:
    """A server, on the side of who asks; threads may share it."""

    def __init__(self, asking: socket.socket, process: child_processes.Child | None) -> None:
        self._asking, self._process, self._lock = asking, process, threading.Lock()

    @property
    def alive(self) -> bool:
        return self._asking.fileno() >= 0

    def fork(self, log: IO[bytes]) -> Forked:
        """A new process, whose messages go to `log`. OSError if the server is gone."""
        return Forked(self, log)

    def ask(self, pid: int, fds: Sequence[int] = ()) -> tuple[int, int]:
        """The new process that gets `fds`; without them what `os.waitpid` says now of this one."""
        with self._lock:
            try:
                socket.send_fds(self._asking, [_NUMBERS.pack(pid, 0)], fds)
                first, second = _NUMBERS.unpack(self._asking.recv(_NUMBERS.size))
            except struct.error:
                self._asking.close()
                raise ConnectionError("the fork server has ended") from None
            except BaseException:  # interrupted: the answer must not be the next one's
                self._asking.close()
                raise
        return first, second


def start(module: str, what: str) -> ForkServer | None:
    """A server that has called ``module.prepare(what)``, and whose children call ``module.work()``. None if there is
    none: systems other than Linux do not promise that a forked process works.

    Raises what `prepare` raises in this process."""
    if sys.platform != "linux":
        return None
    asking, asked = socket.socketpair()
    fd = asked.fileno()
    with asked:
        if child_processes.can_fork():
            import_module(module).prepare(what)
            gc.freeze()  # what is there stays, in memory that all share as long as nobody writes to it
            if not os.fork():
                _serve(fd, module)
            return ForkServer(asking, None)
        call = f"from {__name__} import serve; serve({fd}, {module!r}, {what!r})"
        return ForkServer(asking, child_processes.start(call, pass_fds=(fd,), stdin=subprocess.DEVNULL))


# ---- in the server -------------------------------------------------------------------------------------------------


def serve(fd: int, module: str, what: str) -> NoReturn:
    """Be a server, in a process that was started for it."""
    import_module(module).prepare(what)
    gc.freeze()
    _serve(fd, module)


def _serve(fd: int, module: str) -> NoReturn:
    try:
        child_processes.leave_files(fd)
        asked = socket.socket(fileno=fd)
        while True:
            message, fds, _, _ = socket.recv_fds(asked, _NUMBERS.size, 4)
            if not message:
                os._exit(0)
            if not fds:
                asked.sendall(_NUMBERS.pack(*os.waitpid(_NUMBERS.unpack(message)[0], os.WNOHANG)))
                continue
            pid = os.fork()
            if not pid:
                asked.close()
                _work(fds, module)
            for copy in fds:
                os.close(copy)
            asked.sendall(_NUMBERS.pack(pid, 0))
    finally:
        os._exit(1)


def _work(fds: Sequence[int], module: str) -> NoReturn:
    try:
        for i, fd in enumerate(fds[:3]):
            os.dup2(fd, i)
            os.close(fd)
        child_processes.enter(fds[3])
        requests = os.fdopen(0, "rb")
        sys.stdin = io.TextIOWrapper(requests)
        child_processes.surround(*pickle.load(requests))
        import_module(module).work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)
