"""Text that must follow a grammar: masks of allowed tokens by llguidance, which is loaded on first use.

What a grammar may cost is limited, when it is compiled and in each step. One that fails ends its request, nothing else.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...support.errors import UsageError
from ..request import Grammar

#: bytes of a grammar's text
_TEXT = 1 << 18
#: llguidance's own units; about 20 ms for a lexer, 15 ms and 2.5 ms for a step
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}

#: between the parts of JSON: a space, or a line's end and what it is indented by. A model that does not know that it is
#: to write JSON would write spaces for ever
JSON_OPTIONS = {"whitespace_pattern": r"\x20|\r?\n[\x20\x09]{0,64}"}


class GrammarError(UsageError):
    """A grammar that cannot be compiled, or that exceeds its limits."""


class Matcher:
    """Where the text of one request is in its grammar."""

    def __init__(self, inner: Any, vocabulary: int) -> None:
        self._inner, self._vocabulary = inner, vocabulary

    def masks(self, drafts: Sequence[int]) -> list[np.ndarray]:
        """bool [vocabulary], the tokens allowed next, and after each token of a draft as long as it is allowed. Raises
        GrammarError."""
        masks, consumed = [self._mask()], 0
        for token in drafts:
            if not masks[-1][token] or self._inner.is_stopped() or not self._inner.consume_token(token):
                break
            consumed += 1
            if self._inner.is_stopped():
                break
            masks.append(self._mask())
        if consumed:
            self._inner.rollback(consumed)
        self._check()
        return masks

    def _mask(self) -> np.ndarray:
        bits = np.frombuffer(self._inner.compute_bitmask(), np.uint8)
        self._check()
        mask = np.zeros(self._vocabulary, bool)
        found = np.unpackbits(bits, bitorder="little", count=min(8 * len(bits), self._vocabulary))
        mask[: len(found)] = found
        return mask

    def allowed(self, drafts: Sequence[int]) -> int:
        """How many tokens of a draft follow the grammar."""
        return int(self._inner.validate_tokens(list(drafts)))

    def forced(self) -> list[int]:
        """Tokens that can only come next."""
        return list(self._inner.compute_ff_tokens())

    def take(self, token: int) -> bool:
        """The text goes on with this token; whether it is over with it. Raises GrammarError."""
        self._inner.consume_token(token)
        self._check()
        return bool(self._inner.is_stopped())

    def _check(self) -> None:
        if self._inner.is_error():
            raise GrammarError(f"the grammar failed: {_short(self._inner.get_error())}")


class Grammars:
    """Compiles grammars for a tokenizer."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._lock = threading.Lock()
        self._inner: Any = None

    def compile(self, grammar: Grammar) -> Matcher:
        """Raises GrammarError."""
        try:
            import llguidance
        except ImportError as error:
            raise UsageError("grammars need the package llguidance", hint="pip install tilewright[llm]") from error
        if len(grammar.text) > _TEXT:
            raise GrammarError(f"the grammar has {len(grammar.text)} characters; {_TEXT} are allowed")
        with self._lock:
            if self._inner is None:
                self._inner = self._made(llguidance)
        try:
            text = _FORMS[grammar.kind](llguidance.LLMatcher, grammar.text)
        except KeyError:
            raise GrammarError(f"unknown kind of grammar: {grammar.kind!r}") from None
        except (ValueError, TypeError) as error:
            raise GrammarError(f"the grammar cannot be read: {_short(str(error))}") from error
        limits = llguidance.LLParserLimits(**_LIMITS)
        inner = llguidance.LLMatcher(self._inner, text, log_level=0, limits=limits)
        if inner.is_error():
            raise GrammarError(f"the grammar cannot be compiled: {_short(inner.get_error())}")
        return Matcher(inner, self._vocabulary)

    def _made(self, llguidance: Any) -> Any:
        eos = sorted(self._tokenizer.eos)
        if self._tokenizer.hf is not None:
            return llguidance.LLTokenizer(
                self._tokenizer.hf.to_str(), n_vocab=self._tokenizer.vocabulary, eos_token=eos
            )
        return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes(self._tokenizer)), eos_token=eos)


class _Bytes:
    """A tokenizer of ours as llguidance asks for it."""

    def __init__(self, tokenizer: Any) -> None:
        self.eos_token_id, self.bos_token_id = min(tokenizer.eos), tokenizer.bos
        self.tokens = [tokenizer.token_bytes(t) for t in range(tokenizer.vocabulary)]
        self.special_token_ids = sorted({*tokenizer.eos, *([] if tokenizer.bos is None else [tokenizer.bos])})
        for t in self.special_token_ids:
            self.tokens[t] = self.tokens[t] or b"\xff<%d>" % t
        self._encode = tokenizer.encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text.decode() if isinstance(text, bytes) else text)


def _choice(matcher: Any, text: str) -> str:
    choices = json.loads(text)
    if not (isinstance(choices, list) and choices and all(isinstance(c, str) for c in choices)):
        raise ValueError("a choice is a JSON list of texts")
    return matcher.grammar_from_lark("start: " + " | ".join(json.dumps(c) for c in choices))


_FORMS: dict[str, Callable[[Any, str], str]] = {
    "json_schema": lambda matcher, text: matcher.grammar_from_json_schema(text, defaults=JSON_OPTIONS),
    "json_object": lambda matcher, text: matcher.grammar_from_json_schema('{"type": "object"}', defaults=JSON_OPTIONS),
    "regex": lambda matcher, text: matcher.grammar_from_regex(text),
    "lark": lambda matcher, text: matcher.grammar_from_lark(text),
    "choice": _choice,
}


def _short(text: str) -> str:
    """An error of llguidance's without the state that it prints."""
    text = text.split("\n<state>")[0].strip()
    return text if len(text) < 500 else text[:500] + " ..."


__all__ = ["JSON_OPTIONS", "GrammarError", "Grammars", "Matcher"]
