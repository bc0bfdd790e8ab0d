"""The interpreter: results, precision, and what it refuses."""

import numpy as np
import pytest

from tilewright.graph.interpret import interpret
from tilewright.ir.context import parse
from tilewright.ir.graph import Graph
from tilewright.support.errors import CompileError, InputError

TEXT = """func.func @main(%x: tensor<?x3xf32> {tw.name = "x"}, %n: tensor<i64> {tw.name = "n"})
    -> (tensor<?x3xf32> {tw.name = "y"}, tensor<f32> {tw.name = "m"}) {
  %c = "tw.constant"() {value = dense<0.1> : tensor<f32>} : () -> tensor<f32>
  %0 = "tw.mul"(%x, %c) : (tensor<?x3xf32>, tensor<f32>) -> tensor<?x3xf32> loc("scaled")
  %1 = "tw.add"(%0, %0) : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32> loc("twice")
  %2 = "tw.cast"(%n) {to = "f32"} : (tensor<i64>) -> tensor<f32>
  return %1, %2 : tensor<?x3xf32>, tensor<f32>
}"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)
INPUTS = {"x": X, "n": np.asarray(2**24 + 1)}


def test_values_by_name():
    out = interpret(Graph(parse(TEXT)), INPUTS)
    assert list(out) == ["y", "m"] and out["y"].dtype == np.float32
    np.testing.assert_array_equal(out["y"], X * np.float32(0.1) * 2)


def test_float64_promotes_inputs_constants_and_casts():
    out = interpret(Graph(parse(TEXT)), INPUTS, float64=True)
    assert out["y"].dtype == out["m"].dtype == np.float64
    assert out["m"] == 2**24 + 1  # float32 could not hold it
    np.testing.assert_array_equal(out["y"], X.astype(np.float64) * np.float64(np.float32(0.1)) * 2)


def test_keep_returns_intermediate_results_by_source_name():
    out = interpret(Graph(parse(TEXT)), INPUTS, keep=["scaled"])
    assert set(out) == {"scaled", "y", "m"}
    np.testing.assert_array_equal(out["scaled"], X * np.float32(0.1))


@pytest.mark.parametrize(
    "inputs, words",
    [
        ({"x": X}, ["input 'n'", "was not given", "given: x"]),
        ({**INPUTS, "z": X}, ["no input 'z'", "its inputs: x, n"]),
        ({**INPUTS, "x": X[:, :2]}, ["input 'x' has shape (2, 2)", "tensor<?x3xf32>"]),
        ({**INPUTS, "x": X[0]}, ["input 'x' has shape (3,)"]),
        ({**INPUTS, "x": X.astype(np.float64)}, ["input 'x' has dtype float64", "float32", "astype"]),
    ],
)
def test_wrong_inputs(inputs, words):
    with pytest.raises(InputError) as e:
        interpret(Graph(parse(TEXT)), inputs)
    for word in words:
        assert word in str(e.value)


def test_only_level_2():
    text = "func.func @main(%x: tensor<f32>) -> f32 { %0 = tensor.extract %x[] : tensor<f32>\n return %0 : f32 }"
    with pytest.raises(CompileError, match="only level-2 graphs"):
        interpret(Graph(parse(text)), {"arg0": np.zeros((), np.float32)})


def test_a_failing_reference_names_the_operator():
    text = """func.func @main(%x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {
      %0 = "tw.add"(%x, %y) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32> loc("sum")
      return %0 : tensor<?xf32> }"""
    with pytest.raises(CompileError) as e:
        interpret(Graph(parse(text)), {"arg0": np.zeros(2, np.float32), "arg1": np.zeros(3, np.float32)})
    assert e.value.operator == 'tw.add "sum"' and "could not be broadcast" in str(e.value)
