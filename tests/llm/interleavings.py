"""Random interleavings of everything that moves pages and snapshots: prefix reuse, drafts, preemption, cancellation,
chunks of prompts, failing steps. Each request must get the tokens of plain decoding alone, and nothing may be lost.

    python tests/llm/interleavings.py 10000             # on models that say what they find in their cache
    python tests/llm/interleavings.py 10000 --model dense --first 500       # on a compiled model; or hybrid
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from llm.compiled_part import CONTEXT, RunnerPart, tiny_model
from llm.fake_runner import ByteTokenizer, FakeRunner

from tilewright.llm.engine.drafts import DraftModel
from tilewright.llm.engine.engine import LLMEngine
from tilewright.llm.engine.sampler import LogitsRow, choose
from tilewright.llm.engine.sequence import Sequence
from tilewright.llm.request import GenerationRequest, Sampling


class Models(Protocol):
    """What interleavings run on. letters: tokens of prompts."""

    letters: range
    tokenizer: ByteTokenizer

    def runner(self, rng: random.Random, seed: int) -> Any:
        """A runner with `steps` and `raises`, small in some way."""

    def drafting(self, rng: random.Random, seed: int) -> Any:
        """The runner of a draft model."""

    def says(self, runner: Any, request: GenerationRequest, got: list[int], ended: bool) -> bool:
        """Whether plain decoding gives these tokens; all of them, if the request has not `ended` before."""


class FakeModels:
    letters = range(97, 123)
    tokenizer = ByteTokenizer()

    def __init__(self, hybrid: bool) -> None:
        self.hybrid = hybrid

    def runner(self, rng: random.Random, seed: int) -> FakeRunner:
        context = rng.choice([32, 64])
        length = rng.choice([2, 4, 8])
        return FakeRunner(
            page_length=length,
            pages=context // length + rng.randint(0, 60 // length),
            snapshots=rng.randint(1, 24) if self.hybrid else 0,
            tokens=rng.choice([4, 16, 64]),
            sequences=rng.randint(1, 6),
            context=context,
            seed=seed,
        )

    def drafting(self, rng: random.Random, seed: int) -> FakeRunner:
        return FakeRunner(pages=rng.randint(8, 64), seed=seed + rng.randint(0, 1), habit=0.8)

    def says(self, runner: FakeRunner, request: GenerationRequest, got: list[int], ended: bool) -> bool:
        want = alone(runner, request, self.tokenizer.eos)
        return got == (want[: len(got)] if ended else want)


class CompiledModels:
    """One model for all interleavings: what was in its cache before is there still."""

    letters = range(48)

    def __init__(self, kind: str) -> None:
        self.model, self.hybrid, self.tokenizer = tiny_model(kind), kind == "hybrid", ByteTokenizer()
        self.tokenizer.eos = frozenset({49})

    def runner(self, rng: random.Random, seed: int) -> RunnerPart:
        context = rng.choice([CONTEXT // 2, CONTEXT])
        return self.model.part(
            pages=context // 4 + rng.randint(0, 15),
            snapshots=rng.randint(1, 24) if self.hybrid else 0,
            tokens=rng.choice([4, 16, 64]),
            sequences=rng.randint(1, 6),
            context=context,
        )

    def drafting(self, rng: random.Random, seed: int) -> RunnerPart:
        return self.model.draft_part(rng.randint(16, 64))

    def says(self, runner: RunnerPart, request: GenerationRequest, got: list[int], ended: bool) -> bool:
        return self.model.plain.says(request, got, self.tokenizer.eos, ended)


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


def drawn_request(rng: random.Random, texts: list[list[int]], room: int, letters: range) -> GenerationRequest:
    """A prompt that often begins like another, or goes on from a whole text."""
    prompt = list(rng.choice(texts)) if texts and rng.random() < 0.7 else []
    prompt = prompt[: rng.randint(1, max(1, len(prompt)))] if rng.random() < 0.6 else prompt
    prompt = (prompt + rng.choices(letters, k=rng.randint(1, 12)))[: room - 2]
    sampling = {"max_tokens": min(rng.randint(1, 24), room - len(prompt)), "temperature": rng.choice([0, 0, 0.8])}
    if rng.random() < 0.2:
        sampling.update(repetition_penalty=1.2, frequency_penalty=0.3, top_k=20)
    return GenerationRequest(prompt, Sampling(seed=rng.randrange(1 << 40), **sampling), rng.choice([0, 0, 0, -1, 2]))


def run(seed: int, models: Models) -> dict[str, float]:
    """One interleaving; AssertionError where anything is wrong. The engine's counters."""
    rng = random.Random(seed)
    runner = models.runner(rng, seed)
    context, tokenizer = runner.limits.context, models.tokenizer
    drafter = DraftModel(models.drafting(rng, seed)) if rng.random() < 0.3 else None
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
            request = drawn_request(rng, texts, context, models.letters)
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
                reason = pieces[-1].finish_reason
                ended = reason in ("cancelled", "error")
                assert models.says(runner, request, got, ended), (seed, request, got)
                if reason == "error":
                    assert "the fake model fails" in pieces[-1].error, pieces[-1].error
                elif not ended:
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


def main() -> None:
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("count", type=int)
    a.add_argument("--first", type=int, default=0, help="the first seed")
    a.add_argument("--model", choices=["fake", "dense", "hybrid"], default="fake")
    given = a.parse_args()
    fake = given.model == "fake"
    models: list[Models] = [FakeModels(False), FakeModels(True)] if fake else [CompiledModels(given.model)]
    total: dict[str, float] = {}
    begin = time.process_time()
    with np.errstate(over="ignore"):
        for seed in range(given.first, given.first + given.count):
            for name, value in run(seed, models[seed % len(models)]).items():
                total[name] = total.get(name, 0) + value
    print(given.model, given.count, "interleavings:", {k: int(v) for k, v in total.items() if v})
    print(f"{time.process_time() - begin:.0f} s of CPU")
    for each in models:
        if isinstance(each, CompiledModels):
            plain = each.model.plain
            print(f"{plain.tokens} tokens compared, {plain.ties} of them where another one is as good but for rounding")


if __name__ == "__main__":
    main()
