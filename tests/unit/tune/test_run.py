"""Tuning for real, on tiny kernels: containment of bad candidates, resuming, SIGKILL, and use of the results by
compilation."""

from __future__ import annotations

import io
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.driver import tuned as tuned_results
from tilewright.driver.kernel_key import kernel_key
from tilewright.driver.tuning_database import Database, Result
from tilewright.lang import te
from tilewright.schedule.nest import For, Store, transform, transform_exprs
from tilewright.schedule.rules import schedule
from tilewright.schedule.schedule import ScheduleError
from tilewright.support.options import Options
from tilewright.targets.base import find
from tilewright.tensor.expr import Const, Op, Var
from tilewright.tune.measure import Meter, machine_of
from tilewright.tune.recheck import recheck
from tilewright.tune.space import Candidate, Space
from tilewright.tune.tasks import extract_tasks, task_of
from tilewright.tune.tuner import TaskReport, Tuner, TuneReport

pytest.importorskip("lightgbm", reason="LightGBM is not installed: pip install tilewright[tune]")
ROOT = Path(__file__).resolve().parents[3]

MATMUL = """
func.func @main(%x: tensor<16x32xf32>, %w: tensor<32x48xf32>) -> tensor<16x48xf32> {
  %zero = arith.constant 0.0 : f32 %e = tensor.empty() : tensor<16x48xf32> %f = linalg.fill ins(%zero : f32) outs(%e :
  tensor<16x48xf32>) -> tensor<16x48xf32> %r = linalg.matmul ins(%x, %w : tensor<16x32xf32>, tensor<32x48xf32>) outs(%f
  : tensor<16x48xf32>) -> tensor<16x48xf32> return %r : tensor<16x48xf32>
}
"""


def small(m: int = 12, n: int = 32, k: int = 16):
    a, b = te.placeholder((m, k), "a"), te.placeholder((k, n), "b", constant=True)
    r = te.reduce_axis(k, "r")
    return te.kernel(te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), "c"))


def with_nest(c: Candidate, change) -> Candidate:
    """A candidate whose code is something else than its schedule says."""
    bad = Candidate(c.schedule, c.rule)
    bad.__dict__["nest"] = replace(c.nest, body=change(c.nest.body))
    return bad


def wrong(body):
    return transform_exprs(body, lambda e: Const(1.0, "f32") if e == Const(0.0, "f32") else e)


def crashing(body):
    def far(s):
        if isinstance(s, Store) and s.targets[0].buffer == "c":
            return replace(
                s, targets=tuple(replace(t, indices=(t.indices[0] + (1 << 40), t.indices[1])) for t in s.targets)
            )
        return s

    return transform(body, far)


def endless(body):
    """The whole kernel again and again, some centuries long."""
    serial = transform(body, lambda s: replace(s, kind="serial") if isinstance(s, For) and s.bound else s)
    return For("again", Const(1 << 62, "index"), serial)


def unbuildable(body):
    return For("u", Op("minsi", (Var("nowhere"), Const(4, "index")), "index"), body, "unroll")


def test_bad_candidates_are_contained_and_counted():
    kernel = small()
    with Meter(find("cpu"), threads=1, jobs=1, timeout=4.0, seconds=0.02) as meter:
        space = Space(kernel, meter.description)
        rng = random.Random(0)
        good = [space.sample(rng) for _ in range(2)]
        bad = [with_nest(good[0], f) for f in (wrong, crashing, endless, unbuildable)]
        subject = task_of(kernel).subject("cpu", 1)
        outcomes = meter.measure(subject, space.default, [good[0], *bad, good[1]])
        again = meter.measure(subject, space.default, good[:1])
    assert [o.status for o in outcomes] == ["ok", "wrong", "crash", "timeout", "build", "ok"]
    assert all((o.ratio is not None) == (o.status == "ok") for o in outcomes)
    assert all(o.why for o in outcomes if o.status != "ok")
    assert again[0].status == "ok"


def speedups(model) -> list[str]:
    return re.findall(r"tuned [\d.]+x", model.explain())


