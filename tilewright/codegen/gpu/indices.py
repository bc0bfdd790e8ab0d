"""Index arithmetic of a kernel in 32 bits: each address is a variable part plus a constant offset, so that neighbouring
elements share the variable part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from ...support.errors import CompileError
from ...tensor.analysis import flat
from ...tensor.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    Var,
    bounds,
    children,
    from_linear,
    linear,
    rebuild,
    simplify,
    substitute,
    variables,
    walk,
)
from .text import KernelText, SsaValue

_OPERATIONS = {"addi": "add", "subi": "sub", "muli": "mul", "andi": "and", "ori": "or", "xori": "xor", "shli": "shl"}
_OPERATIONS |= {"shrsi": "ashr", "shrui": "lshr", "divsi": "sdiv", "divui": "udiv", "remui": "urem"}
_EXTREMES = {"minsi": "slt", "maxsi": "sgt", "minui": "ult", "maxui": "ugt"}


class GpuIndices:
    """`ranges` has the smallest and the largest value of each variable; `values` what a loop variable is: a number in
    unrolled code, or an expression of others; `names` the values that variables have in the code."""

    #: emits expressions in an index that are no index arithmetic; set by the emitter
    expr: Callable[[Expr], SsaValue]

    def __init__(self, text: KernelText, ranges: dict[str, tuple[int, int]]) -> None:
        self.text, self.ranges = text, ranges
        self.values: dict[str, Expr] = {}
        self.names: dict[str, str] = {}
        self.terms = count()

    @contextmanager
    def bind(self, var: str, value: Expr | int | str) -> Iterator[None]:
        """Within the context, a variable is a number, an expression, or an SSA value."""
        if isinstance(value, str):
            self.names[var] = value
            yield
            del self.names[var]
        else:
            self.values[var] = Const(value, "index") if isinstance(value, int) else value
            yield
            del self.values[var]

    def known(self, e: Expr) -> Expr:
        """The expression with the known values of its variables substituted."""
        while mine := {v: x for v, x in self.values.items() if v in variables(e)}:  # values have variables too
            e = substitute(e, mine)
        return simplify(e, self.ranges)

    def index(self, e: Expr) -> str:
        """Emits an index as a 32-bit value."""
        return self._emit(self.known(e))

    def computed(self, e: Expr, moving: set[str], made: dict[Expr, Expr]) -> Expr:
        """The expression with a variable for each term in it that does not depend on some variables, and is no sum or
        multiple of others: it is computed here, once (`made`). Terms that read memory stay."""
        if not isinstance(e, Op):
            return rebuild(e, tuple(self.computed(x, moving, made) for x in children(e)))
        limit = self._limit(e)
        sum_ = e.op in ("addi", "subi") or (e.op == "muli" and any(isinstance(x, Const) for x in e.args))
        if sum_ or e.dtype != "index" or limit is None or variables(e) & moving or not variables(e):
            return rebuild(e, tuple(self.computed(x, moving, made) for x in e.args))
        if any(isinstance(x, Load) for x in walk(e)):
            return e
        if e not in made:
            name = f"%term{next(self.terms)}"
            self.names[name], self.ranges[name], made[e] = self.index(e), limit, Var(name)
        return made[e]

    def _limit(self, e: Expr) -> tuple[int, int] | None:
        """The smallest and the largest value, of a choice those of both."""
        if isinstance(e, Op) and e.op == "select":
            a, b = (self._limit(x) for x in e.args[1:])
            return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
        return bounds(e, self.ranges)

    def place(self, b: Buffer, indices: tuple[Expr, ...]) -> tuple[Expr, int]:
        """The flat offset of an element, as a variable part and a constant."""
        terms, constant = linear(self.known(flat(b, indices)))
        return from_linear(terms, 0, self.ranges), constant

    def step(self, b: Buffer, indices: tuple[Expr, ...], var: str) -> int | None:
        """The stride of an element along a variable; None if it is not constant."""
        terms = linear(self.known(flat(b, indices)))[0]
        if any(t != Var(var) and var in variables(t) for t in terms):
            return None
        return terms.get(Var(var), 0)

    def multiple(self, e: Expr, n: int) -> bool:
        """Whether an index is a multiple of n."""
        terms, constant = linear(e)
        return constant % n == 0 and all(c % n == 0 or self._even(t, c, n) for t, c in terms.items())

    def _even(self, t: Expr, c: int, n: int) -> bool:
        """Whether c times a remainder, or a sum of terms, is a multiple of n."""
        if isinstance(t, Op) and t.op == "remsi" and isinstance(t.args[1], Const):
            return (t.args[1].value * c) % n == 0 and self.multiple(t.args[0] * c, n)
        return False

    # ---- neighbours

    @contextmanager
    def at_lane(self, var: str, i: int) -> Iterator[None]:
        """Within the context, a variable is this number."""
        old = self.values.get(var)
        self.values[var] = Const(i, "index")
        yield
        if old is None:
            del self.values[var]
        else:
            self.values[var] = old

    def run(self, b: Buffer, indices: tuple[Expr, ...], var: str, count: int, most: int) -> int:
        """How many iterations of a loop one access of up to `most` elements can take: neighbours, in a place that is a
        multiple of as many."""
        places = []
        for i in range(count):
            with self.at_lane(var, i):
                places.append(self.place(b, indices))
        varying, start = places[0]
        if any(p != (varying, start + i) for i, p in enumerate(places)):
            return 1
        width = most
        while width > 1 and (count % width or start % width or not self.multiple(varying, width)):
            width //= 2
        return max(width, 1)

    # ---- as text

    def _emit(self, e: Expr) -> str:
        if isinstance(e, Const):
            return self.text.number(e.value)
        if isinstance(e, Var):
            if e.name not in self.names:
                raise CompileError(f"loop variable {e.name} is not in scope", stage="emit")
            return self.names[e.name]
        if not isinstance(e, Op) or e.dtype != "index":
            return self.expr(e).ssa
        terms, constant = linear(e)
        if terms != {e: 1}:
            return self._sum(terms, constant)
        return self._operation(e)

    def _sum(self, terms: dict[Expr, int], constant: int) -> str:
        total = ""
        for t, c in terms.items():
            part = self._emit(t)
            if c != 1:
                part = self.text.integer("mul nsw", part, self.text.number(c))
            total = self.text.integer("add nsw", total, part) if total else part
        if constant and total:
            total = self.text.integer("add nsw", total, self.text.number(constant))
        return total or self.text.number(constant)

    def _operation(self, e: Op) -> str:
        if e.op.startswith("index_cast"):
            return self.expr(e).ssa
        if len(e.args) != 2 or e.op == "select":
            return self.expr(e).ssa
        a, b = (self._emit(x) for x in e.args)
        if e.op in ("floordivsi", "remsi"):
            limit = bounds(e.args[0], self.ranges)
            positive = e.op == "remsi" or (limit is not None and limit[0] >= 0)
            if positive and isinstance(e.args[1], Const):
                return self.text.integer("udiv" if e.op == "floordivsi" else "urem", a, b)
            return self._floor_division(a, b) if e.op == "floordivsi" else self.text.integer("srem", a, b)
        if e.op in _EXTREMES:
            return self.text.choose(self.text.test(_EXTREMES[e.op], a, b), a, b)
        if e.op not in _OPERATIONS:
            raise CompileError(f"an index has operation {e.op}", stage="emit")
        return self.text.integer(_OPERATIONS[e.op], a, b)

    def _floor_division(self, a: str, b: str) -> str:
        """Rounded down: one less where the remainder has another sign than the divisor."""
        text, zero = self.text, self.text.number(0)
        quotient, rest = text.integer("sdiv", a, b), text.integer("srem", a, b)
        signs = text.test("slt", text.integer("xor", rest, b), zero)
        below = text.both(text.test("ne", rest, zero), signs)
        return text.integer("sub", quotient, text.truth(below))
