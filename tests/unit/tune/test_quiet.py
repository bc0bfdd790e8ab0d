"""One process measures at a time, others are noticed, and times that cannot be are refused."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from tilewright.driver.tuning_database import Database
from tilewright.lang import te
from tilewright.support.options import Options
from tilewright.targets.base import find
from tilewright.tune import quiet, tuner
from tilewright.tune.measure import Contest, Meter
from tilewright.tune.tasks import task_of
from tilewright.tune.tuner import Tuner

pytest.importorskip("lightgbm", reason="LightGBM is not installed: pip install tilewright[tune]")

HOLD = """
import sys
from pathlib import Path
from tilewright.tune import quiet
quiet.folder = lambda: Path(sys.argv[1])
with quiet.alone():
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.skipif(quiet.fcntl is None, reason="no file locks here")
def test_the_second_process_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(quiet, "folder", lambda: tmp_path)
    monkeypatch.setattr(quiet, "STEP", 0.01)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        told, inside = threading.Event(), threading.Event()

        def second():
            with quiet.alone(lambda what: told.set()):
                inside.set()

        thread = threading.Thread(target=second)
        thread.start()
        assert told.wait(60) and not inside.is_set()
        other.communicate("\n")
        assert inside.wait(60)
        thread.join()
    with quiet.alone(lambda what: pytest.fail("nobody holds it")):
        pass


def test_other_processes_are_seen(tmp_path):
    stat = tmp_path / "stat"

    def looked(after):
        stat.write_text("cpu 100 0 0 100 0 0 0 0\ncpu0 1\ncpu1 1\n")
        timer = SimpleNamespace(sleep=lambda s: stat.write_text(after))
        old, quiet.time = quiet.time, timer
        try:
            return quiet.busy_cores(stat)
        finally:
            quiet.time = old

    assert looked("cpu 150 0 0 150 0 0 0 0\ncpu0 1\ncpu1 1\n") == 1.0
    assert looked("cpu 100 0 0 200 0 0 0 0\ncpu0 1\ncpu1 1\n") == 0.0
    assert looked("nothing") is None and quiet.busy_cores(tmp_path / "absent") is None


def test_a_warning_under_load(monkeypatch, caplog):
    monkeypatch.setattr(quiet, "busy_cores", lambda: 1.5)
    assert "other processes use 1.5 cores" in quiet.warning()
    monkeypatch.setattr(tuner, "_tune", lambda *a, **k: tuner.TuneReport([]))
    with caplog.at_level(logging.WARNING, "tilewright"):
        assert "1.5 cores" in tuner.tune("model.onnx", trials=1).noise
    assert "1.5 cores" in caplog.text
    monkeypatch.setattr(quiet, "busy_cores", lambda: 0.1)
    assert quiet.warning() == "" and tuner.tune("model.onnx", trials=1).noise == ""


@pytest.mark.parametrize("seconds, baseline, kept", [(5e-6, 1e-5, True), (1e-12, 1e-5, False), (5e-6, 2.5e-2, False)])
def test_what_cannot_be_is_not_kept(seconds, baseline, kept, tmp_path, monkeypatch):
    a, b, k = te.placeholder((16, 32), "a"), te.placeholder((32, 48), "b"), te.reduce_axis(32)
    task = task_of(te.kernel(te.compute((16, 48), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")))
    task.calls, task.seconds = 2, 2.2e-5
    meter = Meter(find("cpu"), 1, jobs=1)
    made = Tuner([task], Options(threads=1, jobs=1), None, Database(tmp_path / "t.sqlite"), 3, meter=meter)
    search = made.searches[0]
    ratio = seconds / baseline
    (candidate,) = search.propose(1)
    search.add(candidate, "ok", ratio)
    race = Contest((ratio,) * 5, (ratio,) * 5, seconds, baseline, 0.0, 0.0)
    monkeypatch.setattr(meter, "contest", lambda *a: race)
    made._promote(0, made.subject(0))
    found = made.database.result(task.key.kernel, made.machine)
    assert (found is not None) == kept and made.report.outcomes["doubtful"] == (not kept)
