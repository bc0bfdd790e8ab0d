"""The server on a local port, as the official client sees it."""

from __future__ import annotations

import base64
import json
import time

import numpy as np
import pytest
from llm.local_server import client_of
from llm.script_runner import ChatTokenizer, ScriptRunner

openai = pytest.importorskip("openai", reason="needs the package openai")
pytest.importorskip("uvicorn", reason="needs uvicorn and starlette: tilewright[llm]")

from tilewright.llm.engine.engine import LLMEngine  # noqa: E402
from tilewright.llm.server.app import make_app  # noqa: E402
from tilewright.llm.server.language import Language  # noqa: E402

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}\n</tool_call>'
ANSWERS = {
    "hello": "Hi there, Ünsal!",
    "weather?": f"Let me see.\n{CALL}\n{CALL}",
    "think": "<think>First, this.</think>\n\nThen that.",
    "forced": '{"city": "Bonn"}',
    "required": '[{"name": "weather", "parameters": {"city": "Ulm"}}]',
    "both, a call": f"{CALL}\n{CALL}",
    "both, a word": '{"name": "weather", "arguments": {}}',
    "Köln": "It rains.",
}
WEATHER = {
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOL = {"type": "function", "function": WEATHER}


@pytest.fixture(scope="module")
def engine():
    with LLMEngine(ScriptRunner(ANSWERS), ChatTokenizer(), queue=8) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine):
    language = Language("tiny", engine, ChatTokenizer(), context=512, tools="hermes", reasoning="think")
    with client_of(make_app(language, api_key="secret"), "secret") as client:
        yield client


