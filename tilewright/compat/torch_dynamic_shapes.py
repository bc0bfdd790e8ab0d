"""Dynamic shapes in `torch.compile`: the program versions of a graph, open ones and fixed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import sympy
import torch

from ..frontends.failures import ImportFailure
from ..frontends.torch.fx_graph import FxGraph
from ..frontends.torch.fx_sizes import Range, places_alike, ranges_of, relations_of, symbols_of, tied
from ..frontends.torch.symbols import size_of
from ..program.versions import Limits, Versions, making
from ..runtime.executable import Executable
from ..runtime.open_executable import OpenExecutable
from ..support import internal_errors
from ..support.errors import TilewrightError
from ..support.sizes import Dim, open_sizes
from .torch_calls import Call, call_of

#: versions that are kept of each kind, and calls of sizes that open ones serve
MOST_VERSIONS, MOST_CALLS = 64, 1024
#: choices of open symbols that are tried
MOST_TRIED = 4
#: the values of symbols, in order
Sizes = tuple[int, ...]
#: a graph and its program, for the values of the symbols; the program is None where it computes nothing
Make = Callable[[Mapping[sympy.Symbol, int | sympy.Expr]], tuple[FxGraph, Executable | None]]


class DynamicShapesUnsupported(Exception):
    """Operators of a graph cannot be imported while sizes are open."""

    def __init__(self, failures: Sequence[ImportFailure]) -> None:
        super().__init__(", ".join(f.operator for f in failures))
        self.failures = failures


@dataclass
class DynamicShapeProgram:
    """An open version: a program for all sizes of dimensions, which stand for symbols, and for one size each of the
    other symbols; those of `ties` have the size of the symbol that they are tied to. The dimension of a symbol that has
    a `base` is by how much it is more than that one."""

    dims: Mapping[sympy.Symbol, Dim]
    others: Mapping[sympy.Symbol, int]
    ties: Mapping[sympy.Symbol, sympy.Symbol]
    bases: Mapping[sympy.Symbol, sympy.Symbol]
    graph: FxGraph
    executable: Executable | None

    def takes(self, sizes: Mapping[sympy.Symbol, int]) -> bool:
        """Whether sizes are in its ranges, and fit each other."""
        found = ((self._size(s, sizes), d) for s, d in self.dims.items())
        return (
            all(d.low <= n <= d.high and n % d.divisor == 0 for n, d in found)
            and all(sizes[s] == n for s, n in self.others.items())
            and all(sizes[s] == sizes[t] for s, t in self.ties.items())
        )

    def _size(self, symbol: sympy.Symbol, sizes: Mapping[sympy.Symbol, int]) -> int:
        """Of the dimension of a symbol."""
        return int(sizes[symbol]) - (int(sizes[self.bases[symbol]]) if symbol in self.bases else 0)

    def call(self, sizes: Mapping[sympy.Symbol, int | sympy.Expr]) -> Call:
        """The call for some sizes."""
        layout, executable = self.graph.at(sizes), self.executable
        if executable is None:
            return call_of(layout, None)
        assert isinstance(executable, OpenExecutable)
        return call_of(
            layout, executable, executable.at_sizes({d.name: self._size(s, sizes) for s, d in self.dims.items()})
        )


class GraphVersions:
    """A call of a graph whose symbols get their sizes from the arguments. Sizes beyond the ranges of its open versions
    make one with wider ranges.

    PyTorch has symbols that nothing says to be equal, although the operators ask for it: the lengths of the keys and
    the values of a cache. Symbols that have had the same size in every call are tied where they stand in the same place
    of tensors of one shape, and, if that fails, wherever they stand. A call in which they differ makes one more
    program. Where a program needs to know how symbols are related, conditions of PyTorch's say so: that one is at most
    another (of which a slice of its length is taken), or a formula of others.

    Where that fails, `refused` is called with the reasons, and dimensions are open whose sizes have changed since. What
    cannot be served then gets a fixed version.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        make: Make,
        refused: Callable[[Sequence[ImportFailure], Exception | None], None],
    ) -> None:
        self._module, self._make, self._refused = module, make, refused
        places = symbols_of(module)
        self._symbols, self._places = list(places), list(places.values())
        self._versions: Versions[Sizes, Call, DynamicShapeProgram] = Versions(
            Limits(MOST_VERSIONS), bind=self._bind, most=MOST_VERSIONS, bound=MOST_CALLS
        )
        self._bound = self._versions.bound
        self._boxed_call = True  # of the object: PyTorch's wrappers copy what it has
        self._ranges: Mapping[sympy.Symbol, Range] | None = None
        self._first: Mapping[sympy.Symbol, sympy.Expr] | None = None
        #: of each symbol the number of a class: those of one have been equal in every call
        self._equal: dict[sympy.Symbol, int] = {}
        self._moving: set[sympy.Symbol] = set()
        self._tried: list[set[sympy.Symbol]] = []  # without success

    def __call__(self, args: list[Any]) -> list[Any]:
        key = tuple(args[i] if axis is None else args[i].shape[axis] for i, axis in self._places)
        return (self._bound.get(key) or self._versions.used(key) or self._call(key))(args)

    def prepare(self, hints: Mapping[sympy.Symbol, int]) -> None:
        """Make an open version for sizes of symbols, ahead of the first call."""
        if set(self._symbols) <= set(hints):
            key = tuple(hints[s] for s in self._symbols)
            self._versions.obtain(key, lambda: self._wider(self._note(key)))

    def _call(self, key: Sizes) -> Any:
        """The call for sizes of symbols that are new, by an open version if one can take them."""
        with making():
            sizes = self._note(key)
            return self._versions.obtain(key, lambda: self._wider(sizes), lambda: self._fixed(sizes))

    def _fixed(self, sizes: Mapping[sympy.Symbol, int | sympy.Expr]) -> Call:
        graph, executable = self._make(sizes)
        return call_of(graph.layout, executable)

    def _bind(self, program: DynamicShapeProgram, key: Sizes) -> Call | None:
        sizes = self._numbers(key)
        return program.call(sizes) if program.takes(sizes) else None

    def _numbers(self, key: Sizes) -> Mapping[sympy.Symbol, sympy.Expr]:
        """The sizes by symbol, as SymPy has them."""
        return {s: sympy.sympify(v) for s, v in zip(self._symbols, key, strict=True)}

    def _note(self, key: Sizes) -> Mapping[sympy.Symbol, sympy.Expr]:
        """The sizes by symbol, and a note of which have changed since the first call, and which were always equal."""
        sizes = self._numbers(key)
        if self._first is None:
            self._first = sizes
        self._moving |= {s for s, n in sizes.items() if n != self._first[s]}
        classes: dict[tuple[int | None, sympy.Expr], int] = {}
        self._equal = {s: classes.setdefault((self._equal.get(s), n), len(classes)) for s, n in sizes.items()}
        return sizes

    def _wider(self, sizes: Mapping[sympy.Symbol, int | sympy.Expr]) -> DynamicShapeProgram | None:
        """A program for these sizes and all that were served before; None if there can be none."""
        try:
            if self._ranges is None:
                self._ranges = ranges_of(self._module)
            chosen = self._moving & set(self._ranges) if self._tried else set(self._ranges)
            if not chosen or any(t <= chosen for t in self._tried) or len(self._tried) >= MOST_TRIED:
                return None
            return self._tied(sizes, chosen)
        except Exception as e:  # no reason for a call to fail
            if not isinstance(e, DynamicShapesUnsupported):
                internal_errors.note_own(e, "a program is compiled for each size")
            if not self._tried:
                self._refused(_failures(e), e)
            self._tried.append(set(self._ranges or ()) if self._ranges is None else chosen)
            return None

    def _tied(
        self, sizes: Mapping[sympy.Symbol, int | sympy.Expr], chosen: set[sympy.Symbol]
    ) -> DynamicShapeProgram | None:
        """A program with these symbols open, and with as few of them tied or related as it takes."""
        assert self._ranges is not None
        alike = tied(places_alike(self._module, sizes, {s: self._equal[s] for s in chosen}))
        equal = tied([[s for s in sorted(chosen, key=str) if self._equal[s] == c] for c in self._equal.values()])
        related = {
            s: (formula, least)
            for s, (formula, least) in relations_of(self._module).items()
            if {s, *formula.free_symbols} <= chosen - set(alike)
            and (least is None or self._follows(self._ranges[s], self._ranges[formula], least))
        }
        ways = [(alike, {}), *([(alike, related)] if related else []), *([(equal, {})] if equal != alike else [])]
        for number, (ties, relations) in enumerate(ways, 1):
            try:
                return self._program(sizes, chosen, ties, relations)
            except Exception as e:
                if number == len(ways):
                    raise
                if not isinstance(e, DynamicShapesUnsupported):
                    internal_errors.note_own(e, "other symbols are tied")
        return None

    @staticmethod
    def _follows(large: Range, small: Range, least: int) -> bool:
        """Whether a symbol that is at least so much more than another is in its range whenever that one is."""
        return large.low <= small.low + least and large.high is None and large.divisor == 1

    def _program(
        self,
        sizes: Mapping[sympy.Symbol, int | sympy.Expr],
        chosen: set[sympy.Symbol],
        ties: Mapping[sympy.Symbol, sympy.Symbol],
        related: Mapping[sympy.Symbol, tuple[sympy.Expr, int | None]],
    ) -> DynamicShapeProgram | None:
        """A program with these symbols open; None where one of them is no size, such as a negative number."""
        assert self._ranges is not None
        dims: dict[sympy.Symbol, Dim] = {}
        bases = {s: base for s, (base, least) in related.items() if least is not None}
        for i, (symbol, r) in enumerate(self._ranges.items()):
            if symbol in chosen and symbol not in ties and (symbol not in related or symbol in bases):
                size = int(sizes[symbol])
                if symbol in bases:
                    r, size = Range(related[symbol][1] or 0, None, 1), size - int(sizes[bases[symbol]])
                r = reduce(Range.both, [self._ranges[s] for s, t in ties.items() if t == symbol], r)
                before = max((p.dims[symbol].high for p in self._versions.open if symbol in p.dims), default=0)
                if (dim := r.dim(f"d{i}", size, before)) is None:
                    self._refused(
                        [ImportFailure("a number", "", f"{sizes[symbol]} is none of the sizes from {r.low} on")], None
                    )
                    return None
                dims[symbol] = dim
        others = {s: int(sizes[s]) for s in self._ranges if s not in chosen}
        with open_sizes(list(dims.values())) as space:
            assert space is not None
            known = dict(zip(dims, space.symbols, strict=True))

            def size_at(symbol: sympy.Symbol) -> int:
                if symbol not in related:
                    return known[symbol]
                formula = related[symbol][0]
                base = size_of(formula, {s: size_at(s) for s in formula.free_symbols})
                return base + known[symbol] if symbol in bases else base

            open_ones = {s: size_at(s) for s in (*known, *related)}
            graph, made = self._make({**others, **open_ones, **{s: open_ones[t] for s, t in ties.items()}})
        return DynamicShapeProgram(dims, others, ties, bases, graph, made)


def _failures(e: Exception) -> Sequence[ImportFailure]:
    """What stands in the way of a program for all sizes."""
    if isinstance(e, DynamicShapesUnsupported):
        return e.failures
    if not isinstance(e, TilewrightError):
        return [ImportFailure("a graph", "", f"{type(e).__name__}: {e}")]
    name, _, place = (e.operator or "a graph").partition(" (")
    return [ImportFailure(name, place.removesuffix(")"), e.message)]


__all__ = ["DynamicShapeProgram", "DynamicShapesUnsupported", "GraphVersions"]
