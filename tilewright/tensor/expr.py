"""Scalar expressions: the bodies of stages (level 3) and of loop nests (level 4), and all index arithmetic.

Nodes are immutable and interned: equal expressions are one object (a DAG), so that comparing and hashing cost nothing,
and whoever walks a set of nodes sees each value once. Operation names are the MLIR mnemonics without dialect
(``addf``, ``muli``, ``cmpf.olt``, ``exp``), so that reading from and emitting to MLIR is one to one. Dtypes are
signless: ``f32 f64 f16 bf16 i1 i8 i16 i32 i64 index``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from functools import reduce as fold
from operator import index, is_
from struct import pack
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from ..support.sizes import Size, Undecided, at_most, current, gcd, highest, is_open, larger, less, lowest, smaller

if TYPE_CHECKING:
    from typing_extensions import Self

_Node = TypeVar("_Node", bound="Expr")


class _Alive(ref["Expr"]):
    """Refers to an expression as long as somebody else does."""

    __slots__ = ("key",)
    key: tuple[object, ...]


#: every expression that is alive, by its class and fields
_INTERNED: dict[tuple[object, ...], _Alive] = {}
#: those made last live on for a while: half of those that nobody keeps are made again soon, with all that they know
_RECENT: deque[Expr] = deque(maxlen=4096)
_LOCK = RLock()
_NONE: frozenset[str] = frozenset()
_set = object.__setattr__


def _gone(alive: _Alive) -> None:
    with _LOCK:
        if _INTERNED.get(alive.key) is alive:
            del _INTERNED[alive.key]


def interned(kind: type[_Node], fields: tuple[object, ...], key: tuple[object, ...]) -> _Node:
    """The one node of a class with these fields; `key` tells apart what must be."""
    alive = _INTERNED.get(key)
    found: Any = alive() if alive is not None else None
    if found is None:
        made = object.__new__(kind)
        for name, value in zip(kind.__match_args__, fields, strict=True):
            _set(made, name, value)
        parts = made.parts
        names, reads = frozenset([fields[0]]) if kind is Var else _NONE, kind is Load
        for x in parts:
            reads = reads or x._reads
            if not x._variables <= names:
                names = names | x._variables if names else x._variables
        _set(made, "_variables", names)
        _set(made, "_reads", reads)
        with _LOCK:  # two threads may have missed it
            alive = _INTERNED.get(key)
            found = alive() if alive is not None else None
            if found is None:
                found, alive = made, _Alive(made, _gone)
                alive.key = key
                _INTERNED[key] = alive
        _RECENT.append(found)
    return found


class Expr:
    """Base of all expressions; has a `dtype`. Python operators build index arithmetic with constant folding."""

    __slots__ = ("__weakref__", "_linear", "_loads", "_reads", "_simple", "_variables")
    __match_args__: tuple[str, ...]
    #: what it is computed of (the fields `Op.args`, `Load.indices`)
    parts: tuple[Expr, ...] = ()

    def __new__(cls, *fields: object) -> Self:
        return interned(cls, fields, (cls, *fields))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__)

    if TYPE_CHECKING:
        _linear: tuple[dict[Expr, int], int]
        _loads: tuple[Load, ...]
        _reads: bool
        _simple: dict[tuple[object, ...], Expr]
        _variables: frozenset[str]

        @property
        def dtype(self) -> str: ...

    def __add__(self, other: Expr | int) -> Expr:
        return add(self, as_index(other))

    def __radd__(self, other: int) -> Expr:
        return add(as_index(other), self)

    def __sub__(self, other: Expr | int) -> Expr:
        return add(self, mul(as_index(other), Const(-1, "index")))

    def __rsub__(self, other: int) -> Expr:
        return add(as_index(other), mul(self, Const(-1, "index")))

    def __mul__(self, other: Expr | int) -> Expr:
        return mul(self, as_index(other))

    def __rmul__(self, other: int) -> Expr:
        return mul(self, as_index(other))

    def __floordiv__(self, other: Expr | int) -> Expr:
        return floordiv(self, as_index(other))

    def __mod__(self, other: Expr | int) -> Expr:
        return mod(self, as_index(other))


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Var(Expr):
    """A loop variable (or, with another dtype, a named scalar the emitter knows)."""

    name: str
    dtype: str = "index"

    def __new__(cls, name: str, dtype: str = "index") -> Self:
        return interned(cls, (name, dtype), (cls, name, dtype))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Const(Expr):
    value: Any
    dtype: str

    def __new__(cls, value: Any, dtype: str) -> Self:
        kind = type(value)  # -0.0 is not 0.0, True is not 1, a size is not the number that stands for it
        if kind is not int and dtype == "index" and not isinstance(value, int):
            value, kind = index(value), int
        exact = value if kind is int else pack("d", value) if kind is float else _exact(value)
        alive = _INTERNED.get(key := (cls, kind, exact, dtype))
        found: Any = alive() if alive is not None else None
        return interned(cls, (value, dtype), key) if found is None else found

    def __str__(self) -> str:
        return str(self.value) if self.dtype in ("index", "i1") else f"{self.value}:{self.dtype}"


def _exact(value: Any) -> Any:
    """What tells a value of any other type from others that are equal."""
    return id(value) if isinstance(value, Size) else value if isinstance(value, int) else repr(value)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Load(Expr):
    """``buffer[indices]``, an element of a buffer."""

    buffer: str
    indices: tuple[Expr, ...]
    dtype: str

    def __new__(cls, buffer: str, indices: tuple[Expr, ...], dtype: str) -> Self:
        return interned(cls, (buffer, indices, dtype), (cls, buffer, indices, dtype))

    def __str__(self) -> str:
        return f"{self.buffer}[{', '.join(map(str, self.indices))}]"


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Op(Expr):
    """``op(args)``. For casts and comparisons `dtype` is the result's."""

    op: str
    args: tuple[Expr, ...]
    dtype: str

    def __new__(cls, op: str, args: tuple[Expr, ...], dtype: str) -> Self:
        alive = _INTERNED.get(key := (cls, op, args, dtype))
        found: Any = alive() if alive is not None else None
        return interned(cls, (op, args, dtype), key) if found is None else found

    def __str__(self) -> str:
        infix = _INFIX.get(self.op)
        if infix and len(self.args) == 2:
            return f"({self.args[0]} {infix} {self.args[1]})"
        inner = ", ".join(map(str, self.args))
        return f"{self.op}({inner}):{self.dtype}" if self.op in CASTS else f"{self.op}({inner})"


