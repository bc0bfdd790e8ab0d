"""Several devices in one program: whatever is placed where, results are those of the processor alone."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.cuda_driver import EmulatedDriver
from support.cuda_emulator import needs_compiler
from support.drawn_graphs import drawn, given
from support.gpus import device_of
from support.onnx_models import model, node, value

import tilewright as tw
from tilewright.codegen.kernel_info import location_names
from tilewright.driver.compiler import compile_state
from tilewright.program.program import COPY
from tilewright.schedule.ceilings import Ceilings, Level
from tilewright.schedule.device_costs import of_device
from tilewright.support.errors import ModelError, PackageError, TilewrightError, UnsupportedError, UsageError
from tilewright.targets import base
from tilewright.targets.cuda import device as cuda
from tilewright.targets.cuda import stages
from tilewright.targets.cuda.driver import Driver
from tilewright.targets.gpu.describe import GpuDescription
from tilewright.targets.opencl import OpenClTarget
from tilewright.targets.vulkan import VulkanTarget

F64 = 11


@pytest.fixture(scope="module", params=["opencl", "vulkan"])
def target(request):
    device_of(request.param)
    return request.param


def calls(run, copies: bool = False):
    return [c for c in run.package.program.calls if copies or c.symbol != COPY]


def placed(run) -> dict[str, str]:
    """Devices by node."""
    names = [d.name for d in run.package.program.devices]
    return {n: names[c.device] for c in calls(run) for n in c.names}


# ---- placements that are forced


def forced(source, target: str, seed: int, **options):
    """A model whose kernels are placed by chance, by the first node of each, and the pins."""
    rng, devices = random.Random(seed), target.split("+")
    options = {"target": target, "threads": 1, **options}
    state, _ = compile_state(source, stop_after="fuse", place={"*": devices[0]}, **options)
    names = [location_names(op.location) for op in state.module.operations() if op.name == "func.call"]
    pins = {n[0]: rng.choice(devices) for n in names if n}
    return tw.compile(source, place={"*": devices[-1], **pins}, **options), pins


@pytest.mark.parametrize(
    ("target", "seed"),
    [
        ("opencl+cpu", 1),
        ("opencl+cpu", 17),
        ("cpu+vulkan", 19),
        ("vulkan:text=spirv+opencl", 22),
        ("opencl+vulkan+cpu", 10),
        ("opencl:device=0+opencl", 17),
    ],
)
def test_placements_by_chance_give_the_same(target, seed, tmp_path):
    for name in target.split("+"):
        if name != "cpu":
            device_of(name.partition(":")[0])
    source, x = drawn(seed, 6 + seed % 8), given(seed)
    want = tw.compile(source, threads=1)(*x)
    run, pins = forced(source, target, seed)
    assert {n: d for n, d in placed(run).items() if n in pins} == pins
    run.save(tmp_path / "m.tw")
    for made in (run, tw.load(tmp_path / "m.tw", threads=2)):
        for _ in range(2):
            for got, one in zip(made(*x), want, strict=True):
                np.testing.assert_allclose(got, one, rtol=1e-4, atol=1e-5)
    (line,) = run.timelines(x, 1)
    assert not np.isnan(line.begin).all(axis=0).any() and (line.seconds() >= 0).all() and line.total < 10


# ---- what devices can do

#: something for a processor between two products
WIDE = (
    [
        node("MatMul", "x w", "a", name="first"),
        node("Cast", "a", "b", to=F64, name="wide"),
        node("Exp", "b", "c", name="exp"),
        node("Cast", "c", "d", to=1, name="narrow"),
        node("MatMul", "d w", "y", name="second"),
    ],
    [value("x", (64, 64))],
    [value("y", (64, 64))],
    {"w": np.random.default_rng(0).standard_normal((64, 64)).astype("f4") / 64},
)


@pytest.fixture
def refusing(monkeypatch):
    """Vulkan without exponentials."""
    original = VulkanTarget.thread_count

    def thread_count(self, nest, constants):
        if "exp(" in str(nest):
            raise UnsupportedError("operation exp cannot be written here", stage="emit")
        return original(self, nest, constants)

    monkeypatch.setattr(VulkanTarget, "thread_count", thread_count)


def test_what_a_device_cannot_do_goes_to_the_processor(refusing):
    device_of("vulkan")
    source, x = model(*WIDE), np.random.default_rng(1).standard_normal((64, 64)).astype("f4")
    run = tw.compile(source, target="vulkan+cpu", threads=1, place={"matmul": "vulkan"})
    where = placed(run)
    assert (where["first"], where["exp"], where["second"]) == ("vulkan", "cpu", "vulkan")
    np.testing.assert_allclose(run(x)[0], tw.compile(source, threads=1)(x)[0], rtol=1e-3, atol=1e-6)
    text = run.explain()
    assert "on cpu: vulkan cannot: " in text and "vulkan -> cpu, 16.0 KiB" in text and "cpu -> vulkan, 16.0 KiB" in text
    assert "matmul" in text and ": pinned" in text
    assert [c["device"] for c in run.facts()["calls"] if "exp" in c["names"]] == ["cpu"]
    copies = [(c["from"], c["device"]) for c in run.facts()["calls"] if "bytes" in c]
    assert copies == [("cpu", "vulkan"), ("vulkan", "cpu")] * 2
    run = tw.compile(source, target="vulkan+cpu", threads=1, place={"second": "vulkan"})  # copies are not worth it
    assert placed(run)["first"] == "cpu" and calls(run)[0].symbol.startswith("matmul_cast_exp")


def test_where_no_device_can_it_is_one_error(refusing):
    with pytest.raises(UnsupportedError, match="none of the devices can run it") as e:
        tw.compile(model(*WIDE), target="vulkan+vulkan:text=spirv")
    assert "exp" in e.value.operator and "+cpu" in e.value.hint and "vulkan:text=spirv: " in e.value.message


@pytest.mark.parametrize("text", ["", ":text=spirv"])
def test_results_that_are_too_large_to_be_bound(text, monkeypatch):
    costing(monkeypatch, copy=0.0)
    nodes = [node("Add", "x row", "y"), node("ReduceMax", "y last", "z", keepdims=0)]
    outputs = [value("y", (1 << 25, 2)), value("z", (1 << 25,))]
    constants = {"row": np.float32([[1, 2]]), "last": np.array([1])}
    source = model(nodes, [value("x", (1 << 25, 1))], outputs, constants)
    state, _ = compile_state(source, target=f"vulkan{text}+cpu", stop_after="fuse")
    (large,) = (why for why in state.placement.why.values() if "cannot" in why)
    assert "a result of 268,435,456 bytes: not every device binds more than 134,217,728 at once" in large


# ---- costs


def costing(monkeypatch, copy: float) -> None:
    """Let devices be far faster than the processor, and a copy take so many seconds."""
    costs = of_device(1e15, 1e13, threads=1, launch=1e-9, copy=copy, copy_bytes=1e13)
    monkeypatch.setattr(GpuDescription, "device_costs", lambda self, threads: costs)


def test_costs_decide(monkeypatch):
    source = drawn(10, 8)
    costing(monkeypatch, copy=0.0)
    state, _ = compile_state(source, target="opencl+cpu", stop_after="fuse")
    assert 'tw.device = "opencl"' in state.module.text() and 'tw.device = "cpu"' not in state.module.text()
    assert all("on opencl, " in why for why in state.placement.why.values())
    costing(monkeypatch, copy=1.0)
    state, _ = compile_state(source, target="opencl+cpu", stop_after="fuse")
    assert 'tw.device = "opencl"' not in state.module.text()
    assert "copies would take longer" in str(state.placement.why)


def test_measured_ceilings_count_if_there_are_any(monkeypatch, tmp_path):
    """A device that was found to be slow gets nothing, whatever its record says."""
    from tilewright.schedule import ceilings

    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    costing(monkeypatch, copy=0.0)
    slow = Ceilings("a slow one", 1, {"f32": 1e3}, (Level("memory", None, 1e3, 1e3, 1e3),))
    monkeypatch.setattr(OpenClTarget, "machine_name", lambda self: "a slow one")
    monkeypatch.setattr(OpenClTarget, "measure_ceilings", lambda self, threads: slow)
    assert ceilings.known(base.find("opencl"), 1) is None
    assert ceilings.ceilings(base.find("opencl"), 1) == slow == ceilings.known(base.find("opencl"), 1)
    state, _ = compile_state(drawn(10, 8), target="opencl+cpu", stop_after="fuse")
    assert 'tw.device = "opencl"' not in state.module.text()


# ---- pins


#: nodes that become one operator
GELU = (
    [
        node("Div", "x root", "h"),
        node("Erf", "h", "e", name="erf"),
        node("Add", "e one", "a"),
        node("Mul", "x a", "m"),
        node("Mul", "m half", "y", name="halve"),
    ],
    [value("x", (4, 16))],
    [value("y", (4, 16))],
    {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)},
)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"exp": "cuda"}, "names the device 'cuda', and there is no such device"),
        ({"exq": "cpu"}, "names 'exq', and there is no such node, operator or kernel"),
        ({"exp": "vulkan"}, "puts it on vulkan, which cannot run it: "),
        ({"erf": "cpu", "halve": "vulkan"}, "'erf' on cpu and 'halve' on vulkan, and they are one kernel"),
    ],
)
def test_pins_that_make_no_sense(pins, message, refusing):
    with pytest.raises(UsageError, match=message) as e:
        tw.compile(model(*(GELU if "erf" in pins else WIDE)), target="vulkan+cpu", place=pins)
    assert e.value.hint


def test_pins_of_one_device_and_of_open_shapes():
    with pytest.raises(UsageError, match="option 'place' is for programs of several devices, and opencl is one") as e:
        tw.compile(model(*WIDE), target="opencl", place={"exp": "cpu"})
    assert "opencl+cpu" in e.value.hint
    open_ = model([node("Relu", "x", "y")], [value("x", ("n", 4))], [value("y")])
    with pytest.raises(UsageError, match="no kernels yet that option 'place' could name"):
        tw.compile(open_, target="opencl+cpu", place={"relu": "cpu"})


def test_models_of_open_shapes_run():
    device_of("opencl")
    open_ = model([node("MatMul", "x w", "y")], [value("x", ("n", 4))], [value("y")], {"w": np.eye(4, dtype="f4")})
    x = np.ones((3, 4), "f4")
    assert (tw.compile(open_, target="opencl+cpu", threads=1)(x)[0] == x).all()


# ---- states

#: a step of a decoder: a row of a cache is written, all of it is read, a window that has two buffers, a counter
STEP = (
    [
        node("ScatterElements", "cache rows x", "next", axis=0, name="write"),
        node("MatMul", "x turned", "scores", name="score"),
        node("Transpose", "next", "turned", name="turn"),
        node("Softmax", "scores", "weights", axis=-1, name="weigh"),
        node("MatMul", "weights next", "found", name="read"),
        node("Concat", "rest found", "window", axis=0, name="keep"),
        node("Slice", "past one end zero", "rest", name="cut"),
        node("ReduceMax", "window zero", "y", name="largest"),
        node("Add", "count one", "more", name="count"),
    ],
    [
        value("x", (1, 8)),
        value("rows", (1, 8), element=7),
        value("cache", (6, 8)),
        value("past", (3, 8)),
        value("count", (1,), element=7),
    ],
    [value("y", (1, 8)), value("next", (6, 8)), value("window", (3, 8)), value("more", (1,), element=7)],
    {"one": np.array([1]), "end": np.array([3]), "zero": np.array([0])},
)
KEPT = {"cache": "next", "past": "window", "count": "more"}


def step():
    nodes, *rest = STEP
    order = [0, 2, 1, 3, 4, 6, 5, 7, 8]
    return model([nodes[i] for i in order], *rest)


def stepped(run, steps: int = 4, begin: int = 0):
    rng = np.random.default_rng(begin)
    return [run(rng.standard_normal((1, 8)).astype("f4"), np.full((1, 8), i))[0] for i in range(steps)]


PLACES = (
    {"*": "cpu"},
    {"write": "cpu"},
    {"write": "device", "weigh": "cpu", "count": "cpu"},
    {"keep": "cpu", "count": "device"},
)


@pytest.fixture(scope="module")
def alone():
    return tw.compile(step(), threads=1, states=KEPT)


@pytest.mark.parametrize("places", PLACES)
def test_states_live_where_they_are_used(target, places, alone):
    pins = {"*": target} | {n: target if d == "device" else d for n, d in places.items()}
    run = tw.compile(step(), target=f"{target}+cpu", threads=1, states=KEPT, place=pins)
    infos = {s.name: s for s in run.package.program.states}
    assert infos["past"].swapped and infos["cache"].tensor.device == (pins.get("write", pins["*"]) == target)
    alone.reset()
    for got, want in zip(stepped(run), stepped(alone), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    for name in KEPT:
        np.testing.assert_allclose(run.states[name], alone.states[name], rtol=1e-5, atol=1e-6)
    run.states["past"] = alone.states["past"][::-1]
    alone.states["past"] = alone.states["past"][::-1].copy()
    before = {n: run.states[n].copy() for n in KEPT}
    run.timelines([np.zeros((1, 8), "f4"), np.zeros((1, 8), "i8")], 2)
    for name in KEPT:
        assert (run.states[name] == before[name]).all()
    for got, want in zip(stepped(run, 2, 7), stepped(alone, 2, 7), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_state_lies_where_that_takes_the_fewest_copies():
    """Read on both devices, and its next value is made on the second."""
    source = model(
        [node("Relu", "past", "y", name="here"), node("MatMul", "past x", "next", name="there")],
        [value("x", (8, 8)), value("past", (8, 8))],
        [value("y", (8, 8)), value("next", (8, 8))],
    )
    for device in ("opencl", "cpu"):
        other = "cpu" if device == "opencl" else "opencl"
        pins = {"here": other, "there": device}
        run = tw.compile(source, target="opencl+cpu", threads=1, states={"past": "next"}, place=pins)
        (state,) = run.package.program.states
        assert run.package.program.devices[state.tensor.device].name == device
        assert ('tw.device = "opencl"' in run.package.levels["fuse"].split("@main")[1]) == (device == "opencl")


def test_entries_share_a_state_on_different_devices(target):
    def one(operator: str, name: str):
        return model([node(operator, "c x", "d", name=name)], [value("x", (4,)), value("c", (4,))], [value("d", (4,))])

    run = tw.compile(
        {"here": one("Add", "plus"), "there": one("Mul", "times")},
        target=f"{target}+cpu",
        threads=1,
        states={"c": "d"},
        place={"here:plus": "cpu", "there:times": target},
    )
    assert [e.package.program.states[0].tensor.device for e in run.entries.values()] == [0, 1]
    for i in range(3):
        run["here"](np.ones(4, "f4"))
        run["there"](np.full(4, 2, "f4"))
        assert run.states["c"].tolist() == [2 ** (i + 2) - 2] * 4


def test_after_a_run_that_failed_states_have_to_be_set(target, monkeypatch, alone):
    pins = {"*": target, "count": "cpu", "weigh": "cpu"}
    run = tw.compile(step(), target=f"{target}+cpu", threads=1, states=KEPT, place=pins)
    stepped(run)
    (device,) = run._runner.devices.values()

    def fails(*args):
        raise TilewrightError("it failed")

    with monkeypatch.context() as patch:
        patch.setattr(device, "run", fails)
        with pytest.raises(TilewrightError, match="it failed"):
            stepped(run)
    for _ in range(2):
        with pytest.raises(TilewrightError, match="was being written when a run failed"):
            stepped(run)
    run.reset()
    alone.reset()
    for got, want in zip(stepped(run), stepped(alone), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# ---- the whole way


def test_verified(target):
    source = drawn(2, 10)
    run, _ = forced(source, f"{target}+cpu", 3, verify=True)
    assert "verified" in run.explain()


def test_the_placement_is_in_files(target, tmp_path):
    source, x = drawn(10, 8), given(10)
    whole, pins = forced(source, f"{target}+cpu", 10)
    options = {"target": f"{target}+cpu", "threads": 1}
    tw.compile(source, dump=str(tmp_path), place={"*": "cpu", **pins}, **options)
    (path,) = tmp_path.glob("*-fuse.mlir")
    _, run = compile_state(path, start_after="fuse", **options)
    assert placed(run) == placed(whole)
    for got, want in zip(run(*x), whole(*x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    tw.compile(source, target="cpu", dump=str(tmp_path / "cpu"), threads=1)
    (path,) = (tmp_path / "cpu").glob("*-fuse.mlir")
    with pytest.raises(ModelError, match="is on no device, and the target has cpu, "):
        compile_state(path, start_after="fuse", **options)


def test_several_threads_of_the_host(target):
    big = model(
        [node("MatMul", "x w", "a", name="a"), node("Softmax", "a", "b", name="b"), node("MatMul", "b w", "y")],
        [value("x", (256, 256))],
        [value("y", (256, 256))],
        {"w": np.random.default_rng(0).standard_normal((256, 256)).astype("f4")},
    )
    run = tw.compile(big, target=f"{target}+cpu", threads=2, place={"matmul": "cpu", "softmax": target})
    x = np.random.default_rng(1).standard_normal((256, 256)).astype("f4")
    np.testing.assert_allclose(run(x)[0], tw.compile(big, threads=2)(x)[0], rtol=1e-4, atol=1e-5)
    assert run.threads == 2
    profile = run.profile([x], repeats=2)
    text = str(profile)
    assert f"{target} -> cpu: " in text and "in 1 copy of 256.0 KiB" in text and "\ncpu: " in text
    assert {e.device for e in profile.calls} == {"cpu", target, f"{target} -> cpu", f"cpu -> {target}"}
    assert len(profile.kernels) == 4 and profile.html() and profile.trace()


def test_scheduled_by_hand(target):
    """A trace for a kernel, on whichever device it is."""
    source = model([node("Add", "x x", "y")], [value("x", (64,))], [value("y", (64,))])
    for device, trace in ((target, 's.bind("i0", "block.x")'), ("cpu", 's.unroll("i0")')):
        run = tw.compile(
            source, target=f"{target}+cpu", threads=1, place={"add": device}, schedules={"add": trace}, tuned=False
        )
        assert (run(np.ones(64, "f4"))[0] == 2).all()
        assert trace.split("(")[0] in str(run.facts()["kernels"])
    with pytest.raises(UsageError, match="names 'mul', and there is no such kernel"):
        tw.compile(source, target=f"{target}+cpu", schedules={"mul": 's.unroll("i0")'})


def test_results_that_are_inputs(target):
    """Nothing runs on the host but copies, which need no code of the processor's."""
    source = model(
        [node("Identity", "x", "a"), node("Relu", "x", "y")], [value("x", (5,))], [value("a", (5,)), value("y", (5,))]
    )
    run = tw.compile(source, target=f"{target}+{target}:device=0", threads=1)
    x = np.float32([-1, 2, -3, 4, 5])
    assert [a.tolist() for a in run(x)] == [x.tolist(), [0, 2, 0, 4, 5]]
    assert len(run.timelines([x], 1)[0].seconds()) == len(run.package.program.calls)
    assert not any(name.startswith("part") for name in run.package.objects)


