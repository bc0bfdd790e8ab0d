"""The engine on compiled models, dense and hybrid: what it says is what Hugging Face's greedy decoding says, with
prefixes shared, drafts tried and nothing compiled."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

from llm import test_architectures as folders

from tilewright.llm.engine.engine import LLMEngine
from tilewright.llm.program import compilations
from tilewright.llm.request import GenerationRequest, Sampling


def said(model, prompt, count):
    """Hugging Face's greedy text; it ends where two tokens are about as probable."""
    import torch

    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            best, second = logits.topk(2).values.tolist()
            if best - second < 1e-3:
                break
            tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("case", ["llama", "qwen3_next"])
def test_served_texts_are_hugging_faces(case, tmp_path):
    model = folders.saved(case, tmp_path)
    runner = folders.compiled(tmp_path, snapshots=12)
    rng = np.random.default_rng(0)
    shared = rng.integers(1, 99, 21).tolist()
    prompts = [[*shared, *rng.integers(1, 99, n).tolist()] for n in (1, 5, 9)] + [rng.integers(1, 99, 7).tolist() * 3]
    begun = compilations()
    with LLMEngine(runner, step_tokens=24) as engine:
        engine._speculator.lengths = lambda cost, tokens, texts, drafts, room: [min(n, 3) for _, n, _ in drafts]
        first = engine.submit(GenerationRequest(prompts[0], Sampling(max_tokens=16, temperature=0)))
        pieces = {0: list(first)}
        streams = [engine.submit(GenerationRequest(p, Sampling(max_tokens=16, temperature=0))) for p in prompts]
        pieces |= {i + 1: list(s) for i, s in enumerate(streams)}
        metrics = engine.metrics()
        engine.save_prefix(prompts[1], tmp_path / "state")
        engine.call(engine.cache.clear)
        engine.load_prefix(tmp_path / "state")
        pieces[5] = list(engine.submit(GenerationRequest([*prompts[1], 5], Sampling(max_tokens=8, temperature=0))))
        engine.call(lambda: (engine.cache.clear(), engine.cache.check()))
    for i, prompt in enumerate([prompts[0], *prompts, [*prompts[1], 5]]):
        want = said(model, prompt, 16)
        got = [t for p in pieces[i] for t in p.tokens]
        assert got[: len(want)] == want[: len(got)]
    assert pieces[5][-1].cached == len(prompts[1])
    assert metrics["draft_tokens"] and metrics["prompt_tokens_cached"] and metrics["requests_failed"] == 0
    assert compilations() == begun
    runner.close()
