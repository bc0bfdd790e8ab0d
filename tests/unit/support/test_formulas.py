"""Formulas of sizes: what a package may hold, and what is refused before it is evaluated."""

from __future__ import annotations

import random

import pytest

from tilewright.support import sizes
from tilewright.support.formulas import evaluate, formula, function, named, numbered, value_of


def test_formulas_are_evaluated():
    at = (3, 10)
    assert evaluate(("d0*d1", 12, "(d1 + 7)//8", "min(d0, 2)*max(d1, 4)", "-d0 + 5"), at) == (
        30,
        12,
        2,
        20,
        2,
    )
    assert evaluate(("7",), at) == (7,) and evaluate((), at) == ()


MADE = [
    lambda a, b, n: a + b,
    lambda a, b, n: a - b,
    lambda a, b, n: a * n,
    lambda a, b, n: a // n,
    lambda a, b, n: a // b if b != 0 else a,
    lambda a, b, n: sizes.smaller(a, b),
    lambda a, b, n: sizes.larger(a, b),
    lambda a, b, n: (a + n) % 8,
]


def test_the_text_of_a_size_is_its_formula():
    """What a compilation writes is what a run reads: 300 random sizes."""
    rng = random.Random(5)
    with sizes.open_sizes([sizes.Dim("batch", 1, 64), sizes.Dim("seq", 8, 512, 8)]) as known:
        assert known is not None
        made = [*known.symbols, 3, 5]
        for _ in range(300):
            a, b = rng.choice(made), rng.choice(made)
            n = rng.randint(1, 9)
            try:
                x = rng.choice(MADE)(a, b, n)
            except sizes.Undecided:
                continue
            text = formula(x)
            if len(str(text)) < 200:
                made.append(x)
            for at in ({"batch": 1, "seq": 8}, {"batch": 17, "seq": 200}, {"batch": 64, "seq": 512}):
                assert evaluate((text,), tuple(at.values())) == (sizes.value_at(x, at),), text
                assert value_of(str(x), at) == sizes.value_at(x, at), x  # as it is shown, it can be given
    assert formula(5) == 5


HOSTILE = [
    "__import__('os')",
    "__import__('os').system('true')",
    "().__class__",
    "n.real",
    "n**n",
    "9**9**9",
    "n << 40",
    "n % 3",
    "n / 2",
    "n if n else 1",
    "[n for n in (1, 2)]",
    "lambda: 1",
    "open('f')",
    "min(n, key=abs)",
    "min(*(n,))",
    "min.__self__",
    "print(n)",
    "m + 1",
    "1.5*n",
    "'a'*n",
    "n == 1",
    "n and 1",
    "(n := 3)",
    "f'{n}'",
    "{n: 1}",
    "n[0]",
    "n,",
    "1); (2",
    "n; n",
    "",
    "n +",
    "\0",
    "n" + " + n" * 2000,
    "(" * 3000 + "n" + ")" * 3000,
    "-" * 3900 + "n",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_formula_is_refused(text):
    with pytest.raises(ValueError, match="formula"):
        function((text,), 1)
    with pytest.raises(ValueError, match="formula"):
        function((text.replace("n", "d0"),), 1)


def test_a_dimension_is_one_of_those():
    with pytest.raises(ValueError, match="is no formula of 1 dimensions"):
        function(("d0*d1",), 1)
    with pytest.raises(ValueError, match="is no formula of batch"):
        numbered("batch*seq", ("batch",))


#: what Python's parser takes for one name, for another thing, or for none
NAMES = (
    "s", "\u017f", "\u00b5", "\u03bc", "u\u0308", "\u00fc", "\ufb01", "fi", "min", "max", "and", "True", "None",
    "lambda",
    "batch size", "past-len", "a.b", "a*b", "min(a, b)", "d0", "d1", "2x", "7", "(", ")//2", "\u0663", "x" * 100_000,
)  # fmt: skip


def test_names_are_compared_as_they_are():
    for i, name in enumerate(NAMES):
        assert named(f"8*d{i} + d0", NAMES) == f"8*{name} + s"
        if not name.isdigit() or name == "\u0663":  # a number is a number
            assert numbered(f"8*{name}", NAMES) == f"8*d{i}", name
    assert value_of("min(min, past-len)", dict(zip(NAMES, range(len(NAMES)), strict=True))) == 8
    assert value_of("past-len", {"past": 7, "len": 3}) == 4
