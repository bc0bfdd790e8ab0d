"""Symbolic size expressions as text, which a package stores and a run evaluates: ``768*d0*d1``, ``((d1 + 7)//8)``.

``d0`` is the first open dimension of a program, ``d1`` the second. What a model or a user calls them is any text, which
nothing here reads: `named` puts it in where a formula is shown, `numbered` takes it out of what a user wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .errors import UsageError
from .sizes import Size, current

_FUNCTIONS = {"min": min, "max": max}
_TOKEN = re.compile(r" *(?:([0-9]+)|d([0-9]+)|(min|max)(?=\()|(//|[-+*(),]))")
_DIM = re.compile(r"\bd([0-9]+)\b")
#: a formula of a model is short; one of a damaged file may be anything
_LONGEST, _DEEPEST = 4000, 50


@dataclass(frozen=True)
class FormulaNode:
    """A part of a formula: ``number`` and ``dim`` have a `value`, the others operands: ``+ - * // min max``, and
    ``neg`` of one."""

    op: str
    args: tuple[FormulaNode, ...] = ()
    value: int = 0


def read(text: str) -> FormulaNode:
    """A formula as a tree; ValueError for what is none.

    >>> read("2*d0").args[1]
    FormulaNode(op='dim', args=(), value=0)
    """
    if len(text) > _LONGEST:
        raise ValueError("a formula of sizes is too long")
    return _Reader(text).run()


class _Reader:
    """Sums of products of numbers, dimensions, quotients, minima and maxima."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.next = self.token()

    def fail(self) -> ValueError:
        return ValueError(f"{self.text[:80]!r} is no formula of sizes")

    def token(self) -> tuple[str, str]:
        """The next token, its kind first; an empty one at the end."""
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            if self.text[self.at :].strip(" "):
                raise self.fail()
            return "", ""
        self.at = found.end()
        kind = ("number", "dim", "function", "sign")[(found.lastindex or 1) - 1]
        return (found[0].strip(" "), "") if kind == "sign" else (kind, found[found.lastindex or 1])

    def take(self, *kinds: str) -> tuple[str, str] | None:
        """The next token, if it is of one of these kinds."""
        taken = self.next
        if taken[0] not in kinds:
            return None
        self.next = self.token()
        return taken

    def need(self, kind: str) -> None:
        if self.take(kind) is None:
            raise self.fail()

    def run(self) -> FormulaNode:
        made = self.sum()
        if self.next[0]:
            raise self.fail()
        return made

    def sum(self) -> FormulaNode:
        left = self.product()
        while (sign := self.take("+", "-")) is not None:
            left = FormulaNode(sign[0], (left, self.product()))
        return left

    def product(self) -> FormulaNode:
        left = self.factor()
        while (sign := self.take("*", "//")) is not None:
            left = FormulaNode(sign[0], (left, self.factor()))
        return left

    def factor(self) -> FormulaNode:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.fail()
        taken = self.take("number", "dim", "function", "-", "(")
        if taken is None:
            raise self.fail()
        kind, text = taken
        if kind in ("number", "dim"):
            made = FormulaNode(kind, (), int(text))
        elif kind == "-":
            made = FormulaNode("neg", (self.factor(),))
        elif kind == "(":
            made = self.sum()
            self.need(")")
        else:
            self.need("(")
            first = self.sum()
            self.need(",")
            made = FormulaNode(text, (first, self.sum()))
            self.need(")")
        self.depth -= 1
        return made


def dims_of(node: FormulaNode) -> set[int]:
    """The numbers of the dimensions in a formula."""
    found, todo = set[int](), [node]
    while todo:
        node = todo.pop()
        todo += node.args
        if node.op == "dim":
            found.add(node.value)
    return found


@lru_cache(maxsize=256)
def function(formulas: tuple[str | int, ...], dims: int) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """The values of formulas as a function of the sizes of so many dimensions, in order. ValueError for what is no
    formula of these.

    >>> function(("2*d0", 3, "min(d0, 8)//3"), 1)([10])
    (20, 3, 2)
    """
    texts = [str(f) for f in formulas]
    for text in texts:
        if any(d >= dims for d in dims_of(read(text))):
            raise ValueError(f"{text[:80]!r} is no formula of {dims} dimensions")
    try:  # of numbers, signs, min, max and d0: nothing else was read
        made = _DIM.sub(r"v[\1]", "".join(f"{text.strip()}, " for text in texts))
        return eval(f"lambda v: ({made})", {"__builtins__": {}, **_FUNCTIONS})  # type: ignore[no-any-return]
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        raise ValueError("a formula of sizes is too long") from None


def evaluate(formulas: Sequence[str | int], sizes: Sequence[int]) -> tuple[int, ...]:
    """The values of formulas for these sizes of the dimensions, in order.

    >>> evaluate(("d0*d1", 12), (2, 5))
    (10, 12)
    """
    return function(tuple(formulas), len(sizes))(sizes)


def formula(x: Any) -> str | int:
    """A size as text, an integer as it is."""
    return x.text if isinstance(x, Size) else int(x)


def symbol(number: int) -> str:
    """A dimension as a formula."""
    return f"d{number}"


def named(text: str | int, names: Sequence[str]) -> str | int:
    """A formula as it is shown, with the names of the dimensions; a number as it is.

    >>> named("((d1 + 7)//8)", ("batch", "seq"))
    '((seq + 7)//8)'
    """
    return text if isinstance(text, int) else _DIM.sub(lambda m: names[int(m[1])], text)


def numbered(text: str, names: Iterable[str]) -> str:
    """What a user wrote with names of dimensions, as a formula; ValueError for a name that is none of these. Names are
    compared as they are, the longest first.

    >>> numbered("past-len + min(min, 2)", ("past", "past-len", "min"))
    'd1 + min(d2, 2)'
    """
    number = {name: symbol(i) for i, name in enumerate(names)}
    plain = r"(?<!\w)[0-9]+(?!\w)|(?:min|max)(?=\()|//|[-+*(), ]"
    any_name = "|".join(map(re.escape, sorted(number, key=len, reverse=True)))
    found = re.compile(rf"(?P<name>(?<!\w)(?:{any_name})(?!\w)(?!(?<=min|max)\())|{plain}" if number else plain)
    made, at = "", 0
    while at < len(text):
        m = found.match(text, at)
        if m is None:
            raise ValueError(f"{text[:80]!r} is no formula of {', '.join(number)}"[:400])
        made, at = made + number.get(m[0] if m.lastgroup else "", m[0]), m.end()
    read(made)
    return made


def derived(text: str, where: str) -> int:
    """The size that a formula of open dimensions is in this compilation: ``past + seq``, as a mask of all positions has
    it. UsageError for another text."""
    known = current()
    names = [d.name for d in known.dims] if known else []
    try:
        (size,) = evaluate((numbered(text, names),), known.symbols if known else ())
    except ValueError:
        raise UsageError(
            f"{where}: {text!r} is no formula of open dimensions",
            stage="import",
            hint="a dimension is a size, a range like seq:1..512, or a formula like past+seq of such dimensions: "
            f"{', '.join(names) or 'none here'}",
        ) from None
    return size


def value_of(text: str, sizes: Mapping[str, int]) -> int:
    """What a formula that a user wrote is for these sizes.

    >>> value_of("past+seq", {"past": 3, "seq": 1})
    4
    """
    return evaluate((numbered(text, sizes),), tuple(sizes.values()))[0]
