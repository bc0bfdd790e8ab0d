"""Whole models at run time: repeated and simultaneous runs, and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw

MODELS = ["bert_tiny", "mobilenet_v2_tiny", "detr_tiny"]


@pytest.fixture(scope="module")
def package(case, tmp_path_factory):
    """``package(name)``: the case and the path of its package; compiled once a model."""
    known: dict = {}

    def get(name):
        if name not in known:
            model, path = case(name), tmp_path_factory.mktemp("packages") / f"{name}.tw"
            tw.compile(model.path, threads=1).save(path)
            known[name] = model, path
        return known[name]

    return get


def variants(model, count):
    """Inputs that differ: floats are scaled, integers stay (they may be indices)."""
    for k in range(count):
        scale = np.float32(1 - k / 16)
        yield {n: a * scale if a.dtype == np.float32 else a for n, a in model.inputs.items()}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_same_input_same_result(name, threads, package):
    model, path = package(name)
    executable = tw.load(path, threads=threads)
    first, *others = [executable.run(model.inputs) for _ in range(5)]
    others.append(tw.load(path, threads=threads).run(model.inputs))
    for other in others:
        assert [a.tobytes() for a in first] == [b.tobytes() for b in other]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["mobilenet_v2_tiny", "detr_tiny"])
def test_python_threads_do_not_disturb_each_other(name, threads, package):
    """More threads than contexts, each with inputs of its own: every result is that of a run alone."""
    model, path = package(name)
    executable = tw.load(path, threads=threads)
    inputs = list(variants(model, 10))
    expected = [[a.tobytes() for a in executable.run(i)] for i in inputs]
    assert len({e[0] for e in expected}) == len(expected)
    wrong: list[int] = []
    start = threading.Barrier(len(inputs))

    def work(k):
        start.wait()
        for _ in range(6):
            if [a.tobytes() for a in executable.run(inputs[k])] != expected[k]:
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(len(inputs))]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


MEMORY = """
import json, sys
import numpy as np
import tilewright as tw

def resident(key):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(key))

path, inputs = sys.argv[1:]
arrays = dict(np.load(inputs))
import tilewright.targets.cpu.device, llvmlite.binding
before = resident("VmRSS")
model = tw.load(path, threads=2)
for _ in range(3):
    outputs = model.run(arrays)
own = sum(a.nbytes for a in outputs)
used = resident("VmHWM") - before - own
print(json.dumps([used, model.memory.peak, "torch_mlir" in sys.modules, "onnx" in sys.modules]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("name", ["resnet18", pytest.param("bert_base", marks=pytest.mark.big)])
def test_memory_is_what_it_says(name, package):
    """A process that runs a package needs the weights, the arena and little more; and neither MLIR nor onnx."""
    import json

    model, path = package(name)
    inputs = model.path.with_name(f"{name}.inputs.npz")
    repository = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    command = [sys.executable, "-c", MEMORY, str(path), str(inputs)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    used, planned, mlir, onnx = json.loads(done.stdout)
    print(f"{name}: {used / 1e6:.1f} MB used, {planned / 1e6:.1f} MB planned")
    assert not mlir and not onnx
    assert used < 1.1 * planned + (24 << 20)
