"""Tilewright as another checkout has it, whose folder the environment variable BENCH_BEFORE names: to race a change
against the tree before it."""

import os
import sys

sys.path.insert(0, os.environ["BENCH_BEFORE"])
os.environ["PYTHONPATH"] = os.environ["BENCH_BEFORE"]  # for its own processes

import tilewright as tw

if not str(tw.__file__).startswith(os.path.realpath(os.environ["BENCH_BEFORE"])):
    raise ImportError(f"BENCH_BEFORE={os.environ['BENCH_BEFORE']} has no tilewright")


def version() -> str:
    return f"tilewright {tw.__version__} before"


def load(onnx_path, threads):
    os.environ["TILEWRIGHT_CACHE"] = os.environ["BENCH_CACHE"]
    return tw.compile(onnx_path, threads=threads).run
