"""A PyTorch module by `tilewright.compile`, for `torch_dashboard.py`: one program, without TorchDynamo."""

import os

os.environ["TILEWRIGHT_CACHE"] = os.environ["BENCH_CACHE"]

import tilewright as tw


def version() -> str:
    return f"tilewright {tw.__version__}"


def load(onnx_path, threads):
    from modules import runner

    def compiled(made):
        return tw.compile(made.module, tuple(made.inputs.values()), threads=threads)

    return runner(onnx_path, threads, compiled)