type.__setattr__(Load, "parts", vars(Load)["indices"])
type.__setattr__(Op, "parts", vars(Op)["args"])
_INFIX = {
    "addi": "+",
    "muli": "*",
    "floordivsi": "//",
    "remsi": "%",
    "addf": "+.",
    "mulf": "*.",
    "subf": "-.",
    "divf": "/.",
}
CASTS = frozenset(
    "extf truncf extsi extui trunci sitofp uitofp fptosi fptoui index_cast index_castui bitcast".split()  # noqa: SIM905
)
#: combiners of reductions -> their neutral element by dtype class
COMBINERS = {
    "addf": 0.0,
    "mulf": 1.0,
    "maximumf": float("-inf"),
    "minimumf": float("inf"),
    "maxnumf": float("-inf"),
    "minnumf": float("inf"),
    "addi": 0,
    "muli": 1,
    "andi": -1,
    "ori": 0,
    "xori": 0,
    "maxsi": "min",
    "minsi": "max",
    "maxui": 0,
    "minui": -1,
}


def neutral(combiner: str, dtype: str) -> Const:
    """The neutral element of a combiner: ``neutral("maxsi", "i8")`` is -128."""
    value = COMBINERS[combiner]
    if value in ("min", "max"):
        bits = int(dtype[1:])
        value = -(1 << bits - 1) if value == "min" else (1 << bits - 1) - 1
    if dtype == "i1" and value == -1:
        value = 1
    return Const(value, dtype)


@dataclass(frozen=True)
class Target:
    """One element written by a Store: ``buffer[indices] = value``, with `init` for reductions."""

    buffer: str
    indices: tuple[Expr, ...]
    value: Expr
    init: Expr | None = None


# ---- building index arithmetic -------------------------------------------------------------------------------------


def as_index(x: Expr | int) -> Expr:
    return Const(x, "index") if isinstance(x, int) else x


