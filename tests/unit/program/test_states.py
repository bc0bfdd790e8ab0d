"""States: inputs that live between calls, against a loop that feeds outputs back."""

from __future__ import annotations

import os
import struct
import sys
import threading
from math import prod

import numpy as np
import pytest
from onnx import TensorProto, helper, save
from onnx.reference import ReferenceEvaluator
from support.onnx_models import model, node, value

import tilewright as tw
from tilewright.cli import main
from tilewright.driver.bisect import bisect
from tilewright.driver.compiler import compile_state
from tilewright.ir.graph_builder import Maker
from tilewright.ir.types import Type
from tilewright.program import package as container
from tilewright.program.program import COPY, BufferRef, Call, Program, StateInfo, TensorInfo
from tilewright.program.states import StateBuffers
from tilewright.schedule.inplace import COPIES
from tilewright.schedule.nest import For, path_to, stores, walk_stmts
from tilewright.support.errors import InputError, PackageError, UnsupportedError, UsageError
from tilewright.targets import base
from tilewright.tune import tasks

LENGTH, WIDTH = 12, 16


def mean():
    """A running mean: the next value may be written over the old one."""
    return model(
        [node("Mul", "past decay", "kept"), node("Add", "kept x", "present"), node("MatMul", "present w", "y")],
        [value("x", [4, 32]), value("past", [4, 32])],
        [value("y", [4, 8]), value("present", [4, 32])],
        {"decay": np.float32(0.5), "w": np.random.default_rng(0).standard_normal((32, 8)).astype(np.float32)},
    )


def window():
    """The last inputs: every row moves, so the next value needs a buffer of its own."""
    return model(
        [
            node("Slice", "past one end zero", "rest"),
            node("Concat", "rest x", "present", axis=0),
            node("ReduceMax", "present zero", "y", keepdims=0),
        ],
        [value("x", [1, 8]), value("past", [6, 8])],
        [value("y", [8]), value("present", [6, 8])],
        {"one": np.array([1]), "end": np.array([6]), "zero": np.array([0])},
    )


def attention(write):
    """A step of attention with caches of keys and of values, of a fixed length, written at a position: `write` says by
    which operator."""
    rng = np.random.default_rng(1)
    nodes = [node("MatMul", f"x w{c}", c) for c in "qkv"]
    for c in "kv":
        if write == "where":
            nodes.append(node("Where", f"here {c} past_{c}", f"present_{c}"))
        elif write == "scatter nd":
            nodes.append(node("ScatterND", f"past_{c} position {c}", f"present_{c}"))
        else:
            nodes.append(node("ScatterElements", f"past_{c} rows {c}", f"present_{c}", axis=0))
    nodes = [
        node("Equal", "places position", "here"),
        node("Greater", "places position", "later"),
        node("Expand", "position row", "rows"),
        *nodes,
        node("Transpose", "present_k", "keys", perm=[1, 0]),
        node("MatMul", "q keys", "scores"),
        node("Reshape", "later flat", "masked"),
        node("Where", "masked low scores", "seen"),
        node("Softmax", "seen", "weights", axis=-1),
        node("MatMul", "weights present_v", "y"),
    ]
    caches = [value(f"{when}_{c}", [LENGTH, WIDTH]) for when in ("past", "present") for c in "kv"]
    return model(
        nodes,
        [value("x", [1, WIDTH]), value("position", [1, 1], TensorProto.INT64), *caches[:2]],
        [value("y", [1, WIDTH]), *caches[2:]],
        {
            "places": np.arange(LENGTH)[:, None],
            "row": np.array([1, WIDTH]),
            "flat": np.array([1, LENGTH]),
            "low": np.float32(-1e9),
            **{f"w{c}": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4 for c in "qkv"},
        },
    )


