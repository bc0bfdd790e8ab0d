"""A PyTorch module as it is, for `torch_dashboard.py`."""

import torch


def version() -> str:
    return f"torch {torch.__version__}"


def load(path, threads):
    from modules import runner

    return runner(path, threads, lambda made: made.module)
