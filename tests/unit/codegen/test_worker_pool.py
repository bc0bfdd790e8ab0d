"""Compiling many kernels in worker processes. What happens when they fail: tests/errors/test_llvm_abort_errors.py."""

import contextlib
import os
import signal
import sys
import threading

import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.codegen.llvm import pool
from tilewright.codegen.llvm.cache import KernelCache
from tilewright.codegen.llvm.pool import Job, close_workers, compile_many, start_workers
from tilewright.driver import out_of_process as apart
from tilewright.driver.package_cache import CacheEntry
from tilewright.driver.request import CompileRequest
from tilewright.support import persistent_process
from tilewright.support.errors import CompileError
from tilewright.support.options import Options
from tilewright.targets.cpu.description import host


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def jobs(kernel):
    return [Job(f"k{i}", kernel(f"k{i}", "addf"), (f"/node{i}",)) for i in range(5)]


def test_results_are_in_the_order_of_the_jobs(jobs):
    seen = []
    compiled = compile_many(jobs, host(), workers=2, progress=lambda *p: seen.append(p))
    assert [c.symbol for c in compiled] == [j.symbol for j in jobs]
    assert all(c.symbol.encode() in c.data and not c.cached for c in compiled)
    assert all(c.stats["bytes"] == len(c.data) and c.stats["llvm_seconds"] > 0 for c in compiled)
    assert [(done, total) for done, total, _ in seen] == [(i + 1, 5) for i in range(5)]
    assert {symbol for _, _, symbol in seen} == {j.symbol for j in jobs}


def test_workers_and_this_process_make_the_same_object(jobs, monkeypatch):
    there = compile_many(jobs[:1], host())
    monkeypatch.setenv("TILEWRIGHT_COMPILE", "inprocess")
    here = compile_many(jobs[:1], host())
    assert here[0].data == there[0].data


def test_the_cache_is_asked_first(jobs, folder):
    cache = KernelCache()
    first = compile_many(jobs[:3], host(), cache=cache)
    again = compile_many(jobs, host(), cache=cache)
    assert [c.cached for c in again] == [True, True, True, False, False]
    assert [c.data for c in again[:3]] == [c.data for c in first]
    assert (cache.stats.hits, cache.stats.misses) == (3, 5)
    assert not any(c.cached for c in compile_many(jobs[:1], host()))


def test_no_jobs():
    assert compile_many([], host()) == []


def test_equal_symbols_are_refused(jobs):
    with pytest.raises(CompileError, match="two kernels have the symbol 'k1'"):
        compile_many([jobs[1], jobs[2], jobs[1]], host())


def test_workers_live_on_and_start_again(jobs):
    start_workers(1)
    process = pool._shared_pool().workers[0].process
    compile_many(jobs[:1], host(), workers=1)
    assert pool._shared_pool().workers[0].process is process
    close_workers()
    assert process.poll() == 0  # it ended by itself when its input did
    assert len(compile_many(jobs[:1], host(), workers=1)) == 1


def test_from_several_threads(jobs):
    results = {}

    def work(i):
        results[i] = compile_many([jobs[i]], host(), workers=2)[0].symbol

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {i: f"k{i}" for i in range(4)}


@pytest.mark.skipif(sys.platform != "linux", reason="forks are safe on Linux")
def test_workers_are_forked_and_forked_again(jobs):
    """From one process that has imported everything: a crash of one is no matter to it, and another takes its place."""
    start_workers(2)
    first, second = (w.process for w in pool._shared_pool().workers[:2])
    server = pool._shared_pool().server
    assert {first._server, second._server} == {server}
    os.kill(first.pid, signal.SIGSEGV)
    assert first.wait() == -signal.SIGSEGV
    assert len(compile_many(jobs[:2], host(), workers=2)) == 2
    assert pool._shared_pool().server is server and server.alive and second.poll() is None
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait()
    for _ in range(2):  # it is noticed when it is asked
        assert len(compile_many(jobs[:2], host(), workers=2)) == 2
    assert pool._shared_pool().server is not server


@pytest.mark.skipif(sys.platform != "linux", reason="forks are safe on Linux")
@pytest.mark.parametrize("count", [1, 2])
def test_the_process_that_compiles_starts_no_other_interpreter(tmp_path, count):
    onnx.save(small_model(), tmp_path / "m.onnx")
    serve = (
        "from tilewright.support import persistent_process as k; k.serve(lambda r: (g := {}, exec(r, g))[0]['found'])"
    )
    compile_it = f"""
from pathlib import Path
from tilewright.driver import out_of_process
from tilewright.driver.package_cache import CacheEntry
from tilewright.driver.request import CompileRequest
from tilewright.support import child_processes
from tilewright.support.mapped_file import map_file
from tilewright.support.options import Options
child_processes.start, model, to = None, Path({str(tmp_path)!r}) / "m.onnx", Path({str(tmp_path)!r}) / "m.tw"
entry = CacheEntry(model, map_file(model).digest(), to)
found = out_of_process._written(entry, CompileRequest(model, Options(jobs={count}, threads=1), ahead=True))
"""
    assert persistent_process.ask(serve, compile_it) is True


def small_model():
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy")
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Softmax", ["a"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_a_worker_with_much_memory_is_replaced(jobs, monkeypatch):
    monkeypatch.setattr(pool, "WORKER_BYTES", 1 << 20)
    start_workers(1)
    before = pool._shared_pool().workers[0].process
    compiled = compile_many(jobs[:3], host(), workers=1)
    assert [c.symbol for c in compiled] == ["k0", "k1", "k2"]
    assert before.poll() == 0 and pool._shared_pool().workers[0].process is None


def test_no_more_workers_start_than_there_is_work_for(tmp_path, monkeypatch):
    """As many as a model can have kernels, and one before the model is known."""
    started = []
    monkeypatch.setattr(pool._Pool, "start", lambda self, count, ahead: started.append(count))
    monkeypatch.setattr(pool._Pool, "run", lambda self, jobs, description, count, *_: started.append(("run", count)))
    onnx.save(small_model(), tmp_path / "m.onnx")
    with contextlib.suppress(Exception):  # nothing is compiled
        request = CompileRequest(tmp_path / "m.onnx", Options(jobs=16, threads=1), ahead=True)
        apart._written(CacheEntry(tmp_path / "m.onnx", "", tmp_path / "m.tw"), request)
    assert [s for s in started if isinstance(s, int)] == [1, 2]
