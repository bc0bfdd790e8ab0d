"""Indices out of range: constant ones are errors of the import, but not where nothing reads them; others are clamped,
or errors of the run with `check_indices`."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.frontends.onnx import load
from tilewright.support.errors import InputError, ModelError, UsageError

I64, F32, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
value = helper.make_tensor_value_info


def model(nodes, inputs, outputs, opset=18, **constants):
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


X = value("x", F32, [5, 3])
UPDATES = np.ones((1, 3), np.float32)
#: operator, attributes, good and bad indices, further inputs, the index and the size that are named
CASES = [
    ("Gather", {"axis": 0}, [4, -5], [4, 5], (), 5, 5),
    ("Gather", {"axis": -1}, [[2, -3]], [[2, -4]], (), -4, 3),
    ("Gather", {"axis": 1}, 2, 3, (), 3, 3),
    ("GatherElements", {"axis": 0}, [[0, 4, -5]], [[0, 9, 0]], (), 9, 5),
    ("GatherND", {}, [[4, 2], [-5, -3]], [[4, 2], [0, 3]], (), 3, 3),
    ("GatherND", {"batch_dims": 1}, [[0], [1], [2], [-1], [-3]], [[0], [1], [2], [-4], [3]], (), -4, 3),
    ("ScatterND", {}, [[-5]], [[-6]], ("u",), -6, 5),
    ("ScatterElements", {"axis": 1}, [[0, 2, -3]], [[0, 3, 1]], ("u",), 3, 3),
    ("ScatterElements", {"axis": 0}, [[0, 4, 1]], [[0, 3, -6]], ("u",), -6, 5),
]


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("op, attributes, good, bad, more, index, size", CASES)
def test_constant_indices(op, attributes, good, bad, more, index, size, dtype):
    if op.endswith("ND") and dtype is np.int32:
        pytest.skip("ONNX has i64 only")
    node = helper.make_node(op, ["x", "i", *more], ["y"], "reads", **attributes)
    load(model([node], [X], [value("y", F32, None)], i=np.array(good, dtype), u=UPDATES))
    with pytest.raises(ModelError, match=f"index {index} is out of range for a dimension of {size} ") as error:
        load(model([node], [X], [value("y", F32, None)], i=np.array(bad, dtype), u=UPDATES))
    assert error.value.operator == f'{op} "reads"'


def test_folded_indices():
    """Shapes and what is computed from constants count as constants."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "two"], ["d"], "no_such_dimension"),
        helper.make_node("Add", ["x", "x"], ["z"]),
        helper.make_node("Expand", ["z", "d"], ["y"]),
    ]
    with pytest.raises(ModelError, match="index 2 is out of range for a dimension of 2 ") as error:
        load(model(nodes, [X], [value("y", F32, None)], two=np.array([2])))
    assert error.value.operator == 'Gather "no_such_dimension"'


def test_no_indices_are_in_range():
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    load(model([node], [X], [value("y", F32, None)], i=np.zeros((0,), np.int64)))


