"""A PyTorch module by torch.compile with the backend tilewright, weights frozen, for `torch_dashboard.py`."""

import os

os.environ["TILEWRIGHT_CACHE"] = os.environ["BENCH_CACHE"]

import torch

import tilewright as tw


def version() -> str:
    return f"tilewright {tw.__version__} in torch.compile {torch.__version__}"


def load(onnx_path, threads):
    from modules import runner

    from tilewright.compat.torch_backend import backend

    options = {"freeze": True, "threads": threads}
    return runner(
        onnx_path, threads, lambda made: torch.compile(made.module, backend=backend, dynamic=False, options=options)
    )
