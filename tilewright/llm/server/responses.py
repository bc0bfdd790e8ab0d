"""``/v1/responses``: the part of OpenAI's newer interface that a text model can serve, with a bounded store."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse, Response

from .body import Fields, Problem, read_json
from .conversation import (
    MESSAGES,
    ROLES,
    Conversation,
    arguments_of,
    content_of,
    template_of,
    tool_choice_of,
    tools_of,
)
from .language import Answer, Answers, Language, identifier, usage_of
from .responding import Events, event
from .sampling import IGNORED, format_grammar, most_tokens, sampling_of
from .tool_calls import Delta


@dataclass
class ResponseStore:
    """Responses with the messages that led to them, the newest of them: at most `most`, and about `most_bytes`."""

    most: int = 1000
    most_bytes: int = 64 << 20
    _kept: OrderedDict[str, tuple[dict[str, Any], list[dict[str, Any]], int]] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def put(self, response: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        size = len(json.dumps([response, messages]))
        with self._lock:
            self._kept[response["id"]] = (response, messages, size)
            self._bytes += size
            while len(self._kept) > self.most or self._bytes > self.most_bytes:
                self._bytes -= self._kept.popitem(last=False)[1][2]

    def get(self, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        with self._lock:
            found = self._kept.get(name)
        if found is None:
            raise Problem(404, f"response {name[:100]!r} is not kept here (any more)", code="response_not_found")
        return found[:2]

    def drop(self, name: str) -> None:
        self.get(name)
        with self._lock:
            found = self._kept.pop(name, None)
            self._bytes -= found[2] if found else 0


async def responses(body: Any, language: Language, store: ResponseStore, stack: AsyncExitStack) -> Response:
    """The next turn of a conversation, as items."""
    fields, limits = Fields(body), language.limits
    language.check_name(fields.text("model", None))
    previous = fields.text("previous_response_id", None)
    messages = list(store.get(previous)[1]) if previous else []
    messages += items_of(fields)
    if len(messages) > MESSAGES:
        raise fields.wrong("input", f"has more than {MESSAGES} messages")
    instructions = fields.text("instructions", None)
    tools = tools_of(fields, nested=False)
    choice = tool_choice_of(fields, tools, nested=False)
    parallel = fields.flag("parallel_tool_calls", True)
    stream, keep = fields.flag("stream"), fields.flag("store", True)
    wanted = most_tokens(fields, ["max_output_tokens"], None, limits)
    top = fields.integer("top_logprobs", None, 0, limits.top_logprobs)
    include = fields.items("include", [], 16)
    if any(i not in ("message.output_text.logprobs", "reasoning.encrypted_content") for i in include):
        raise fields.wrong("include", "may only have message.output_text.logprobs")
    text = fields.object("text")
    grammar = None
    if text is not None:
        how = text.object("format")
        grammar = None if how is None else format_grammar(how, nested=False)
        text.ignore("verbosity")
        text.done()
    reasoning = fields.object("reasoning")
    template = template_of(fields)
    if reasoning is not None and (effort := reasoning.text("effort", None)):
        template["reasoning_effort"] = effort
    logprobs = "message.output_text.logprobs" in include
    metadata = fields.take("metadata", {}, (dict,), "an object")
    sampling = sampling_of(fields, limits, language.engine.limits.vocabulary, language.defaults)
    sampling.update(grammar=grammar, logprobs=(top or 0) if logprobs else None)
    fields.fixed({"background": False, "truncation": "disabled"})
    fields.ignore(*IGNORED, "max_tool_calls", "stream_options")
    fields.done()

    system = [{"role": "system", "content": instructions}] if instructions else []
    conversation = Conversation(system + messages, tools, choice, parallel, sampling, wanted, template=template)
    answers, found = await conversation.start(language, stack)
    head = {
        "id": identifier("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "model": language.name,
        "instructions": instructions,
        "previous_response_id": previous,
        "max_output_tokens": wanted,
        "temperature": sampling["temperature"],
        "top_p": sampling["top_p"],
        "parallel_tool_calls": parallel,
        "tool_choice": choice if choice in ("auto", "none", "required") else {"type": "function", "name": choice},
        "tools": [{"type": "function", "strict": False, **t} for t in tools],
        "text": {"format": _format(grammar)},
        "truncation": "disabled",
        "metadata": metadata,
        "store": keep,
        "error": None,
        "incomplete_details": None,
    }
    turn = _Turn(head, language, messages, store if keep else None, found[0], answers)
    if stream:
        return Events(stack, turn.encoded(), limits.seconds, named=True)
    async with aclosing(turn.events()) as events:
        async for _, made in events:
            last = made
    return JSONResponse(last["response"])


def _format(grammar: Any) -> dict[str, Any]:
    if grammar is None:
        return {"type": "text"}
    if grammar.kind == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "name": "schema", "schema": json.loads(grammar.text), "strict": True}


#: by the kind of what an answer has: the beginning of its items' ids, and of its events' names
KINDS = {
    "text": ("msg", "output_text"),
    "reasoning": ("rs", "reasoning_text"),
    "call": ("fc", "function_call_arguments"),
}
Event = tuple[str, dict[str, Any]]


@dataclass
class _Turn:
    """One response in the making: its items as they come, which are its events, and the whole of it at the end."""

    head: dict[str, Any]
    language: Language
    messages: list[dict[str, Any]]
    store: ResponseStore | None
    answer: Answer
    answers: Answers
    output: list[dict[str, Any]] = field(default_factory=list)
    kind: str = ""  # of the item that is open, the last one; "" for none

    async def encoded(self) -> AsyncIterator[bytes]:
        number = 0
        async with aclosing(self.events()) as events:
            async for name, fields in events:
                yield event({"type": name, "sequence_number": number, **fields}, name)
                number += 1

    async def events(self) -> AsyncGenerator[Event, None]:
        """Names and fields; the last one has the whole response."""
        started = {**self.head, "status": "in_progress", "output": [], "usage": None}
        yield "response.created", {"response": started}
        yield "response.in_progress", {"response": started}
        async with aclosing(self.answers.pieces()) as pieces:
            async for _, piece in pieces:
                entries = [self.language.token_entry(e) for e in piece.logprobs]
                for delta in self.answer.feed(piece):
                    for made in self._add(delta, entries):
                        yield made
                    entries = [] if delta.kind == "text" else entries
        empty = all(item["type"] == "reasoning" for item in self.output)
        for made in [*self._close(), *(self._open("text", Delta("text", "")) if empty else ()), *self._close()]:
            yield made
        whole = self._finished()
        yield f"response.{whole['status']}", {"response": whole}

    def _add(self, delta: Delta, entries: list[dict[str, Any]]) -> Iterator[Event]:
        """What a delta adds, to the item that is open or to a new one."""
        kind = "call" if delta.kind == "arguments" else delta.kind
        if kind != self.kind or delta.kind == "call":
            yield from self._close()
            yield from self._open(kind, delta)
        if delta.kind == "call":
            return
        more = {}
        item = self.output[-1]
        if kind == "call":
            item["arguments"] += delta.text
        else:
            item["content"][0]["text"] += delta.text
        if kind == "text":
            item["content"][0]["logprobs"] += entries
            more = {"logprobs": entries}
        yield f"response.{KINDS[kind][1]}.delta", {**self._place(), "delta": delta.text, **more}

    def _place(self) -> dict[str, Any]:
        place = {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}
        return place if self.kind == "call" else {**place, "content_index": 0}

    def _open(self, kind: str, delta: Delta) -> Iterator[Event]:
        self.kind = kind
        if kind == "call":
            item: dict[str, Any] = {"type": "function_call", "name": delta.text, "arguments": ""}
            item["call_id"] = self.answer.calls[delta.index].id
        elif kind == "reasoning":
            item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": ""}]}
        else:
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item = {"type": "message", "role": "assistant", "content": [part]}
        self.output.append({"id": identifier(KINDS[kind][0]), **item, "status": "in_progress"})
        shown = self.output[-1] if kind == "call" else {**self.output[-1], "content": []}
        yield "response.output_item.added", {"output_index": len(self.output) - 1, "item": dict(shown)}
        if kind == "text":
            yield "response.content_part.added", {**self._place(), "part": item["content"][0] | {"logprobs": []}}

    def _close(self) -> Iterator[Event]:
        """The events that end the item that is open."""
        if not self.kind:
            return
        item = self.output[-1]
        item["status"] = "completed"
        part = {n: item[n] for n in ("name", "arguments")} if self.kind == "call" else dict(item["content"][0])
        said = {n: v for n, v in part.items() if n not in ("type", "annotations")}
        yield f"response.{KINDS[self.kind][1]}.done", {**self._place(), **said}
        if self.kind == "text":
            yield "response.content_part.done", {**self._place(), "part": part}
        yield "response.output_item.done", {"output_index": len(self.output) - 1, "item": item}
        self.kind = ""

    def _finished(self) -> dict[str, Any]:
        """The whole response; it is kept where it should be."""
        a = self.answer
        usage = usage_of(self.answers.prompts[0], [a])
        short = a.finish == "length"
        response = {
            **self.head,
            "status": "incomplete" if short else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if short else None,
            "output": self.output,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": usage["completion_tokens_details"],
                "total_tokens": usage["total_tokens"],
            },
        }
        if self.store is not None:
            self.store.put(response, [*self.messages, *messages_of_answer(a)])
        return response


# ---- items as messages ----


def items_of(fields: Fields) -> list[dict[str, Any]]:
    """The messages of an input: a text, or a list of messages, calls and what they gave."""
    value = fields.take("input", kinds=(str, list), what="a text or a list of items")
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not value:
        raise fields.wrong("input", "has no items")
    if len(value) > MESSAGES:
        raise fields.wrong("input", f"has more than {MESSAGES} items")
    found: list[dict[str, Any]] = []
    for i, item in enumerate(value):
        _add_item(Fields(item, f"input[{i}]."), found)
    return found


def _add_item(item: Fields, found: list[dict[str, Any]]) -> None:
    kind = item.text("type", "message", ("message", "function_call", "function_call_output", "reasoning"))
    item.ignore("id", "status", "annotations", "phase")
    if kind == "message":
        role = item.text("role", choices=ROLES)
        content = content_of(item, "content", False, ("input_text", "output_text", "text", "refusal"))
        found.append({"role": "system" if role == "developer" else role, "content": content})
    elif kind == "function_call":
        function = {"name": item.text("name"), "arguments": arguments_of(item)}
        call = {"id": item.text("call_id"), "type": "function", "function": function}
        if not (found and found[-1]["role"] == "assistant"):  # the calls of one turn are one message
            found.append({"role": "assistant", "content": ""})
        found[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        content = content_of(item, "output", False, ("input_text", "output_text", "text"))
        found.append({"role": "tool", "tool_call_id": item.text("call_id"), "content": content})
    else:  # what was thought before is not told to models again
        item.ignore("summary", "content", "encrypted_content")
    item.done()


def messages_of_answer(answer: Answer) -> list[dict[str, Any]]:
    """An answer as the message that it is in the next turn."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    calls = []
    for call in answer.calls:
        try:
            arguments = read_json(call.arguments)
        except (ValueError, RecursionError):
            arguments = {}
        arguments = arguments if isinstance(arguments, dict) else {}
        calls.append({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
    return [{**message, "tool_calls": calls} if calls else message]


__all__ = ["ResponseStore", "responses"]
