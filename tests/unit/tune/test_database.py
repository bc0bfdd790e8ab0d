"""The tuning database: several processes, export and import, nearest shapes, damage."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3

import pytest

from tilewright.driver.kernel_key import Key
from tilewright.driver.tuning_database import Database, Machine, Measurement, Result
from tilewright.support.errors import UsageError

HERE = Machine("cpu", "avx2", 2, "toolchain 1")


def result(ratio: float = 0.5, **decisions) -> Result:
    return Result(decisions or {"tile": [4, 1, 2]}, f"digest {ratio}", "s.split('i', 4)\n", ratio, 1.0)


@pytest.fixture
def db(tmp_path) -> Database:
    return Database(tmp_path / "t.sqlite")


def test_task_is_found_again(db):
    key = Key("k", "f", (8, 16))
    one = db.task(key, "matmul", HERE)
    assert db.task(key, "matmul", HERE) == one
    assert db.task(key, "matmul", Machine("cpu", "avx2", 1, "toolchain 1")) != one
    assert Database(db.path).task(key, "matmul", HERE) == one


def test_measurements_come_back(db):
    task = db.task(Key("k", "f", (8,)), "matmul", HERE)
    first = Measurement({"tile": [4, 1, 2], "x": True}, "d1", "ok", 1e-3, 0.5, (1.0, 2.5))
    db.add(task, [first, Measurement({}, "d2", "crash")])
    db.add(task, [Measurement({}, "d1", "ok", 9.0, 9.0)])  # measured already: the first one stays
    assert db.measurements(task)[0] == first
    assert [m.status for m in db.measurements(task)] == ["ok", "crash"]
    assert db.samples(HERE) == [((1.0, 2.5), 0.5)]


def test_only_a_better_result_replaces(db):
    task = db.task(Key("k", "f", (8,)), "matmul", HERE)
    assert db.record(task, result(0.5))
    assert not db.record(task, result(0.6))
    assert db.record(task, result(0.4))
    found = db.result("k", HERE)
    assert found is not None and found.speedup == pytest.approx(2.5)
    assert db.result("k", Machine("cpu", "avx512", 2, "toolchain 1")) is None
    db.withdraw(task, found.digest)
    assert db.result("k", HERE) is None


def test_nearest_shapes_first(db):
    for extents, ratio in (((64, 64), 0.5), ((128, 64), 0.6), ((1024, 1024), 0.7)):
        db.record(db.task(Key(f"k{extents}", "f", extents), "matmul", HERE), result(ratio))
    near = db.nearest(Key("new", "f", (120, 64)), HERE)
    assert [r.seconds for r in near] == [0.6, 0.5, 0.7]
    assert db.nearest(Key("new", "other form", (120, 64)), HERE) == []


def test_export_and_import(db, tmp_path):
    db.record(db.task(Key("k", "f", (8,)), "matmul", HERE), result(0.5))
    db.task(Key("k2", "f", (9,)), "no result", HERE)
    data = json.loads(json.dumps(db.export()))
    other = Database(tmp_path / "other.sqlite")
    assert other.import_(data) == (1, 1)
    assert other.result("k", HERE) == result(0.5)
    assert other.import_(data) == (0, 1)


@pytest.mark.parametrize(
    "data",
    [[], {}, {"tilewright-tuning": 99}, {"tilewright-tuning": 1, "tasks": [{}]}, {"tilewright-tuning": 1, "tasks": 3}],
)
def test_foreign_data_is_refused(db, data):
    with pytest.raises(UsageError):
        db.import_(data)


def test_prune(db):
    old = db.task(Key("k", "f", (8,)), "old", Machine("cpu", "avx2", 2, "toolchain 0"))
    new = db.task(Key("k", "f", (8,)), "new", HERE)
    for task in (old, new):
        db.add(task, [Measurement({}, "d", "ok", 1.0, 1.0)])
        db.record(task, result())
    assert db.prune(toolchain="toolchain 1") == 1
    assert [r.label for r in db.rows()] == ["new"] and len(db.measurements(old)) == 0
    assert db.prune(keep_measurements=False) == 1
    assert db.rows()[0].trials == 0 and db.rows()[0].result is not None
    assert db.prune(older_than=1e6) == 0
    assert db.prune(older_than=-1.0) == 1


def test_foreign_file_is_one_clear_error(tmp_path):
    path = tmp_path / "t.sqlite"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(UsageError, match=r"t\.sqlite") as error:
        Database(path).rows()
    assert "TILEWRIGHT_DB" in str(error.value)
    connection = sqlite3.connect(tmp_path / "v.sqlite")
    connection.execute("PRAGMA user_version=77")
    connection.commit()
    connection.close()
    with pytest.raises(UsageError, match="version 77"):
        Database(tmp_path / "v.sqlite").rows()


def _fill(path: str, worker: int, rounds: int) -> None:
    db = Database(path)
    task = db.task(Key("shared", "f", (8,)), "matmul", HERE)
    for i in range(rounds):
        own = Measurement({"n": i}, f"{worker}-{i}", "ok", 1.0, 1.0, (0.0,) * 50)
        both = Measurement({"n": i}, f"both-{i}", "ok", 1.0, 1.0)
        db.add(task, [own, both])
        db.record(task, result(1.0 / (1 + i * 4 + worker)))


def test_many_processes_lose_nothing(db):
    processes, rounds = 4, 25
    context = multiprocessing.get_context("spawn")
    running = [context.Process(target=_fill, args=(str(db.path), w, rounds)) for w in range(processes)]
    for p in running:
        p.start()
    for p in running:
        p.join(60)
    assert [p.exitcode for p in running] == [0] * processes
    (row,) = db.rows()
    assert row.trials == rounds * (processes + 1)
    assert row.result is not None and row.result.speedup == pytest.approx(1 + (rounds - 1) * 4 + processes - 1)
    assert db.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
