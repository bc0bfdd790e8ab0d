"""`tilewright report-slow`: reproducers of kernels, without weights."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tilewright.cli import main
from tilewright.report.slow_kernels import reproducers
from tilewright.schedule import rules
from tilewright.schedule.rules.elementwise import general
from tilewright.support.errors import UsageError

MODEL = """
func.func @main(%x: tensor<64x64xf32> {tw.name = "secret input"}) -> (tensor<64x64xf32> {tw.name = "y"}) {
  %w = "tw.constant"() {value = dense<7.25> : tensor<64x64xf32>} : () -> tensor<64x64xf32>
  %0 = "tw.matmul"(%x, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = "tw.softmax"(%0) {axis = 1 : i64} : (tensor<64x64xf32>) -> tensor<64x64xf32>
  return %1 : tensor<64x64xf32>
}
"""


@pytest.fixture
def plain(monkeypatch):
    """Only the last rule is there, which makes plain loops."""
    only = SimpleNamespace(NAME="general", PRIORITY=0, apply=general.apply)
    found = [*rules.rules()]
    known = [SimpleNamespace(NAME=r.NAME, PRIORITY=0, apply=lambda *_: "not today") for r in found[:-1]]
    monkeypatch.setattr(rules, "rules", lambda *_: [*known, only])


def test_slow_kernels_are_marked_and_written(plain):
    run = tw.compile(MODEL, threads=1, cache=False, tuned=False)
    text = run.explain()
    assert "(!)" in text and "is spent without vectors where a row would do" in text and "report-slow" in text
    found = reproducers(run.package)
    assert any(name.startswith("matmul") for name in found)
    (content,) = [t for n, t in found.items() if n.startswith("matmul")]
    assert "7.25" not in content and "secret" not in content
    for fact in ("rule: general", "refused by contraction: not today", '"vector_bytes"', 'start_after="fuse"'):
        assert fact in content, fact


def test_a_reproducer_compiles_to_the_same_kernel(tmp_path, capsys):
    model = tmp_path / "m.mlir"
    model.write_text(MODEL)
    folder = tmp_path / "slow"
    assert main(["report-slow", str(model), "-o", str(folder), "--kernel", "matmul", "--no-tuned"]) == 0
    (file,) = folder.glob("matmul*.mlir")
    assert str(file) in capsys.readouterr().out
    run = tw.compile(str(file), start_after="fuse", threads=1, tuned=False)
    assert [i.shape for i in run.inputs] == [(64, 64)]
    y = run(np.ones((64, 64), np.float32))[0]
    np.testing.assert_allclose(y, 64 * 0.01 if "softmax" not in file.name else 1 / 64, rtol=1e-5)
    original = tw.compile(MODEL, threads=1, tuned=False)
    about = {k["symbol"]: k for k in original.package.report["kernels"]}
    again = run.package.report["kernels"][0]
    assert again["symbol"] == file.stem and again["kind"] == about[file.stem]["kind"]


def test_nothing_to_report_and_unknown_kernels(tmp_path, capsys):
    model = tmp_path / "m.mlir"
    model.write_text(MODEL)
    assert main(["report-slow", str(model), "-o", str(tmp_path / "slow"), "--no-tuned"]) == 0
    assert "no kernel is marked" in capsys.readouterr().err and not (tmp_path / "slow").exists()
    with pytest.raises(UsageError, match="no kernel 'nothing'"):
        reproducers(tw.compile(MODEL, threads=1, tuned=False).package, ["nothing"])
