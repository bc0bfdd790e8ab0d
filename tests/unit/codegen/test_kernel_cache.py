"""The kernel cache on disk."""

import dataclasses
import os
import threading

import pytest

from tilewright.codegen.llvm import cache as module
from tilewright.codegen.llvm.cache import KernelCache
from tilewright.targets.cpu.description import host

KEY = "ab" + "0" * 62


def test_put_and_get(tmp_path):
    cache = KernelCache(tmp_path)
    assert cache.get(KEY) is None
    cache.put(KEY, b"object", {"bytes": 6})
    assert cache.get(KEY) == (b"object", {"bytes": 6})
    assert KernelCache(tmp_path).get(KEY) == (b"object", {"bytes": 6})
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [f"{KEY}.o"]


def test_the_key_depends_on_all_that_matters_and_no_more(monkeypatch):
    text = "func.func @k() {\n  return\n}\n"
    key = KernelCache.key(text, host())
    assert key == KernelCache.key("\nfunc.func @k() {  \r\n  return\n\n}", host())
    assert key != KernelCache.key(text.replace("@k", "@j"), host())
    other = dataclasses.replace(host(), features=host().features[:-1] or ("x",), cores=99)
    assert key != KernelCache.key(text, other)
    assert key == KernelCache.key(text, dataclasses.replace(host(), cores=99, l2_bytes=1))
    monkeypatch.setattr(module, "toolchain", lambda _: "another")
    assert key != KernelCache.key(text, host())


@pytest.mark.parametrize("damage", ["empty", "short", "flip", "magic", "json"])
def test_damaged_entries_are_dropped(tmp_path, damage):
    cache = KernelCache(tmp_path)
    cache.put(KEY, b"object" * 100, {})
    path = next(tmp_path.rglob("*.o"))
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-7] ^= 1
    elif damage == "magic":
        data[0] ^= 1
    elif damage == "json":
        data[44] ^= 1
    path.write_bytes(data[: {"empty": 0, "short": 50}.get(damage, len(data))])
    assert cache.get(KEY) is None
    assert not path.exists()
    assert cache.stats.dropped == 1
    cache.put(KEY, b"new", {})
    assert cache.get(KEY) == (b"new", {})


def test_the_least_recently_used_go(tmp_path):
    cache = KernelCache(tmp_path, limit=100_000)
    keys = [f"{i:02x}" + "0" * 62 for i in range(12)]
    for i, key in enumerate(keys):
        cache.put(key, bytes(10_000), {})
        os.utime(cache._path(key), (i, i))
        if i == 8:
            assert cache.get(keys[0]) is not None  # used: it counts as new from now on
            assert cache.trim() <= 100_000
    kept = [key for key in keys if cache._path(key).exists()]
    assert keys[0] in kept and keys[-1] in kept and keys[1] not in kept
    assert sum(p.stat().st_size for p in tmp_path.rglob("*.o")) <= 100_000


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "kernels").write_text("a file where the folder should be")
    cache = KernelCache(tmp_path)
    cache.put(KEY, b"object", {})
    assert cache.get(KEY) is None


def test_many_writers(tmp_path):
    """Threads that write, read and trim the same entries see a whole object or none."""
    content = {f"{i:02x}" + "0" * 62: bytes([i]) * 5000 for i in range(8)}
    wrong = []

    def work():
        cache = KernelCache(tmp_path, limit=30_000)
        for _ in range(20):
            for key, data in content.items():
                cache.put(key, data, {})
                found = cache.get(key)
                if found is not None and found[0] != data:
                    wrong.append(key)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert not list(tmp_path.rglob("*.tmp"))


def test_place_and_size_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "here"))
    monkeypatch.setenv("TILEWRIGHT_CACHE_SIZE", "5M")
    cache = KernelCache()
    assert cache.folder == tmp_path / "here" / "kernels" and cache.limit == 5 << 20
