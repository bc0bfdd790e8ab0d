"""Open dimensions on the command line: ranges in --shape, packages that take any size, what is refused."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from support.open_models import MODELS, feeds

import tilewright as tw
from tilewright.cli import main
from tilewright.support.errors import UsageError
from tilewright.support.option_info import shapes
from tilewright.support.sizes import Dim

RANGES = ["--shape", "ids=batch:1..16,seq:1..64", "--shape", "mask=batch:1..16,seq:1..64"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "encoder.onnx"
    onnx.save(MODELS["encoder"][0](), path)
    return path


@pytest.fixture(scope="module")
def package(encoder):
    path = encoder.with_name("m.tw")
    assert main(["compile", str(encoder), "-o", str(path), "--threads", "1", "-q", *RANGES]) == 0
    return path


@pytest.mark.parametrize(
    "text, shape",
    [
        ("1x128", (1, 128)),
        ("", ()),
        ("7", (7,)),
        ("1,128", (1, 128)),
        ("batch:1..64,seq:1..512", (Dim("batch", 1, 64), Dim("seq", 1, 512))),
        ("batch:1..64,3,224", (Dim("batch", 1, 64), 3, 224)),
        ("1,past+seq", (1, "past+seq")),
        ("1,past + 1", (1, "past + 1")),
        ("max_x:8..512:8", (Dim("max_x", 8, 512, 8),)),
    ],
)
def test_shapes(text, shape):
    assert shapes("--shape", [f"ids={text}"]) == {"ids": shape}


@pytest.mark.parametrize(
    "text, message",
    [
        ("ids=batch", "is not NAME=1x3x224x224"),
        ("ids=batch:1..64xseq:1..512", "'batch:1..64xseq:1..512' is no open dimension"),
        ("ids=batch:1..64,-1", "is not NAME=1x3x224x224, or NAME=batch:1..64,seq:1..512"),
        ("ids=batch:4..1", "batch: 4..1 is no range of sizes"),
        ("ids=batch:1..64,", "is not NAME="),
        ("ids=1,batch", "is not NAME="),
        ("batch:1..64", "is not NAME="),
    ],
)
def test_texts_that_are_no_shape(text, message):
    with pytest.raises(UsageError) as info:
        shapes("--shape", [text])
    assert message in info.value.message and "--shape" in info.value.message


def test_one_input_with_two_shapes():
    with pytest.raises(UsageError, match=r"two shapes, n:1\.\.4,3 and n:1\.\.5,3"):
        shapes("--shape", ["x=n:1..4,3", "x=n:1..5,3"])


@pytest.mark.parametrize("batch, seq", [(1, 1), (3, 17), (16, 64)])
def test_a_package_runs_at_any_size(package, tmp_path, batch, seq):
    given = feeds("encoder", batch, seq)
    np.savez(tmp_path / "x.npz", **given)
    out = tmp_path / "y.npz"
    assert main(["run", str(package), "-i", str(tmp_path / "x.npz"), "-o", str(out), "--threads", "1", "-q"]) == 0
    with np.load(out) as got:
        assert got["y1"].shape == (batch, seq, 32)
        np.testing.assert_array_equal(got["y0"], tw.load(package, threads=1)(given)[0])


def test_a_size_out_of_range(package, tmp_path, capsys):
    np.savez(tmp_path / "x.npz", ids=np.zeros((1, 65), np.int64), mask=np.zeros((1, 65), np.int64))
    assert main(["run", str(package), "-i", str(tmp_path / "x.npz")]) != 0
    assert "seq is 65 in input 'ids', it has to be 1 to 64" in capsys.readouterr().err


def test_run_with_the_reference(encoder, tmp_path, capsys):
    np.savez(tmp_path / "x.npz", **feeds("encoder", 2, 9))
    command = ["run", str(encoder), "-i", str(tmp_path / "x.npz"), "--check", "reference", "--threads", "1", *RANGES]
    assert main(command) == 0
    assert "check passed" in capsys.readouterr().err


def test_random_data_has_typical_sizes(package, encoder, capsys):
    assert main(["run", str(package), "--threads", "1"]) == 0
    assert "4x8x32" in capsys.readouterr().out
    assert main(["run", str(encoder), "--check", "reference", "--threads", "1", *RANGES]) == 0
    assert "check passed" in capsys.readouterr().err


def test_explain(package, capsys):
    assert main(["explain", str(package)]) == 0
    said = capsys.readouterr().out
    assert "input  ids: i64[batch, seq]" in said and "output y1: f32[batch, seq, 32]" in said
    assert "open   batch: 1 to 16; typically 4" in said and "open   seq: 1 to 64; typically 8" in said
    assert "memory at batch 4, seq 8" in said
    assert main(["explain", str(package), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    data = data.get("entries", {}).get("main", data)
    assert data["inputs"][0] == {"name": "ids", "dtype": "i64", "shape": ["batch", "seq"]}
    assert data["dimensions"][1] == {"name": "seq", "low": 1, "high": 64, "divisor": 1, "typical": 8}


def test_help_shows_ranges(capsys):
    main(["compile", "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "NAME=batch:1..64,seq:8..512:8" in said


@pytest.mark.parametrize(
    "more, message",
    [
        (["--target", "cortex-m4"], "target 'cortex-m4' has no open dimensions (batch:1..16, seq:1..64)"),
        (["--target", "aarch64"], "target 'aarch64' has no open dimensions"),
        (["--state", "ids=y0"], "a state has known sizes, but for one dimension along which it grows"),
        (["--buckets", "batch=1,8"], "buckets pad to sizes that programs are made for"),
        (["--verify"], "--verify runs the model"),
        (["--precision", "auto", "--tolerance", "1e-2"], "--precision auto runs the model"),
        (["--arena-limit", "1M"], "is known when it runs: there is no arena_limit for it"),
        (["--shape", "mask=batch:1..16,seq:1..32"], "two shapes"),
    ],
)
def test_what_open_dimensions_do_not_go_with(encoder, tmp_path, capsys, more, message):
    out = tmp_path / "m.tw"
    assert main(["compile", str(encoder), "-o", str(out), *RANGES, *more]) != 0
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said and said.count("error:") == 1
    assert not out.exists()


def test_a_profile_is_of_the_sizes_that_are_given(package, encoder, tmp_path, capsys):
    np.savez(tmp_path / "x.npz", **feeds("encoder", 2, 9))
    assert main(["profile", str(package), "-i", str(tmp_path / "x.npz"), "--repeats", "2"]) == 0
    assert main(["profile", str(encoder), "--repeats", "2", "--json", str(tmp_path / "p.json"), "--threads", "1"]) == 0
    assert json.loads((tmp_path / "p.json").read_text())["total"]["operations"] > 0
    capsys.readouterr()
    assert main(["tune", str(encoder), "--trials", "1", "--no-pretrained", *RANGES]) != 0
    assert "tuning measures programs of known sizes" in capsys.readouterr().err


def test_a_model_without_ranges_is_explained_and_exported(encoder, tmp_path, capsys):
    """By its program for all sizes."""
    assert main(["explain", str(encoder), "--threads", "1", "-q"]) == 0
    said = capsys.readouterr().out
    assert "one program for batch:1..64, seq:1..128" in said and "  open   seq: 1 to 128; typically" in said
    assert main(["explain", str(encoder), "--threads", "1", "-q", "--json"]) == 0
    (program,) = json.loads(capsys.readouterr().out)["programs"]
    assert [d["name"] for d in program["dimensions"]] == ["batch", "seq"] and program["kernels"]
    assert main(["compile", str(encoder), "--target", "c", "-o", str(tmp_path / "c")]) == 0
    assert "int32_t" in next((tmp_path / "c").glob("*.h")).read_text()


def test_an_input_of_derived_size(encoder, tmp_path, capsys):
    """The length of the mask is a formula of that of the text, here the same."""
    more = ["--shape", "ids=batch:1..16,seq:1..64", "--shape", "mask=batch:1..16,2*seq-seq", "--threads", "1"]
    assert main(["run", str(encoder), "--check", "reference", *more]) == 0
    assert main(["run", str(encoder), *more[:3], "mask=batch:1..16,seq+other", *more[4:]]) != 0
    assert "'seq+other' is no formula of open dimensions" in capsys.readouterr().err


def test_a_folder_cannot_be_written(package, tmp_path):
    with pytest.raises(tw.errors.TilewrightError):
        tw.load(package, threads=1).export(tmp_path / "out")


def test_sizes_that_recur(encoder, tmp_path, capsys):
    """A package has no model; what runs at once has."""
    background = ["--specialize", "background", *RANGES]
    assert main(["compile", str(encoder), "-o", str(tmp_path / "m.tw"), *background]) == 2
    assert "has no model that programs for single sizes could be compiled from" in capsys.readouterr().err
    assert main(["run", str(encoder), "--threads", "1", "-q", "--repeat", "2", *background]) == 0