def lstm():
    rng = np.random.default_rng(2)
    size = [1, 2, 8]
    return model(
        [helper.make_node("LSTM", ["x", "w", "r", "b", "", "h", "c"], ["y", "h2", "c2"], hidden_size=8)],
        [value("x", [1, 2, 5]), value("h", size), value("c", size)],
        [value("y", [1, 1, 2, 8]), value("h2", size), value("c2", size)],
        {
            "w": rng.standard_normal((1, 32, 5)).astype(np.float32),
            "r": rng.standard_normal((1, 32, 8)).astype(np.float32),
            "b": rng.standard_normal((1, 64)).astype(np.float32),
        },
    )


CACHES = {"past_k": "present_k", "past_v": "present_v"}
#: model, its states, and which of them are written in place
MODELS = {
    "mean": (mean, {"past": "present"}, {"past"}),
    "window": (window, {"past": "present"}, set()),
    "attention where": (lambda: attention("where"), CACHES, set(CACHES)),
    "attention scatter": (lambda: attention("scatter"), CACHES, set(CACHES)),
    "attention scatter nd": (lambda: attention("scatter nd"), CACHES, set(CACHES)),
    "lstm": (lstm, {"h": "h2", "c": "c2"}, None),
}


def inputs_of(made, states, steps, seed=3):
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(steps):
        row = {}
        for i in made.graph.input:
            shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
            if i.name == "position":
                row[i.name] = np.full(shape, step % LENGTH)
            elif i.name not in states:
                row[i.name] = rng.standard_normal(shape).astype(np.float32)
        rows.append(row)
    return rows


def fed_back(made, states, rows):
    """What a loop over single calls gives: the outputs of every step that are no states, and the states at last."""
    evaluator = ReferenceEvaluator(made)
    names = [o.name for o in made.graph.output]
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in made.graph.input}
    kept = {n: np.zeros(shapes[n], np.float32) for n in states}
    steps = []
    for row in rows:
        made_now = dict(zip(names, evaluator.run(None, {**row, **kept}), strict=True))
        kept = {n: made_now[o] for n, o in states.items()}
        steps.append([a for n, a in made_now.items() if n not in states.values()])
    return steps, kept


