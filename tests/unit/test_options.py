"""Options of a compilation and environment variables."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import tilewright
from tilewright.support import limits, options
from tilewright.support.errors import UsageError
from tilewright.support.options import ENVIRONMENT, Options, OptionsDict


def test_defaults(monkeypatch):
    monkeypatch.delenv("TILEWRIGHT_THREADS", raising=False)
    chosen = Options()
    assert (chosen.target, chosen.precision, chosen.threads, chosen.verify, chosen.cache) == (
        "cpu",
        "f32",
        None,
        False,
        True,
    )
    assert chosen.thread_count == limits.usable_cores() >= 1
    monkeypatch.setenv("TILEWRIGHT_THREADS", "3")
    assert chosen.thread_count == 3
    assert Options(threads=2).thread_count == 2
    assert Options(print_after="all").print_after == ("all",)
    assert Options(dump=Path("x")).dump == Path("x")


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"thread": 1}, "unknown option 'thread'\n  hint: did you mean 'threads'?"),
        ({"zzz": 1}, "unknown option 'zzz'\n  hint: the options are target, precision"),
        ({"threads": 0}, "option 'threads' must be an integer of at least 1 or None, not 0"),
        ({"threads": True}, "option 'threads' must be an integer"),
        ({"threads": "2"}, "option 'threads' must be an integer"),
        ({"verify": 1}, "option 'verify' must be True or False, not 1"),
        ({"target": None}, "option 'target' must be a string, not None"),
        ({"inputs": [1]}, "option 'inputs' must be a dict or None"),
        ({"precision": "f8"}, "option 'precision' is 'f8', which is not available\n  hint: choose from f32"),
    ],
)
def test_bad_options(chosen, message):
    with pytest.raises(UsageError) as e:
        Options.of(**chosen)
    assert message in str(e.value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("TILEWRIGHT_CACHE_SIZE", "500M", 500 << 20),
        ("TILEWRIGHT_CACHE_SIZE", "1.5k", 1536),
        ("TILEWRIGHT_CACHE_SIZE", "7", 7),
        ("TILEWRIGHT_JOBS", "4", 4),
        ("TILEWRIGHT_COMPILE", "inprocess", "inprocess"),
        ("TILEWRIGHT_DB", "/x/y.sqlite", Path("/x/y.sqlite")),
        ("TILEWRIGHT_TIMEOUT", "", 600),
    ],
)
def test_variables(monkeypatch, name, text, value):
    monkeypatch.setenv(name, text)
    assert options.get(name) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TILEWRIGHT_THREADS", "0"),
        ("TILEWRIGHT_THREADS", "many"),
        ("TILEWRIGHT_CACHE_SIZE", "-1"),
        ("TILEWRIGHT_COMPILE", "x"),
    ],
)
def test_bad_variables(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=f"environment variable {name}='{text}' is not valid"):
        options.get(name)


def test_places_of_the_cache(monkeypatch, tmp_path):
    for name in ("TILEWRIGHT_CACHE", "TILEWRIGHT_DB", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for platform, place in (("linux", ".cache"), ("darwin", "Library/Caches"), ("win32", "AppData/Local")):
        monkeypatch.setattr(options.sys, "platform", platform)
        assert options.get("TILEWRIGHT_CACHE") == tmp_path / place / "tilewright"
    assert options.get("TILEWRIGHT_DB").parent == options.get("TILEWRIGHT_CACHE")
    monkeypatch.setattr(options.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert options.get("TILEWRIGHT_CACHE") == tmp_path / "xdg" / "tilewright"


def test_every_variable_of_the_source_is_in_the_table():
    root = Path(tilewright.__file__).parent
    used = {name for p in root.rglob("*.py") for name in re.findall(r"\bTILEWRIGHT_[A-Z_]+\b", p.read_text("utf-8"))}
    assert used == set(ENVIRONMENT)
    assert all(v.doc for v in ENVIRONMENT.values())


def test_type_checkers_know_every_option():
    declared = set(OptionsDict.__annotations__)
    assert declared | {"stop_after"} == {f.name for f in fields(Options)}
