"""Kernels that end the compiler's process: contained, saved, reported, reproducible."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.codegen.llvm.cache import KernelCache
from tilewright.codegen.llvm.pool import Job, compile_many
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.description import host

# LLVM has no instruction for another processor's intrinsic, and ends the process.
FOREIGN = "llvm.amdgcn.workitem.id.x"
ABORT = f"""
func.func @bad(%a: memref<4xi32>, %s: memref<1xi8>, %t: index, %n: index) {{
  %c0 = arith.constant 0 : index
  %v = llvm.call_intrinsic "{FOREIGN}"() : () -> i32
  memref.store %v, %a[%c0] : memref<4xi32>
  return
}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    return tmp_path


def failure(jobs, **more) -> CompileError:
    with pytest.raises(CompileError) as e:
        compile_many(jobs, host(), workers=2, **more)
    return e.value


def test_an_abort_is_one_clear_error(folder, kernel):
    names = ("/layer1/conv", "/layer1/relu")
    error = failure([Job("bad", ABORT, names)])
    text = str(error)
    assert text.startswith("kernel bad cannot be compiled: the compiler process died (")
    assert "Cannot select" in text and FOREIGN in text  # LLVM's own words
    assert "stage: assemble" in text
    assert "operator: /layer1/conv, /layer1/relu (kernel bad)" in text
    assert error.saved and Path(error.saved).parent == folder / "repro"
    assert ABORT in Path(error.saved).read_text()
    assert not list(folder.rglob("*.tmp"))


def test_the_command_of_the_hint_reproduces_it():
    error = failure([Job("bad", ABORT, ())])
    command = error.hint.removeprefix("to reproduce: ")
    program, *arguments = shlex.split(command)
    assert program == Path(sys.executable).name
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "Cannot select" in done.stderr


def test_other_kernels_are_compiled_all_the_same(kernel):
    jobs = [Job(f"k{i}", kernel(f"k{i}", "addf")) for i in range(6)]
    jobs.insert(2, Job("bad", ABORT))
    cache, seen = KernelCache(), []
    failure(jobs, cache=cache, progress=lambda done, total, symbol: seen.append(symbol))
    assert sorted(seen) == sorted(j.symbol for j in jobs)
    del jobs[2]
    assert all(c.cached for c in compile_many(jobs, host(), cache=cache))


def test_several_failures_are_all_named(kernel):
    jobs = [Job(f"bad{i}", ABORT.replace("@bad", f"@bad{i}"), (f"/n{i}",)) for i in range(3)]
    error = failure(jobs)
    assert "2 more kernels failed: " in str(error)
    assert all(f"/n{i} (kernel bad{i})" in str(error) for i in range(3))


def test_a_kernel_that_does_not_lower_is_saved_too(monkeypatch):
    job = Job("odd", "func.func @odd(%a: tensor<4xf32>) { return }", ("/odd",))
    there = str(failure([job]))
    assert "kernel odd cannot be compiled: kernel @odd has an operation that does not lower to LLVM: func.func" in there
    monkeypatch.setenv("TILEWRIGHT_COMPILE", "inprocess")
    here = str(failure([job]))
    assert here == there


def test_a_kernel_that_takes_too_long(kernel):
    error = failure([Job("slow", kernel("slow", "addf"))], timeout=0.001)
    assert "kernel slow cannot be compiled: it took longer than 0.001 s (TILEWRIGHT_TIMEOUT)" in str(error)
    assert len(compile_many([Job("slow", kernel("slow", "addf"))], host())) == 1


def test_where_nothing_can_be_saved(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "file"))
    error = failure([Job("bad", ABORT)])
    assert error.saved is None
    assert "set TILEWRIGHT_CACHE to a folder that can be written" in str(error)


def test_the_repro_command_on_good_and_foreign_files(tmp_path, kernel):
    from tilewright.codegen.llvm.worker import repro_text

    good, other = tmp_path / "good.mlir", tmp_path / "other.mlir"
    good.write_text(repro_text("k", kernel("k", "addf"), host()))
    other.write_text("module {}")
    module = [sys.executable, "-m", "tilewright.codegen.llvm.worker"]
    done = subprocess.run([*module, "--repro", str(good)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("k compiles: ")
    done = subprocess.run([*module, "--repro", str(other)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "is not a saved kernel" in done.stderr
    done = subprocess.run([*module, "--what"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "usage: " in done.stderr
