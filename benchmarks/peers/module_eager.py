"""A PyTorch module as it is, for `torch_dashboard.py`."""

import torch


def version() -> str:
    return f"torch {torch.__version__}"


def load(onnx_path, threads):
    from modules import runner

    return runner(onnx_path, threads, lambda made: made.module)