def close(got, expected):
    assert got.shape == expected.shape and got.dtype == expected.dtype
    assert np.abs(got - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("name", MODELS)
def test_like_a_loop_that_feeds_back(name):
    make, states, in_place = MODELS[name]
    made = make()
    rows = inputs_of(made, states, 7)
    expected, kept = fed_back(made, states, rows)
    run = tw.compile(made, states=states, threads=1)
    program = run.package.program
    assert [t.name for t in run.inputs] == list(rows[0])
    assert not {t.name for t in run.outputs} & set(states.values())
    assert {s.name: s.output for s in program.states} == dict(run_states(made, states))
    if in_place is not None:
        assert {s.name for s in program.states if not s.swapped} == in_place
    assert not [c for c in program.calls if c.symbol == COPY]
    for row, outputs in zip(rows, expected, strict=True):
        for got, want in zip(run(row), outputs, strict=True):
            close(got, want)
    for state in states:
        close(run.states[state], kept[state])
    two = tw.compile(made, states=states, threads=2)
    once = tw.compile(made, states=states, threads=1)
    for row in rows:
        assert all(np.array_equal(a, b) for a, b in zip(two(row), once(row), strict=True))


def run_states(made, states):
    """In the order of the model's inputs."""
    return [(i.name, states[i.name]) for i in made.graph.input if i.name in states]


def test_in_place_is_the_same_memory_and_two_buffers_take_turns():
    x = np.ones((4, 32), np.float32)
    run = tw.compile(mean(), states={"past": "present"}, threads=1)
    before = run.states["past"]
    run(x)
    run(x)
    assert run.states["past"].ctypes.data == before.ctypes.data
    assert np.array_equal(before, np.full((4, 32), 1.5, np.float32))
    assert run.memory.states == 4 * 4 * 32 and run.memory.peak >= run.memory.states

    run = tw.compile(window(), states={"past": "present"}, threads=1)
    places = []
    for i in range(4):
        places.append(run.states["past"].ctypes.data)
        run(np.full((1, 8), i, np.float32))
    assert places[0] == places[2] != places[1] == places[3]
    assert run.states["past"][:, 0].tolist() == [0, 0, 0, 1, 2, 3]
    assert run.memory.states == 2 * 4 * 6 * 8


@pytest.mark.parametrize("write", ["scatter", "scatter nd"])
def test_a_cache_that_is_scattered_to_is_not_copied(write):
    """Of the cache, one row is written. What would copy the rest stands in loops that do not run in place."""
    nests = compile_state(attention(write), states=CACHES, stop_after="schedule", cache=False)[0].nests
    (nest,) = (n for name, n in nests.items() if name.startswith("scatter"))
    copies = {id(s) for f in walk_stmts(nest.body) if isinstance(f, For) and f.note(COPIES) for s in stores(f.body)}
    moved = []
    for s in stores(nest.body):
        assert (id(s) in copies) == any(x.buffer == "p0" for x in s.loads)
        path = path_to(nest.body, lambda x, s=s: x is s)
        moved += [] if id(s) in copies else [prod(f.trip for f in path if isinstance(f, For) and not f.bound)]
    rows = "register" not in str(nest)  # ScatterND keeps the position in a register first
    assert moved == ([WIDTH] if rows else [1, *moved[1:-1], WIDTH])
    program = tw.compile(attention(write), states=CACHES, threads=1).package.program
    caches = [c for c in program.calls if c.symbol == nest.name]
    assert len(caches) == 2 and all(c.args[0] == c.args[-1] and c.args[0].space == "state" for c in caches)


def test_a_scatter_beside_its_data():
    """Where the old value is read later it is copied, whole."""
    made = model(
        [
            node("ScatterElements", "past rows x", "present", axis=0),
            node("MatMul", "present w", "a"),
            node("MatMul", "a past", "y"),
        ],
        [value("x", [1, 9]), value("rows", [1, 9], TensorProto.INT64), value("past", [9, 9])],
        [value("y", [9, 9]), value("present", [9, 9])],
        {"w": np.random.default_rng(0).standard_normal((9, 9)).astype(np.float32)},
    )
    rows = [{"x": np.full((1, 9), i, np.float32), "rows": np.full((1, 9), i)} for i in range(1, 5)]
    expected, kept = fed_back(made, {"past": "present"}, rows)
    run = tw.compile(made, states={"past": "present"}, threads=2)
    assert run.package.program.states[0].swapped
    for row, want in zip(rows, expected, strict=True):
        close(run(row)[0], want[0])
    close(run.states["past"], kept["past"])


def test_executables_have_states_of_their_own(tmp_path):
    x = np.ones((4, 32), np.float32)
    one = tw.compile(mean(), states={"past": "present"}, threads=1)
    other = tw.compile(mean(), states={"past": "present"}, threads=1)
    one(x)
    one.save(tmp_path / "m.tw")
    loaded = tw.load(tmp_path / "m.tw", threads=1)
    assert one.states["past"].any() and not other.states["past"].any()
    assert not loaded.states["past"].any()  # a package has the declaration, not the values
    assert repr(loaded.states) == "<States past: f32[4, 32] <- present, in place>"
    assert repr(loaded) == (
        "<Executable (x: f32[4, 32]) -> (y: f32[4, 8]), states (past: f32[4, 32] <- present, in place), cpu, 1 thread>"
    )
    for run in (one, other, loaded):
        run.states["past"] = np.full((4, 32), 2, np.float32)
    assert np.array_equal(one(x)[0], loaded(x)[0]) and np.array_equal(one(x)[0], loaded(x)[0])


def test_read_assign_and_reset():
    x = np.ones((4, 32), np.float32)
    run = tw.compile(mean(), states={"past": "present"}, threads=1)
    first = run(x)[0].copy()
    assert list(run.states) == ["past"] and len(run.states) == 1 and "present" not in run.states
    run.reset()
    assert not run.states["past"].any()
    assert np.array_equal(run(x)[0], first)
    run.states["past"] = np.zeros((4, 32), np.float32)
    assert np.array_equal(run(x=x)[0], first)
    run.states["past"][1:] = 0
    assert np.array_equal(run({"x": x}, out=[np.empty((4, 8), np.float32)])[0][1:], first[1:])
    with pytest.raises(InputError, match=r"state 'past' has f64\[4, 32\], the model takes f32\[4, 32\]"):
        run.states["past"] = np.zeros((4, 32))
    with pytest.raises(InputError, match=r"there is no state 'past_key'\n.*\n.*states: past"):
        run.states["past_key"] = x
    with pytest.raises(KeyError):
        run.states["present"]
    with pytest.raises(InputError, match="the model takes 1 input, 2 were given"):
        run(x, x)


def test_without_states_there_are_none():
    run = tw.compile(mean(), threads=1)
    assert dict(run.states) == {} and run.memory.states == 0 and run.package.program.states == ()
    run.reset()
    with pytest.raises(InputError, match="this executable has no states"):
        run.states["past"] = np.zeros((4, 32), np.float32)


def test_calls_at_the_same_time_run_one_after_the_other():
    """Every call adds one to each element, whichever thread makes it; no addition is lost."""
    made = model(
        [node("Add", "past x", "present"), node("Identity", "x", "y")],
        [value("x", [300]), value("past", [300])],
        [value("y", [300]), value("present", [300])],
    )
    run = tw.compile(made, states={"past": "present"}, threads=2)
    one = np.ones(300, np.float32)

    def work():
        for _ in range(25):
            run(one)

    workers = [threading.Thread(target=work) for _ in range(10)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert np.array_equal(run.states["past"], np.full(300, 250, np.float32))
    assert len(run._contexts) == 1
    run.close()
    run(one)
    assert run.states["past"][0] == 251


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_a_copy():
    run = tw.compile(mean(), states={"past": "present"}, threads=1)
    x = np.ones((4, 32), np.float32)
    run(x)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(x)
            code = 0 if run.states["past"][0, 0] == 1.5 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run.states["past"][0, 0] == 1.0


@pytest.mark.parametrize("name", ["mean", "window"])
def test_profile_and_time_leave_the_states(name):
    make, states, _ = MODELS[name]
    made = make()
    run = tw.compile(made, states=states, threads=2)
    (row,) = inputs_of(made, states, 1)
    run(row)
    before = run.states["past"].copy()
    assert run.time_calls(row, 3).shape == (3, len(run.package.program.calls))
    assert np.array_equal(run.states["past"], before)
    want = fed_back(made, states, [row, row])[0][1][0]
    close(run(row)[0], want)


@pytest.mark.parametrize("name", MODELS)
def test_verified(name):
    make, states, _ = MODELS[name]
    run = tw.compile(make(), states=states, threads=2, verify=True)
    assert run.package.report["notes"][-1].startswith("verified")
    assert not any(run.states[s].any() for s in states)


def test_explained():
    run = tw.compile(window(), states={"past": "present"}, threads=1)
    assert "\nstate  past: f32[6, 8] <- present, two buffers\n" in run.explain()
    facts = run.facts()
    assert facts["states"] == [
        {"name": "past", "dtype": "f32", "shape": [6, 8], "output": "present", "in_place": False}
    ]
    assert facts["memory"]["states"] == 384 and facts["inputs"] == [{"name": "x", "dtype": "f32", "shape": [1, 8]}]
    assert "<td>state</td><td>past</td>" in run._repr_html_()
    assert "next0[0:192]" in str(run.package.program) and "state0[0:192]" in str(run.package.program)


# ---- what a state may be ----


def test_a_state_that_stays_and_one_that_is_the_input():
    """The first is never written, the second is a copy of an input, the third the old value of another."""
    made = model(
        [
            node("Identity", "a", "a2"),
            node("Identity", "x", "b2"),
            node("Identity", "b", "c2"),
            node("Add", "a c", "y"),
        ],
        [value("x", [3]), *[value(n, [3]) for n in "abc"]],
        [value("y", [3]), *[value(f"{n}2", [3]) for n in "abc"]],
    )
    states = {n: f"{n}2" for n in "abc"}
    run = tw.compile(made, states=states, threads=1)
    run.states["a"] = np.full(3, 10, np.float32)
    ys = [run(np.full(3, i, np.float32))[0][0] for i in range(1, 6)]
    assert ys == [10, 10, 11, 12, 13]
    assert run.states["a"].tolist() == [10] * 3 and run.states["c"].tolist() == [4] * 3


def test_the_old_value_is_still_an_output():
    made = model(
        [node("Add", "past x", "present"), node("Identity", "past", "y")],
        [value("x", [5]), value("past", [5])],
        [value("y", [5]), value("present", [5])],
    )
    run = tw.compile(made, states={"past": "present"}, threads=1)
    assert [run(np.ones(5, np.float32))[0][0] for _ in range(4)] == [0, 1, 2, 3]


def test_a_later_kernel_reads_the_old_value():
    """The next value is there before the old one was read for the last time: it must not be written over it."""
    made = model(
        [
            node("Add", "past x", "present"),
            node("MatMul", "present w", "a"),
            node("MatMul", "a past", "y"),
        ],
        [value("x", [6, 6]), value("past", [6, 6])],
        [value("y", [6, 6]), value("present", [6, 6])],
        {"w": np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)},
    )
    states = {"past": "present"}
    rows = inputs_of(made, states, 4)
    expected, _ = fed_back(made, states, rows)
    run = tw.compile(made, states=states, threads=2)
    assert run.package.program.states[0].swapped
    for row, want in zip(rows, expected, strict=True):
        close(run(row)[0], want[0])


def test_only_states():
    """A program without outputs, and with a state of no elements."""
    made = model(
        [node("Add", "n one", "n2"), node("Identity", "e", "e2")],
        [value("n", [1]), value("e", [0])],
        [value("n2", [1]), value("e2", [0])],
        {"one": np.array([1], np.float32)},
    )
    run = tw.compile(made, states={"n": "n2", "e": "e2"}, threads=1)
    assert run() == [] and run() == []
    assert run.states["n"].tolist() == [2.0] and run.states["e"].shape == (0,)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (
            {"pasd": "present"},
            "the model has no input 'pasd'\n  stage: import\n  hint: did you mean 'past'? its inputs",
        ),
        ({"past": "presence"}, "the model has no output 'presence'"),
        ({"past": None}, "the model has no output None"),
        ({"past": "y"}, "input 'past' is tensor<4x32xf32>, and output 'y', the next value of this state, is"),
        ({"past": "present", "x": "present"}, "output 'present' is the next value of two states"),
        (["past"], "option 'states' must be a dict or None, not ['past']"),
    ],
)
def test_states_that_do_not_fit(states, message):
    with pytest.raises(UsageError) as e:
        tw.compile(mean(), states=states)
    assert message in str(e.value)


