"""The benchmark of language models on made-up runs: what is compared with what, and which round counts."""

import argparse
import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def llm():
    spec = importlib.util.spec_from_file_location("bench_llm", FOLDER / "llm.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(kind, who, form, round_=0, others=0.0, **more):
    run = {"run": f"{kind} {who} tiny {form} t2 round {round_}", "kind": kind, "who": who, "shape": "tiny"}
    return {**run, "format": form, "threads": 2, "others": others, "read_GBps": 10.0, "rss_MB": 300, **more}


def decode(who, form, tokens, **more):
    speeds = {"tg_tok_s": tokens, "tg_best_tok_s": tokens, "pp_tok_s": 10 * tokens}
    return line("decode", who, form, **speeds, weights_MB=100.0, kv_MB=50.0, **more)


@pytest.fixture
def report(llm):
    runs = [
        decode("tilewright", "q4_0", 60.0),
        decode("tilewright", "q4_0", 90.0, round_=1, others=0.9),  # faster, but it was disturbed
        decode("tilewright", "q8_0", 50.0),
        decode("llamacpp", "q4_0", 30.0),
        decode("llamacpp", "q8_0", 20.0),
        decode("openvino", "ov_int4", 40.0),
        line("rows", "tilewright", "q4_0", rows_ms={"1": 2.0, "4": 2.5}),
        line("warm", "tilewright", "q4_0", start_s=0.5),
        line("cold", "tilewright", "q4_0", error="Traceback\nOSError: no"),
        line("eight", "ct2", "ct2", error="first"),
        line("eight", "ct2", "ct2", round_=1, tg_tok_s=5.0, pp_tok_s=50.0),
    ]
    return {"machine": llm.machine(), "runs": runs}


def test_the_report(llm, report):
    text = llm.markdown(report)
    row = "| decode | 2 | q4_0 | 60.0 | 60% | 30.0 llamacpp q4_0 (2.00) | 40.0 openvino ov_int4 (1.50) "
    assert row + "| 40.0 openvino ov_int4 (1.50) | 300 | 150 |" in text
    row = "| decode | 2 | q8_0 | 50.0 | 50% | 20.0 llamacpp q8_0 (2.50) | 20.0 llamacpp q8_0 (2.50) "
    assert row + "| 40.0 openvino ov_int4 (1.25) | 300 | 150 |" in text
    assert "- decode: 1.94 of the best peer in the mean of 2, the least 1.50 (tiny q4_0, 2 threads)" in text
    assert "| q4_0 | 2.00 | 1.25 times | 0.50 | – |" in text
    assert "- cold tilewright tiny q4_0 t2: OSError: no" in text and "ct2 tiny ct2 t2:" not in text
    assert "0 of 8 runs shown were disturbed" in text


def test_the_order_of_runs(llm):
    runs = list(llm.runs(argparse.Namespace(models=["tiny"], formats=["q4_0", "hf"])))
    assert len({run.key for run in runs}) == len(runs)
    assert {run.peer for run in runs if run.format == "q4_0"} == {"tilewright", "llamacpp"}
    assert {run.peer for run in runs if run.format == "hf"} == {"tilewright"}
    assert runs[0].file(Path("m")) == Path("m/tiny/q4_0.gguf") and runs[2].file(Path("m")) == Path("m/tiny/hf")