def const_value(e: Expr | int) -> int | None:
    """The integer behind a constant expression, else None."""
    if type(e) is Const:
        return e.value if e.dtype == "index" else None
    return e if isinstance(e, int) else None


def add(a: Expr, b: Expr) -> Expr:
    x, y = const_value(a), const_value(b)
    if x is not None and y is not None:
        return Const(x + y, "index")
    if x == 0:
        return b
    if y == 0:
        return a
    if x is not None:  # constants last, so that offsets merge
        a, b, x, y = b, a, y, x
    if y is not None and isinstance(a, Op) and a.op == "addi":
        z = const_value(a.args[1])
        if z is not None:
            return add(a.args[0], Const(y + z, "index"))
    return Op("addi", (a, b), "index")


def mul(a: Expr, b: Expr) -> Expr:
    x, y = const_value(a), const_value(b)
    if x is not None and y is not None:
        return Const(x * y, "index")
    if x is not None:
        a, b, x, y = b, a, y, x
    if y == 0:
        return Const(0, "index")
    if y == 1:
        return a
    if y is not None and isinstance(a, Op) and a.op == "muli":
        z = const_value(a.args[1])
        if z is not None:
            return mul(a.args[0], Const(y * z, "index"))
    if y is not None and isinstance(a, Op) and a.op == "addi":
        return add(mul(a.args[0], b), mul(a.args[1], b))
    return Op("muli", (a, b), "index")


