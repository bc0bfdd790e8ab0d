"""The sizes of a graph that `torch.compile` hands over: PyTorch's symbols, where they are found in the arguments, and
between which sizes they lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ...program.versions import reach
from ...support.errors import UnsupportedError
from ...support.sizes import Dim, is_open
from .symbols import ENDLESS, NoFormula, holds, size_of

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

#: the range of a symbol that PyTorch knows no end of ends at this or beyond
AT_LEAST = 1024
#: from the begin of a range on, so many sizes are asked for one that a graph can be called with
_TRIED = 64
#: so many have to fit for a number to be taken as one that divides all
_SEVERAL = 4
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def number_of(value: object, sizes: Mapping[sympy.Symbol, int | sympy.Expr]) -> Any:
    """A number, or a symbolic one under these sizes, which may be open ones; what is no number as it is.

    UnsupportedError if a size is missing; where sizes are open NoFormula, and Undecided for a condition of them.

    >>> number_of(3, {})
    3
    """
    if not isinstance(value, _SYMBOLIC):
        return value
    formula = value.node.expr
    if is_open(*sizes.values()):
        if isinstance(value, torch.SymFloat):
            raise NoFormula(f"the float {formula} is known at run time only")
        return holds(formula, sizes) if isinstance(value, torch.SymBool) else size_of(formula, sizes)
    found = formula.xreplace(dict(sizes))
    if not (found.is_number or found.is_Boolean):
        raise UnsupportedError(f"the size {found} is known at run time only", stage="import")
    return bool(found) if isinstance(value, torch.SymBool) else value.node.pytype(found)


def numbers_at(sizes: Mapping[sympy.Symbol, int | sympy.Expr]) -> Callable[[object], Any]:
    """`number_of` under sizes that are known, each formula once."""
    known: dict[object, Any] = {}

    def number(value: object) -> Any:
        if not isinstance(value, _SYMBOLIC):
            return value
        formula = value.node.expr
        if formula not in known:
            known[formula] = number_of(value, sizes)
        return known[formula]

    return number


def symbols_of(module: torch.fx.GraphModule) -> dict[sympy.Symbol, tuple[int, int | None]]:
    """Where the symbols of a graph are found in its arguments: the number of the argument, and of its dimension, None
    where the argument itself is the number. UnsupportedError for a symbol that is in none of them."""
    places, needed = {s: place for s, (place, _) in _places(module).items()}, _needed(module)
    if missing := needed - set(places):
        names = ", ".join(sorted(map(str, missing)))
        raise UnsupportedError(f"the sizes {names} are in no argument of the graph", stage="import")
    return {s: places[s] for s in sorted(needed, key=str)}


def give_symbols(whole: torch.fx.GraphModule, names: Iterable[str]) -> None:
    """Arguments for the symbols that parts of a graph need and find in none of theirs: what linear algebra makes of a
    matrix has formulas as sizes."""
    places, placeholders = _places(whole), [n for n in whole.graph.nodes if n.op == "placeholder"]
    calls = {n.target: n for n in whole.graph.nodes if n.op == "call_module"}
    for name in names:
        part, call = whole.get_submodule(name), calls[name]
        assert isinstance(part, torch.fx.GraphModule)
        for symbol in sorted((_needed(part) - set(_places(part))) & set(places), key=str):
            (i, axis), value = places[symbol]
            with part.graph.inserting_before(next(n for n in part.graph.nodes if n.op != "placeholder")):
                part.graph.placeholder(str(symbol)).meta["val"] = value
            given = placeholders[i]
            if axis is not None:
                with whole.graph.inserting_before(call):
                    given = whole.graph.call_function(torch.ops.aten.sym_size.int, (given, axis))
                    given.meta["val"] = value
            call.args = (*call.args, given)
        part.recompile()
    whole.recompile()


def _places(module: torch.fx.GraphModule) -> dict[sympy.Symbol, tuple[tuple[int, int | None], Any]]:
    """Where symbols are found in the arguments of a graph, and what PyTorch has there."""
    found: dict[sympy.Symbol, tuple[tuple[int, int | None], Any]] = {}
    for i, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder"):
        value = node.meta.get("val")
        dims: Sequence[tuple[int | None, Any]] = [(None, value)]
        for axis, d in enumerate(value.shape) if isinstance(value, torch.Tensor) else dims:
            if isinstance(d, (torch.SymInt, torch.SymFloat)) and d.node.expr.is_Symbol:
                found.setdefault(d.node.expr, ((i, axis), d))
    return found


def _needed(module: torch.fx.GraphModule) -> set[sympy.Symbol]:
    """The symbols of a graph, but for those that data decide."""
    arguments = [n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder" and n.users]
    strides = [d for v in arguments if isinstance(v, torch.Tensor) for d in v.stride()]
    return {s for d in (*_numbers(module), *strides) for s in _symbols(d) if not _unbacked(s)}


def _numbers(module: torch.fx.GraphModule) -> Iterator[sympy.Expr]:
    """The extents of all tensors, and all numbers, but for tensors among the arguments that are not read."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and not node.users and isinstance(value, torch.Tensor):
            continue
        for v in value if isinstance(value, (list, tuple)) else [value]:
            yield from v.shape if isinstance(v, torch.Tensor) else [v]


