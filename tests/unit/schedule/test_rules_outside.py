"""Rules that are not part of the package; docs/add_a_rule.md shows one that does something."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tilewright.cli import main
from tilewright.lang import te
from tilewright.schedule import rules
from tilewright.schedule.primitives import state
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.support.errors import CompileError, UsageError
from tilewright.targets.cpu.description import CpuDescription

MACHINE = CpuDescription("x86_64-unknown-linux-gnu", "x86-64-v3", ("avx2",), vector_bytes=32, vector_registers=16)


def kernel():
    x = te.placeholder((8, 8), "x")
    return te.kernel(te.compute((8, 8), lambda i, j: x[j, i], "y"))


@pytest.fixture
def own():
    """Forget what a test registers."""
    before = dict(rules._ADDED)
    yield
    rules._ADDED.clear()
    rules._ADDED.update(before)
    rules._rules.cache_clear()


def rule(apply, name="mine", priority=-10):
    return SimpleNamespace(NAME=name, PRIORITY=priority, apply=apply)


def test_a_registered_rule_is_tried_in_its_place(own):
    before = rules.schedule(kernel(), MACHINE).rule
    rules.register(rule(lambda k, m, d=None: "not today"))
    assert rules.schedule(kernel(), MACHINE).refused[0] == ("mine", "not today")
    rules.register(rule(lambda k, m, d=None: Schedule(k, decisions=d)))  # the same name: it takes its place
    assert rules.schedule(kernel(), MACHINE).rule == "mine"
    rules.register(rule(lambda k, m, d=None: Schedule(k), priority=10**6))
    assert rules.schedule(kernel(), MACHINE).rule == before


def test_an_illegal_step_is_a_refusal(own):
    def illegal(k, m, d=None):
        s = Schedule(k)
        s.split("nowhere", 2)
        return s

    rules.register(rule(illegal))
    made = rules.schedule(kernel(), MACHINE)
    assert made.rule != "mine" and made.refused[0] == ("mine", "there is no loop nowhere")
    with pytest.raises(ScheduleError):
        illegal(kernel(), MACHINE)


def test_a_rule_may_go_on_otherwise_where_a_step_is_not_legal(own, monkeypatch):
    """Steps are checked together at first: then this rule does not see that a thread has `y` for itself."""
    checked = []
    monkeypatch.setattr(state.State, "_illegal", lambda s, of=state.State._illegal: checked.append(s) or of(s))
    x = te.placeholder((8, 8), "x")
    y = te.compute((8, 8), lambda i, j: x[j, i] + x[i, j], "y")
    both = te.kernel(te.compute((8, 8), lambda i, j: y[j, i], "z"))

    def careful(k, m, d=None):
        s = Schedule(k)
        s.vectorize(s.loops("y")[1])
        try:
            s.parallel(s.loops("y")[0])
        except ScheduleError:
            s.vectorize(s.loops("z")[1])
        return s

    rules.register(rule(careful))
    made = rules.schedule(both, MACHINE)
    assert made.rule == "mine" and [f.kind for f in made.schedule.body.loops] == ["serial", "vector"] * 2
    assert len(checked) == 1 + 3  # both steps together, then one by one, the refused one too
    assert str(made.schedule.trace) == str(careful(both, MACHINE).trace)

    checked.clear()
    rules.register(rule(lambda k, m, d=None: plain(k)))
    assert rules.schedule(kernel(), MACHINE).rule == "mine" and len(checked) == 1


def plain(k):
    s = Schedule(k)
    s.vectorize(s.loops()[1])
    s.parallel(s.loops()[0])
    return s


def test_what_is_no_rule_is_refused(own):
    with pytest.raises(UsageError, match="is no rule: it has no PRIORITY, apply"):
        rules.register(SimpleNamespace(NAME="half"))
    with pytest.raises(UsageError, match="there is a rule called 'contraction'"):
        rules.register(rule(lambda k, m, d=None: "", name="contraction"))


def test_entry_points_are_found_and_checked(own, monkeypatch):
    mine = rule(lambda k, m, d=None: Schedule(k))
    entry = SimpleNamespace(name="e", value="package:rule", load=lambda: mine)
    monkeypatch.setattr(rules, "entry_points", lambda group: [entry])
    rules._rules.cache_clear()
    assert rules.schedule(kernel(), MACHINE).rule == "mine"
    mine.NAME = "contraction"
    rules._rules.cache_clear()
    with pytest.raises(UsageError, match=r"entry point 'e' of tilewright\.rules is no new rule"):
        rules.schedule(kernel(), MACHINE)


def test_a_failing_rule_is_named_with_its_kernel(own, monkeypatch):
    def fails(k, m, d=None):
        return {}["absent"]

    rules.register(rule(fails))
    with pytest.raises(CompileError, match=r"rule 'mine' fails on kernel kernel: KeyError: 'absent' \(.*test_rules"):
        rules.schedule(kernel(), MACHINE)
    rules.register(rule(lambda k, m, d=None: None))
    with pytest.raises(CompileError, match="rule 'mine' fails on kernel kernel: it gave None, not a Schedule or a"):
        rules.schedule(kernel(), MACHINE)
    entry = SimpleNamespace(name="e", value="package:rule", load=lambda: fails(None, None))
    monkeypatch.setattr(rules, "entry_points", lambda group: [entry])
    rules._rules.cache_clear()
    with pytest.raises(UsageError, match=r"entry point 'e' of tilewright\.rules cannot be loaded: KeyError: 'absent'"):
        rules.schedule(kernel(), MACHINE)


def test_a_failing_rule_is_no_bug_of_ours(own, tmp_path, capsys):
    rules.register(rule(lambda k, m, d=None: 1 // 0))
    file = tmp_path / "g.mlir"
    file.write_text("""func.func @main(%x: tensor<4xf32> {tw.name = "x"}) -> (tensor<4xf32> {tw.name = "y"}) {
      %0 = "tw.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32> }""")
    assert main(["compile", str(file), "-o", str(tmp_path / "m.tw")]) == 6
    said = capsys.readouterr().err
    assert "rule 'mine' fails on kernel exp" in said and "ZeroDivisionError" in said
    assert "not part of Tilewright" in said and "bug" not in said
