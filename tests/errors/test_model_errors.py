"""What a user does wrong with models and packages, through the API and the command line: one clear error each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.cli import main
from tilewright.program import package as package_module
from tilewright.support.errors import CompileError, InputError, ModelError, PackageError, UnsupportedError, UsageError
from tilewright.targets.cpu import stages

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"
SHAPE = (2, 1, 8, 8)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def folder(tmp_path, cache, monkeypatch):
    """An empty working folder; compiled kernels are shared by the tests of this file."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(cache))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture(scope="module")
def package(tmp_path_factory, cache):
    """The bytes of the compiled digits model."""
    path = tmp_path_factory.mktemp("package") / "digits.tw"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(cache))
        tw.compile(DIGITS, inputs={"image": SHAPE}, threads=1).save(path)
    return path.read_bytes()


def failure(capsys, *arguments) -> tuple[int, str]:
    """Exit code and stderr of a command that must print nothing else and write nothing."""
    before = sorted(Path.cwd().rglob("*"))
    code = main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and "internal error" not in err and "Traceback" not in err
    assert sorted(Path.cwd().rglob("*")) == before, "something half-written was left"
    return code, err


# ---- ONNX files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.0, 0.0001, 0.01, 0.3, 0.7, 0.999])
def test_truncated_onnx(part, folder, capsys):
    data = DIGITS.read_bytes()
    path = folder / "cut.onnx"
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(ModelError) as e:
        tw.compile(path)
    text = str(e.value)
    assert text.startswith(f"{path} is not a valid ONNX file: ") and "stage: import" in text
    assert "hint: the file may be truncated, or not be an ONNX model" in text
    code, err = failure(capsys, "compile", path, "-o", "m.tw")
    assert code == 3 and err.rstrip("\n") == f"error: {text}"


def test_truncated_onnx_at_every_place(folder):
    """Wherever a file is cut: an error of ours, or (behind the graph) a model that is whole."""
    data, path = DIGITS.read_bytes(), folder / "cut.onnx"
    whole = 0
    for size in range(0, len(data), 997):
        path.write_bytes(data[:size])
        try:
            tw.compile(path, inputs={"image": SHAPE}, stop_after="import")
            whole += 1
        except ModelError:
            pass
    assert whole == 0


@pytest.mark.parametrize("content", [b"hello, this is no model", b"\x00" * 100, b"PK\x03\x04" + b"x" * 50])
def test_files_that_are_not_onnx(content, folder, capsys):
    path = folder / "m.onnx"
    path.write_bytes(content)
    code, err = failure(capsys, "run", path)
    assert code == 3 and err.startswith(f"error: {path} is not a valid ONNX file: ")


def test_no_such_file_and_unknown_kind(folder, capsys):
    code, err = failure(capsys, "run", "none.onnx")
    assert code == 2 and err.startswith("error: there is no file 'none.onnx'")
    (folder / "model.pt").write_bytes(b"x")
    code, err = failure(capsys, "run", "model.pt")
    assert code == 3 and "model.pt" in err