def test_dtypes_must_be_equal():
    made = model(
        [node("Cast", "past", "present", to=TensorProto.DOUBLE)],
        [value("past", [2])],
        [value("present", [2], TensorProto.DOUBLE)],
    )
    with pytest.raises(UsageError, match=r"is tensor<2xf32>, and output 'present', .* is tensor<2xf64>"):
        tw.compile(made, states={"past": "present"})


def test_what_has_no_states_says_so():
    for target in ("c", "cortex-m4"):
        assert not base.find(target).keeps_states
        with pytest.raises(UnsupportedError, match=f"target '{target}' has no states.*\n.*\n.*with states: cpu"):
            tw.compile(mean(), states={"past": "present"}, target=target)
    with pytest.raises(UsageError, match="precision 'auto' compares single calls"):
        tw.compile(mean(), states={"past": "present"}, precision="auto", tolerance=1e-2)
    with pytest.raises(UsageError, match="bisect judges one call"):
        bisect(mean(), states={"past": "present"})
    made = mean()
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    made.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "rows"
    with pytest.raises(UnsupportedError, match="states need fixed shapes"):
        tw.compile(made, states={"past": "present"})
    shapes = {"x": (4, 32), "past": (4, 32)}
    run = tw.compile(made, states={"past": "present"}, inputs=shapes, threads=1)
    assert [t.name for t in run.inputs] == ["x"]


