"""Any level can be dumped, read back and continued from: the outputs are the same, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.cli import main
from tilewright.support.errors import UsageError

STAGES = ("import", "simplify", "layout", "lower", "fuse", "schedule", "emit")
MODELS = ("resnet_tiny", "bert_tiny", "tiny_ae")


@pytest.fixture(scope="module")
def dumped(case, tmp_path_factory):
    """``dumped(model)``: the case, the folder its stages were dumped to, and its outputs; compiled once a model."""
    known: dict = {}

    def get(name):
        if name not in known:
            model, folder = case(name), tmp_path_factory.mktemp(name)
            executable = tw.compile(model.path, threads=1, dump=folder)
            known[name] = model, folder, [a.copy() for a in executable.run(model.inputs)]
        return known[name]

    return get


def file_of(folder, stage):
    found = [p for p in folder.glob(f"[0-9][0-9]-{stage}.*") if p.suffix != ".constants"]
    (path,) = [p for p in found if not p.name.endswith(".graph.mlir")]
    return path


@pytest.mark.parametrize("name", MODELS)
def test_one_numbered_file_a_stage(name, dumped):
    _, folder, _ = dumped(name)
    files = sorted(p.name for p in folder.iterdir() if p.suffix != ".constants")
    assert files == [
        "00-import.mlir", "01-simplify.mlir", "02-layout.mlir", "03-lower.mlir", "04-fuse.mlir",
        "05-schedule.graph.mlir", "05-schedule.txt", "06-emit.mlir", "07-assemble.txt", "08-package.txt",
    ]  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", MODELS)
def test_continue_from_every_level(name, stage, dumped):
    model, folder, expected = dumped(name)
    executable = tw.compile(file_of(folder, stage), start_after=stage, threads=1)
    assert [i.name for i in executable.inputs] == list(model.inputs)
    assert [o.name for o in executable.outputs] == list(model.expected)
    for got, want in zip(executable.run(model.inputs), expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("stage", [s for s in STAGES if s != "schedule"])
def test_opt_parses_and_prints_every_level(stage, dumped, tmp_path, capsys):
    """What `opt` writes is read again and continues to the same results."""
    model, folder, expected = dumped("bert_tiny")
    assert main(["opt", str(file_of(folder, stage))]) == 0
    assert capsys.readouterr().out.lstrip().startswith(("#", "module"))
    copy, package = tmp_path / "copy.mlir", tmp_path / "m.tw"
    assert main(["opt", str(file_of(folder, stage)), "-o", str(copy)]) == 0
    assert main(["opt", str(copy), "--from", stage, "--threads", "1", "-o", str(package)]) == 0
    for got, want in zip(tw.load(package, threads=1).run(model.inputs), expected, strict=True):
        assert got.tobytes() == want.tobytes()


def test_passes_on_a_dumped_level_then_continue(dumped, tmp_path):
    """The README's way: dump, run a pass, go on."""
    model, folder, _ = dumped("resnet_tiny")
    edited, package = tmp_path / "edited.mlir", tmp_path / "m.tw"
    assert main(["opt", str(file_of(folder, "import")), "--pass", "fold,mlir:cse", "-o", str(edited)]) == 0
    assert main(["opt", str(edited), "--from", "import", "-o", str(package)]) == 0
    for got, want in zip(tw.load(package).run(model.inputs), model.expected.values(), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


def test_an_edit_by_hand_takes_effect(dumped, tmp_path):
    """A changed number in the text of a level is what runs."""
    model, folder, expected = dumped("tiny_ae")
    text = file_of(folder, "fuse").read_text()
    edited = tmp_path / "fuse.mlir"
    edited.write_text(text.replace("arith.maximumf", "arith.minimumf"))
    edited.with_suffix(".constants").write_bytes(file_of(folder, "fuse").with_suffix(".constants").read_bytes())
    executable = tw.compile(edited, start_after="fuse", threads=1)
    assert not np.array_equal(executable.run(model.inputs)[0], expected[0])


@pytest.mark.parametrize("stage", STAGES)
def test_stop_after_then_go_on(stage, case, dumped, tmp_path):
    model, _, expected = dumped("tiny_ae")
    level = tw.compile(model.path, stop_after=stage)
    level.save(tmp_path / "level.mlir")
    executable = tw.compile(tmp_path / "level.mlir", start_after=stage, threads=1)
    assert executable.run(model.inputs)[0].tobytes() == expected[0].tobytes()


@pytest.mark.parametrize("stage", ["assemble", "package"])
def test_levels_that_cannot_be_read_are_refused(stage, dumped):
    _, folder, _ = dumped("tiny_ae")
    with pytest.raises(UsageError, match=f"the pipeline cannot continue from {stage}"):
        tw.compile(file_of(folder, stage), start_after=stage)