def unsupported_model() -> onnx.ModelProto:
    """Two operators that do not exist, one of them twice, and one of another domain."""
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="fine"),
        helper.make_node("Frobnicate", ["b"], ["c"], name="second"),
        helper.make_node("Warp", ["c"], ["y"], name="third", domain="com.example"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    return helper.make_model(helper.make_graph(nodes, "odd", [x], [y]), opset_imports=opsets, ir_version=8)


def test_unknown_operators_are_reported_all_at_once(folder, capsys):
    model = unsupported_model()
    with pytest.raises(UnsupportedError) as e:
        tw.compile(model)
    text = str(e.value)
    for part in ("Frobnicate", "Warp", "com.example", "first", "second", "third"):
        assert part in text, text
    assert "fine" not in text and "Relu" not in text
    assert "2" in text.split("Frobnicate", 1)[1].split("Warp")[0], "how often each is used"
    (folder / "odd.onnx").write_bytes(model.SerializeToString())
    code, err = failure(capsys, "compile", "odd.onnx", "-o", "m.tw")
    assert code == 4 and all(part in err for part in ("Frobnicate", "Warp", "first", "second", "third"))


def test_dynamic_inputs_must_be_given(capsys):
    code, err = failure(capsys, "run", DIGITS, "--specialize", "now")
    assert (
        code == 3 and "leaves the shape of 1 input open: image: [batch, 1, 8, 8]" in err and "--shape image=1x" in err
    )


def test_an_empty_batch_is_no_error():
    assert tw.compile(DIGITS, inputs={"image": (0, 1, 8, 8)})(np.zeros((0, 1, 8, 8), np.float32))[0].shape == (0, 10)


# ---- arrays --------------------------------------------------------------------------------------------------------

ARRAYS = [
    (
        {"image": np.zeros((3, 1, 8, 8), np.float32)},
        "input 'image' has f32[3, 1, 8, 8], the model takes f32[2, 1, 8, 8]",
    ),
    ({"image": np.zeros(SHAPE)}, "input 'image' has f64[2, 1, 8, 8], the model takes f32[2, 1, 8, 8]"),
    ({"picture": np.zeros(SHAPE, np.float32)}, "unknown input 'picture'; missing input 'image'"),
]


@pytest.mark.parametrize(("arrays", "message"), ARRAYS)
def test_wrong_arrays(arrays, message, folder, package, capsys):
    (folder / "m.tw").write_bytes(package)
    with pytest.raises(InputError) as e:
        tw.load("m.tw", threads=1).run(arrays)
    assert str(e.value).startswith(message)
    np.savez(folder / "in.npz", **arrays)
    code, err = failure(capsys, "run", "m.tw", "--input", "in.npz", "--output", "out.npz")
    assert code == 5 and err.startswith(f"error: {message}")


def test_check_finds_a_difference(folder, package, capsys):
    (folder / "m.tw").write_bytes(package)
    np.savez(folder / "in.npz", image=np.ones(SHAPE, np.float32))
    assert main(["run", "m.tw", "-i", "in.npz", "-o", "y.npz"]) == 0
    expected = dict(np.load("y.npz"))
    np.savez("wrong.npz", **{k: v + np.float32(0.01) for k, v in expected.items()})
    capsys.readouterr()
    assert main(["run", "m.tw", "-i", "in.npz", "--check", "y.npz"]) == 0
    assert "check passed" in capsys.readouterr().err
    assert main(["run", "m.tw", "-i", "in.npz", "--check", "wrong.npz"]) == 8
    assert "differs by " in capsys.readouterr().err


# ---- places --------------------------------------------------------------------------------------------------------


def test_places_that_cannot_be_written(folder, package, capsys):
    (folder / "m.tw").write_bytes(package)
    for *arguments, name in (["compile", DIGITS, "--shape", "image=2x1x8x8", "m.tw"], ["run", "m.tw", "y.npz"]):
        code, err = failure(capsys, *arguments, "-o", f"none/{name}")
        assert code == 2 and "the folder 'none' does not exist" in err
    with pytest.raises(UsageError, match=r"cannot write none/m\.tw: No such file or directory"):
        tw.load("m.tw").save("none/m.tw")


def test_a_full_disk_leaves_nothing(folder, package, monkeypatch):
    (folder / "m.tw").write_bytes(package)
    executable = tw.load("m.tw")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(package_module, "_write_section", full)
    with pytest.raises(UsageError, match=r"cannot write copy\.tw: No space left on device"):
        executable.save("copy.tw")
    assert [p.name for p in folder.iterdir()] == ["m.tw"]


# ---- packages ------------------------------------------------------------------------------------------------------


def sections(package: bytes) -> dict[str, int]:
    """A byte in the middle of each part of a package that holds data."""
    _, _, _, offset, length = package_module._HEAD.unpack_from(package)
    table = json.loads(package[offset : offset + length])["sections"]
    places = {name: s["offset"] + s["size"] // 2 for name, s in table.items()}
    return {**places, "its manifest": offset + length // 2, "magic": 2}


@pytest.mark.parametrize("part", ["objects", "weights", "levels", "its manifest", "magic"])
def test_a_changed_byte_in_each_section(part, folder, package, capsys):
    data = bytearray(package)
    data[sections(package)[part]] ^= 0x55
    (folder / "m.tw").write_bytes(data)
    wanted = {"magic": "is not a Tilewright package", "its manifest": "the checksum of its manifest is wrong"}
    message = wanted.get(part, f"the checksum of section '{part}' is wrong")
    with pytest.raises(PackageError) as e:
        tw.load("m.tw")
    assert message in str(e.value)
    for command in ("run", "explain"):
        code, err = failure(capsys, command, "m.tw")
        assert code == 7 and message in err


@pytest.mark.parametrize("keep", [0, 10, 4096, 0.5, 0.99])
def test_a_truncated_package(keep, folder, package, capsys):
    (folder / "m.tw").write_bytes(package[: keep if isinstance(keep, int) else int(len(package) * keep)])
    code, err = failure(capsys, "run", "m.tw")
    assert code == 7 and "m.tw" in err and ("damaged" in err or "not a Tilewright package" in err)


def test_a_foreign_package(folder, capsys):
    (folder / "m.tw").write_bytes(DIGITS.read_bytes())
    code, err = failure(capsys, "run", "m.tw")
    assert code == 7 and "m.tw is not a Tilewright package" in err.splitlines()[0]


# ---- kernels that end the compiler ---------------------------------------------------------------------------------


@pytest.fixture
def aborting(monkeypatch, tmp_path):
    """One kernel of every model calls an instruction of another processor, on which LLVM ends the process."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "aborts"))
    monkeypatch.setenv("TILEWRIGHT_PACKAGES_SIZE", "0")  # no other process compiles the model
    monkeypatch.setenv("TILEWRIGHT_JOBS", "1")  # nor emits its kernels
    original, done = stages.emit, []

    def emit(nest, machine):
        made = original(nest, machine)
        if done:
            return made
        done.append(nest)
        end = made.text.rindex("return")
        call = 'llvm.call_intrinsic "llvm.amdgcn.s.barrier"() : () -> ()\n    '
        return replace(made, text=made.text[:end] + call + made.text[end:])

    monkeypatch.setattr(stages, "emit", emit)
    return done


def test_a_kernel_that_makes_llvm_abort(aborting, tmp_path):
    with pytest.raises(CompileError) as e:
        tw.compile(DIGITS, inputs={"image": SHAPE})
    text = str(e.value)
    assert text.startswith("kernel ") and "cannot be compiled: the compiler process died (" in text
    assert "Cannot select" in text and "stage: assemble" in text
    assert "operator: " in text and "(kernel " in text
    assert "hint: to reproduce: " in text and e.value.saved and Path(e.value.saved).is_file()
    assert tw.compile(DIGITS, inputs={"image": SHAPE}).outputs, "this process can go on"


def test_a_kernel_that_makes_llvm_abort_on_the_command_line(aborting, capsys):
    code, err = failure(capsys, "compile", DIGITS, "--shape", "image=2x1x8x8", "-o", "m.tw")
    assert code == 6 and "the compiler process died" in err and "saved: " in err
