"""Tools and reasoning in text: what is found does not depend on how the text is cut."""

from __future__ import annotations

import json
import random

import pytest

pytest.importorskip("starlette", reason="needs starlette: tilewright[llm]")

from tilewright.llm.request import TextPiece
from tilewright.llm.server.language import Answer
from tilewright.llm.server.reasoning import ReasoningParser
from tilewright.llm.server.tool_calls import FORMS, NamedCall, ToolParser

TOOLS = {"add": {"properties": {"a": {"type": "integer"}, "s": {"type": "string"}}}, "get.it": {}}
ADD = '{"a": 1, "s": "x}\\"]</tool_call> \\\\"}'
A = ("add", json.loads(ADD))
#: form, text, what is said, the calls
CASES = [
    ("hermes", f'Sure. <tool_call>{{"name": "add", "arguments": {ADD}}}</tool_call>', "Sure.", [A]),
    ("hermes", f'<tool_call>\n{{"arguments": {ADD}, "name": "add"}}\n</tool_call>\n' * 2, "", [A, A]),
    ("hermes", 'a < b <tool_call>{"name": "get.it"}</tool_call> and c', "a < b and c", [("get.it", {})]),
    ("hermes", "no <tool_", "no <tool_", []),
    ("hermes", "<tool_call>later</tool_call>", "later</tool_call>", []),
    ("hermes", '<tool_call>{"nam', '{"nam', []),
    ("hermes", '<tool_call>{"name": 3}</tool_call>', '{"name": 3}</tool_call>', []),
    ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 2}"}</tool_call>', "", [("add", {"a": 2})]),
    ("hermes", '<tool_call>{"name": "add", "arguments": null}</tool_call>', "", [("add", {})]),
    (
        "hermes",
        "<tool_call>\n<function=add>\n<parameter=a>\n7\n</parameter>\n<parameter=s>\n8 <b>\n</parameter>\n</function>\n"
        "</tool_call>",
        "",
        [("add", {"a": 7, "s": "8 <b>"})],
    ),
    ("llama3", f'{{"name": "add", "parameters": {ADD}}}', "", [A]),
    ("llama3", f'<|python_tag|>{{"name": "add", "parameters": {ADD}}}; {{"name": "get.it", "parameters": {{}}}}', "",
     [A, ("get.it", {})]),
    ("llama3", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
    ("llama3", '{"age": 3} is it', '{"age": 3} is it', []),
    ("mistral", f'[TOOL_CALLS] [{{"name": "add", "arguments": {ADD}}}, {{"name": "get.it", "arguments": {{}}}}]', "",
     [A, ("get.it", {})]),
    ("mistral", f"Well [TOOL_CALLS]add[ARGS]{ADD}[TOOL_CALLS]get.it{{}}", "Well", [A, ("get.it", {})]),
    ("mistral", f"[TOOL_CALLS]add[CALL_ID]x1[ARGS]{ADD}", "", [A]),
    ("mistral", "[1] is no call", "[1] is no call", []),
    ("generic", f'<tool_call>{{"name": "add", "arguments": {ADD}}}</tool_call>', "", [A]),
    ("generic", f'[{{"name": "add", "arguments": {ADD}}}]', "", [A]),
    ("generic", f"[TOOL_CALLS]add{ADD}", "", [A]),
    ("generic", "[[1, 2], {}]", "[[1, 2], {}]", []),
    ("json", f'[{{"name": "add", "parameters": {ADD}}}, {{"name": "add", "parameters": {ADD}}}]', "", [A, A]),
]  # fmt: skip


def answer(text: str, cuts: list[int], **parsers) -> Answer:
    found = Answer(**parsers)
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found.feed(TextPiece(text[begin:end], [0], finish_reason="stop" if end == len(text) else None))
    return found


@pytest.mark.parametrize(("form", "text", "said", "calls"), CASES)
def test_calls(form, text, said, calls):
    random_ = random.Random(text)
    for count in (0, 1, 2, 5, len(text) - 1):
        cuts = sorted(random_.sample(range(1, len(text)), min(count, len(text) - 1)))
        found = answer(text, cuts, tool_parser=ToolParser(FORMS[form], TOOLS))
        assert [(c.name, json.loads(c.arguments)) for c in found.calls] == calls
        assert found.text == said
        assert found.finish == ("tool_calls" if calls else "stop")


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "said"),
    [
        ("<think>\nhm\n</think>\n\nYes <think>", False, "hm", "Yes <think>"),
        ("hm </thin </think>Yes", True, "hm </thin", "Yes"),
        ("<thin> no", False, "", "<thin> no"),
        ("  <think>never ends </th", False, "never ends </th", ""),
        ("plain", False, "", "plain"),
        ("<think></think>Yes", False, "", "Yes"),
    ],
)
def test_reasoning(text, inside, reasoning, said):
    random_ = random.Random(text)
    for count in (0, 1, 3, len(text) - 1):
        cuts = sorted(random_.sample(range(1, len(text)), min(count, len(text) - 1)))
        found = answer(text, cuts, reasoning_parser=ReasoningParser("think", inside))
        assert (found.reasoning, found.text) == (reasoning, said)


def test_reasoning_then_calls():
    text = '<think>Call it: <tool_call></think>\n<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    parsers = {"reasoning_parser": ReasoningParser("think"), "tool_parser": ToolParser(FORMS["hermes"], TOOLS)}
    found = answer(text, list(range(1, len(text))), **parsers)
    assert found.reasoning == "Call it: <tool_call>" and found.text == "" and found.calls[0].name == "add"
    assert 30 < found.reasoning_tokens < 50


def test_a_named_call_is_its_arguments():
    found = answer('{"a": 1}', [3], tool_parser=NamedCall("add"))
    assert [(c.name, c.arguments) for c in found.calls] == [("add", '{"a": 1}')] and found.finish == "tool_calls"


def test_random_text_is_not_lost_or_broken():
    """Whatever comes: no error, and without a call what is said is the text but for spaces."""
    random_ = random.Random(0)
    atoms = [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<function=", "<think>", "</think>", '"name"', '"arguments"'),
        *('"add"', "{", "}", "[", "]", ":", ",", " ", "x", "\\", '"', ">", "\n", "é"),
    ]
    for _ in range(2000):
        text = "".join(random_.choices(atoms, k=random_.randrange(1, 30)))
        form = random_.choice(list(FORMS))
        cuts = sorted(random_.sample(range(1, len(text)), min(3, len(text) - 1)))
        found, again = (
            answer(text, c, tool_parser=ToolParser(FORMS[form], TOOLS), reasoning_parser=ReasoningParser("think"))
            for c in (cuts, [])
        )
        assert (found.text, found.reasoning) == (again.text, again.reasoning), (form, text)
        assert [(c.name, c.arguments) for c in found.calls] == [(c.name, c.arguments) for c in again.calls], form
