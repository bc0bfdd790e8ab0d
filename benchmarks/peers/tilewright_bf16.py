"""Tilewright with ``precision="bf16"``."""

import os

import tilewright as tw

#: this peer computes in less than float32, so its error is shown but not judged
REDUCED = True


def version() -> str:
    return f"tilewright {tw.__version__} (bf16)"


def load(onnx_path, threads):
    os.environ["TILEWRIGHT_CACHE"] = os.environ["BENCH_CACHE"]
    return tw.compile(onnx_path, threads=threads, precision="bf16").run
