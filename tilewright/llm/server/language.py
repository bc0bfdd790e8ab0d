"""A language model as the server sees it: requests go to its engine, pieces come back as parts of answers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool

from ...support.errors import UsageError
from ..engine.engine import QueueFull
from ..request import GenerationRequest, TextPiece, TokenLogprob
from .body import Problem
from .reasoning import ReasoningParser
from .sampling import ServerLimits
from .tool_calls import Delta, NamedCall, ToolParser


@dataclass
class Language:
    """An engine with its tokenizer, under a name. tools, reasoning: names of parsers (`tool_calls.FORMS`,
    `reasoning.MARKS`); None for no reasoning."""

    name: str
    engine: Any
    tokenizer: Any
    context: int
    limits: ServerLimits = field(default_factory=ServerLimits)
    tools: str = "generic"
    reasoning: str | None = None

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Sampling parameters of requests that do not give them."""
        return getattr(self.tokenizer, "sampling", {})

    def check_name(self, name: str | None) -> None:
        """A Problem for the name of another model."""
        if name is not None and name != self.name:
            raise Problem(404, f"there is no model {name[:200]!r}, only {self.name!r}", "model", "model_not_found")

    def check_length(self, prompt: Sequence[int], wanted: int | None, param: str) -> int:
        """The most tokens that an answer may have; a Problem if prompt and answer do not fit."""
        left = self.context - len(prompt)
        if not prompt:
            raise Problem(400, "the prompt has no tokens", param)
        if left < 1 or (wanted or 1) > left:
            raise Problem(
                400,
                f"the prompt's {len(prompt)} tokens and {wanted or 1} of an answer do not fit into {self.context}",
                param,
                "context_length_exceeded",
            )
        return min(left, wanted or self.limits.max_tokens or left)

    @asynccontextmanager
    async def answers(self, make: Callable[[], Sequence[GenerationRequest]]) -> AsyncIterator[Answers]:
        """Make requests (in a thread: tokenizers take their time) and hand them to the engine; they are cancelled if
        they are not done when the context is left."""
        answers = Answers([])

        def submit() -> None:
            for request in make():
                answers.streams.append(self.engine.submit(request))
                answers.prompts.append(len(request.prompt))
                answers.waits = answers.waits or request.sampling.grammar is not None

        try:
            try:
                await run_in_threadpool(submit)
            except QueueFull as error:
                raise Problem(429, error.message, code="queue_full", retry=1) from None
            except UsageError as error:
                raise Problem(400, f"{error.message}{': ' + error.hint if error.hint else ''}") from None
            if answers.waits:  # the engine reads grammars on its own time: a stream with a wrong one must not begin
                for number, stream in enumerate(answers.streams):
                    answers.firsts.append((number, _checked(await anext(stream))))
            yield answers
        finally:
            for stream in answers.streams:
                stream.cancel()

    def token_entry(self, entry: TokenLogprob) -> dict[str, Any]:
        """A token with its logarithm of probability, as in chats."""
        return {**self._token(entry.token, entry.logprob), "top_logprobs": [self._token(*t) for t in entry.top]}

    def token_text(self, token: int) -> str:
        return self.tokenizer.token_bytes(token).decode("utf-8", "replace")

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        data = self.tokenizer.token_bytes(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(data)}


def finite(logprob: float) -> float:
    """JSON has no infinity: what OpenAI writes for a token that cannot come."""
    return max(float(logprob), -9999.0)


