"""The sampling parameters, formats and limits of OpenAI's bodies, with the names that vLLM has added."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..request import Grammar, Sampling
from ..tokenizer import SAMPLING
from .body import Fields, Problem

#: fields of clients that change nothing of an answer here
IGNORED = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    "verbosity",
)
SEEDS = (1 << 63) - 1


@dataclass(frozen=True)
class ServerLimits:
    """What one request may ask for.

    body: bytes. max_tokens: of an answer; None is what the context leaves. prompts: of one body, choices included.
    n: choices. stops, stop_length: stop strings and their characters. seconds: until a request is ended.
    read_seconds: until a body is there.
    """

    body: int = 16 << 20
    max_tokens: int | None = None
    prompts: int = 256
    n: int = 16
    stops: int = 16
    stop_length: int = 1000
    top_logprobs: int = 20
    seconds: float = 600.0
    read_seconds: float = 30.0


def sampling_of(fields: Fields, limits: ServerLimits, vocabulary: int, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `Sampling` that completions, chat and responses share. defaults: the model's own
    (`Tokenizer.sampling`), for what a request does not say."""
    usual = {n: defaults.get(n, getattr(Sampling, n)) for n in SAMPLING}
    found: dict[str, Any] = {
        "temperature": fields.number("temperature", usual["temperature"], 0, 2),
        "top_p": fields.number("top_p", usual["top_p"], 0, 1),
        "top_k": max(fields.integer("top_k", usual["top_k"], -1, 1 << 31), 0),
        "min_p": fields.number("min_p", usual["min_p"], 0, 1),
        "presence_penalty": fields.number("presence_penalty", 0.0, -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", 0.0, -2, 2),
        "repetition_penalty": fields.number("repetition_penalty", usual["repetition_penalty"], 0.01, 100),
        "seed": fields.integer("seed", None, -SEEDS - 1, SEEDS),
        "ignore_eos": fields.flag("ignore_eos"),
        "stop": _stops(fields, limits),
        "stop_tokens": _token_ids(fields, "stop_token_ids", vocabulary),
        "logit_bias": _bias(fields, vocabulary),
    }
    if found["top_p"] == 0:
        raise fields.wrong("top_p", "must be above 0")
    if found["seed"] is not None:
        found["seed"] &= SEEDS
    fields.ignore(*IGNORED)
    return found


def most_tokens(fields: Fields, names: Sequence[str], default: int | None, limits: ServerLimits) -> int | None:
    """The most tokens of an answer, by the first of the names that is there."""
    found = default
    for name in reversed(names):
        found = fields.integer(name, found, 1, limits.max_tokens or 1 << 31)
    return found


def _stops(fields: Fields, limits: ServerLimits) -> tuple[str, ...]:
    value = fields.take("stop", [], (str, list), "a text or a list of texts")
    stops = [value] if isinstance(value, str) else value
    if len(stops) > limits.stops or not all(isinstance(s, str) and 0 < len(s) <= limits.stop_length for s in stops):
        raise fields.wrong("stop", f"must be at most {limits.stops} texts of 1 to {limits.stop_length} characters")
    return tuple(stops)


def _token_ids(fields: Fields, name: str, vocabulary: int) -> tuple[int, ...]:
    ids = fields.items(name, [], 1000)
    if not all(type(t) is int and 0 <= t < vocabulary for t in ids):
        raise fields.wrong(name, f"must be a list of tokens from 0 to {vocabulary - 1}")
    return tuple(ids)


def _bias(fields: Fields, vocabulary: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for token, bias in fields.take("logit_bias", {}, (dict,), "an object of biases by token").items():
        number = int(token) if token.isascii() and token.isdigit() and len(token) < 10 else vocabulary
        if number >= vocabulary:
            raise fields.wrong("logit_bias", f"has no token {token[:20]!r} (0 to {vocabulary - 1})")
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise fields.wrong("logit_bias", f"of token {token} must be from -100 to 100")
        found[number] = float(bias)
    return found


# ---- what the text must be ----


def grammar_of(fields: Fields) -> Grammar | None:
    """From ``response_format`` and ``structured_outputs``; a Problem for both."""
    found = []
    if (wanted := fields.object("response_format")) is not None:
        found.append(format_grammar(wanted))
    if (wanted := fields.object("structured_outputs")) is not None:
        found.append(_structured(wanted))
    given = [g for g in found if g is not None]
    if len(given) > 1:
        raise fields.wrong("structured_outputs", "does not go with 'response_format'")
    return given[0] if given else None


def format_grammar(wanted: Fields, nested: bool = True) -> Grammar | None:
    """From ``response_format``, or from ``text.format`` of responses, where the schema is not nested."""
    how = wanted.text("type", choices=("text", "json_object", "json_schema"))
    if how != "json_schema":
        wanted.done()
        return None if how == "text" else Grammar("json_object")
    holder = wanted.object("json_schema") if nested else wanted
    if holder is None:
        raise wanted.wrong("json_schema", "is missing")
    schema = holder.take("schema", kinds=(dict, bool), what="a JSON schema")
    holder.text("name", "")
    holder.ignore("strict", "description")
    holder.done()
    wanted.done()
    return Grammar("json_schema", json.dumps(schema))


def _structured(wanted: Fields) -> Grammar:
    """From vLLM's ``structured_outputs``."""
    schema = wanted.take("json", None, (dict, str), "a JSON schema")
    choice = wanted.items("choice", None, 1000)
    if choice is not None and not (choice and all(isinstance(c, str) and c for c in choice)):
        raise wanted.wrong("choice", "must be a list of texts")
    given = [
        schema is not None and Grammar("json_schema", schema if isinstance(schema, str) else json.dumps(schema)),
        (regex := wanted.text("regex", None)) is not None and Grammar("regex", regex),
        (lark := wanted.text("grammar", None)) is not None and Grammar("lark", lark),
        choice is not None and Grammar("choice", json.dumps(choice)),
        wanted.flag("json_object") and Grammar("json_object"),
    ]
    wanted.done()
    found = [g for g in given if g]
    if len(found) != 1:
        raise Problem(400, "'structured_outputs' must have one of json, regex, choice, grammar, json_object")
    return found[0]


def stream_options(fields: Fields, stream: bool) -> bool:
    """Whether the last event of a stream has the usage."""
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise fields.wrong("stream_options", "is for streams only")
    usage = options.flag("include_usage")
    options.ignore("include_obfuscation")
    options.done()
    return usage


def choices_of(shared: Mapping[str, Any], n: int) -> list[Sampling]:
    """The parameters of n choices of one prompt: those with a seed have one each."""
    seed = shared["seed"]
    return [Sampling(**{**shared, "seed": None if seed is None else (seed + i) & SEEDS}) for i in range(n)]


__all__ = [
    *("IGNORED", "ServerLimits", "choices_of", "format_grammar", "grammar_of", "most_tokens", "sampling_of"),
    "stream_options",
]
