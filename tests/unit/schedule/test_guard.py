"""No kernel works more than its operators ask, silently: such schedules are refused, and fused kernels that have no
other are cut in two. What is executed is counted; nothing is timed.

The rules that would take these kernels well are told to refuse them, so that the guard is all there is."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.codegen.llvm import memo
from tilewright.codegen.llvm.pool import Compiled
from tilewright.driver import compiler, stages
from tilewright.driver.compiler import compile_state
from tilewright.schedule import rules
from tilewright.schedule.executed import TOO_MUCH, executed
from tilewright.schedule.rules.contraction import contraction
from tilewright.schedule.rules.convolution import depthwise_chain
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.split import Divided
from tilewright.targets.cpu import MAKER
from tilewright.targets.cpu.description import host
from tilewright.targets.cpu.make import make_kernel
from tilewright.tensor.analysis import movement


def model(nodes, inputs, outputs, weights) -> onnx.ModelProto:
    """Nodes are (operator, inputs, outputs, attributes)."""

    def info(values):
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in values.items()]

    made = [helper.make_node(op, i, o, name=f"n{k}", **a) for k, (op, i, o, a) in enumerate(nodes)]
    constants = [numpy_helper.from_array(v, n) for n, v in weights.items()]
    graph = helper.make_graph(made, "guarded", info(inputs), info(outputs), constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def weights(*shape: int) -> np.ndarray:
    return (np.random.default_rng(15).standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def window_reverse() -> onnx.ModelProto:
    """A product whose windows are put back into the image, and a residual in another rank."""
    nodes = [
        ("MatMul", ["x", "w"], ["a"], {}),
        ("Transpose", ["a"], ["b"], {"perm": [0, 1, 3, 2, 4, 5]}),
        ("Reshape", ["b", "s"], ["c"], {}),
        ("Add", ["c", "r"], ["y"], {}),
    ]
    shape = np.array([1, 400, 72], np.int64)
    given = {"x": (1, 4, 4, 5, 5, 72), "r": (1, 400, 72)}
    return model(nodes, given, {"y": (1, 400, 72)}, {"w": weights(72, 72), "s": shape})


def window_partition() -> onnx.ModelProto:
    nodes = [
        ("LayerNormalization", ["x", "g", "b"], ["a"], {"axis": -1, "epsilon": 1e-5}),
        ("Reshape", ["a", "s"], ["c"], {}),
        ("Transpose", ["c"], ["y"], {"perm": [0, 1, 3, 2, 4, 5]}),
    ]
    w = {"g": weights(72), "b": weights(72), "s": np.array([1, 8, 7, 8, 7, 72], np.int64)}
    return model(nodes, {"x": (1, 56, 56, 72)}, {"y": (1, 8, 8, 7, 7, 72)}, w)


def upsampled() -> onnx.ModelProto:
    """A product whose reader changes the layout and pads for the next convolution."""
    nodes = [
        ("ConvTranspose", ["x", "w"], ["a"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Conv", ["a", "w2"], ["y"], {"kernel_shape": [3, 3], "pads": [1] * 4}),
    ]
    w = {"w": weights(32, 16, 2, 2), "w2": weights(16, 16, 3, 3)}
    return model(nodes, {"x": (1, 32, 12, 12)}, {"y": (1, 16, 24, 24)}, w)


def chain() -> onnx.ModelProto:
    nodes = [
        ("Conv", ["x", "w1"], ["a"], {"kernel_shape": [1, 1]}),
        ("Relu", ["a"], ["a2"], {}),
        ("Conv", ["a2", "w2"], ["b"], {"kernel_shape": [3, 3], "pads": [1] * 4, "group": 64}),
        ("Conv", ["b", "w3"], ["y"], {"kernel_shape": [1, 1]}),
    ]
    w = {"w1": weights(64, 32, 1, 1), "w2": weights(64, 1, 3, 3), "w3": weights(32, 64, 1, 1)}
    return model(nodes, {"x": (1, 32, 56, 56)}, {"y": (1, 32, 56, 56)}, w)


def sums_and_moves(kernel) -> bool:
    sums = any(t.init is not None for s in kernel.stages for t in s.targets)
    return sums and any(movement(s) for s in kernel.stages if s.targets[0].init is None)


@pytest.fixture
def refusing(monkeypatch):
    """No rule but the last, which makes plain loops, takes sums whose results are moved elsewhere."""

    def reluctant(rule):
        def apply(kernel, machine, decisions=None):
            refused = rule.NAME != "general" and sums_and_moves(kernel)
            return "not today" if refused else rule.apply(kernel, machine, decisions)

        return SimpleNamespace(NAME=rule.NAME, PRIORITY=rule.PRIORITY, apply=apply)

    found = [reluctant(rule) for rule in rules.rules()]
    monkeypatch.setattr(rules, "rules", lambda *_: found)
    monkeypatch.setattr(rules, "all_ours", lambda: True)
    monkeypatch.setattr(compiler, "all_ours", lambda: True)
    depthwise_chain._kept.cache_clear()
    yield
    depthwise_chain._kept.cache_clear()


def compiled(source, **options):
    return compile_state(source, threads=1, tuned=False, cache=False, keep=True, **options)


def check(source, state, run) -> None:
    """Every kernel within its own work or marked, and the numbers right."""
    for name, made in state.schedules.items():
        found = made.executed or executed(made.nest, state.kernels[name])
        assert found.recomputation <= TOO_MUCH or made.problems, name
        assert not made.problems, (name, made.problems)
    from tilewright.graph.interpret import interpret

    rng = np.random.default_rng(0)
    given = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in run.inputs}
    want = interpret(tw.compile(source, stop_after="layout"), given, float64=True)["y"]
    got = run.run(given)[0]
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_a_product_that_each_task_would_compute_whole_is_cut_off(refusing):
    source = window_reverse()
    state, run = compiled(source)
    check(source, state, run)
    (why,) = [n for n in state.journal.notes if "was cut in two" in n]
    assert "As one kernel, general: " in why and "without vectors where a row would do" in why
    assert sorted(s.rule for s in state.schedules.values()) == ["contraction", "elementwise"]
    assert why in run.package.report["notes"]
    assert all(not k["slow"] and k["executed"] <= TOO_MUCH for k in run.package.report["kernels"])


@pytest.mark.parametrize("source", [window_partition, upsampled, chain])
def test_other_cliffs_are_cut_off(source, refusing):
    made = source()
    check(made, *compiled(made))


def test_the_refused_schedule_is_named(refusing):
    """Without a cut, the kernel says what goes too far."""
    state, _ = compile_state(window_reverse(), threads=1, stop_after="fuse")
    from tilewright.ir.context import use
    from tilewright.tensor.read import read_kernel

    with use():
        (kernel,) = [read_kernel(f) for f in state.module.functions()]
    made = rules.schedule(kernel, host())
    assert made.problems and made.executed is not None
    assert ("contraction", "not today") in made.refused and made.rule == "general"
    again = rules.schedule(kernel, host(), {d.name: d.chosen for d in made.schedule.decisions.values()})
    assert again.rule == made.rule and str(again.nest) == str(made.nest)  # what a tuner asks for is this rule's too


def test_the_next_rule_is_tried(monkeypatch):
    """A rule that would compute too much, before one that is well."""

    class Wasteful:
        NAME, PRIORITY = "wasteful", -10

        @staticmethod
        def apply(kernel, machine, decisions=None):
            return Schedule(kernel, decisions=decisions)  # plain loops without vectors

    from tilewright.lang import te

    x, w = te.placeholder((64, 64), "x"), te.placeholder((64, 64), "w")
    r = te.reduce_axis(64, "r")
    kernel = te.kernel(te.compute((64, 64), lambda i, j: te.sum(x[i, r] * w[r, j], r), "y"))
    found = rules.rules()
    monkeypatch.setattr(rules, "rules", lambda *_: [Wasteful, *found])
    made = rules.schedule(kernel, host())
    assert made.rule == "contraction" and not made.problems
    assert made.refused[0] == ("wasteful", "100% of its time is spent without vectors where a row would do")
    monkeypatch.setattr(rules, "rules", lambda *_: [Wasteful])
    made = rules.schedule(kernel, host())
    assert made.rule == "wasteful" and made.problems and made.refused == ()


def test_parts_have_names_places_and_the_constants_of_the_whole(refusing):
    state, run = compiled(window_reverse())
    (product,) = [k for k in state.kernels.values() if k.name.startswith("matmul")]
    assert len(product.constants) == 1
    assert all(call.names for call in run.package.program.calls)
    assert list(state.kernels) == list(state.schedules) == list(state.nests)
    assert all(f"@{name}" in state.journal.texts["fuse"] for name in state.kernels)


def test_verify_and_dumps_see_the_parts(refusing, tmp_path):
    source = window_reverse()
    run = tw.compile(source, threads=1, verify=True, dump=tmp_path, tuned=False)
    assert any("2 kernels" in note or "kernels" in note for note in run.package.report["notes"])
    fused = next(tmp_path.glob("*-fuse.mlir"))
    state, again = compile_state(str(fused), start_after="fuse", threads=1, tuned=False)
    check(source, state, again)


def test_workers_and_the_memo_cut_too(refusing, tmp_path, monkeypatch):
    """The worker answers with the parts, and a later compilation schedules nothing."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))

    def here(jobs, description, **_):
        assert all(job.maker == MAKER for job in jobs)
        found = {}
        for job in jobs:
            made, data, stats = make_kernel(job.mlir_text, description)
            found[job.symbol] = Compiled(job.symbol, data, stats, made=json.loads(json.dumps(made.to_json())))
        return found

    monkeypatch.setattr(memo, "compile_each", here)
    nodes = [
        ("MatMul", ["x", "w"], ["a"], {}),
        ("Transpose", ["a"], ["b"], {"perm": [0, 1, 3, 2, 4, 5]}),
        ("Reshape", ["b", "s"], ["c"], {}),
        ("Add", ["c", "r"], ["y"], {}),
        ("Softmax", ["q"], ["z"], {"axis": -1}),
    ]
    given = {"x": (1, 4, 4, 5, 5, 72), "r": (1, 400, 72), "q": (8, 40)}
    constants = {"w": weights(72, 72), "s": np.array([1, 400, 72], np.int64)}
    source = model(nodes, given, {"y": (1, 400, 72), "z": (8, 40)}, constants)
    first = tw.compile(source, threads=1, tuned=False, jobs=2)
    symbols = sorted(first._package.program.symbols)
    assert len(symbols) == 3

    def never(*_):
        raise AssertionError("a kernel was scheduled again")

    monkeypatch.setattr(memo, "compile_each", never)
    monkeypatch.setattr(stages, "schedule_kernel", never)
    again = tw.compile(source, threads=1, tuned=False, jobs=2)
    assert again._package.program == first._package.program
    assert any("was cut in two" in note for note in again._package.report["notes"])


