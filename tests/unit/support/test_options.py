"""Options of a compilation and environment variables."""

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright.cli.common import _PARAMETERS, _compile_options, _flag_name
from tilewright.support import limits, options
from tilewright.support.errors import PackageError, UsageError
from tilewright.support.option_info import KINDS, Effect, OptionInfo, check
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


# ---- what a field says, and what follows from it ----

#: a value beside the default, with what else has to be given
OTHERS = {
    "target": {"target": "c"},
    "precision": {"precision": "bf16"},
    "tolerance": {"tolerance": 1e-2, "precision": "auto"},
    "threads": {"threads": 7},
    "jobs": {"jobs": 3},
    "inputs": {"inputs": {"x": (3, 4)}},
    "states": {"states": {"past": "present"}},
    "arena_limit": {"arena_limit": 1 << 20},
    "specialize": {"specialize": "never"},
    "buckets": {"buckets": {"n": (4, 8)}},
    "pad": {"pad": {"x": 1}, "buckets": {"n": (4, 8)}},
    "specializations": {"specializations": 5},
    "operators": {"operators": 5000},
    "deadline": {"deadline": 100.0},
    "fast_math": {"fast_math": True},
    "winograd": {"winograd": False},
    "stream": {"stream": False},
    "verify": {"verify": True},
    "cache": {"cache": False},
    "tuned": {"tuned": False},
    "schedules": {"schedules": {"matmul": "split"}},
    "place": {"place": {"matmul": "cpu"}},
    "check_indices": {"check_indices": True},
    "print_after": {"print_after": ("fuse",)},
    "stop_after": {"stop_after": "fuse"},
    "dump": {"dump": "levels"},
    "time": {"time": True},
}
FIELDS = {f.name: f for f in fields(Options)}
each_field = pytest.mark.parametrize("name", FIELDS)


def test_others_has_every_option():
    assert OTHERS.keys() == FIELDS.keys()


def test_type_checkers_know_every_option():
    """With the same types; what is given may be more than what is held."""
    declared = {n: t.__forward_arg__ for n, t in OptionsDict.__annotations__.items()}
    assert [n for n in FIELDS if n != "stop_after"] == list(declared)
    for name, text in declared.items():
        assert text == FIELDS[name].type or text.startswith(f"{FIELDS[name].type} | "), name


@each_field
def test_a_field_says_everything(name):
    f = FIELDS[name]
    info = OptionInfo.of(f)
    assert not info.doc[0].isupper() and not info.doc.endswith("."), "it goes on in a sentence and in a table"
    assert f.type in KINDS
    assert isinstance(info.effect, Effect) and isinstance(info.kept, bool)
    assert not (info.kept and info.effect is Effect.LOOK) or name == "verify", "a file holds nothing to look at"
    check(f, f.default)


@each_field
def test_the_command_line_has_every_option(name, tmp_path):
    f, other = FIELDS[name], OTHERS[name][name]
    flag = _flag_name(f).replace("-", "_")
    parameter = next(p for p in _PARAMETERS if p.name == flag)
    assert parameter.default in (f.default, None, False)
    (tmp_path / "trace").write_text("split")
    texts = {
        "schedules": [f"matmul={tmp_path / 'trace'}"],
        "place": ["matmul=cpu"],
        "inputs": ["x=3x4"],
        "states": ["past=present"],
        "buckets": ["n=8,4", "n=8"],
        "pad": ["x=1"],
        "arena_limit": "1M",
        "print_after": ["fuse"],
    }
    assert _compile_options()[name] == f.default
    given = _compile_options(**{flag: True if f.type == "bool" else texts.get(name, other)})[name]
    assert getattr(Options(**{**OTHERS[name], name: given}), name) == other


@each_field
def test_what_changes_the_result_changes_the_key(name):
    effect = OptionInfo.of(FIELDS[name]).effect
    plain, other = Options(), Options(**OTHERS[name])
    assert (plain.key() != other.key()) == (effect is Effect.RESULT)
    assert other.looks == (effect is Effect.LOOK) and not plain.looks
    json.dumps(other.key())


def test_the_key_has_threads_and_shapes_as_they_count(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_THREADS", "5")
    assert Options().key() == Options(threads=5).key()
    arrays = Options(inputs={"x": np.zeros((2, 3)), "y": np.float32(1)})
    assert arrays.key() == Options(inputs={"x": (2, 3), "y": []}).key()


@each_field
def test_a_file_keeps_what_it_should(name):
    other = Options(**OTHERS[name])
    kept = json.loads(json.dumps(other.kept()))
    restored = Options.restore(kept)
    if OptionInfo.of(FIELDS[name]).kept:
        assert restored == other
    else:
        assert name not in kept and getattr(restored, name) == FIELDS[name].default


def test_files_of_other_versions():
    assert Options.restore({"target": "c"}) == Options(target="c"), "what an older file lacks has its default"
    for kept in ({"telepathy": True}, {"winograd": 3}):
        with pytest.raises(PackageError, match="options of another version"):
            Options.restore(kept)
