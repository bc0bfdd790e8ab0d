"""Tunable decisions: choices that rules leave to a tuner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: choices for `Schedule.sample_choice` by name; None leaves all to the rule
Decisions = Mapping[str, Any] | None


@dataclass(frozen=True)
class Decision:
    """A choice that a rule made: what it could choose from, what it chose, and what it would choose untuned."""

    name: str
    candidates: tuple[Any, ...]
    chosen: Any
    default: Any


def freeze(value: Any) -> Any:
    """A hashable form of decisions; lists (from JSON) become tuples.

    >>> freeze({"tile": [4, 2], "unroll": 1})
    (('tile', (4, 2)), ('unroll', 1))
    """
    if isinstance(value, Mapping):
        return tuple(sorted((k, freeze(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(freeze(v) for v in value)
    return value
