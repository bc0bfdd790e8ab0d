"""Random valid models made by NNSmith (PyPI `nnsmith`).

    python tests/fuzz/nnsmith_models.py FOLDER [--count N] [--seed N]

Writes FOLDER/SEED.onnx. Needs torch and nnsmith; the extra `fuzz` of the project installs both.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import random
import sys
import time
import warnings
from pathlib import Path

#: without complex numbers, which ONNX files cannot hold
DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")

#: seeds without a model after which something must be wrong with the installation
FRUITLESS = 50


def prepare():
    """NNSmith's operators, its model class, and an exporter that this version of torch accepts."""
    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    export = torch.onnx.export

    def legacy(*arguments, **options):
        return export(*arguments, **{**options, "dynamo": False})

    torch.onnx.export = legacy
    from nnsmith.abstract.extension import activate_ext
    from nnsmith.materialize import Model

    model = Model.init("onnx")
    operators = list(model.operators())
    activate_ext(opset=operators)
    return operators, model


def generate(operators, model, seed: int, nodes: int) -> bytes:
    """The bytes of one model; raises whatever NNSmith or the exporter raise if this seed gives none."""
    import numpy as np
    import torch
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize.onnx import torch2onnx

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    made = model_gen(
        opset=operators,
        method="symbolic-cinit",
        seed=seed,
        max_elem_per_tensor=1 << 16,
        max_nodes=nodes,
        timeout_ms=10_000,
        dtype_choices=list(DTYPES),
    )
    file = io.BytesIO()
    torch2onnx(model.from_gir(made.make_concrete()).torch_model, file)
    return file.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=2000, help="models to make")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=3600, help="stop after this time")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    # the exporter prints what it cannot export
    quiet = os.open(os.devnull, os.O_WRONLY)
    console = os.dup(1)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    operators, model = prepare()
    begun, made, seed = time.monotonic(), 0, arguments.seed
    while made < arguments.count and time.monotonic() - begun < arguments.seconds:
        try:
            data = generate(operators, model, seed, nodes=4 + seed % 13)
            (arguments.folder / f"{seed}.onnx").write_bytes(data)
            made += 1
        except Exception as e:  # not every seed gives a model that torch can export
            if not made and seed - arguments.seed >= FRUITLESS:
                os.write(console, f"the first {FRUITLESS} seeds give no model: {type(e).__name__}: {e}\n".encode())
                return 1
        seed += 1
    os.write(console, f"{made} models from seeds {arguments.seed} to {seed - 1}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
