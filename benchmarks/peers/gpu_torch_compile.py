"""torch.compile with mode max-autotune on the first NVIDIA GPU, as gpu_torch otherwise; for gpu.py."""

import os
import tempfile

# PyTorch reads these when it is imported
os.environ["TORCHINDUCTOR_FREEZING"] = "1"
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor")

import torch


def version() -> str:
    return f"torch.compile max-autotune {torch.__version__}"


def load(onnx_path, threads):
    from worker import load_peer

    compiled = lambda module: torch.compile(module, dynamic=False, mode="max-autotune")  # noqa: E731
    return load_peer("gpu_torch").load(onnx_path, threads, compiled)