# ---- files ----


def test_format_of_packages(tmp_path):
    """Only a package with states has the number that older versions do not read."""
    for states, number in (({"past": "present"}, 4), (None, 3)):
        tw.compile(mean(), states=states, threads=1).save(tmp_path / "m.tw")
        head = (tmp_path / "m.tw").read_bytes()[: len(container.MAGIC) + 4]
        assert struct.unpack("<I", head[-4:]) == (number,)
        tw.load(tmp_path / "m.tw")


def test_programs_of_before_have_no_states():
    data = Program((), (), (), ()).to_json()
    del data["states"]
    assert Program.from_json(data) == Program((), (), (), ())


def test_other_states_are_another_package(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_COMPILE", "inprocess")
    save(attention("where"), tmp_path / "m.onnx")
    for states in (None, {"past_k": "present_k"}, CACHES, dict(reversed(CACHES.items()))):
        run = tw.compile(tmp_path / "m.onnx", states=states, threads=1)
        assert set(run.states) == set(states or ())
    assert len(list((tmp_path / "cache" / "packages").glob("*.tw"))) == 3
    again = tw.compile(tmp_path / "m.onnx", states=CACHES, threads=1)
    assert set(again.states) == set(CACHES) and not any(again.states[s].any() for s in CACHES)


def test_a_dumped_model_continues_with_states(tmp_path):
    tw.compile(mean(), states={"past": "present"}, dump=str(tmp_path), threads=1)
    dumped = next(tmp_path.glob("*-fuse.mlir"))
    run = tw.compile(dumped, start_after="fuse", states={"past": "present"}, threads=1)
    run(np.ones((4, 32), np.float32))
    assert run.states["past"][0, 0] == 1
    with pytest.raises(UsageError, match="the model has no output 'z'"):
        tw.compile(dumped, start_after="fuse", states={"past": "z"}, threads=1)


def test_package_for_a_target_without_states(tmp_path, monkeypatch):
    tw.compile(mean(), states={"past": "present"}, threads=1).save(tmp_path / "m.tw")
    monkeypatch.setattr("tilewright.targets.cpu.CpuTarget.keeps_states", False)
    with pytest.raises(PackageError, match="the package has states, target 'cpu' has none"):
        tw.load(tmp_path / "m.tw")


def test_command_line(tmp_path, capsys):
    path, states = str(tmp_path / "m.onnx"), ["--state", "past=present"]
    save(window(), path)
    np.savez(tmp_path / "x.npz", x=np.arange(8, dtype=np.float32)[None])
    given = ["--input", str(tmp_path / "x.npz")]
    assert main(["run", path, *states, *given, "--repeat", "5", "--check", "reference"]) == 0
    said = capsys.readouterr()
    assert "5 runs" in said.err and "check passed: y 0.0e+00" in said.err and "present" not in said.out
    assert main(["compile", path, *states, "-o", str(tmp_path / "m.tw")]) == 0
    assert main(["run", str(tmp_path / "m.tw"), *given, "-o", str(tmp_path / "y.npz")]) == 0
    assert np.load(tmp_path / "y.npz")["y"].tolist() == list(range(8))
    assert main(["explain", str(tmp_path / "m.tw")]) == 0
    assert "state  past: f32[6, 8] <- present" in capsys.readouterr().out
    for wrong, message in (
        ("past", "--state 'past' is not INPUT=OUTPUT"),
        ("past=", "--state 'past=' is not INPUT=OUTPUT"),
        ("past=y", "input 'past' is tensor<6x8xf32>"),
    ):
        assert main(["run", path, "--state", wrong, *given]) == 2
        assert message in capsys.readouterr().err
    assert main(["run", path, *states, "--state", "past=y"]) == 2
    assert "--state gives input 'past' two next values" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "m.tw"), *states]) == 2
    assert "--state has no meaning for" in capsys.readouterr().err


