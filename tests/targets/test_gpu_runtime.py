"""The runtime of devices: time of every kernel, ceilings, states between runs, errors, several devices, threads."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.gpus import device_of

import tilewright as tw
from tilewright.program.timeline import Stamps
from tilewright.support.errors import TilewrightError, UsageError
from tilewright.targets import base
from tilewright.targets.gpu import ceilings
from tilewright.targets.gpu.kernels import GpuKernel
from tilewright.targets.gpu.runner import GpuRunner


@pytest.fixture(scope="module", params=["opencl", "vulkan"])
def target(request):
    device_of(request.param)
    return request.param


def model(text: str, **constants: np.ndarray):
    """A model in ONNX's own text form; constants are filled in by name."""
    from onnx import numpy_helper, parser

    made = parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> m {text}')
    for name, value in constants.items():
        made.graph.initializer.append(numpy_helper.from_array(value, name))
    return made


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


TWO = "(float[8, 16] x) => (float[8, 16] y) { a = MatMul(x, w) y = Softmax<axis=1>(a) }"


@pytest.fixture(scope="module")
def two(target):
    """A model of two kernels, compiled for the target."""
    return tw.compile(model(TWO, w=drawn(0, 16, 16)), target=target)


def runner_on(run, device) -> GpuRunner:
    return GpuRunner(run.package, lambda: device)


def once(context) -> np.ndarray:
    """A run of `two`."""
    x, y = drawn(1, 8, 16), np.zeros((8, 16), "f4")
    context.run([x.ctypes.data], [y.ctypes.data])
    return y


# ---- time


def test_every_call_has_a_time(two):
    lines = two.timelines([drawn(1, 8, 16)], runs=3)
    for line in lines:
        assert line.begin.shape == (1, len(two.package.program.calls))
        assert (line.end >= line.begin).all() and line.seconds().sum() <= line.total
        assert 0 < line.total < 10


def test_a_timed_run_gives_the_same(two):
    context = two._runner.timed().context()
    x, y = drawn(1, 8, 16), np.zeros((8, 16), "f4")
    context.run([x.ctypes.data], [y.ctypes.data], Stamps(1, len(two.package.program.calls)))
    assert (y == two(x)[0]).all()


def test_profiles_stand_beside_measured_ceilings(two, target, monkeypatch, tmp_path):
    small = {"_SIZES": (1 << 16, 1 << 18), "_CHAINS": (2,), "_PEAK_BLOCKS": 8, "_STEPS": (16, 64), "_PASSES": (1,)}
    for name, value in (small | {"_RUNS": 2}).items():
        monkeypatch.setattr(ceilings, name, value)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    found = two.profile([drawn(1, 8, 16)], repeats=2)
    assert [v.name for v in found.ceilings.levels] == ["0 MB", "memory"]
    assert all(v > 0 for level in found.ceilings.levels for v in (level.read, level.write, level.copy))
    assert all(e.efficiency > 0 for e in found.kernels if e.operations) and "roofline" in str(found)
    assert base.find(target).machine_name() == found.ceilings.machine


# ---- states

#: a window that has two buffers, and the last input, whose next value does not need the old one
KEPT = """(float[1, 4] x, float[5, 4] past, float[1, 4] last)
    => (float[1, 4] y, float[5, 4] present, float[1, 4] next) {
    rest = Slice(past, one, end, zero) present = Concat<axis=0>(rest, x)
    a = ReduceMax(present, zero) y = Sub(a, last) next = Neg(x) }"""
FEW = ("Neg", "Abs")
STATES = {"past": "present", "last": "next"}


def kept(target: str):
    numbers = {"one": 1, "end": 5, "zero": 0}
    constants = {n: np.array([v]) for n, v in numbers.items()}
    return tw.compile(model(KEPT, **constants), target=target, states=STATES)


@pytest.fixture(scope="module")
def states(target):
    return kept(target), kept("cpu")


def test_states_live_on_the_device(states):
    for run in states:
        run.reset()
    for step in range(5):
        x = drawn(step, 1, 4)
        got, want = (run(x)[0] for run in states)
        assert (got == want).all()
    for name in STATES:
        assert (states[0].states[name] == states[1].states[name]).all()


def test_states_are_read_and_assigned_between_runs(states):
    for run in states:
        run.reset()
        run(drawn(0, 1, 4))
        assert (run.states["past"][-1] == drawn(0, 1, 4)).all()
        run.states["past"] = drawn(7, 5, 4)
        run.states["last"][0, 1:] = 3
        run(drawn(1, 1, 4))
    assert (states[0].states["past"][:4] == drawn(7, 5, 4)[1:]).all()
    for name in STATES:
        assert (states[0].states[name] == states[1].states[name]).all()


