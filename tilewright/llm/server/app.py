"""The application: routes, keys, limits, and what is counted."""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import inference
from .batching import Batcher
from .body import Problem, parse_json, read_bytes
from .chat import chat
from .completions import completions, embeddings
from .language import Language
from .measures import Measures
from .responding import respond
from .responses import ResponseStore, responses
from .sampling import ServerLimits

log = logging.getLogger("tilewright.server")
#: what anybody may ask
OPEN = ("/health", "/v2/health/live", "/v2/health/ready")


def make_app(
    language: Language | None = None,
    models: Mapping[str, Batcher] | None = None,
    *,
    api_key: str | None = None,
    hosts: Sequence[str] = (),
    limits: ServerLimits | None = None,
    on_close: Callable[[], object] = lambda: None,
) -> Starlette:
    """The server as an ASGI application: OpenAI's interface for a language model, the Open Inference Protocol v2 for
    other models by their names. hosts: the names by which it may be asked; none: any. `on_close` is called at the end.

        app = make_app(Language("small", engine, tokenizer, context=4096))
        uvicorn.run(app, host="127.0.0.1")
    """
    models = dict(models or {})
    limits = limits or (language.limits if language is not None else ServerLimits())
    measures = Measures(language, models)
    store = ResponseStore()
    began = int(time.time())

    def posted(work: Callable[..., Any], *more: Any) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            if language is None:
                raise Problem(404, "no language model is served here, only the Open Inference Protocol (/v2)")
            body = parse_json(await _body(request, limits, ["application/json"]))
            return await respond(request, limits.seconds, lambda stack: work(body, language, *more, stack))

        return handle

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def list_models(request: Request) -> Response:
        names = [*([language.name] if language else []), *models]
        wanted = request.path_params.get("name")
        entries = [{"id": n, "object": "model", "created": began, "owned_by": "tilewright"} for n in names]
        if wanted is None:
            return JSONResponse({"object": "list", "data": entries})
        found = next((e for e in entries if e["id"] == wanted), None)
        if found is None:
            raise Problem(404, f"there is no model {wanted[:200]!r}", "model", "model_not_found")
        return JSONResponse(found)

    async def kept(request: Request) -> Response:
        name = request.path_params["name"]
        if request.method == "DELETE":
            store.drop(name)
            return JSONResponse({"id": name, "object": "response", "deleted": True})
        return JSONResponse(store.get(name)[0])

    async def metrics(request: Request) -> Response:
        return Response(measures.text(), media_type=measures.media_type)

    @asynccontextmanager
    async def life(app: Starlette) -> Any:
        try:
            yield
        finally:
            for model in models.values():
                model.close()
            on_close()

    routes = [
        Route("/v1/completions", posted(completions), methods=["POST"]),
        Route("/v1/chat/completions", posted(chat), methods=["POST"]),
        Route("/v1/responses", posted(responses, store), methods=["POST"]),
        Route("/v1/responses/{name}", kept, methods=["GET", "DELETE"]),
        Route("/v1/embeddings", posted(embeddings), methods=["POST"]),
        Route("/v1/models", list_models),
        Route("/v1/models/{name:path}", list_models),
        Route("/health", health),
        Route("/metrics", metrics),
        *inference.routes(models, limits, _body),
    ]
    handlers: Any = {Problem: _problem, HTTPException: _http_exception, Exception: _internal}
    middleware = [Middleware(_Guard, api_key=api_key, hosts=hosts, measures=measures)]
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=life)


async def _body(request: Request, limits: ServerLimits, kinds: Sequence[str]) -> bytes:
    """The body, of one of these content types (a page of another origin can send others without asking the browser),
    within its size and its time."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() not in kinds:
        raise Problem(415, f"the content type must be {' or '.join(kinds)}")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > limits.body:
        raise Problem(413, f"the body has more than {limits.body} bytes", code="body_too_large")
    found = b""
    with anyio.move_on_after(limits.read_seconds) as scope:
        found = await read_bytes(request, limits.body)
    if scope.cancelled_caught:
        raise Problem(408, f"the body did not come within {limits.read_seconds:g} s", code="timeout")
    return found


def _problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    if request.url.path.startswith("/v2"):
        return JSONResponse({"error": problem.message}, problem.status, problem.response().headers)
    return problem.response()


def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {404: f"there is nothing at {request.url.path[:200]!r}", 405: f"{request.method} is not served here"}
    return _problem(request, Problem(error.status_code, said.get(error.status_code, str(error.detail))))


def _internal(request: Request, error: Exception) -> Response:
    return _problem(request, Problem(500, "internal error: the server's log has more", code="internal_error"))


class _Guard:
    """Checks the key and the host, and counts requests and their seconds."""

    def __init__(self, app: ASGIApp, api_key: str | None, hosts: Sequence[str], measures: Measures) -> None:
        self._app, self._hosts, self._measures = app, hosts, measures
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, begin = 499, time.perf_counter()

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            problem = self._refused(scope)
            await (self._app if problem is None else problem.response())(scope, receive, seen)
        finally:
            route = scope.get("route")
            self._measures.request(getattr(route, "path", "other"), status, time.perf_counter() - begin)

    def _refused(self, scope: Scope) -> Problem | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts and re.sub(r":\d+$", "", host).lower() not in self._hosts:  # a page whose name leads here
            return Problem(
                403, f"this server is not {host[:100]!r}: with an API key it has any name", code="wrong_host"
            )
        if self._key is None or scope["path"] in OPEN:
            return None
        kind, _, key = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key):
            return None
        return Problem(401, "the API key is missing or wrong (Authorization: Bearer KEY)", code="invalid_api_key")


__all__ = ["make_app"]
