"""Some hundred random interleavings; `python tests/llm/interleavings.py 10000` runs more."""

import pytest
from llm.interleavings import CompiledModels, FakeModels, run

#: all of it happens
HAPPENS = ("preemptions", "draft_tokens_accepted", "prompt_tokens_cached", "requests_cancelled", "pages_evicted")


def ran(seeds, models):
    total: dict[str, float] = {}
    for seed in seeds:
        for name, value in run(seed, models).items():
            total[name] = total.get(name, 0) + value
    assert all(total[name] for name in HAPPENS) and total["draft_tokens_accepted"] < total["draft_tokens"]


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("block", range(3))
def test_tokens_are_those_of_plain_decoding(block, hybrid):
    ran(range(block * 50, block * 50 + 50), FakeModels(hybrid))


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_tokens_of_compiled_models_are_those_of_plain_decoding(kind):
    models = CompiledModels(kind)
    ran(range(100), models)
    assert models.model.plain.ties <= models.model.plain.tokens / 1000
