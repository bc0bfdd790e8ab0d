"""Tuning the layers of a chip: found by the simulator, kept for the description, used by compilation."""

import numpy as np
import pytest
from support.chip_models import dense

import tilewright as tw
from tilewright.cli import main
from tilewright.driver.tuning_database import Database
from tilewright.support.errors import UsageError
from tilewright.tune import chip_measure, chip_tuner

TARGET = "cpu+outer4"


@pytest.fixture
def model(tmp_path):
    return dense(tmp_path / "net.onnx", 40, 23, batch=30)


@pytest.fixture
def db(tmp_path, monkeypatch):
    path = tmp_path / "tuned.sqlite"
    monkeypatch.setenv("TILEWRIGHT_DB", str(path))
    monkeypatch.setenv("TILEWRIGHT_JOBS", "1")
    return path


@pytest.fixture
def counted(monkeypatch):
    """The plans that were timed in this process."""
    seen, real = [], chip_measure.cycles

    def cycles(target, kernel, plan):
        seen.append(str(plan))
        return real(target, kernel, plan)

    monkeypatch.setattr(chip_measure, "cycles", cycles)
    return seen


def test_found_kept_and_used(model, db):
    plain = tw.compile(model, target=TARGET, cache=False)
    report = tw.tune(model, target=TARGET, trials=24)
    (task,) = report.tasks
    assert report.trials == task.trials == 24 and not report.interrupted
    assert task.ratio < 1 and task.cycles > 0 and report.speedup == pytest.approx(1 / task.ratio)
    tuned = tw.compile(model, target=TARGET, cache=False)
    said = str(tuned.explain())
    assert f"{round(task.cycles * task.ratio)} cycles, tuned" in said and f"tuned {1 / task.ratio:.2f}x" in said
    assert f"{task.cycles} cycles" in str(plain.explain())
    x = np.random.default_rng(0).standard_normal((30, 40)).astype(np.float32)
    np.testing.assert_allclose(tuned(x)[0], plain(x)[0], rtol=1e-4, atol=1e-5)
    assert "cycles, tuned" not in str(tw.compile(model, target=TARGET, cache=False, tuned=False).explain())
    assert "cycles, tuned" not in str(tw.compile(model, target=f"{TARGET}:array=8", cache=False).explain())
    (row,) = Database(db).rows()
    assert row.machine.target == "outer4" and '"array": 4' in row.machine.features and row.trials == 24


def test_the_same_again(model, tmp_path, db, counted):
    """Cycles do not vary, and so neither does a search; what was measured is not measured again."""
    one = tw.tune(model, target=TARGET, trials=12, database=Database(tmp_path / "one.sqlite"))
    first = set(counted)
    counted.clear()
    two = tw.tune(model, target=TARGET, trials=12, database=Database(tmp_path / "two.sqlite"))
    assert [t.ratio for t in one.tasks] == [t.ratio for t in two.tasks] and set(counted) == first
    counted.clear()
    more = tw.tune(model, target=TARGET, trials=8, database=Database(tmp_path / "two.sqlite"))
    default = next(p for p in counted if counted.count(p) == max(map(counted.count, counted)))
    assert not (set(counted) - {default}) & first
    assert more.tasks[0].trials == 20 and more.tasks[0].ratio <= two.tasks[0].ratio


def test_in_processes(model, tmp_path, db, monkeypatch):
    here = tw.tune(model, target=TARGET, trials=8, database=Database(tmp_path / "one.sqlite"))
    monkeypatch.setenv("TILEWRIGHT_JOBS", "2")
    apart = tw.tune(model, target=TARGET, trials=8, database=Database(tmp_path / "two.sqlite"))
    assert [t.ratio for t in here.tasks] == [t.ratio for t in apart.tasks]


def test_what_is_wrong_is_taken_back(model, db, monkeypatch):
    monkeypatch.setattr(chip_tuner, "differs", lambda *_: "its results differ from those of the default plan")
    report = tw.tune(model, target=TARGET, trials=12)
    (task,) = report.tasks
    assert task.ratio == 1.0 and "differ" in task.problem and report.outcomes["wrong"] == 1
    assert Database(db).rows()[0].result is None
    assert "cycles, tuned" not in str(tw.compile(model, target=TARGET, cache=False).explain())


def test_a_plan_that_means_something_else_is_left(model, db):
    tw.tune(model, target=TARGET, trials=12)
    with Database(db)._write() as c:
        c.execute("UPDATE results SET digest = 'tiles of another version'")
    said = str(tw.compile(model, target=TARGET, cache=False).explain())
    assert "was not used: its decisions lead to another plan now" in said and "cycles, tuned" not in said


def test_interrupted(model, db, monkeypatch):
    def watch(report, at, used):
        if report.trials and at is not None:
            raise KeyboardInterrupt

    report = tw.tune(model, target=TARGET, trials=100, watch=watch)
    assert report.interrupted and Database(db).rows()[0].trials == report.trials == 8


def test_what_cannot_be_tuned(model, tmp_path, db):
    with pytest.raises(UsageError, match="a budget"):
        tw.tune(model, target=TARGET)
    with pytest.raises(UsageError, match="a chip is simulated"):
        tw.tune(model, target=TARGET, trials=4, runners=["there:7070"])
    small = dense(tmp_path / "small.onnx", 1, 1, batch=1)
    with pytest.raises(UsageError, match="runs nothing of the model on the chip"):
        tw.tune(small, target=TARGET, trials=4)


def test_the_command(model, db, capsys):
    assert main(["tune", model, "--target", TARGET, "--trials", "8"]) == 0
    said = capsys.readouterr()
    assert "cycles  tuned" in " ".join(said.out.split()).replace(" ", "  ") and "simulator" in said.err
    assert main(["db", "list"]) == 0
    assert "outer4:1" in capsys.readouterr().out
    assert main(["db", "show", "1"]) == 0
    assert "tiles " in capsys.readouterr().out
