"""A request on its way through the engine."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..request import GenerationRequest, TextPiece, TokenLogprob
from .cache import CacheValue
from .grammar import Matcher
from .speculation import AcceptanceRate
from .stream import Mailbox
from .text import Text


@dataclass(eq=False)
class Sequence:
    """tokens: of the prompt and of the text, all but the last of them in the cache once it runs. key: who goes first.
    limit: most tokens of the text. value: None while it waits. stops: tokens that end it. seed: of its random numbers.
    last_step: when it had a part in a step last."""

    request: GenerationRequest
    key: tuple[float, int]
    limit: int
    stops: frozenset[int]
    seed: int
    arrived: float
    tokens: list[int] = field(default_factory=list)
    value: CacheValue | None = None
    mailbox: Mailbox = field(default_factory=Mailbox)
    cancelled: bool = False
    last_step: int = 0
    cached: int = -1
    first: float = 0.0  # when its first token came
    latest: float = 0.0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = [int(t) for t in self.request.prompt]
        self.prompt = len(self.tokens)
        self.text = Text(self.request.sampling.stop)
        self.counts: dict[int, int] = {}  # tokens of the text
        self.matcher: Matcher | None = None
        self.lookup: Any = None  # drafts.PromptLookup
        self.rates: dict[tuple[str, int], AcceptanceRate] = {}
        self.hidden: np.ndarray | None = None
        self.sent = False

    @cached_property
    def prompt_ids(self) -> np.ndarray:
        """The tokens of the prompt, each once."""
        return np.unique(np.asarray(self.request.prompt, np.int64))

    @property
    def missing(self) -> int:
        """Tokens that the cache lacks; the logits after the last of them choose the next one."""
        return len(self.tokens) - (self.value.length if self.value else 0)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt

    def send(self, text: str, tokens: Items[int] = (), **more: Any) -> None:
        first = () if self.sent else tuple(self.prompt_logprobs)
        self.sent = True
        self.mailbox.put(TextPiece(text, tuple(tokens), cached=max(self.cached, 0), prompt_logprobs=first, **more))


__all__ = ["Sequence"]
