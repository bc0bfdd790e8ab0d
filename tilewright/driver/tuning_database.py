"""The tuning database: one SQLite file that any number of processes read and write at the same time.

A *task* is a kernel on a machine: structure with sizes, target and its features, thread count, and toolchain version.
Every measurement is kept as soon as it is made, so that a tuner that is stopped or killed goes on where it was. A
task's *result* is the best schedule that was confirmed against the default one; that is what compilation uses."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sqlite3
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..support.errors import UsageError
from ..support.options import get
from .kernel_key import Key

VERSION = 1
#: seconds to wait for another process that writes
BUSY = 60.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
  id INTEGER PRIMARY KEY, kernel TEXT NOT NULL, form TEXT NOT NULL, extents TEXT NOT NULL, label TEXT NOT NULL, target
  TEXT NOT NULL, features TEXT NOT NULL, threads INTEGER NOT NULL, toolchain TEXT NOT NULL, created REAL NOT NULL,
  UNIQUE (kernel, target, features, threads, toolchain));
CREATE INDEX IF NOT EXISTS tasks_form ON tasks (form, target, features);
CREATE TABLE IF NOT EXISTS measurements (
  id INTEGER PRIMARY KEY, task INTEGER NOT NULL REFERENCES tasks ON DELETE CASCADE, decisions TEXT NOT NULL,
  digest TEXT NOT NULL, status TEXT NOT NULL, seconds REAL, ratio REAL, features BLOB, at REAL NOT NULL,
  UNIQUE (task, digest));
CREATE TABLE IF NOT EXISTS results (
  task INTEGER PRIMARY KEY REFERENCES tasks ON DELETE CASCADE, decisions TEXT NOT NULL,
  digest TEXT NOT NULL, trace TEXT NOT NULL, seconds REAL NOT NULL, baseline REAL NOT NULL, at REAL NOT NULL);
"""


@dataclass(frozen=True)
class Machine:
    """What a measurement is valid for, besides the kernel."""

    target: str
    features: str
    threads: int
    toolchain: str


@dataclass(frozen=True)
class Measurement:
    """One candidate: `ratio` is its time over the default schedule's, measured together; both None unless `status` is
    ``ok``."""

    decisions: dict[str, Any]
    digest: str
    status: str
    seconds: float | None = None
    ratio: float | None = None
    features: tuple[float, ...] = ()


@dataclass(frozen=True)
class Result:
    """A confirmed improvement: decisions, digest of the nest they led to, its trace, its time and the default's."""

    decisions: dict[str, Any]
    digest: str
    trace: str
    seconds: float
    baseline: float

    @property
    def speedup(self) -> float:
        return self.baseline / self.seconds


@dataclass(frozen=True)
class Row:
    """A task as `list` shows it."""

    id: int
    label: str
    kernel: str
    extents: tuple[int, ...]
    machine: Machine
    trials: int
    failed: int
    result: Result | None
    at: float