#: a cache that ScatterND updates, and one of 16-bit numbers; a sum; all of them read afterwards
CACHES = """(float[1, 2, 4] x, int64[1, 2, 1] at, float[1, 6, 4] cache, float16[1, 6, 4] half, float[2, 4] sum)
    => (float[4] y, float[1, 6, 4] cache_, float16[1, 6, 4] half_, float[2, 4] sum_) {
    rows = Reshape(x, two) places = Reshape(at, many) flat = Reshape(cache, six) flat_half = Reshape(half, six)
    written = ScatterND(flat, places, rows) cache_ = Reshape(written, whole)
    small = Cast<to=10>(rows) written_half = ScatterND(flat_half, places, small) half_ = Reshape(written_half, whole)
    sum_ = Add(sum, rows) wide = Cast<to=1>(written_half) c = ReduceSum<keepdims=0>(written, first)
    d = ReduceSum<keepdims=0>(wide, first) e = ReduceSum<keepdims=0>(sum_, first) f = Add(c, d) y = Add(e, f) }"""


@pytest.mark.parametrize("text", ["opencl", "vulkan", "vulkan:text=spirv"])
def test_states_are_written_in_place(text):
    device_of(text.partition(":")[0])
    shapes = {"two": [2, 4], "many": [2, 1], "six": [6, 4], "whole": [1, 6, 4], "first": [0]}
    made = model(CACHES, **{n: np.array(s) for n, s in shapes.items()})
    names = ("cache", "half", "sum")
    runs = [tw.compile(made, target=t, states={n: f"{n}_" for n in names}) for t in (text, "cpu")]
    assert not any(s.swapped for s in runs[0].package.program.states)
    kernels = [GpuKernel.unpack(data) for data in runs[0].package.objects.values()]
    assert sum(bool(k.in_place) for k in kernels) == len(names)
    for step in range(4):
        at = np.array([[[step], [step + 2]]])
        got, want = (run(drawn(step, 1, 2, 4), at)[0] for run in runs)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        for name in names if step % 2 else ():
            assert (runs[0].states[name] == runs[1].states[name]).all(), name
    runs[0].reset()
    assert not any(runs[0].states[n].any() for n in names)


def test_timing_leaves_the_states(states):
    run = states[0]
    assert [s.swapped for s in run.package.program.states] == [True, False]
    run.reset()
    run(drawn(0, 1, 4))
    before = run.states["past"].copy()
    run.timelines([drawn(3, 1, 4)], runs=3)
    assert (run.states["past"] == before).all()


def test_entries_share_states(target):
    write = model("(float[4] x, float[4] c) => (float[4] d) { d = Add(c, x) }")
    read = model("(float[4] s, float[4] c) => (float[4] y) { y = Mul(c, s) }")
    run = tw.compile({"write": write, "read": read}, target=target, states={"c": "d"})
    for _ in range(3):
        run["write"](np.ones(4, "f4"))
    assert run["read"](np.full(4, 2, "f4"))[0].tolist() == [6] * 4
    run.reset()
    assert run["read"](np.full(4, 2, "f4"))[0].tolist() == [0] * 4


def test_entries_share_constants(target):
    w = drawn(0, 16, 16)
    first, second = (model(f"(float[4, 16] x) => (float[4, 16] y) {{ a = MatMul(x, w) y = {o}(a) }}", w=w) for o in FEW)
    run = tw.compile({"first": first, "second": second}, target=target)
    x = drawn(1, 4, 16)
    for entry, function in zip(run.entries.values(), (np.negative, np.abs), strict=True):
        np.testing.assert_allclose(entry(x)[0], function(x @ w), rtol=1e-4, atol=1e-5)
    (one,), (two,) = (e._runner.constants for e in run.entries.values())
    assert one is two


def test_after_a_run_that_failed_states_have_to_be_set(target, monkeypatch):
    run = kept(target)
    run(drawn(0, 1, 4))
    device = run._runner.device

    def fails(*args):
        raise TilewrightError("it failed")

    with monkeypatch.context() as patch:
        patch.setattr(device, "run", fails)
        with pytest.raises(TilewrightError, match="it failed"):
            run(drawn(1, 1, 4))
    for _ in range(2):
        with pytest.raises(TilewrightError, match="the state 'last' was being written when a run failed on") as e:
            run(drawn(1, 1, 4))
        assert device.name in e.value.message and "reset()" in e.value.hint
    assert (run.states["past"][-1] == drawn(0, 1, 4)).all()  # of two buffers the old one is whole
    run.reset()
    assert (run(drawn(1, 1, 4))[0] == kept("cpu")(drawn(1, 1, 4))[0]).all()


# ---- errors


def test_memory_that_is_not_there_is_one_error(target):
    device = device_of(target)
    with pytest.raises(TilewrightError, match=r"ran out of memory while allocating .* bytes") as e:
        device.allocate(1 << 60)
    assert device.name in e.value.message and e.value.hint
    device.allocate(64)


