"""Chat templates: what makes a model's prompt of messages. A template comes with the model, so it is code of others: it
runs in jinja2's sandbox, with limits on time and size, and one that fails ends one request."""

from __future__ import annotations

import datetime
import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace

from ..support.errors import ModelError, UsageError, printable

#: characters of a prompt or of any text, and items of any list, that a template may make
LARGEST = 1 << 24
#: bits of the integers it may make
LARGEST_BITS = 10_000
#: rounds of loops and calls
STEPS = 2_000_000
SECONDS = 10.0


class ChatTemplate:
    """A template in the language that Hugging Face's templates are written in: jinja2 with ``break`` and ``continue``,
    ``generation`` blocks, ``raise_exception``, ``strftime_now`` and a ``tojson`` that leaves HTML alone.

    tokens: what the template may print by name, as ``bos_token``. Raises ModelError for a template with bad syntax.

    >>> source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] }}{% endfor %}"
    >>> ChatTemplate(source, {"bos_token": "<s>"}).render(messages=[{"role": "user", "content": "a < b"}])
    '<s>[user] a < b'
    """

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        self.source, self.tokens = source, dict(tokens or {})
        self._environment = _Environment()
        self._template: Template = self._environment.limited(source)

    def render(self, **variables: Any) -> str:
        """The prompt's text. Raises UsageError for whatever goes wrong, as messages that the template refuses."""
        with_tokens = {**self.tokens, **variables}
        budget = _Budget()
        parts: list[str] = []
        try:
            for part in self._template.generate(**with_tokens, **{_BUDGET: budget}):
                budget.spend(len(part))
                parts.append(part)
            return "".join(parts)
        except _Refused as refused:
            raise UsageError(f"the chat template does not take these messages: {printable(str(refused))}") from refused
        except (Exception, RecursionError) as error:
            text = printable(f"{type(error).__name__}: {error}"[:300])
            raise UsageError(
                f"the chat template failed: {text}",
                hint="roles and contents that this model's template does not know fail so; another can be given",
            ) from error


#: the variable by which loops and calls find the budget of their rendering
_BUDGET = "_rendering"


class _Refused(Exception):
    """The template called `raise_exception`."""


class _Budget:
    def __init__(self) -> None:
        self.steps, self.characters, self.until = STEPS, LARGEST, time.monotonic() + SECONDS

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0 or time.monotonic() > self.until:
            raise SecurityError(f"more than {STEPS:,} rounds of loops or {SECONDS:g} s")

    def spend(self, characters: int) -> None:
        self.characters -= characters
        if self.characters < 0:
            raise SecurityError(f"a prompt of more than {LARGEST:,} characters")


def _small(value: Any) -> Any:
    """The value; SecurityError if it is too large to go on with."""
    if isinstance(value, str | bytes | list | tuple) and len(value) > LARGEST:
        raise SecurityError(f"a value of more than {LARGEST:,} characters or items")
    if isinstance(value, int) and value.bit_length() > LARGEST_BITS:
        raise SecurityError(f"an integer of more than {LARGEST_BITS:,} bits")
    return value


def _small_arguments(arguments: Iterable[Any]) -> None:
    if any(isinstance(a, int) and abs(a) > LARGEST for a in arguments):  # a width, or how often
        raise SecurityError(f"a number above {LARGEST:,} as an argument")


def _limited(filter_: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(filter_)
    def call(*args: Any, **kwargs: Any) -> Any:
        _small_arguments((*args, *kwargs.values()))
        return _small(filter_(*args, **kwargs))

    return call


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_small)
        self.filters = {name: _limited(f) for name, f in self.filters.items()}
        self.filters |= {
            "tojson": _to_json,
            _COUNTED: _counted,
            _JOINED: _joined,
        }
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: datetime.datetime.now().strftime(form),
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),  # not the type, whose attributes lead further
            "namespace": _Namespace,
        }

    def limited(self, source: str) -> Template:
        """The template, with its loops counted and its concatenations checked."""
        try:
            tree = self.parse(source)
            for loop in tree.find_all(nodes.For):
                budget = nodes.Name(_BUDGET, "load", lineno=loop.lineno)
                loop.iter = nodes.Filter(loop.iter, _COUNTED, [budget], [], None, None, lineno=loop.lineno)
            _replace_concatenations(tree)
            return Template.from_code(self, self.compile(tree), self.make_globals(None))
        except (TemplateError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            place = f" (line {line})" if line else ""
            raise ModelError(f"the chat template cannot be read{place}: {printable(str(error)[:300])}") from error

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = __context.get(_BUDGET)
        if budget is not None:
            budget.step()
        _small_arguments((*args, *kwargs.values()))
        return _small(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * abs(right) > LARGEST_BITS:
                raise SecurityError(f"a power of more than {LARGEST_BITS:,} bits")
        elif operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str | bytes | list | tuple) and isinstance(times, int):
                    _small_arguments([len(sequence) * times])
        elif operator == "%" and isinstance(left, str) and re.search(r"\d{6}|\*", left):
            raise SecurityError("a format with a very large width")
        return _small(super().call_binop(context, operator, left, right))


#: names of filters that templates cannot write
_COUNTED, _JOINED = "counted by the limits", "joined within the limits"


def _counted(values: Iterable[Any], budget: _Budget) -> Iterator[Any]:
    for value in values:
        budget.step()
        yield value


def _joined(parts: Iterable[Any]) -> Any:
    return _small("".join(map(str, parts)))


def _replace_concatenations(node: nodes.Node) -> None:
    """``a ~ b`` becomes a filter that checks the size."""
    for name, value in list(node.iter_fields()):
        made = [_with_checked(v) for v in value] if isinstance(value, list) else _with_checked(value)
        setattr(node, name, made)
    for child in node.iter_child_nodes():
        _replace_concatenations(child)


def _with_checked(value: Any) -> Any:
    if not isinstance(value, nodes.Concat):
        return value
    parts = nodes.List(value.nodes, lineno=value.lineno)
    return nodes.Filter(parts, _JOINED, [], [], None, None, lineno=value.lineno)


class _Generation(Extension):
    """``{% generation %} ... {% endgeneration %}``: marks the model's own words for training; here its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """As jinja2's, without names that Python gives a meaning to."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        Namespace.__init__(*args, **kwargs)
        for name in dict(*args[1:], **kwargs):
            _plain_name(name)

    def __setitem__(self, name: str, value: Any) -> None:
        _plain_name(name)
        super().__setitem__(name, value)


def _plain_name(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r}")


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


__all__ = ["ChatTemplate"]