def test_a_division_survives_the_cache():
    made = Divided("module {}", "columns: it computes 7 times what the kernel asks")
    assert memo.outcome(json.loads(json.dumps(made.to_json()))) == made


def test_members_of_chains_are_judged_too(monkeypatch):
    """A chain whose expansion has no vectors is not taken."""
    old = contraction.apply
    monkeypatch.setattr(contraction, "apply", lambda k, m, d=None: "not today" if "row" in k.name else old(k, m, d))
    depthwise_chain._kept.cache_clear()
    source = chain()
    try:
        state, run = compiled(source)
        check(source, state, run)
    finally:
        depthwise_chain._kept.cache_clear()


def test_machines_of_all_sizes_schedule_the_cliffs_well(refusing):
    """Nothing hangs on the machine that runs the tests."""
    for source in (window_reverse(), window_partition()):
        state, _ = compile_state(source, threads=1, stop_after="fuse")
        from tilewright.ir.context import use
        from tilewright.schedule.split import split
        from tilewright.tensor.read import read_kernel

        for machine in (replace(host(), vector_bytes=32, vector_registers=16, l2_bytes=512 << 10), host()):
            for f in state.module.functions():
                with use():
                    kernel = read_kernel(f)
                made = rules.schedule(kernel, machine)
                assert not made.problems or split(f, made, machine) is not None