class Database:
    """The file at `path` (default: TILEWRIGHT_DB), made on first use.

    >>> import tempfile
    >>> db = Database(Path(tempfile.mkdtemp()) / "t.sqlite")
    >>> task = db.task(Key("k", "f", (8, 8)), "matmul", Machine("cpu", "avx2", 2, "1"))
    >>> db.add(task, [Measurement({"tile": 4}, "d1", "ok", 2e-3, 0.5)])
    >>> [m.ratio for m in db.measurements(task)]
    [0.5]
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, read_only: bool = False) -> None:
        self.path = Path(path if path is not None else get("TILEWRIGHT_DB"))
        self.read_only = read_only
        self._connection: sqlite3.Connection | None = None
        self._owner = 0

    # ---- the connection ----

    @property
    def connection(self) -> sqlite3.Connection:
        """This process's connection; a forked child opens its own."""
        if self._connection is None or self._owner != os.getpid():
            self._connection, self._owner = self._open(), os.getpid()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        try:
            if self.read_only:
                connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=BUSY, isolation_level=None)
            else:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                connection = sqlite3.connect(self.path, timeout=BUSY, isolation_level=None)
            connection.execute(f"PRAGMA busy_timeout={int(BUSY * 1000)}")
            connection.execute("PRAGMA foreign_keys=ON")
            if not self.read_only:
                self._prepare(connection)
            found = connection.execute("PRAGMA user_version").fetchone()[0]
        except (sqlite3.Error, OSError) as e:
            raise self._error(e) from None
        if found != VERSION:
            connection.close()
            raise UsageError(
                f"{self.path} has tuning database version {found}, this Tilewright reads version {VERSION}",
                stage="tune",
                hint="move the file away, or set TILEWRIGHT_DB to another",
            )
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={VERSION}")
            connection.execute("COMMIT")

    def _error(self, e: Exception) -> UsageError:
        return UsageError(
            f"cannot use the tuning database {self.path}: {e}",
            stage="tune",
            hint="set TILEWRIGHT_DB to a file that can be written",
        )

    @contextlib.contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it or nothing."""
        connection = self.connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except (sqlite3.Error, OverflowError) as e:
            raise self._error(e) from None

    def _all(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self.connection.execute(sql, values).fetchall()
        except (sqlite3.Error, OverflowError) as e:
            raise self._error(e) from None

    def close(self) -> None:
        if self._connection is not None and self._owner == os.getpid():
            self._connection.close()
        self._connection = None

    # ---- for the tuner ----

    def task(self, key: Key, label: str, machine: Machine) -> int:
        """The number of a task, made if it is new."""
        values = (key.kernel, machine.target, machine.features, machine.threads, machine.toolchain)
        with self._write() as c:
            c.execute(
                "INSERT OR IGNORE INTO tasks"
                " (kernel, target, features, threads, toolchain, form, extents, label, created)"
                " VALUES (?,?,?,?,?,?,?,?,?)",
                (*values, key.form, json.dumps(key.extents), label, time.time()),
            )
            return self._find(c, values)

    @staticmethod
    def _find(c: sqlite3.Connection, values: tuple[object, ...]) -> int:
        sql = "SELECT id FROM tasks WHERE kernel=? AND target=? AND features=? AND threads=? AND toolchain=?"
        return int(c.execute(sql, values).fetchone()[0])

    def add(self, task: int, found: Sequence[Measurement]) -> None:
        """Keep measurements; one that another tuner made first stays."""
        rows = [
            (
                task,
                json.dumps(m.decisions),
                m.digest,
                m.status,
                m.seconds,
                m.ratio,
                struct.pack(f"<{len(m.features)}f", *m.features),
                time.time(),
            )
            for m in found
        ]
        with self._write() as c:
            c.executemany(
                "INSERT OR IGNORE INTO measurements (task, decisions, digest, status, seconds, ratio, features, at)"
                " VALUES (?,?,?,?,?,?,?,?)",
                rows,
            )

    def correct(self, task: int, digest: str, ratio: float) -> None:
        """Replace a measured ratio by that of a longer race."""
        with self._write() as c:
            c.execute("UPDATE measurements SET ratio=? WHERE task=? AND digest=?", (ratio, task, digest))

    def measurements(self, task: int) -> list[Measurement]:
        """All of a task, oldest first."""
        sql = "SELECT decisions, digest, status, seconds, ratio, features FROM measurements WHERE task=? ORDER BY id"
        return [Measurement(json.loads(d), g, s, t, r, _floats(f)) for d, g, s, t, r, f in self._all(sql, task)]

    def samples(self, machine: Machine, limit: int = 4000) -> list[tuple[tuple[float, ...], float]]:
        """(features, ratio) of the newest good measurements of all kernels on a machine, for the cost model."""
        sql = (
            "SELECT m.features, m.ratio FROM measurements m JOIN tasks t ON t.id = m.task"
            " WHERE m.status='ok' AND length(m.features) > 0 AND t.target=? AND t.features=?"
            " ORDER BY m.id DESC LIMIT ?"
        )
        return [(_floats(f), r) for f, r in self._all(sql, machine.target, machine.features, limit)]

    def record(self, task: int, result: Result) -> bool:
        """Make a result the task's, unless it has a better one; True if it is now this one."""
        with self._write() as c:
            old = c.execute("SELECT seconds, baseline FROM results WHERE task=?", (task,)).fetchone()
            if old is not None and old[1] / old[0] >= result.speedup:
                return False
            c.execute(
                "INSERT OR REPLACE INTO results (task, decisions, digest, trace, seconds, baseline, at)"
                " VALUES (?,?,?,?,?,?,?)",
                (
                    task,
                    json.dumps(result.decisions),
                    result.digest,
                    result.trace,
                    result.seconds,
                    result.baseline,
                    time.time(),
                ),
            )
        return True

    def withdraw(self, task: int, digest: str) -> None:
        """Forget a result that turned out wrong or no faster than the default."""
        with self._write() as c:
            c.execute("DELETE FROM results WHERE task=? AND digest=?", (task, digest))

    def nearest(self, key: Key, machine: Machine, count: int = 4) -> list[Result]:
        """Results of kernels of the same form on the same kind of machine, the nearest sizes first."""
        sql = (
            "SELECT t.kernel, t.extents, r.decisions, r.digest, r.trace, r.seconds, r.baseline"
            " FROM results r JOIN tasks t ON t.id = r.task"
            " WHERE t.form=? AND t.target=? AND t.features=?"
        )
        found = []
        for kernel, extents, d, g, tr, s, b in self._all(sql, key.form, machine.target, machine.features):
            far = _distance(key.extents, tuple(json.loads(extents)))
            found.append((far, kernel, Result(json.loads(d), g, tr, s, b)))
        return [r for _, _, r in sorted(found, key=lambda f: f[:2])[:count]]

    # ---- for compilation ----

    def result(self, kernel: str, machine: Machine) -> Result | None:
        """The confirmed best schedule of a kernel, None if there is none."""
        sql = (
            "SELECT r.decisions, r.digest, r.trace, r.seconds, r.baseline FROM results r JOIN tasks t ON t.id = r.task"
            " WHERE t.kernel=? AND t.target=? AND t.features=? AND t.threads=? AND t.toolchain=?"
        )
        rows = self._all(sql, kernel, machine.target, machine.features, machine.threads, machine.toolchain)
        return Result(json.loads(rows[0][0]), *rows[0][1:]) if rows else None

    # ---- for people ----

    def rows(self) -> list[Row]:
        """Every task with its counts and its result, newest last."""
        sql = (
            "SELECT t.id, t.label, t.kernel, t.extents, t.target, t.features, t.threads, t.toolchain,"
            " (SELECT COUNT(*) FROM measurements WHERE task = t.id),"
            " (SELECT COUNT(*) FROM measurements WHERE task = t.id AND status != 'ok'),"
            " (SELECT MAX(at) FROM measurements WHERE task = t.id), t.created,"
            " r.decisions, r.digest, r.trace, r.seconds, r.baseline"
            " FROM tasks t LEFT JOIN results r ON r.task = t.id ORDER BY t.id"
        )
        out = []
        for i, label, kernel, extents, target, features, threads, toolchain, n, bad, last, made, *r in self._all(sql):
            result = Result(json.loads(r[0]), *r[1:]) if r[0] is not None else None
            machine = Machine(target, features, threads, toolchain)
            out.append(Row(i, label, kernel, tuple(json.loads(extents)), machine, n, bad, result, last or made))
        return out

    def export(self) -> dict[str, Any]:
        """All tasks and results (without the single measurements) as JSON data."""
        tasks = []
        for row in self.rows():
            if row.result is not None:
                form = self._all("SELECT form FROM tasks WHERE id=?", row.id)[0][0]
                tasks.append({
                    "key": [row.kernel, form, row.extents], "label": row.label,
                    "machine": [row.machine.target, row.machine.features, row.machine.threads, row.machine.toolchain],
                    "result": [*dataclasses.astuple(row.result)],
                })  # fmt: skip
        return {"tilewright-tuning": VERSION, "tasks": tasks}

    def import_(self, data: Any) -> tuple[int, int]:
        """Take over what `export` gave: (results that were better or new, results read). UsageError if the data is
        something else."""
        if not isinstance(data, dict) or data.get("tilewright-tuning") != VERSION:
            raise UsageError(
                "this is no export of a tuning database of this version",
                stage="tune",
                hint="make one with: tilewright db export",
            )
        taken = 0
        try:
            entries = [
                (
                    Key(t["key"][0], t["key"][1], tuple(map(int, t["key"][2]))),
                    str(t["label"]),
                    Machine(*t["machine"]),
                    Result(*t["result"]),
                )
                for t in data["tasks"]
            ]
            for _, _, _, r in entries:
                if not (
                    isinstance(r.decisions, dict)
                    and math.isfinite(r.seconds + r.baseline)
                    and r.seconds > 0
                    and r.baseline > 0
                ):
                    raise ValueError("a result has no valid times")
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as e:
            raise UsageError(f"the export is damaged: {type(e).__name__}: {e}", stage="tune") from None
        for key, label, machine, result in entries:
            taken += self.record(self.task(key, label, machine), result)
        return taken, len(entries)

    def prune(
        self, *, toolchain: str | None = None, keep_measurements: bool = True, older_than: float | None = None
    ) -> int:
        """Delete tasks of other toolchains than `toolchain`, those untouched for `older_than` seconds, or all single
        measurements.

        Returns the number of rows deleted, and gives their space back to the file system.
        """
        deleted = 0
        with self._write() as c:
            if toolchain is not None:
                deleted += c.execute("DELETE FROM tasks WHERE toolchain != ?", (toolchain,)).rowcount
            if older_than is not None:
                limit = time.time() - older_than
                deleted += c.execute(
                    "DELETE FROM tasks WHERE created < ? AND id NOT IN (SELECT task FROM measurements WHERE at >= ?)"
                    " AND id NOT IN (SELECT task FROM results WHERE at >= ?)",
                    (limit, limit, limit),
                ).rowcount
            if not keep_measurements:
                deleted += c.execute("DELETE FROM measurements").rowcount
        with contextlib.suppress(sqlite3.Error):  # another process reads: the space is reused later
            self.connection.execute("VACUUM")
        return deleted


def _floats(blob: bytes | None) -> tuple[float, ...]:
    return struct.unpack(f"<{len(blob) // 4}f", blob) if blob else ()


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """How different two lists of sizes are: the sum of the differences of their logarithms."""
    if len(a) != len(b):
        return math.inf
    return sum(abs(math.log2(max(x, 1) / max(y, 1))) for x, y in zip(a, b, strict=True))


__all__ = ["Database", "Machine", "Measurement", "Result", "Row"]
