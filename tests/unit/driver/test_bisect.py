"""`bisect` names the first wrong part: a pass, a lowering, fusion, a step of a schedule, native code; nothing in a
model that is right."""

from __future__ import annotations

import dataclasses
import runpy

import numpy as np
import pytest

from tilewright.cli import main
from tilewright.driver import bisect as bisection
from tilewright.driver.bisect import bisect
from tilewright.graph import cse
from tilewright.ir.context import parse, use
from tilewright.ir.graph import Graph
from tilewright.ops.activation import Relu
from tilewright.schedule.interpret import NestError
from tilewright.schedule.nest import transform_exprs
from tilewright.schedule.primitives.loops import LoopPrimitives
from tilewright.schedule.primitives.state import primitive
from tilewright.support.errors import UsageError
from tilewright.tensor.expr import Op, rebuild, transform
from tilewright.tensor.interpret import interpret_graph

MODEL = """
func.func @main(%x: tensor<6x16xf32> {tw.name = "x"}, %w: tensor<16x32xf32> {tw.name = "w"})
    -> (tensor<6x32xf32> {tw.name = "y"}) {
  %0 = "tw.matmul"(%x, %w) : (tensor<6x16xf32>, tensor<16x32xf32>) -> tensor<6x32xf32> loc("product")
  %1 = "tw.softmax"(%0) {axis = 1 : i64} : (tensor<6x32xf32>) -> tensor<6x32xf32> loc("weights")
  %2 = "tw.relu"(%1) : (tensor<6x32xf32>) -> tensor<6x32xf32> loc("positive")
  return %2 : tensor<6x32xf32>
}
"""
PLAIN = {"threads": 1, "tuned": False, "jobs": 1}


def shown_again(folder, capsys) -> list[float]:
    """The errors that the reproducer prints."""
    capsys.readouterr()
    runpy.run_path(str(folder / "reproduce.py"))
    return [float(line.split("error ")[1].split()[0]) for line in capsys.readouterr().out.splitlines()]


def test_a_model_that_is_right():
    found = bisect(MODEL, **PLAIN)
    assert found.culprit is None and found.error is not None and 0 < found.error < 1e-5
    places = [t.place for t in found.tried]
    assert places[-1] == "the compiled model" and all(t.error < 1e-5 for t in found.tried)
    assert any(p.startswith("nest of matmul") for p in places)
    assert any(p.startswith("native code of matmul") for p in places)


def test_a_wrong_pass(monkeypatch, tmp_path, capsys):
    """It doubles what the model gives, and the passes after it keep that."""
    plain = cse.Cse.run

    def wrong(self, graph):
        from torch_mlir import ir

        end = list(graph.operations())[-1]
        if not any(op.name == "tw.add" for op in graph.operations()):
            with use(), ir.InsertionPoint(end):
                y = end.operands[0]
                end.operands[0] = ir.Operation.create("tw.add", results=[y.type], operands=[y, y]).results[0]
        return plain(self, graph)

    monkeypatch.setattr(cse.Cse, "run", wrong)
    found = bisect(MODEL, folder=tmp_path, **PLAIN).culprit
    assert found is not None
    assert (found.stage, found.what, found.operator) == ("simplify", "pass simplify/cse#1", "output 'y'")
    assert found.before < 1e-6 and found.after == pytest.approx(1.0)
    assert shown_again(tmp_path, capsys) == [pytest.approx(1.0)]


