"""PyTorch eager on the first NVIDIA GPU, float32 without TF32: the module that the ONNX file was exported from. Inputs
and outputs are arrays of the host, as everywhere; for gpu.py."""

from pathlib import Path

import models
import torch


def version() -> str:
    return f"torch {torch.__version__} on {torch.cuda.get_device_name()}"


def load(onnx_path, threads, transform=lambda module: module):
    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch finds no NVIDIA GPU")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    made = models.build(Path(onnx_path).stem)
    function, names = transform(made.module.cuda()), list(made.inputs)

    def run(inputs):
        with torch.inference_mode():
            result = function(*[torch.from_numpy(inputs[name]).cuda() for name in names])
            return [t.cpu().numpy() for t in ([result] if torch.is_tensor(result) else result)]

    return run
