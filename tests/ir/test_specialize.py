"""Shape specialization."""

import numpy as np
import pytest

from tilewright.graph.interpret import interpret
from tilewright.graph.passes import run_pipeline
from tilewright.graph.specialize import Specialize
from tilewright.ir.context import parse
from tilewright.ir.graph import Graph
from tilewright.ir.types import Type
from tilewright.support.errors import CompileError, InputError

TEXT = """func.func @main(%x: tensor<?x3xf32> {tw.name = "x"}, %y: tensor<?x3xf32> {tw.name = "y"})
    -> (tensor<?x3xf32> {tw.name = "z"}) {
  %0 = "tw.relu"(%x) : (tensor<?x3xf32>) -> tensor<?x3xf32>
  %1 = "tw.concat"(%0, %y) {axis = 0, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>}
    : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32> loc("join")
  %2 = "tw.add"(%1, %1) : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32> loc("sum")
  return %2 : tensor<?x3xf32>
}"""


def test_all_types_follow():
    graph = Graph(parse(TEXT))
    report = run_pipeline(graph, [Specialize({"x": (2, 3), "y": (5, 3)})])
    assert report == [("specialize", {"inputs": 2, "operations": 3})]
    assert graph.inputs() == [("x", Type((2, 3), "f32")), ("y", Type((5, 3), "f32"))]
    assert graph.outputs() == [("z", Type((7, 3), "f32"))]
    assert "?" not in str(graph.module)
    x, y = np.ones((2, 3), np.float32), np.ones((5, 3), np.float32)
    assert interpret(graph, {"x": x, "y": y})["z"].shape == (7, 3)


def test_inputs_left_out_keep_their_type():
    graph = Graph(parse(TEXT))
    run_pipeline(graph, [Specialize({"x": (2, 3)})])
    assert graph.inputs()[1] == ("y", Type((None, 3), "f32")) and graph.outputs()[0][1] == Type((None, 3), "f32")


@pytest.mark.parametrize(
    "shapes, message",
    [
        ({"w": (2, 3)}, "no such input"),
        ({"x": (2, 4)}, r"shape \(2, 4\) does not fit input 'x' of type tensor<\?x3xf32>"),
        ({"x": (2,)}, "does not fit"),
        ({"x": (-1, 3)}, "does not fit"),
    ],
)
def test_shapes_that_do_not_fit(shapes, message):
    with pytest.raises(InputError, match=message):
        run_pipeline(Graph(parse(TEXT)), [Specialize(shapes)])


def test_a_conflict_inside_names_the_operator():
    text = """func.func @main(%x: tensor<?xf32> {tw.name = "x"}, %y: tensor<?xf32> {tw.name = "y"}) -> tensor<?xf32> {
      %0 = "tw.add"(%x, %y) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32> loc("sum")
      return %0 : tensor<?xf32> }"""
    with pytest.raises(CompileError, match="do not go together") as e:
        run_pipeline(Graph(parse(text)), [Specialize({"x": (2,), "y": (3,)})])
    assert e.value.operator == 'tw.add "sum"'
