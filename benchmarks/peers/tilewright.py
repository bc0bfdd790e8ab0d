"""Tilewright, float32. The driver gives each run an empty kernel cache, so the first load is a cold compile."""

import os

import tilewright as tw


def version() -> str:
    return f"tilewright {tw.__version__}"


def load(onnx_path, threads):
    os.environ["TILEWRIGHT_CACHE"] = os.environ["BENCH_CACHE"]
    return tw.compile(onnx_path, threads=threads).run


def sizes(run):
    memory = run.__self__.memory
    return {"code": memory.code, "weights": memory.weights, "arena": memory.arena + memory.scratch}
