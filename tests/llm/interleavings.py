"""Random interleavings of everything that moves pages and snapshots: prefix reuse, drafts, preemption, cancellation,
chunks of prompts, failing steps. Each request must get the tokens of plain decoding alone, and nothing may be lost.

    python tests/llm/interleavings.py 10000
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from llm.fake_runner import ByteTokenizer, FakeRunner

from tilewright.llm.engine.drafts import DraftModel
from tilewright.llm.engine.engine import LLMEngine
from tilewright.llm.engine.sampler import LogitsRow, choose
from tilewright.llm.engine.sequence import Sequence
from tilewright.llm.request import GenerationRequest, Sampling


def alone(runner: FakeRunner, request: GenerationRequest, eos: frozenset[int]) -> list[int]:
    """Plain decoding: the whole text through the model for each token, no cache."""
    s = Sequence(request, (0.0, 0), request.sampling.max_tokens or 1, eos, request.sampling.seed or 0, 0.0)
    while s.generated < s.limit:
        token = choose(runner.logits(s.tokens)[None], [LogitsRow(s, [])], [0])[0].token
        s.tokens.append(token)
        s.counts[token] = s.counts.get(token, 0) + 1
        if token in eos:
            break
    return s.tokens[s.prompt :]


def drawn_request(rng: random.Random, texts: list[list[int]], room: int) -> GenerationRequest:
    """A prompt that often begins like another, or goes on from a whole text."""
    prompt = list(rng.choice(texts)) if texts and rng.random() < 0.7 else []
    prompt = prompt[: rng.randint(1, max(1, len(prompt)))] if rng.random() < 0.6 else prompt
    prompt = (prompt + rng.choices(range(97, 123), k=rng.randint(1, 12)))[: room - 2]
    sampling = {"max_tokens": min(rng.randint(1, 24), room - len(prompt)), "temperature": rng.choice([0, 0, 0.8])}
    if rng.random() < 0.2:
        sampling.update(repetition_penalty=1.2, frequency_penalty=0.3, top_k=20)
    return GenerationRequest(prompt, Sampling(seed=rng.randrange(1 << 40), **sampling), rng.choice([0, 0, 0, -1, 2]))


def run(seed: int, hybrid: bool) -> dict[str, float]:
    """One interleaving; AssertionError where anything is wrong. The engine's counters."""
    rng = random.Random(seed)
    context = rng.choice([32, 64])
    length = rng.choice([2, 4, 8])
    runner = FakeRunner(
        page_length=length,
        pages=context // length + rng.randint(0, 60 // length),
        snapshots=rng.randint(1, 24) if hybrid else 0,
        tokens=rng.choice([4, 16, 64]),
        sequences=rng.randint(1, 6),
        context=context,
        seed=seed,
    )
    drafter = None
    if rng.random() < 0.3:
        drafter = DraftModel(FakeRunner(pages=rng.randint(8, 64), seed=seed + rng.randint(0, 1), habit=0.8))
    tokenizer = ByteTokenizer()
    engine = LLMEngine(
        runner,
        tokenizer,
        step_tokens=rng.choice([None, 3, 8]),
        lookup=rng.random() < 0.8,
        shared_lookup=rng.random() < 0.5,
        drafter=drafter,
        start=False,
    )

    def lengths(cost, tokens, texts, drafts, room):  # any choice must be right
        counts = []
        for _, most, _ in drafts:
            counts.append(rng.randint(0, min(most, max(room, 0))))
            room -= counts[-1]
        return counts

    engine._speculator.lengths = lengths
    failing = rng.random() < 0.3
    texts: list[list[int]] = []
    open_requests: list[tuple[GenerationRequest, object, list]] = []
    todo = rng.randint(2, 7)
    for _step in range(2000):
        if todo and rng.random() < 0.3:
            request = drawn_request(rng, texts, context)
            texts.append(list(request.prompt))
            open_requests.append((request, engine.submit(request), []))
            todo -= 1
        if rng.random() < 0.02 and open_requests:
            rng.choice(open_requests)[1].cancel()
        if rng.random() < 0.05 and engine._scheduler.running:
            engine._scheduler.preempt(rng.choice(engine._scheduler.running), {})
        if rng.random() < 0.1 and engine._scheduler.waiting:  # begun, and at once without room again
            engine._scheduler._admit()
            if engine._scheduler.running:
                engine._scheduler.preempt(engine._scheduler.running[-1], {})
        if failing and rng.random() < 0.05:
            runner.raises.add(runner.steps)
        if rng.random() < 0.01:
            engine.cache.clear()
        engine._iterate(wait=False)
        engine.cache.check([s.value for s in engine._scheduler.running])
        for request, stream, pieces in list(open_requests):
            while stream._mailbox.pieces:
                pieces.append(next(stream))
            if pieces and pieces[-1].finish_reason:
                got = [t for p in pieces for t in p.tokens]
                want = alone(runner, request, tokenizer.eos)
                reason = pieces[-1].finish_reason
                if reason in ("cancelled", "error"):
                    assert reason == "cancelled" or "the fake model fails" in pieces[-1].error, pieces[-1].error
                    assert got == want[: len(got)], (seed, hybrid, request, got, want)
                else:
                    assert got == want, (seed, hybrid, request, got, want)
                    assert reason == ("stop" if got[-1] in tokenizer.eos else "length")
                texts.append([*request.prompt, *got])
                open_requests.remove((request, stream, pieces))
        if not todo and not open_requests:
            break
    assert not open_requests and _step < 1999, (seed, "a request starves")
    engine.cache.clear()
    engine.cache.check()
    assert sorted(engine.cache.free) == list(range(runner.limits.pages))
    assert sorted(engine.cache.free_snapshots) == list(range(runner.limits.snapshots))
    if drafter:
        drafter.cache.clear()
        drafter.cache.check()
        assert len(drafter.cache.free) == drafter.runner.limits.pages
    assert runner.compilations == 0
    counters = {k: v for k, v in engine.metrics().items() if isinstance(v, (int, float))}
    engine.close()
    return counters


if __name__ == "__main__":
    total: dict[str, float] = {}
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with np.errstate(over="ignore"):
        for seed in range(first, first + count):
            for name, value in run(seed, bool(seed % 2)).items():
                total[name] = total.get(name, 0) + value
    print(count, "interleavings:", {k: int(v) for k, v in total.items() if v})
