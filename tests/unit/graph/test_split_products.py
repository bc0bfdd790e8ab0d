"""Products in slices for machines with a grid: right in every type on devices, and only where they pay."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper, parser
from support.gpus import device_of

import tilewright as tw
from tilewright.codegen.nvptx.emitter import emit
from tilewright.driver.kernels import fused_kernels
from tilewright.graph.interpret import interpret
from tilewright.graph.split_products import slices
from tilewright.schedule.rules import schedule
from tilewright.targets.base import find
from tilewright.targets.cuda.description import MACHINES

KINDS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def product(rows: int, depth: int, columns: int, dtype: str, turned: bool = False) -> str:
    """A product with an activation; the second factor may be [columns, depth]."""
    a, b, c = (f"tensor<{s}x{dtype}>" for s in (f"{rows}x{depth}", f"{depth}x{columns}", f"{rows}x{columns}"))
    given, turn = b, ""
    if turned:
        given = f"tensor<{columns}x{depth}x{dtype}>"
        turn = f'%w = "tw.transpose"(%b) {{permutation = array<i64: 1, 0>}} : ({given}) -> {b}'
    return f"""func.func @main(%a: {a}, %b: {given}) -> {c} {{
  {turn}
  %0 = "tw.matmul"(%a, {"%w" if turned else "%b"}) : ({a}, {b}) -> {c}
  %1 = "tw.relu"(%0) : ({c}) -> {c}
  return %1 : {c}
}}"""


@pytest.mark.parametrize(("dtype", "turned"), [("f32", True), ("bf16", False)])
def test_products(dtype, turned):
    device_of("opencl")
    g = np.random.default_rng(0)
    a, b = (g.standard_normal(s).astype(KINDS[dtype]) for s in ((12, 4096), (48, 4096) if turned else (4096, 48)))
    run = tw.compile(product(12, 4096, 48, dtype, turned), target="opencl")
    assert "einsum" in run.explain() and "reduce_sum" in run.explain()
    want = np.maximum(a.astype(float) @ (b.T if turned else b).astype(float), 0)
    error = np.abs(run(a, b)[0].astype(float) - want).max() / want.max()
    assert error <= {"f32": 2e-6, "f16": 1e-3, "bf16": 8e-3}[dtype]  # partial sums are f32


def constants(model, **arrays):
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    return model


def in_slices(made, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the operators' references make of a model as it is, and of one that has been split."""
    found = []
    for stage in ("simplify", "layout"):
        graph = tw.compile(made, target="opencl", stop_after=stage)
        assert ("tw.reduce_sum" in graph.text()) == (stage == "layout")
        found += interpret(graph, {"x": x}).values()
    return found[0], found[1]


def test_convolution():
    g = np.random.default_rng(0)
    made = parser.parse_model("""<ir_version: 10, opset_import: ["": 21]> m (float[1, 256, 5, 5] x) => (float y) {
        c = Conv<pads=[1, 1, 1, 1]>(x, w, b) y = Relu(c) }""")
    w, b = g.standard_normal((32, 256, 3, 3)).astype("f4"), g.standard_normal(32).astype("f4")
    want, found = in_slices(constants(made, w=w, b=b), g.standard_normal((1, 256, 5, 5)).astype("f4"))
    assert np.abs(found - want).max() <= 2e-6 * np.abs(want).max()


@pytest.mark.parametrize("node", ["QLinearMatMul", "QLinearConv<pads = [1, 1, 1, 1]>"])
def test_bytes_are_the_same_bits(node):
    g, conv = np.random.default_rng(0), "Conv" in node
    shape = (1, 256, 5, 5) if conv else (16, 4096)
    text = f"""<ir_version: 10, opset_import: ["": 21]> m (uint8[{", ".join(map(str, shape))}] x) => (uint8 y) {{
        y = {node}(x, xs, xz, w, ws, wz, ys, yz) }}"""
    w = g.integers(-99, 99, (32, 256, 3, 3) if conv else (4096, 48)).astype("i1")
    made = constants(
        parser.parse_model(text), xs=np.float32(0.1), xz=np.uint8(3), w=w, ws=np.float32(0.01), wz=np.int8(0),
        ys=np.float32(20.0), yz=np.uint8(128),
    )  # fmt: skip
    want, found = in_slices(made, g.integers(0, 255, shape).astype("u1"))
    assert (found == want).all()


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "sm"),
    [(16, 16384, 1024, "sm_80"), (64, 65536, 256, "sm_90a"), (4, 3072, 768, "sm_90a")],
)
def test_slices_fill_the_processors(rows, depth, columns, sm):
    machine, target = MACHINES[sm], f"cuda:sm={sm}"
    kernel, _ = fused_kernels(product(rows, depth, columns, "bf16"), target=target)
    nest = schedule(kernel, find(target).describe()).nest
    x, y, z = emit(nest, machine).launch.grid
    assert z > 1 and x * y * z >= 0.55 * machine.multiprocessors
    (last,) = kernel.outputs
    assert kernel.buffer(last).dtype == "f32"


def test_only_where_they_pay():
    h100 = MACHINES["sm_90a"].grid_costs
    assert slices(4096, 4096, 4096, "bf16", h100) == 1  # tiles enough
    assert slices(16, 1024, 256, "bf16", h100) == 1  # not worth a second kernel
    assert slices(16, 1024, 16411, "bf16", h100) == 1  # no number divides it
    assert slices(16, 1024, 16384, "bf16", h100) > 1
    for target in ("cpu", "c"):
        assert find(target).describe().grid_costs is None
