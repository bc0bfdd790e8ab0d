"""torch.compile with its default backend, weights frozen, caches off so that the load time is a cold one.

Needs a C++ compiler. Not among the default peers: it takes half a minute a model to load.
"""

import os
import tempfile

# PyTorch reads these when it is imported
os.environ["TORCHINDUCTOR_FREEZING"] = "1"
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor")

import torch


def version() -> str:
    return f"torch.compile {torch.__version__}"


def load(onnx_path, threads):
    from worker import load_peer

    return load_peer("torch").load(onnx_path, threads, lambda module: torch.compile(module, dynamic=False))
