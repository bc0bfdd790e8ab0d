"""Functions of f64 in WGSL and SPIR-V, on a device that has f64 but none of its functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.gpus import device_of, run_on

import tilewright as tw
from tilewright.codegen.clike.printer import emit
from tilewright.codegen.clike.wgsl import WGSL_64
from tilewright.schedule.finish import finish
from tilewright.schedule.text import parse_nest
from tilewright.targets.gpu.describe import GpuDescription
from tilewright.targets.gpu.kernels import kernel
from tilewright.targets.vulkan.spirv import built
from tilewright.tensor.mathlib import BINARY
from tilewright.tensor.mathlib.double import FUNCTIONS

MACHINE = GpuDescription()
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.3, -0.7, 2.0, -3.0, 37.5, -1e-9, 1e7, -1e22, np.inf, -np.inf, np.nan, 1e-310]
)
REFERENCES = {
    "exp2": np.exp2, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "erf": np.vectorize(math.erf), "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "rsqrt": lambda x: 1 / np.sqrt(x), "powf": np.power, "atan2": np.arctan2,
}  # fmt: skip


@pytest.mark.parametrize("text", ["wgsl", "spirv"])
def test_every_function(text):
    device = device_of("vulkan")
    x, y = (m.reshape(-1).copy() for m in np.meshgrid(SPECIAL, SPECIAL))
    for half in (sorted(FUNCTIONS)[::2], sorted(FUNCTIONS)[1::2]):
        calls = [f"{n}(x[i], y[i])" if n in BINARY else f"{n}(x[i])" for n in half]
        lines = [f"        s{i}: z[{i}, i] = {c}" for i, c in enumerate(calls)]
        head = f"def k(x: f64[256], y: f64[256], z: out(f64[{len(half)}, 256])):\n    for i in thread(256):\n"
        nest = finish(parse_nest(head + "\n".join(lines), MACHINE))
        made = kernel(emit(nest, WGSL_64), WGSL_64) if text == "wgsl" else built(nest, MACHINE)
        found = np.zeros((len(half), 256))
        run_on(device, made, [x, y, found])
        for name, got in zip(half, found, strict=True):
            with np.errstate(all="ignore"):
                want = REFERENCES.get(name, getattr(np, name, None))(*((x, y) if name in BINARY else (x,)))
            np.testing.assert_allclose(got, want, rtol=2e-15, atol=0, err_msg=name)


def test_a_model_of_f64():
    from onnx import parser

    device_of("vulkan")
    made = parser.parse_model("""<ir_version: 10, opset_import: ["": 21]> m (double[9, 33] x) => (double[9, 33] y) {
        a = Softmax<axis=-1>(x) b = Log(a) c = Tanh(b) d = Erf(c) e = Sin(x) y = Add(d, e) }""")
    x = np.random.default_rng(0).standard_normal((9, 33))
    (want,) = tw.compile(made, target="cpu")(x)
    for target in ("vulkan", "vulkan:text=spirv"):
        (got,) = tw.compile(made, target=target)(x)
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-14)
