"""What a client sends, read field by field; what is wrong with it becomes an answer of OpenAI's shape."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

_MISSING: Any = object()


class Problem(Exception):
    """An error for the client: an HTTP status, a sentence, the field it is about, a code for programs.

    >>> Problem(400, "'n' must be at least 1", "n").body()["error"]["param"]
    'n'
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None, retry: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry = status, message, param, code, retry

    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        headers = {"Retry-After": str(self.retry)} if self.retry is not None else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status == 413:  # what is left of the body is not read
            headers["Connection"] = "close"
        return JSONResponse(self.body(), self.status, headers)


async def read_bytes(request: Request, most: int) -> bytes:
    """The body of a request; a Problem for one of more than `most` bytes."""
    parts, count = [], 0
    try:
        async for part in request.stream():
            count += len(part)
            if count > most:
                raise Problem(413, f"the body has more than {most} bytes", code="body_too_large")
            parts.append(part)
    except ClientDisconnect:
        raise Problem(400, "the connection ended within the body") from None
    return b"".join(parts)


def parse_json(data: bytes, numbers: Callable[[str], Any] | None = None) -> Any:
    """A JSON text in UTF-8; a Problem for another text, and for halves of pairs of UTF-16. `numbers` says what NaN and
    Infinity are, which are errors without it."""
    try:
        return read_json(data.decode("utf-8"), numbers)
    except UnicodeEncodeError:
        raise Problem(400, "a text has half of a UTF-16 pair (\\ud800 to \\udfff alone)") from None
    except RecursionError:
        raise Problem(400, "the body is no JSON that can be read: too many levels") from None
    except ValueError as error:
        raise Problem(400, f"the body is no JSON in UTF-8: {error}"[:300]) from None


def read_json(text: str, numbers: Callable[[str], Any] | None = None, strict: bool = True) -> Any:
    """The value of a JSON text, all of whose texts can be sent on. ValueError or RecursionError for another one."""

    def no_number(name: str) -> Any:
        raise ValueError(f"{name} is no number of JSON")

    value = json.loads(text, parse_constant=numbers or no_number, strict=strict)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


class Fields:
    """The fields of a JSON object, each taken once; `done` refuses what is left.

    >>> f = Fields({"n": 2, "x": 1})
    >>> f.integer("n", 1, 1, 8), f.number("top_p", 1.0, 0, 1)
    (2, 1.0)
    >>> f.done()
    Traceback (most recent call last):
    tilewright.llm.server.body.Problem: unknown field 'x'
    """

    def __init__(self, value: Any, path: str = "") -> None:
        if not isinstance(value, dict):
            name = path.rstrip(".")
            raise Problem(400, f"{name or 'the body'} must be a JSON object, not {kind(value)}", name or None)
        self._left, self.path = dict(value), path

    def wrong(self, name: str, what: str) -> Problem:
        """The error for a field."""
        return Problem(400, f"'{self.path}{name}' {what}", self.path + name)

    def take(self, name: str, default: Any = _MISSING, kinds: Sequence[type] = (), what: str = "") -> Any:
        """A field's value of one of the types; null is the default. A field without default must be there."""
        value = self._left.pop(name, None)
        if value is None:
            if default is _MISSING:
                raise Problem(400, f"'{self.path}{name}' is missing", self.path + name)
            return default
        if kinds and (not isinstance(value, tuple(kinds)) or (isinstance(value, bool) and bool not in kinds)):
            raise self.wrong(name, f"must be {what}, not {kind(value)}")
        return value

    def text(self, name: str, default: Any = _MISSING, choices: Sequence[str] = ()) -> Any:
        value = self.take(name, default, (str,), "a text")
        if choices and value is not default and value not in choices:
            raise self.wrong(name, f"must be one of {', '.join(choices)}, not {value[:80]!r}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        return self.take(name, default, (bool,), "true or false")

    def integer(self, name: str, default: Any, low: int, high: int) -> Any:
        value = self.take(name, default, (int,), "an integer")
        return self._within(name, value, default, low, high)

    def number(self, name: str, default: Any, low: float, high: float) -> Any:
        value = self.take(name, default, (int, float), "a number")
        return self._within(name, value, default, low, high)

    def _within(self, name: str, value: Any, default: Any, low: float, high: float) -> Any:
        if value is not default and not (low <= value <= high and (isinstance(value, int) or math.isfinite(value))):
            raise self.wrong(name, f"must be from {low} to {high}, not {str(value)[:40]}")
        return value

    def items(self, name: str, default: Any = _MISSING, most: int = 100_000) -> Any:
        value = self.take(name, default, (list,), "a list")
        if value is not default and len(value) > most:
            raise self.wrong(name, f"has {len(value)} items, at most {most} are allowed")
        return value

    def object(self, name: str) -> Fields | None:
        """The fields of an object within; None if it is not there."""
        value = self.take(name, None, (dict,), "an object")
        return None if value is None else Fields(value, f"{self.path}{name}.")

    def fixed(self, values: dict[str, Any]) -> None:
        """Fields of which only one value is served."""
        for name, only in values.items():
            value = self._left.pop(name, None)
            if value is not None and value != only:
                raise self.wrong(name, f"is not supported (only {json.dumps(only)})")

    def ignore(self, *names: str) -> None:
        """Fields that change nothing of an answer here."""
        for name in names:
            self._left.pop(name, None)

    def done(self) -> None:
        left = [name for name, value in self._left.items() if value is not None]
        if left:
            name = (self.path + left[0])[:200]
            raise Problem(400, f"unknown field {name!r}", name)


def kind(value: Any) -> str:
    """How a JSON value is called."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


__all__ = ["Fields", "Problem", "kind", "parse_json", "read_bytes", "read_json"]
