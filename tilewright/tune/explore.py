"""Explores designs of a chip: compiles models for every combination of parameters and asks the timing simulator.

    found = explore("my_chip.py", ["net.onnx"], vary(["array=8..64", "bus=8,16"]))
    for design in found.measured:
        print(design.text, design.seconds, design.energy, design.area, design.bottleneck)

What was measured is kept in a file, so that a second call, or one after an interruption, goes on from there. A result
holds for the chip's source, its parameters, the host, the model's files and this package's source.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from ..support import progress
from ..support.digests import source_digest
from ..support.errors import CompileError, TilewrightError, UsageError
from ..support.mapped_file import map_file
from ..support.options import get
from ..targets.accelerator.designs import Design, DesignMeasurement, Exploration, Value
from ..targets.accelerator.identity import digest_of
from ..targets.accelerator.target import ChipTarget
from ..targets.base import find
from .measure_design import DesignJob, DesignResult, forget, measure

#: more points than this are a mistake
MOST = 10_000
#: the host processor of the chip
HOST_TARGET = "cpu"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)([KM]?)$")
#: seconds to wait for another process that writes
_BUSY = 60.0

#: callback after every measurement: how many there are, of how many, and what was the last one
Watch = Callable[[int, int, str], None]


# ---- what is varied --------------------------------------------------------------------------------------------------


def vary(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Parameters with their values, from ``name=8..64`` (doubled from 8 to 64) and ``name=8,16,32``; K and M stand for
    1024 and 1024 * 1024. UsageError for a text that is neither.

    >>> vary(["array=8..64", "sram=32K,1M", "rate=0.5"])
    {'array': (8, 16, 32, 64), 'sram': (32768, 1048576), 'rate': (0.5,)}
    """
    found: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier():
            raise _wrong(text, "it is no NAME=VALUES")
        if name in found:
            raise _wrong(text, f"{name} is varied already")
        parts: list[Value] = [v for part in values.split(",") for v in _values(text, part.strip())]
        found[name] = tuple(dict.fromkeys(parts))
    return found


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(f"cannot vary {text!r}: {why}", stage="explore", hint="array=8..64 doubles, bus=8,16,24 lists")


def _values(text: str, part: str) -> Sequence[Value]:
    first, dots, last = part.partition("..")
    if not dots:
        return (_number(text, part),)
    low, high = _number(text, first), _number(text, last)
    if low <= 0 or high < low:
        raise _wrong(text, f"a range goes from a positive number to a larger one, not from {first} to {last}")
    values = [low]
    while values[-1] < high:
        values.append(2 * values[-1])
    if values[-1] != high:
        raise _wrong(text, f"{first}, doubled, is never {last}")
    return values


def _number(text: str, part: str) -> Value:
    found = _NUMBER.match(part.strip())
    if found is None:
        raise _wrong(text, f"{part!r} is no number")
    value = float(found[1]) * _UNITS[found[2]]
    return value if "." in found[1] and not value.is_integer() else int(value)


