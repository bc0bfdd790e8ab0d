"""Programs with open dimensions on devices: one compilation, then any size, without another kernel for any of them."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.cuda_driver import EmulatedDriver
from support.cuda_emulator import needs_compiler
from support.gpus import device_of
from support.onnx_models import value
from support.open_models import BATCH, MODELS, SEQ, Writer, feeds

import tilewright as tw
from tilewright import te
from tilewright.codegen.gpu.open_launch import OpenLaunch
from tilewright.codegen.gpu.open_sizes import closed, has_sizes
from tilewright.schedule.rules import schedule
from tilewright.support.errors import InputError, PackageError, UnsupportedError
from tilewright.support.sizes import Dim, open_sizes
from tilewright.targets import base
from tilewright.targets.cuda import device as cuda
from tilewright.targets.cuda import stages as cuda_stages
from tilewright.targets.cuda.driver import Driver
from tilewright.targets.gpu.kernels import GpuKernel
from tilewright.targets.gpu.open_runner import KEPT

#: what a program is called with: the smallest sizes, the largest, and others of all kinds
SIZES = [(1, 1), (16, 64), (1, 64), (16, 1), (3, 7), (5, 33), (2, 17), (8, 48), (7, 31), (1, 13)]
TARGETS = ["opencl", "vulkan", "vulkan:text=spirv"]


def close(got, want) -> None:
    assert [y.shape for y in got] == [y.shape for y in want]
    for y, z in zip(got, want, strict=True):
        np.testing.assert_allclose(y, z, rtol=0, atol=2e-5 * max(abs(z).max(initial=0), 1))


def rules_of(run) -> set[str]:
    return {k["kind"] for k in run.package.report["kernels"]}


def kernels_of(target: str) -> int:
    """Those that the driver has compiled in this process."""
    device = device_of(target.partition(":")[0])
    return len(device.programs if target == "opencl" else device.pipelines)


# ---- whole models ----------------------------------------------------------------------------------------------------


def products() -> onnx.ModelProto:
    """Products whose rows, columns and sums are open, softmax along an open row, transposed and joined."""
    w = Writer()
    scores = w.op("MatMul", "x", w.op("Transpose", "x", perm=[0, 2, 1]))
    seen = w.op("MatMul", w.op("Softmax", w.op("Tanh", scores), axis=-1), "x")
    both = w.op("Transpose", w.op("Concat", seen, "x", axis=1), perm=[0, 2, 1])
    best = w.op("ReduceMax", scores, axes=[1], keepdims=0)
    return w.model(
        [value("x", ["batch", "seq", 64])],
        {scores: ["batch", "seq", "seq"], both: ["batch", 64, "both"], best: ["batch", "seq"]},
    )


def images() -> onnx.ModelProto:
    """Convolutions with strides, a pool and a residual."""
    w = Writer()

    def conv(x: str, ci: int, co: int, k: int, stride: int = 1) -> str:
        return w.op("Conv", x, w.weights(co, ci, k, k), w.weights(co), pads=[k // 2] * 4, strides=[stride, stride])

    x = w.op("MaxPool", w.op("Relu", conv("x", 3, 16, 3, 2)), kernel_shape=[2, 2], strides=[2, 2])
    x = w.op("Relu", w.op("Add", conv(x, 16, 16, 3), x))
    y = w.linear(w.op("Flatten", w.op("GlobalAveragePool", x), axis=1), 16, 10)
    return w.model([value("x", ["batch", 3, "height", 32])], {y: ["batch", 10]})


#: beside those of `open_models`
OWN = {
    "products": (products, {"x": (BATCH, SEQ, 64)}),
    "images": (images, {"x": (Dim("batch", 1, 4), 3, Dim("height", 16, 64, 4), 32)}),
}


@cache
def compiled(name: str, target: str = "cpu"):
    make, shapes = {**MODELS, **OWN}[name]
    return tw.compile(make(), inputs=shapes, threads=1, target=target)


@pytest.mark.parametrize("target", TARGETS)
def test_one_program_serves_all_sizes(target):
    """An encoder: every rule of whole models; ten sizes, of which none makes a kernel."""
    device_of(target.partition(":")[0])
    run, reference = compiled("encoder", target), compiled("encoder")
    assert rules_of(run) == {"block_elementwise", "block_contraction", "block_attention", "block_rows"}
    close(run(feeds("encoder", 4, 9)), reference(feeds("encoder", 4, 9)))
    known = kernels_of(target)
    for batch, seq in [*SIZES, *SIZES[:3]]:
        given = feeds("encoder", batch, seq)
        close(run(given), reference(given))
    assert kernels_of(target) == known


@pytest.mark.parametrize("target", TARGETS[:2])
def test_rows_columns_and_sums_of_open_length(target):
    device_of(target)
    run, reference = compiled("products", target), compiled("products")
    assert rules_of(run) == {"block_contraction", "block_rows", "block_elementwise", "block_transpose"}
    for batch, seq in SIZES:
        x = np.random.default_rng(batch + seq).standard_normal((batch, seq, 64)).astype(np.float32)
        close(run(x), reference(x))


def test_images_of_any_height():
    device_of("opencl")
    run, reference = compiled("images", "opencl"), compiled("images")
    for batch, height in ((1, 16), (4, 64), (2, 20), (3, 48), (1, 60)):
        x = np.random.default_rng(height).standard_normal((batch, 3, height, 32)).astype(np.float32)
        close(run(x), reference(x))


def test_a_cache_that_grows_on_the_device():
    """A decoder's step with an open past: the state stays on the device, each length is a size."""
    device_of("opencl")
    w = Writer()
    keys = w.op("Concat", "past", "x", axis=1)
    y = w.op("MatMul", w.op("Softmax", w.op("MatMul", "x", w.op("Transpose", keys, perm=[0, 2, 1])), axis=-1), keys)
    model = w.model([value("x", [1, 1, 16]), value("past", [1, "past", 16])], {y: [1, 1, 16], keys: [1, "p", 16]})
    shapes = {"x": (1, 1, 16), "past": (1, Dim("past", 0, 20), 16)}
    runs = [tw.compile(model, inputs=shapes, states={"past": "y1"}, threads=1, target=t) for t in ("opencl", "cpu")]
    rng = np.random.default_rng(0)
    for step in range(20):
        x = rng.standard_normal((1, 1, 16)).astype(np.float32)
        close(*(run(x) for run in runs))
        assert runs[0].states["past"].shape == (1, step + 1, 16)
    with pytest.raises(InputError, match="room for 20 rows"):
        runs[0](x)


