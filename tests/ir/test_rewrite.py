"""The pattern driver and the helpers around it."""

import numpy as np
import pytest

from tilewright.graph.passes import parse_pipeline, run_pipeline
from tilewright.graph.rewrite import (
    definition,
    drop_unused_constants,
    erase_dead,
    fuse_locations,
    has_one_use,
    names,
    pattern,
    rewrite,
    users,
)
from tilewright.ir.context import parse, use
from tilewright.ir.graph import Graph
from tilewright.support.errors import CompileError

TEXT = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "tw.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("a")
  %1 = "tw.relu"(%0) : (tensor<4xf32>) -> tensor<4xf32> loc(fused["b", "c"])
  return %1 : tensor<4xf32>
}"""


def operations(graph):
    return [op.name.removeprefix("tw.") for op in graph.operations()]


def test_names_survive():
    graph = Graph(parse(TEXT))
    exp, relu, back = graph.operations()
    assert (names(exp), names(relu), names(back)) == (["a"], ["b", "c"], [])
    with use():
        assert "fused" in str(fuse_locations([exp, relu, exp]))


def test_names_of_what_is_replaced():
    text = """func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
      %0 = "tw.sigmoid"(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("sig")
      %1 = "tw.mul"(%x, %0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32> loc("mul")
      return %1 : tensor<4xf32>
    }"""
    graph = Graph(parse(text))
    run_pipeline(graph, parse_pipeline("match-activation"))
    silu = next(graph.operations())
    assert silu.name == "tw.silu" and names(silu) == ["sig", "mul"]


def test_uses():
    graph = Graph(parse(TEXT))
    exp, relu, _ = graph.operations()
    assert users(exp.results[0]) == [relu] and has_one_use(relu.results[0])
    assert definition(relu.operands[0]) == exp and definition(exp.operands[0]) is None


def test_patterns_that_undo_each_other_end_in_an_error():
    @pattern("relu")
    def to_abs(rw, op):
        return rw.create("abs", op.operands[0])

    @pattern("abs")
    def to_relu(rw, op):
        return rw.create("relu", op.operands[0])

    with pytest.raises(CompileError, match=r"did not come to an end; pattern to_(relu|abs)"):
        rewrite(Graph(parse(TEXT)), [to_abs, to_relu], limit=20)


def test_a_pattern_must_keep_the_type():
    @pattern("relu")
    def shorter(rw, op):
        return rw.create("reduce_sum", op.operands[0], axes=(0,))

    with pytest.raises(CompileError, match="shorter would replace tensor<4xf32> by tensor<f32>"):
        rewrite(Graph(parse(TEXT)), [shorter])


def test_a_chain_is_rewritten_in_one_sweep_and_the_dead_go():
    @pattern("*")
    def forget(rw, op):
        return op.operands[0] if op.name in ("tw.exp", "tw.relu") else None

    graph = Graph(parse(TEXT))
    assert rewrite(graph, [forget]) == {"forget": 2}
    assert operations(graph) == ["func.return"]


def test_erase_dead_follows_chains():
    text = TEXT.replace("return %1", "return %x")
    graph = Graph(parse(text))
    with use():
        assert erase_dead(graph) == 2
    assert operations(graph) == ["func.return"]


def test_unused_constants_go():
    graph = Graph(parse(TEXT))
    graph.constants.add(np.zeros(100, np.float32), "w")
    assert drop_unused_constants(graph) == 1 and len(graph.constants) == 0
