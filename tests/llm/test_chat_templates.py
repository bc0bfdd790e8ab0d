"""Chat templates: what the templates of the big families are written with gives what `transformers` makes of it; those
that never end, or ask for what they should not have, are an error of one request."""

import json

import pytest

pytest.importorskip("jinja2", reason="jinja2 is not installed")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")

from tilewright.llm import chat_template  # noqa: E402
from tilewright.llm.chat_template import ChatTemplate  # noqa: E402
from tilewright.llm.tokenizer import Tokenizer, load_tokenizer  # noqa: E402
from tilewright.support.errors import ModelError, UsageError  # noqa: E402

#: one template for each set of constructs that a family uses
TEMPLATES = {
    "marks around messages": """{% for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "system text in the first message, roles in turns": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}
{%- else %}{% set rest = messages %}{% set system = '' %}{% endif %}
{%- for m in rest %}
{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must take turns') }}{% endif %}
{%- if m.role == 'user' %}[INST] {{ (system ~ '\\n\\n' if loop.first and system else '') ~ m.content.strip() }} [/INST]
{%- elif m.role == 'assistant' %} {% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% endif %}
{%- endfor %}""",
    "tools, a namespace, slices, continue": """{%- set ns = namespace(last=-1, n=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- if tools is not none %}# Tools{% for t in tools %}
{{ t | tojson }}{{ t.function.name | upper if t.function is mapping }}{% endfor %}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' and m.content is not string %}{% continue %}{% endif %}
{%- set ns.n = ns.n + 1 %}
[{{ ns.n }}/{{ messages | length }}{{ '*' if loop.index0 == ns.last }}] {{ m.role | title }}: {{ m.content or '' }}
{%- if m.tool_calls is defined and m.tool_calls %}{% for call in m.tool_calls %}
<call>{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}</call>
{%- for k, v in call.function.arguments | items %} {{ k }}={{ v }}{% endfor %}{% endfor %}{% endif %}
{%- endfor %}
{{ messages[::-1] | map(attribute='role') | join(',') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}""",
    "macros, thinking, a date": """{% macro block(role, text) -%}<{{ role }}>{{ text }}</{{ role }}>{%- endmacro %}
{%- set enable_thinking = enable_thinking | default(true) %}
{{- block('system', 'date ' ~ strftime_now('%Y')) }}
{%- for m in messages %}{% set text = m.content.split('</think>')[-1].lstrip('\\n') if m.content else '' %}
{{- block(m.role, text) }}{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}
{%- if not enable_thinking %}<think>\\n\\n</think>{% endif %}""",
}
TOOL = {"type": "function", "function": {"name": "get", "description": "a < b & 'é'", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": {"x": [1, "ü"], "y": None}}}
MESSAGES = [
    {"role": "system", "content": "Be brief. <b>"},
    {"role": "user", "content": "  Hello\n"},
    {"role": "assistant", "content": "<think>hm</think>\nHi"},
    {"role": "user", "content": "And now?"},
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_those_of_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    hf = tokenizers.Tokenizer(tokenizers.models.BPE({"<s>": 0, "</s>": 1}, []))
    hf.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ unused }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES[name])
    want = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    with_calls = [*MESSAGES, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "ok"}]
    for messages in (MESSAGES, MESSAGES[1:], with_calls if "tools" in name else MESSAGES[:2]):
        for extra in ({}, {"tools": [TOOL]}, {"enable_thinking": False, "add_generation_prompt": True}):
            asked = {"add_generation_prompt": False, **extra}
            text = want.apply_chat_template(messages, tokenize=False, **asked)
            assert tokenizer.chat(messages, **asked) == text
    # as clients of OpenAI's API send them
    as_text = {**CALL, "function": {"name": "get", "arguments": json.dumps(CALL["function"]["arguments"])}}
    if "tools" in name:
        sent = [MESSAGES[1], {"role": "assistant", "tool_calls": [as_text]}]
        assert tokenizer.chat(sent) == tokenizer.chat([MESSAGES[1], {"role": "assistant", "tool_calls": [CALL]}])
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert tokenizer.chat(parts) == tokenizer.chat([{"role": "user", "content": "a\nb"}])
    with pytest.raises(UsageError, match="'image_url'"):
        tokenizer.chat([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])


def test_named_templates(tmp_path):
    hf = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    hf.save(str(tmp_path / "tokenizer.json"))
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("{{ documents[0] }}")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.chat(MESSAGES) == "D"
    assert tokenizer.chat(MESSAGES, [TOOL]) == "T"
    assert tokenizer.chat(MESSAGES, template="rag", documents=["x"]) == "x"
    with pytest.raises(UsageError, match="no chat template 'other'"):
        tokenizer.chat(MESSAGES, template="other")
    assert load_tokenizer(tmp_path, "given").chat(MESSAGES) == "given"
    with pytest.raises(UsageError, match="no chat template"):
        Tokenizer(hf, {}, frozenset()).chat(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(99) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 2 ** 100000 }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ '%999999999d' % 1 }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set n = namespace(x=99) %}{% for i in range(99) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
        "{{ ().__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ dict.__subclasses__() }}",
        "{{ namespace(__class__=1) }}",
        "{{ messages.append(1) }}",
        "{{ unknown.name }}",
        "{{ messages[9].role.name }}",
    ],
)
def test_a_template_that_goes_wrong_is_an_error_of_the_request(source, monkeypatch):
    monkeypatch.setattr(chat_template, "STEPS", 20_000)
    monkeypatch.setattr(chat_template, "LARGEST", 1 << 20)
    with pytest.raises(UsageError, match="the chat template failed"):
        ChatTemplate(source).render(messages=list(MESSAGES))


def test_errors_say_what_is_wrong():
    with pytest.raises(UsageError, match="does not take these messages: no system"):
        ChatTemplate("{{ raise_exception('no system') }}").render()
    with pytest.raises(ModelError, match="cannot be read \\(line 2\\)"):
        ChatTemplate("a\n{% for %}")
