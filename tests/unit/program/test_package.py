"""The .tw file: what is in it, how it is written and read."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tilewright.program import package as module
from tilewright.program.package import CHUNK, PAGE, Package
from tilewright.program.program import COPY, BufferRef, Call, Program, TensorInfo
from tilewright.runtime.executable import Executable
from tilewright.runtime.load import load
from tilewright.support.errors import PackageError, UsageError
from tilewright.support.lazy_array import LazyArray
from tilewright.targets.cpu.description import host


@pytest.fixture
def x():
    return np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)


def test_round_trip(small_package, small_reference, x, tmp_path):
    Executable(small_package, 2).save(tmp_path / "m.tw")
    read = Package.load(tmp_path / "m.tw")
    assert (read.target, read.description, read.program) == ("cpu", host().to_json(), small_package.program)
    assert read.objects == small_package.objects
    assert (read.levels, read.report) == (small_package.levels, small_package.report)
    assert np.array_equal(read.constants[0], small_package.constants[0])
    for threads in (1, 2):
        run = load(tmp_path / "m.tw", threads=threads)
        assert all(np.array_equal(a, b) for a, b in zip(run(x), small_reference(x), strict=True))
    run.save(tmp_path / "again.tw")
    assert (tmp_path / "again.tw").read_bytes() == (tmp_path / "m.tw").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.tw", "m.tw"]


def test_weights_stay_in_the_file(small_package, tmp_path):
    """They are used through the memory map: read-only, aligned, and not copied by the executable."""
    small_package.save(tmp_path / "m.tw")
    read = Package.load(tmp_path / "m.tw")
    place = read.constants[0].ctypes.data
    assert place % 64 == 0 and not read.constants[0].flags.writeable
    assert Executable(read, 1).package.constants[0].ctypes.data == place


def test_sections_begin_at_pages(small_package, tmp_path):
    small_package.save(tmp_path / "m.tw")
    data = (tmp_path / "m.tw").read_bytes()
    _, _, _, offset, length = module._HEAD.unpack_from(data)
    manifest = json.loads(data[offset : offset + length])
    assert all(s["offset"] % PAGE == 0 for s in manifest["sections"].values())


def test_constants_of_all_dtypes_and_sizes(tmp_path, make_package):
    """Also more than one checksum chunk, and arrays that are not contiguous."""
    from tilewright.support.dtypes import NUMPY

    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 2, (3, 5)).astype(d) for d in NUMPY.values()]
    arrays += [np.zeros((0, 4), np.float32), np.array(3.5), rng.standard_normal(CHUNK // 4 + 1000).astype(np.float32)]
    arrays += [rng.standard_normal((50, 40)).T]
    names = {v: k for k, v in NUMPY.items()}
    infos = tuple(TensorInfo(f"c{i}", a.shape, names[a.dtype]) for i, a in enumerate(arrays))
    out = TensorInfo("y", (3, 5), "f64")
    call = Call(COPY, (BufferRef("constant", 0, 0, 120), BufferRef("output", 0, 0, 120)), (1,))
    program = Program((), (out,), infos, (call,))
    make_package(program, {}, arrays).save(tmp_path / "m.tw")
    read = Package.load(tmp_path / "m.tw")
    for a, b in zip(arrays, read.constants, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()  # NaNs too
    assert np.array_equal(load(tmp_path / "m.tw")()[0], arrays[0])


def test_lazy_constants_are_written_as_arrays_are(small_package, tmp_path):
    (weight,) = small_package.constants
    small_package.save(tmp_path / "array.tw")
    lazy = LazyArray(weight.shape, weight.dtype, weight.copy)
    replace(small_package, constants=[lazy]).save(tmp_path / "lazy.tw")
    assert (tmp_path / "lazy.tw").read_bytes() == (tmp_path / "array.tw").read_bytes()
    assert np.asarray(lazy, np.float64).dtype == np.float64


def test_weights_that_were_written_a_moment_ago_are_not_read(small_package, tmp_path):
    small_package.save(tmp_path / "m.tw")
    data = bytearray((tmp_path / "m.tw").read_bytes())
    data[data.index(small_package.constants[0].tobytes()[:64])] ^= 1
    (tmp_path / "m.tw").write_bytes(data)
    with pytest.raises(PackageError, match="weights"):
        Package.load(tmp_path / "m.tw")
    assert Package.load(tmp_path / "m.tw", written=True).objects == small_package.objects
    data[PAGE] ^= 1  # code is read anyhow
    (tmp_path / "m.tw").write_bytes(data)
    with pytest.raises(PackageError, match="objects"):
        Package.load(tmp_path / "m.tw", written=True)


def test_constants_must_fit_the_program(small_package):
    with pytest.raises(ValueError, match=r"constant w: f32\[64, 64\] is an array float64"):
        Package("cpu", {}, small_package.program, {}, [np.zeros((64, 64))])


def test_nothing_half_written_is_left(small_package, tmp_path, monkeypatch):
    target = tmp_path / "m.tw"
    target.write_bytes(b"older")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write_section", full)
    with pytest.raises(UsageError, match=r"cannot write .*m\.tw: No space left on device"):
        small_package.save(target)
    assert [p.name for p in tmp_path.iterdir()] == ["m.tw"]
    assert target.read_bytes() == b"older"


def test_loading_needs_neither_mlir_nor_onnx(small_package, x, tmp_path):
    small_package.save(tmp_path / "m.tw")
    code = (
        "import sys, numpy as np; from tilewright.runtime.load import load\n"
        f"run = load({str(tmp_path / 'm.tw')!r}); run(np.zeros((64, 64), np.float32)); run.explain()\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch_mlir', 'onnx', 'torch')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_program_text_and_checks(small_package):
    text = str(small_package.program)
    assert "inputs: x: f32[64, 64]" in text and "add(input0[0:16384], constant0[0:16384], &arena" in text
    info = TensorInfo("x", (4,), "f32")
    good, bad = BufferRef("input", 0, 0, 16), BufferRef("output", 0, 8, 16)
    cases = [
        (Call("k", (good, bad), (1,)), r"output0\[8:24\] is outside of its buffer \(16 bytes\)"),
        (Call("k", (good,), (0,)), r"writes to input0\[0:16\]"),
        (Call("k", (good,), (1,)), r"writes \(1,\) of 1 arguments"),
        (Call("k", (BufferRef("input", 1, 0, 16),), ()), "is outside of its buffer"),
        (Call(COPY, (good,), ()), "a copy reads one buffer and writes one"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            Program((info,), (info,), (), (call,)).check()
