"""Ctrl-C while a model is compiled: one line, exit 130, nothing half-written, no process left."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system has no /proc")


def of(mark: str) -> set[int]:
    """The processes that live with this text in their environment."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            alive = (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            if alive and mark.encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
        except OSError:  # ended, or another user's
            continue
    return found


@pytest.mark.parametrize("seconds", [0, 2, 4])
def test_the_terminal_interrupts_all_processes(seconds, tmp_path):
    """As a terminal does: every process of the group gets the signal."""
    rng = np.random.default_rng(0)
    widths = [16, 24, 32, 40, 48, 56, 64, 72]
    nodes, weights, name = [], [], "x"
    for i, (k, n) in enumerate(itertools.pairwise(widths)):
        weights.append(numpy_helper.from_array(rng.standard_normal((k, n)).astype(np.float32), f"w{i}"))
        nodes += [
            helper.make_node("MatMul", [name, f"w{i}"], [f"h{i}"]),
            helper.make_node("Softmax", [f"h{i}"], [f"s{i}"]),
        ]
        name = f"s{i}"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, w]) for n, w in (("x", 16), (name, 72)))
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), tmp_path / "m.onnx")
    cache = tmp_path / "cache"
    code = "import sys; from tilewright.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "compile", "m.onnx", "-o", "m.tw"]
    run = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "TILEWRIGHT_CACHE": str(cache), "TILEWRIGHT_JOBS": "2"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while len(of(str(cache))) < 2 and run.poll() is None:
        time.sleep(0.02)
    time.sleep(seconds)
    if run.poll() is not None:
        pytest.skip("it was done before")
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out, err.strip()) == (130, "", "interrupted")
    for _ in range(200):
        if not of(str(cache)):
            break
        time.sleep(0.05)
    assert not of(str(cache))
    assert not (tmp_path / "m.tw").exists()
    assert {p.name for p in tmp_path.iterdir()} <= {"m.onnx", "cache"}
    assert not [p for p in cache.rglob("*") if p.is_file() and "tmp" in p.name]
