"""Bugs that something slower makes up for: logged with their traceback, and errors in tests."""

import logging

import pytest

import tilewright as tw
from tilewright.driver import compiler
from tilewright.support import internal_errors

MODEL = """
func.func @main(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %0 = "tw.relu"(%x) : (tensor<?x4xf32>) -> tensor<?x4xf32>
  return %0 : tensor<?x4xf32>
}
"""


def broken(*args, **kwargs):
    raise AttributeError("a bug")


def test_a_bug_is_logged_with_its_traceback(monkeypatch, caplog):
    monkeypatch.setenv("TILEWRIGHT_STRICT", "0")
    monkeypatch.setattr(compiler, "_run_stages", broken)
    with caplog.at_level(logging.WARNING, "tilewright"), pytest.raises(tw.errors.UnsupportedError, match="a bug"):
        tw.compile(MODEL, inputs={"arg0": (tw.Dim("n", 1, 9), 4)})
    (record,) = caplog.records
    assert record.exc_info is not None and "in broken" in caplog.text


def test_a_bug_is_an_error_in_tests(monkeypatch):
    monkeypatch.setattr(compiler, "_run_stages", broken)
    with pytest.raises(AttributeError, match="a bug"):
        tw.compile(MODEL, inputs={"arg0": (tw.Dim("n", 1, 9), 4)})


def test_what_others_raise_is_no_bug(monkeypatch):
    for error in (tw.errors.UnsupportedError("on purpose"), ValueError("raised here, in a test")):
        try:
            raise error
        except Exception as e:
            internal_errors.note_own(e, "something else is done")
    try:
        internal_errors.note(None.missing, "")
    except AttributeError as e:
        internal_errors.note_own(e, "something else is done")  # of this file, too
    try:
        tw.support.options.get("no variable")
    except KeyError as e:
        with pytest.raises(KeyError):
            internal_errors.note_own(e, "something else is done")
