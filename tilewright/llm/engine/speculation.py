"""How long drafts are: what a step of more rows costs, as measured, against the tokens that it is likely to give."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

_STALE = 512  # steps after which a cost that was not measured again is forgotten
_TRIED = 32  # the same for one that was measured once; each time it is, twice as many
_GAIN = 1.02  # less than that is not worth a draft
_LEAST = 0.01  # a token of a draft that is right less often pays on no machine
_PRIOR = 4  # trials that what is known from elsewhere counts as


class CostCurve:
    """Milliseconds of a step by its tokens, in units of a step of now: what makes all steps slower, a longer text or a
    busy machine, does not count as the cost of a draft.

    >>> curve = CostCurve()
    >>> for tokens, ms in ((1, 10.0), (8, 17.0)):
    ...     curve.add(tokens, ms)
    >>> round(curve(4) / curve(1), 2)
    1.3
    """

    def __init__(self) -> None:
        self.base = 0.0
        self.steps = 0
        self._keys: list[int] = []
        #: [tokens, cost / base, step when it was measured, how often]
        self._known: dict[int, list[float]] = {}

    def add(self, tokens: int, ms: float) -> None:
        self.steps += 1
        key = tokens if tokens <= 64 else 64 + int(8 * math.log2(tokens / 64))
        entry = self._known.get(key)
        if entry is None:
            self.base = self.base or ms
            at = bisect.bisect(self._keys, key)
            cost = ms / self.base
            if at:  # more is known of a step than one measurement says, which may be far off: not all of it grows
                fewer = self._known[self._keys[at - 1]]
                cost = min(cost, fewer[1] * tokens / fewer[0])
            self._keys.insert(at, key)
            self._known[key] = [tokens, cost, self.steps, 1]
            return
        ms = min(ms, 3 * self.base * entry[1])  # another process, a page fault
        self.base += 0.2 * (ms / entry[1] - self.base)
        entry[0] += 0.2 * (tokens - entry[0])
        entry[3] += 1
        entry[1] += max(0.1, 1 / entry[3]) * (ms / self.base - entry[1])
        entry[2] = self.steps

    def __call__(self, tokens: int) -> float:
        """Between two that were measured on a line."""
        if not self._keys:
            return 1.0
        at = bisect.bisect_left(self._keys, tokens if tokens <= 64 else 64 + int(8 * math.log2(tokens / 64)))
        for key in self._keys[max(at - 1, 0) : at + 1]:
            _, _, last, count = self._known[key]
            if self.steps - last > min(_STALE, _TRIED * 2 ** min(count - 1, 9)) and len(self._keys) > 1:
                self._keys.remove(key)
                del self._known[key]
                return self(tokens)
        upper = self._known[self._keys[min(at, len(self._keys) - 1)]]
        lower = self._known[self._keys[max(at - 1, 0)]]
        if tokens <= lower[0]:
            return lower[1]
        if tokens >= upper[0]:
            return self._above(tokens) if at == len(self._keys) else upper[1]
        return lower[1] + (upper[1] - lower[1]) * (tokens - lower[0]) / (upper[0] - lower[0])

    def _above(self, tokens: int) -> float:
        """More tokens than were ever measured: half as steep as it was until there, so that it is tried, but never far
        from what is known."""
        least, most = self._known[self._keys[0]], self._known[self._keys[-1]]
        if most[0] > least[0]:
            slope = max(most[1] - least[1], 0.0) / (most[0] - least[0]) / 2
            return most[1] + slope * (tokens - most[0])
        return most[1] * max(1.0, tokens / (2 * most[0]))


class AcceptanceRate:
    """How often the next token of a draft is right, lately; without any, as it was elsewhere.

    >>> rate = AcceptanceRate(AcceptanceRate())
    >>> for _ in range(20):
    ...     rate.add(3, 4)
    >>> 0.7 < rate() < 0.75
    True
    """

    def __init__(self, elsewhere: AcceptanceRate | None = None) -> None:
        self.elsewhere, self.right, self.tried = elsewhere, 0.0, 0.0

    def add(self, right: int, tried: int) -> None:
        keep = 0.96 if self.elsewhere else 0.99  # with fewer trials, chance decides whether drafts seem to pay
        self.right, self.tried = self.right * keep + right, self.tried * keep + tried
        if self.elsewhere:
            self.elsewhere.add(right, tried)

    def forget(self) -> None:
        """A step without a trial: what was is trusted a little less, so that it is tried again some day."""
        self.right, self.tried = self.right * 0.995, self.tried * 0.995

    def __call__(self) -> float:
        return (self.right + _PRIOR * (self.elsewhere() if self.elsewhere else 0.7)) / (self.tried + _PRIOR)


def lengths(
    cost: CostCurve, tokens: int, texts: int, drafts: Sequence[tuple[float, int, float]], room: int
) -> list[int]:
    """How many tokens of each draft to take. tokens: of the step without drafts; texts: how many of them give a new
    one; drafts: (rate, length, cost of a token of it in units of `cost`); room: tokens that may come.

    The gain of the i-th token of a draft is the chance that it and all before it are right. Tokens are added by their
    gain, and the number with the most expected tokens a time is taken.

    >>> cost = CostCurve()
    >>> for t, ms in ((1, 10.0), (2, 10.1), (4, 10.5), (8, 19.0)):
    ...     cost.add(t, ms)
    >>> lengths(cost, 1, 1, [(0.9, 8, 0.0)], 8), lengths(cost, 1, 1, [(0.01, 8, 0.0)], 8)
    ([3], [0])
    """
    order = sorted(
        (
            (gain, d, price)
            for d, (rate, length, price) in enumerate(drafts)
            for i in range(1, length + 1)
            if (gain := rate**i) > _LEAST
        ),
        key=lambda g: -g[0],
    )[: max(room, 0)]
    best, taken = texts / cost(tokens) * _GAIN, 0
    expected, extra = float(texts), 0.0
    for n, (gain, _, price) in enumerate(order, 1):
        expected, extra = expected + gain, extra + price
        if (value := expected / (cost(tokens + n) + extra)) > best:
            best, taken = value, n
    counts = [0] * len(drafts)
    for _, d, _ in order[:taken]:
        counts[d] += 1
    return counts


__all__ = ["CostCurve", "AcceptanceRate", "lengths"]
