"""What becomes of calls that are not worth dividing where sizes are small."""

from dataclasses import replace

import pytest

from tilewright.program.barriers import barriers
from tilewright.program.open_sizes import SizeTable
from tilewright.program.program import BufferRef, Call, Program, TensorInfo
from tilewright.program.small_calls import own_arguments, with_small_calls
from tilewright.support.sizes import Dim

ROWS = Dim("rows", 1, 16)


def at(slot, nbytes=4096):
    return BufferRef("arena", 0, 4096 * slot, nbytes, slot)


def made(calls, efforts, most=1000):
    """A program of one open dimension; efforts are iterations a row."""
    info = TensorInfo("x", (4, 256), "f32")
    table = SizeTable((ROWS,), (("d0", 256),), (("d0", 256),), tuple(f"{1024 * i}*d0" for i in range(6)), "6144*d0")
    program = Program((info,), (info,), (), tuple(calls), 6 * 4096, open=table)
    found = [None if n is None else (f"{n}*d0", (("1024*d0", 16384),)) for n in efforts]
    program = with_small_calls(program, found, most)
    program.check()
    assert Program.from_json(program.to_json()) == program
    return program


INPUT, OUTPUT = BufferRef("input", 0, 0, 4096), BufferRef("output", 0, 0, 4096)
#: product, norm, rounded, product, and the sum of the first and the last
LAYER = [
    Call("product", (INPUT, at(0)), (1,)),
    Call("norm", (at(0), at(1)), (1,)),
    Call("round", (at(1), at(2)), (1,), parallel=False),
    Call("product", (at(2), at(3)), (1,)),
    Call("add", (at(3), at(0), OUTPUT), (2,)),
]


def test_each_thread_makes_what_products_read():
    program = made(LAYER, [None, 300, 200, None, None])
    assert [c.small for c in program.calls] == ["", "each", "each", "", ""]
    assert barriers(program.calls) == [False, True, True, True, True]
    assert barriers(program.calls, small=True) == [False, True, False, False, True]
    norm, rounded = program.calls[1].own[0], program.calls[2].own[0]
    assert own_arguments(program.calls) == {(1, 1): norm, (2, 0): norm, (2, 1): rounded, (3, 0): rounded}
    assert not norm.overlaps(rounded) and program.own_size >= norm.nbytes + rounded.nbytes >= 2 * 3 * 1024
    assert program.open.is_large == 7
    assert [program.open.table({"rows": n})[0][-1] for n in (1, 3, 4, 16)] == [0, 0, 1, 1]


def test_what_is_made_once_is_made_by_one_thread():
    """A result that the caller gets, or one of which others read a part."""
    result = [LAYER[0], replace(LAYER[1], args=(at(0), OUTPUT)), replace(LAYER[2], args=(OUTPUT, at(2))), *LAYER[3:4]]
    program = made(result, [None, 300, 200, None])
    assert [c.small for c in program.calls] == ["", "alone", "", ""]  # rounding is one thread's anyway
    assert barriers(program.calls, small=True) == [False, True, False, True]
    part = [*LAYER[:2], replace(LAYER[2], args=(replace(at(1), offset=4096 + 64, nbytes=64), at(2))), *LAYER[3:]]
    assert [c.small for c in made(part, [None, 300, 200, None, None]).calls] == ["", "alone", "", "", ""]


@pytest.mark.parametrize(
    "efforts, small",
    [
        ([None] * 5, ["", "", "", "", ""]),
        ([None, 2000, 900, None, None], ["", "", "each", "", ""]),  # the norm of one row is too much
        ([None, 300, 1100, None, None], ["", "alone", "", "", ""]),  # rounding is one thread's, and reads it
        ([None, 300, 200, 100, 100], ["", "alone", "", "alone", "alone"]),  # no product reads anything of these
        ([None, 900, 900, None, None], ["", "each", "each", "", ""]),
    ],
)
def test_which_calls_are_small(efforts, small):
    assert [c.small for c in made(LAYER, efforts).calls] == small


def test_own_results_stay_within_their_memory():
    program = made(LAYER, [None, 300, 200, None, None])
    with pytest.raises(ValueError, match="for itself"):
        replace(program, own_size=64).check()
    with pytest.raises(ValueError, match="for itself"):
        replace(program, calls=tuple(replace(c, small="all" if c.small else "") for c in program.calls)).check()
