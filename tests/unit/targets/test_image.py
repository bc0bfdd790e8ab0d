"""Linking objects without LLVM: the same results, and nothing but LLVM's part left to LLVM."""

import contextlib
import ctypes
import mmap
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.codegen.llvm.assemble import assemble
from tilewright.runtime.executable import Executable
from tilewright.support.errors import PackageError
from tilewright.targets.cpu import cpuinfo, image
from tilewright.targets.cpu.description import X86_FEATURES, host

pytestmark = pytest.mark.skipif(not image.usable(), reason="objects are linked by LLVM on this system")

#: constants, a call between objects, functions of the C library, by call and by address
FIRST = """
target triple = "{triple}"
declare double @second(double)
define double @first(double %x) {{
  %y = call double @second(double %x)
  %z = fadd double %y, 1.25
  ret double %z
}}
"""
SECOND = """
target triple = "{triple}"
@table = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
declare double @fmod(double, double)
declare double @cos(double)
define double @second(double %x) {{
  %m = call double @fmod(double %x, double 4.0)
  %i = fptoui double %m to i64
  %p = getelementptr double, ptr @table, i64 %i
  %v = load double, ptr %p
  ret double %v
}}
define ptr @address() {{ ret ptr @cos }}
"""


def compiled(text):
    return assemble(text.format(triple=host().triple), host())


@pytest.fixture(scope="module")
def objects():
    return {"first": compiled(FIRST), "second": compiled(SECOND)}


def test_calls_constants_and_the_c_library(objects):
    made = image.link(objects, ["first", "address"])
    first = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(made["first"])
    assert [first(x) for x in (0.0, 1.0, 7.0, 10.0)] == [v + 1.25 for v in (1.5, 2.5, 4.5, 3.5)]
    address = ctypes.CFUNCTYPE(ctypes.c_void_p)(made["address"])()
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(address)(0.0) == 1.0


def test_code_cannot_be_written(objects):
    address = image.link(objects, ["first"])["first"]
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(x, 16) for x in line.split()[0].split("-"))
        if low <= address < high:
            assert line.split()[1] == "r-xp"


def test_a_program_gives_the_same_by_both(small_package, small_reference, monkeypatch):
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    one = Executable(small_package, 2)(x)
    assert isinstance(Executable(small_package, 2)._runner._library, image.Image)
    monkeypatch.setattr(image, "usable", lambda: False)
    other = Executable(small_package, 2)
    assert not isinstance(other._runner._library, image.Image)
    for a, b, c in zip(one, other(x), small_reference(x), strict=True):
        assert a.tobytes() == b.tobytes()
        np.testing.assert_allclose(a.reshape(-1), np.reshape(c, -1), rtol=1e-6)


def test_what_it_does_not_know_is_left_to_llvm(objects):
    writable = compiled('target triple = "{triple}"\n@x = global i64 1\ndefine ptr @first() {{ ret ptr @x }}')
    with pytest.raises(image.Unlinkable, match="section"):
        image.link({"a": writable}, ["first"])
    other = bytearray(objects["first"])
    struct.pack_into("<H", other, 18, 183)  # for aarch64
    with pytest.raises(image.Unlinkable, match="x86-64"):
        image.link({"a": bytes(other)}, ["first"])


@pytest.mark.parametrize("case", ["missing", "twice", "not wanted", "truncated"])
def test_what_does_not_link_is_an_error(objects, case):
    first, second = objects["first"], objects["second"]
    given, wanted = {
        "missing": ({"a": first}, ["first"]),
        "twice": ({"a": first, "b": first, "c": second}, ["first"]),
        "not wanted": (objects, ["third"]),
        "truncated": ({"a": first[: len(first) // 2], "b": second}, ["first"]),
    }[case]
    with pytest.raises(PackageError, match="does not link"):
        image.link(given, wanted)


def test_damage_never_ends_the_process(objects):
    rng = np.random.default_rng(1)
    for _ in range(300):
        data = bytearray(objects["second"])
        for at in rng.integers(0, len(data), 3):
            data[at] ^= 1 << int(rng.integers(8))
        with contextlib.suppress(PackageError, image.Unlinkable):
            image.link({"a": objects["first"], "b": bytes(data)}, ["first"])


def test_memory_goes_with_the_image(objects):
    made = image.link(objects, ["first"])
    memory = made._memory
    del made
    memory.close()
    assert memory.closed and mmap.PAGESIZE


def test_loading_imports_no_llvm(small_package, tmp_path):
    small_package.save(tmp_path / "m.tw")
    code = f"""
import sys, numpy, tilewright
tilewright.load({str(tmp_path / "m.tw")!r})(numpy.ones((64, 64), numpy.float32))
assert not [m for m in sys.modules if m.startswith(("llvmlite", "torch_mlir", "onnx"))]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_features_are_those_that_llvm_finds(tmp_path):
    from llvmlite import binding as llvm

    found = llvm.get_host_cpu_features()
    assert cpuinfo.features(X86_FEATURES) == {f: bool(found.get(f)) for f in X86_FEATURES}
    assert llvm.get_default_triple() == cpuinfo.TRIPLE
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu sse4_1 avx2 amx_tile\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert cpuinfo.features(("sse4.1", "avx2", "fma", "amx-tile"), info) == {
        "sse4.1": True,
        "avx2": True,
        "fma": False,
        "amx-tile": True,
    }
    assert cpuinfo.features(("fma",), tmp_path / "nothing") is None
