"""Tilewright as another checkout has it (see tilewright_before.py), writing into arrays that are made once."""

import os
import sys

sys.path.insert(0, os.environ["BENCH_BEFORE"])
os.environ["PYTHONPATH"] = os.environ["BENCH_BEFORE"]  # for its own processes

import numpy as np
from worker import aligned

import tilewright as tw


def version() -> str:
    return f"tilewright {tw.__version__} before"


def load(onnx_path, threads):
    os.environ["TILEWRIGHT_CACHE"] = os.environ["BENCH_CACHE"]
    executable = tw.compile(onnx_path, threads=threads)
    out = [aligned(np.zeros(o.shape, o.numpy_dtype)) for o in executable.outputs]
    names = [i.name for i in executable.inputs]
    return lambda inputs: executable(*[inputs[n] for n in names], out=out)
