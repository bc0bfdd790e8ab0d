"""300 random interleavings; `python tests/llm/interleavings.py 10000` runs more."""

import pytest
from llm.interleavings import run


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("block", range(3))
def test_tokens_are_those_of_plain_decoding(block, hybrid):
    total: dict[str, float] = {}
    for seed in range(block * 50, block * 50 + 50):
        for name, value in run(seed, hybrid).items():
            total[name] = total.get(name, 0) + value
    # all of it happens
    for name in ("preemptions", "draft_tokens_accepted", "prompt_tokens_cached", "requests_cancelled", "pages_evicted"):
        assert total[name], name
