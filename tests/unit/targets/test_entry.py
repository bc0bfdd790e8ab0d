"""Calls that go straight from Python into the package's code, and those that must not."""

import gc
import random
import sys
import threading
import weakref

import numpy as np
import pytest

from tilewright.program.program import COPY, BufferRef, Call, Program, TensorInfo
from tilewright.runtime.executable import Executable
from tilewright.support.errors import InputError
from tilewright.targets.base import not_at_once
from tilewright.targets.cpu import entry

INFOS = (
    *(TensorInfo("a", (4, 6), "f32"), TensorInfo("b", (4, 6), "f32"), TensorInfo("n", (3,), "i64")),
    *(TensorInfo("s", (), "f64"), TensorInfo("e", (0, 3), "f32"), TensorInfo("h", (5,), "bf16")),
)


@pytest.fixture(scope="module")
def copies(make_package):
    """A package whose outputs are copies of its six inputs."""
    calls = [
        Call(COPY, (BufferRef("input", i, 0, t.nbytes), BufferRef("output", i, 0, t.nbytes)), (1,))
        for i, t in enumerate(INFOS)
    ]
    return make_package(Program(INFOS, INFOS, (), tuple(calls)), {})


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.integers(-50, 50, t.shape)).astype(t.numpy_dtype) for t in INFOS]


def equal(got, wanted):
    return len(got) == len(wanted) and all(
        g.dtype == w.dtype and g.shape == w.shape and g.tobytes() == w.tobytes()
        for g, w in zip(got, wanted, strict=True)
    )


@pytest.fixture
def run(copies):
    return Executable(copies, 1)


@pytest.fixture
def checked(copies):
    """The same, with every call looked at in Python."""
    other = Executable(copies, 1)
    context = other._take()
    context.enter = not_at_once
    other._give(context)
    return other


@pytest.fixture
def counted(run, monkeypatch):
    """The calls of `run` that were looked at in Python."""
    seen = []
    behind = run._run_checked
    monkeypatch.setattr(run, "_run_checked", lambda args, out: seen.append(args) or behind(args, out))
    return seen


@pytest.mark.skipif(sys.implementation.name != "cpython" or object.__basicsize__ != 16, reason="another interpreter")
def test_arrays_lie_in_memory_as_is_assumed():
    assert entry.usable()


def test_plain_calls_go_straight(run, counted):
    given = arrays()
    named = dict(zip([t.name for t in INFOS], given, strict=True))
    out = [np.zeros_like(a) for a in given]
    assert equal(run(*given), given)
    assert equal(run.run(named), given)
    assert equal(run(dict(reversed(named.items()))), given)
    results = run(*given, out=out)
    assert results is not out and all(r is o for r, o in zip(results, out, strict=True)) and equal(out, given)
    assert equal(run(*given, out=tuple(out)), given)
    locked = [a.copy() for a in given]
    for a in locked:
        a.flags.writeable = False
    assert equal(run(*locked), given)
    assert not counted


def test_the_same_array_may_be_several_inputs(run, counted):
    given = arrays()
    given[1] = given[0]
    assert equal(run(*given), given)
    assert not counted


class Sub(np.ndarray):
    pass


def wide(a):
    """The same numbers, not contiguous."""
    if not a.ndim:
        return a
    memory = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
    memory[..., ::2] = a
    return memory[..., ::2]


def shifted(a):
    """The same numbers, at an address that is no multiple of the size of an element."""
    memory = np.zeros(a.nbytes + 1, np.uint8)[1:]
    copy = np.ndarray(a.shape, a.dtype, memory)
    copy[...] = a
    return copy


def marked(a):
    """The same numbers, with a dtype object of its own that compares equal."""
    return a.view(np.dtype(a.dtype, metadata={"of": "a test"}))


def locked(a):
    copy = a.copy()
    copy.flags.writeable = False
    return copy


#: name -> function of an array that fits
FITTING = {
    "contiguous": np.copy,
    "fortran": lambda a: np.array(a, order="F"),
    "wide": wide,
    "backwards": lambda a: a[::-1].copy()[::-1] if a.ndim else a,
    "subclass": lambda a: a.view(Sub),
    "shifted": shifted,
    "marked": marked,
    "locked": locked,
}
UNFIT = {
    "list": lambda a: a.tolist(),
    "none": lambda a: None,
    "type": lambda a: np.ndarray,
    "number": lambda a: 5,
    "other dtype": lambda a: a.astype(np.float16 if a.dtype != np.float16 else np.int8),
    "same size": lambda a: np.zeros(a.shape, {8: "m8[s]", 4: "u4", 2: "f2"}[a.itemsize]),
    "swapped": lambda a: a.astype(a.dtype.newbyteorder()) if a.dtype.kind in "if" else None,
    "rank": lambda a: a[None],
    "flat": lambda a: a.reshape(-1, 1, 1),
    "long": lambda a: np.zeros((*a.shape[:-1], 7), a.dtype),
}


@pytest.mark.parametrize("form", FITTING)
@pytest.mark.parametrize("position", range(len(INFOS)))
def test_inputs_that_fit(run, form, position):
    wanted = arrays(1)
    given = list(wanted)
    given[position] = FITTING[form](given[position])
    for _ in range(2):
        assert equal(run(*given), wanted)
    assert equal(run(*given, out=[np.zeros_like(a) for a in wanted]), wanted)


def outcome(model, args, out):
    """What a call gives: the results and what is in `out` after it, or the error in words."""
    try:
        results = model(*args, out=out)
    except InputError as e:
        return str(e)
    said = [(r.dtype, r.shape, r.tobytes()) for r in results]
    return said if out is None else (said, [any(r is o for o in out) for r in results])


