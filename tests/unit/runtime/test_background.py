"""Programs for single sizes beside one for all: which sizes get one, who waits, failures, forks, what goes when."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from support.forking import in_child
from support.open_models import MODELS, feeds

import tilewright as tw
from tilewright.program.package import Package
from tilewright.runtime import background
from tilewright.runtime.background import Background, Stopped
from tilewright.runtime.open_executable import OpenExecutable, make
from tilewright.support.errors import CompileError, InputError

#: of the model "mlp": x: f32[batch, 24] -> f32[batch, 10]
MODEL = "mlp"


@cache
def package(batch: int | None = None) -> Package:
    """For one size, or for all."""
    model, shapes = MODELS[MODEL]
    run = tw.compile(model(), inputs=shapes if batch is None else {"x": (batch, 24)}, threads=1)
    return run.package


def anew(found: Package) -> Package:
    """As if it came out of a file."""
    return Package(
        found.target, found.description, found.program, found.objects, [c.copy() for c in found.constants], {}, {}
    )


class InThread:
    """A `BackgroundCompiler` in this process: `asked` are the sizes, `go` lets it go on, `error` is what it raises."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()
        self.error: Exception | None = None
        self.stopped = self.forgotten = False

    def make(self, shapes: Mapping[str, tuple[int, ...]]) -> Package:
        (batch, _) = shapes["x"]
        self.asked.append(batch)
        self.begun.set()
        self.go.wait()
        if self.stopped:
            raise Stopped
        if self.error is not None:
            raise self.error
        return anew(package(batch))

    def stop(self) -> None:
        self.stopped = True
        self.go.set()

    def forget(self) -> None:
        self.forgotten = True


def executable(limit: int | None = None, threads: int = 1) -> tuple[OpenExecutable, InThread]:
    run, maker = make(anew(package()), threads), InThread()
    assert isinstance(run, OpenExecutable)
    run.background = Background(maker, run.package, threads, limit)
    return run, maker


def right(run: OpenExecutable, batch: int, seed: int = 0) -> None:
    given = feeds(MODEL, batch, 1, seed)
    (want,) = make(package(), 1)(given)
    (got,) = run(given)
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def call(run: OpenExecutable, *batches: int) -> None:
    for batch in batches:
        right(run, batch)
        assert run.background is not None and run.background.wait(60)


def sizes(run: OpenExecutable) -> list[int]:
    assert run.background is not None
    return sorted(s["batch"] for s in run.background.sizes())


def test_a_size_that_recurs_gets_a_program():
    run, maker = executable()
    call(run, 3, 3, 5, 5)
    assert maker.asked == [] and "0 sizes specialized" in repr(run)
    call(run, 3)
    assert maker.asked == [3] and sizes(run) == [3] and "1 size specialized" in repr(run)
    (special,) = run.background.programs()
    call(run, 3, 3, 5)
    assert special.calls == 2 and sizes(run) == [3, 5]
    call(run, 3, 5, 5, 3)
    assert maker.asked == [3, 5]
    text = run.explain()
    assert "programs for single sizes: 2 (at most 16, 1.0 GiB)" in text and "  batch 3: 4 calls, " in text


def test_all_ways_of_a_call(monkeypatch):
    run, _ = executable()
    given = feeds(MODEL, 4, 1)
    before = run(given)[0]
    call(run, 4, 4)
    special = run.background.programs()[0]
    out = np.empty_like(before)
    for got in (run(given["x"]), run(given), run(x=given["x"]), run.run(given), run(given, out=[out])):
        np.testing.assert_allclose(got[0], before, rtol=1e-5, atol=1e-6)
    assert special.calls == 5
    np.testing.assert_allclose(run(np.asfortranarray(given["x"]))[0], before, rtol=1e-5, atol=1e-6)
    for wrong in (given["x"].astype(np.float64), np.zeros((4, 23), np.float32), np.zeros((99, 24), np.float32)):
        with pytest.raises(InputError):
            run(wrong)
    with pytest.raises(InputError):
        run({"x": given["x"], "z": given["x"]})
    with pytest.raises(InputError):
        run(given, out=[np.empty((3, 10), np.float32)])
    monkeypatch.setattr(special.executable, "profile", lambda inputs, repeats: repeats)
    assert run.profile(given, 7) == 7
    assert run.profile(feeds(MODEL, 5, 1), 2).kernels  # of the program for all sizes


def test_what_is_no_call_is_not_counted():
    run, maker = executable()
    for _ in range(5):
        with pytest.raises(InputError):
            run(np.zeros((17, 24), np.float32))
    assert run.background.wait(10) and maker.asked == [] and not run.background._demand


def test_the_caller_does_not_wait():
    run, maker = executable()
    maker.go.clear()
    for _ in range(9):
        right(run, 2)
    assert maker.begun.wait(60) and sizes(run) == [] and not run.background.wait(0)
    for _ in range(3):
        right(run, 3)
    assert "2 more are to be made" in run.explain()
    maker.go.set()
    assert run.background.wait(60)
    assert maker.asked == [2, 3] and sizes(run) == [2, 3]


