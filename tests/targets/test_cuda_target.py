"""The target cuda: a model to PTX, its program over a driver that runs the kernels in the emulator, and what is said
where there is no GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.cuda_driver import EmulatedDriver
from support.cuda_emulator import needs_compiler
from support.ptxas import assembled

import tilewright as tw
from tilewright.codegen.llvm.pool import compile_each
from tilewright.lang import te
from tilewright.schedule.schedule import Schedule
from tilewright.support.errors import PackageError, UsageError
from tilewright.targets import base
from tilewright.targets.cuda import driver, stages
from tilewright.targets.cuda.description import MACHINES, CudaDescription
from tilewright.targets.cuda.device import CudaRunner
from tilewright.targets.cuda.driver import Driver

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"


@pytest.fixture(scope="module")
def digits():
    """The digits model compiled for sm_80, and what was emitted of its kernels."""
    emitted, original = {}, stages.emit
    patch = pytest.MonkeyPatch()

    def recorded(nest, machine):
        emitted[nest.name] = original(nest, machine)
        return emitted[nest.name]

    patch.setattr(stages, "emit", recorded)
    made = tw.compile(DIGITS, target="cuda", inputs={"image": (1, 1, 8, 8)}, cache=False)
    patch.undo()
    return made, emitted


@needs_compiler
def test_a_model_runs_over_the_driver(digits):
    made, emitted = digits
    functions = EmulatedDriver(emitted)
    context = CudaRunner(made.package, Driver(functions)).context()
    rng = np.random.default_rng(0)
    cpu = tw.compile(DIGITS, inputs={"image": (1, 1, 8, 8)})
    x, y = rng.random((1, 1, 8, 8), np.float32), np.empty((1, 10), np.float32)
    context.run([x.ctypes.data], [y.ctypes.data])
    want = cpu(x)
    assert np.allclose(y, want if isinstance(want, np.ndarray) else want[0], atol=1e-6)
    assert len(functions.launches) == len(made.package.program.calls)
    context.close()
    assert not functions.places.all


def test_all_kernels_of_a_model_are_accepted(digits, tmp_path):
    made, _ = digits
    for data in made.package.objects.values():
        assert assembled(stages.Launched.from_bytes(data).ptx, "sm_80", tmp_path).registers > 0


def test_without_a_driver_a_run_is_one_clear_error(digits, monkeypatch):
    made, _ = digits
    monkeypatch.setattr(driver, "_NAMES", ("libtilewright-no-such-driver.so",))
    with pytest.raises(PackageError, match="needs NVIDIA's driver, and none was found") as e:
        made(np.zeros((1, 1, 8, 8), np.float32))
    assert "install the driver" in e.value.hint


def test_code_for_another_gpu_and_a_driver_that_fails(digits):
    made, emitted = digits
    with pytest.raises(PackageError, match="the code is for sm_80, the GPU is sm_75"):
        CudaRunner(made.package, Driver(EmulatedDriver(emitted, (7, 5)))).context()
    CudaRunner(made.package, Driver(EmulatedDriver(emitted, (9, 0)))).context()
    with pytest.raises(PackageError, match="driver failed in cuMemAlloc_v2: out of memory"):
        CudaRunner(made.package, Driver(EmulatedDriver(emitted, failing="cuMemAlloc_v2"))).context()


def test_one_thread_that_does_all_the_work_is_told(digits):
    assert "all of its work is done by one thread" in digits[0].explain()


def test_the_gpu_is_named():
    assert base.find("cuda:sm=sm_90a").describe() == MACHINES["sm_90a"]
    for name, why in (("cuda:sm=sm_10", "there is no GPU 'sm_10'"), ("cuda:warps=8", "no parameter 'warps'")):
        with pytest.raises(UsageError, match=why):
            base.find(name)
    for machine in MACHINES.values():
        assert CudaDescription.from_json(machine.to_json()) == machine


def test_what_llvm_cannot_take_is_an_error_and_not_the_end(digits):
    name, emitted = next(iter(digits[1].items()))
    broken = replace(emitted, text=emitted.text.replace("ret void", "ret i32 7"))
    done = compile_each([stages.job(name, broken)], MACHINES["sm_80"].llvm, workers=1)
    assert "LLVM does not accept the kernel" in done[name]


def test_a_schedule_shows_its_ptx():
    text = "def k(x: f32[64], y: out(f32[64])):\n    for i in serial(64):\n        s0: y[i] = negf(x[i])"
    s = Schedule(te.from_nest(text), "cuda")
    s.bind("i", "block.x")
    assert "neg.f32" in s.source("ptx") and "ptx_kernel void @k" in s.source("ll")
    with pytest.raises(UsageError, match="has no form 'mlir'"):
        s.source("mlir")