def test_calls_of_several_threads(target):
    source, x = drawn(2, 10), [given(i) for i in range(4)]
    run, _ = forced(source, f"{target}+cpu", 3)
    want = [[a.copy() for a in run(*arrays)] for arrays in x]

    def repeat(i: int) -> bool:
        return all((a == b).all() for _ in range(5) for a, b in zip(run(*x[i]), want[i], strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(repeat, range(4)))


def test_values_that_are_no_words_cross(target):
    """Bytes and halves, there and back, and a result without elements."""
    size = 3
    nodes = [
        node("Greater", "x zero", "a", name="compare"),
        node("Not", "a", "b", name="turn"),
        node("Cast", "x", "h", to=10, name="half"),
        node("Add", "h h", "i", name="twice"),
        node("Cast", "i", "j", to=2, name="bytes"),
        node("Slice", "x none none none", "empty", name="cut"),
        node("Relu", "empty", "nothing", name="relu"),
    ]
    outputs = [value("b", (size,), 9), value("i", (size,), 10), value("j", (size,), 2), value("nothing", (0,))]
    source = model(nodes, [value("x", (size,))], outputs, {"zero": np.float32(0), "none": np.array([0])})
    x = np.arange(size, dtype="f4") - 1
    x[x < 0] = 5
    want = tw.compile(source, threads=1)(x)
    for there in ({"compare", "half", "cut"}, {"turn", "twice", "bytes", "relu"}):
        pins = {n.name: target if n.name in there else "cpu" for n in nodes}
        run = tw.compile(source, target=f"{target}+cpu", threads=1, place=pins)
        for got, one in zip(run(x), want, strict=True):
            assert got.dtype == one.dtype and (got == one).all()


# ---- names, drivers


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("opencl+c", "c cannot stand beside opencl"),
        ("opencl+opencl", "opencl cannot stand beside opencl"),
        ("vulkan+cpu+systolic32", "systolic32 cannot stand beside vulkan and cpu"),
        ("opencl+cpu+nothing", "unknown target 'nothing'"),
        ("cuda:sm_9+cpu", "there is no GPU 'sm_9'"),
        ("opencl+cpu:threads=2", "has no parameters"),
    ],
)
def test_names_that_are_wrong(name, message):
    with pytest.raises(UsageError, match=message):
        base.find(name)


