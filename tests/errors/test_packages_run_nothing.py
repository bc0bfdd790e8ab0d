"""Packages name no code: no Python file is run because of what stands in one, wherever it is loaded."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.forged import rewrite

import tilewright as tw
from tilewright.cli import main
from tilewright.support.errors import PackageError, TilewrightError
from tilewright.targets.accelerator import target as chips

CHIP = """
from dataclasses import dataclass
from tilewright.targets.chips.outer4 import Outer4

@dataclass(frozen=True)
class Other(Outer4):
    '''Outer4 with another name.'''
    name = "other"

CHIP = Other
"""
EVIL = "open('RAN', 'w').close()\nCHIP = None\n"


def product(rows=8):
    w = numpy_helper.from_array(np.random.default_rng(1).standard_normal((20, 30)).astype(np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 20])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 30])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder for another process: it was given no chip, and another file has the chip's name where it runs."""

    def go():
        monkeypatch.setattr(chips, "_GIVEN", {})
        folder = tmp_path / "elsewhere"
        folder.mkdir()
        for name in ("other.py", "evil.py"):
            (folder / name).write_text(EVIL)
        monkeypatch.chdir(folder)
        return folder

    return go


@pytest.mark.parametrize("rows", [8, "n"])
def test_a_chip_is_given_by_whoever_loads_its_package(rows, tmp_path, monkeypatch, elsewhere, capsys):
    (tmp_path / "other.py").write_text(CHIP)
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((8, 20)).astype(np.float32)
    run = tw.compile(product(rows), target="cpu+other.py", threads=1)
    want = run(x)[0]
    run.save(tmp_path / "m.tw")
    folder = elsewhere()
    with pytest.raises(PackageError, match="simulator is the Python that describes it") as e:
        tw.load(tmp_path / "m.tw")
    assert "chip='other.py'" in e.value.hint
    assert main(["run", str(tmp_path / "m.tw"), "--quiet"]) == e.value.exit_code
    assert "--chip other.py" in capsys.readouterr().err
    (folder / "changed").mkdir()
    (folder / "changed" / "other.py").write_text(CHIP + "\n# later\n")
    with pytest.raises(PackageError, match="the file given is another one"):
        tw.load(tmp_path / "m.tw", chip=folder / "changed" / "other.py")
    got = tw.load(tmp_path / "m.tw", chip=tmp_path / "other.py")
    np.testing.assert_array_equal(got(x)[0], want)
    if rows == "n":  # another size is compiled for the chip that was given
        assert got(x[:4])[0].shape == (4, 30)
    monkeypatch.setattr(chips, "_GIVEN", {})
    inputs = tmp_path / "x.npz"
    np.savez(inputs, x=x)
    for command in ("run", "profile"):
        code = main([command, str(tmp_path / "m.tw"), "--input", str(inputs), "--chip", str(tmp_path / "other.py")])
        assert code == (0 if command == "run" else 2), capsys.readouterr().err  # a simulated chip has no clock
    assert not (folder / "RAN").exists()


def test_what_the_host_does_alone_runs_without_the_chip(tmp_path, monkeypatch, elsewhere):
    (tmp_path / "other.py").write_text(CHIP)
    monkeypatch.chdir(tmp_path)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [6])
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    tw.compile(model, target="cpu+other.py:array=8", threads=1).save(tmp_path / "m.tw")
    folder = elsewhere()
    loaded = tw.load(tmp_path / "m.tw")
    np.testing.assert_allclose(loaded(np.zeros(6, np.float32))[0], 1 / 6, rtol=1e-6)
    assert "other.py#" in loaded.explain()
    assert not (folder / "RAN").exists()


def test_another_content_of_a_chip_is_another_chip(tmp_path):
    """What is kept by a chip's name is kept by its file's content."""
    from tilewright.targets.base import find

    names = []
    for text in (CHIP, CHIP + "\n# later\n", CHIP):
        (tmp_path / "other.py").write_text(text)
        names.append(find(f"cpu+{tmp_path / 'other.py'}:array=8").recorded)
    assert names[0] == names[2] != names[1]
    assert names[0].startswith("cpu+other.py#") and names[0].endswith(":array=8")


@pytest.mark.parametrize(
    "name", ["evil.py", "cpu+evil.py", "cpu+evil.py:array=8", "x+cpu+evil.py", "evil.py:+cpu", "cpu+./evil.py"]
)
@pytest.mark.parametrize("rows", [8, "n", "n:1..8"])
def test_a_forged_manifest_names_a_file(name, rows, tmp_path, elsewhere):
    open_rows = isinstance(rows, str) and ":" in rows
    model = product("n" if isinstance(rows, str) else rows)
    run = tw.compile(model, threads=1, **({"inputs": {"x": (rows, 20)}} if open_rows else {}))
    run(np.zeros((8, 20), np.float32))
    run.save(tmp_path / "m.tw")
    folder = elsewhere()
    found = []

    def forge(told):
        """Every target that the manifest has."""
        if isinstance(told, dict):
            found.extend(k for k in told if k == "target")
            told |= {"target": name} if "target" in told else {}
        for inner in told.values() if isinstance(told, dict) else told if isinstance(told, list) else ():
            forge(inner)

    rewrite(tmp_path / "m.tw", forge)
    with pytest.raises(TilewrightError):
        tw.load(tmp_path / "m.tw")
    assert found and not (folder / "RAN").exists()
