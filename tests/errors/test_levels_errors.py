"""Files of IR that are missing, damaged, or of another level: one clear error."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.cli import main
from tilewright.ir.constants import ConstantTable
from tilewright.support.errors import CompileError, ModelError, TilewrightError, UsageError

RELU = """func.func @main(%x: tensor<4xf32> {tw.name = "x"}) -> (tensor<4xf32> {tw.name = "y"}) {
  %w = "tw.constant"() {symbol = "w"} : () -> tensor<4xf32>
  %0 = "tw.add"(%x, %w) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@pytest.fixture
def file(tmp_path):
    """A level-2 file with its constants."""
    path = tmp_path / "g.mlir"
    path.write_text(RELU)
    table = ConstantTable()
    table.add(np.ones(4, np.float32), "w")
    table.save(path.with_suffix(".constants"))
    return path


def message(error, call, *args, **more) -> str:
    with pytest.raises(error) as e:
        call(*args, **more)
    return str(e.value)


def test_the_file_is_good(file):
    y = tw.compile(file, start_after="layout", cache=False)(np.zeros(4, np.float32))[0]
    assert np.array_equal(y, np.ones(4, np.float32))


def test_missing_and_binary_files(tmp_path):
    missing, binary = tmp_path / "none.mlir", tmp_path / "b.mlir"
    binary.write_bytes(b"\xff\xfe\x00garbage")
    for stage in ("import", "fuse", "emit"):
        text = message(ModelError, tw.compile, missing, start_after=stage)
        assert text.startswith(f"cannot read {missing}: No such file or directory")
        text = message(ModelError, tw.compile, binary, start_after=stage)
        assert "is not text" in text


def test_start_after_needs_a_path(file):
    text = message(UsageError, tw.compile, RELU.encode(), start_after="import")
    assert text == "start_after needs the path of a dumped file, not a bytes"


def test_unknown_stages(file):
    for option in ({"start_after": "linearize"}, {"stop_after": "linearize"}, {"print_after": ("linearize",)}):
        text = message(UsageError, tw.compile, file, **option)
        assert text.startswith("unknown stage 'linearize'")
        assert "stages: import, simplify, layout, lower, fuse, schedule, emit, assemble, package" in text


def test_constants_are_missing(file):
    file.with_suffix(".constants").unlink()
    text = message(ModelError, tw.compile, file, start_after="import")
    assert "refers to constant 'w', which is not in its constant file" in text
    assert "keep NAME.constants beside NAME.mlir" in text


def test_constants_of_another_shape(file):
    table = ConstantTable()
    table.add(np.ones(3, np.float32), "w")
    table.save(file.with_suffix(".constants"))
    text = message(ModelError, tw.compile, file, start_after="import")
    assert "refers to constant 'w' of type tensor<4xf32>, the file has tensor<3xf32>" in text


@pytest.mark.parametrize("size", [0, 4, 12, 40, 70])
def test_constants_are_truncated(file, size):
    side = file.with_suffix(".constants")
    side.write_bytes(side.read_bytes()[:size])
    text = message(ModelError, tw.compile, file, start_after="import")
    assert "is not a constant table or is damaged" in text


def test_text_that_does_not_parse_names_the_line(file):
    file.write_text(RELU.replace("return %0", "return %7"))
    text = message(ModelError, tw.compile, file, start_after="import")
    assert f"{file} is not valid MLIR: line 4, column 10: use of undeclared SSA value name" in text


def test_wrong_types_name_the_operator(file):
    text = RELU.replace('tensor<4xf32> {tw.name = "y"}', 'tensor<5xf32> {tw.name = "y"}')
    file.write_text(
        text.replace("-> tensor<4xf32>\n  return %0 : tensor<4", "-> tensor<5xf32>\n  return %0 : tensor<5")
    )
    text = message(CompileError, tw.compile, file, start_after="import")
    assert "tw.add: result type is tensor<5xf32>, its rule gives tensor<4xf32>" in text


def test_a_file_of_another_stage(file):
    text = message(TilewrightError, tw.compile, file, start_after="emit")
    assert text.startswith(f"{file} is not what was dumped after emit")
    text = message(TilewrightError, tw.compile, file, start_after="fuse")
    assert text.startswith(f"{file} is not what was dumped after fuse: it is level 2")


def test_our_passes_need_a_main(tmp_path, capsys):
    file = tmp_path / "m.mlir"
    file.write_text("module { func.func @f() { return } }")
    assert main(["opt", str(file), "--pass", "cse"]) == 3
    assert capsys.readouterr().err.startswith("error: the module has no function @main")
    assert main(["opt", str(file), "--pass", "mlir:cse"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--from", "schedule", "-o", "m.tw"], 3),
        (["--from", "package", "-o", "m.tw"], 2),
        (["--from", "import"], 2),
        (["--from", "nowhere", "-o", "m.tw"], 2),
        (["--from", "emit", "-o", "m.tw"], 3),
        (["--from", "import", "--pass", "cse", "-o", "m.tw"], 2),
        (["--stop-after", "fuse"], 2),
    ],
)
def test_exit_codes_of_opt(arguments, code, file, capsys, monkeypatch):
    monkeypatch.chdir(file.parent)
    before = sorted(file.parent.iterdir())
    assert main(["opt", str(file), *arguments]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "internal error" not in err
    assert sorted(file.parent.iterdir()) == before


@pytest.mark.parametrize("what", ["a file", "no permission"])
def test_dump_folder_that_cannot_be_made(file, tmp_path, what, monkeypatch):
    folder = tmp_path / "levels"
    if what == "a file":
        folder.write_text("")
    else:

        def refuse(*args, **more):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    text = message(UsageError, tw.compile, file, start_after="import", dump=folder)
    assert text.startswith(f"cannot write {folder}")