def test_names():
    found = base.find("cuda:sm_90a,device=1+opencl+cpu")
    assert found.name == "cuda:sm_90a,device=1+opencl+cpu"
    assert tuple(found.device_names) == ("cpu", "cuda:sm_90a,device=1", "opencl")
    assert tuple(base.find("cpu+opencl").device_names) == ("cpu", "opencl")
    assert base.find("opencl:device=0+opencl:device=1").device_names[0] == "host"


def test_without_a_driver_code_is_made_and_a_run_says_what_to_install(monkeypatch, tmp_path):
    from tilewright.targets.opencl import device

    def none():
        raise UsageError("OpenCL has no driver here", hint=device.HINT)

    monkeypatch.setattr(device, "DEVICES", device.Devices("opencl", none, str, lambda d: d))
    source = model([node("Relu", "x", "y")], [value("x", (5,))], [value("y", (5,))])
    run = tw.compile(source, target="opencl+cpu", threads=1, place={"relu": "opencl"})
    run.save(tmp_path / "m.tw")
    for made in (run, tw.load(tmp_path / "m.tw")):
        with pytest.raises(UsageError, match="OpenCL has no driver here") as e:
            made(np.zeros(5, "f4"))
        assert "pip install" in e.value.hint
    here = tw.compile(source, target="opencl+cpu", threads=1, place={"relu": "cpu"})
    assert here(np.ones(5, "f4"))[0].tolist() == [1] * 5  # nothing of it needs the device


