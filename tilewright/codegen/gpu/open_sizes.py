"""Dynamic shapes in GPU kernels: sizes known only at run time come in a table of integers, the kernel's last parameter.

A nest computes with expressions of the model's dimensions (`support.sizes`). Here each becomes a variable, whose value
the kernel reads from the table at its beginning; the host evaluates the expressions, once for each size.

    for i in grid.x((batch*seq + 63)//64): ... x[i, k]       with x: f32[batch*seq, 768]
    ->  for i in grid.x(%size0): ... x[i * 768 + k]          with %size0 = sizes[0], which is (batch*seq + 63)//64

Buffers with open dimensions have one dimension afterwards: what is multiplied with sizes stands in the indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...schedule.nest import THREAD, Alloc, For, Nest, Seq, Stmt, Store, map_exprs, transform, walk_stmts
from ...schedule.region import all_ranges
from ...support.errors import CompileError
from ...support.formulas import formula
from ...support.sizes import Size, Undecided, gcd, highest, is_open, larger, lowest
from ...tensor.analysis import flat
from ...tensor.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    Target,
    Var,
    from_linear,
    linear,
    rebuild,
    simplify,
    walk,
)
from ...tensor.expr import transform as transform_expr
from .open_launch import BYTES, LARGEST, Formula, OpenLaunch

#: the parameter with the table, 32-bit integers
TABLE = "%sizes"
_DIVISIONS = ("floordivsi", "remsi")


@dataclass(frozen=True)
class Closed:
    """A nest without sizes, and what was put in their place: variables in the order of the table, with their ranges.
    `extents` are the threads of the axes whose number is open; `launch` is without blocks."""

    nest: Nest
    names: tuple[str, ...]
    ranges: Mapping[str, tuple[int, int]]
    extents: Mapping[str, Expr]
    launch: OpenLaunch

    @property
    def signed(self) -> frozenset[str]:
        """The variables that may be negative."""
        return frozenset(n for n, (low, _) in self.ranges.items() if low < 0)

    def place(self, name: str) -> Load:
        """The element of the table that a variable is."""
        return Load(TABLE, (Const(self.names.index(name), "index"),), "i32")

    def with_grid(self, grid: tuple[int, int, int]) -> OpenLaunch:
        """What the host computes, with blocks that may be sizes."""
        x, y, z = map(formula, grid)
        return replace(self.launch, grid=(x, y, z))


def closed(nest: Nest) -> Closed | None:
    """A finished nest without the sizes that are not known; None if it has none. CompileError for a size where no index
    is."""
    if not has_sizes(nest):
        return None
    return _Closing(nest).run()


def has_sizes(nest: Nest) -> bool:
    """Whether anything in a nest is known at run time only."""
    if any(is_open(*b.shape) for b in nest.buffers().values()):
        return True
    found: list[bool] = []

    def look(e: Expr) -> Expr:
        found.append(any(isinstance(x, Const) and isinstance(x.value, Size) for x in walk(e)))
        return e

    for s in walk_stmts(nest.body):
        map_exprs(s, look)
    return any(found)


def axis_extents(nest: Nest, trips: Callable[[For], int]) -> dict[str, int]:
    """The iterations of the longest loop on each axis, which may be sizes; at least one."""
    found: dict[str, int] = {}
    for s in walk_stmts(nest.body):
        if isinstance(s, For) and s.bound:
            found[s.kind] = larger(found.get(s.kind, 1), trips(s))
    return found


class _Closing:
    def __init__(self, nest: Nest) -> None:
        self.nest, self.buffers = nest, nest.buffers()
        self.open = {n for n, b in self.buffers.items() if is_open(*b.shape)}
        self.known = all_ranges(nest.body)
        self.names: dict[int, str] = {}  # sizes -> their variables
        self.formulas: list[Formula] = []
        self.ranges: dict[str, tuple[int, int]] = {}
        self.memo: dict[Expr, Expr] = {}

    def run(self) -> Closed:
        nest = self.nest
        body = transform(nest.body, self.stmt) or Seq(())
        trips = axis_extents(nest, lambda s: s.trip if s.trip is not None else 0)
        extents = {k: self.size(n) for k, n in trips.items() if is_open(n)}
        used = self.used(body, extents)
        names = tuple(n for n in self.names.values() if n in used)
        table = tuple(f for n, f in zip(self.names.values(), self.formulas, strict=True) if n in used)
        params = (*map(self.buffer, nest.params), Buffer(TABLE, (max(len(names), 1),), "i32"))
        arguments = tuple((formula(p.size), BYTES[p.dtype]) for p in nest.params)
        made = replace(nest, params=params, body=body)
        if has_sizes(made):
            raise CompileError("a size is left in the nest", stage="emit", operator=nest.name)
        return Closed(made, names, self.ranges, extents, OpenLaunch(table, arguments))

    def used(self, body: Stmt, extents: Mapping[str, Expr]) -> set[str]:
        """The variables that the kernel reads: how many blocks there are it need not know."""
        found: set[str] = set()
        for s in walk_stmts(body):
            if not (isinstance(s, For) and s.kind != THREAD and s.extent == extents.get(s.kind)):
                found |= s.variables
        return found

    # ---- sizes

    def size(self, x: int) -> Expr:
        """A size: a number of times a variable, and a number."""
        if not isinstance(x, Size):
            return Const(x, "index")
        times, rest, constant = _parts(x)
        return Var(self.variable(rest)) * times + constant

    def times(self, e: Expr, x: int) -> Expr:
        """An expression times a size; a number in that stays apart, so that multiples of it are seen."""
        if not isinstance(x, Size):
            return e * x
        times, rest, constant = _parts(x)
        product = Op("muli", (e, Var(self.variable(rest))), "index") * times
        return product + e * constant if constant else product

    def variable(self, x: Size) -> str:
        if int(x) not in self.names:
            name = self.names[int(x)] = f"%size{len(self.names)}"
            self.formulas.append(formula(x))
            self.ranges[name] = lowest(x), min(highest(x), LARGEST - 1)
        return self.names[int(x)]

    # ---- expressions

    def expr(self, e: Expr) -> Expr:
        return transform_expr(e, self.visit, self.memo)

    def visit(self, x: Expr, args: tuple[Expr, ...]) -> Expr:
        if isinstance(x, Const):
            if not isinstance(x.value, Size):
                return x
            if x.dtype != "index":
                raise CompileError(
                    f"the size {x.value} stands where a number of dtype {x.dtype} is",
                    stage="emit",
                    operator=self.nest.name,
                )
            return self.size(x.value)
        if isinstance(x, Load) and x.buffer in self.open:
            return Load(x.buffer, self.place(x.buffer, x.indices), x.dtype)
        if isinstance(x, Op) and x.op == "muli" and x.dtype == "index":
            for i in (0, 1):
                factor = x.args[i]
                if isinstance(factor, Const) and isinstance(factor.value, Size):
                    return self.times(args[1 - i], factor.value)
        if isinstance(x, Op) and x.op in _DIVISIONS and x.dtype == "index":
            divisor = x.args[1]
            if isinstance(divisor, Const) and isinstance(divisor.value, Size) and lowest(divisor.value) < 1:
                # where it is 0 nothing is computed with the result, but computed it may be
                return rebuild(x, (args[0], self.size(larger(divisor.value, 1))))
        return rebuild(x, args)

    def place(self, name: str, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The flat index of an element."""
        where = flat(self.buffers[name], indices)
        try:
            found = from_linear(*linear(simplify(where, self.known)), self.known)
        except Undecided:
            found = where
        return (self.expr(found),)

    # ---- statements

    def stmt(self, s: Stmt) -> Stmt:
        if isinstance(s, Alloc):
            return replace(s, buffer=self.buffer(s.buffer))
        if isinstance(s, Store):
            return replace(s, targets=tuple(map(self.target, s.targets)))
        return map_exprs(s, self.expr)

    def target(self, t: Target) -> Target:
        own = t.buffer in self.open
        place = self.place(t.buffer, t.indices) if own else tuple(map(self.expr, t.indices))
        return Target(t.buffer, place, self.expr(t.value), None if t.init is None else self.expr(t.init))

    def buffer(self, b: Buffer) -> Buffer:
        """With one dimension, where some are open: of a parameter nobody asks how large it is."""
        if b.name not in self.open:
            return b
        size = 1 if b.scope == "param" else max(highest(b.size), 1)
        return Buffer(b.name, (size,), b.dtype, b.scope)


def _parts(x: Size) -> tuple[int, Size, int]:
    """``times * rest + constant``."""
    constant = x.polynomial.get((), 0)
    rest = x - constant
    assert isinstance(rest, Size)
    times = gcd(rest)
    if next(c for _, c in sorted(rest.polynomial.items())) < 0:
        times = -times
    made = x.space.size({m: c // times for m, c in rest.polynomial.items()})
    assert isinstance(made, Size)
    return times, made, constant


__all__ = ["TABLE", "Closed", "closed", "has_sizes", "axis_extents"]
