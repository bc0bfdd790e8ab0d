"""How the next token is chosen from logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..request import TokenLogprob
from .sequence import Sequence


@dataclass
class Row:
    """A row of logits. before: drafts between the sequence's tokens and this row's. mask: bool [vocabulary] of tokens
    that a grammar allows."""

    sequence: Sequence
    before: list[int]
    mask: Any = None


@dataclass
class Choice:
    token: int
    logprob: TokenLogprob | None = None
    error: str = ""


def choose(logits: np.ndarray, rows: list[Row]) -> list[Choice]:
    """The token of each row of logits [R, vocabulary]."""
    return [Choice(int(t)) for t in np.argmax(logits[: len(rows)], 1)]


__all__ = ["Choice", "Row", "choose"]
