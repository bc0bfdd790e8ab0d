"""Fixtures for tests of all kinds: a small program of hand-written kernels, compiled once."""

from __future__ import annotations

import gc
import json
import os
import tempfile

import numpy as np
import pytest
from _pytest.doctest import DoctestModule
from support.exported import Case, note_wanted
from support.machines import MACHINES
from support.thinned import thin

SIZE = 4096


def pytest_addoption(parser):
    parser.addoption(
        "--machine", choices=sorted(MACHINES), help="take this machine for another (without features it does not have)"
    )
    parser.addoption("--thinned", action="store_true", help="leave out cases as tests/support/thinned.py has it")


def pytest_configure(config):
    os.environ.setdefault("TILEWRIGHT_STRICT", "1")
    name = config.getoption("--machine", None)
    if name is None:
        return
    m = MACHINES[name]
    data = {"features": list(m.features), **{n: getattr(m, n) for n in ("l1_bytes", "l2_bytes", "l3_bytes", "cores")}}
    with tempfile.NamedTemporaryFile("w", prefix=f"machine_{name}_", suffix=".json", delete=False) as file:
        json.dump(data, file)
    config.add_cleanup(lambda: os.unlink(file.name))
    os.environ["TILEWRIGHT_MACHINE"] = file.name


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and made now stays to the end: the garbage collector need not look through it, now or later. Nor
    does it look often, as in the processes that compile: JAX has a callback whenever it does."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(200_000, 20, 50)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Modules of tests have no doctests: all that they import need not be looked through."""
    collectors = yield
    return [c for c in collectors if not (file_path.name.startswith("test_") and isinstance(c, DoctestModule))]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if config.getoption("--thinned", False):
        thin(config, items)
    note_wanted(items)


@pytest.fixture(scope="session")
def case():
    """``case(name)`` gives the `Case` of an exported model, exporting it first where needed."""
    return Case


_KERNEL = """
func.func @{symbol}(%a: memref<4096xf32> {{llvm.noalias}}, %b: memref<4096xf32>, %c: memref<4096xf32> {{llvm.noalias}},
                    %scratch: memref<64xi8>, %tid: index, %nt: index) {{
  %c1 = arith.constant 1 : index
  %n = arith.constant 4096 : index
  %last = arith.constant 4095 : index
  %chunk = arith.ceildivsi %n, %nt : index
  %start = arith.muli %tid, %chunk : index
  %lo = arith.minsi %start, %n : index
  %stop = arith.addi %lo, %chunk : index
  %hi = arith.minsi %stop, %n : index
  scf.for %i = %lo to %hi step %c1 {{
    %j = arith.subi %last, %i : index
    %x = memref.load %a[%j] : memref<4096xf32>
    %y = memref.load %b[%i] : memref<4096xf32>
    %z = arith.{operation} %x, %y : f32
    memref.store %z, %c[%i] : memref<4096xf32>
  }}
  return
}}
"""


def kernel_text(symbol: str, operation: str) -> str:
    """``c[i] = a[n - 1 - i] op b[i]``: with several threads, a thread reads what another wrote."""
    return _KERNEL.format(symbol=symbol, operation=operation)


@pytest.fixture(scope="session", autouse=True)
def own_lock(tmp_path_factory):
    """Tests do not wait for whoever measures on this machine."""
    from tilewright.tune import quiet

    place = tmp_path_factory.mktemp("lock")
    quiet.folder = lambda: place


@pytest.fixture(scope="session", autouse=True)
def quick_ceilings():
    """What this processor can do at best is measured in an instant and kept, though the machine is busy: no test looks
    at how much it is."""
    from tilewright.targets.cpu import ceilings

    ceilings._TIMES, ceilings._SECONDS, ceilings._LARGEST, ceilings._QUIET = 1, 0.002, 8 << 20, 0.0


@pytest.fixture(scope="session", autouse=True)
def many_processors():
    """Programs run with as many threads as tests ask for, on machines with fewer cores too."""
    from tilewright.targets.cpu import device

    device.usable_cores = lambda: 64


@pytest.fixture(scope="session")
def kernel():
    """A function from symbol and arith operation to the level-5 text of a kernel."""
    return kernel_text


@pytest.fixture(scope="session")
def kernel_objects() -> dict[str, bytes]:
    """Objects of the kernels ``add`` and ``mul``."""
    from tilewright.codegen.llvm.assemble import assemble, mlir_to_llvm
    from tilewright.targets.cpu.description import host

    return {
        symbol: assemble(mlir_to_llvm(kernel_text(symbol, operation), symbol), host())
        for symbol, operation in (("add", "addf"), ("mul", "mulf"))
    }


@pytest.fixture(scope="session")
def make_package():
    """A function from a program, its kernels' objects and its constants to a package for this machine."""

    def make(program, kernels, constants=()):
        from tilewright.program.package import Package
        from tilewright.targets.cpu.description import host
        from tilewright.targets.cpu.program import assemble_program

        objects = assemble_program(program, kernels, host())
        return Package("cpu", host().to_json(), program, objects, list(constants))

    return make


@pytest.fixture
def small_package(kernel_objects, make_package):
    """t = reverse(x) + w; u = reverse(t) * t; y = reverse(u) + w; the second output is a copy of x."""
    from tilewright.program.plan import CallEffects, StorageValue, plan_memory
    from tilewright.program.program import COPY, Call, Program, TensorInfo

    nbytes = 4 * SIZE
    given = [StorageValue(nbytes, home=("input", 0)), StorageValue(nbytes, home=("constant", 0))]
    steps = [CallEffects((0, 1), (2,)), CallEffects((2, 2), (3,)), CallEffects((3, 1), (4,))]
    plan = plan_memory([*given, *[StorageValue(nbytes)] * 3], steps, outputs=[4, 0])
    symbols, names = ("add", "mul", "add"), (("/a/Add",), ("/b/Mul", "/b/Relu"), ("/c/Add",))
    calls = [
        Call(symbol, tuple(plan.refs[v] for v in (*step.reads, *step.writes)), (2,), name)
        for symbol, step, name in zip(symbols, steps, names, strict=True)
    ]
    calls += [Call(COPY, pair, (1,), ("x",)) for pair in plan.copies]
    info = [TensorInfo(name, (64, 64), "f32") for name in ("x", "y", "x_again", "w")]
    program = Program((info[0],), (info[1], info[2]), (info[3],), tuple(calls), plan.arena_size, 64, plan.bound)
    program.check()
    w = np.linspace(-1, 1, SIZE, dtype=np.float32).reshape(64, 64)
    package = make_package(program, kernel_objects, [w])
    package.levels = {"graph": "module {}"}
    package.report = {"model": "small", "kernels": [{"symbol": "add", "kind": "elementwise"}]}
    return package


@pytest.fixture
def small_reference():
    """What the program of `small_package` computes, in NumPy."""

    def reference(x: np.ndarray) -> list[np.ndarray]:
        w = np.linspace(-1, 1, SIZE, dtype=np.float32)
        t = x.reshape(-1)[::-1] + w
        u = t[::-1] * t
        return [(u[::-1] + w).reshape(64, 64), x]

    return reference
