"""How answers go out: whole or as server-sent events, within a time, and only while the client is there."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .body import Problem

log = logging.getLogger("tilewright.server")
#: seconds for the end of a stream
LAST_SECONDS = 5.0


class Gone(Exception):
    """The client has hung up."""


async def watched(receive: Receive, seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    """What `work` gives. It is cancelled, with its requests in the engine, when the client hangs up (`Gone`), or after
    `seconds` (a Problem)."""

    async def hung_up() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(hung_up())
    try:
        await asyncio.wait({task, watch}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if watch.done():
            raise Gone
        raise Problem(504, f"the answer took more than {seconds:g} s", code="timeout")
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


class Events(Response):
    """Server-sent events. They come from an iterator; `stack` is what ends with them."""

    media_type = "text/event-stream"

    def __init__(
        self, stack: AsyncExitStack, events: AsyncIterator[bytes], seconds: float, named: bool = False
    ) -> None:
        self.status_code, self.background, self.body = 200, None, b""
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._stack, self._events, self._seconds, self._named = stack, events, seconds, named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def emit(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        async def work() -> None:
            async with aclosing(self._events) as events:  # type: ignore[type-var]
                async for data in events:
                    await emit(data)

        last = [] if self._named else [b"data: [DONE]\n\n"]
        async with self._stack:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await watched(receive, self._seconds, work())
            except Gone:
                return
            except Problem as problem:
                last.insert(0, self._error(problem))
            except Exception:
                log.exception("an answer failed")
                last.insert(0, self._error(Problem(500, "internal error", code="internal_error")))
        with anyio.move_on_after(LAST_SECONDS):  # a client that has stopped reading is not waited for
            for data in last:
                await emit(data)
            await emit(b"", False)

    def _error(self, problem: Problem) -> bytes:
        if self._named:
            return event({"type": "error", **problem.body()["error"], "code": problem.code or "server_error"}, "error")
        return event(problem.body())


def event(value: Any, name: str | None = None) -> bytes:
    """One event with JSON."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


Work = Callable[[AsyncExitStack], Awaitable[Response]]


async def respond(request: Request, seconds: float, work: Work) -> Response:
    """The response that `work` makes, while the client is there. What it has entered ends when it fails, or with the
    response itself where that is `Events`."""
    try:
        return await watched(request.receive, seconds, _entered(AsyncExitStack(), work))
    except Gone:
        return Response(status_code=499)


async def _entered(stack: AsyncExitStack, work: Work) -> Response:
    kept = False
    try:
        response = await work(stack)
        kept = isinstance(response, Events)
        return response
    finally:
        if not kept:
            await stack.aclose()


__all__ = ["Events", "Gone", "event", "respond", "watched"]
