"""Conversion of PyTorch's SymInts and SymPy expressions to dimensions and symbolic sizes (`support.sizes`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as formulas

from ...support.errors import UnsupportedError, UsageError
from ...support.sizes import Dim, Undecided, is_open, larger, open_sizes, smaller, surely
from ..open_values import same

#: a formula of PyTorch's symbols
Formula = Any
#: what a symbol is when the program is imported: a size, or a number
Known = Mapping[sympy.Symbol, int]
#: upper ends from here on are none
ENDLESS = 1 << 40

_ARITHMETIC: dict[type, Callable[..., int]] = {
    sympy.Add: lambda *xs: sum(xs),
    sympy.Mul: lambda *xs: prod(xs),
    sympy.Pow: pow,
    formulas.PowByNatural: pow,
    formulas.FloorDiv: lambda a, b: a // b,
    formulas.CleanDiv: lambda a, b: a // b,
    formulas.CeilDiv: lambda a, b: -(-a // b),
    formulas.Mod: lambda a, b: a % b,  # of numbers that are not negative, which PyTorch makes sure of
    formulas.PythonMod: lambda a, b: a % b,
    formulas.ModularIndexing: lambda a, b, c: a // b % c,
    formulas.Max: lambda *xs: reduce(larger, xs),
    formulas.Min: lambda *xs: reduce(smaller, xs),
    sympy.Max: lambda *xs: reduce(larger, xs),
    sympy.Min: lambda *xs: reduce(smaller, xs),
    formulas.Identity: lambda a: a,
}
_COMPARISONS: dict[type, Callable[[int, int], bool]] = {
    sympy.Eq: same,
    sympy.Ne: lambda a, b: not same(a, b),
    sympy.StrictLessThan: lambda a, b: a < b,
    sympy.LessThan: lambda a, b: a <= b,
    sympy.StrictGreaterThan: lambda a, b: a > b,
    sympy.GreaterThan: lambda a, b: a >= b,
}


class NoFormula(Exception):
    """A formula that is no symbolic size: of numbers that data decide, or of floats."""


def size_of(formula: Formula, known: Known) -> int:
    """The size that a formula is: a `Size`, or an integer. NoFormula, Undecided if there is none."""
    if formula.is_Integer:
        return int(formula)
    if isinstance(formula, sympy.Symbol):
        if formula not in known:
            raise NoFormula(f"{formula} is known at run time only")
        return known[formula]
    if isinstance(formula, formulas.Where):
        condition, a, b = formula.args
        return size_of(a if holds(condition, known) else b, known)
    compute = _ARITHMETIC.get(type(formula))
    if compute is None:
        return _number_of(formula, known)
    args = [size_of(a, known) for a in formula.args]
    if compute is pow and args[1] < 0:
        raise NoFormula(f"{formula} is no integer")
    made: int = compute(*args)
    return made


def _number_of(formula: Formula, known: Known) -> int:
    """The integer that another formula is, where all its symbols are numbers."""
    numbers = {s: sympy.sympify(known[s]) for s in formula.free_symbols if s in known and not is_open(known[s])}
    found = formula.xreplace(numbers)
    if not found.is_Integer:
        raise NoFormula(f"{formula} is no formula of sizes")
    return int(found)


def holds(condition: Formula, known: Known) -> bool:
    """Whether a condition holds for all sizes (or for none); Undecided if it does for some."""
    if condition in (sympy.true, sympy.false):
        return bool(condition)
    if isinstance(condition, (sympy.And, sympy.Or)):
        wanted = isinstance(condition, sympy.Or)
        if any(surely(lambda c=c: holds(c, known) is wanted) for c in condition.args):  # type: ignore[misc]
            return wanted
        return wanted if any(holds(c, known) is wanted for c in condition.args) else not wanted
    if isinstance(condition, sympy.Not):
        return not holds(condition.args[0], known)
    compare = _COMPARISONS.get(type(condition))
    if compare is None:
        raise NoFormula(f"{condition} is no comparison of sizes")
    left, right = (size_of(a, known) for a in condition.args)
    return bool(compare(left, right))


@dataclass(frozen=True)
class Open:
    """A symbol of PyTorch's, and the dimension that it is part of: a dimension of an input is `factor` symbols and
    `more`."""

    symbol: sympy.Symbol
    dim: Dim
    factor: int = 1
    more: int = 0

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest number that the symbol is."""
        return -(-(self.dim.low - self.more) // self.factor), (self.dim.high - self.more) // self.factor

    def of(self, size: int) -> int:
        """The symbol where the dimension has this size."""
        return (size - self.more) // self.factor


def formula_of(d: Any) -> Formula:
    """The formula of a dimension: of an integer itself."""
    return d.node.expr if isinstance(d, (torch.SymInt, torch.SymBool, torch.SymFloat)) else sympy.Integer(d)


def linear(formula: Formula) -> tuple[sympy.Symbol, int, int] | None:
    """A symbol, how many of it, and what is added; None for a formula of another kind.

    >>> linear(2 * sympy.Symbol("s") + 1)
    (s, 2, 1)
    """
    symbols = list(formula.free_symbols)
    if len(symbols) != 1:
        return None
    factor, more = formula.coeff(symbols[0]), formula.subs(symbols[0], 0)
    fits = factor.is_Integer and more.is_Integer and factor > 0 and formula == factor * symbols[0] + more
    return (symbols[0], int(factor), int(more)) if fits else None


def open_dimensions(
    inputs: Mapping[str, Sequence[int | torch.SymInt]],
    ranges: Mapping[Any, Any],
    names: Mapping[str, str],
    ours: Mapping[str, Dim],
    said: Mapping[tuple[str, int], Dim],
) -> list[Open]:
    """The dimensions that the shapes of inputs leave open, each symbol once; two are one dimension where that is `said`
    of their places.

    `ranges` are what `ExportedProgram.range_constraints` says of formulas, `names` what the user calls them, `ours` the
    dimensions that he gave as such. UsageError where a range has no end; UnsupportedError where a symbol cannot be told
    from a shape.
    """
    places = [(name, axis, formula_of(d)) for name, shape in inputs.items() for axis, d in enumerate(shape)]
    found: dict[sympy.Symbol, tuple[str, int, int, int]] = {}
    for name, axis, formula in places:
        told = linear(formula)
        # a dimension that is the symbol itself is better than one that is several
        if told is not None and (told[0] not in found or (told[1:] == (1, 0) != found[told[0]][2:])):
            found[told[0]] = (name, axis, *told[1:])
    made: list[Open] = []
    for symbol in dict.fromkeys(s for _, _, f in places for s in sorted(f.free_symbols, key=str)):
        if symbol not in found:
            text = ", ".join(f"{n}[{a}] is {f}" for n, a, f in places if symbol in f.free_symbols)
            raise UnsupportedError(f"{symbol} cannot be told from the shapes of inputs: {text}", stage="import")
        name, axis, factor, more = found[symbol]
        formula, where = factor * symbol + more, f"dimension {axis} of {name!r}"
        if (name, axis) in said and (factor, more) == (1, 0):
            made.append(Open(symbol, said[name, axis]))
            continue
        called = _name(names.get(str(formula), ""), f"{name}_{axis}", {o.dim.name for o in made})
        dim = ours[called] if called in ours else _dim(called, ranges.get(formula), factor, more, where)
        made.append(Open(symbol, dim, factor, more))
    return made


def _name(said: str, otherwise: str, taken: set[str]) -> str:
    """What a dimension is called: as the user does, else by its place."""
    words = re.findall(r"[A-Za-z_]\w*", said)
    name = words[0].strip("_") if words else ""
    name = name if name.isidentifier() else otherwise
    while name in taken:
        name += "_"
    return name


def _dim(name: str, bounds: Any, factor: int, more: int, where: str) -> Dim:
    upper = None if bounds is None else bounds.upper
    if upper is None or not upper.is_Integer or int(upper) >= ENDLESS:
        raise UsageError(
            f"dimension {name} ({where}) has no largest size",
            stage="import",
            hint=f'give it one: torch.export.Dim("{name}", min=1, max=512), Dim.DYNAMIC(max=512), or '
            f'tilewright.Dim("{name}", 1, 512)',
        )
    if factor > 1 and more % factor:
        raise UnsupportedError(
            f"dimension {name} ({where}) is {factor} times a number, and {more}: such sizes are not supported",
            stage="import",
        )
    return Dim(name, max(int(bounds.lower), factor), int(upper), factor)


def undecided(guards: Iterable[Formula], known: Known, opened: Sequence[Open]) -> list[tuple[Formula, list[Open]]]:
    """The conditions that do not hold for all sizes, each with the symbols at an end of whose range alone it does not;
    none where it fails elsewhere."""
    made = []
    for guard in guards:
        try:
            if holds(guard, known):
                continue
        except (Undecided, NoFormula):
            pass
        inside = [o for o in opened if guard.free_symbols == {o.symbol} and _holds_inside(guard, o)]
        made.append((guard, inside))
    return made


def _holds_inside(guard: Formula, opened: Open) -> bool:
    low, high = opened.range
    if high - low < 2:
        return False
    with open_sizes([Dim("inside", low + 1, high - 1)]) as space:
        assert space is not None
        return surely(lambda: holds(guard, {opened.symbol: space.symbols[0]}))


__all__ = ["NoFormula", "Open", "formula_of", "holds", "linear", "open_dimensions", "size_of", "undecided"]