def test_tuner_resumes_and_compile_uses_the_result(tmp_path, monkeypatch, caplog):
    path = tmp_path / "t.sqlite"
    monkeypatch.setenv("TILEWRIGHT_DB", str(path))
    monkeypatch.setenv("TILEWRIGHT_JOBS", "1")
    first = tw.tune(MATMUL, trials=4, threads=1)
    assert first.trials == first.tasks[0].trials == 4
    second = tw.tune(MATMUL, trials=4, threads=1)
    assert second.trials == 4 and second.tasks[0].trials == 8
    assert [r.trials for r in Database(path).rows()] == [8, 0]  # the other is the kernel that fills with zeros

    # a result is used silently, by its kernel on this machine with this number of threads only
    task = extract_tasks(MATMUL, threads=1, tuned=False)[0]
    target = find("cpu")
    machine = machine_of(target, target.describe(), 1)
    space = Space(task.kernel, target.describe())
    other = next(c for c in space.list() if c.digest != space.default.digest)
    db = Database(path)
    number = db.task(task.key, task.label, machine)
    db.record(number, Result(other.decisions, other.digest, str(other.schedule.trace), 1e-9, 1.0))
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(n).astype(np.float32) for n in ((16, 32), (32, 48)))
    tuned, plain = tw.compile(MATMUL, threads=1, cache=False), tw.compile(MATMUL, threads=1, tuned=False)
    assert speedups(tuned) == ["tuned 1000000000.00x"] and not speedups(plain)
    assert not speedups(tw.compile(MATMUL, threads=2))
    np.testing.assert_allclose(tuned(x, w)[0], plain(x, w)[0], rtol=1e-5, atol=1e-5)

    # decisions that mean something else by now are not used
    db.record(number, Result(other.decisions, "another digest", "", 1e-10, 1.0))
    with caplog.at_level("INFO", "tilewright"):
        stale = tw.compile(MATMUL, threads=1)
    said = f"the tuned result of {task.kernel.name} was not used: its decisions lead to another loop nest"
    assert not speedups(stale) and said in stale.explain() and said in caplog.text
    assert "was not used" not in tuned.explain()

    # nor are those that are refused
    def refusing(kernel, description, decisions=None):
        if decisions:
            raise ScheduleError("not any more")
        return schedule(kernel, description)

    monkeypatch.setattr(tuned_results, "schedule", refusing)
    refused = tw.compile(MATMUL, threads=1, cache=False)
    assert f"the tuned result of {task.kernel.name} was not used: its decisions are refused" in refused.explain()


def test_what_is_slower_in_the_model_is_taken_back(tmp_path, monkeypatch):
    text = MATMUL.replace("16x", "160x").replace("32x", "320x").replace("48x", "480x").replace("x32xf32", "x320xf32")
    monkeypatch.setenv("TILEWRIGHT_JOBS", "1")
    db, target = Database(tmp_path / "t.sqlite"), find("cpu")
    machine = machine_of(target, target.describe(), 1)
    task = extract_tasks(text, threads=1, tuned=False)[0]
    space = Space(task.kernel, target.describe())
    slow = space.realize({**space.default.decisions, "tile": (1, 1, 1)})
    assert slow is not None and slow.digest != space.default.digest
    number = db.task(task.key, task.label, machine)
    options = {"threads": 1, "target": "cpu", "inputs": None}
    assert recheck(text, options, db, machine).withdrawn == []  # there is nothing to take back
    for candidate in (slow, space.default):
        db.record(number, Result(candidate.decisions, candidate.digest, "", 1e-9, 1.0))
        found = recheck(text, options, db, machine)
        if candidate is slow:
            assert found.withdrawn == [task.kernel.name] and db.result(task.key.kernel, machine) is None
        else:
            assert found.withdrawn == [] and db.result(task.key.kernel, machine) is not None
            assert found.speedup == pytest.approx(1.0, abs=0.3)


def test_a_broken_database_does_not_stop_compilation(tmp_path, monkeypatch):
    path = tmp_path / "t.sqlite"
    path.write_bytes(b"nonsense" * 1000)
    monkeypatch.setenv("TILEWRIGHT_DB", str(path))
    model = tw.compile(MATMUL, threads=1)
    assert "the tuning database was not used" in model.explain()


