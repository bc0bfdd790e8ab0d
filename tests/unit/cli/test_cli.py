"""The command line without a compilation: help, versions, options, tables, passes on files."""

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright import __version__
from tilewright.cli import EXIT_CODES, app, main
from tilewright.cli.common import _compile_options, table
from tilewright.driver.compiler import stages
from tilewright.report.doctor import EXTRAS
from tilewright.support.errors import TilewrightError, UsageError

COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands]

DOUBLED = """func.func @main(%x: tensor<4xf32> {tw.name = "x"}) -> (tensor<4xf32> {tw.name = "y"}) {
  %0 = "tw.softmax"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "tw.softmax"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "tw.softmax"(%1) : (tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""


def test_help_names_every_command_and_exit_code(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert {"compile", "run", "opt", "explain", "targets", "doctor"} <= set(COMMANDS)
    for command in COMMANDS:
        assert f"\n  {command} " in text
    for code, meaning in EXIT_CODES.items():
        assert re.search(rf"^ +{code}  {re.escape(meaning)}$", text, re.M)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: tilewright {command}")


@pytest.mark.parametrize("command", ["compile", "run", "opt", "explain"])
def test_compiling_commands_share_their_options(command, capsys):
    main([command, "--help"])
    text = capsys.readouterr().out
    for option in ("print-after", "dump", "time", "target", "precision", "threads", "shape", "no-cache", "debug"):
        assert f"--{option}" in text


def test_every_error_class_has_a_documented_exit_code():
    def classes(cls):
        return [cls, *[c for sub in cls.__subclasses__() for c in classes(sub)]]

    assert {cls.exit_code for cls in classes(TilewrightError)} <= set(EXIT_CODES)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tilewright {__version__}\n"


def test_shapes_become_inputs():
    assert _compile_options(shape=["a=1x2", "b.c="])["inputs"] == {"a": (1, 2), "b.c": ()}
    assert _compile_options()["inputs"] is None
    assert _compile_options(shape=["a=1x2", "a=1x2"])["inputs"] == {"a": (1, 2)}
    with pytest.raises(UsageError, match="'a' two shapes, 1x2 and 1x4"):
        _compile_options(shape=["a=1x2", "a=1x4"])
    for text in ("a=1xn", "a=-1", "a", "a=1x"):
        with pytest.raises(UsageError, match="is not NAME="):
            _compile_options(shape=[text])


def test_tables_are_plain_in_a_pipe(capsys):
    table(("name", "count"), [("a", 1), ("long name", 200)])
    assert capsys.readouterr().out == "name       count\na              1\nlong name    200\n"


def test_table_without_rows(capsys):
    table(("name", "count"), [])
    assert capsys.readouterr().out == "name  count\n"


def test_opt_runs_passes_and_prints(tmp_path, capsys):
    file = tmp_path / "graph.mlir"
    file.write_text(DOUBLED)
    assert main(["opt", str(file), "--pass", "cse,dce"]) == 0
    text = capsys.readouterr().out
    assert text.count('"tw.softmax"') == 2


def test_opt_writes_what_it_can_read_again(tmp_path, capsys):
    file, out = tmp_path / "graph.mlir", tmp_path / "out.mlir"
    file.write_text(DOUBLED)
    assert main(["opt", str(file), "--pass", "mlir:cse", "-o", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["opt", str(out)]) == 0
    assert capsys.readouterr().out.count('"tw.softmax"') == 2


def test_opt_reads_text_of_other_dialects(tmp_path, capsys):
    file = tmp_path / "loops.mlir"
    file.write_text(
        "func.func @f(%x: i32) -> i32 { %c = arith.constant 0 : i32\n %y = arith.addi %x, %c : i32\n return %y : i32 }"
    )
    assert main(["opt", str(file), "--pass", "canonicalize"]) == 0
    assert "arith.addi" not in capsys.readouterr().out


def test_opt_lists_passes(capsys):
    assert main(["opt", "--list"]) == 0
    assert re.search(r"^cse +\S", capsys.readouterr().out, re.M)


class Stdin(io.TextIOWrapper):
    """Text in place of stdin, with the file descriptor of a file."""

    def __init__(self, text, path):
        path.write_text(text)
        super().__init__(path.open("rb"))


@pytest.mark.parametrize("name", [[], ["-"]])
def test_opt_reads_stdin(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", Stdin(DOUBLED, tmp_path / "text"))
    assert main(["opt", *name, "--pass", "cse,dce"]) == 0
    assert capsys.readouterr().out.count('"tw.softmax"') == 2
    monkeypatch.setattr("sys.stdin", Stdin("no MLIR", tmp_path / "text"))
    assert main(["opt", *name, "--pass", "cse"]) == 3
    assert "stdin" in capsys.readouterr().err
    assert main(["opt", *name, "--from", "fuse", "-o", str(tmp_path / "m.tw")]) == 2
    assert "--from continues from a file" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--repeat", "--repeats"])
@pytest.mark.parametrize("command", ["run", "profile"])
def test_repeats_have_one_name_everywhere(flag, command, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "graph.mlir").write_text(DOUBLED)
    assert main([command, str(tmp_path / "graph.mlir"), flag, "2", "--threads", "1"]) == 0
    captured = capsys.readouterr()
    assert "2 runs" in captured.out + captured.err


def test_a_check_says_what_it_allows(tmp_path, capsys):
    (tmp_path / "graph.mlir").write_text(DOUBLED)
    for precision, said in (("f32", "0.0001 for f32"), ("bf16", "0.2 for bf16")):
        given = ["run", str(tmp_path / "graph.mlir"), "--check", "reference", "--precision", precision]
        assert main([*given, "--threads", "1"]) == 0
        assert f"(tolerance {said})" in capsys.readouterr().err
    auto = ["--precision", "auto", "--tolerance", "1e-2"]
    assert main(["run", str(tmp_path / "graph.mlir"), "--check", "reference", *auto, "--threads", "1"]) == 0


def test_quiet_and_verbose(tmp_path, capsys):
    file, package = tmp_path / "graph.mlir", tmp_path / "m.tw"
    file.write_text(DOUBLED)
    compiling = ["compile", str(file), "-o", str(package), "--threads", "1"]
    for given in (["-q", *compiling], [*compiling, "--quiet"], ["run", str(package), "-q"]):
        assert main(given) == 0
        assert capsys.readouterr().err == ""
    for given in (["-v", *compiling], [*compiling, "--verbose"]):
        assert main(given) == 0
        said = capsys.readouterr().err
        assert len(re.findall(r"^\S+ +\d+\.\d{3} s$", said, re.M)) == len(stages()) and "compiled in" in said
    assert main(["run", str(package), "-v", "--repeat", "2"]) == 0
    assert main(["run", str(package), "-q", "--repeat", "2"]) == 0
    assert capsys.readouterr().err.count("2 runs: ") == 2, "what was asked for is said"
    assert main(compiling) == 0
    assert len(capsys.readouterr().err.splitlines()) == 1, "neither lasts"
    assert main(["-q", "run", str(package), "-v"]) == 2
    assert "do not go together" in capsys.readouterr().err


def test_verbose_shows_the_log(tmp_path, capsys):
    (tmp_path / "open.mlir").write_text(DOUBLED.replace("4xf32", "?xf32"))
    np.savez(tmp_path / "x.npz", x=np.ones(3, np.float32))
    given = ["run", str(tmp_path / "open.mlir"), "-i", str(tmp_path / "x.npz"), "--threads", "1"]
    for more, said in ((["-v"], 1), ([], 0)):
        assert main([*given, *more]) == 0
        assert capsys.readouterr().err.count("specialized for x f32[3]") == said


def test_the_log_has_one_level(tmp_path, capsys, monkeypatch):
    """Of the environment; -v and -q know better."""
    (tmp_path / "graph.mlir").write_text(DOUBLED)
    given = ["compile", str(tmp_path / "graph.mlir"), "--stop-after", "simplify"]
    for level, more, said in (("debug", [], 1), ("debug", ["-v"], 1), ("debug", ["-q"], 0), ("info", [], 0)):
        monkeypatch.setenv("TILEWRIGHT_LOG", level)
        assert main([*given, *more]) == 0
        assert capsys.readouterr().err.count("simplify/match-softmax: ") == said
    monkeypatch.setenv("TILEWRIGHT_LOG", "loud")
    assert main(given) == 2
    assert "must be one of debug, info, warning, error" in capsys.readouterr().err


def test_doctor_finds_this_installation_sound(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^ok +LLVM: .*ran it$", text, re.M)
    assert "problem" not in text
    for extra in EXTRAS:
        assert re.search(rf"^(ok|note) +extra {extra}: ", text, re.M)


def test_doctor_knows_every_extra():
    """Those of pyproject.toml, with the packages that each brings."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    given = tomllib.loads(text)["project"]["optional-dependencies"]
    developers = {"models", "bench", "zoo", "fuzz", "rtl", "docs", "gpu-tests", "dev"}
    assert set(given) == {*EXTRAS} | developers

    for name, (brought, _) in EXTRAS.items():
        lines = [line for e in (name, "tune") if name == "ray" or e == name for line in given[e]]
        assert set(brought) == {re.match(r"[\w-]+", line)[0] for line in lines} - {"tilewright"}, name