def says(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def free(engine) -> bool:
    """Whether all pages come back: none is in use but those of the cache of prefixes."""
    for _ in range(200):
        if not engine.metrics()["running"] + engine.metrics()["waiting"]:
            break
        time.sleep(0.02)
    engine.call(engine.cache.clear)
    return engine.metrics()["pages_used"] == 0 and engine.metrics()["pages_cached"] == 0


def test_models(client):
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "tilewright"


def test_completions(client, engine):
    made = client.completions.create(model="tiny", prompt="user: hello\nassistant: ", max_tokens=100)
    assert made.choices[0].text == ANSWERS["hello"] and made.choices[0].finish_reason == "stop"
    assert made.usage.prompt_tokens == 1 + len("user: hello\nassistant: ")
    short = {"model": "tiny", "temperature": 0, "max_tokens": 7}
    made = client.completions.create(prompt=["one", "two"], n=2, echo=True, **short)
    assert [c.index for c in made.choices] == [0, 1, 2, 3]
    assert [c.text[:3] for c in made.choices] == ["one", "one", "two", "two"]
    assert {c.finish_reason for c in made.choices} == {"length"} and made.usage.completion_tokens == 28
    tokens = client.completions.create(prompt=[256, *b"one"], **short)
    assert "one" + tokens.choices[0].text == made.choices[0].text
    stream = client.completions.create(
        prompt=["one", "two"], stream=True, stream_options={"include_usage": True}, **short
    )
    texts, usage = ["one", "two"], None
    for event in stream:
        usage = event.usage or usage
        for choice in event.choices:
            texts[choice.index] += choice.text
    assert texts == [made.choices[0].text, made.choices[2].text] and usage.completion_tokens == 14
    stopped = client.completions.create(model="tiny", prompt="user: hello\nassistant: ", stop=["there", "x"])
    assert stopped.choices[0].text == "Hi " and stopped.choices[0].finish_reason == "stop"
    bias = client.completions.create(prompt="one", logit_bias={"113": 100}, **short)
    assert bias.choices[0].text == "q" * 7
    assert free(engine)


def test_seeds(client):
    def text(**more):
        made = client.completions.create(model="tiny", prompt="a", max_tokens=12, temperature=1.5, n=2, **more)
        return [c.text for c in made.choices]

    first = text(seed=7)
    assert first == text(seed=7) and first != text(seed=8) and first[0] != first[1]


def test_chat(client):
    made = client.chat.completions.create(model="tiny", messages=says("hello"), n=2)
    assert [c.message.content for c in made.choices] == [ANSWERS["hello"]] * 2
    assert made.choices[0].message.tool_calls is None and made.usage.prompt_tokens < 40
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    made = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": parts}], max_tokens=2)
    assert made.choices[0].message.content == "Hi" and made.choices[0].finish_reason == "length"
    events = list(client.chat.completions.create(model="tiny", messages=says("hello"), stream=True))
    assert events[0].choices[0].delta.role == "assistant" and events[-1].choices[0].finish_reason == "stop"
    assert "".join(e.choices[0].delta.content or "" for e in events) == ANSWERS["hello"]
    assert len(events) > 10


def test_reasoning_is_apart(client):
    made = client.chat.completions.create(model="tiny", messages=says("think")).choices[0].message
    assert (made.reasoning_content, made.content) == ("First, this.", "Then that.")
    extra = {"chat_template_kwargs": {"begin": "<think>"}}  # the template has begun it
    whole = client.chat.completions.create(model="tiny", messages=says("think"), extra_body=extra)
    assert whole.choices[0].message.content == "Then that."
    assert "First, this." in whole.choices[0].message.reasoning_content
    events = list(client.chat.completions.create(model="tiny", messages=says("think"), stream=True))
    deltas = [e.choices[0].delta for e in events]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "First, this."
    assert "".join(d.content or "" for d in deltas) == "Then that."


def test_tools(client):
    ask = {"model": "tiny", "messages": says("weather?"), "tools": [TOOL]}
    made = client.chat.completions.create(**ask).choices[0]
    assert made.finish_reason == "tool_calls" and made.message.content == "Let me see."
    assert [c.function.name for c in made.message.tool_calls] == ["weather"] * 2
    assert json.loads(made.message.tool_calls[0].function.arguments) == {"city": "Köln", "days": [1, 2]}
    assert len({c.id for c in made.message.tool_calls}) == 2
    calls: dict[int, list[str]] = {}
    for event in client.chat.completions.create(**ask, stream=True):
        for call in event.choices[0].delta.tool_calls or []:
            calls.setdefault(call.index, ["", ""])
            calls[call.index][0] += call.function.name or ""
            calls[call.index][1] += call.function.arguments or ""
    assert [c[0] for c in calls.values()] == ["weather"] * 2
    assert [c[1] for c in calls.values()] == [c.function.arguments for c in made.message.tool_calls]
    one = client.chat.completions.create(**ask, parallel_tool_calls=False).choices[0].message
    assert len(one.tool_calls) == 1
    none = client.chat.completions.create(**ask, tool_choice="none").choices[0]
    assert none.message.tool_calls is None and "<tool_call>" in none.message.content
    history = [
        *says("?"),
        made.message.model_dump(),
        {"role": "tool", "tool_call_id": made.message.tool_calls[0].id, "content": "rain"},
    ]
    assert client.chat.completions.create(model="tiny", messages=history).choices[0].message.content


def test_forced_calls(client):
    """Grammars hold the model to calls: "forced" and "required" are what it wants to say anyway."""
    pytest.importorskip("llguidance", reason="needs llguidance: tilewright[llm]")
    named = {"type": "function", "function": {"name": "weather"}}
    for text, choice, city in (("forced", named, "Bonn"), ("required", "required", "Ulm")):
        ask = {"model": "tiny", "messages": says(text), "tools": [TOOL], "tool_choice": choice, "temperature": 0}
        made = client.chat.completions.create(**ask).choices[0]
        assert made.finish_reason == "tool_calls" and not made.message.content
        assert [json.loads(c.function.arguments) for c in made.message.tool_calls] == [{"city": city}]
        deltas = [e.choices[0].delta for e in client.chat.completions.create(**ask, stream=True) if e.choices]
        calls = [c for d in deltas for c in d.tool_calls or []]
        assert json.loads("".join(c.function.arguments or "" for c in calls)) == {"city": city}


def test_formats(client, engine):
    pytest.importorskip("llguidance", reason="needs llguidance: tilewright[llm]")
    schema = {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}, "n": {"enum": [3, 5]}},
        "required": ["yes", "n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    ask = {"model": "tiny", "messages": says("letters"), "temperature": 0, "max_tokens": 400}
    made = client.chat.completions.create(**ask, response_format=form).choices[0]
    found = json.loads(made.message.content)
    assert made.finish_reason == "stop" and set(found) == {"yes", "n"} and found["n"] in (3, 5)
    text = {"format": {"type": "json_schema", "name": "s", "schema": schema}}
    told = client.responses.create(model="tiny", input="letters", text=text, temperature=0, max_output_tokens=400)
    assert json.loads(told.output_text)["n"] in (3, 5)
    made = client.chat.completions.create(**ask, n=2, extra_body={"structured_outputs": {"choice": ["uno", "due"]}})
    assert {c.message.content for c in made.choices} <= {"uno", "due"}
    for wrong in ({"type": "nonsense"}, {"properties": 3}):
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": wrong}}
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="grammar"):
                client.chat.completions.create(**ask, response_format=form, stream=stream)
    with pytest.raises(openai.BadRequestError, match="do not go together"):
        client.chat.completions.create(**ask, tools=[TOOL], extra_body={"structured_outputs": {"regex": "a+"}})
    assert free(engine)