def test_operators_that_nothing_needs():
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["dead"]),
        helper.make_node("Relu", ["dead"], ["dead2"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    compiled = tw.compile(model(nodes, [X], [value("y", F32, None)], i=np.array([9])), threads=1)
    np.testing.assert_array_equal(compiled(-np.ones((5, 3), np.float32))[0], np.zeros((5, 3)))


def branches(condition: list) -> list:
    """If a condition holds, an index out of range of x, else one of its rows."""
    there = helper.make_graph([helper.make_node("Gather", ["x", "bad"], ["a"])], "t", [], [value("a", F32, None)])
    other = helper.make_graph([helper.make_node("Gather", ["x", "good"], ["b"])], "e", [], [value("b", F32, None)])
    return [*condition, helper.make_node("If", ["c"], ["y"], then_branch=there, else_branch=other)]


def test_branches_that_are_not_taken():
    """By a constant condition, by one that the shapes decide (``rank == 4``), and by one that the run decides."""
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    rank = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Size", ["s"], ["r"]),
        helper.make_node("Equal", ["r", "four"], ["c"]),
    ]
    constants = {"bad": np.array(7), "good": np.array(1), "four": np.array(4)}
    y = [value("y", F32, [3])]
    np.testing.assert_array_equal(tw.compile(model(branches(rank), [X], y, **constants), threads=1)(x)[0], x[1])
    run_time = tw.compile(model(branches([]), [X, value("c", BOOL, [])], y, **constants), threads=1)
    np.testing.assert_array_equal(run_time(x, np.array(False))[0], x[1])
    constants["four"] = np.array(2)
    with pytest.raises(ModelError, match="index 7 is out of range for a dimension of 5 "):
        tw.compile(model(branches(rank), [X], y, **constants), threads=1)


def test_bodies_of_functions():
    """A function's operator counts if the model needs what the function gives."""
    function = helper.make_function(
        "own", "f", ["x", "i"], ["y", "z"],
        [helper.make_node("Gather", ["x", "i"], ["y"]), helper.make_node("Relu", ["x"], ["z"])],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip

    def called(outputs):
        m = model(
            [helper.make_node("f", ["x", "i"], outputs, domain="own")], [X], [value("y", F32, None)], i=np.array([9])
        )
        m.functions.append(function)
        m.opset_import.append(helper.make_opsetid("own", 1))
        return m

    load(called(["", "y"]))
    load(called(["unused", "y"]))
    with pytest.raises(ModelError, match="index 9 is out of range"):
        load(called(["y", ""]))


# ---- the checked mode ----------------------------------------------------------------------------------------------

GATHER = helper.make_node("Gather", ["x", "i"], ["y"], "reads")


def lookup(length=4):
    return model([GATHER], [X, value("i", I64, [length])], [value("y", F32, [length, 3])])


def rows() -> np.ndarray:
    return np.arange(15, dtype=np.float32).reshape(5, 3)


@pytest.mark.parametrize("op, attributes, good, bad, more, index, size", CASES)
def test_checked_run(op, attributes, good, bad, more, index, size):
    """The same cases with indices that only the run knows; without the option they are clamped."""
    good, bad = np.array(good), np.array(bad)
    node = helper.make_node(op, ["x", "i", *more], ["y"], "reads", **attributes)
    m = model([node], [X, value("i", I64, good.shape)], [value("y", F32, None)], u=UPDATES)
    x = rows()
    plain, run = tw.compile(m, threads=1), tw.compile(m, threads=1, check_indices=True)
    assert [str(o) for o in run.outputs] == [str(o) for o in plain.outputs]
    np.testing.assert_array_equal(run(x, good)[0], plain(x, good)[0])
    plain(x, bad)
    with pytest.raises(InputError, match=f"index {index} is out of range for a dimension of {size} ") as error:
        run(x, bad)
    assert error.value.operator == f'{op} "reads"'
    np.testing.assert_array_equal(run(x, good)[0], plain(x, good)[0])


def test_checked_ways_of_calling(tmp_path):
    """By name, into arrays of the caller's, with arrays that are copied first, verified, saved and loaded."""
    x, good, bad = rows(), np.array([0, 4, -5, 2]), np.array([0, 5, 1, 2])
    run = tw.compile(lookup(), threads=1, check_indices=True, verify=True)
    run.save(tmp_path / "m.tw")
    for executable in (run, tw.load(tmp_path / "m.tw")):
        out = np.zeros((4, 3), np.float32)
        strided = np.repeat(good, 2)[::2]
        for result in (
            executable({"x": x, "i": good}),
            executable(x, strided),
            executable(x, good, out=[out]),
            executable(x, strided, out=[out]),
            executable(x, good, out={"y": out}),
        ):
            assert len(result) == 1
            np.testing.assert_array_equal(result[0], x[good])
        for call in (lambda e=executable: e(x, bad), lambda e=executable, o=out: e({"x": x, "i": bad}, out=[o])):
            with pytest.raises(InputError, match="index 5 is out of range"):
                call()
        with pytest.raises(UsageError, match="cannot be exported"):
            executable.export(tmp_path / "c")


def test_checked_several():
    """Two operators with equal indices, and one that nothing needs."""
    nodes = [
        GATHER,
        helper.make_node("Gather", ["x", "i"], ["z"], "again"),
        helper.make_node("Gather", ["x", "j"], ["dead"], "dead"),
    ]
    inputs = [X, value("i", I64, [4]), value("j", I64, [4])]
    m = model(nodes, inputs, [value("y", F32, None), value("z", F32, None)])
    run = tw.compile(m, threads=1, check_indices=True)
    good, bad = np.array([0, 1, 2, 3]), np.array([0, 1, 2, 30])
    np.testing.assert_array_equal(run(rows(), good, bad)[1], rows()[good])
    with pytest.raises(InputError, match="index 30 is out of range"):
        run(rows(), bad, good)


def test_checked_branches():
    """Both branches are computed; only that which is taken counts."""
    m = model(
        [
            helper.make_node(
                "If", ["c"], ["y"],
                then_branch=helper.make_graph([GATHER], "t", [], [value("y", F32, [4, 3])]),
                else_branch=helper.make_graph(
                    [helper.make_node("Gather", ["x", "j"], ["b"], "other")], "e", [], [value("b", F32, [4, 3])]
                ),
            )
        ],
        [X, value("c", BOOL, []), value("i", I64, [4]), value("j", I64, [4])],
        [value("y", F32, [4, 3])],
    )  # fmt: skip
    good, bad = np.array([0, 1, 2, 3]), np.array([0, 1, 2, -6])
    for lazy in (False, True):
        run = tw.compile(m, threads=1, check_indices=True) if lazy else eager(m)
        np.testing.assert_array_equal(run(rows(), np.array(True), good, bad)[0], rows()[good])
        np.testing.assert_array_equal(run(rows(), np.array(False), bad, good)[0], rows()[good])
        for condition, i, j, name in ((True, bad, good, "reads"), (False, good, bad, "other")):
            with pytest.raises(InputError, match="index -6 is out of range") as error:
                run(rows(), np.array(condition), i, j)
            assert error.value.operator == f'Gather "{name}"'


def eager(m):
    """Compiled with both branches in one program."""
    from tilewright.driver.compiler import compile_state

    return compile_state(load(m, check_indices=True), threads=1)[1]


def test_checked_dynamic(tmp_path):
    """Parts that are made at run time check, too; and so do those of a model that was saved."""
    run = tw.compile(lookup("n"), threads=1, check_indices=True)
    x = rows()
    for executable in (run, None):
        if executable is None:
            run.save(tmp_path / "m.tw")
            executable = tw.load(tmp_path / "m.tw")
        for n in (2, 3) if executable is run else (3, 6):
            good = np.arange(n) % 5
            np.testing.assert_array_equal(executable(x, good)[0], x[good])
            with pytest.raises(InputError, match="index 99 is out of range") as error:
                executable(x, np.where(good == 1, 99, good))
            assert error.value.operator == 'Gather "reads"'


def test_checks_are_for_onnx():
    with pytest.raises(UsageError, match="in ONNX models only"):
        tw.compile(
            'func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { %0 = "tw.relu"(%x) : (tensor<4xf32>) -> '
            "tensor<4xf32> return %0 : tensor<4xf32> }",
            check_indices=True,
        )
