"""A sample of PyTorch's own table of operators; `run.py` runs all."""

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")

from op_db_suite import run

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