def floordiv(a: Expr, b: Expr) -> Expr:
    x, y = const_value(a), const_value(b)
    if y == 1:
        return a
    if x is not None and y:
        try:
            return Const(x // y, "index")
        except Undecided:  # it cannot be told apart from other sizes: computed where it is needed
            return Op("floordivsi", (a, b), "index")
    if y and less(0, y):
        whole, rest = split_multiple(a, y)
        if whole is not None and (left := const_value(rest)) is not None:
            return add(whole, Const(left // y, "index"))
    return Op("floordivsi", (a, b), "index")


def mod(a: Expr, b: Expr) -> Expr:
    x, y = const_value(a), const_value(b)
    if y == 1:
        return Const(0, "index")
    if x is not None and y:
        return Const(x % y, "index")
    if y and less(0, y):
        _, rest = split_multiple(a, y)
        if (left := const_value(rest)) is not None:
            return Const(left % y, "index")
        if rest is not a:
            return mod(rest, b)
    return Op("remsi", (a, b), "index")  # indices are never negative where mod is used


def minimum(a: Expr | int, b: Expr | int) -> Expr:
    a, b = as_index(a), as_index(b)
    x, y = const_value(a), const_value(b)
    if x is not None and y is not None:
        return Const(smaller(x, y), "index")
    return Op("minsi", (a, b), "index")


def ceildiv(a: Expr | int, b: int) -> Expr:
    return floordiv(as_index(a) + (b - 1), as_index(b))


def split_multiple(e: Expr, n: int) -> tuple[Expr | None, Expr]:
    """e = n * whole + rest, taking the terms whose coefficient is a multiple of n; whole is None if there are none."""
    terms, constant = linear(e)
    whole: Expr | None = None
    rest: Expr = Const(0, "index")
    for t, c in terms.items():
        if c % n == 0:
            whole = t * (c // n) if whole is None else whole + t * (c // n)
        else:
            rest = rest + t * c
    if whole is None and at_most(n, abs(constant)):
        whole = Const(0, "index")
    if whole is None:
        return None, e
    return whole + constant // n, rest + constant % n


# ---- linear form ---------------------------------------------------------------------------------------------------


def linear(e: Expr) -> tuple[dict[Expr, int], int]:
    """e as ``sum(coefficient * term) + constant``; a term is a variable or a non-linear index expression.

    >>> terms, constant = linear(Var("i") * 4 + Var("j") + 3)
    >>> {str(t): c for t, c in terms.items()}, constant
    ({'i': 4, 'j': 1}, 3)
    """
    if isinstance(e, Const):
        return {}, e.value
    if not _is_sum(e):
        return {e: 1}, 0
    if not hasattr(e, "_linear"):
        for x in bottom_up(e, lambda x: not _is_sum(x) or hasattr(x, "_linear")):
            _set(x, "_linear", _linear(x))
    terms, constant = e._linear
    return {t: c for t, c in terms.items() if c}, constant


_SUMS = frozenset({"addi", "subi", "muli"})


def _is_sum(e: Expr) -> bool:
    return type(e) is Op and e.op in _SUMS and e.dtype == "index"


def _linear(e: Expr) -> tuple[dict[Expr, int], int]:
    """The linear form of a sum or product, with terms that cancel, those of its parts being known."""
    assert isinstance(e, Op)
    a, b = e.args
    if e.op == "muli":
        times = const_value(b)
        if times is None:
            a, times = b, const_value(a)
        if times is None:
            return {e: 1}, 0
        terms, constant = _form(a)
        return {t: c * times for t, c in terms.items()}, constant * times
    terms, constant = _form(a)
    more, offset = _form(b)
    sign, terms = -1 if e.op == "subi" else 1, dict(terms)
    for t, c in more.items():
        terms[t] = terms.get(t, 0) + c * sign
    return terms, constant + offset * sign


def _form(e: Expr) -> tuple[dict[Expr, int], int]:
    if isinstance(e, Const):
        return {}, e.value
    return e._linear if _is_sum(e) else ({e: 1}, 0)


def merge_divisions(terms: dict[Expr, int], ranges: dict[str, tuple[int, int]] | None = None) -> dict[Expr, int]:
    """``c*n * (x // n) + c * (x % n)`` is ``c * x``; also where x is ``y // m``, and ``x // n`` is written
    ``y // (m*n)`` or, by the `ranges` of variables, with a common factor left out."""
    for t, c in list(terms.items()):
        if not isinstance(t, Op) or t.op != "remsi" or terms.get(t) != c or not (n := const_value(t.args[1])):
            continue
        x = t.args[0]
        inner = const_value(x.args[1]) if isinstance(x, Op) and x.op == "floordivsi" else None
        y, d = (x.args[0], inner * n) if isinstance(x, Op) and inner else (x, n)
        for whole, k in list(terms.items()):
            if k != c * n or not isinstance(whole, Op) or whole.op != "floordivsi":
                continue
            if whole.args == (x, t.args[1]) or _same_quotient(whole, y, d, ranges or {}):
                del terms[t], terms[whole]
                for part, q in linear(x)[0].items():
                    terms[part] = terms.get(part, 0) + c * q
                if linear(x)[1]:
                    terms[Const(1, "index")] = terms.get(Const(1, "index"), 0) + c * linear(x)[1]
                return merge_divisions(terms, ranges)
    return terms


def _same_quotient(quotient: Op, y: Expr, d: int, ranges: dict[str, tuple[int, int]]) -> bool:
    """Whether ``z // k`` is y // d: z is y without the factor d / k, and without what is smaller than that."""
    z, k = quotient.args[0], const_value(quotient.args[1])
    if not k or d % k:
        return False
    terms, constant = linear(y)
    factor = d // k
    small = {t: c for t, c in terms.items() if c % factor}
    if linear(z) != ({t: c // factor for t, c in terms.items() if t not in small}, constant // factor):
        return False
    limits = bounds(from_linear(small, constant % factor), ranges) if small else (constant % factor,) * 2
    return limits is not None and at_most(0, limits[0]) and less(limits[1], factor)


def from_linear(terms: dict[Expr, int], constant: int = 0, ranges: dict[str, tuple[int, int]] | None = None) -> Expr:
    """The expression of a linear form, without divisions that add up; `ranges` of variables help to find those."""
    terms = merge_divisions(dict(terms), ranges)
    parts = [t if c == 1 else t * c for t, c in terms.items() if c]
    if not parts:
        return Const(constant, "index")
    return fold(add, parts) + constant if constant else fold(add, parts)


def bounds(e: Expr, ranges: dict[str, tuple[int, int]]) -> tuple[int, int] | None:
    """Inclusive (low, high) of an index expression given inclusive ranges of its variables; None if unknown."""
    try:
        return _bounds(e, ranges, {})
    except Undecided:
        return None


def _bounds(
    e: Expr, ranges: dict[str, tuple[int, int]], known: dict[Expr, tuple[int, int] | None]
) -> tuple[int, int] | None:
    if isinstance(e, Const):
        return e.value, e.value
    if isinstance(e, Var):
        return ranges.get(e.name)
    if not isinstance(e, Op) or e.dtype != "index":
        return None
    if e not in known:
        known[e] = _bounds_of_op(e, ranges, known)
    found: tuple[int, int] | None = known[e]
    return found


def _bounds_if_decided(
    e: Expr, ranges: dict[str, tuple[int, int]], known: dict[Expr, tuple[int, int] | None]
) -> tuple[int, int] | None:
    """None where it hangs on sizes that are not known: of a minimum the other operand still bounds one side."""
    try:
        return _bounds(e, ranges, known)
    except Undecided:
        return None


def _bounds_of_op(
    e: Op, ranges: dict[str, tuple[int, int]], known: dict[Expr, tuple[int, int] | None]
) -> tuple[int, int] | None:
    terms, constant = linear(e)
    if len(terms) > 1 or (terms and (constant or next(iter(terms)) is not e)):
        low = high = constant
        for t, c in terms.items():
            part = _bounds(t, ranges, known)
            if part is None:
                return None
            up = less(0, c)
            if not up and not less(c, 0):
                return None
            low += c * (part[0] if up else part[1])
            high += c * (part[1] if up else part[0])
        return low, high
    if len(e.args) != 2:
        return None
    first, second = (_bounds_if_decided(a, ranges, known) for a in e.args)
    if first is None or second is None:
        one = first or second
        if e.op in ("minsi", "maxsi") and one is not None:  # bounded on one side
            far = 1 << 62
            return (-far, one[1]) if e.op == "minsi" else (one[0], far)
        return (0, second[1] - 1) if e.op == "remsi" and second is not None else None
    (a, b), (c, d) = first, second
    if e.op == "minsi":
        return smaller(a, c), _either(b, d, smaller)
    if e.op == "maxsi":
        return _either(a, c, larger), larger(b, d)
    if e.op == "floordivsi" and c == d and less(0, c):
        return _quotient(a, c, lowest), _quotient(b, c, highest)
    if e.op == "remsi" and c == d and less(0, c):
        return (a, b) if at_most(0, a) and less(b, c) else (0, c - 1)
    return None


def _quotient(x: int, c: int, limit: Callable[[int], int]) -> int:
    """x // c, or that of the limit of x: a quotient of sizes may be none that can be told apart from others."""
    try:
        return x // c
    except Undecided:
        return limit(x) // c


def _either(x: int, y: int, better: Callable[[int, int], int]) -> int:
    """Of two limits that both hold the better one; where sizes leave that open, the one that is known."""
    if is_open(x) != is_open(y) and is_open(best := better(x, y)) and best not in (x, y):
        return y if is_open(x) else x
    return better(x, y)


def simplify(
    e: Expr,
    ranges: dict[str, tuple[int, int]],
    other: Callable[[Expr, tuple[Expr, ...]], Expr] | None = None,
) -> Expr:
    """Fold what the variables' ranges prove: ``(i*8 + j) // 8`` is ``i`` for j in 0..7, ``min(8, n)`` is 8 for n >=
    8. What is no index arithmetic becomes what `other` makes of it and its simplified children (default: the same).

    What an index expression becomes is kept with it, by the ranges of its variables."""
    if not e.parts:
        return e
    other, keep, memo, rest = other or rebuild, current() is None, dict[Expr, Expr](), [e]
    while rest:
        x = rest[-1]
        if x in memo:
            rest.pop()
            continue
        if not x.parts:
            memo[rest.pop()] = x
            continue
        arithmetic = isinstance(x, Op) and x.dtype == "index"
        if arithmetic and keep:
            key = tuple([ranges.get(v) for v in variables(x)])
            known = x._simple.get(key) if hasattr(x, "_simple") else None
            if known is not None:
                memo[rest.pop()] = known
                continue
        if missing := [c for c in x.parts if c not in memo]:
            rest += missing[::-1]
            continue
        rest.pop()
        args = tuple([memo[c] for c in x.parts])
        if not arithmetic:
            memo[x] = other(x, args)
            continue
        memo[x] = made = simplify_node(x, args, ranges)
        if keep:
            if not hasattr(x, "_simple"):
                _set(x, "_simple", {})
            x._simple[key] = made
    return memo[e]


def simplify_node(x: Expr, args: tuple[Expr, ...], ranges: dict[str, tuple[int, int]]) -> Expr:
    """One node of `simplify`, with its children simplified."""
    try:
        return _simplify_node(x, args, ranges)
    except Undecided:  # it hangs on sizes that are not known: it stays as it is
        return rebuild(x, args)


def _simplify_node(x: Expr, args: tuple[Expr, ...], ranges: dict[str, tuple[int, int]]) -> Expr:
    if not isinstance(x, Op) or x.dtype != "index":
        return rebuild(x, args)
    if x.op == "addi":
        return from_linear(*linear(add(*args)))
    if x.op == "muli":
        return mul(*args)
    if x.op == "subi":
        return from_linear(*linear(args[0] - args[1]))
    if x.op in ("floordivsi", "remsi"):
        return _simplify_division(x.op, args[0], args[1], ranges)
    if x.op in ("minsi", "maxsi"):
        a, b = bounds(args[0], ranges), bounds(args[1], ranges)
        if a and b and (at_most(a[1], b[0]) or at_most(b[1], a[0])):
            return args[0] if at_most(a[1], b[0]) == (x.op == "minsi") else args[1]
        difference = bounds(args[0] - args[1], ranges)
        if difference and (at_most(difference[1], 0) or at_most(0, difference[0])):
            return args[0] if at_most(difference[1], 0) == (x.op == "minsi") else args[1]
        return minimum(*args) if x.op == "minsi" else Op(x.op, args, x.dtype)
    return rebuild(x, args)


def _simplify_division(op: str, a: Expr, b: Expr, ranges: dict[str, tuple[int, int]]) -> Expr:
    n = const_value(b)
    if not n or not less(0, n):
        return Op(op, (a, b), "index")
    whole, rest = split_multiple(a, n)
    limit = bounds(rest, ranges)
    if limit and at_most(0, limit[0]) and less(limit[1], n):
        return (whole if whole is not None else Const(0, "index")) if op == "floordivsi" else rest
    high, low = _split_aligned(a, n, ranges)
    if (
        low is not None
    ):  # (64*h + 16*v + l) with l < 16: the lowest part decides nothing, or is the whole remainder's end
        reduced = _simplify_division(op, high, b, ranges)
        return reduced if op == "floordivsi" else reduced + low
    if whole is not None:
        reduced = _simplify_division(op, rest, b, ranges)
        return add(whole, reduced) if op == "floordivsi" else reduced
    terms, constant = linear(a)
    common = gcd(n, constant, *terms.values())
    if common != 1:
        smaller = from_linear({t: c // common for t, c in terms.items()}, constant // common)
        reduced = _simplify_division(op, smaller, Const(n // common, "index"), ranges)
        return reduced if op == "floordivsi" else reduced * common
    if op == "floordivsi":
        if isinstance(a, Op) and a.op == "floordivsi" and (inner := const_value(a.args[1])):
            return _simplify_division(op, a.args[0], b * inner, ranges)
        return floordiv(a, b)
    return mod(a, b)


def _split_aligned(e: Expr, n: int, ranges: dict[str, tuple[int, int]]) -> tuple[Expr, Expr | None]:
    """e = high + low, high a multiple of some step dividing n, 0 <= low < step; low is None if there is no such
    split."""
    terms, constant = linear(e)
    steps = sorted({gcd(c, n) for c in terms.values()} - {1}, reverse=True)
    for step in steps:
        low_terms = {t: c for t, c in terms.items() if c % step}
        if not low_terms and constant % step == 0:
            continue
        low = from_linear(low_terms, constant % step)
        limit = bounds(low, ranges)
        if limit and at_most(0, limit[0]) and less(limit[1], step):
            high = from_linear({t: c for t, c in terms.items() if c % step == 0}, constant - constant % step)
            return high, low
    return e, None


# ---- walking and rewriting -----------------------------------------------------------------------------------------


def children(e: Expr) -> tuple[Expr, ...]:
    return e.parts


def rebuild(e: Expr, args: tuple[Expr, ...]) -> Expr:
    """`e` with other children (the same object where they are unchanged)."""
    old = e.parts
    if not old or all(map(is_, args, old)):
        return e
    if isinstance(e, Op):
        if e.dtype == "index":
            special = {"addi": add, "muli": mul, "floordivsi": floordiv, "remsi": mod, "minsi": minimum}.get(e.op)
            if special:
                return special(*args)
        return Op(e.op, args, e.dtype)
    assert isinstance(e, Load)
    return Load(e.buffer, args, e.dtype)


def bottom_up(e: Expr, done: Callable[[Expr], bool]) -> Iterator[Expr]:
    """The nodes of `e`, each after its children; not those that are `done`, which those given must be afterwards."""
    rest = [e]
    while rest:
        x = rest[-1]
        missing = () if done(x) else [c for c in x.parts if not done(c)]
        if missing:
            rest += missing[::-1]
        else:
            rest.pop()
            if not done(x):
                yield x


def transform(e: Expr, visit: Callable[[Expr, tuple[Expr, ...]], Expr], memo: dict[Expr, Expr] | None = None) -> Expr:
    """Rewrite bottom-up: visit(node, rewritten children) -> node. Shared nodes are visited once; those of `memo` are
    known."""
    memo = {} if memo is None else memo
    rest = [e]
    while rest:
        x = rest[-1]
        if x in memo:
            rest.pop()
        elif missing := [c for c in x.parts if c not in memo]:
            rest += missing[::-1]
        else:
            rest.pop()
            memo[x] = visit(x, tuple([memo[c] for c in x.parts]))
    return memo[e]


def substitute(e: Expr, values: dict[str, Expr]) -> Expr:
    """Replace variables by name."""
    names = values.keys()
    if names.isdisjoint(variables(e)):
        return e
    memo: dict[Expr, Expr] = {}
    rest = [e]
    while rest:
        x = rest[-1]
        if x in memo:
            rest.pop()
        elif names.isdisjoint(x._variables):
            memo[rest.pop()] = x
        elif isinstance(x, Var):
            memo[rest.pop()] = values[x.name]
        elif missing := [c for c in x.parts if c not in memo]:
            rest += missing[::-1]
        else:
            memo[rest.pop()] = rebuild(x, tuple([memo[c] for c in x.parts]))
    return memo[e]


def map_loads(e: Expr, f: Callable[[Load], Expr]) -> Expr:
    """Replace every Load by f(load with rewritten indices)."""
    memo: dict[Expr, Expr] = {}
    rest = [e]
    while rest:
        x = rest[-1]
        if x in memo:
            rest.pop()
        elif not x._reads:
            memo[rest.pop()] = x
        elif missing := [c for c in x.parts if c not in memo]:
            rest += missing[::-1]
        else:
            y = rebuild(rest.pop(), tuple([memo[c] for c in x.parts]))
            memo[x] = f(y) if isinstance(y, Load) else y
    return memo[e]


def walk(e: Expr, seen: set[Expr] | None = None) -> Iterator[Expr]:
    """Every distinct node below and including `e`, parents before children."""
    seen = set() if seen is None else seen
    rest = [e]
    while rest:
        x = rest.pop()
        if x not in seen:
            seen.add(x)
            yield x
            rest += x.parts[::-1]


def loads(e: Expr) -> tuple[Load, ...]:
    """The distinct loads in an expression, parents before children; found once for each that is asked for."""
    if not e._reads:
        return ()
    try:
        return e._loads
    except AttributeError:
        found: dict[Expr, None] = {}
        seen, rest = set[Expr](), [e]
        while rest:
            x = rest.pop()
            if x._reads and x not in seen:
                seen.add(x)
                if isinstance(x, Load):
                    found[x] = None
                rest += x.parts[::-1]
        _set(e, "_loads", tuple(found))
        return e._loads


def variables(e: Expr) -> frozenset[str]:
    """The names of the variables in an expression, which each node has."""
    return e._variables


@dataclass(frozen=True)
class Buffer:
    """Memory of a kernel: row-major, static shape.

    scope: ``param`` (an argument of the kernel), ``local`` (scratch of one thread), ``register`` (never in memory: the
    flat index is a constant, plus the lane of a vectorized loop, once loops are unrolled).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str = "param"
    strides: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        strides, step = [], 1
        for d in reversed(self.shape):
            strides.append(step)
            step *= d
        object.__setattr__(self, "strides", tuple(reversed(strides)))

    @cached_property
    def size(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n