def test_no_more_than_are_kept_and_those_that_take_turns_stay():
    run, maker = executable(limit=2)
    for _ in range(6):
        call(run, 1, 2, 3)  # as often as each other
    assert maker.asked == [1, 2] and sizes(run) == [1, 2]
    call(run, 2, 3, 3, 3)  # 1 was not called meanwhile
    assert maker.asked == [1, 2, 3] and sizes(run) == [2, 3]
    call(run, 1, 2, 1, 3, 1, 2)
    assert maker.asked == [1, 2, 3]
    assert "(at most 2)" in run.explain()


def test_the_bytes_of_all_are_bounded(monkeypatch):
    monkeypatch.setattr(background, "KEPT_BYTES", 1)
    run, maker = executable()
    call(run, *[4] * 3, *[6] * 4, *[4] * 2)
    assert maker.asked == [4, 6] and sizes(run) == [6]


def test_what_is_counted_is_bounded(monkeypatch):
    monkeypatch.setattr(background, "COUNTED", 3)
    run, _ = executable()
    call(run, *range(1, 9))
    assert len(run.background._demand) == 3


def test_weights_of_the_same_layout_are_the_same_memory():
    run, _ = executable()
    call(run, 7, 7, 7)
    (special,) = run.background.programs()
    theirs = {background.address(c) for c in run.package.constants}
    for constant in special.executable.package.constants:
        equal = [c for c in run.package.constants if c.nbytes >= 256 and np.array_equal(c, constant)]
        assert not equal or background.address(constant) in theirs
    weights = sum(c.nbytes for c in special.executable.package.constants)
    memory = special.executable.memory
    assert special.nbytes - memory.arena - memory.code <= weights
    assert run.background.nbytes >= memory.arena + memory.code


def test_a_failure_is_said_once_and_three_are_enough(caplog):
    run, maker = executable()
    maker.error = CompileError("no memory", stage="assemble")
    with caplog.at_level(logging.DEBUG, "tilewright"):
        call(run, *[1] * 5, *[2] * 5)
        maker.error = ValueError("a fault")
        call(run, *[3] * 5, *[4] * 5)
    assert maker.asked == [1, 2, 3] and sizes(run) == []
    said = [(r.levelname, r.message) for r in caplog.records if "alone" in r.message]
    assert [level for level, _ in said] == ["WARNING", "DEBUG", "DEBUG"]
    assert "there is no program for batch 1 alone" in said[0][1] and "no memory" in said[0][1]
    assert "ValueError: a fault; no more are tried" in said[2][1]


def test_a_program_that_takes_something_else_is_refused(caplog):
    run, maker = executable()
    maker.make = lambda shapes: anew(package(9))  # type: ignore[method-assign]
    call(run, 8, 8, 8, 8)
    assert sizes(run) == [] and "expected were" in caplog.text


def test_closed_while_something_is_made():
    run, maker = executable()
    maker.go.clear()
    for _ in range(3):
        right(run, 2)
    assert maker.begun.wait(60)
    run.close()
    assert maker.stopped and run.background.wait(60) and sizes(run) == []
    call(run, *[2] * 4)
    assert maker.asked == [2]


def test_closed_with_programs():
    run, _ = executable()
    call(run, 2, 2, 2)
    run.close()
    call(run, 2, 3, 3, 3, 3)
    assert sizes(run) == [2]


def test_collected_while_something_is_made():
    run, maker = executable()
    maker.go.clear()
    for _ in range(3):
        right(run, 2)
    assert maker.begun.wait(60)
    thread = run.background._thread
    del run
    gc.collect()
    assert maker.stopped
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_that_call_while_programs_come_and_go(threads):
    run, _ = executable(2, threads)
    for batch in range(1, 6):
        package(batch)
    rounds = [1 + i // 24 % 5 if i % 3 else 1 + i % 5 for i in range(240)]
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(right, run, batch, i) for i, batch in enumerate(rounds)]:
            done.result()
    assert run.background.wait(60) and 1 <= len(sizes(run)) <= 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_makes_its_own():
    package(2), package(3)
    run, maker = executable()
    call(run, 3, 3, 3)
    maker.go.clear()
    for _ in range(3):
        right(run, 2)
    assert maker.begun.wait(60)

    def work() -> bool:
        maker.go = threading.Event()
        maker.go.set()
        there = maker.forgotten and sizes(run) == [3] and run.background.wait(0)
        for batch in (3, 2, 2, 2):
            right(run, batch)
        return there and run.background.wait(60) and sizes(run) == [2, 3]

    assert in_child(work) == 0
    maker.go.set()
    assert run.background.wait(60) and sizes(run) == [2, 3]


def test_saving_says_what_is_not_in_the_file(tmp_path, caplog):
    run, _ = executable()
    call(run, 2, 2, 2)
    run.save(tmp_path / "m.tw")
    assert "for all sizes only" in caplog.text
    again = tw.load(tmp_path / "m.tw", threads=1)
    assert again.background is None
    right(again, 2)
