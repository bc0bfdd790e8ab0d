"""Sampling against plain references that sort everything."""

import numpy as np
import pytest

from tilewright.llm.engine.sampler import LogitsRow, changed, choose, threshold, token_logprob, top_values
from tilewright.llm.engine.sequence import Sequence
from tilewright.llm.request import GenerationRequest, Sampling


def sequence(sampling, prompt=(1,), seed=0):
    return Sequence(GenerationRequest(list(prompt), sampling), (0.0, 0), 10, frozenset(), seed, 0.0)


def allowed(x, top_k, top_p, min_p):
    """Which tokens can be drawn: sorted in full, one rule after the other."""
    x = x.astype(np.float64)
    p = np.exp(x - x.max())
    inside = x >= x.max() - 30
    if min_p:
        inside &= p >= min_p * p.max() * (1 - 1e-6)
    if top_k:
        inside &= x >= np.sort(x)[::-1][min(top_k, len(x)) - 1]
    if top_p >= 1:
        return inside
    order = np.argsort(-x)
    order = order[inside[order]]
    mass = np.cumsum(p[order]) / p[inside].sum()
    last = order[min(int(np.sum(mass < top_p)), len(order) - 1)]
    return inside & (x >= x[last])


@pytest.mark.parametrize("size", [5, 300, 20000])
def test_what_can_be_drawn(size):
    rng = np.random.default_rng(size)
    for case in range(40):
        x = (rng.normal(size=size) * rng.choice([0.1, 1, 4])).astype(np.float32)
        if case % 4 == 0:
            x = np.round(x, 1).astype(np.float32)  # ties
        top_k, top_p, min_p = int(rng.choice([0, 1, 3, 50])), float(rng.choice([1, 0.999, 0.9, 0.3])), 0.0
        if case % 3 == 0:
            min_p = float(rng.choice([0.02, 0.5]))
        want = allowed(x, top_k, top_p, min_p)
        assert np.array_equal(x >= threshold(x, top_k, top_p, min_p), want), (case, top_k, top_p, min_p)
    for count in (1, 2, 4, size // 200 + 1, size):
        assert np.array_equal(top_values(x, count)[:count], np.sort(x)[::-1][:count])


def test_draws_are_distributed_as_they_should_be():
    """Chi-squared of 10,000 draws, each of its own seed or its own place, below its 99.99% quantile."""
    logits = np.array([[1.0, 0.0, -1.0, 2.0, 0.5, -3.0, 1.5, -0.5]], np.float32)
    sampling = Sampling(temperature=0.7, top_k=6)
    p = np.exp(logits[0] / 0.7) * (logits[0] >= -0.5)
    p /= p.sum()
    for by_seed in (True, False):
        counts = np.zeros(8)
        s = sequence(sampling)
        for i in range(10000):
            if by_seed:
                s.seed = i
            else:
                s.tokens.append(0)
            counts[choose(logits, [LogitsRow(s, [])], [0])[0].token] += 1
        assert not counts[p == 0].any()
        want = 10000 * p[p > 0]
        assert np.sum((counts[p > 0] - want) ** 2 / want) < 25.7  # 5 degrees of freedom


def test_draws_from_a_large_vocabulary():
    """More candidates than race one by one: chi-squared of 4,000 draws over twelve parts of the vocabulary."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(1, 6000)).astype(np.float32)
    p = np.exp(logits[0].astype(np.float64))
    p /= p.sum()
    rank = np.argsort(np.argsort(-logits[0]))
    part = np.where(rank < 256, rank // 64, 4 + rank * 8 // 6000)
    want, counts, s = 4000 * np.bincount(part, p, 12), np.zeros(12), sequence(Sampling())
    for i in range(4000):
        s.seed = i
        counts[part[choose(logits, [LogitsRow(s, [])], [0])[0].token]] += 1
    assert np.sum((counts - want) ** 2 / want) < 37.4  # 11 degrees of freedom, 99.99%


def test_penalties_bias_and_mask():
    x = np.array([2.0, -2.0, 1.0, 0.5, 0.0], np.float32)
    penalties = Sampling(
        temperature=0, repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5, logit_bias={4: 3.0}
    )
    s = sequence(penalties, prompt=[0, 1])
    s.counts = {2: 1}
    # 0: in the prompt; 1: too; 2: once in the text and once in the draft; 3: in the draft
    got = changed(x, LogitsRow(s, [2, 3]))
    np.testing.assert_allclose(got[[0, 1, 4]], [1.0, -4.0, 3.0])
    np.testing.assert_allclose(got[2:4], [0.5 - 0.25 - 1.0, 0.25 - 0.25 - 0.5])
    mask = np.array([True, True, False, False, False])
    assert choose(x[None], [LogitsRow(s, [], mask)], [0])[0].token == 0
    assert choose(x[None], [LogitsRow(s, [], mask & False)], [0])[0].error
    assert choose(np.full((1, 5), np.nan, np.float32), [LogitsRow(s, [])], [0])[0].error


def test_logprobs():
    rng = np.random.default_rng(0)
    x = rng.normal(size=5000).astype(np.float32)
    want = x - np.log(np.exp(x.astype(np.float64)).sum())
    got = token_logprob(x, 7, 3)
    order = np.argsort(-x)[:3]
    assert got.token == 7 and [t for t, _ in got.top] == order.tolist()
    np.testing.assert_allclose([got.logprob, *(p for _, p in got.top)], [want[7], *want[order]], rtol=1e-5)
