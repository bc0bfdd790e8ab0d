"""How the next token is chosen from logits.

Penalties, bias and a grammar's mask change logits; temperature, min-p, top-k and top-p then say which tokens can be
drawn. All tokens as probable as the least one that is in are in, too: that does not depend on how ties are sorted.

A draw is a race: token i comes at a time that is exponentially distributed with rate p(i), and the first one wins. The
times are made by a hash of the request's seed, the place in the text and the token, so that a token depends on nothing
else that runs. A draft is accepted where the draw is the same token: that gives the text of plain decoding, token by
token, for any draft, hence its distribution too. Drafts that another model draws with the same times are mostly the
same (Daliri, Musco, Suresh: Coupling without communication and drafter-invariant speculative decoding, 2024).

Rows are worked on one by one, as one row of a large vocabulary fits the processor's cache and all of them do not.
Nothing is sorted but the few values that matter (`top_values`).
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..request import TokenLogprob
from .sequence import Sequence

#: less probable than the best by exp(-30): all such tokens together are below the rounding of float32
_NEVER = 30.0
_FEW = 256  # values that are mostly enough
_PARTS = 2048
_BLOCKS = 64  # rows that a row of logits is folded into, to find a lower bound of its largest values


@dataclass
class LogitsRow:
    """A row of logits. before: drafts between the sequence's tokens and this row's. mask: bool [vocabulary] of tokens
    that a grammar allows."""

    sequence: Sequence
    before: list[int]
    mask: Any = None


@dataclass
class Choice:
    """token: -1 where there is an error."""

    token: int
    logprob: TokenLogprob | None = None
    error: str = ""


def choose(logits: np.ndarray, rows: list[LogitsRow], at: Items[int]) -> list[Choice]:
    """The token of each row; at: where it is in the logits [R, vocabulary]."""
    chosen = np.argmax(logits, 1)  # of a row with a NaN, that NaN's place
    choices = []
    for i, row in zip(at, rows, strict=True):
        token, s = int(chosen[i]), row.sequence.request.sampling
        if not np.isfinite(logits[i, token]):
            choices.append(Choice(-1, error="the model's logits are not numbers"))
            continue
        if s.temperature > 0 or row.mask is not None or _changes(s):
            x = changed(logits[i], row)
            token = int(np.argmax(x)) if s.temperature == 0 else draw(x, row)
            if x[token] == -np.inf:
                choices.append(Choice(-1, error="no token is allowed here"))
                continue
        logprob = None if s.logprobs is None else token_logprob(logits[i], token, s.logprobs)
        choices.append(Choice(token, logprob))
    return choices


def _changes(s: Any) -> bool:
    return bool(s.repetition_penalty != 1 or s.presence_penalty or s.frequency_penalty or s.logit_bias)


def changed(logits: np.ndarray, row: LogitsRow) -> np.ndarray:
    """A row of logits with penalties, bias and mask."""
    x, seq, s = np.array(logits, np.float32), row.sequence, row.sequence.request.sampling
    if s.repetition_penalty != 1 or s.presence_penalty or s.frequency_penalty:
        counts = seq.counts
        if row.before:
            counts = dict(counts)
            for t in row.before:
                counts[t] = counts.get(t, 0) + 1
        text = np.fromiter(counts, np.int64, len(counts))
        if s.repetition_penalty != 1:
            seen = np.union1d(seq.prompt_ids, text)
            x[seen] = np.where(x[seen] > 0, x[seen] / s.repetition_penalty, x[seen] * s.repetition_penalty)
        x[text] -= s.presence_penalty + s.frequency_penalty * np.fromiter(counts.values(), np.float32, len(counts))
    if s.logit_bias:
        x[np.fromiter(s.logit_bias, np.int64)] += np.fromiter(s.logit_bias.values(), np.float32)
    if row.mask is not None:
        x[~row.mask] = -np.inf
    return x


def draw(x: np.ndarray, row: LogitsRow) -> int:
    """A token by these logits, the request's sampling parameters and its random numbers; x is overwritten. Of
    many tokens, all but the most probable ones race as one, and a cumulated sum says which of them it was."""
    s, seed = row.sequence.request.sampling, row.sequence.seed
    x /= np.float32(s.temperature)
    inside = x >= threshold(x, s.top_k, s.top_p, s.min_p)
    place, best = len(row.sequence.tokens) + len(row.before), x.max()
    if np.count_nonzero(inside) <= 4 * _FEW:
        ids = np.flatnonzero(inside)
        return int(ids[np.argmin(arrivals(seed, place, ids) / np.exp(x[ids] - best))]) if len(ids) else int(x.argmax())
    x -= best
    p = np.exp(x, out=x)
    p *= inside
    ids = np.flatnonzero(p >= top_values(p, _FEW)[-1])
    times = arrivals(seed, place, ids) / p[ids]
    first = int(np.argmin(times))
    p[ids] = 0
    others, part = arrivals(seed, place, np.array([len(x), len(x) + 1]))
    if others < times[first] * p.sum(dtype=np.float64):
        return _quantile(p, float(np.exp(-part)))
    return int(ids[first])


def _quantile(p: np.ndarray, at: float) -> int:
    """The first place up to which `at` of the sum lies: by sums of pieces, then in one of them."""
    begins = np.arange(0, len(p), 512)
    mass = np.cumsum(np.add.reduceat(p, begins), dtype=np.float64)
    goal = at * mass[-1]
    piece = int(np.searchsorted(mass[:-1], goal, "right"))
    inside = np.cumsum(p[begins[piece] : begins[piece] + 512], dtype=np.float64)
    before = mass[piece - 1] if piece else 0.0
    place = np.searchsorted(inside, (goal - before) * inside[-1] / (mass[piece] - before), "right")
    return int(begins[piece] + min(place, np.searchsorted(inside, inside[-1])))


def threshold(x: np.ndarray, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> float:
    """The least logit (temperature is in) that can be drawn."""
    best = float(x.max())
    least = best - _NEVER if min_p == 0 else max(best - _NEVER, best + float(np.log(min_p)))
    if 0 < top_k < len(x):
        values = top_values(x, top_k)
        least = max(least, float(values[-1]))
        x = values
    if top_p >= 1:
        return least
    if np.count_nonzero(inside := x >= least) < len(x):
        x = x[inside]
    p = np.exp(x - np.float32(best))
    goal = top_p * float(p.sum(dtype=np.float64)) * (1 - 1e-9)
    before = 0.0
    if len(x) > _FEW:
        values = top_values(x, _FEW)
        if (
            np.exp(values - np.float32(best)).sum(dtype=np.float64) < goal
        ):  # masses of parts of the range: one is sorted
            scale = np.float32((_PARTS - 1) / max(best - float(x.min()), 1e-6))
            part = ((np.float32(best) - x) * scale).astype(np.int32)
            masses = np.cumsum(np.bincount(part, p, _PARTS))
            at = int(np.searchsorted(masses, goal))
            before = float(masses[at - 1]) if at else 0.0
            values = x[part == at]
        x = values
    values = np.sort(x)[::-1]
    mass = before + np.cumsum(np.exp(values - np.float32(best)), dtype=np.float64)
    return float(values[min(int(np.searchsorted(mass, goal)), len(values) - 1)])


def top_values(x: np.ndarray, count: int) -> np.ndarray:
    """The `count` largest values, from the largest on; more where several are equal to the last."""
    width = len(x) // _BLOCKS
    if count < len(x):
        if count <= width // 2:  # so many maxima of disjoint parts are values: the least of them is a bound
            maxima = x[: width * _BLOCKS].reshape(_BLOCKS, width).max(0)
            x = x[x >= np.partition(maxima, width - count)[width - count]]
        x = x[x >= np.partition(x, len(x) - count)[len(x) - count]]
    return np.sort(x)[::-1]


def arrivals(seed: int, place: int, ids: np.ndarray) -> np.ndarray:
    """Exponentially distributed numbers for tokens at a place of a text: splitmix64, by counter."""
    begin = _mixed(np.array([(seed * 0x2545F4914F6CDD1D + place) % (1 << 64)], np.uint64))
    bits = _mixed(begin + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    return -np.log(((bits >> np.uint64(11)) + np.float64(0.5)) * 2.0**-53)


def _mixed(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def token_logprob(logits: np.ndarray, token: int, count: int) -> TokenLogprob:
    """The logarithm of a token's probability, and those of the `count` most probable ones."""
    best = float(logits.max())
    total = best + float(np.log(np.exp(logits - best, dtype=np.float32).sum(dtype=np.float64)))
    top: list[tuple[int, float]] = []
    if count:
        ids = np.flatnonzero(logits >= top_values(logits, count)[-1])
        ids = ids[np.argsort(-logits[ids], kind="stable")][:count]
        top = [(int(i), float(logits[i]) - total) for i in ids]
    return TokenLogprob(token, float(logits[token]) - total, tuple(top))


__all__ = ["Choice", "LogitsRow", "choose", "draw", "threshold", "token_logprob", "top_values"]
