"""Sizes that are known at run time only: their arithmetic, ranges and comparisons against plain integers."""

from __future__ import annotations

import copy
import operator
import pickle
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tilewright.frontends.open_values import holds_sizes
from tilewright.support import sizes
from tilewright.support.dims import open_dims
from tilewright.support.errors import UsageError
from tilewright.support.sizes import Dim, Size, Sizes, Undecided

DIMS = (Dim("batch", 1, 64), Dim("seq", 1, 512), Dim("width", 8, 256, 8))
Evaluate = Callable[[dict[str, int]], int]


@pytest.fixture
def known() -> Iterator[Sizes]:
    with sizes.open_sizes(DIMS) as found:
        assert found is not None
        yield found


def points(rng: random.Random, count: int = 12) -> list[dict[str, int]]:
    """Sizes that the dimensions may have: the ends of all ranges, and some between."""
    ends = [
        {d.name: e // d.divisor * d.divisor for d, e in zip(DIMS, at, strict=True)}
        for at in ((1, 1, 8), (64, 512, 256))
    ]
    between = [
        {d.name: d.divisor * rng.randint(-(-d.low // d.divisor), d.high // d.divisor) for d in DIMS}
        for _ in range(count)
    ]
    return ends + between


def expression(rng: random.Random, known: Sizes, depth: int) -> tuple[int, Evaluate]:
    """A random expression as a size, and as a function of the sizes of symbols. Undecided where there is none."""
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.35:
            n = rng.choice([0, 1, 2, 3, 4, 7, 8, 15, 16, 64, -1, -5])
            return n, lambda at: n
        i = rng.randrange(len(DIMS))
        return known.symbols[i], lambda at: at[DIMS[i].name]
    op = rng.choice("+-*/%mM")
    a, f = expression(rng, known, depth - 1)
    if op in "/%":
        if rng.random() < 0.8:
            n = rng.choice([1, 2, 3, 4, 6, 8, 16])
            b, g = n, lambda at: n
        else:
            b, g = expression(rng, known, 1)
            if sizes.lowest(b) < 1:
                raise Undecided("a divisor that may be 0")
    else:
        b, g = expression(rng, known, depth - 1)
    if op == "m":
        return sizes.smaller(a, b), lambda at: min(f(at), g(at))
    if op == "M":
        return sizes.larger(a, b), lambda at: max(f(at), g(at))
    of = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod}[op]
    return of(a, b), lambda at: of(f(at), g(at))


@pytest.mark.parametrize("seed", range(20))
def test_arithmetic_is_that_of_plain_integers(seed):
    """100 expressions each: values, ranges, what their numbers decode to, comparisons that are decided."""
    rng = random.Random(seed)
    made = 0
    while made < 100:
        with sizes.open_sizes(DIMS) as known:
            try:
                x, value = expression(rng, known, rng.randint(1, 4))
                y, other = expression(rng, known, 2)
            except Undecided:
                continue
            made += 1
            low, high = sizes.lowest(x), sizes.highest(x)
            decided = {op: _decided(op, x, y) for op in (operator.lt, operator.le, operator.gt, operator.ge)}
            for at in points(rng):
                want = value(at)
                assert sizes.value_at(x, at) == want, (x, at)
                assert low <= want <= high, (x, at)
                for op, found in decided.items():
                    assert found is None or found == op(want, other(at)), (op, x, y, at)
                if x == y:
                    assert want == other(at), (x, y, at)
            assert known.decode(int(x)) is x if isinstance(x, Size) else type(x) is int
            if isinstance(x, Size) and -(1 << 63) <= int(x) < 1 << 63:
                assert sizes.decode(np.array([int(x)], np.int64)[0]) is x
                assert sizes.decode(np.array([int(x)], np.int64).tolist()[0]) is x
            assert sizes.typical(x) == value({d.name: d.typical for d in DIMS})


def _decided(op: Callable[[int, int], bool], a: int, b: int) -> bool | None:
    try:
        return op(a, b)
    except Undecided:
        return None


def test_one_expression_is_one_size(known):
    batch, seq, width = known.symbols
    assert batch * seq is seq * batch
    assert (batch + seq) * 4 is 4 * seq + batch * 4
    assert (batch * seq) // seq is batch
    assert (batch * 12) // 4 is batch * 3
    assert width % 8 == 0 and type(width % 8) is int
    assert width // 8 * 8 is width
    assert batch - batch == 0 and type(batch - batch) is int
    assert sizes.smaller(batch, 7) is sizes.smaller(7, batch)
    assert batch**3 is batch * batch * batch
    assert str(batch * seq * 2 + 1) == "(2*batch*seq + 1)"
    assert f"{batch:>5}" == "batch"


def test_a_quotient_rounds_down_and_a_remainder_is_not_negative(known):
    batch, _, _ = known.symbols
    for at in range(1, 65):
        sizes_at = {"batch": at, "seq": 1, "width": 8}
        assert sizes.value_at((batch - 9) // 4, sizes_at) == (at - 9) // 4
        assert sizes.value_at((batch - 9) % 4, sizes_at) == (at - 9) % 4
        assert sizes.value_at(100 // batch, sizes_at) == 100 // at
        assert sizes.value_at(-(-batch // 16), sizes_at) == -(-at // 16)
    assert (batch % 16).range == (0, 15)
    with pytest.raises(ZeroDivisionError):
        batch // 0
    with pytest.raises(Undecided, match="divisor may be 0"):
        7 // (batch - 1)


def test_quotients_of_quotients_are_one(known):
    batch, seq, _ = known.symbols
    assert (batch // 2) // 2 is batch // 4
    assert ((batch + 3) // 2 + 5) // 3 is (batch + 13) // 6
    assert (batch * seq // 4) // 2 // 2 is batch * seq // 16


def test_what_a_quotient_leaves_is_a_remainder_whoever_computes_it(known):
    batch, seq, _ = known.symbols
    pairs = 2 * (batch * seq // 2)
    left = pairs - pairs // batch * batch
    assert left.range == (0, 63) and (-left).range == (-63, 0)
    assert left >= 0 and not -left > 0


def test_comparisons_are_decided_by_ranges_or_not_at_all(known):
    batch, seq, width = known.symbols
    assert batch > 0 and batch >= 1 and batch <= 64 and batch < 65
    assert not batch > 64 and not batch < 1
    assert width >= 8 and seq + 1 > seq and batch * seq >= batch
    assert batch != 16 and batch != seq
    for test in (
        lambda: batch > 16, lambda: batch < seq, lambda: batch >= 64, lambda: batch <= 1, lambda: batch < 2.5,
        lambda: float(batch), lambda: batch / 2, lambda: batch & 1, lambda: 1 << batch,
        lambda: sorted([seq, batch]), lambda: max(batch, 3), lambda: batch**seq,
    ):  # fmt: skip
        with pytest.raises(Undecided):
            test()
    assert batch < 64.5 and batch > 0.5
    assert not sizes.surely(lambda: batch > 16) and sizes.surely(lambda: batch > 0)
    assert sizes.less(batch, 65) and not sizes.less(batch, 64) and sizes.at_most(batch, 64) and sizes.less(1, 2)


def test_typical_sizes_decide_what_changes_the_speed_only(known):
    batch, seq, _ = known.symbols
    with sizes.typically():
        assert batch.typical == 8 and seq.typical == 22
        assert seq > 16 and not batch > 16 and batch < seq
        assert batch / 2 == 4.0 and float(seq) == 22.0
        with sizes.typically(False), pytest.raises(Undecided):
            bool(batch > 16)
        assert not sizes.surely(lambda: seq > 16)  # sure is sure, here too
    with pytest.raises(Undecided):
        bool(seq > 16)
    assert sizes.ordered([seq, batch, 3], lambda x: x) == [3, batch, seq]


def test_the_greatest_divisor_of_all_sizes(known):
    batch, seq, width = known.symbols
    assert sizes.gcd(width, 12) == 4 and sizes.gcd(batch, 12) == 1
    assert sizes.gcd(batch * 6, seq * 4) == 2 and sizes.gcd(12, 18) == 6


def test_arrays_hold_sizes(known):
    batch, seq, _ = known.symbols
    assert holds_sizes(np.array([3, int(batch * seq)]))
    assert not holds_sizes(np.array([3, 768, 5])) and not holds_sizes(np.array([1.5]))
    assert not holds_sizes(np.zeros(0, np.int64))
    assert holds_sizes(np.array([*range(10_001, 14_001), int(seq)]))  # also behind many large numbers
    shape = np.array([batch, seq, 12], np.int64)
    assert [sizes.decode(v) for v in shape.tolist()] == [batch, seq, 12]
    assert sizes.decode(int(np.prod(shape))) is batch * seq * 12
    assert sizes.decode(int(shape[0] * 7)) is batch * 7  # never made before


def test_plain_numbers_stay_plain(known):
    assert all(type(sizes.decode(n)) is int for n in (-1, 0, 1, 768, 3072, 4095, 30522))
    assert sizes.decode("a") == "a" if sizes.current() is None else True


def test_a_size_belongs_to_one_compilation(known):
    batch = known.symbols[0]
    with pytest.raises(TypeError, match="cannot be stored"):
        pickle.dumps(batch)
    assert copy.deepcopy([batch])[0] is batch


def test_outside_of_a_compilation_there_are_no_sizes():
    assert sizes.current() is None
    assert sizes.decode(50_021) == 50_021 and not holds_sizes(np.array([50_021]))
    with sizes.open_sizes(DIMS) as first:
        assert sizes.current() is first
        with sizes.open_sizes(None):
            assert sizes.current() is None
        assert sizes.current() is first
    assert sizes.current() is None


@pytest.mark.parametrize(
    "text, dim",
    [
        ("seq:1..512", Dim("seq", 1, 512)),
        ("seq:8..512:8", Dim("seq", 8, 512, 8)),
        ("_n0:3..3", Dim("_n0", 3, 3)),
    ],
)
def test_a_dimension_as_text(text, dim):
    assert Dim.parse(text) == dim
    assert Dim.parse(str(dim)) == dim


@pytest.mark.parametrize(
    "text, message",
    [
        ("seq", "'seq' is no open dimension"),
        ("seq:1", "'seq:1' is no open dimension"),
        ("seq:1..", "is no open dimension"),
        (":1..4", "is no open dimension"),
        ("seq:-1..4", "is no open dimension"),
        ("seq:1..4:", "is no open dimension"),
        (" :1..4", "called by a text, not ' '"),
        ("seq:0..0", "0..0 is no range of sizes"),
        ("seq:5..4", "5..4 is no range of sizes"),
        ("seq:1..4:0", "1..4 is no range of sizes"),
        ("seq:9..15:8", "no multiple of 8 in 9..15"),
    ],
)
def test_texts_that_are_no_dimension(text, message):
    with pytest.raises(UsageError, match=message.replace("..", r"\.\.")):
        Dim.parse(text)


def test_a_typical_size_fits():
    rng = random.Random(3)
    for _ in range(300):
        low, divisor = rng.randint(1, 50), rng.randint(1, 16)
        high = low + divisor + rng.randint(0, 3000)
        dim = Dim("n", low, high, divisor)
        assert low <= dim.typical <= high and dim.typical % divisor == 0


def test_dimensions_of_inputs():
    seq = Dim("seq", 1, 512)
    found = open_dims({"ids": ("batch:1..64", seq), "mask": ("batch:1..64", 8), "x": np.zeros(3), "y": [4]})
    assert found == [Dim("batch", 1, 64), seq]
    assert open_dims(None) == [] and open_dims({"x": (1, 2)}) == []
    with pytest.raises(UsageError, match=r"dimension seq:1\.\.256 is seq:1\.\.512 elsewhere"):
        open_dims({"ids": (1, seq), "mask": (1, "seq:1..256")})
    with pytest.raises(UsageError, match="two dimensions have one name"):
        Sizes([seq, Dim("seq", 1, 4)])
