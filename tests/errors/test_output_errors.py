"""Output files that would overwrite what a command reads, or whose names do not say what they are."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), "m.onnx")
    np.savez("x.npz", x=np.ones((2, 3), np.float32))
    os.symlink("m.onnx", "link.tw")
    os.link("m.onnx", "hard.mlir")
    (tmp_path / "g.mlir").write_text("func.func @main() { return }")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        "compile m.onnx -o m.onnx",
        "compile m.onnx -o ./link.tw",
        "compile m.onnx -o hard.mlir --stop-after fuse",
        "run m.onnx --input x.npz -o x.npz",
        "run m.onnx --check x.npz -o x.npz",
        "profile m.onnx --json m.onnx",
        "opt g.mlir --pass cse -o g.mlir",
    ],
)
def test_what_is_read_is_not_overwritten(arguments, folder, capsys):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert "would overwrite" in error and "give another file name" in error
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


@pytest.mark.parametrize(
    "arguments, hint",
    [
        ("compile m.onnx -o m.so", "a name that ends with .tw"),
        ("compile m.onnx -o other.onnx", "a name that ends with .tw"),
        ("compile m.onnx --target c -o m.c", "give a folder (-o m), or a package (-o m.tw)"),
        ("compile m.onnx --target cortex-m4 -o m.elf", "give a folder (-o m)"),
        ("compile m.onnx --stop-after fuse -o m.tw", "a name that ends with .mlir or .txt"),
        ("run m.onnx -o y.onnx", "a name that ends with .npz"),
        ("profile m.onnx --html p.json", "a name that ends with .html"),
        ("opt g.mlir --from import -o m.onnx", "a name that ends with .tw"),
        ("db export -o m.onnx", "a name that ends with .json"),
    ],
)
def test_names_say_what_files_are(arguments, hint, folder, capsys):
    before = {p.name for p in folder.iterdir()}
    assert main(arguments.split()) == 2
    assert hint in capsys.readouterr().err
    assert {p.name for p in folder.iterdir()} == before


def test_the_right_names_are_written(folder, capsys):
    for arguments in (
        "compile m.onnx -o m.tw --threads 1",
        "compile m.onnx -o m.tw --threads 1",
        "compile m.onnx -o fused.mlir --stop-after fuse",
        "compile m.onnx -o nests.txt --stop-after schedule",
        "compile m.onnx -o sources --target c",
        "compile m.onnx -o board.tw --target c",
        "run m.tw -o y.npz",
    ):
        assert main(arguments.split()) == 0, capsys.readouterr().err
    made = {p.name for p in folder.iterdir()}
    assert {"m.tw", "fused.mlir", "nests.txt", "sources", "board.tw", "y.npz"} <= made