def test_empty_dimensions():
    device_of("opencl")
    w = Writer()
    y = w.op("Softmax", w.op("Transpose", w.linear("x", 24, 8), perm=[0, 2, 1]), axis=2)
    model = w.model([value("x", [2, "seq", 24])], {y: [2, 8, "seq"], w.op("ReduceSum", "x", keepdims=0): []})
    shapes = {"x": (2, Dim("seq", 0, 8), 24)}
    run, reference = (tw.compile(model, inputs=shapes, threads=1, target=t) for t in ("opencl", "cpu"))
    for seq in (0, 5, 0, 8):
        x = np.ones((2, seq, 24), np.float32)
        close(run(x), reference(x))


def test_packages_and_what_is_kept(tmp_path):
    device_of("opencl")
    compiled("softmax", "opencl").save(tmp_path / "m.tw")
    run, reference = tw.load(tmp_path / "m.tw"), compiled("softmax")
    for seq in (64, *range(1, 2 * KEPT)):
        given = feeds("softmax", 2, seq)
        close(run(given), reference(given))
    (context,) = run._free
    assert len(context.kept) == KEPT
    with pytest.raises(InputError, match="seq is 65 in input 'x', it has to be 1 to 64"):
        run(np.zeros((1, 65), np.float32))


@needs_compiler
def test_cuda_records_a_graph_for_each_size(monkeypatch):
    """In the emulator: tensor cores for open rows, attention with open queries and keys; kernels are loaded once."""
    emitted, original = {}, cuda_stages.emit

    def recorded(nest, machine):
        emitted[nest.name] = original(nest, machine)
        return emitted[nest.name]

    monkeypatch.setattr(cuda_stages, "emit", recorded)
    w = Writer()
    q, k, v = (w.op("Reshape", w.linear("x", 32, 32), w.ints(0, 0, 2, 16)) for _ in range(3))
    q, k, v = (w.op("Transpose", x, perm=[0, 2, 1, 3]) for x in (q, k, v))
    scores = w.op("Mul", w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2])), w.number(0.25))
    y = w.op("Transpose", w.op("MatMul", w.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    model = w.model([value("x", ["batch", "seq", 32])], {w.op("Reshape", y, w.ints(0, 0, 32)): ["batch", "seq", 32]})
    shapes = {"x": (Dim("batch", 1, 4), Dim("seq", 1, 256), 32)}
    made = tw.compile(model, inputs=shapes, target="cuda", precision="bf16", cache=False)
    assert {"tensor_cores", "block_attention"} <= rules_of(made)
    functions = EmulatedDriver(emitted)
    made._runner.find = lambda: cuda.CudaDevice(Driver(functions))
    reference = tw.compile(model, inputs=shapes, threads=1)
    for batch, seq in ((1, 1), (2, 19), (1, 70), (2, 19)):
        x = np.random.default_rng(seq).standard_normal((batch, seq, 32)).astype(np.float32)
        np.testing.assert_allclose(made(x)[0], reference(x)[0], atol=2e-2)
    assert functions.calls.count("cuModuleLoadData") == len(emitted)
    assert functions.calls.count("cuGraphInstantiateWithFlags") == 4  # memory has grown since the second one


# ---- random graphs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [21, 26, 31, 38, 44])
def test_random_graphs(seed):
    """`python tests/fuzz/open_dimensions.py --target opencl` draws more."""
    pytest.importorskip("onnxruntime", reason="the results are compared with ONNX Runtime's")
    device_of("opencl")
    sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))
    from open_dimensions import GOOD, compare

    assert (found := compare(seed, "opencl")).outcome in GOOD, found