def changed(rng, given, forms):
    """The same arrays, about one of them in another form."""
    return [forms[rng.choice(list(forms))](a) if rng.random() < 0.15 else a for a in given]


def random_call(rng):
    forms = {**FITTING, **UNFIT} if rng.random() < 0.7 else FITTING
    args = changed(rng, arrays(rng.randrange(9)), forms)
    out = None
    if rng.random() < 0.7:
        out = changed(rng, [np.zeros_like(a) for a in arrays()], forms)
        if rng.random() < 0.3:  # memory in common with an input or an output
            position = rng.choice([0, 1])
            out[position] = rng.choice([args[0], args[1], out[1 - position], out[position]])
        if rng.random() < 0.1:
            out = out[: rng.randrange(len(out))]
    if rng.random() < 0.1:
        args = args[: rng.randrange(len(args) + 1)]
    elif out is not None and rng.random() < 0.1:  # as many arrays in all, one on the wrong side
        args, out = ([*args, out[0]], out[1:]) if rng.random() < 0.5 else (args[:-1], [args[-1], *out])
    if out is not None and rng.random() < 0.2:
        out = tuple(out)
    return args, out


@pytest.mark.parametrize("seed", range(8))
def test_every_call_gives_what_it_gives_when_looked_at_in_python(run, checked, seed):
    """The same results, or the same error word for word."""
    errors = 0
    for number in range(150):
        first, second = (outcome(m, *random_call(random.Random(f"{seed} {number}"))) for m in (run, checked))
        assert first == second
        errors += isinstance(first, str)
    assert 0 < errors < 150


@pytest.mark.parametrize("named", [{}, {"a": 0}, {"z": 0}, "none", "other"])
def test_names_that_do_not_fit(run, checked, named):
    full = dict(zip([t.name for t in INFOS], arrays(), strict=True))
    given = {"none": {**full, "a": None}, "other": {("z" if k == "b" else k): v for k, v in full.items()}}
    args = (given[named] if isinstance(named, str) else named,)
    first = outcome(run, args, None)
    assert isinstance(first, str) and first == outcome(checked, args, None)


def test_a_mapping_of_another_kind(run):
    class Named(dict):
        def get(self, name, default=None):
            raise AssertionError("not asked for")

    given = arrays()
    assert equal(run.run(Named(zip([t.name for t in INFOS], given, strict=True))), given)


def test_an_array_that_changes_between_calls(run, counted):
    """Nothing is kept of an array: its memory and shape may be others in the next call."""
    given = arrays(3)
    changing = given[0] = np.ones((4, 6), np.float32)
    assert equal(run(*given), given)
    changing.resize((4096, 6), refcheck=False)
    with pytest.raises(InputError, match=r"input 'a' has f32\[4096, 6\]"):
        run(*given)
    changing.resize((4, 6), refcheck=False)
    changing[...] = 7
    assert equal(run(*given), given)
    changing.resize((6, 4), refcheck=False)
    with pytest.raises(InputError, match=r"input 'a' has f32\[6, 4\]"):
        run(*given)
    changing.resize((4, 6), refcheck=False)
    assert equal(run(*given), given)
    assert len(counted) == 2


def test_nothing_is_held_after_a_call(run):
    given, out = arrays(), [np.zeros_like(a) for a in arrays()]
    bad = [*given[:-1], None]
    before = [sys.getrefcount(a) for a in (*given, *out, None)]
    for _ in range(200):
        run(*given)
        run(*given, out=out)
        with pytest.raises(InputError):
            run(*bad)
    after = [sys.getrefcount(a) for a in (*given, *out, None)]
    assert before[:-1] == after[:-1] and abs(after[-1] - before[-1]) < 100
    results = run(*given)
    gone = [weakref.ref(r) for r in results]
    del results
    assert all(r() is None for r in gone)


def test_the_function_outlives_its_context(copies):
    """It holds its own definition, so that it can be let go of in any order."""
    for first in ("function", "context"):
        run = Executable(copies, 1)
        run(*arrays())
        function = run._free[0].enter
        assert "enter" in repr(function)
        if first == "context":
            del run
            gc.collect()
        del function
        gc.collect()


@pytest.mark.parametrize("threads", [1, 2])
def test_several_python_threads_at_once(small_package, small_reference, threads):
    run = Executable(small_package, threads)
    wrong = []

    def work(seed):
        own = np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32)
        wanted = small_reference(own)
        out = [np.zeros((64, 64), np.float32) for _ in range(2)]
        for i in range(60):
            # all kinds of calls, straight ones and others
            args = (own, wide(own), {"x": own})[i % 3]
            got = run(args, out=out) if i % 2 else run(args)
            if not equal(got, wanted):
                wrong.append((seed, i))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(10)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_a_team_that_is_watched_is_looked_at(small_package, monkeypatch):
    """The function says when `judge` is due: where threads waited, and as long as the team is busy."""
    run = Executable(small_package, 2)
    x = np.zeros((64, 64), np.float32)
    run(x)
    context, judged = run._free[0], []
    monkeypatch.setattr(context, "judge", lambda: judged.append(1))
    context._entry.watch(True)
    for _ in range(3):
        run(x)
    assert len(judged) == 3
    context._entry.watch(False)
    assert all(context.enter(x, *run(x)) in (1, 2) for _ in range(3))
    assert context.enter(x) == context.enter() == context.enter(x, x, x, x) == 0
