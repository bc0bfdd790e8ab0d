"""Digests that are remembered by the times of files."""

import os

import numpy as np
import pytest

from tilewright.support import digests, mapped_file
from tilewright.support.mapped_file import map_file

LONG_AGO = (10**9, 10**9)
pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs the time of a file's last change")


@pytest.fixture
def hashed(tmp_path, monkeypatch):
    """The arrays that were hashed."""
    found, digest = [], mapped_file.digest
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(mapped_file, "digest", lambda data: found.append(data) or digest(data))
    return found


def written(path, content: bytes):
    path.write_bytes(content)
    os.utime(path, LONG_AGO)
    return path


def test_a_file_that_did_not_change_is_hashed_once(hashed, tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "SETTLED", 0.0)
    path = written(tmp_path / "m", b"one")
    first = map_file(path).digest()
    assert first == map_file(path).digest() == mapped_file.digest(np.frombuffer(b"one", np.uint8))
    assert len(hashed) == 2  # one of them is the line before
    before = os.stat(path).st_ctime_ns
    while os.stat(path).st_ctime_ns == before:  # the system's clock ticks slowly, hence SETTLED
        written(path, b"two")  # the same file, size and time of its last write
    assert map_file(path).digest() != first
    written(tmp_path / "other", b"ten").replace(path)
    assert map_file(path).digest() == mapped_file.digest(np.frombuffer(b"ten", np.uint8))


def test_a_file_that_was_written_just_now_is_not_remembered(hashed, tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "SETTLED", 3600.0)
    path = written(tmp_path / "m", b"one")
    assert map_file(path).digest() == map_file(path).digest()
    assert len(hashed) == 2 and not (tmp_path / "cache").exists()


def test_few_are_kept(hashed, tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "SETTLED", 0.0)
    monkeypatch.setattr(digests, "KEPT", 300)
    for i in range(8):
        map_file(written(tmp_path / f"m{i}", b"x%d" % i)).digest()
    assert 1 <= len(list((tmp_path / "cache" / "digests").iterdir())) <= 4
