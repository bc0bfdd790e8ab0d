"""Running the application: a socket, signals, and an end within a limit."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from ...support.errors import TilewrightError, UsageError


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. UsageError if that is not possible."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # asyncio sends small pieces at once (TCP_NODELAY) only where the protocol is given: else each may wait 40 ms
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if os.name != "nt":  # Windows would share the port with another server
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(1024)
    except (OSError, OverflowError, UnicodeError) as error:
        hint = "another --host or --port; 0 takes a free one"
        raise UsageError(f"cannot listen on {host}:{port}: {error}", stage="serve", hint=hint) from None
    return made


def is_local(host: str) -> bool:
    """Whether only programs on this machine can reach it.

    >>> is_local("127.0.0.1"), is_local("localhost"), is_local("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Server(uvicorn.Server):
    """Ends within `limit` seconds of the first SIGTERM or Ctrl-C: requests may finish until shortly before, then
    `stop` ends them with an error that their clients can read."""

    def __init__(self, config: uvicorn.Config, limit: float, stop: Callable[[], object]) -> None:
        super().__init__(config)
        self._limit, self._stop = limit, stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self._later(max(self._limit - 1.0, self._limit / 2), self._end)
            self._later(self._limit, lambda: os._exit(1))  # a step or a run that does not end
        super().handle_exit(sig, frame)

    def _later(self, seconds: float, function: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, function)
        timer.daemon = True
        timer.start()

    def _end(self) -> None:
        with contextlib.suppress(TilewrightError):  # it does not end in time
            self._stop()


def serve(app: Any, sock: socket.socket, limit: float, stop: Callable[[], object]) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(limit - 0.5, limit / 2),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
    )
    handlers = {s: signal.signal(s, lambda *_: None) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        _Server(config, limit, stop).run(sockets=[sock])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


__all__ = ["is_local", "listen", "serve"]
