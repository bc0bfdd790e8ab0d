"""The runtime of the target cuda over the emulated driver: graphs, time stamps, states, lost GPUs, several GPUs."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto
from support.cuda_driver import EmulatedDriver, runner
from support.cuda_emulator import Places, launch, needs_compiler
from support.onnx_models import model, node, value
from support.ptxas import assembled

import tilewright as tw
from tilewright.codegen.nvptx.assemble import ptx
from tilewright.codegen.nvptx.emitter import emit
from tilewright.program.timeline import Stamps, Timeline
from tilewright.schedule.parse import parse_nest
from tilewright.support.dtypes import NUMPY
from tilewright.support.errors import PackageError, TilewrightError, UsageError
from tilewright.targets import base
from tilewright.targets.cuda import ceilings as products
from tilewright.targets.cuda import device as module
from tilewright.targets.cuda import driver, stages, tuning
from tilewright.targets.cuda.device import CudaDevice
from tilewright.targets.cuda.driver import Driver, names
from tilewright.targets.gpu import ceilings

pytestmark = needs_compiler


def compiled(source, **options):
    """A model for sm_80, and what was emitted of its kernels."""
    emitted, original = {}, stages.emit

    def recorded(nest, machine):
        emitted[nest.name] = original(nest, machine)
        return emitted[nest.name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "emit", recorded)
        return tw.compile(source, target="cuda", cache=False, **options), emitted


@pytest.fixture(scope="module")
def small():
    nodes = [node("MatMul", "x w", "h"), node("Softmax", "h", "y", axis=-1)]
    weights = {"w": np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)}
    return compiled(model(nodes, [value("x", (4, 8))], [value("y")], weights))


def run(context, seed: int = 0, stamps=None) -> np.ndarray:
    x, y = np.random.default_rng(seed).random((4, 8), np.float32), np.zeros((4, 8), np.float32)
    context.run([x.ctypes.data], [y.ctypes.data], stamps)
    return y


def test_a_run_is_one_graph(small):
    made, emitted = small
    functions = EmulatedDriver(emitted)
    context = runner(made.package, lambda: Driver(functions)).context()
    assert functions.calls.count("cuLaunchKernel") == len(made.package.program.calls) and not functions.launches
    functions.calls.clear()
    first, second = run(context, 0), run(context, 1)
    assert functions.calls == ["cuCtxSetCurrent", "cuGraphLaunch", "cuStreamSynchronize"] * 2
    assert (first != second).any() and (run(context, 0) == first).all()
    np.testing.assert_allclose(first.sum(1), 1, rtol=1e-5)
    del context
    assert not functions.graphs and not functions.pinned and not functions.places.all


def test_every_call_has_a_time(small):
    made, emitted = small
    functions = EmulatedDriver(emitted)
    context = runner(made.package, lambda: Driver(functions)).timed().context()
    stamps = Stamps(1, len(made.package.program.calls))
    plain = run(context)
    for _ in range(2):
        stamps.clear()
        assert (run(context, stamps=stamps) == plain).all()
        line = Timeline.of(stamps, 1e-9)
        assert (line.seconds() > 0).all() and line.seconds().sum() <= line.total
    del context
    assert not functions.events and not functions.graphs


def test_ceilings_are_measured(monkeypatch):
    """The kernels are those of the target, by its own way to PTX; the emulator says what they take."""
    small = {"_SIZES": (1 << 13, 1 << 14), "_CHAINS": (2,), "_PEAK_BLOCKS": 2, "_STEPS": (4,), "_PASSES": (1, 2)}
    for name, number in (small | {"_RUNS": 1, "_BLOCKS": (2, 8)}).items():
        monkeypatch.setattr(ceilings, name, number)
    monkeypatch.setattr(products, "_STEPS", (2,))
    functions = EmulatedDriver({})
    functions.kernels = emitted = {}

    def recorded(nest, machine):
        emitted[nest.name] = emit(nest, machine)
        return emitted[nest.name]

    monkeypatch.setattr(tuning, "emit", recorded)
    target = base.find("cuda")
    bench = ceilings.CeilingBench(target.built, target.describe(), CudaDevice(Driver(functions)))
    found = products.measure(bench, replace(target.describe(), multiprocessors=1), "a GPU")
    assert set(found.compute) == {"f32", "bf16", "f16"} and all(v > 0 for v in found.compute.values())
    assert [v.capacity for v in found.levels] == [1 << 13, None]
    assert set(functions.launches) == {"peak", "read", "write", "copy", "warps"}


@pytest.mark.parametrize(("sm", "text"), [("sm_80", products.WARPS), ("sm_90a", products.GROUPS)])
def test_tensor_cores_of_the_ceilings_compute(sm, text, tmp_path):
    """What is measured are products: as the reference, in PTX that is accepted and keeps its sums in registers."""
    machine = base.find(f"cuda:sm={sm}").describe()
    assert text in products.texts(machine)
    nest = parse_nest(text.format(t="bf16", b=2, steps=3).strip(), machine)
    emitted, random = emit(nest, machine), np.random.default_rng(0)
    x, z, y = (np.zeros(p.shape, NUMPY[p.dtype]) for p in nest.params)
    x[...], z[...] = random.standard_normal(x.shape), random.standard_normal(z.shape)
    places = Places()
    at = [places.add(n, a.nbytes, a.reshape(-1).view(np.uint8)) for n, a in zip("xzy", (x, z, y), strict=True)]
    launch(emitted.text, emitted.launch, emitted.name, places, at)
    ctypes.memmove(y.ctypes.data, at[2], y.nbytes)
    a, b = x.astype(np.float32), z.astype(np.float32)
    want = 3 * (np.tile(a @ b, 4) if text == products.WARPS else a @ b.T)
    assert np.abs(y - want).max() < 1e-4 * np.abs(want).max()
    taken = assembled(ptx(emitted, machine.llvm), sm, tmp_path)
    assert not taken.spilled and not taken.stack


def test_states_stay_on_the_gpu():
    nodes = [node("Add", "x past", "y"), node("Add", "x past", "present")]
    inputs, outputs = [value("x", (4,)), value("past", (4,))], [value("y", (4,)), value("present", (4,))]
    made, emitted = compiled(model(nodes, inputs, outputs, {}), states={"past": "present"})
    functions = EmulatedDriver(emitted)
    made._runner.find = lambda: CudaDevice(Driver(functions))
    x = np.ones(4, np.float32)
    assert [made(x)[0][0] for _ in range(4)] == [1, 2, 3, 4]
    assert functions.calls.count("cuGraphInstantiateWithFlags") == 1 + made.package.program.states[0].swapped
    made.states["past"][1:] = 10
    assert made(x)[0].tolist() == [5, 11, 11, 11]
    made.reset()
    assert made(x)[0].tolist() == [1] * 4


def test_a_cache_is_written_in_place():
    """The kernel touches the row that is named, and nothing copies the others."""
    nodes = [node("ScatterND", "past at x", "present"), node("ReduceSum", "present", "y", keepdims=0)]
    inputs = [value("x", (1, 4)), value("at", (1, 1), TensorProto.INT64), value("past", (6, 4))]
    made, emitted = compiled(
        model(nodes, inputs, [value("y", ()), value("present", (6, 4))], {}), states={"past": "present"}
    )
    assert not made.package.program.states[0].swapped
    made._runner.find = lambda: CudaDevice(Driver(EmulatedDriver(emitted)))
    for i in range(3):
        (y,) = made(np.full((1, 4), i + 1, np.float32), np.array([[2 * i]]))
        assert y == 2 * (i + 1) * (i + 2)
    assert made.states["past"][:, 0].tolist() == [1, 0, 2, 0, 3, 0]


@pytest.mark.parametrize(
    ("failing", "code", "said", "hint"),
    [
        ("cuGraphLaunch", 2, "ran out of memory while running a model: cuGraphLaunch: out of memory", "smaller batch"),
        ("cuStreamSynchronize", 1, "failed while running a model: cuStreamSynchronize: invalid argument", "once more"),
        ("cuStreamSynchronize", 700, "was lost while running a model: .*illegal memory access", "start the process"),
    ],
)
def test_runs_that_fail(small, failing, code, said, hint):
    made, emitted = small
    functions = EmulatedDriver(emitted, code=code)
    context = runner(made.package, lambda: Driver(functions)).context()
    good = run(context)
    functions.failing = failing
    with pytest.raises(TilewrightError, match=rf"an emulated GPU \(CUDA\) {said}") as e:
        run(context)
    assert hint in e.value.hint
    functions.failing = ""
    if code != 700:
        assert (run(context) == good).all()
        return
    for _ in range(2):  # the driver's context is gone for good
        with pytest.raises(TilewrightError, match="was lost while running a model: it was lost before") as e:
            run(context)
        assert hint in e.value.hint


@pytest.mark.parametrize("failing", ["cuLaunchKernel", "cuGraphInstantiateWithFlags", "cuMemHostAlloc"])
def test_a_recording_that_fails_leaves_a_stream_that_works(small, failing):
    made, emitted = small
    functions = EmulatedDriver(emitted, failing=failing)
    one = runner(made.package, lambda: Driver(functions))
    with pytest.raises(TilewrightError, match=f"while loading kernels: {failing}"):
        one.context()
    functions.failing = ""
    assert run(one.context()).any()


def test_gpus_by_number_and_by_name(small, monkeypatch):
    functions = EmulatedDriver(small[1], gpus=("GPU A", "GPU B"))
    assert names(functions) == ["GPU A", "GPU B"]
    monkeypatch.setattr(driver, "library", lambda: functions)
    module.DEVICES.forget()
    try:
        assert base.find("cuda").device_list() == ["GPU A", "GPU B"]
        assert "device=1: GPU B" in base.find("cuda").checks()["CUDA"]().detail
        for which in ("1", "gpu b"):
            target = base.find(f"cuda:device={which}")
            assert target.open_device().name == "GPU B (CUDA)" and "driver 12.8" in target.machine_name()
        assert base.find("cuda:sm_90a,device=1").name == "cuda:sm_90a,device=1"
        with pytest.raises(UsageError, match="cuda has no device '2' here") as e:
            base.find("cuda:device=2").open_device()
        assert "0: GPU A; 1: GPU B" in e.value.hint
    finally:
        module.DEVICES.forget()


def test_a_machine_without_a_gpu(small):
    functions = EmulatedDriver(small[1], gpus=())
    assert names(functions) == []
    functions.failing = "cuInit"
    with pytest.raises(PackageError, match="NVIDIA's driver finds no GPU: cuInit: out of memory"):
        names(functions)
    with pytest.raises(PackageError, match="GPU 0 cannot be used"):
        Driver(functions)