@dataclass
class Answers:
    """Streams of the engine, the lengths of their prompts, and pieces that were read already."""

    streams: list[Any]
    prompts: list[int] = field(default_factory=list)
    waits: bool = False
    firsts: list[tuple[int, TextPiece]] = field(default_factory=list)

    async def pieces(self) -> AsyncGenerator[tuple[int, TextPiece], None]:
        """(number of the stream, `TextPiece`), as they come; a Problem for one that fails."""
        for number, first in self.firsts:
            yield number, first
        if len(self.streams) == 1:
            async for piece in self.streams[0]:
                yield 0, _checked(piece)
            return
        queue: asyncio.Queue[tuple[int, TextPiece | BaseException | None]] = asyncio.Queue()

        async def pump(number: int, stream: Any) -> None:
            try:
                async for piece in stream:
                    queue.put_nowait((number, piece))
                queue.put_nowait((number, None))
            except Exception as error:
                queue.put_nowait((number, error))

        tasks = [asyncio.ensure_future(pump(i, s)) for i, s in enumerate(self.streams)]
        try:
            open_ = len(tasks)
            while open_:
                number, piece = await queue.get()
                if isinstance(piece, BaseException):
                    raise piece
                if piece is None:
                    open_ -= 1
                else:
                    yield number, _checked(piece)
        finally:
            for task in tasks:
                task.cancel()


def _checked(piece: TextPiece) -> TextPiece:
    if piece.error_kind == "grammar":  # what the client has sent
        raise Problem(400, piece.error, code="grammar_failed")
    if piece.finish_reason == "error":
        raise Problem(500, piece.error or "the generation failed", code="generation_failed")
    if piece.finish_reason == "cancelled":
        raise Problem(503, "the server is shutting down", code="cancelled", retry=5)
    return piece


@dataclass
class ToolCall:
    """A call of a tool, as far as it is there."""

    name: str
    arguments: str = ""
    id: str = field(default_factory=lambda: identifier("call"))


@dataclass
class Answer:
    """One choice: what its pieces have brought. single: calls after the first are left out."""

    reasoning_parser: ReasoningParser | None = None
    tool_parser: ToolParser | NamedCall | None = None
    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    tokens: int = 0
    reasoning_tokens: int = 0
    cached: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None
    single: bool = False

    def feed(self, piece: TextPiece) -> list[Delta]:
        """What a piece adds."""
        found: list[Delta] = []
        text = piece.text
        ended = piece.finish_reason is not None
        if self.reasoning_parser is not None:
            found, text = self.reasoning_parser.feed(text)
            if ended:
                last, more = self.reasoning_parser.finish()
                found, text = [*found, *last], text + more
            if not text:
                self.reasoning_tokens += len(piece.tokens)
        if self.tool_parser is not None:
            found += self.tool_parser.feed(text) if text else []
            found += self.tool_parser.finish() if ended else []
        elif text:
            found.append(Delta("text", text))
        self.tokens += len(piece.tokens)
        self.cached = max(self.cached, piece.cached)
        self.logprobs.extend(piece.logprobs)
        found = [d for d in found if not (self.single and d.index)]
        for delta in found:
            self._add(delta)
        if ended:
            self.finish = "tool_calls" if self.calls and piece.finish_reason == "stop" else piece.finish_reason
        return found

    def _add(self, delta: Delta) -> None:
        if delta.kind == "text":
            self.text += delta.text
        elif delta.kind == "reasoning":
            self.reasoning += delta.text
        elif delta.kind == "call":
            self.calls.append(ToolCall(delta.text))
        else:
            self.calls[delta.index].arguments += delta.text


def identifier(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def usage_of(prompt_tokens: int, answers: Sequence[Answer]) -> dict[str, Any]:
    """Tokens of prompts and answers."""
    tokens = sum(a.tokens for a in answers)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": max((a.cached for a in answers), default=0)},
        "completion_tokens_details": {"reasoning_tokens": sum(a.reasoning_tokens for a in answers)},
    }


async def collect(answers: Answers, found: Sequence[Answer]) -> None:
    """All pieces into the answers."""
    async with aclosing(answers.pieces()) as pieces:
        async for number, piece in pieces:
            found[number].feed(piece)


__all__ = ["Answer", "Answers", "ToolCall", "Language", "collect", "finite", "identifier", "usage_of"]
