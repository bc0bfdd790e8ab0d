"""Kernels of random chains of operators execute little more than they were asked for; `random_chains.py` draws more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from random_chains import kernels_of, pinned, random_chain, wrong


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_no_kernel_executes_far_more_than_it_is_asked_for(first):
    kernels = 0
    for seed in range(first, first + 15):
        chain = random_chain(seed)
        for found in kernels_of(chain.model(), pinned(("avx2", "avx512")[seed % 2])):
            kernels += 1
            assert not found.silent, (seed, found.kernel, found.rule, found.ratio, chain.steps)
    assert kernels > 30


@pytest.mark.parametrize("seed", [3, 12, 15, 28])
def test_random_chains_are_right(seed):
    chain = random_chain(seed)
    assert not wrong(chain, chain.model())
