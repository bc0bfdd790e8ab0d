"""The protocol of `tilewright runner`: JSON messages over TCP, authenticated with a key that both sides have.

Each side sends `HELLO` and 32 random bytes. Both make the key of this connection from them and the key that they share.
From then on every message is its length (4 bytes), the HMAC-SHA256 of its direction, number and text under the
connection's key, and the text. The first message of each side, the tuner's before the runner's, says nothing: its HMAC
shows that its sender has the key. A message that was changed, repeated or left out ends the connection, and none is
read as JSON before its HMAC is right. Nothing is encrypted: kernels can be read by who listens. Only JSON is read from
the network, never objects of Python.

`multiprocessing.connection` proves the key when a connection begins and trusts what comes after it. Here that is native
code to run, so every message is authenticated, and a partner that stops within one must not hold the other up."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..support.errors import UsageError
from ..support.options import get
from .remote_runners import Lost, RunnerHost

VERSION = 2
#: what each side begins with, and the random bytes after it
HELLO, NONCE = b"tilewright-runner %d\n" % VERSION, 32
#: bytes of an HMAC; of one message, and of one before the other side has proved itself
SEAL, LIMIT, GREETING = 32, 64 << 20, 64
#: seconds for the handshake, and for the answer to a request
HANDSHAKE, PATIENCE = 10.0, 1800.0
KEY_BYTES = 16


class Refused(Exception):
    """The other side broke the protocol or does not have the key."""


def key_from(text: str | None) -> bytes:
    """The key as bytes; UsageError if it is absent or too short.

    >>> key_from("sixteen bytes or more")
    b'sixteen bytes or more'
    """
    value = (text if text is not None else get("TILEWRIGHT_RUNNER_KEY") or "").strip().encode()
    if len(value) < KEY_BYTES:
        raise UsageError(
            f"a runner's key has {len(value)} bytes, it must have {KEY_BYTES} or more",
            stage="tune",
            hint="set TILEWRIGHT_RUNNER_KEY on both sides: python -c 'import secrets; print(secrets.token_hex(16))'",
        )
    return value


class Channel:
    """One authenticated connection; `send` and `receive` take turns on both sides."""

    def __init__(self, connection: socket.socket, key: bytes, *, serves: bool) -> None:
        self.connection = connection
        self.sent = self.received = 0
        self.mine, self.theirs = (b"runner", b"tuner") if serves else (b"tuner", b"runner")
        connection.settimeout(HANDSHAKE)
        nonce = secrets.token_bytes(NONCE)
        connection.sendall(HELLO + nonce)
        hello = self._exactly(len(HELLO) + NONCE)
        if not hello.startswith(HELLO):
            raise Refused(f"it does not speak version {VERSION} of the protocol of runners")
        other = hello[len(HELLO) :]
        nonces = nonce + other if serves else other + nonce
        self.session = hmac.digest(key, HELLO + nonces, "sha256")
        if serves:
            self._receive(GREETING, "the key is wrong")
            self.send(None)
        else:
            self.send(None)
            try:
                self._receive(GREETING, "the runner does not have the key")
            except EOFError:
                raise Refused("the key is wrong") from None
        connection.settimeout(PATIENCE)

    # ---- messages ----

    def send(self, message: object) -> None:
        text = json.dumps(message).encode()
        data = self._seal(self.mine, self.sent, text) + text
        if len(data) > LIMIT:
            raise Refused(f"a message of {len(data)} bytes is too long")
        self.connection.sendall(struct.pack("<I", len(data)) + data)
        self.sent += 1

    def receive(self) -> Any:
        """The next message; EOFError if the connection has ended, Refused if it is not authentic."""
        return self._receive(LIMIT, "a message is not authentic")

    def _receive(self, limit: int, forged: str) -> Any:
        (length,) = struct.unpack("<I", self._exactly(4))
        if length > limit:
            raise Refused(f"a message of {length} bytes is too long")
        data = self._exactly(length)
        seal, text = data[:SEAL], data[SEAL:]
        if not hmac.compare_digest(seal, self._seal(self.theirs, self.received, text)):
            raise Refused(forged)
        self.received += 1
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise Refused("a message is no JSON") from None

    def _seal(self, who: bytes, number: int, text: bytes) -> bytes:
        return hmac.digest(self.session, who + struct.pack("<Q", number) + text, "sha256")

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.connection.recv(min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.close()


# ---- the tuner's side ----------------------------------------------------------------------------------------------


def address_of(text: str) -> tuple[str, int]:
    """(host, port) of ``HOST:PORT``; UsageError for anything else.

    >>> address_of("board:7070"), address_of("[::1]:7070")
    (('board', 7070), ('::1', 7070))
    """
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise UsageError(f"{text!r} is no address of a runner", stage="tune", hint="HOST:PORT or ray://ADDRESS")
    return host.strip("[]"), int(port)


class TcpLink:
    """The connection to a `tilewright runner`."""

    def __init__(self, text: str, key: bytes) -> None:
        self.name, self.key = text, key
        self.address = address_of(text)
        self.channel: Channel | None = None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if self.channel is None:
                self.revive()
            assert self.channel is not None
            self.channel.send(request)
            return self.channel.receive()
        except (OSError, EOFError, Refused) as e:
            self.close()
            raise Lost(str(e) or "it closed the connection") from None

    def revive(self) -> None:
        self.close()
        connection: socket.socket | None = None
        try:
            connection = socket.create_connection(self.address, timeout=HANDSHAKE)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.channel = Channel(connection, self.key, serves=False)
        except (OSError, EOFError, Refused) as e:
            if connection is not None:
                connection.close()
            raise Lost(str(e) or "it closed the connection") from None

    def close(self) -> None:
        if self.channel is not None:
            self.channel.close()
        self.channel = None


def connect_to(text: str, key: bytes | None = None) -> TcpLink:
    """A connection to ``HOST:PORT``; UsageError if nobody answers there, or with another key."""
    link = TcpLink(text, key if key is not None else key_from(None))
    try:
        link.revive()
    except Lost as e:
        raise UsageError(f"runner {text} cannot be used: {e}", stage="tune") from None
    return link


# ---- the runner's side ---------------------------------------------------------------------------------------------


class Server:
    """Serves a runner to tuners that have the key; one request at a time is at work, so that none disturbs another.

    `port` 0 takes a free one; `address` says which. Tuners that wait are served in turn.
    """

    #: tuners at a time, of which most wait, and connections that have not shown the key
    MOST = 16

    def __init__(
        self, runner: RunnerHost, host: str, port: int, key: bytes, log: Callable[[str], None] = lambda text: None
    ) -> None:
        self.runner, self.key, self.log = runner, key, log
        self._work, self._slots = threading.Lock(), threading.BoundedSemaphore(self.MOST)
        self._closed, self._lock = threading.Event(), threading.Lock()
        #: connections that have not shown yet that they have the key, oldest first
        self._unknown: dict[socket.socket, None] = {}
        try:
            self.listener = socket.create_server((host, port), family=_family(host), backlog=self.MOST)
        except OSError as e:
            raise UsageError(f"cannot listen on {host}:{port}: {e}", stage="runner") from None
        self.address: tuple[str, int] = self.listener.getsockname()[:2]

    def serve(self) -> None:
        """Serve until `close`."""
        while not self._closed.is_set():
            try:
                connection, peer = self.listener.accept()
            except OSError as e:
                if not self._closed.is_set():  # no more files, or the client has gone: the next one may succeed
                    self.log(f"a connection could not be accepted: {e}")
                    self._closed.wait(0.1)
                continue
            name = f"{peer[0]}:{peer[1]}"
            with self._lock:
                self._unknown[connection] = None
                excess = list(self._unknown)[: -self.MOST]
            for oldest in excess:  # those that say nothing make room
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            try:
                threading.Thread(target=self._client, args=(connection, name), name=name, daemon=True).start()
            except RuntimeError as e:  # no more threads
                self.log(f"{name} was refused: {e}")
                self._forget(connection)
                connection.close()

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._unknown.pop(connection, None)

    def _client(self, connection: socket.socket, name: str) -> None:
        proven = False
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                late = threading.Timer(HANDSHAKE, connection.shutdown, (socket.SHUT_RDWR,))
                late.start()
                try:
                    channel = Channel(connection, self.key, serves=True)
                finally:
                    late.cancel()
                    self._forget(connection)
                if not self._slots.acquire(blocking=False):
                    raise Refused(f"{self.MOST} tuners are connected already")
                proven = True
                self.log(f"{name} is connected")
                while True:
                    request = channel.receive()
                    with self._work:
                        answer = self.runner.answer(request)
                    channel.send(answer)
        except EOFError:
            self.log(f"{name} has gone")
        except (OSError, Refused) as e:
            self.log(f"{name} was refused: {e}")
        finally:
            self._forget(connection)
            if proven:
                self._slots.release()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.runner.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


__all__ = ["Channel", "Refused", "Server", "TcpLink", "address_of", "connect_to", "key_from"]
