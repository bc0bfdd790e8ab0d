"""When folders of caches are looked at, and what goes."""

from __future__ import annotations

import os
import time

import pytest

from tilewright.support import lru_folder
from tilewright.support.lru_folder import AGAIN, bound, trim


def fill(folder, count):
    """So many files of 100 bytes in folders, those written first used longest ago."""
    for i in range(count):
        path = folder / f"{i % 4}" / f"{i:03}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (i, i))


def left(folder):
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def another_process(monkeypatch):
    """Forgets what this process has written."""
    return lambda: monkeypatch.setattr(lru_folder, "_written", {})


def test_those_used_longest_ago_go(tmp_path):
    fill(tmp_path, 12)
    assert trim(tmp_path, 2, 1000) == 900
    assert left(tmp_path) == [f"{i:03}" for i in range(3, 12)]
    assert trim(tmp_path, 2, 1000) == 900 and trim(tmp_path / "none", 2, 0) == 0


def test_programs_do_not_all_look(tmp_path, another_process):
    another_process()
    fill(tmp_path, 12)
    bound(tmp_path, 2, 1000, 10)  # the folder is new: nobody looks
    assert len(left(tmp_path)) == 12
    bound(tmp_path, 2, 1000, 60)  # a sixteenth has been written
    assert len(left(tmp_path)) == 9
    another_process()
    fill(tmp_path, 12)
    bound(tmp_path, 2, 1000, 10)
    assert len(left(tmp_path)) == 12
    old = time.time() - AGAIN - 1
    os.utime(tmp_path, (old, old))
    another_process()
    bound(tmp_path, 2, 1000, 10)
    assert len(left(tmp_path)) == 9
