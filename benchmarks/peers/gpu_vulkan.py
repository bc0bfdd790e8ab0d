"""Tilewright on the first device with a driver for Vulkan, float32; for gpu.py."""

import os

import tilewright as tw


def version() -> str:
    return f"tilewright {tw.__version__}"


def load(onnx_path, threads):
    os.environ["TILEWRIGHT_CACHE"] = os.environ["BENCH_CACHE"]
    return tw.compile(onnx_path, target="vulkan").run
