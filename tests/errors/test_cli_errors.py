"""Errors of the command line: one clear message on stderr, the documented exit code, nothing half-written."""

import subprocess
import sys

import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.cli import main
from tilewright.support.errors import CompileError, UsageError

RETURNS_ARGUMENT = """func.func @main(%x: tensor<4xf32> {tw.name = "x"}) -> (tensor<4xf32> {tw.name = "y"}) {
  return %x : tensor<4xf32>
}
"""


def failure(capsys, *arguments):
    """The exit code and the lines on stderr; stdout must be empty."""
    code = main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert out == ""
    return code, err.rstrip("\n").split("\n")


def test_unknown_command(capsys):
    code, lines = failure(capsys, "frobnicate")
    assert code == 2
    assert "No such command 'frobnicate'" in lines[-1]


def test_unknown_option(capsys):
    code, lines = failure(capsys, "run", "m.onnx", "--tread", "2")
    assert code == 2
    assert "--tread" in lines[-1]


def test_compile_without_destination(capsys):
    code, lines = failure(capsys, "compile", "m.onnx")
    assert code == 2
    assert lines == ["error: where should the package go?", "  stage: command line", "  hint: add -o model.tw"]


@pytest.mark.parametrize("shape", ["1x2x3", "x=1xax3", "=1x2", "x=1x-2"])
def test_malformed_shape(capsys, shape):
    code, lines = failure(capsys, "run", "m.onnx", "--shape", shape)
    assert code == 2
    assert lines[0] == f"error: --shape {shape!r} is not NAME=1x3x224x224"


def test_output_folder_is_missing(capsys, tmp_path):
    code, lines = failure(capsys, "compile", "m.onnx", "-o", tmp_path / "no" / "m.tw")
    assert code == 2
    assert lines[0].startswith("error: cannot write the package to ") and "does not exist" in lines[0]


def test_output_is_a_folder(capsys, tmp_path):
    code, lines = failure(capsys, "run", "m.onnx", "-o", tmp_path)
    assert code == 2
    assert lines[0].endswith("it is a folder")


def test_input_file_is_missing(capsys, tmp_path):
    code, lines = failure(capsys, "run", "m.onnx", "-i", tmp_path / "x.npz")
    assert code == 2
    assert lines[0].startswith("error: there is no file ")


def test_input_file_is_damaged(capsys, tmp_path):
    (tmp_path / "x.npz").write_bytes(b"rubbish")
    code, lines = failure(capsys, "run", "m.onnx", "-i", tmp_path / "x.npz")
    assert code == 5
    assert lines[0].startswith("error: cannot read arrays from ")
    assert lines[-1].startswith("  hint: write the file with numpy.savez")


def test_reference_check_of_a_package(capsys):
    code, lines = failure(capsys, "run", "m.tw", "--check", "reference")
    assert code == 2
    assert "needs the model" in lines[0]


def test_compile_options_on_a_package(capsys):
    code, lines = failure(capsys, "run", "m.tw", "--shape", "x=1")
    assert code == 2
    assert lines[0] == "error: --shape has no meaning for 'm.tw', which is compiled already"


def test_opt_without_a_file(capsys, tmp_path):
    assert failure(capsys, "opt")[1][0] == "error: no file was given"
    code, lines = failure(capsys, "opt", tmp_path / "no.mlir")
    assert code == 2
    assert lines[0].startswith("error: there is no file ")


def test_opt_with_an_unknown_pass(capsys, tmp_path):
    (tmp_path / "g.mlir").write_text(RETURNS_ARGUMENT)
    code, lines = failure(capsys, "opt", tmp_path / "g.mlir", "--pass", "no-such-pass")
    assert code == 2
    assert lines[0] == "error: unknown pass or pipeline 'no-such-pass'"
    assert "known passes: " in "".join(lines)


def test_opt_with_an_unknown_option(capsys, tmp_path):
    (tmp_path / "g.mlir").write_text(RETURNS_ARGUMENT)
    code, lines = failure(capsys, "opt", tmp_path / "g.mlir", "--pass", "fold{size=3}", "-o", tmp_path / "out.mlir")
    assert code == 2
    assert lines[0] == "error: pass fold has no option 'size'"
    assert not (tmp_path / "out.mlir").exists()


def test_opt_on_text_that_is_not_mlir(capsys, tmp_path):
    (tmp_path / "g.mlir").write_text("func.func @main(")
    code, lines = failure(capsys, "opt", tmp_path / "g.mlir", "--pass", "cse")
    assert code == 3
    assert "is not valid MLIR" in lines[0]


