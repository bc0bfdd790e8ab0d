"""What a request's sender holds: an iterator of pieces, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from ..request import TextPiece


class Mailbox:
    """Where the engine puts pieces; it never waits for who reads them."""

    def __init__(self) -> None:
        self.pieces: deque[TextPiece] = deque()
        self.changed = threading.Condition()
        self.wake: Callable[[], None] | None = None
        self.done = False

    def put(self, piece: TextPiece) -> None:
        with self.changed:
            self.pieces.append(piece)
            self.done = self.done or piece.finish_reason is not None
            self.changed.notify_all()
            wake, self.wake = self.wake, None
        if wake is not None:
            wake()


class Stream:
    """The pieces of one request: iterate, or `async for`. The last one has a finish_reason. Who lets go of a stream
    before its end cancels the request."""

    def __init__(self, mailbox: Mailbox, cancel: Callable[[], None]) -> None:
        self._mailbox, self._cancel, self._ended = mailbox, cancel, False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> TextPiece:
        if self._ended:
            raise StopIteration
        with self._mailbox.changed:
            while not self._mailbox.pieces:
                self._mailbox.changed.wait()
            return self._taken()

    def _taken(self) -> TextPiece:
        piece = self._mailbox.pieces.popleft()
        self._ended = piece.finish_reason is not None
        return piece

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> TextPiece:
        if self._ended:
            raise StopAsyncIteration
        loop = asyncio.get_running_loop()
        while True:
            with self._mailbox.changed:
                if self._mailbox.pieces:
                    return self._taken()
                future = loop.create_future()
                self._mailbox.wake = partial(_wake, loop, future)
            await future

    def cancel(self) -> None:
        """End the request after the step that runs; its last piece says "cancelled". From any thread."""
        if not self._mailbox.done:
            self._cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        self.cancel()


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
        loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(None))


__all__ = ["Mailbox", "Stream"]