def test_a_call_or_an_answer_of_a_format(client):
    """Tools and a format in one request: the model chooses, and either is as it must be."""
    pytest.importorskip("llguidance", reason="needs llguidance: tilewright[llm]")
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}}}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {**schema, "required": ["name"]}}}
    ask = {"model": "tiny", "tools": [TOOL], "response_format": form, "temperature": 0, "max_tokens": 300}
    made = client.chat.completions.create(**ask, messages=says("both, a call")).choices[0]
    assert made.finish_reason == "tool_calls" and not made.message.content
    assert [json.loads(c.function.arguments)["city"] for c in made.message.tool_calls] == ["Köln", "Köln"]
    single = client.chat.completions.create(**ask, messages=says("both, a call"), parallel_tool_calls=False).choices[0]
    assert len(single.message.tool_calls) == 1
    made = client.chat.completions.create(**ask, messages=says("both, a word")).choices[0]
    assert made.message.content == ANSWERS["both, a word"] and made.message.tool_calls is None
    forced = client.chat.completions.create(**ask, messages=says("required"), tool_choice="required").choices[0]
    assert json.loads(forced.message.tool_calls[0].function.arguments) == {"city": "Ulm"}


def test_logprobs(client):
    ask = {"model": "tiny", "temperature": 0, "max_tokens": 4}
    made = client.chat.completions.create(**ask, messages=says("hello"), logprobs=True, top_logprobs=3).choices[0]
    content = made.logprobs.content
    assert "".join(c.token for c in content) == made.message.content == "Hi t"
    assert all(len(c.top_logprobs) == 3 and c.top_logprobs[0].token == c.token for c in content)
    assert all(c.logprob > -0.01 and bytes(c.bytes).decode() == c.token for c in content)
    stream = client.chat.completions.create(**ask, messages=says("hello"), logprobs=True, stream=True)
    entries = [e for event in stream for c in event.choices if c.logprobs for e in c.logprobs.content]
    assert [e.logprob for e in entries] == pytest.approx([c.logprob for c in content], abs=1e-6)
    plain = client.completions.create(**ask, prompt="user: hello\nassistant: ", logprobs=2).choices[0]
    assert plain.logprobs.tokens == list("Hi t") and plain.logprobs.text_offset == [0, 1, 2, 3]
    assert all(len(t) == 2 for t in plain.logprobs.top_logprobs)
    ask = {"model": "tiny", "prompt": "abc", "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
    echo = client.completions.create(**ask).choices[0]  # as evaluations ask for the probability of a text
    assert echo.logprobs.tokens == ["", "a", "b", "c", echo.text[3]] and echo.logprobs.text_offset == [0, 0, 1, 2, 3]
    assert echo.logprobs.token_logprobs[0] is None and all(p < 0 for p in echo.logprobs.token_logprobs[1:])
    (event, *_) = client.completions.create(**ask, stream=True)
    assert event.choices[0].logprobs == echo.logprobs


def test_responses(client):
    first = client.responses.create(model="tiny", input="hello", instructions="Be kind.")
    assert first.output_text == ANSWERS["hello"] and first.status == "completed"
    again = client.responses.create(model="tiny", input=says("and?"), previous_response_id=first.id)
    assert again.output_text == ANSWERS["hello"]  # its prompt has the turn before
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="not kept"):
        client.responses.create(model="tiny", input="x", previous_response_id=first.id)
    short = client.responses.create(model="tiny", input="letters", max_output_tokens=5)
    assert short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens"
    with client.responses.stream(model="tiny", input="think") as stream:
        kinds = [e.type for e in stream]
        whole = stream.get_final_response()
    assert whole.output_text == "Then that." and [o.type for o in whole.output] == ["reasoning", "message"]
    assert whole.output[0].content[0].text == "First, this."
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert "response.output_text.delta" in kinds and "response.reasoning_text.delta" in kinds
    tools = [{"type": "function", **WEATHER}]
    with client.responses.stream(model="tiny", input="weather?", tools=tools) as stream:
        events = list(stream)
        called = stream.get_final_response()
    calls = [o for o in called.output if o.type == "function_call"]
    assert [json.loads(c.arguments)["city"] for c in calls] == ["Köln", "Köln"]
    assert sum(e.type == "response.function_call_arguments.done" for e in events) == 2
    plain = client.responses.create(model="tiny", input="weather?", tools=tools)
    assert [o.type for o in plain.output] == [o.type for o in called.output] == ["message", *["function_call"] * 2]
    whole_turn = [
        *says("weather?"),
        *plain.output,
        {"type": "function_call_output", "call_id": calls[0].call_id, "output": "x"},
    ]
    assert client.responses.create(model="tiny", input=whole_turn, tools=tools).output
    outputs = [{"type": "function_call_output", "call_id": calls[0].call_id, "output": "rain"}]
    after = client.responses.create(model="tiny", input=outputs, previous_response_id=plain.id)
    assert after.output_text