def test_a_wrong_lowering_names_the_operator(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(Relu, "lower", lambda b, x: b.elementwise(lambda v: v + v, x))
    found = bisect(MODEL, folder=tmp_path, **PLAIN).culprit
    assert found is not None
    assert (found.stage, found.what, found.operator) == ("lower", "pass lower/lower#1", "tw.relu positive")
    assert shown_again(tmp_path, capsys) == [pytest.approx(1.0)]


def test_wrong_fusion_names_the_kernel(monkeypatch, tmp_path, capsys):
    from tilewright.driver import stages

    plain = stages.fuse

    def wrong(graph, *more, **options):
        fused, report = plain(graph, *more, **options)
        text = fused.text()
        assert "arith.maximumf" in text
        return Graph(parse(text.replace("arith.divf", "arith.mulf")), fused.constants), report

    monkeypatch.setattr(stages, "fuse", wrong)
    found = bisect(MODEL, folder=tmp_path, **PLAIN).culprit
    assert found is not None and (found.stage, found.what) == ("fuse", "stage fuse")
    assert "weights" in found.operator and "(kernel " in found.operator
    assert shown_again(tmp_path, capsys)[0] > 1e-2


def test_a_wrong_primitive_is_named_with_its_step(monkeypatch, tmp_path, capsys):
    """Of the first kernel whose schedule has it; the steps before it are right."""
    plain = LoopPrimitives.vectorize.__wrapped__

    @primitive
    def vectorize(self, *args, **kwargs):
        result = plain(self, *args, **kwargs)
        self.body = transform_exprs(self.body, lambda e: transform(e, added))
        return result

    def added(x, args):
        return Op("addf", args, x.dtype) if isinstance(x, Op) and x.op == "mulf" else rebuild(x, args)

    monkeypatch.setattr(LoopPrimitives, "vectorize", vectorize)
    found = bisect(MODEL, folder=tmp_path, **PLAIN).culprit
    assert found is not None and found.stage == "schedule"
    assert "s.vectorize(" in found.what and "of kernel matmul" in found.what and "product" in found.operator
    assert found.before < 1e-5 < 1e-2 < found.after
    before, after = shown_again(tmp_path, capsys)
    assert before < 1e-5 < 1e-2 < after
    assert "s.vectorize(" in (tmp_path / "trace.txt").read_text()


def test_wrong_native_code(monkeypatch, tmp_path, capsys):
    from tilewright.targets.cpu import stages

    plain = stages.emit

    def wrong(nest, *more):
        made = plain(nest, *more)
        return dataclasses.replace(made, text=made.text.replace("arith.divf", "arith.mulf"))

    monkeypatch.setattr(stages, "emit", wrong)
    found = bisect(MODEL, folder=tmp_path, **PLAIN).culprit
    assert found is not None and found.stage == "emit"
    assert found.what.startswith("the native code of kernel softmax") and "weights" in found.operator
    assert found.before < 1e-5 < found.after
    assert shown_again(tmp_path, capsys)[0] > 1e-2


def test_on_the_command_line(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "m.mlir"
    file.write_text(MODEL)
    assert main(["bisect", str(file), "--threads", "1", "--jobs", "1"]) == 0
    out, err = capsys.readouterr()
    assert "native code of matmul" in out and "nothing is wrong: the largest error" in err
    assert not (tmp_path / "m-bisect").exists()
    rng = np.random.default_rng(0)
    np.savez("in.npz", x=rng.standard_normal((6, 16), np.float32), w=rng.standard_normal((16, 32), np.float32))
    assert main(["bisect", str(file), "--threads", "1", "--input", "in.npz", "--rtol", "1e-12"]) == 8
    assert "rounding adds up" in capsys.readouterr().err
    monkeypatch.setattr(Relu, "lower", lambda b, x: b.elementwise(lambda v: v + v, x))
    assert main(["bisect", str(file), "--threads", "1", "--input", "in.npz"]) == 8
    err = capsys.readouterr().err
    assert "pass lower/lower#1 makes it wrong" in err and "saved: m-bisect/reproduce.py" in err
    assert (tmp_path / "m-bisect" / "reproduce.py").is_file()
    for wrong in (["--verify"], ["--stop-after", "fuse"], ["--dump", "x"], ["-o", str(file)]):
        assert main(["bisect", str(file), *wrong]) == 2


def test_open_shapes_need_sizes():
    text = MODEL.replace("tensor<6x", "tensor<?x")
    with pytest.raises(UsageError, match="leaves shapes open"):
        bisect(text, **PLAIN)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((6, 16), np.float32), "w": rng.standard_normal((16, 32), np.float32)}
    assert bisect(text, arrays, **PLAIN).culprit is None


def test_a_kernel_that_does_something_undefined(monkeypatch, tmp_path):
    """A nest that reads what nobody has written has no number, and is as wrong as can be."""

    def fails(nest, arrays):
        raise NestError("p1[3] is read before it is written")

    monkeypatch.setattr(bisection.bisect_kernel, "interpret_nest", fails)
    found = bisect(MODEL, folder=tmp_path, **PLAIN).culprit
    assert found is not None and found.after == float("inf") and "read before it is written" in str(found)


def test_an_operators_own_nest_that_is_refused_is_not_judged(monkeypatch, tmp_path):
    """What such nests compute and never store is no fault: their native code decides."""
    from tilewright.targets.cpu import stages

    text = """
    func.func @main(%x: tensor<2x300xf32> {tw.name = "x"}) -> (tensor<2x300xf32> {tw.name = "y"}) {
      %0 = "tw.cumsum"(%x) {axis = 1 : i64, exclusive = false, reverse = false}
        : (tensor<2x300xf32>) -> tensor<2x300xf32> loc("sums")
      return %0 : tensor<2x300xf32>
    }
    """

    def fails(nest, arrays):
        raise NestError("t0[3] is read before it is written")

    monkeypatch.setattr(bisection.bisect_kernel, "interpret_nest", fails)
    found = bisect(text, **PLAIN)
    assert found.culprit is None and any("not judged: t0[3]" in t.note for t in found.tried)
    plain = stages.emit

    def wrong(nest, *more):
        made = plain(nest, *more)
        return dataclasses.replace(made, text=made.text.replace("arith.addf", "arith.subf"))

    monkeypatch.setattr(stages, "emit", wrong)
    wrong = bisect(text, folder=tmp_path, **PLAIN).culprit
    assert wrong is not None and wrong.stage == "emit" and "own nest was not judged" in wrong.what


def test_a_lowered_graph_is_interpreted():
    """Unsigned integers are so again, and constants are read from the table."""
    import tilewright as tw

    text = """
    func.func @main(%x: tensor<3xui8> {tw.name = "x"}) -> (tensor<3xui8> {tw.name = "y"}) {
      %0 = "tw.add"(%x, %x) : (tensor<3xui8>, tensor<3xui8>) -> tensor<3xui8>
      return %0 : tensor<3xui8>
    }
    """
    graph = tw.compile(text, stop_after="fuse", **PLAIN)
    (y,) = interpret_graph(graph, {"x": np.array([1, 100, 200], np.uint8)}).values()
    assert y.dtype == np.uint8 and y.tolist() == [2, 200, 144]
