"""What is kept on disk can be seen and deleted."""

import numpy as np
import pytest
from onnx import TensorProto, helper, save

import tilewright as tw
from tilewright.cli import main
from tilewright.report import caches


@pytest.fixture
def used(tmp_path, monkeypatch):
    """A cache folder with a compiled model in it, and a tuning database."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TILEWRIGHT_DB", raising=False)
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "small", info[:1], info[1:])
    path = tmp_path / "small.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    tw.compile(path, threads=1)(np.zeros(4, np.float32))
    (tmp_path / "cache" / "tuning.sqlite").write_bytes(b"results")
    return tmp_path / "cache"


def test_parts_are_listed_with_their_sizes(used, capsys):
    assert main(["cache"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == {"part", *(p.name for p in caches.PARTS)}
    packages = next(p for p in caches.PARTS if p.name == "packages")
    assert caches.size(packages) == sum(f.stat().st_size for f in (used / "packages").rglob("*") if f.is_file()) > 0
    assert str(used / "tuning.sqlite") in lines["tuning"]


def test_clearing_leaves_the_results_of_tuning(used):
    assert main(["cache", "--clear"]) == 0
    assert [p.name for p in caches.PARTS if caches.files(p)] == ["tuning"]
    assert main(["cache", "tuning", "--clear"]) == 0
    assert not (used / "tuning.sqlite").exists()


def test_clearing_takes_only_what_is_named(used):
    assert main(["cache", "packages", "--clear"]) == 0
    left = {p.name for p in caches.PARTS if caches.files(p)}
    assert "packages" not in left and {"kernels", "tuning"} <= left


def test_an_unknown_part_is_refused(used, capsys):
    assert main(["cache", "kernel", "--clear"]) == 2
    assert "there are: kernels, packages" in capsys.readouterr().err
    assert caches.files(caches.PARTS[0])
