"""Small files that describe endless models: functions that call each other twice, loops in loops."""

import time

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.codegen.llvm import pool
from tilewright.support import budget
from tilewright.support.errors import CompileError, ModelError
from tilewright.targets.cpu.description import host

F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]


def info(name, dtype=F, shape=(4,)):
    return helper.make_tensor_value_info(name, dtype, list(shape))


def doubling(levels):
    """f0(x) = relu(x) + 1; fk(x) calls the one before twice."""
    one = helper.make_node("Constant", [], ["one"], value_float=1.0)
    bodies = [[helper.make_node("Relu", ["x"], ["r"]), one, helper.make_node("Add", ["r", "one"], ["y"])]]
    for k in range(1, levels):
        call = [helper.make_node(f"F{k - 1}", [a], [b], domain="own") for a, b in (("x", "m"), ("m", "y"))]
        bodies.append(call)
    functions = [helper.make_function("own", f"F{k}", ["x"], ["y"], b, OPSETS) for k, b in enumerate(bodies)]
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="harmless"),
        helper.make_node(f"F{levels - 1}", ["a"], ["y"], domain="own", name="bomb"),
    ]
    graph = helper.make_graph(nodes, "g", [info("x")], [info("y")])
    return helper.make_model(graph, functions=functions, opset_imports=OPSETS, ir_version=10)


def loops(depth, trips):
    """`depth` loops in each other, each of `trips`; the innermost adds one to x."""
    one, true = numpy_helper.from_array(np.ones((), "f"), "one"), numpy_helper.from_array(np.array(True), "true")
    count = numpy_helper.from_array(np.array(trips), "count")
    body = [helper.make_node("Add", ["v0", "one"], ["w0"])]
    for d in range(depth):
        identity = helper.make_node("Identity", [f"go{d}"], [f"again{d}"])
        inputs = [info(f"i{d}", I64, ()), info(f"go{d}", BOOL, ()), info(f"v{d}")]
        inner = helper.make_graph([identity, *body], f"body{d}", inputs, [info(f"again{d}", BOOL, ()), info(f"w{d}")])
        last = d == depth - 1
        names = ("x", "y") if last else (f"v{d + 1}", f"w{d + 1}")
        body = [helper.make_node("Loop", ["count", "", names[0]], [names[1]], body=inner, name=f"loop{d}")]
    graph = helper.make_graph(body, "g", [info("x")], [info("y")], [one, true, count])
    return helper.make_model(graph, opset_imports=OPSETS[:1], ir_version=10)


def test_functions_that_double_are_an_error_that_names_the_call():
    assert budget.OPERATORS == 100_000
    with pytest.raises(ModelError, match="more than 10000 operators, of which this one alone has become 10000") as e:
        tw.compile(doubling(40), threads=1, operators=10_000)
    assert "bomb" in e.value.operator and "--operators" in e.value.hint


def test_the_limit_of_operators_is_an_option():
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    y = tw.compile(doubling(4), threads=1, operators=100)(x)[0]
    np.testing.assert_allclose(y, np.maximum(x, 0) + 8, rtol=1e-6)
    with pytest.raises(ModelError, match="more than 20 operators"):
        tw.compile(doubling(4), threads=1, operators=20)


def test_loops_in_loops_are_not_unrolled_together():
    x = np.zeros(4, np.float32)
    np.testing.assert_array_equal(tw.compile(loops(3, 20), threads=1)(x)[0], np.full(4, 8000, "f"))


def test_loops_that_have_to_be_unrolled_are_an_error():
    with pytest.raises(ModelError, match="more than 5000 operators") as e:
        tw.compile(loops(3, 100), threads=1, operators=5000, stop_after="import")
    assert "loop2" in e.value.operator


def test_the_deadline(monkeypatch):
    assert budget.SECONDS > 60
    with pytest.raises(CompileError, match=r"the compilation takes longer than 1e-09 s") as e:
        tw.compile(doubling(3), threads=1, cache=False, deadline=1e-9)
    assert "--deadline" in e.value.hint
    now = time.monotonic()
    times = iter([now, now + 5, now + 11])
    monkeypatch.setattr(budget.time, "monotonic", lambda: next(times))
    with budget.limited(None, 10):
        budget.check_time("one")
        with budget.limited(None, 1), pytest.raises(CompileError, match="longer than 10 s"):  # of the whole
            budget.check_time("two", "kernel")


def test_waiting_for_workers_ends_at_the_deadline(monkeypatch, kernel):
    monkeypatch.setattr(pool._Worker, "compile", lambda *_: time.sleep(2.5))
    with budget.limited(None, 0.5), pytest.raises(CompileError, match=r"longer than 0\.5 s"):
        pool.compile_many([pool.Job("k", kernel("k", "addf"))], host(), workers=1)


def test_a_live_model_has_the_same_limits():
    model = doubling(4)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    run = tw.compile(model, threads=1, operators=20)  # neither for all sizes nor for one
    with pytest.raises(ModelError, match="more than 20 operators"):
        run(np.zeros(3, np.float32))
    run = tw.compile(model, threads=1, specialize="now")
    run.staged.deadline = 1e-9
    with pytest.raises(CompileError, match="takes longer"):
        run(np.zeros(3, np.float32))