def test_errors_of_the_compiler_are_shown_whole(capsys, monkeypatch):
    def broken():
        raise CompileError("no", stage="emit", operator='Conv "c1"', hint="do this", saved="/there")

    monkeypatch.setattr("tilewright.report.doctor.examine", broken)
    code, lines = failure(capsys, "doctor")
    assert code == 6
    assert lines == ["error: no", "  stage: emit", '  operator: Conv "c1"', "  hint: do this", "  saved: /there"]


def test_internal_errors_are_one_line(capsys, monkeypatch):
    def broken():
        raise ZeroDivisionError("this\nwas\nunexpected")

    monkeypatch.setattr("tilewright.report.doctor.examine", broken)
    code, lines = failure(capsys, "doctor")
    assert code == 70
    assert lines[0] == "error: internal error: ZeroDivisionError: this was unexpected"
    assert "--debug" in lines[1] and len(lines) == 2
    for arguments in (["--debug", "doctor"], ["doctor", "--debug"]):
        with pytest.raises(ZeroDivisionError):
            main(arguments)


def test_interruption(capsys, monkeypatch):
    def broken():
        raise KeyboardInterrupt

    monkeypatch.setattr("tilewright.report.doctor.examine", broken)
    assert failure(capsys, "doctor") == (130, ["interrupted"])


def test_colours_on_a_terminal_only(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def broken():
        raise UsageError("wrong [brackets]", hint="see [docs]")

    monkeypatch.setattr("tilewright.report.doctor.examine", broken)
    assert main(["doctor"]) == 2
    text = capsys.readouterr().err
    assert "\x1b[" in text and "wrong [brackets]" in text and "see [docs]" in text
    monkeypatch.setenv("NO_COLOR", "1")
    main(["doctor"])
    assert capsys.readouterr().err == "error: wrong [brackets]\n  hint: see [docs]\n"


def test_closed_pipe_is_no_traceback():
    command = f"{sys.executable} -m tilewright opt --list | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr


@pytest.fixture
def relu(tmp_path):
    """Files with relu of two rows, and of any number of rows."""

    def write(rows):
        path = tmp_path / f"relu_{rows}.onnx"
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, 3]) for n in "xy")
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
        return path

    return write


def test_what_cannot_be_tuned(capsys, relu):
    code, lines = failure(capsys, "tune", relu("n"), "--trials", 1, "--no-pretrained")
    assert code == 2
    assert "whose shapes are known at run time only cannot be tuned: x: f32[n, 3]" in lines[-3]
    assert "--shape" in lines[-1]
    code, lines = failure(capsys, "tune", relu(2), "--trials", 1, "--target", "cortex-m4")
    assert code == 2 and "target cortex-m4 cannot be tuned" in lines[-3]


def test_what_cannot_be_profiled(capsys, relu):
    code, lines = failure(capsys, "profile", relu(2), "--target", "cortex-m4")
    assert code == 2
    assert lines[0] == "error: code for cortex-m4 does not run in this process" and "--emulate" in lines[-1]


def test_no_option_is_ignored(capsys, relu, tmp_path):
    package, graph = tmp_path / "m.tw", tmp_path / "g.mlir"
    assert main(["compile", str(relu(2)), "-o", str(package), "--threads", "1"]) == 0
    graph.write_text(RETURNS_ARGUMENT)
    capsys.readouterr()
    for given in (["--precision", "bf16"], ["--target", "cpu"], ["--no-winograd"], ["--time"], ["--shape", "x=2x3"]):
        for command in ("run", "explain", "profile"):
            code, lines = failure(capsys, command, package, *given)
            assert code == 2 and lines[0].startswith(f"error: {given[0]} has no meaning for ")
    for given in (["--verify"], ["--precision", "f32"], ["--stop-after", "fuse"], ["--dump", tmp_path], ["--no-cache"]):
        code, lines = failure(capsys, "opt", graph, "--pass", "cse", *given)
        assert code == 2 and lines[0] == f"error: {given[0]} has no meaning when passes run on a file"
        assert "--from STAGE" in lines[-1]
    code, lines = failure(capsys, "opt", graph, "--pass", "cse,dce", "--print-after", "fold")
    assert code == 2 and "'fold' is no pass that runs" in lines[0] and "cse, dce" in lines[-1]
    code, lines = failure(capsys, "run", relu(2), "--stop-after", "fuse", "-o", "y.npz")
    assert code == 2 and "leaves nothing to run" in lines[0]
    code, lines = failure(capsys, "run", relu(2), "--emulate", "--repeat", 3)
    assert code == 2 and "--repeat has no meaning with --emulate" in lines[0]
