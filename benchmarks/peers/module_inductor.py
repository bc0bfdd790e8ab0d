"""A PyTorch module by torch.compile with its default backend, weights frozen, for `torch_dashboard.py`.

Needs a C++ compiler. The driver gives each model an empty cache, so that its first load is a cold one.
"""

import os

# PyTorch reads these when it is imported
os.environ["TORCHINDUCTOR_FREEZING"] = "1"
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["BENCH_CACHE"]

import torch


def version() -> str:
    return f"torch.compile {torch.__version__}"


def load(onnx_path, threads):
    from modules import runner

    return runner(onnx_path, threads, lambda made: torch.compile(made.module, dynamic=False))