TUNER = """
import sys
from tests_tune_kernel import small
from tilewright.support.options import Options
from tilewright.targets.base import find
from tilewright.driver.tuning_database import Database
from tilewright.tune.measure import Meter, machine_of
from tilewright.tune.recheck import recheck
from tilewright.tune.tasks import task_of
from tilewright.tune.tuner import Tuner

class Log(Database):
    def add(self, task, found):
        super().add(task, found)
        for m in found:
            print(m.digest, flush=True)

meter = Meter(find("cpu"), 1, jobs=1, seconds=0.01)
options, seed = Options(threads=1, jobs=1), int(sys.argv[2])
tuner = Tuner([task_of(small(48, 192, 24))], options, None, Log(sys.argv[1]), seed, meter=meter)
print("ready", flush=True)
tuner.run(400)
"""


def test_sigkill_at_random_moments_loses_nothing(tmp_path):
    kill_tuners(tmp_path, 3)


@pytest.mark.big
def test_sigkill_at_twenty_moments_loses_nothing(tmp_path):
    kill_tuners(tmp_path, 20)


def kill_tuners(tmp_path: Path, times: int) -> None:
    """Kill the tuner at random moments; after each, what it had reported is in a whole database, and it goes on."""
    if not hasattr(signal, "SIGKILL"):
        pytest.skip("no SIGKILL on this system")
    source = Path(__file__).read_text()
    start = source.index("def small(")
    text = source[start : source.index("\n\n\n", start)]
    (tmp_path / "tests_tune_kernel.py").write_text(f"from tilewright import te\n\n\n{text}\n")
    (tmp_path / "tuner.py").write_text(textwrap.dedent(TUNER))
    path, rng, logged = tmp_path / "t.sqlite", random.Random(7), set()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    counts = [0]
    for n in range(times):
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "tuner.py"), str(path), str(n)],
            stdout=subprocess.PIPE, stderr=(tmp_path / "log").open("w"), env=environment, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", (tmp_path / "log").read_text()
        logged.add(process.stdout.readline().strip())  # at least one batch, then any moment
        time.sleep(rng.uniform(0.0, 1.5))
        process.kill()
        logged |= {line.strip() for line in process.stdout.read().splitlines()}
        process.wait()
        db = Database(path)
        assert db.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (row,) = db.rows()
        found = {m.digest for m in db.measurements(row.id)}
        assert logged <= found, "a finished measurement was lost"
        assert len(found) > counts[-1], "it did not continue"
        counts.append(len(found))
        db.close()


def test_interrupt_ends_with_what_there_is(tmp_path):
    def interrupt(report, at, used):
        if report.trials >= 4:
            raise KeyboardInterrupt

    db = Database(tmp_path / "t.sqlite")
    meter = Meter(find("cpu"), 1, jobs=1, seconds=0.01)
    tuner = Tuner([task_of(small())], Options(threads=1, jobs=1), None, db, watch=None, meter=meter)
    tuner.watch = lambda report, at, used: interrupt(report, at, used) if at is not None else None
    report = tuner.run(100)
    assert report.interrupted and report.trials == len(db.measurements(tuner.numbers[0])) > 0
    assert kernel_key(small()).kernel == db.rows()[0].kernel


def test_the_display_shows_layers_and_leaves_room_for_every_column():
    from rich.console import Console

    from tilewright.cli.tune import _live_table

    tasks = [TaskReport("winograd_conv_add_relu_" * 3, 3, 0.0123, 400, trials=5, layers=("/layer1/conv[1]/Conv",))]
    tasks[0].ratio, tasks[0].decisions = 0.5, {f"decision{i}": i for i in range(20)}
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(_live_table(TuneReport(tasks, trials=5), 0, 0.33, 50.0, 100, 40))
    shown = console.export_text()
    assert "searching, 5 trials" in shown and "about 102 s left" in shown
    assert "/layer1/conv[1]" in shown and "12.300" in shown and "2.00x" in shown and "decision0=0" in shown
