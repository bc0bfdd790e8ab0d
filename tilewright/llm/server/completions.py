"""``/v1/completions`` and ``/v1/embeddings``."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from itertools import accumulate
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response

from ..request import GenerationRequest, Sampling, TextPiece
from .body import Fields, Problem, kind
from .language import Answer, Language, finite, identifier, usage_of
from .responding import Events, event
from .sampling import IGNORED, choices_of, grammar_of, most_tokens, sampling_of, stream_options

Prompt = str | list[int]


def prompts_of(fields: Fields, name: str, language: Language) -> list[Prompt]:
    """One or several prompts, as texts or as tokens; a Problem for anything else."""
    value = fields.take(name, kinds=(str, list), what="a text, a list of texts, of tokens, or of lists of tokens")
    vocabulary = language.engine.limits.vocabulary

    def tokens(items: Any) -> bool:
        return isinstance(items, list) and all(type(t) is int and 0 <= t < vocabulary for t in items)

    found = [value] if isinstance(value, str) or (value and type(value[0]) is int) else value
    if not found or not all(isinstance(p, str) or tokens(p) for p in found):
        what = f"tokens from 0 to {vocabulary - 1}" if found and not isinstance(found[0], str) else "texts"
        raise fields.wrong(name, f"must be a text, or a list of {what} ({kind(value)} was given)")
    if len(found) > language.limits.prompts:
        raise fields.wrong(name, f"has {len(found)} prompts, at most {language.limits.prompts} are allowed")
    return found


async def completions(body: Any, language: Language, stack: AsyncExitStack) -> Response:
    """Texts that go on from prompts."""
    fields, limits = Fields(body), language.limits
    language.check_name(fields.text("model", None))
    prompts = prompts_of(fields, "prompt", language)
    n = fields.integer("n", 1, 1, limits.n)
    stream = fields.flag("stream")
    logprobs = fields.integer("logprobs", None, 0, limits.top_logprobs)
    wanted = most_tokens(fields, ["max_tokens"], 16, limits)
    echo = fields.flag("echo")
    usage_last = stream_options(fields, stream)
    shared = sampling_of(fields, limits, language.engine.limits.vocabulary, language.defaults)
    shared.update(logprobs=logprobs, grammar=grammar_of(fields))
    priority = fields.integer("priority", 0, -1000, 1000)
    fields.fixed({"best_of": n, "suffix": ""})
    fields.ignore("reasoning_effort")
    if echo:
        shared["prompt_logprobs"] = logprobs
    fields.done()
    if len(prompts) * n > limits.prompts:
        raise fields.wrong("n", f"times the prompts is {len(prompts) * n}, at most {limits.prompts} are allowed")
    encoded: list[Sequence[int]] = []

    def make() -> list[GenerationRequest]:
        encoded.extend(language.tokenizer.encode(p, special=True) if isinstance(p, str) else p for p in prompts)
        made = []
        for prompt in encoded:
            most = language.check_length(prompt, wanted, "prompt")
            choices = choices_of({**shared, "max_tokens": most}, n)
            made += [GenerationRequest(prompt, sampling, priority=priority) for sampling in choices]
        return made

    answers = await stack.enter_async_context(language.answers(make))
    found = [Answer() for _ in answers.streams]
    head = {
        "id": identifier("cmpl"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": language.name,
    }
    choices = [_Choice(language, i, logprobs is not None) for i in range(len(found))]
    if echo:
        for choice in choices:
            choice.repeat(prompts[choice.index // n], encoded[choice.index // n])

    async def made() -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(answers.pieces()) as pieces:
            async for number, piece in pieces:
                found[number].feed(piece)
                if (entry := choices[number].entry(piece)) is not None:
                    yield entry

    def usage() -> dict[str, Any]:
        return usage_of(sum(map(len, encoded)), found)

    async def events() -> AsyncIterator[bytes]:
        async with aclosing(made()) as entries:
            async for entry in entries:
                yield event({**head, "choices": [entry], **({"usage": None} if usage_last else {})})
        if usage_last:
            yield event({**head, "choices": [], "usage": usage()})

    if stream:
        return Events(stack, events(), limits.seconds)
    whole: list[dict[str, Any]] = [{} for _ in found]
    async with aclosing(made()) as entries:
        async for entry in entries:
            _join(whole[entry["index"]], entry)
    return JSONResponse({**head, "choices": whole, "usage": usage()})


class _Choice:
    """One choice of a stream: its events, from pieces."""

    def __init__(self, language: Language, index: int, logprobs: bool) -> None:
        self.index, self._language, self._wanted = index, language, logprobs
        self._begin, self._offset = "", 0
        self._first: list[int] = []

    def repeat(self, prompt: Prompt, tokens: Sequence[int]) -> None:
        """Begin with the prompt, whose first token has no probability."""
        self._begin = prompt if isinstance(prompt, str) else self._language.tokenizer.decode(prompt)
        self._first = list(tokens[:1])

    def entry(self, piece: TextPiece) -> dict[str, Any] | None:
        """What a piece adds; None for nothing."""
        text, self._begin = self._begin + piece.text, ""
        logprobs = self._logprobs(piece) if self._wanted and piece.logprobs else None
        self._offset += len(text)
        if not (text or logprobs or piece.finish_reason):
            return None
        return {"index": self.index, "text": text, "logprobs": logprobs, "finish_reason": piece.finish_reason}

    def _logprobs(self, piece: TextPiece) -> dict[str, Any]:
        """Tokens with their logarithms of probability."""
        first, self._first = self._first, []
        shown, name = [*piece.prompt_logprobs, *piece.logprobs], self._language.token_text
        tokens = [name(t) for t in (*first, *(e.token for e in shown))]
        nothing: list[Any] = [None] * len(first)
        return {
            "tokens": tokens,
            "token_logprobs": [*nothing, *(finite(e.logprob) for e in shown)],
            "top_logprobs": [*nothing, *({name(t): finite(p) for t, p in e.top} for e in shown)],
            "text_offset": [self._offset + n for n in accumulate(map(len, tokens[:-1]), initial=0)][: len(tokens)],
        }


def _join(whole: dict[str, Any], entry: dict[str, Any]) -> None:
    """Add an event to the choice that they are together."""
    if not whole:
        whole.update(entry)
        return
    whole["text"] += entry["text"]
    whole["finish_reason"] = entry["finish_reason"]
    for name, values in (entry["logprobs"] or {}).items():
        whole["logprobs"] = whole["logprobs"] or {n: [] for n in entry["logprobs"]}
        whole["logprobs"][name] += values


#: embeddings that one body has in the engine at a time, so that it does not fill the queue
AT_A_TIME = 8


async def embeddings(body: Any, language: Language, stack: AsyncExitStack) -> Response:
    """The hidden states of the last tokens of texts, of length one."""
    fields = Fields(body)
    language.check_name(fields.text("model", None))
    inputs = prompts_of(fields, "input", language)
    packed = fields.text("encoding_format", "float", ("float", "base64")) == "base64"
    width = fields.integer("dimensions", None, 1, 1 << 20)
    fields.ignore(*IGNORED)
    fields.done()
    vectors: list[np.ndarray] = []
    count = 0
    size = max(min(AT_A_TIME, language.engine.queue), 1)
    for begin in range(0, len(inputs), size):

        def make(part: Sequence[Prompt] = inputs[begin : begin + size]) -> list[GenerationRequest]:
            encoded = [language.tokenizer.encode(p, special=True) if isinstance(p, str) else p for p in part]
            for tokens in encoded:
                language.check_length(tokens, 1, "input")
            return [GenerationRequest(tokens, Sampling(max_tokens=1), embed=True) for tokens in encoded]

        async with language.answers(make) as answers:
            hidden: list[Any] = [None] * len(answers.streams)
            async with aclosing(answers.pieces()) as pieces:
                async for number, piece in pieces:
                    hidden[number] = hidden[number] if piece.hidden is None else piece.hidden
            count += sum(answers.prompts)
        vectors += [_unit(h) for h in hidden]
    if width is not None and width != len(vectors[0]):
        raise Problem(400, f"'dimensions' must be {len(vectors[0])}: the model has no others", "dimensions")
    data = [
        {
            "object": "embedding",
            "index": i,
            "embedding": base64.b64encode(v.astype("<f4").tobytes()).decode() if packed else v.tolist(),
        }
        for i, v in enumerate(vectors)
    ]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return JSONResponse({"object": "list", "data": data, "model": language.name, "usage": usage})


def _unit(hidden: Any) -> np.ndarray:
    vector = np.array(hidden, np.float32).reshape(-1)
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length):
        raise Problem(500, "the model's hidden state is not finite", code="not_finite")
    return vector / length if length else vector


__all__ = ["completions", "embeddings", "prompts_of"]
