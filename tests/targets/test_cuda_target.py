"""The target cuda: a model to PTX, its program over a driver that runs the kernels in the emulator, and what is said
where there is no GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.cuda_driver import EmulatedDriver, runner
from support.cuda_emulator import needs_compiler
from support.onnx_models import model, node, value
from support.ptxas import assembled

import tilewright as tw
from tilewright.codegen.llvm import worker
from tilewright.codegen.llvm.pool import compile_each, compile_many
from tilewright.lang import te
from tilewright.schedule.schedule import Schedule
from tilewright.support.errors import CompileError, PackageError, TilewrightError, UsageError
from tilewright.targets import base
from tilewright.targets.cuda import driver, stages
from tilewright.targets.cuda.description import MACHINES, CudaDescription
from tilewright.targets.cuda.driver import Driver

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"


def compiled(model, **options):
    """A model for sm_80, and what was emitted of its kernels."""
    emitted, original = {}, stages.emit

    def recorded(nest, machine):
        emitted[nest.name] = original(nest, machine)
        return emitted[nest.name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "emit", recorded)
        return tw.compile(model, target="cuda", cache=False, **options), emitted


@pytest.fixture(scope="module")
def digits():
    return compiled(DIGITS, inputs={"image": (1, 1, 8, 8)})


@needs_compiler
def test_a_model_runs_over_the_driver(digits):
    made, emitted = digits
    functions = EmulatedDriver(emitted)
    context = runner(made.package, lambda: Driver(functions)).context()
    rng = np.random.default_rng(0)
    cpu = tw.compile(DIGITS, inputs={"image": (1, 1, 8, 8)})
    x, y = rng.random((1, 1, 8, 8), np.float32), np.empty((1, 10), np.float32)
    context.run([x.ctypes.data], [y.ctypes.data])
    want = cpu(x)
    assert np.allclose(y, want if isinstance(want, np.ndarray) else want[0], atol=1e-6)
    assert len(functions.launches) == len(made.package.program.calls)
    del context
    assert not functions.places.all


ONES = np.ones
MODELS = {
    "softmax": ([node("Softmax", "x", "y", axis=-1)], {"x": (4, 33)}, {}),
    "product": ([node("Gemm", "x w b", "y")], {"x": (5, 24)}, {"w": ONES((24, 17)), "b": ONES(17)}),
    "convolution": (
        [node("Conv", "x w", "h", pads=[1, 1, 1, 1], strides=[2, 2]), node("Relu", "h", "y")],
        {"x": (1, 3, 9, 9)},
        {"w": ONES((8, 3, 3, 3))},
    ),
    "transposed": ([node("Transpose", "x", "h", perm=[0, 2, 1]), node("Erf", "h", "y")], {"x": (2, 17, 9)}, {}),
    "sorted": ([node("TopK", "x k", "y q", axis=-1)], {"x": (3, 40)}, {"k": np.array([5])}),
    "attention": (
        [
            node("Transpose", "k", "t", perm=[0, 1, 3, 2]),
            node("MatMul", "q t", "s"),
            node("Softmax", "s", "p", axis=-1),
            node("MatMul", "p v", "y"),
        ],
        {"q": (1, 2, 16, 8), "k": (1, 2, 16, 8), "v": (1, 2, 16, 8)},
        {},
    ),
}


@needs_compiler
@pytest.mark.parametrize("name", MODELS)
def test_kernels_of_all_kinds_run_on_threads(name):
    """As they are scheduled for a processor: an iteration of a parallel loop is a thread."""
    nodes, inputs, constants = MODELS[name]
    constants = {n: c if c.dtype == np.int64 else c.astype(np.float32) for n, c in constants.items()}
    source = model(nodes, [value(n, s) for n, s in inputs.items()], [value("y")], constants)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in inputs.values()]
    want = tw.compile(source)(*arrays)
    want = want if isinstance(want, np.ndarray) else want[0]
    made, emitted = compiled(source)
    found = np.empty_like(want)
    context = runner(made.package, lambda: Driver(EmulatedDriver(emitted))).context()
    context.run([a.ctypes.data for a in arrays], [found.ctypes.data])
    assert np.allclose(found, want, 1e-5, 1e-5)


def test_all_kernels_of_a_model_are_accepted(digits, tmp_path):
    made, _ = digits
    for data in made.package.objects.values():
        assert assembled(stages.CudaKernel.from_bytes(data).ptx, "sm_80", tmp_path).registers > 0


def test_without_a_driver_a_run_is_one_clear_error(digits, monkeypatch):
    made, _ = digits
    monkeypatch.setattr(driver, "_NAMES", ("libtilewright-no-such-driver.so",))
    with pytest.raises(PackageError, match="needs NVIDIA's driver, and none was found") as e:
        made(np.zeros((1, 1, 8, 8), np.float32))
    assert "install the driver" in e.value.hint


def test_code_for_another_gpu_and_a_driver_that_fails(digits):
    made, emitted = digits
    with pytest.raises(PackageError, match="the code is for sm_80, the GPU is sm_75"):
        runner(made.package, lambda: Driver(EmulatedDriver(emitted, (7, 5)))).context()
    runner(made.package, lambda: Driver(EmulatedDriver(emitted, (9, 0)))).context()
    with pytest.raises(TilewrightError, match=r"GPU \(CUDA\) ran out of memory while allocating .* bytes") as e:
        runner(made.package, lambda: Driver(EmulatedDriver(emitted, failing="cuMemAlloc_v2"))).context()
    assert "cuMemAlloc_v2: out of memory" in e.value.message and "smaller batch" in e.value.hint


def test_one_thread_that_does_all_the_work_is_told():
    source = model([node("Det", "x", "y")], [value("x", (40, 40))], [value("y")])
    assert "all of its work is done by one thread" in compiled(source)[0].explain()


def test_the_gpu_is_named():
    assert base.find("cuda:sm_90a").describe() == MACHINES["sm_90a"]
    assert base.find("cuda:sm=sm_90a,device=1").name == "cuda:sm_90a,device=1"
    for name, why in (("cuda:sm_10", "there is no GPU 'sm_10'"), ("cuda:warps=8", "no parameter 'warps'")):
        with pytest.raises(UsageError, match=why):
            base.find(name)
    for machine in MACHINES.values():
        assert CudaDescription.from_json(machine.to_json()) == machine


def test_what_llvm_cannot_take_is_an_error_and_can_be_reproduced(digits, monkeypatch, tmp_path, capsys):
    name, emitted = next(iter(digits[1].items()))
    broken = replace(emitted, text=emitted.text.replace("ret void", "ret i32 7"))
    llvm = MACHINES["sm_80"].llvm
    done = compile_each([stages.job(name, broken)], llvm, workers=1)
    assert "LLVM does not accept the kernel" in done[name]
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_COMPILE", "inprocess")
    with pytest.raises(CompileError, match="LLVM does not accept the kernel") as e:
        compile_many([stages.job(name, broken)], llvm)
    assert worker.main(["--repro", e.value.saved]) == CompileError.exit_code
    assert "LLVM does not accept the kernel" in capsys.readouterr().err


def test_a_schedule_shows_its_ptx():
    text = "def k(x: f32[64], y: out(f32[64])):\n    for i in serial(64):\n        s0: y[i] = negf(x[i])"
    s = Schedule(te.from_nest(text), "cuda")
    s.bind("i", "block.x")
    assert "neg.f32" in s.source("ptx") and "ptx_kernel void @k" in s.source("ll")
    with pytest.raises(UsageError, match="has no form 'mlir'"):
        s.source("mlir")
