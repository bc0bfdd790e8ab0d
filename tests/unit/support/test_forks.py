"""Processes that fork while another of their threads compiles."""

import os
import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.forking import in_child

import tilewright as tw
from tilewright.codegen.llvm import assemble
from tilewright.program import versions
from tilewright.support import forks
from tilewright.targets.cpu import device
from tilewright.targets.cpu.description import host

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
WEIGHT = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


def model():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(WEIGHT, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def right(run, n) -> bool:
    x = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)
    return np.allclose(run(x)[0], x @ WEIGHT, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_child_specializes_a_model_that_was_being_specialized(tmp_path, monkeypatch, loaded):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    onnx.save(model(), tmp_path / "m.onnx")
    run = tw.compile(tmp_path / "m.onnx", threads=1, jobs=1, specialize="now")
    assert right(run, 3)
    if loaded:
        run.save(tmp_path / "m.tw")
        run = tw.load(tmp_path / "m.tw", threads=1)
    begun, forked = threading.Event(), threading.Event()
    real = run.staged.build

    def build(*arguments):
        if threading.current_thread() is thread:
            begun.set()
            assert forked.wait(120)
        return real(*arguments)

    run.staged.build = build
    thread = threading.Thread(target=lambda: results.append(right(run, 4)))
    results = []
    thread.start()
    assert begun.wait(120)
    assert in_child(lambda: right(run, 3) and right(run, 5) and right(run, 4)) == 0
    forked.set()
    thread.join()
    assert results == [True]


def test_forks_wait_for_short_locks():
    lock = threading.Lock()
    forks.wait_for(lock)
    assemble.initialize_llvm(host().triple)
    for held in (lock, assemble._lock, device._link_lock):
        acquired, release = threading.Event(), threading.Event()

        def hold(held=held, acquired=acquired, release=release):
            with held:
                acquired.set()
                release.wait(10)

        thread = threading.Thread(target=hold)
        thread.start()
        acquired.wait()
        threading.Timer(0.1, release.set).start()
        assert in_child(lambda held=held: held.acquire(blocking=False)) == 0
        assert held.acquire(timeout=10)
        held.release()
        thread.join()


def test_locks_of_compilations_are_new_in_a_child():
    with versions.making():
        assert in_child(lambda: in_thread(lambda: versions._making.acquire(blocking=False))) == 0


def in_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]
