"""Wrong arguments of a call: one InputError that says what was given and what is expected."""

import numpy as np
import pytest

from tilewright.runtime.executable import Executable
from tilewright.support.errors import InputError

GOOD = np.zeros((64, 64), np.float32)


@pytest.fixture
def run(small_package):
    return Executable(small_package, 1)


class Broken:
    def __array__(self, *args, **more):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


EXPECTED = "\n  stage: run\n  hint: expected inputs: x: f32[64, 64]"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "the model takes 1 input, 0 were given" + EXPECTED),
        ((GOOD, GOOD), "the model takes 1 input, 2 were given" + EXPECTED),
        (({"y": GOOD},), "unknown input 'y'; missing input 'x'" + EXPECTED),
        (({},), "missing input 'x'" + EXPECTED),
        (({"x": GOOD, 3: GOOD},), "unknown input '3'" + EXPECTED),
        ((GOOD[:3],), "input 'x' has f32[3, 64], the model takes f32[64, 64]" + EXPECTED),
        ((GOOD.reshape(-1),), "input 'x' has f32[4096], the model takes f32[64, 64]"),
        (
            (GOOD.astype(np.float64),),
            "input 'x' has f64[64, 64], the model takes f32[64, 64]\n  stage: run\n"
            "  hint: dtypes are not converted silently: pass x.astype('float32') if that is what you mean",
        ),
        ((GOOD.astype(">f4"),), "input 'x' has >f4 (byte-swapped)[64, 64], the model takes f32[64, 64]"),
        ((GOOD.astype(np.int32),), "input 'x' has i32[64, 64], the model takes f32[64, 64]"),
        ((GOOD.astype(object),), "input 'x' has object[64, 64], the model takes f32[64, 64]"),
        (([1.0, 2.0],), "input 'x' is a list, not an array"),
        ((None,), "input 'x' is a NoneType, not an array"),
        ((Broken(),), "input 'x' (Broken) cannot be read as an array in this process's memory: Can't call numpy()"),
    ],
)
def test_wrong_inputs(run, args, message):
    with pytest.raises(InputError) as e:
        run(*args)
    assert message in str(e.value)


def test_run_takes_a_dict(run):
    with pytest.raises(InputError, match="missing input 'x'"):
        run.run({})


def test_profile_checks_too(run):
    with pytest.raises(InputError, match="the model takes 1 input, 0 were given"):
        run.time_calls([], runs=1)


def outputs(**changed):
    arrays = [np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)]
    for position, array in changed.items():
        arrays[int(position[1:])] = array
    return arrays


LOCKED = np.zeros((64, 64), np.float32)
LOCKED.flags.writeable = False
SHARED = np.zeros((64, 64), np.float32)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (outputs()[:1], "the model takes 2 outputs, 1 was given"),
        ({"y": SHARED}, "missing output 'x_again'"),
        (outputs(_0=np.zeros((64, 64))), "out for 'y' is f64[64, 64], the model gives f32[64, 64]"),
        (outputs(_1=np.zeros((64, 63), np.float32)), "out for 'x_again' is f32[64, 63], the model gives f32[64, 64]"),
        (outputs(_1=[0]), "out for 'x_again' is list, the model gives f32[64, 64]"),
        (outputs(_0=SHARED.T), "out for 'y' must be C-contiguous, aligned and writeable"),
        (outputs(_0=LOCKED), "out for 'y' must be C-contiguous, aligned and writeable"),
        ([SHARED, SHARED], "out for 'x_again' shares memory with another argument"),
        (outputs(_0=GOOD), "out for 'y' shares memory with another argument"),
    ],
)
def test_wrong_outputs(run, out, message):
    with pytest.raises(InputError) as e:
        run(GOOD, out=out)
    assert message in str(e.value)


def test_the_executable_works_after_errors(run, small_reference):
    for bad in ((), (GOOD[:1],), (None,)):
        with pytest.raises(InputError):
            run(*bad)
    assert np.array_equal(run(GOOD)[0], small_reference(GOOD)[0])