# ---- parts ----


def test_program_that_writes_a_value_that_is_kept_is_refused():
    state = StateInfo(TensorInfo("s", (4,), "f32"), "t", swapped=True)
    x = (TensorInfo("x", (4,), "f32"),)

    def program(space, swapped=True):
        call = Call(COPY, (BufferRef("input", 0, 0, 16), BufferRef(space, 0, 0, 16)), (1,))
        kept = StateInfo(state.tensor, state.output, swapped)
        return Program(x, (), (), (call,), states=(kept,))

    program("next").check()
    program("state", swapped=False).check()
    with pytest.raises(ValueError, match=r"writes to state0\[0:16\]"):
        program("state").check()
    with pytest.raises(ValueError, match=r"next0\[0:16\] is outside of its buffer"):
        program("next", swapped=False).check()
    assert Program.from_json(program("next").to_json()) == program("next")


def test_buffers_begin_as_zeros_and_are_aligned():
    infos = [StateInfo(TensorInfo("a", (3, 5), "bf16"), "b", True), StateInfo(TensorInfo("c", (), "i64"), "d")]
    buffers = StateBuffers(infos)
    assert [buffers.value(i).shape for i in range(2)] == [(3, 5), ()] and buffers.nbytes == 2 * 30 + 8
    assert not any(buffers.value(i).any() for i in range(2))
    assert all(buffers.value(i).ctypes.data % 64 == 0 for i in range(2))
    assert StateBuffers(()).table_address == 0


