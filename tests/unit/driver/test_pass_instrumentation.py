"""Passes of a stage are printed, timed and named in errors one by one."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.cli import main
from tilewright.driver.compiler import compile_state
from tilewright.graph import cse
from tilewright.graph.passes import make, name_of, parse_pipeline, pass_text, run_pipeline
from tilewright.ir.context import parse
from tilewright.ir.graph import Graph
from tilewright.support.errors import CompileError, UsageError

MODEL = """
func.func @main(%x: tensor<4x8xf32> {tw.name = "x"}) -> (tensor<4x8xf32> {tw.name = "y"}) {
  %0 = "tw.relu"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = "tw.relu"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = "tw.add"(%0, %1) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}
"""
PLAIN = {"threads": 1, "tuned": False, "jobs": 1}


def stopped(capsys, *names: str) -> str:
    tw.compile(MODEL, stop_after="lower", print_after=names, **PLAIN)
    return capsys.readouterr().err


def test_a_pass_is_printed_each_time_it_runs(capsys):
    text = stopped(capsys, "simplify/cse")
    assert [line for line in text.splitlines() if line.startswith("//")] == [
        "// ---- after simplify/cse#1 ----",
        "// ---- after simplify/cse#2 ----",
    ]
    assert text.count("tw.relu") == 2  # one of the two is gone after the first run already


def test_one_run_of_a_pass_is_printed(capsys):
    text = stopped(capsys, "simplify/cse#2", "lower/fold-constants")
    assert [line for line in text.splitlines() if line.startswith("//")] == [
        "// ---- after simplify/cse#2 ----",
        "// ---- after lower/fold-constants#1 ----",
    ]
    assert "linalg.generic" in text


@pytest.mark.parametrize("name", ["simplify/layout", "simplify/cse#9", "fuse/cse"])
def test_a_pass_that_does_not_run_is_no_name(name):
    with pytest.raises(UsageError, match=f"no pass '{name}' ran") as e:
        tw.compile(MODEL, stop_after="fuse", print_after=name, **PLAIN)
    assert ("cse (2 times)" in e.value.hint) == name.startswith("simplify")


def test_the_stage_of_a_pass_has_to_be_one():
    with pytest.raises(UsageError, match="unknown stage 'simple'"):
        tw.compile(MODEL, print_after="simple/cse", **PLAIN)


def test_time_has_a_line_for_each_pass_under_its_stage(capsys):
    tw.compile(MODEL, stop_after="lower", time=True, **PLAIN)
    lines = capsys.readouterr().err.splitlines()
    stages = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert stages == ["import", "simplify", "layout", "lower"]
    under = lines[lines.index(next(x for x in lines if x.startswith("simplify"))) + 1 :]
    passes = under[: [x.startswith(" ") for x in under].index(False)]
    assert any(x.split()[0] == "cse" and x.endswith("2 runs") for x in passes)
    assert [line.split()[0] for line in lines[-3:]] == ["lower", "fold-constants", "share-padding"]


def test_nobody_looks_unless_asked():
    state, _ = compile_state(MODEL, stop_after="lower", **PLAIN)
    assert state.instrumentation is None


def test_an_observer_sees_every_pass_and_stage():
    seen: list[tuple[str, int]] = []
    compile_state(MODEL, stop_after="fuse", observe=lambda name, graph, text: seen.append((name, graph.level)), **PLAIN)
    names = [name for name, _ in seen]
    assert names[0] == "import" and names[-1] == "fuse" and "simplify/fold#2" in names
    assert dict(seen)["layout"] == 2 and dict(seen)["lower/lower#1"] == 3


def test_a_wrong_result_is_found_after_the_pass_and_named(monkeypatch):
    """The verifier runs after each pass, not at the end of the stage."""
    from torch_mlir import ir

    def breaks(self, graph):
        next(graph.operations()).results[0].set_type(ir.Type.parse("tensor<5xf32>"))

    monkeypatch.setattr(cse.Cse, "run", breaks)
    with pytest.raises(CompileError) as e:
        tw.compile(MODEL, **PLAIN)
    assert e.value.stage == "simplify/cse"


def test_a_pass_that_fails_is_named(monkeypatch, tmp_path, capsys):
    def fails(self, graph):
        raise KeyError("nothing")

    monkeypatch.setattr(cse.Cse, "run", fails)
    with pytest.raises(CompileError, match="pass cse failed: KeyError: 'nothing'") as e:
        tw.compile(MODEL, **PLAIN)
    assert e.value.stage == "simplify/cse" and isinstance(e.value.__cause__, KeyError)
    file = tmp_path / "m.mlir"
    file.write_text(MODEL)
    assert main(["opt", str(file), "--pass", "cse"]) == 6
    assert "  stage: cse" in capsys.readouterr().err
    with pytest.raises(CompileError):
        main(["opt", str(file), "--pass", "cse", "--debug"])


def test_opt_times_passes(tmp_path, capsys):
    file = tmp_path / "m.mlir"
    file.write_text(MODEL)
    assert main(["opt", str(file), "--pass", "cse,dce", "--time"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [x.split()[0] for x in lines if x.endswith(" s")] == ["cse", "dce"]


@pytest.mark.parametrize(
    "text",
    [
        "cse",
        "layout{mode=nhwc}",
        "fold{max_elements=64}",
        "specialize{shapes=x:1x2;y:3}",
        "precision{dtype=f16}",
        "split-sums{tile=lanes:16;vectors:32;rows:16;in_flight:8}",
    ],
)
def test_passes_as_text(text):
    (made,) = parse_pipeline(text)
    assert parse_pipeline(pass_text(made)) == [made]


def test_a_pipeline_tells_of_each_pass():
    told: list[str] = []
    run_pipeline(Graph(parse(MODEL)), [make("cse"), make("dce")], after=lambda p, seconds: told.append(name_of(p)))
    assert told == ["cse", "dce"]


def test_the_graph_is_verified_after_stages_and_in_tests_after_passes(monkeypatch):
    seen = []
    monkeypatch.setattr(Graph, "verify", lambda graph, stage="verify": seen.append(stage))
    tw.compile(MODEL, stop_after="layout")
    assert {"cse", "dce", "simplify", "layout"} <= set(seen)
    seen.clear()
    monkeypatch.setenv("TILEWRIGHT_STRICT", "0")
    tw.compile(MODEL, stop_after="layout")
    assert seen[-2:] == ["simplify", "layout"] and "cse" not in seen