def test_opt_prints_and_times_passes(tmp_path, capsys):
    file = tmp_path / "graph.mlir"
    file.write_text(DOUBLED)
    assert main(["opt", str(file), "--pass", "cse,dce,mlir:canonicalize", "--print-after", "cse", "--time"]) == 0
    said = capsys.readouterr().err
    assert said.count("// ---- after ") == 1 and "// ---- after cse ----\n" in said and "tw.softmax" in said
    assert len(re.findall(r"^\S+ +\d+\.\d{3} s$", said, re.M)) == 3
    assert main(["opt", str(file), "--pass", "cse,dce", "--print-after", "all"]) == 0
    assert capsys.readouterr().err.count("// ---- after ") == 2


def test_errors_are_in_the_words_of_the_command_line(tmp_path, capsys):
    """Options of `tilewright.compile` are flags there; what makes files asks for a folder."""
    write_open(tmp_path / "m.onnx")
    model = str(tmp_path / "m.onnx")
    for command, said in (
        (["compile", model, "--target", "web"], "add -o out, a folder"),
        (["compile", model], "add -o model.tw"),
        (["tune", model], "give --trials 200 or --minutes 15"),
        (["tune", model, "--trials", "3", "--shape", "x=n:1..8,4"], "tune at a size in the range: --shape NAME=1x128"),
        (["compile", model, "--stop-after", "layout"], "--shape x=1x..."),
        (["run", model, "--tolerance", "1e-2"], "give --precision auto"),
        (["run", model, "--shape", "x=n:1..8,4", "--verify"], "fixed sizes: --shape NAME=1x128"),
    ):
        assert main(command) != 0
        text = capsys.readouterr().err
        assert said in text and not re.search(r"\b(inputs|trials|precision|specialize|verify)=", text), text


def write_open(path):
    """A model with one open dimension."""
    import onnx
    from onnx import parser

    onnx.save(
        parser.parse_model('<ir_version: 8, opset_import: ["": 18]> m (float[n, 4] x) => (y) { y = Relu(x) }'), path
    )


def test_tuning_without_lightgbm_says_so_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    monkeypatch.setattr("tilewright.tune.tuner.alone", None)
    for more in ([], ["--no-pretrained"]):
        assert main(["tune", str(tmp_path / "none.onnx"), "--trials", "3", *more]) == 2
        assert "pip install tilewright[tune]" in capsys.readouterr().err
