"""Files that are replaced whole, what killed processes leave, and caches that other users can write."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.codegen.llvm.cache import KernelCache
from tilewright.support import files
from tilewright.support.errors import UsageError
from tilewright.support.files import own_folder, replacing, sweep, trusted

ROOT = Path(__file__).parents[3]
posix = pytest.mark.skipif(os.name != "posix", reason="needs modes of POSIX")


def put(path, content=b"new", **options):
    with replacing(path, **options) as f:
        f.write(content)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# ---- replacing -----------------------------------------------------------------------------------------------------


@posix
def test_the_mode_stays(tmp_path):
    old = os.umask(0o022)
    try:
        for name, before in (("secret", 0o600), ("wide", 0o666), ("run", 0o755)):
            (tmp_path / name).write_bytes(b"old")
            (tmp_path / name).chmod(before)
            put(tmp_path / name)
            assert mode(tmp_path / name) == before and (tmp_path / name).read_bytes() == b"new"
        put(tmp_path / "fresh")
        put(tmp_path / "private", private=True)
    finally:
        os.umask(old)
    assert (mode(tmp_path / "fresh"), mode(tmp_path / "private")) == (0o644, 0o600)
    assert len(list(tmp_path.iterdir())) == 5


@posix
def test_a_link_stays_a_link(tmp_path, small_package):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "real").write_bytes(b"old")
    (tmp_path / "there" / "real").chmod(0o600)
    (tmp_path / "link").symlink_to("there/real")
    small_package.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and mode(tmp_path / "there" / "real") == 0o600
    tw.load(tmp_path / "there" / "real")
    (tmp_path / "to_nothing").symlink_to("there/other")
    put(tmp_path / "to_nothing")
    assert (tmp_path / "there" / "other").read_bytes() == b"new"


def test_an_error_leaves_the_old_file(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "x") as f:
        f.write(b"half")
        1 / 0  # noqa: B018
    assert [p.name for p in tmp_path.iterdir()] == ["x"] and (tmp_path / "x").read_bytes() == b"old"


@posix
def test_only_regular_files_are_replaced(tmp_path, small_package):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(UsageError, match="cannot write"):
            small_package.save(tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "pipe"]


def test_long_names(tmp_path):
    put(tmp_path / ("n" * 250))


@posix
def test_what_a_killed_process_leaves_is_deleted(tmp_path):
    code = f"""
    import sys, time
    from tilewright.support.files import replacing
    with replacing({str(tmp_path / "x")!r}) as f:
        f.write(b"half")
        print(flush=True)
        time.sleep(3600)
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    writer.stdout.readline()
    writer.stdout.close()
    (left,) = tmp_path.iterdir()
    put(tmp_path / "y")
    sweep(tmp_path)
    assert left.exists()  # its writer lives
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    put(tmp_path / "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x", "y"]


# ---- caches --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path):
    cache = KernelCache(tmp_path / "cache")
    cache.put("00ff", b"object", {})
    assert cache.get("00ff") == (b"object", {})
    return cache


@posix
def test_new_caches_are_private(cache, tmp_path):
    found = [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
    assert len(found) == 4 and all(mode(p) == (0o700 if p.is_dir() else 0o600) for p in found)


@posix
def test_an_entry_that_others_can_write_is_not_used(cache):
    path = cache._path("00ff")
    for bits in (0o620, 0o602):
        path.chmod(bits)
        assert cache.get("00ff") is None
    path.chmod(0o644)
    assert cache.get("00ff") is not None
    path.chmod(0o666)
    cache.put("00ff", b"object", {})
    assert cache.get("00ff") is not None and mode(path) == 0o600


@posix
def test_a_folder_that_others_can_write_is_closed(cache, tmp_path):
    for folder in (tmp_path / "cache", tmp_path / "cache" / "kernels"):
        folder.chmod(0o775)
        assert cache.get("00ff") is not None
        assert mode(folder) == 0o755
    (tmp_path / "cache").chmod(0o1777)  # others can add to it, but not change what is ours
    assert cache.get("00ff") is not None


@posix
@pytest.mark.parametrize("what", ["cache", "cache/kernels/00", "cache/kernels/00/00ff.o"])
def test_what_belongs_to_others_is_not_used(cache, tmp_path, monkeypatch, caplog, what):
    real, other = os.stat, tmp_path / what

    def stat_of(path, *arguments, **options):
        info = real(path, *arguments, **options)
        if Path(path) != other:
            return info
        return os.stat_result((*info[:4], os.geteuid() + 1, *info[5:10]))

    monkeypatch.setattr(files.os, "stat", stat_of)
    files._warn.cache_clear()
    assert cache.get("00ff") is None
    assert ("is not used: it belongs to user" in caplog.text) == (not what.endswith(".o"))
    if not what.endswith(".o"):
        cache.put("00ff", b"changed", {})
        assert not own_folder(tmp_path / "cache" / "kernels" / "00", tmp_path / "cache")
        monkeypatch.undo()
        assert cache.get("00ff") == (b"object", {})


@posix
def test_a_package_that_others_can_write_is_not_loaded(tmp_path, monkeypatch):
    import onnx
    from onnx import TensorProto, helper

    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / "m.onnx")
    tw.compile(tmp_path / "m.onnx", threads=1, jobs=1)
    (package,) = (tmp_path / "cache" / "packages").glob("*.tw")
    assert (mode(package), mode(package.parent)) == (0o600, 0o700) and trusted(package, tmp_path / "cache")
    package.chmod(0o666)
    before = package.stat().st_ino
    run = tw.compile(tmp_path / "m.onnx", threads=1, jobs=1)
    assert package.stat().st_ino != before and mode(package) == 0o600
    assert run(np.eye(4, dtype=np.float32))[0].sum() == 4