def _symbols(d: object) -> Sequence[sympy.Symbol]:
    return list(d.node.expr.free_symbols) if isinstance(d, _SYMBOLIC) else ()


def _unbacked(symbol: sympy.Symbol) -> bool:
    return bool(free_unbacked_symbols(symbol))


def _environment(module: torch.fx.GraphModule) -> ShapeEnv | None:
    """PyTorch's record of symbols, None if there are none."""
    return next((d.node.shape_env for d in _numbers(module) if isinstance(d, _SYMBOLIC)), None)


def hints_of(module: torch.fx.GraphModule) -> dict[sympy.Symbol, int]:
    """The values of the symbols of a graph when it was traced, where that is known."""
    found: dict[sympy.Symbol, int] = {}
    for node in module.graph.nodes:
        value = node.meta.get("val")
        for d in value.shape if isinstance(value, torch.Tensor) else [value]:
            if not isinstance(d, (torch.SymInt, torch.SymFloat)):
                continue
            for s in d.node.expr.free_symbols:
                hint = d.node.shape_env.backed_var_to_val.get(s) if d.node.shape_env is not None else None
                if hint is not None:
                    found[s] = hint
    return found


# ---- ranges ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """What is known of a symbol: the smallest size, the largest if there is one, and a number that divides it."""

    low: int
    high: int | None
    divisor: int

    def dim(self, name: str, size: int, at_least: int = 0) -> Dim | None:
        """An open dimension for a call with this size; None if the symbol cannot be that."""
        if size < self.low or size % self.divisor or (self.high is not None and size > self.high):
            return None
        high = self.high if self.high is not None else max(reach(size, AT_LEAST), at_least)
        return Dim(name, self.low, high // self.divisor * self.divisor, self.divisor)

    def both(self, other: Range) -> Range:
        """What is known of a symbol that both are known of.

        >>> Range(2, None, 4).both(Range(3, 90, 6))
        Range(low=3, high=90, divisor=12)
        """
        ends = [r.high for r in (self, other) if r.high is not None]
        return Range(max(self.low, other.low), min(ends, default=None), math.lcm(self.divisor, other.divisor))


def ranges_of(module: torch.fx.GraphModule) -> dict[sympy.Symbol, Range]:
    """The symbols that a graph computes with, by name; UnsupportedError if one of them is no integer.

    Conditions under which the graph is called say more than PyTorch's ranges: ``(s - 1)//2 != 0`` that s is not 2,
    ``s == 4*(s//4)`` that 4 divides it, which is taken from what fits at the begin of the range."""
    needed = {s for d in _computed(module) for s in _symbols(d) if not _unbacked(s)} or set(symbols_of(module))
    env = _environment(module)
    guards = _guards(env)
    return {s: _range(s, env, [g for g in guards if g.free_symbols == {s}]) for s in sorted(needed, key=str)}


def _guards(env: ShapeEnv | None) -> list[sympy.Expr]:
    """The conditions under which a graph is called."""
    return [] if env is None else list(dict.fromkeys(env.replace(g.expr) for g in env.guards))


def relations_of(module: torch.fx.GraphModule) -> dict[sympy.Symbol, tuple[sympy.Expr, int | None]]:
    """Symbols that the conditions of a graph relate to others: ``s: (formula, None)`` if s is the formula of others,
    ``s: (t, least)`` if it is another symbol and at least so much more. No symbol is related to itself, over others
    neither."""
    guards = _guards(_environment(module))
    apart = {frozenset(g.free_symbols) for g in guards if isinstance(g, sympy.Ne) and all(a.is_Symbol for a in g.args)}
    found: dict[sympy.Symbol, tuple[sympy.Expr, int | None]] = {}

    def relate(symbol: sympy.Symbol, formula: sympy.Expr, least: int | None) -> None:
        behind, todo = set(), set(formula.free_symbols)
        while todo:
            behind.add(s := todo.pop())
            todo |= found[s][0].free_symbols - behind if s in found else set()
        if symbol not in behind and symbol not in found:
            found[symbol] = formula, least

    for g in guards:
        if isinstance(g, sympy.Eq):
            for symbol, formula in (g.args, g.args[::-1]):
                if symbol.is_Symbol and formula.free_symbols - {symbol}:
                    relate(symbol, formula, None)
        elif isinstance(g, (sympy.LessThan, sympy.GreaterThan)) and len(g.free_symbols) == 2:
            for small, large in (sorted(g.free_symbols, key=str), sorted(g.free_symbols, key=str)[::-1]):
                if sympy.expand(g.gts - g.lts) == large - small:
                    relate(large, small, int(frozenset(g.free_symbols) in apart))
    return found


def _computed(module: torch.fx.GraphModule) -> Iterator[sympy.Expr]:
    """The numbers of a graph but for arguments that are not read, such as the strides of others."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and not node.users:
            continue
        for v in value if isinstance(value, (list, tuple)) else [value]:
            yield from v.shape if isinstance(v, torch.Tensor) else [v]


def _range(symbol: sympy.Symbol, env: Any, guards: Sequence[sympy.Expr]) -> Range:
    if not symbol.is_integer:
        raise UnsupportedError(f"{symbol} is a number of floats, of which there is no range", stage="import")
    bounds = env.bound_sympy(symbol)
    low = max(int(bounds.lower), 0) if bounds.lower.is_Integer else 0
    high = int(bounds.upper) if bounds.upper.is_Integer and int(bounds.upper) < ENDLESS else None
    fitting = [n for n in range(low, low + _TRIED) if _may_be(symbol, n, guards)]
    divisor = math.gcd(*fitting) if len(fitting) >= _SEVERAL else 1
    return Range(fitting[0] if fitting else low, high, max(divisor, 1))


def _may_be(symbol: sympy.Symbol, number: int, guards: Sequence[sympy.Expr]) -> bool:
    """Whether no condition rules out that a symbol is this number."""
    try:
        return not any(g.xreplace({symbol: sympy.Integer(number)}) == sympy.false for g in guards)
    except ArithmeticError:  # it divides by 0
        return False


# ---- symbols that are equal ------------------------------------------------------------------------------------------


def places_alike(
    module: torch.fx.GraphModule, sizes: Mapping[sympy.Symbol, int | sympy.Expr], equal: Mapping[sympy.Symbol, int]
) -> list[list[sympy.Symbol]]:
    """Symbols that are the same dimension of arguments with one shape under these sizes: the lengths of the keys and
    values of a cache. `equal` has the symbols in question, and those that may be one have one number."""
    number, found = numbers_at(sizes), dict[Any, list[sympy.Symbol]]()
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            shape = tuple(map(number, value.shape))
            for axis, d in enumerate(value.shape):
                symbol = d.node.expr if isinstance(d, torch.SymInt) else None
                if symbol in equal:
                    found.setdefault((shape, axis, equal[symbol]), []).append(symbol)
    return list(found.values())


def tied(groups: Iterable[Sequence[sympy.Symbol]]) -> dict[sympy.Symbol, sympy.Symbol]:
    """For symbols of which groups are equal, all but one, the one that each of them equals.

    >>> tied([["a", "b"], ["c"], ["d", "b"]])
    {'b': 'a', 'd': 'a'}
    """
    leaders: dict[sympy.Symbol, sympy.Symbol] = {}

    def leader(symbol: sympy.Symbol) -> sympy.Symbol:
        while symbol in leaders:
            symbol = leaders[symbol]
        return symbol

    for first, *others in filter(None, groups):
        for other in others:
            if len(both := sorted({leader(first), leader(other)}, key=str)) == 2:
                leaders[both[1]] = both[0]
    return {s: leader(s) for s in leaders}


__all__ = [
    "Range", "give_symbols", "hints_of", "number_of", "numbers_at", "places_alike", "ranges_of",
    "relations_of", "symbols_of", "tied",
]  # fmt: skip
