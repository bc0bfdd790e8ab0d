"""The pass protocol: pipelines as text, options, errors."""

from dataclasses import dataclass

import pytest

from tilewright.graph import passes
from tilewright.graph.layout import Layout
from tilewright.graph.machine_costs import WinogradCosts
from tilewright.graph.passes import MlirPass, convert, make, parse_pipeline, run_pipeline
from tilewright.graph.specialize import Specialize
from tilewright.ir.context import parse
from tilewright.ir.graph import Graph
from tilewright.support.errors import CompileError, UsageError

TEXT = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "tw.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "tw.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "tw.add"(%0, %1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}"""


def test_every_pass_says_what_it_does():
    found = passes.available()
    assert {"simplify", "fold", "cse", "dce", "layout", "specialize", "match-attention"} <= set(found)
    assert all(line.endswith(".") for line in found.values())


def test_options_come_from_the_dataclass():
    assert parse_pipeline("layout{mode=nhwc}") == [Layout(mode="nhwc")]
    assert parse_pipeline(" specialize{shapes=a:1x2;b:3} , layout") == [
        Specialize({"a": (1, 2), "b": (3,)}),
        Layout(),
    ]
    assert make("fold", max_elements="8", growth="2.5") == make("fold", max_elements=8, growth=2.5)


def test_mlir_passes_by_name():
    assert parse_pipeline("mlir:cse,canonicalize,func.func(cse)") == [
        MlirPass("cse"),
        MlirPass("canonicalize"),
        MlirPass("func.func(cse)"),
    ]
    graph = Graph(parse(TEXT))
    run_pipeline(graph, parse_pipeline("func.func(cse)"))
    assert [op.name for op in graph.operations()] == ["tw.exp", "tw.add", "func.return"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("nonsense", ["unknown pass", "'nonsense'", "known passes", "simplify"]),
        ("layout{mod=nhwc}", ["layout has no option 'mod'", "mode (one of auto, nhwc, nchw, default 'auto')"]),
        ("layout{mode=abc}", ["layout{mode}", "'abc'", "one of auto, nhwc, nchw"]),
        ("fold{max_elements=many}", ["fold{max_elements}", "'many' is not int"]),
        ("fold{max_elements=1", ["unbalanced"]),
        ("fold}", ["unbalanced"]),
        ("fold{growth=1}x", ["unexpected text"]),
        ("specialize{shapes=a:1xb}", ["specialize{shapes}"]),
        ("split-sums{tile=lanes:16}", ["split-sums{tile}", "'lanes:16'"]),
    ],
)
def test_errors(text, words):
    with pytest.raises(UsageError) as e:
        parse_pipeline(text)
    for word in words:
        assert word in str(e.value)


@pytest.mark.parametrize(
    "text, kind, value",
    [
        ("true", bool, True),
        ("0", bool, False),
        ("none", int | None, None),
        ("7", int | None, 7),
        ("1:2:3", tuple[int, ...], (1, 2, 3)),
        ("a:1;b:2", dict[str, int], {"a": 1, "b": 2}),
        ("transform:16;weight:8", WinogradCosts | None, WinogradCosts(16, 8)),
    ],
)
def test_convert(text, kind, value):
    assert convert(text, kind, "option") == value


@pytest.mark.parametrize("text", ["split-sums", "split-windows"])
def test_a_pass_that_estimates_needs_a_machine(text):
    graph = Graph(parse(TEXT))
    with pytest.raises(UsageError, match="needs what the machine is like"):
        run_pipeline(graph, parse_pipeline(text))


def test_a_pass_that_breaks_the_graph_is_named():
    @dataclass(frozen=True)
    class Breaks:
        name = "breaks"

        def run(self, graph):
            from torch_mlir import ir

            next(graph.operations()).results[0].set_type(ir.Type.parse("tensor<5xf32>"))

    with pytest.raises(CompileError, match="exp") as e:
        run_pipeline(Graph(parse(TEXT)), [Breaks()])
    assert e.value.stage == "breaks"


def test_reports():
    graph = Graph(parse(TEXT))
    assert run_pipeline(graph, parse_pipeline("cse,dce")) == [
        ("cse", {"removed": 1}),
        ("dce", {"operations": 0, "constants": 0}),
    ]