def test_after_a_run_that_failed_the_next_one_is_right(target, two, monkeypatch):
    device = device_of(target)
    context = runner_on(two, device).context()
    good = once(context)
    broken = "enqueue" if target == "opencl" else "encode"

    def fails(*args):
        if target == "opencl":
            device.cl.enqueue_copy(device.queue, device.allocate(16), device.allocate(16), byte_count=1 << 20)
        device.own.create_buffer(size=1 << 60, usage=1)

    with monkeypatch.context() as patch:
        patch.setattr(device, broken, fails)
        for _ in range(2):
            with pytest.raises(TilewrightError, match="while running a model: ") as e:
                once(context)
            assert device.name in e.value.message
    assert (once(context) == good).all()


def test_a_kernel_that_ends_with_an_error_is_named():
    device = device_of("opencl")
    two = tw.compile(model(TWO, w=drawn(0, 16, 16)), target="opencl")

    class Event:
        command_execution_status = -5

    recorded = device.record(runner_on(two, device).context().recorded().run)
    assert device.failed(recorded, [Event()]) == recorded.run.steps[0].kernel.name
    assert device.failed(recorded, []) == ""


@pytest.fixture
def own_wgpu():
    """A device of this test alone, and the module."""
    device_of("vulkan")
    from tilewright.targets.vulkan import device as module

    return module.WgpuDevice(module.adapters()[0]), module


def test_a_device_that_was_lost_says_so_each_time(own_wgpu):
    device, module = own_wgpu
    run = tw.compile(model(TWO, w=drawn(0, 16, 16)), target="vulkan")
    context = runner_on(run, device).context()
    once(context)
    device.own.destroy()
    for _ in range(2):
        with pytest.raises(TilewrightError, match="was lost while running a model") as e:
            once(context)
        assert device.name in e.value.message and "load the model again" in e.value.hint
    with pytest.raises(TilewrightError, match="was lost while allocating 64 bytes"):
        device.allocate(64)
    devices = module.Devices("vulkan", module.adapters, str, module.WgpuDevice)
    devices._open[0] = device
    assert devices.open() is not device and not devices.open().lost


@pytest.mark.parametrize("said", ["the GPU hung", "The WGPU device was lost (destroyed):"])
def test_what_wgpu_only_logs_is_not_missed(own_wgpu, monkeypatch, said, caplog):
    """An error of the GPU fails the run; that another device was lost does not."""
    device, _ = own_wgpu
    run = tw.compile(model(TWO, w=drawn(0, 16, 16)), target="vulkan")
    context = runner_on(run, device).context()
    good, real = once(context), device.fetch

    def logs(*args):
        thread = threading.Thread(target=logging.getLogger("wgpu").error, args=(said,))
        thread.start()
        thread.join()
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(device, "fetch", logs)
        if "lost" in said:
            assert (once(context) == good).all()
        else:
            with pytest.raises(TilewrightError, match=f"failed while running a model: {said}"):
                once(context)
    assert (once(context) == good).all()


# ---- threads, several devices


def test_contexts_of_several_threads(target, two):
    inputs = [drawn(i, 8, 16) for i in range(8)]
    want = [two(x)[0] for x in inputs]

    def repeat(i: int) -> bool:
        return all((two(inputs[i])[0] == want[i]).all() for _ in range(10))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(repeat, range(8)))


def test_a_device_by_number_and_by_name(target):
    made = model("(float[4] x) => (float[4] y) { y = Exp(x) }")
    names = base.find(target).device_list()
    want = tw.compile(made, target=target)(drawn(0, 4))[0]
    for which in ("0", names[0].split()[0].upper()):
        run = tw.compile(made, target=f"{target}:device={which}")
        assert (run(drawn(0, 4))[0] == want).all()
        assert run.package.target == f"{target}:device={which}"
        assert base.find(run.package.target).open_device() is device_of(target)


def test_devices_that_are_not_there(target):
    made = model("(float[4] x) => (float[4] y) { y = Exp(x) }")
    for which in ("99", "no such device"):
        with pytest.raises(UsageError, match=f"{target} has no device '{which}' here") as e:
            tw.compile(made, target=f"{target}:device={which}")(drawn(0, 4))
        assert "devices: 0: " in e.value.hint
    with pytest.raises(UsageError, match=f"{target} has no parameter 'unit'"):
        base.find(f"{target}:unit=3")
    with pytest.raises(UsageError, match="the device has no name"):
        base.find(f"{target}:device=")


def test_devices_are_listed(target, capsys):
    from tilewright.cli import app

    with pytest.raises(SystemExit):
        app(["targets"])
    name = base.find(target).device_list()[0]
    assert f"{target}:device=0" in (said := capsys.readouterr().out) and name.split()[0] in said
    (check,) = base.find(target).checks().values()
    assert check().status == "ok" and f"device=0: {name}" in check().detail


def test_mlir_may_be_loaded_after_a_device():
    """Mesa's driver brings an LLVM that does not bear another one behind it."""
    device_of("vulkan")
    code = (
        "from tilewright.targets.base import find; find('vulkan').open_device(); import torch_mlir.ir as i; i.Context()"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True)