def test_targets_and_doctor_tell_of_it(capsys):
    from tilewright.cli import app
    from tilewright.report.doctor import examine

    with pytest.raises(SystemExit):
        app(["targets"])
    said = " ".join(capsys.readouterr().out.split())
    assert "A+B" in said and "several of cpu, cuda, opencl, vulkan in one program" in said
    (check,) = (c for c in examine() if c.name == "several devices")
    assert check.status in ("ok", "note") and ("opencl" in check.detail or check.status == "note")


def test_the_command_line(target, capsys, tmp_path):
    import onnx

    from tilewright.cli import app

    onnx.save(model(*WIDE), tmp_path / "m.onnx")
    for command, said in (
        (["explain", "--place", f"first={target}", "--place", "exp=cpu"], f"{target} -> cpu, "),
        (["run", "--place", "*=cpu"], "y"),
    ):
        with pytest.raises(SystemExit) as e:
            app([command[0], str(tmp_path / "m.onnx"), "--target", f"{target}+cpu", *command[1:], "--threads", "1"])
        assert not e.value.code and said in capsys.readouterr().out


# ---- NVIDIA's, emulated


@needs_compiler
def test_cuda_beside_the_processor(monkeypatch):
    emitted, original = {}, stages.emit

    def recorded(nest, machine):
        emitted[nest.name] = original(nest, machine)
        return emitted[nest.name]

    monkeypatch.setattr(stages, "emit", recorded)
    source = model(*WIDE[:1], [value("x", (8, 16))], [value("y", (8, 16))], {"w": np.eye(16, dtype="f4") / 4})
    run = tw.compile(source, target="cuda+cpu", threads=1, place={"matmul": "cuda", "exp": "cpu"}, states=None)
    functions = EmulatedDriver(emitted)
    devices = cuda.Devices("cuda", lambda: ["one"], str, lambda d: cuda.CudaDevice(Driver(functions)))
    monkeypatch.setattr(cuda, "DEVICES", devices)
    x = np.random.default_rng(1).standard_normal((8, 16)).astype("f4")
    for _ in range(2):
        np.testing.assert_allclose(run(x)[0], np.exp(x / 4) / 4, rtol=1e-5)
    assert len(functions.launches) == 4 and functions.calls.count("cuGraphLaunch") == 4
    assert len(run.timelines([x], 1)[0].seconds()) == 7 == len(run.package.program.calls)
    functions.capability = (7, 5)
    devices.forget()
    with pytest.raises(PackageError, match="the code is for sm_80, the GPU is sm_75"):
        tw.compile(source, target="cuda+cpu", threads=1, place={"matmul": "cuda", "exp": "cpu"})(x)
