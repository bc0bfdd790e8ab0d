"""What chats and responses share: messages and tools, checked, and the requests that they become."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ...support.errors import TilewrightError
from ..request import GenerationRequest, Grammar
from .body import Fields, Problem, read_json
from .language import Answer, Answers, Language
from .reasoning import MARKS, ReasoningParser
from .sampling import choices_of
from .tool_calls import FORMS, NamedCall, ToolParser, call_or_answer, call_schema

log = logging.getLogger("tilewright.server")
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TOOLS, MESSAGES = 128, 10_000


@dataclass
class Conversation:
    """A prompt of messages, and what may follow. choice: auto, none, required, or the name of a tool. sampling:
    keyword arguments of `Sampling`; wanted: the most tokens, None for what is left."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    choice: str
    parallel: bool
    sampling: dict[str, Any]
    wanted: int | None
    n: int = 1
    priority: int = 0
    template: dict[str, Any] = field(default_factory=dict)

    async def start(self, language: Language, stack: AsyncExitStack) -> tuple[Answers, list[Answer]]:
        """The streams of the answers, in the engine until the stack ends, and the answers, empty."""
        grammar = self._grammar(language)
        prompt = ""

        def make() -> list[GenerationRequest]:
            nonlocal prompt
            prompt = self._prompt(language)
            tokens = language.tokenizer.encode(prompt)  # a template begins prompts itself
            shared = {
                **self.sampling,
                "grammar": grammar,
                "max_tokens": language.check_length(tokens, self.wanted, "messages"),
                # what marks calls and reasoning may be special tokens
                "skip_special_tokens": not (self.tools or language.reasoning),
            }
            return [
                GenerationRequest(tokens, sampling, priority=self.priority) for sampling in choices_of(shared, self.n)
            ]

        answers = await stack.enter_async_context(language.answers(make))
        return answers, [self._answer(language, prompt, grammar) for _ in answers.streams]

    def _grammar(self, language: Language) -> Grammar | None:
        asked: Grammar | None = self.sampling.get("grammar")
        if not self.tools or self.choice == "none" or (self.choice == "auto" and asked is None):
            return asked
        if self.choice == "required":
            return Grammar("json_schema", json.dumps(call_schema(self.tools, self.parallel)))
        if self.choice != "auto":
            tool = next(t for t in self.tools if t["name"] == self.choice)
            return Grammar("json_schema", json.dumps(tool.get("parameters") or {"type": "object"}))
        assert asked is not None  # either a call or an answer of the format
        form, tokenizer = FORMS[language.tools], language.tokenizer
        special = {tokenizer.token_bytes(t).decode("utf-8", "replace"): t for t in getattr(tokenizer, "special", ())}
        both = call_or_answer(form, self.tools, self.parallel, asked, special)
        if both is None:
            raise Problem(400, f"a {asked.kind} grammar and tools do not go together, unless 'tool_choice' is \"none\"")
        return both

    def _prompt(self, language: Language) -> str:
        tools = [{"type": "function", "function": t} for t in self.tools] if self.choice != "none" else []
        try:
            return language.tokenizer.chat(self.messages, tools=tools or None, **self.template)
        except Exception as error:  # a template is a program of the model's: what fails in it is about the messages
            log.debug("a chat template failed", exc_info=True)
            text = error.message if isinstance(error, TilewrightError) else f"{type(error).__name__}: {error}"
            raise Problem(400, f"the model's chat template refuses this: {text}"[:500], "messages") from None

    def _answer(self, language: Language, prompt: str, grammar: Grammar | None) -> Answer:
        answer = Answer(single=not self.parallel)
        if language.reasoning is not None and grammar is None:
            begin = MARKS[language.reasoning][0]
            answer.reasoning_parser = ReasoningParser(language.reasoning, prompt.rstrip().endswith(begin))
        if self.tools and self.choice != "none":
            schemas = {t["name"]: t.get("parameters") for t in self.tools}
            if self.choice in ("auto", "required"):
                form = FORMS[language.tools if self.choice == "auto" else "json"]
                # beside a format calls have marks: an answer that is JSON is no call
                form = form if self.choice == "required" or grammar is None else replace(form, bare=False)
                answer.tool_parser = ToolParser(form, schemas)
            else:
                answer.tool_parser = NamedCall(self.choice)
        return answer


# ---- reading ----


