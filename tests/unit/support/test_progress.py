"""The line that shows how far a compilation is: on a terminal only, and gone afterwards."""

import os
import pty
import subprocess
import sys

import pytest
from onnx import TensorProto, helper, save

import tilewright as tw
from tilewright.support import progress

SCRIPT = """
import sys
from tilewright.support import progress
progress.DELAY_S = 0.0
import tilewright as tw
tw.compile(sys.argv[1], cache=False, threads=1)
"""


@pytest.fixture
def model(tmp_path):
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy"]
    nodes = [helper.make_node("Softmax", ["x"], ["h"]), helper.make_node("MatMul", ["h", "h"], ["y"])]
    path = tmp_path / "soft\x1b[31mmax.onnx"
    save(helper.make_model(helper.make_graph(nodes, "g", info[:1], info[1:])), path)
    return path


def compiled_on_a_terminal(model, **variables) -> str:
    """What a process that compiles writes to its terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TERM": "xterm", **variables}
    command = [sys.executable, "-c", SCRIPT, str(model)]
    process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux says that nobody writes any more
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert process.wait() == 0, written.decode(errors="replace")
    return written.decode(errors="replace")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_a_terminal_shows_stages_and_no_escapes_of_file_names(model):
    shown = compiled_on_a_terminal(model)
    assert "compiling soft?[31mmax.onnx: " in shown
    assert "\x1b[31m" not in shown


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_it_can_be_turned_off(model):
    assert compiled_on_a_terminal(model, TILEWRIGHT_PROGRESS="0") == ""


def test_it_counts_kernels(model, monkeypatch):
    """What the line is told; a terminal is painted now and then, and may skip a short stage."""
    told = []
    monkeypatch.setattr(progress.Progress, "_show", lambda self, what: told.append(what))
    tw.compile(model, cache=False, threads=1)
    assert any("kernel 1/" in what for what in told) and "import" in told


def test_a_pipe_gets_nothing(capfd):
    with progress.Progress("model") as line:
        line.stage("import")
    assert capfd.readouterr().err == ""
