"""Calls of tools in the text of a model, found while the text comes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..engine.grammar import JSON_OPTIONS
from ..request import Grammar
from .body import read_json

_NAMES, _ARGUMENTS = ("name",), ("arguments", "parameters")


@dataclass(frozen=True)
class Delta:
    """What a piece of text adds to an answer: text, reasoning, a new call of a tool (`text` is the tool's name), or
    text of that call's arguments. `index` counts calls."""

    kind: Literal["text", "reasoning", "call", "arguments"]
    text: str
    index: int = 0


@dataclass(frozen=True)
class ToolForm:
    """How a family of models writes calls: what they begin with and end with. bare: an answer that is JSON from its
    first character is calls, of tools that were given. named: the name of the tool stands before its arguments.
    arguments, listed: what a grammar writes, the key of the arguments, and a list of all calls behind one mark."""

    begin: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    bare: bool = False
    named: bool = False
    arguments: str = "arguments"
    listed: bool = False


#: by the names that ``--tool-parser`` takes
FORMS = {
    "hermes": ToolForm(("<tool_call>",), ("</tool_call>",)),
    "llama3": ToolForm(("<|python_tag|>",), ("<|eom_id|>", "<|eot_id|>"), bare=True, arguments="parameters"),
    "mistral": ToolForm(("[TOOL_CALLS]",), ("[/TOOL_CALLS]",), named=True, listed=True),
    "generic": ToolForm(
        (
            "<tool_call>",
            "[TOOL_CALLS]",
            "<|python_tag|>",
            "<|tool_call|>",
            "<function_call>",
            "functools",
            "<TOOLCALL>",
        ),
        ("</tool_call>", "[/TOOL_CALLS]", "<|/tool_call|>", "</function_call>", "</TOOLCALL>"),
        bare=True,
        named=True,
    ),
    "json": ToolForm(bare=True),
}


def form_of_template(template: str) -> str:
    """The name of the form that a chat template shows to its model."""
    marks = {"<tool_call>": "hermes", "[TOOL_CALLS]": "mistral", "<|python_tag|>": "llama3"}
    return next((name for mark, name in marks.items() if mark in template), "generic")


class ToolParser:
    """Splits text into what is said and what is called. `tools` are the given tools: their schemas, by name.

    >>> p = ToolParser(FORMS["hermes"], {"add": {}})
    >>> p.feed('Sum: <tool_call>{"name": "add", "argu')
    [Delta(kind='text', text='Sum:', index=0), Delta(kind='call', text='add', index=0)]
    >>> p.feed('ments": {"a": 1}}</tool_call>')
    [Delta(kind='arguments', text='{"a": 1}', index=0)]
    """

    def __init__(self, form: ToolForm, tools: Mapping[str, Any]) -> None:
        self.form, self.tools, self.calls = form, tools, 0
        self._rest = ""
        self._bare = form.bare  # the text may still be calls as a whole
        self._in_calls = self._unmarked = False
        self._scanner: _Scanner | None = None

    def feed(self, text: str) -> list[Delta]:
        """What a piece of text adds."""
        self._rest += text
        found: list[Delta] = []
        while self._rest and self._step(found):
            pass
        return found

    def finish(self) -> list[Delta]:
        """What was held back, when the text has ended."""
        found: list[Delta] = []
        rest, self._rest = self._rest, ""
        if self._scanner is not None:
            if self._scanner.name is None or not self._scanner.started:
                found.append(Delta("text", self._scanner.raw + rest))
        elif rest.strip() and not (self._in_calls and self.calls):
            found.append(Delta("text", rest))
        return found

    def _step(self, found: list[Delta]) -> bool:
        """Take something off the rest; False if more text must come first."""
        if self._scanner is not None:
            return self._scan(found)
        if self._in_calls:
            return self._between(found)
        if self._bare:
            begin = self._rest.lstrip()
            if not begin or re.fullmatch(r"\[\s*", begin):
                return False
            self._bare = False
            if re.match(r"\[?\s*\{", begin):
                self._in_calls = self._unmarked = True
                return True
        return self._text(found)

    def _text(self, found: list[Delta]) -> bool:
        """Text up to a mark; spaces before it, and what may become it, wait."""
        rest = self._rest
        places = [(rest.find(mark), mark) for mark in self.form.begin if mark in rest]
        place, mark = min(places, default=(-1, ""))
        if mark:
            said, self._rest, self._in_calls, self._unmarked = rest[:place], rest[place + len(mark) :], True, False
        else:
            held = max((n for m in self.form.begin for n in range(1, len(m)) if rest.endswith(m[:n])), default=0)
            keep = len(rest[: len(rest) - held].rstrip())
            said, self._rest = rest[:keep], rest[keep:]
        said = said.rstrip() if mark else said
        said = said.lstrip() if self.calls and mark else said
        if said:
            found.append(Delta("text", said))
        return bool(mark)

    def _between(self, found: list[Delta]) -> bool:
        """Within calls, outside of an object."""
        rest = self._rest = self._rest.lstrip()
        if not rest:
            return False
        for mark in (*self.form.end, *self.form.begin):
            if rest.startswith(mark):
                self._rest, self._in_calls = rest[len(mark) :], mark in self.form.begin
                return True
            if mark.startswith(rest):
                return False
        if rest[0] in "[],;" and (self.calls or rest[0] == "["):
            self._rest = rest[1:]
            return True
        if rest[0] == "{":
            self._scanner = _Scanner()
            return True
        if "<function=".startswith(rest[:10]):
            return self._tagged(found)
        if self.form.named and (call := re.match(r"([\w.-]+)\s*(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)", rest)):
            self._rest, self._scanner = rest[call.end() :], _Scanner(call[1])
            return True
        if self.form.named and re.fullmatch(r"[\w.-]+\s*(\[[\w\]\[]*)?\s*", rest) and not self._unmarked:
            return False
        self._in_calls = False
        return True

    def _scan(self, found: list[Delta]) -> bool:
        """Characters of an object."""
        scanner = self._scanner
        assert scanner is not None
        text, self._rest = self._rest, ""
        used = scanner.feed(text)
        unknown = self._unmarked and scanner.name is not None and scanner.name not in self.tools
        if scanner.bad or unknown or (scanner.done and scanner.name is None):
            if not scanner.started:
                found.append(Delta("text", scanner.raw))
                self._in_calls = False
            self._rest, self._scanner = text[used:], None
            return True
        if scanner.name is not None:
            if not scanner.started:
                scanner.started = True
                found.append(Delta("call", scanner.name, self.calls))
                self.calls += 1
            if new := scanner.take():
                found.append(Delta("arguments", new, self.calls - 1))
        if scanner.done:
            self._rest, self._scanner = text[used:], None
        return scanner.done

    def _tagged(self, found: list[Delta]) -> bool:
        """``<function=NAME><parameter=KEY>VALUE</parameter>...</function>``, as a whole."""
        head, close, rest = self._rest.partition("</function>")
        if not close:
            return False
        name = head[len("<function=") :].split(">", 1)[0].strip()
        properties = dict((self.tools.get(name) or {}).get("properties") or {})
        values = {}
        for key, value in re.findall(r"<parameter=([^>]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", head, re.DOTALL):
            text = value.removeprefix("\n").removesuffix("\n")
            schema = properties.get(key.strip())
            values[key.strip()] = text if isinstance(schema, dict) and schema.get("type") == "string" else _value(text)
        arguments = json.dumps(values, ensure_ascii=False)
        found += [Delta("call", name, self.calls), Delta("arguments", arguments, self.calls)]
        self.calls, self._rest = self.calls + 1, rest
        return True


class NamedCall:
    """The parser of an answer that is the arguments of one tool as a whole, because a grammar makes it so."""

    def __init__(self, name: str) -> None:
        self._name, self.calls = name, 0

    def feed(self, text: str) -> list[Delta]:
        begin = [] if self.calls else [Delta("call", self._name)]
        self.calls = 1
        return [*begin, Delta("arguments", text)]

    def finish(self) -> list[Delta]:
        return []


class _Scanner:
    """One JSON object, by characters: a call's name, and its arguments as they come. Given a name it is arguments."""

    def __init__(self, name: str | None = None) -> None:
        self.name, self.raw, self.done, self.bad, self.started = name, "", False, False, False
        self._whole = name is not None
        self._depth, self._in_string, self._escaped = 0, False, False
        self._key: str | None = None
        self._value = -1  # where the value of a key begins in `raw`
        self._begin, self._end, self._taken = -1, -1, 0  # the arguments in `raw`

    def feed(self, text: str) -> int:
        """Go on until the object ends; how many characters that took."""
        place = len(self.raw)
        self.raw += text
        for i, c in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif c == "\\":
                    self._escaped = True
                elif c == '"':
                    self._in_string = False
            elif c == '"':
                self._in_string = True
            elif c in "{[":
                self._depth += 1
                if self._depth == 1:
                    self._begin_field(place + i + 1)
            elif c == ":" and self._depth == 1 and self._value < 0:
                self._read_key(place + i)
            elif c == "," and self._depth == 1:
                self._end_field(place + i)
            elif c in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self._end_field(place + i)
                    self.done = True
            if self.done or self.bad:
                self.raw = self.raw[: place + i + 1]
                return i + 1
        return len(text)

    def take(self) -> str:
        """Arguments that were not taken before, as text of JSON."""
        if self._whole:
            end, begin = len(self.raw), 0
        elif self._begin < 0:
            return "{}" if self.done else ""
        else:
            end, begin = self._end if self._end >= 0 else len(self.raw), self._begin
        value = self.raw[begin:end]
        if value.lstrip()[:1] != "{":  # a text with JSON, or nothing: as a whole
            if self._end < 0 or self._taken:
                return ""
            self._taken = 1
            read = _value(value)
            return read if isinstance(read, str) and read else "{}" if read in (None, "") else value.strip()
        clean = value.strip()
        new, self._taken = clean[self._taken :], len(clean)
        return new

    def _begin_field(self, place: int) -> None:
        self._key, self._value, self._field = None, -1, place

    def _read_key(self, place: int) -> None:
        self._key, self._value = _value(self.raw[self._field : place]), place + 1
        if self._key in _ARGUMENTS and self._begin < 0:
            self._begin = self._value

    def _end_field(self, place: int) -> None:
        if self._whole:
            return
        if self._key in _NAMES and self.name is None:
            name = _value(self.raw[self._value : place])
            self.name, self.bad = name, not isinstance(name, str)
        elif self._begin == self._value >= 0:
            self._end = place
        self._begin_field(place + 1)


def _value(text: str) -> Any:
    """JSON, or the text itself where it is none."""
    try:
        return read_json(text, strict=False)
    except (ValueError, RecursionError):
        return text.strip()


def call_schema(tools: Sequence[Mapping[str, Any]], parallel: bool, arguments: str = "parameters") -> dict[str, Any]:
    """The JSON schema of a list of calls of these tools: what a required call is held to."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": t["name"]}, arguments: t.get("parameters") or {"type": "object"}},
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        for t in tools
    ]
    return {"type": "array", "minItems": 1, **({} if parallel else {"maxItems": 1}), "items": {"anyOf": calls}}


def call_or_answer(
    form: ToolForm, tools: Sequence[Mapping[str, Any]], parallel: bool, answer: Grammar, special: Mapping[str, int]
) -> Grammar | None:
    """A grammar of calls as the model writes them, each behind its mark, or of an answer of this one; None for a
    grammar that cannot be a part of another. special: tokens that may stand for marks."""
    if answer.kind == "choice":
        allowed: Any = {"enum": json.loads(answer.text)}
        said = " | ".join(map(json.dumps, allowed["enum"]))
    elif answer.kind in ("json_schema", "json_object"):
        said = _json(json.loads(answer.text) if answer.kind == "json_schema" else {"type": "object"})
    else:
        return None

    def mark(text: str) -> str:
        return f"({json.dumps(text)} | <[{special[text]}]>)" if text in special else json.dumps(text)

    schema = call_schema(tools, parallel, form.arguments)
    called = _json(schema if form.listed else schema["items"])
    end = mark(form.end[0]) if form.end and form.end[0].startswith(("</", "[/")) and not form.listed else ""
    more = '("\\n"? call)*' if parallel and not form.listed else ""
    call = f'call: {mark(form.begin[0])} (" " | "\\n")? {called} "\\n"? {end}'
    return Grammar("lark", f"start: said | call {more}\nsaid: {said}\n{call}\n")


def _json(schema: Any) -> str:
    """A schema as a part of a grammar, with the white space that all JSON here has."""
    schema = {} if schema is True else schema if isinstance(schema, dict) else {"not": {}}
    return "%json " + json.dumps({**schema, "x-guidance": JSON_OPTIONS})


__all__ = ["FORMS", "Delta", "NamedCall", "ToolForm", "ToolParser", "call_or_answer", "call_schema", "form_of_template"]