def points(varied: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """All combinations; UsageError if there are more than `MOST`.

    >>> points({"a": (1, 2), "b": (3,)})
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    count = prod(len(v) for v in varied.values())
    if count > MOST:
        raise UsageError(f"{count} designs are too many", stage="explore", hint=f"at most {MOST}: vary less at a time")
    return [dict(zip(varied, values, strict=True)) for values in product(*varied.values())]


def chip_named(name: str, varied: Mapping[str, Sequence[Value]]) -> ChipTarget:
    """The chip of a name or file, which must have the parameters that are varied, and none of them given."""
    target = find(name)
    if not isinstance(target, ChipTarget):
        raise UsageError(f"{name} is no chip", stage="explore", hint="a chip's file, as chip.py, or a name: systolic32")
    known = [f.name for f in fields(target.kind)]
    for parameter in varied:
        if parameter not in known:
            raise UsageError(
                f"{target.plain} has no parameter {parameter!r}", stage="explore", hint=f"it has {', '.join(known)}"
            )
        if parameter in target.parameters:
            raise UsageError(
                f"{parameter} is given in {name!r} and varied too", stage="explore", hint="leave one of them out"
            )
    return target


def design(chip: ChipTarget, point: Mapping[str, Value]) -> tuple[ChipTarget, Design]:
    """The chip at a point and its area, or why there is none."""
    at = chip.configured({name: repr(value) for name, value in {**chip.parameters, **point}.items()})
    try:
        return at, Design(point, float(at.chip.area()))
    except TilewrightError as e:
        return at, Design(point, refused=e.message)
    except Exception as e:  # a description is third-party code, here with numbers that it may not be made for
        return at, Design(point, refused=f"{type(e).__name__}: {e}")


# ---- processes -------------------------------------------------------------------------------------------------------


def _begin_worker() -> None:
    """Ctrl-C is for the one who asked; what is under way is finished and kept."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    progress.allowed = False


# ---- what is kept ----------------------------------------------------------------------------------------------------


class DesignDatabase:
    """Measurements in a table of the file at `path`; by default in the folder of the tuning database.

    >>> import tempfile
    >>> store = DesignDatabase(Path(tempfile.mkdtemp()) / "designs.sqlite")
    >>> m = DesignMeasurement(1.0, 10, 0.0, 5.0, 100, 0.5, 1, 0, {"array": 1.0})
    >>> store.keep("key", DesignJob("cpu+chip", "m.onnx"), DesignResult(m, {}))
    >>> store.known("key") == (m, {}), store.known("other")
    (True, None)
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path if path is not None else get("TILEWRIGHT_DB").with_name("designs.sqlite")
        with self._open() as c:
            c.execute(
                "CREATE TABLE IF NOT EXISTS designs (key TEXT PRIMARY KEY, target TEXT NOT NULL, model TEXT NOT NULL, "
                "measured TEXT NOT NULL, files TEXT NOT NULL, at REAL NOT NULL)"
            )

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=_BUSY)) as connection, connection:
                yield connection
        except (sqlite3.Error, OSError) as e:
            raise UsageError(
                f"cannot keep designs in {self.path}: {e}", stage="explore", hint="give --database another file"
            ) from None

    def known(self, key: str) -> tuple[DesignMeasurement, dict[str, Any]] | None:
        with self._open() as c:
            row = c.execute("SELECT measured, files FROM designs WHERE key = ?", (key,)).fetchone()
        return (DesignMeasurement.from_json(json.loads(row[0])), json.loads(row[1])) if row is not None else None

    def keep(self, key: str, job: DesignJob, answer: DesignResult) -> None:
        assert answer.measured is not None
        texts = json.dumps(answer.measured.to_json()), json.dumps(answer.files)
        with self._open() as c:
            c.execute(
                "INSERT OR REPLACE INTO designs VALUES (?,?,?,?,?,?)", (key, job.target, job.model, *texts, time.time())
            )


def _key(chip: ChipTarget, host: object, job: DesignJob, chip_digest: str, model_digest: str) -> str:
    """The cache key of a measurement; `host` is the description of the host processor."""
    parameters = {f.name: getattr(chip.chip, f.name) for f in fields(chip.kind)}
    parts = [chip.kind.name, parameters, chip_digest, model_digest, job.shapes, host, source_digest()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _digest(model: str) -> str:
    """UsageError if the file cannot be read."""
    try:
        return map_file(Path(model)).digest()
    except OSError as e:
        raise UsageError(f"cannot read the model {model}: {e.strerror}", stage="explore") from None


def _unchanged(model: str, files: Mapping[str, Any]) -> bool:
    """Whether the data files beside a model are what they were."""
    from ..driver.package_cache import data_files

    try:
        return data_files(Path(model), [map_file(name) for name in files["sha256"]]) == files
    except OSError:
        return False


# ---- all of it -------------------------------------------------------------------------------------------------------


def explore(
    chip: str,
    models: Sequence[str],
    varied: Mapping[str, Sequence[Value]],
    *,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    jobs: int | None = None,
    database: Path | None = None,
    watch: Watch | None = None,
) -> Exploration:
    """Every model on every design of `chip`, a chip's file or name; `varied` as `vary` gives it.

    `inputs` are shapes of dynamic models, `jobs` the processes that measure (default: TILEWRIGHT_JOBS; with 1 it is
    this process). Designs that the chip's description refuses, and those on which a model does not run, say why.
    UsageError if that is so for all of them, for a parameter that the chip has not, and for files that cannot be read.
    """
    if not models:
        raise UsageError("no model is given", stage="explore", hint="tilewright explore CHIP MODEL --vary NAME=VALUES")
    base = chip_named(chip, varied)
    store = DesignDatabase(database)
    host = find(HOST_TARGET).describe().to_json()
    chip_digest, digests = digest_of(base.kind), {m: _digest(m) for m in models}
    shapes = tuple((name, tuple(shape)) for name, shape in (inputs or {}).items())
    designs = [design(base, point) for point in points(varied)]
    keys: dict[DesignJob, str] = {}
    jobs_of: list[list[DesignJob]] = []
    for at, d in designs:
        asked = [] if d.refused else [DesignJob(f"{HOST_TARGET}+{at.name}", m, shapes) for m in models]
        keys |= {job: _key(at, host, job, chip_digest, digests[job.model]) for job in asked}
        jobs_of.append(asked)
    answers: dict[DesignJob, DesignResult] = {}
    for job, key in keys.items():
        known = store.known(key)
        if known is not None and _unchanged(job.model, known[1]):
            answers[job] = DesignResult(known[0])
    interrupted = _measure_all(keys, answers, store, jobs or get("TILEWRIGHT_JOBS"), watch or (lambda *_: None))
    found = [_with_models(d, asked, answers) for (_, d), asked in zip(designs, jobs_of, strict=True)]
    names = tuple(Path(m).stem for m in models)
    result = Exploration(base.plain, base.kind.doc, tuple(varied), names, tuple(d for d in found if d), interrupted)
    if not result.measured and not interrupted:
        first = result.refused[0]
        raise UsageError(
            f"no design can be measured; {first.text or 'the chip'}: {first.refused}",
            stage="explore",
            hint=next((a.hint for a in answers.values() if a.hint), None),
        )
    return result


def _with_models(d: Design, asked: Sequence[DesignJob], answers: Mapping[DesignJob, DesignResult]) -> Design | None:
    """A design with what was measured; None if it was interrupted."""
    if d.refused:
        return d
    found = [(job, answers[job]) for job in asked if job in answers]
    for job, answer in found:
        if answer.error:
            return Design(d.parameters, d.area, refused=f"{Path(job.model).stem}: {answer.error}")
    if len(found) < len(asked):
        return None
    return Design(d.parameters, d.area, tuple(a.measured for _, a in found if a.measured is not None))


def _measure_all(
    keys: Mapping[DesignJob, str],
    answers: dict[DesignJob, DesignResult],
    store: DesignDatabase,
    workers: int,
    watch: Watch,
) -> bool:
    """Fills `answers`, keeping what is measured; whether it was interrupted."""
    todo = [job for job in keys if job not in answers]

    def take(job: DesignJob, answer: DesignResult) -> None:
        answers[job] = answer
        if answer.measured is not None:
            store.keep(keys[job], job, answer)
        watch(len(answers), len(keys), f"{Path(job.model).stem} on {job.target}")

    try:
        watch(len(answers), len(keys), "")
        if min(workers, len(todo)) <= 1:
            for job in todo:
                take(job, measure(job))
        else:
            _in_processes(todo, workers, take)
    except KeyboardInterrupt:
        return True
    finally:
        forget()
    return False


def _in_processes(todo: Sequence[DesignJob], workers: int, take: Callable[[DesignJob, DesignResult], None]) -> None:
    """What is under way when it is interrupted is finished and taken."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(todo)), mp_context=context, initializer=_begin_worker) as pool:
        waiting: dict[Future[DesignResult], DesignJob] = {pool.submit(measure, job): job for job in todo}
        try:
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    take(waiting.pop(future), future.result())
        except KeyboardInterrupt:
            pool.shutdown(wait=True, cancel_futures=True)
            for future, job in waiting.items():
                if not future.cancelled() and future.exception() is None:
                    take(job, future.result())
            raise
        except BrokenProcessPool:
            raise CompileError(
                "a process that measured designs has ended",
                stage="explore",
                hint="if memory was short, give fewer --jobs; what was measured is kept",
            ) from None
