"""A second compilation takes schedules and MLIR from the memo, and gives the same program."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tilewright.codegen.llvm import memo
from tilewright.codegen.llvm.cache import KernelCache
from tilewright.codegen.llvm.memo import KernelMemo
from tilewright.codegen.llvm.memo_entry import MemoEntry
from tilewright.driver import journal, stages
from tilewright.driver.build_program import KernelInfo
from tilewright.schedule import rules
from tilewright.schedule.nest import Pack
from tilewright.targets.cpu import MAKER
from tilewright.targets.cpu.description import host

MODEL = """
func.func @main(%x: tensor<5x8xf32>, %y: tensor<8x16xf32>) -> tensor<5x16xf32> {
  %0 = "tw.matmul"(%x, %y) : (tensor<5x8xf32>, tensor<8x16xf32>) -> tensor<5x16xf32>
  %1 = "tw.softmax"(%0) {axis = 1 : i64} : (tensor<5x16xf32>) -> tensor<5x16xf32>
  return %1 : tensor<5x16xf32>
}
"""


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """A model that was compiled once, into an empty cache."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    return tw.compile(MODEL)


def no_schedule(*_):
    raise AssertionError("a kernel was scheduled again")


def test_second_time_nothing_is_scheduled(compiled, monkeypatch):
    monkeypatch.setattr(stages, "schedule_kernel", no_schedule)
    again = tw.compile(MODEL)
    x, y = np.ones((5, 8), np.float32), np.linspace(0, 1, 128, dtype=np.float32).reshape(8, 16)
    assert compiled(x, y)[0].tobytes() == again(x, y)[0].tobytes()
    old, new = compiled._package, again._package
    known = {k["symbol"]: k for k in new.report["kernels"]}
    assert json.loads(json.dumps({k["symbol"]: k for k in old.report["kernels"]})) == known
    assert sorted(old.levels["schedule"].split()) == sorted(new.levels["schedule"].split())
    assert old.program == new.program


def test_workers_make_new_kernels(compiled, monkeypatch, tmp_path):
    """Two processes take the kernels all the way, and the program is the same."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "another"))
    monkeypatch.setattr(stages, "schedule_kernel", no_schedule)
    made = tw.compile(MODEL, jobs=2, tuned=False)
    old, new = compiled._package, made._package
    assert old.program == new.program and old.objects == new.objects
    assert [sorted(p.levels["emit"].splitlines()) for p in (old, new)] == [sorted(old.levels["emit"].splitlines())] * 2
    about = [{k["symbol"]: {**k, "compile_s": 0} for k in p.report["kernels"]} for p in (old, new)]
    assert json.loads(json.dumps(about[0])) == json.loads(json.dumps(about[1]))
    tw.compile(MODEL, tuned=False)  # and a third compilation finds them


def test_seconds_of_workers_are_divided(compiled, monkeypatch, tmp_path, capsys):
    """A stage has what the workers spent on it, not `schedule` all; together they are the time that passed."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "another"))
    clock, real = iter(range(1000)), KernelMemo.make

    def make(*given):
        found, seconds = real(*given)
        assert sorted(seconds) == ["assemble", "emit", "schedule"] and all(s > 0 for s in seconds.values())
        return found, {"schedule": 1.0, "emit": 2.0, "assemble": 5.0}

    monkeypatch.setattr(KernelMemo, "make", make)
    for module in (journal, stages):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: 8.0 * next(clock)))
    made = tw.compile(MODEL, jobs=2, tuned=False, time=True)
    # the clock stands still but when it is read: twice by each stage, and twice within `schedule` for the workers
    rows = {e["stage"]: e["seconds"] for e in made._package.report["levels"]}
    assert [rows[s] for s in ("fuse", "schedule", "emit", "assemble")] == [8, 24 - 7, 8 + 2, 8 + 5]
    assert "schedule     17.000 s" in capsys.readouterr().err


def test_what_workers_cannot_make_is_compiled_here(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(memo, "compile_each", lambda jobs, *_, **__: {j.symbol: "the process died" for j in jobs})
    x, y = np.ones((5, 8), np.float32), np.ones((8, 16), np.float32)
    assert tw.compile(MODEL, jobs=2)(x, y)[0] == pytest.approx(1 / 16)


@pytest.mark.parametrize("options", [{"verify": True}, {"cache": False}, {"stop_after": "schedule"}])
def test_what_needs_the_nests_makes_them(compiled, monkeypatch, options):
    monkeypatch.setattr(stages, "schedule_kernel", no_schedule)
    with pytest.raises(AssertionError, match="scheduled again"):
        tw.compile(MODEL, **options, tuned=False)


def test_rules_from_outside_are_always_asked(compiled, monkeypatch):
    rule = type("Rule", (), {"NAME": "mine", "PRIORITY": 99, "apply": staticmethod(lambda *_: "never")})
    monkeypatch.setattr(rules, "_ADDED", {"mine": rule})
    rules._rules.cache_clear()
    try:
        monkeypatch.setattr(stages, "schedule_kernel", no_schedule)
        with pytest.raises(AssertionError, match="scheduled again"):
            tw.compile(MODEL, tuned=False)
    finally:
        monkeypatch.undo()
        rules._rules.cache_clear()


def test_entries_keep_everything(tmp_path):
    info = KernelInfo(64, {1: Pack("w", ((), (32,)), (1, 0, 2))}, False, ((0, 1), (2, 0)), True, ("no",))
    known = MemoEntry("nest", "mlir", info, {"kind": "rows", "flops": 3})
    memo = KernelMemo(host(), MAKER, KernelCache(tmp_path))
    memo.remember("func", known.nest, known.emitted, known.info, known.report)
    assert memo.recall("func") == known
    assert memo.recall("another") is None


def test_another_machine_finds_nothing(tmp_path):
    from dataclasses import replace

    cache = KernelCache(tmp_path)
    KernelMemo(host(), MAKER, cache).remember("func", "", "", KernelInfo(), {})
    assert KernelMemo(replace(host(), l2_bytes=1), MAKER, cache).recall("func") is None
