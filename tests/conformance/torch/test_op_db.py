"""A sample of PyTorch's own table of operators; `run.py` runs all."""

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")

from op_db_suite import run
from op_db_table import surprise

SAMPLE = (
    "add",
    "cumsum",
    "nn.functional.gelu",
    "scatter_add",
    "std",
    "tril",
    "scatter_reduce.mean",
    "fft.rfft",
    "multinomial",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_entry(name):
    result = run((name, True))
    assert result.outcome in ("pass", "random"), result.detail


def test_what_is_refused_says_why():
    result = run(("hash_tensor", True))
    assert (result.outcome, "aten.hash_tensor" in result.detail) == ("unsupported", True)
    assert not surprise(result.name, result.outcome)


def test_a_surprise_is_told():
    assert "take it out" in surprise("hash_tensor", "pass")
    assert "does not say why" in surprise("add", "unsupported")
    assert surprise("add", "wrong") and surprise("hash_tensor", "crash") and not surprise("add", "random")
