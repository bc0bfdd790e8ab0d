"""Tilewright on the first NVIDIA GPU, with what its generation has, float32; for gpu.py."""

import os

import gpu_kernels

import tilewright as tw


def version() -> str:
    return f"tilewright {tw.__version__}"


def load(onnx_path, threads):
    os.environ["TILEWRIGHT_CACHE"] = os.environ["BENCH_CACHE"]
    return tw.compile(onnx_path, target=gpu_kernels.cuda_target()).run