def test_embeddings(client, engine):
    made = client.embeddings.create(model="tiny", input=["a", "b", "a"], encoding_format="float")
    vectors = np.array([d.embedding for d in made.data])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1) and np.array_equal(vectors[0], vectors[2])
    assert not np.allclose(vectors[0], vectors[1]) and made.usage.prompt_tokens == 6
    packed = client.embeddings.create(model="tiny", input="b", encoding_format="base64").data[0].embedding
    assert np.allclose(np.frombuffer(base64.b64decode(packed), "<f4"), vectors[1])
    many = client.embeddings.create(model="tiny", input=[f"text {i}" for i in range(30)])  # more than the queue
    assert len(many.data) == 30 and free(engine)


def test_errors(client):
    chat = client.chat.completions.create
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        chat(model="other", messages=says("x"))
    with pytest.raises(openai.BadRequestError, match="'temperature' must be from 0 to 2") as caught:
        chat(model="tiny", messages=says("x"), temperature=3)
    assert caught.value.param == "temperature" and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="do not fit") as caught:
        chat(model="tiny", messages=says("x" * 600))
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="not among 'tools'"):
        choice = {"type": "function", "function": {"name": "other"}}
        chat(model="tiny", messages=says("x"), tools=[TOOL], tool_choice=choice)
    with pytest.raises(openai.BadRequestError, match="unknown field 'magic'"):
        chat(model="tiny", messages=says("x"), extra_body={"magic": 1})
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