def test_tuned(tmp_path, monkeypatch, capsys):
    """Tuning measures the program that there will be: with its states, which go on from run to run."""
    pytest.importorskip("lightgbm", reason="LightGBM is not installed: pip install tilewright[tune]")
    monkeypatch.setenv("TILEWRIGHT_DB", str(tmp_path / "t.sqlite"))
    path = tmp_path / "m.onnx"
    save(mean(), path)
    compiled_with = []
    compiling = tasks.compiled
    monkeypatch.setattr(tasks, "compiled", lambda s, **o: compiled_with.append(o["states"]) or compiling(s, **o))
    assert main(["tune", str(path), "--state", "past=present", "--trials", "3", "--threads", "1"]) == 0
    said = capsys.readouterr()
    assert "matmul" in said.out and "trials in" in said.err
    assert compiled_with and all(states == {"past": "present"} for states in compiled_with)
    run = tw.compile(path, states={"past": "present"}, threads=1)
    assert [s.name for s in run.package.program.states] == ["past"]
    x = np.ones((4, 32), np.float32)
    close(run(x)[0], fed_back(mean(), {"past": "present"}, [{"x": x}])[0][0][0])
    assert main(["tune", str(path), "--state", "past", "--trials", "3"]) == 2


# ---- memory --------------------------------------------------------------------------------------------------------


def resident() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="what memory a process has is read from /proc/self/statm")
def test_memory_is_taken_where_a_state_is_written_and_given_back():
    pages, page = 100_000, (16, 64)  # 400 MB
    make = Maker([("k", Type((pages, *page), "f32")), ("rows", Type((4, 64), "f32")), ("slots", Type((4,), "i32"))])
    new = make("write_pages", *make.inputs)
    before = resident()
    y = make("gather", new, make.constant(np.array([0])), axis=0)
    run = tw.compile(make.finish([("y", y), ("new", new)]), states={"k": "new"}, threads=1)
    rows = np.ones((4, 64), np.float32)
    run(rows, np.array([3, -1, pages * 16 - 1, pages * 16], np.int32))
    assert "in place" in str(run) and run.states["k"][-1, -1, 0] == 1 and run.states["k"][0, 3, 0] == 1
    assert resident() - before < 200 << 20
    block = run.states["k"][: pages // 4]
    block[...] = 1
    filled = resident()
    run.reset()
    assert filled - resident() > 90 << 20 and not block[::1000].any() and not run.states["k"][-1].any()