# ---- parts -----------------------------------------------------------------------------------------------------------


def test_sizes_become_numbers_of_a_table():
    """Numbers within sizes stay apart; places in open buffers are flat."""
    with open_sizes([Dim("batch", 1, 8), Dim("seq", 2, 64, 2)]) as known:
        batch, seq = known.symbols
        machine = base.find("opencl").describe()
        x = te.placeholder((batch * seq, 12), "x")
        y = te.compute((batch * seq, 12), lambda i, j: x[i, j] * 2.0, "y")
        made = schedule(te.kernel(y, name="twice"), machine)
        found = closed(made.nest)
        assert found is not None and not has_sizes(found.nest) and has_sizes(made.nest)
        assert found.nest.params[-1].name == "%sizes"
        kernel = base.find("opencl").built(made.nest)
    assert kernel.open == GpuKernel.unpack(kernel.pack()).open
    assert kernel.open.arguments == (("24*(d1//2)*d0", 4),) * 2
    assert kernel.open.grid == ("((24*(d1//2)*d0 + 63)//64)", 1, 1)
    assert "size0 = in2[0]" in kernel.text


def test_rows_on_a_machine_with_clusters():
    """Rows are those of warps there too, also where how many there are is not known."""
    with open_sizes([Dim("rows", 1, 64)]) as known:
        (rows,) = known.symbols
        x, r = te.placeholder((rows, 96), "x"), te.reduce_axis(96, "r")
        kernel = te.kernel(te.compute((rows,), lambda i: te.sum(x[i, r], r), "y"), name="total")
        made = schedule(kernel, base.find("cuda:sm_90a").describe())
    assert made.rule == "block_rows" and "warp" in str(made.nest) and "cluster" not in str(made.nest)


def test_numbers_that_are_too_large():
    launch = OpenLaunch(("batch*seq",), (("batch*seq", 4),))
    assert launch.at([6, 6, 1, 1, 1], "k").nbytes == (24,)
    with pytest.raises(UnsupportedError, match="kernel k would compute with 2,147,483,648 at these sizes"):
        launch.at([6, 1 << 31, 1, 1, 1], "k")


def test_a_damaged_kernel_is_refused(tmp_path):
    """Formulas of a package are evaluated: only such of its own dimensions."""
    run = compiled("softmax", "opencl")
    ((symbol, data),) = run.package.objects.items()
    kernel = GpuKernel.unpack(data)
    package = replace(
        run.package, objects={symbol: replace(kernel, open=replace(kernel.open, table=("heads",))).pack()}
    )
    with pytest.raises(PackageError, match="'heads' is no formula of sizes"):
        base.find("opencl").load(package, 1)
