"""Where drafts come from: text that was there before, another model, or heads that predict several tokens."""

from __future__ import annotations

from collections.abc import Sequence as Items
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...support.errors import UsageError
from ..batch import Runner
from . import sampler
from .cache import Cache
from .scheduler import StepPart, batch_of
from .sequence import Sequence


class SuffixAutomaton:
    """All substrings of a text, grown token by token in constant time each (Blumer et al., 1985). A state is a set of
    substrings that end at the same places; `end` is one of them.

    >>> text = SuffixAutomaton()
    >>> for token in (1, 2, 3, 4, 1, 2):
    ...     text.extend(token)
    >>> end, length = text.repeated()
    >>> length, text.after(end, 3)
    (2, [3, 4, 1])
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        self.next: list[dict[int, int]] = [{}]
        self.link, self.length, self.end = [-1], [0], [0]
        self.last = 0

    def _state(self, following: dict[int, int], link: int, length: int, end: int) -> int:
        self.next.append(following)
        self.link.append(link)
        self.length.append(length)
        self.end.append(end)
        return len(self.link) - 1

    def extend(self, token: int) -> None:
        self.text.append(token)
        following, link, length = self.next, self.link, self.length
        new = self._state({}, 0, length[self.last] + 1, len(self.text))
        at, self.last = self.last, new
        while at >= 0 and token not in following[at]:
            following[at][token] = new
            at = link[at]
        if at < 0:
            return
        to = following[at][token]
        if length[to] != length[at] + 1:
            clone = self._state(dict(following[to]), link[to], length[at] + 1, self.end[to])
            while at >= 0 and following[at].get(token) == to:
                following[at][token] = clone
                at = link[at]
            link[to] = clone
            to = clone
        link[new] = to

    def repeated(self) -> tuple[int, int]:
        """Where the longest end of the text that was there before ended then, and its length; from now on this is where
        it was last."""
        state = max(self.link[self.last], 0)
        found = self.end[state], self.length[state]
        self.end[state] = len(self.text)
        return found

    def follow(self, match: tuple[int, int], token: int) -> tuple[int, int]:
        """(state, length) of the longest end of another text that is in this one, after its next token."""
        state, length = match
        while state and token not in self.next[state]:
            state = self.link[state]
            length = self.length[state]
        return (self.next[state][token], length + 1) if token in self.next[state] else (0, 0)

    def after(self, end: int, count: int) -> list[int]:
        return self.text[end : end + count]


class PromptLookup:
    """Drafts from the text of a request itself and, where there is one, from the text of other requests."""

    def __init__(self, tokens: Items[int], shared: SharedText | None = None, limit: int = 1 << 14) -> None:
        self.limit, self.shared = limit, shared
        self.own, self.seen = SuffixAutomaton(), max(len(tokens) - limit // 2, 0)
        self.found, self.match, self.version = (0, 0), (0, 0), -1

    def read(self, tokens: list[int], count: int) -> None:
        """Index the first `count` of these tokens, which are those of the call before and more. Of a text longer than
        the limit, the last part is indexed."""
        if self.seen >= count:
            return
        if len(self.own.text) + count - self.seen > self.limit:
            self.own, self.seen = SuffixAutomaton(), max(count - self.limit // 2, 0)
        for token in tokens[self.seen : count]:
            self.own.extend(token)
            if self.shared:
                if self.version != self.shared.version:
                    self.match, self.version = (0, 0), self.shared.version
                self.match = self.shared.text.follow(self.match, token)
        self.seen = count
        self.found = self.own.repeated()

    def propose(self, tokens: list[int], count: int) -> tuple[list[int], int]:
        """A draft that goes on from these tokens; and how many tokens before it are the same as where it comes from."""
        self.read(tokens, len(tokens))
        end, length = self.found
        if self.shared and self.match[1] > length and self.version == self.shared.version:
            text = self.shared.text
            draft = text.after(text.end[self.match[0]], count)
            draft = draft[: draft.index(-1)] if -1 in draft else draft
            if draft:
                return draft, self.match[1]
        return (self.own.after(end, count), length) if length else ([], 0)


class SharedText:
    """Text of requests that are done, for drafts of others. It begins anew when it is full."""

    def __init__(self, limit: int = 1 << 15) -> None:
        self.limit, self.text, self.version = limit, SuffixAutomaton(), 0

    def add(self, tokens: Items[int]) -> None:
        if len(self.text.text) + len(tokens) > self.limit:
            self.text, self.version = SuffixAutomaton(), self.version + 1
        for token in [*tokens[-self.limit :], -1]:
            self.text.extend(token)


@dataclass
class Ask:
    """Draft `count` tokens after those of the sequence. hidden: [n, hidden], what the model's output layer was given at
    the last n tokens that were accepted, for drafters that ask for it."""

    sequence: Sequence
    count: int
    hidden: np.ndarray | None = None


class Drafter(Protocol):
    """What else makes drafts: a model, or heads on the model's hidden states. hidden: whether it wants these."""

    hidden: bool

    def propose(self, asked: Items[Ask]) -> list[list[int]]:
        """A draft for each, of `count` tokens or fewer."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence is over."""


