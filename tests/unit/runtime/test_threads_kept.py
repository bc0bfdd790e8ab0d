"""The threads that a model was compiled with stay with its package; compiling is no run."""

import numpy as np
import pytest
from onnx import TensorProto, helper, save
from support.forged import rewrite

import tilewright as tw
from tilewright.cli import main
from tilewright.runtime.dynamic import DynamicExecutable

#: enough that threads share the work
WIDE = 1 << 20


def relu(rows):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, WIDE]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("rows", [2, "n"])
def test_threads_stay_with_the_package(rows, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_THREADS", "3")
    path = tmp_path / "m.tw"
    for given, found in ((1, 1), (2, 2), (None, 3), (8, 3)):
        run = tw.compile(relu(rows), threads=given)
        run(np.ones((2, WIDE), np.float32))
        run.save(path)
        assert tw.load(path).threads == found
        assert tw.load(path, threads=4).threads == 4
    tw.load(path).save(path)  # on a machine with fewer
    monkeypatch.setenv("TILEWRIGHT_THREADS", "5")
    assert tw.load(path).threads == 5
    for wrong in (0, -1, 2**70, "x", None, [], 1.5, True):

        def forge(manifest, wrong=wrong):
            manifest.get("dynamic", manifest).get("options" if rows == "n" else "report")["threads"] = wrong

        rewrite(path, forge)
        try:
            assert tw.load(path).threads == 5
        except tw.errors.PackageError:
            assert rows == "n"


def test_the_command_line_counts_runs_alone(tmp_path, monkeypatch, capsys):
    save(relu("n"), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((2, WIDE), np.float32))
    compiled, plain = [], DynamicExecutable.run

    def run(self, inputs):
        compiled.append(self.compiled)
        return plain(self, inputs)

    monkeypatch.setattr(DynamicExecutable, "run", run)
    assert (
        main(
            [
                "run",
                str(tmp_path / "m.onnx"),
                "--input",
                str(tmp_path / "x.npz"),
                "--repeat",
                "3",
                "--specialize",
                "now",
            ]
        )
        == 0
    )
    assert compiled == [0, 1, 1, 1] and "3 runs: min" in capsys.readouterr().err
    assert main(["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.tw"), "--threads", "1"]) == 0
    assert main(["explain", str(tmp_path / "m.tw")]) == 0
    assert "1 thread" in capsys.readouterr().out
