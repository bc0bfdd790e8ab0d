"""``/v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from starlette.responses import JSONResponse, Response

from .body import Fields
from .conversation import MESSAGES, Conversation, message_of, template_of, tool_choice_of, tools_of
from .language import Answer, Answers, Language, ToolCall, collect, identifier, usage_of
from .responding import Events, event
from .sampling import grammar_of, most_tokens, sampling_of, stream_options
from .tool_calls import Delta


async def chat(body: Any, language: Language, stack: AsyncExitStack) -> Response:
    """The next message of a chat."""
    fields, limits = Fields(body), language.limits
    language.check_name(fields.text("model", None))
    messages = [message_of(m, f"messages[{i}]") for i, m in enumerate(fields.items("messages", most=MESSAGES))]
    if not messages:
        raise fields.wrong("messages", "has none")
    tools = tools_of(fields)
    choice = tool_choice_of(fields, tools)
    stream = fields.flag("stream")
    usage_last = stream_options(fields, stream)
    logprobs = fields.flag("logprobs")
    top = fields.integer("top_logprobs", None, 0, limits.top_logprobs)
    if top is not None and not logprobs:
        raise fields.wrong("top_logprobs", "needs 'logprobs'")
    n = fields.integer("n", 1, 1, limits.n)
    wanted = most_tokens(fields, ["max_completion_tokens", "max_tokens"], None, limits)
    parallel = fields.flag("parallel_tool_calls", True)
    template = template_of(fields)
    sampling = sampling_of(fields, limits, language.engine.limits.vocabulary, language.defaults)
    sampling.update(grammar=grammar_of(fields), logprobs=(top or 0) if logprobs else None)
    priority = fields.integer("priority", 0, -1000, 1000)
    fields.fixed({"modalities": ["text"]})
    fields.done()

    conversation = Conversation(messages, tools, choice, parallel, sampling, wanted, n, priority, template)
    answers, found = await conversation.start(language, stack)
    head = {"id": identifier("chatcmpl"), "created": int(time.time()), "model": language.name}
    if stream:
        head["object"] = "chat.completion.chunk"
        return Events(stack, _events(answers, found, head, language, usage_last), limits.seconds)
    await collect(answers, found)
    choices = [
        {
            "index": i,
            "message": _message(a),
            "logprobs": _logprobs([language.token_entry(e) for e in a.logprobs]) if logprobs else None,
            "finish_reason": a.finish,
        }
        for i, a in enumerate(found)
    ]
    usage = usage_of(answers.prompts[0], found)
    return JSONResponse({**head, "object": "chat.completion", "choices": choices, "usage": usage})


def _message(answer: Answer) -> dict[str, Any]:
    calls = [_call(i, c, c.arguments) for i, c in enumerate(answer.calls)]
    content = answer.text or (None if calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if calls:
        message["tool_calls"] = [{k: v for k, v in c.items() if k != "index"} for c in calls]
    return message


def _logprobs(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": entries, "refusal": None}


def _call(index: int, call: ToolCall, arguments: str) -> dict[str, Any]:
    return {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


async def _events(
    answers: Answers, found: Sequence[Answer], head: dict[str, Any], language: Language, usage_last: bool
) -> AsyncIterator[bytes]:
    def chunk(number: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> bytes:
        choice = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**head, "choices": [choice], **({"usage": None} if usage_last else {})})

    for number in range(len(found)):
        yield chunk(number, {"role": "assistant", "content": ""})
    async with aclosing(answers.pieces()) as pieces:
        async for number, piece in pieces:
            answer = found[number]
            deltas = [_delta(d, answer) for d in answer.feed(piece)]
            entries = [language.token_entry(e) for e in piece.logprobs]
            logprobs = _logprobs(entries) if entries else None
            for delta in deltas or ([{"content": ""}] if logprobs else []):
                yield chunk(number, delta, logprobs)
                logprobs = None
            if answer.finish:
                yield chunk(number, {}, None, answer.finish)
    if usage_last:
        yield event({**head, "choices": [], "usage": usage_of(answers.prompts[0], found)})


def _delta(delta: Delta, answer: Answer) -> dict[str, Any]:
    if delta.kind == "call":
        return {"tool_calls": [_call(delta.index, answer.calls[delta.index], "")]}
    if delta.kind == "arguments":
        return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
    return {"reasoning_content" if delta.kind == "reasoning" else "content": delta.text}


__all__ = ["chat"]
