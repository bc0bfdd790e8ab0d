"""Drafts of a step: who proposes them, and how much of each is tried."""

from __future__ import annotations

import time
import warnings

import numpy as np

from . import drafts, speculation
from .scheduler import StepPart
from .sequence import Sequence
from .speculation import AcceptanceRate, CostCurve


class Speculator:
    """lookup: drafts from a request's own text; shared: also from the text of those that are done; drafter: another
    source, for texts where look-up finds nothing or is mostly wrong. most: tokens of a draft.

    What is proposed by look-up and not tried is compared with the next token all the same, so that it is known when
    drafts begin to pay.
    """

    def __init__(self, lookup: bool, shared: bool, drafter: drafts.Drafter | None, most: int) -> None:
        self.lookup, self.drafter, self.most = lookup, drafter, most
        self.shared = drafts.SharedText() if shared and lookup else None
        self.cost = CostCurve()
        self.lengths = speculation.lengths
        self._rates: dict[tuple[str, int], AcceptanceRate] = {}
        self._price = 0.2  # of a token of the drafter, in units of a step

    def read(self, part: StepPart) -> None:
        """Index a chunk of a prompt."""
        s = part.sequence
        if self.lookup and self.most and s.limit > 1:
            s.lookup = s.lookup or drafts.PromptLookup(s.tokens, self.shared)
            s.lookup.read(s.tokens, part.value.length + part.count)

    def draft(self, parts: list[StepPart], room: int) -> None:
        """Set the drafts of these parts, `room` tokens at most together."""
        tokens, texts = sum(p.count for p in parts), sum(p.complete for p in parts)
        offers: list[tuple[StepPart, int, float]] = []
        for part in parts:
            s = part.sequence
            most = min(self.most, s.limit - s.generated - 1)
            if not part.complete or most < 1:
                continue
            self._propose(part, most)
            if part.proposal:
                offers.append((part, len(part.proposal), 0.0))
            elif self.drafter:
                part.rate = self._rate(s, "drafter", 0)
                offers.append((part, most, self._price))
        if not offers:
            return
        offered = [(p.rate() if p.rate else 0.0, length, price) for p, length, price in offers]
        asked = []
        for (part, _, _), count in zip(offers, self.lengths(self.cost, tokens, texts, offered, room), strict=True):
            if part.proposal:
                part.drafts = part.proposal[:count]
            elif count:
                asked.append(drafts.Ask(part.sequence, count, part.sequence.hidden))
            elif part.rate:
                part.rate.forget()
        if asked:
            self._ask({p.sequence: p for p in parts}, asked)

    def _propose(self, part: StepPart, most: int) -> None:
        """A proposal that costs nothing: what a grammar demands, or text that was there before."""
        s = part.sequence
        if s.matcher is not None and (forced := s.matcher.forced()[:most]):
            part.proposal, part.rate = forced, self._rate(s, "grammar", 0)
        elif self.lookup:
            s.lookup = s.lookup or drafts.PromptLookup(s.tokens, self.shared)
            found, matched = s.lookup.propose(s.tokens, most)
            if s.matcher is not None:
                found = found[: s.matcher.allowed(found)]
            rate = self._rate(s, "lookup", min(matched.bit_length(), 4))
            if found and (self.drafter is None or rate() >= self._rate(s, "drafter", 0)()):
                part.proposal, part.rate = found, rate

    def _ask(self, parts: dict[Sequence, StepPart], asked: list[drafts.Ask]) -> None:
        assert self.drafter is not None
        began = time.monotonic()
        try:
            found = self.drafter.propose(asked)
        except Exception as error:  # drafts are not needed: requests go on without
            warnings.warn(f"the drafter failed and is off from now on: {error}", RuntimeWarning, stacklevel=2)
            self.drafter = None
            return
        for ask, tokens in zip(asked, found, strict=True):
            s = ask.sequence
            allowed = len(tokens) if s.matcher is None else s.matcher.allowed(tokens)
            parts[s].drafts = parts[s].proposal = list(tokens[: min(allowed, ask.count)])
        count = sum(map(len, found))
        if count and self.cost.base:
            price = (time.monotonic() - began) * 1e3 / count / self.cost.base
            self._price += 0.1 * (price - self._price)

    def verified(self, part: StepPart, right: int, token: int) -> None:
        """So many tokens of a part's draft were right; `token` came next to what the part began with."""
        if part.rate is not None and part.drafts:
            part.rate.add(right, min(right + 1, len(part.drafts)))
        elif part.rate is not None and part.proposal:
            part.rate.add(part.proposal[0] == token, 1)

    def finished(self, s: Sequence) -> None:
        s.lookup = None
        if self.shared:
            self.shared.add(s.tokens[s.prompt :])
        if self.drafter:
            self.drafter.forget(s)

    def _rate(self, s: Sequence, source: str, kind: int) -> AcceptanceRate:
        key = source, kind
        if key not in s.rates:
            s.rates[key] = AcceptanceRate(self._rates.setdefault(key, AcceptanceRate()))
        return s.rates[key]

    def note_hidden(self, s: Sequence, hidden: np.ndarray) -> None:
        if self.drafter and self.drafter.hidden:
            s.hidden = np.array(hidden)


__all__ = ["Speculator"]