def message_of(value: Any, path: str) -> dict[str, Any]:
    """One message of a chat, as templates expect it: content is a text, arguments of calls are objects."""
    fields = Fields(value, f"{path}.")
    role = fields.text("role", choices=ROLES)
    found: dict[str, Any] = {"role": "system" if role == "developer" else role}
    found["content"] = content_of(fields, "content", optional=role == "assistant")
    for name in ("name", "tool_call_id", "reasoning_content"):
        text = fields.text(name, None)
        if text is not None:
            found[name] = text
    calls = [_call(c, f"{path}.tool_calls[{i}].") for i, c in enumerate(fields.items("tool_calls", [], TOOLS))]
    if calls and role != "assistant":
        raise fields.wrong("tool_calls", "is for messages of the assistant")
    if calls:
        found["tool_calls"] = calls
    fields.ignore("refusal", "annotations", "audio", "function_call", "reasoning")
    fields.done()
    return found


def content_of(fields: Fields, name: str, optional: bool, kinds: Sequence[str] = ("text", "refusal")) -> str:
    """Content as one text: from a text, or a list of parts."""
    content = fields.take(name, "" if optional else ..., (str, list), "a text or a list of parts")
    if content is ...:
        raise fields.wrong(name, "is missing")
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        inner = Fields(part, f"{fields.path}{name}[{i}].")
        how = inner.text("type", choices=kinds)
        texts.append(inner.text("refusal" if how == "refusal" else "text"))
    return "".join(texts)


def _call(value: Any, path: str) -> dict[str, Any]:
    fields = Fields(value, path)
    fields.text("type", "function", ("function",))
    function = fields.object("function")
    if function is None:
        raise fields.wrong("function", "is missing")
    return {
        "id": fields.text("id", ""),
        "type": "function",
        "function": {"name": function.text("name"), "arguments": arguments_of(function)},
    }


def arguments_of(fields: Fields) -> dict[str, Any]:
    """The arguments of a call, which are an object as a text."""
    text = fields.take("arguments", "{}", (str, dict), "a text of JSON")
    try:
        value = read_json(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise fields.wrong("arguments", "must be a JSON object, as a text")
    return value


def tools_of(fields: Fields, nested: bool = True) -> list[dict[str, Any]]:
    """The functions that may be called; those of responses are not nested."""
    found: list[dict[str, Any]] = []
    for i, value in enumerate(fields.items("tools", [], TOOLS)):
        outer = Fields(value, f"tools[{i}].")
        outer.text("type", choices=("function",))
        tool = outer.object("function") if nested else outer
        if tool is None:
            raise outer.wrong("function", "is missing")
        name = tool.text("name")
        if not re.fullmatch(r"[\w.-]{1,128}", name, re.ASCII):
            raise tool.wrong("name", "must be 1 to 128 letters, digits, dots, dashes and underlines")
        if any(t["name"] == name for t in found):
            raise tool.wrong("name", f"is there twice: {name!r}")
        parameters = tool.take("parameters", {"type": "object", "properties": {}}, (dict,), "a JSON schema")
        found.append({"name": name, "description": tool.text("description", ""), "parameters": parameters})
    return found


def tool_choice_of(fields: Fields, tools: Sequence[Mapping[str, Any]], nested: bool = True) -> str:
    """auto, none, required or a tool's name."""
    value = fields.take("tool_choice", "auto" if tools else "none", (str, dict), "a text or an object")
    if isinstance(value, dict):
        outer = Fields(value, "tool_choice.")
        outer.text("type", choices=("function",))
        inner = outer.object("function") if nested else outer
        name = "" if inner is None else inner.text("name")
        if not any(t["name"] == name for t in tools):
            raise fields.wrong("tool_choice", f"names {name[:100]!r}, which is not among 'tools'")
        return name
    if value not in ("auto", "none", "required"):
        raise fields.wrong("tool_choice", "must be auto, none, required or an object with a function")
    if value == "required" and not tools:
        raise fields.wrong("tool_choice", "needs 'tools'")
    return value


def template_of(fields: Fields) -> dict[str, Any]:
    """Variables for the chat template."""
    found = dict(fields.take("chat_template_kwargs", {}, (dict,), "an object"))
    if taken := {"messages", "tools", "self", "add_generation_prompt"} & set(found):
        raise fields.wrong("chat_template_kwargs", f"must not have {min(taken)!r}")
    effort = fields.text("reasoning_effort", None)
    return found if effort is None else {**found, "reasoning_effort": effort}


__all__ = [
    *("Conversation", "arguments_of", "content_of", "message_of", "template_of", "tool_choice_of"),
    *("tools_of", "MESSAGES"),
]
