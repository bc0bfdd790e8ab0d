"""PyTorch eager: the module that the ONNX file was exported from, not the file."""

from pathlib import Path

import models
import torch


def version() -> str:
    return f"torch {torch.__version__}"


def load(onnx_path, threads, transform=lambda module: module):
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    made = models.build(Path(onnx_path).stem)
    function, names = transform(made.module), list(made.inputs)

    def run(inputs):
        with torch.inference_mode():
            result = function(*[torch.from_numpy(inputs[name]) for name in names])
        return [t.numpy() for t in ([result] if torch.is_tensor(result) else result)]

    return run
