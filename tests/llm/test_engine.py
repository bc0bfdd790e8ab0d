"""The engine on a model that says what it found in its cache."""

import asyncio
import random

import pytest
from llm.fake_runner import ByteTokenizer, FakeRunner

from tilewright.llm.engine.engine import LLMEngine, QueueFull
from tilewright.llm.request import GenerationRequest, Sampling
from tilewright.support.errors import UsageError


def tokens(stream):
    return [t for piece in stream for t in piece.tokens]


def emptied(engine):
    """Nothing is lost or held: every page and snapshot is free once the tree is emptied."""

    def check():
        engine.cache.check()
        engine.cache.clear()
        assert len(engine.cache.free) == engine.limits.pages
        assert len(engine.cache.free_snapshots) == engine.limits.snapshots

    engine.call(check)


@pytest.mark.parametrize("snapshots", [0, 40])
def test_many_requests_get_what_plain_decoding_gives(snapshots):
    runner, tokenizer, rng = FakeRunner(snapshots=snapshots), ByteTokenizer(), random.Random(0)
    shared = [rng.randrange(256) for _ in range(20)]
    prompts = [
        shared[: rng.randrange(20)] + [rng.randrange(256) for _ in range(rng.randrange(1, 30))] for _ in range(30)
    ]
    with LLMEngine(runner, tokenizer) as engine:
        streams = [engine.submit(GenerationRequest(p, Sampling(max_tokens=20, temperature=0))) for p in prompts]
        for prompt, stream in zip(prompts, streams, strict=True):
            assert tokens(stream) == runner.greedy(prompt, 20, tokenizer.eos)
        emptied(engine)


def test_a_stream_in_asyncio():
    runner = FakeRunner()

    async def read():
        with LLMEngine(runner, ByteTokenizer()) as engine:
            stream = engine.submit(GenerationRequest([1, 2, 3], Sampling(max_tokens=5, temperature=0)))
            return [piece async for piece in stream]

    pieces = asyncio.run(read())
    assert [t for p in pieces for t in p.tokens] == runner.greedy([1, 2, 3], 5)
    assert pieces[-1].finish_reason == "length"


def test_refused():
    with LLMEngine(FakeRunner(pages=8, context=64), ByteTokenizer(), queue=0) as engine:
        for request, text in (
            (GenerationRequest([]), "empty"),
            (GenerationRequest([999]), "whole numbers"),
            (GenerationRequest([1], Sampling(top_p=0)), "top_p"),
            (GenerationRequest([1] * 40), "do not fit"),
            (GenerationRequest([1], Sampling(max_tokens=40)), "do not fit"),
        ):
            with pytest.raises(UsageError, match=text):
                engine.submit(request)
        with pytest.raises(QueueFull):
            engine.submit(GenerationRequest([1]))