class DraftModel:
    """A small model of the same vocabulary, with a cache of its own. It draws its tokens with the random numbers of the
    request, as the large one will, so that they are mostly the same where the two models agree."""

    hidden = False

    def __init__(self, runner: Runner) -> None:
        if runner.limits.snapshots:
            raise UsageError("a draft model with recurrent layers cannot take tokens back", hint="use one without")
        self.runner, self.cache = runner, Cache(runner)
        self._own: dict[Sequence, Sequence] = {}  # the same tokens, with a value in this cache

    def propose(self, asked: Items[Ask]) -> list[list[int]]:
        found = [self._ready(a) for a in asked]
        wanted = {own: a.count for own, a in zip(found, asked, strict=True) if own is not None}
        drafts: dict[Sequence, list[int]] = {own: [] for own in wanted}
        limits, ready = self.runner.limits, list(wanted)
        while ready:
            parts, room = [], limits.tokens
            for own in ready[: limits.sequences]:
                skip = len(drafts[own])  # the last token, and drafts but the newest one
                part = StepPart(own, 1 if skip else min(own.missing, room), drafts[own], skip)
                parts.append(part)
                room -= 1 if skip else part.count
                if room < 1:
                    break
            result = self.runner.step(batch_of(parts, self.cache))
            drawn = [p for p in parts if p.rows]
            rows = [sampler.LogitsRow(p.sequence, list(p.drafts)) for p in drawn]
            choices = sampler.choose(result.logits, rows, [p.first + p.rows - 1 for p in drawn])
            for part in parts:  # the last token stays out of the cache, as it is what the next draft begins with
                if not part.skip:
                    length = min(part.value.length + part.count, len(part.sequence.tokens) - 1)
                    self.cache.advance(part.value, part.sequence.tokens, length)
            for part, choice in zip(drawn, choices, strict=True):
                drafts[part.sequence].append(choice.token)
            ready = [own for own in ready if len(drafts[own]) < wanted[own] and -1 not in drafts[own]]
        return [[t for t in drafts[own] if t >= 0] if own is not None else [] for own in found]

    def _ready(self, ask: Ask) -> Sequence | None:
        """The sequence with a value in this cache; None where there is no room for it."""
        own = self._own.get(ask.sequence)
        if own is None:
            own = self._own[ask.sequence] = copy(ask.sequence)  # its tokens and counts are the same lists
            own.value = None
        own.value = own.value or self.cache.open(own.tokens)
        length = len(own.tokens) + ask.count
        if own.value and length <= self.runner.limits.context and self.cache.reserve(own.value, length):
            return own
        self.forget(ask.sequence)
        return None

    def forget(self, sequence: Sequence) -> None:
        own = self._own.pop(sequence, None)
        if own is not None and own.value is not None:
            self.cache.close(own.value, own.tokens)


__all__ = ["Ask", "DraftModel", "Drafter", "PromptLookup", "SharedText", "SuffixAutomaton"]
