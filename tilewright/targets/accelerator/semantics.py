"""Semantics of an instruction, traced from its NumPy body: the body runs once on symbolic arrays, which record an
expression.

    lambda acc, x, w: acc + x.astype(np.int32) @ w.astype(np.int32)
    -> acc[m, n] + sum over k of extsi(x[m, k]) * extsi(w[k, n])

The expressions are those of kernels (`tensor/expr.py`), and `Reduce` for a sum or the like along a dimension. A body
may use the operators of Python, ``@``, ``astype``, ``sum``, ``max``, ``min``, and the functions in `FUNCTIONS`; arrays
broadcast by dimensions of size 1, made with ``keepdims=True`` or by operands that have fewer dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ...support.dtypes import FLOATS, LOOP_TYPES
from ...support.errors import UsageError
from ...tensor.expr import Const, Expr, Load, Op, Var, children, neutral, rebuild
from .describe import ACCUMULATE, Instruction

if TYPE_CHECKING:
    import numpy.typing as npt

_NAMES = {t.numpy: n for n, t in LOOP_TYPES.items() if n != "index"}
#: NumPy's functions -> operation of floats, of integers ("" where there is none)
FUNCTIONS: dict[str, tuple[str, str]] = {
    "add": ("addf", "addi"),
    "subtract": ("subf", "subi"),
    "multiply": ("mulf", "muli"),
    "divide": ("divf", ""),
    "true_divide": ("divf", ""),
    "maximum": ("maximumf", "maxsi"),
    "minimum": ("minimumf", "minsi"),
    "negative": ("negf", ""),
    "absolute": ("absf", "absi"),
    "right_shift": ("", "shrsi"),
    "left_shift": ("", "shli"),
    "bitwise_and": ("", "andi"),
    "bitwise_or": ("", "ori"),
    "exp": ("exp", ""),
    "tanh": ("tanh", ""),
    "sqrt": ("sqrt", ""),
    "rint": ("roundeven", ""),
    "equal": ("cmpf.oeq", "cmpi.eq"),
    "not_equal": ("cmpf.une", "cmpi.ne"),
    "less": ("cmpf.olt", "cmpi.slt"),
    "less_equal": ("cmpf.ole", "cmpi.sle"),
    "greater": ("cmpf.ogt", "cmpi.sgt"),
    "greater_equal": ("cmpf.oge", "cmpi.sge"),
}
_MAY = f"it takes operands, then fields by name; it may use operators, @, astype, sum, max, min, {', '.join(FUNCTIONS)}"
_COMBINE = {"sum": ("addf", "addi"), "max": ("maximumf", "maxsi"), "min": ("minimumf", "minsi")}
#: what an instruction may accumulate by
COMBINERS = frozenset(op for both in _COMBINE.values() for op in both)


#: operations that bodies often do to what does not fit, in words
_DOES = {f"{op}{t}": f"{word}s" for op, word in (("add", "add"), ("sub", "subtract")) for t in "fi"}
_DOES |= {"mulf": "multiplies", "muli": "multiplies", "divf": "divides"}


def shapes(arrays: Sequence[TracedArray]) -> str:
    """Their dimensions, in words."""
    return " and ".join(f"({', '.join(d or '1' for d in a.dims)})" for a in arrays)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Reduce(Expr):
    """``body`` combined over all values of the variables, from the combiner's neutral element on."""

    combiner: str
    over: tuple[str, ...]
    body: Expr

    @property
    def dtype(self) -> str:
        return self.body.dtype

    def __str__(self) -> str:
        return f"{self.combiner} over {', '.join(self.over)} of {self.body}"


def parts(e: Expr) -> tuple[Expr, ...]:
    """The expressions of which one consists."""
    return (e.body,) if isinstance(e, Reduce) else children(e)


def below(e: Expr) -> Iterator[Expr]:
    """`e` and every distinct expression that it consists of."""
    rest, seen = [e], set()
    while rest:
        x = rest.pop()
        if x not in seen:
            seen.add(x)
            yield x
            rest += parts(x)[::-1]


def with_parts(e: Expr, new: tuple[Expr, ...]) -> Expr:
    return Reduce(e.combiner, e.over, new[0]) if isinstance(e, Reduce) else rebuild(e, new)


def multiply_high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper word of the product of i32 arrays: ``(a * b) >> 32``.

    >>> multiply_high(np.int32([1 << 30]), np.int32([8]))
    array([2], dtype=int32)
    """
    if isinstance(a, TracedArray):
        return a.binary("mulhsi", a, b)
    return ((np.asarray(a, np.int64) * np.asarray(b, np.int64)) >> 32).astype(np.int32)


class TracedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that writes down what is computed: `dims` are names of dimensions ("" for one of size 1), `expr` is an
    element, with the dimensions as variables."""

    __array_priority__ = 1000

    def __init__(self, dims: tuple[str, ...], expr: Expr, sizes: Mapping[str, int]) -> None:
        self.dims, self.expr, self.sizes = dims, expr, sizes

    @property
    def dtype(self) -> np.dtype:
        return LOOP_TYPES[self.expr.dtype].numpy

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.sizes[d] if d else 1 for d in self.dims)

    @property
    def ndim(self) -> int:
        return len(self.dims)

    def __bool__(self) -> bool:
        raise UsageError(
            "the body of an instruction may not ask for values", stage="describe", hint="compare, and go on with astype"
        )

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **options: Any) -> TracedArray:
        if method != "__call__" or options:
            raise UsageError(
                f"the body of an instruction may not use np.{function.__name__}.{method}", stage="describe"
            )
        if function is np.matmul:
            return self.matmul(*inputs)
        if function.__name__ not in FUNCTIONS:
            raise UsageError(
                f"the body of an instruction may not use np.{function.__name__}",
                stage="describe",
                hint=f"it may use {', '.join(FUNCTIONS)}",
            )
        return self.applied(FUNCTIONS[function.__name__], function.__name__, *inputs)

    def __array_function__(
        self, function: Callable[..., Any], types: object, args: tuple[Any, ...], kwargs: Mapping[str, object]
    ) -> TracedArray:
        if function in (np.sum, np.max, np.min):
            return getattr(args[0], function.__name__.removeprefix("a"))(*args[1:], **kwargs)
        raise UsageError(
            f"the body of an instruction may not use np.{function.__name__}",
            stage="describe",
            hint=f"a product of matrices is a @ b; it may use sum, max, min, {', '.join(FUNCTIONS)}",
        )

    def applied(self, names: tuple[str, str], shown: str, *inputs: object) -> TracedArray:
        is_float = any(isinstance(x, TracedArray) and x.expr.dtype in FLOATS for x in inputs)
        op = names[0] if is_float else names[1]
        if not op:
            raise UsageError(f"np.{shown} has no meaning for {'floats' if is_float else 'integers'}", stage="describe")
        return self.binary(op, *inputs)

    def binary(self, op: str, *inputs: Any) -> TracedArray:
        """An operation, element by element; numbers take the type of the arrays."""
        arrays = [x for x in inputs if isinstance(x, TracedArray)]
        if not arrays or not all(isinstance(x, (TracedArray, int, float, np.generic)) for x in inputs):
            raise UsageError(f"{op} of what is no operand", stage="describe", hint="numbers are constants, not arrays")
        dtypes = {x.expr.dtype for x in arrays}
        if len(dtypes) != 1:
            pair, to = (
                " and ".join(sorted(dtypes)),
                LOOP_TYPES[max(dtypes, key=lambda d: LOOP_TYPES[d].numpy.itemsize)].numpy,
            )
            raise UsageError(
                f"the body {_DOES.get(op, op)} {pair}", stage="describe", hint=f"give both one type: x.astype(np.{to})"
            )
        dtype = dtypes.pop()
        rank = max(x.ndim for x in arrays)
        padded = [("",) * (rank - x.ndim) + x.dims for x in arrays]
        dims = []
        for at in zip(*padded, strict=True):
            named = {d for d in at if d}
            if len(named) > 1:
                raise UsageError(
                    f"the body {_DOES.get(op, op)} arrays of {shapes(arrays)}, element by element",
                    stage="describe",
                    hint="dimensions meet from the last one on; a product of matrices is a @ b",
                )
            dims.append(named.pop() if named else "")
        args = tuple(x.expr if isinstance(x, TracedArray) else _constant(x, dtype) for x in inputs)
        return TracedArray(tuple(dims), Op(op, args, "i1" if op.startswith("cmp") else dtype), self.sizes)

    def astype(self, to: npt.DTypeLike) -> TracedArray:
        old, new = self.dtype, np.dtype(to)
        if old == new:
            return self
        a, b = _NAMES[old], _NAMES.get(new, str(new))
        if b == "i1":
            return self != old.type(0)
        bits = a == "i1"  # true is 1, not -1
        wider = bits or new.itemsize > old.itemsize
        cast = {
            (True, True): "extf" if wider else "truncf",
            (False, False): "extui" if bits else "extsi" if wider else "trunci",
            (False, True): "uitofp" if bits else "sitofp",
            (True, False): "fptosi",
        }[a in FLOATS, b in FLOATS]
        return TracedArray(self.dims, Op(cast, (self.expr,), b), self.sizes)

    def matmul(self, a: TracedArray, b: TracedArray) -> TracedArray:
        if a.ndim != 2 or b.ndim != 2 or a.dims[1] != b.dims[0]:
            raise UsageError(
                f"the body multiplies matrices of {shapes((a, b))}",
                stage="describe",
                hint="a @ b is (m, k) @ (k, n); the body takes its operands in the order of the description",
            )
        is_float = a.expr.dtype in FLOATS
        mul, add = ("mulf", "addf") if is_float else ("muli", "addi")
        product = Op(mul, (a.expr, b.expr), a.expr.dtype)
        return TracedArray((a.dims[0], b.dims[1]), Reduce(add, (a.dims[1],), product), self.sizes)

    def _reduced(self, kind: str, axis: int | None, keepdims: bool, out: object = None) -> TracedArray:
        if out is not None:
            raise UsageError(f"{kind} into an array", stage="describe")
        if axis is None and self.ndim != 1:
            raise UsageError(f"{kind} of all dimensions", stage="describe", hint="say axis")
        at = (0 if axis is None else axis) % self.ndim
        combiner = _COMBINE[kind][0 if self.expr.dtype in FLOATS else 1]
        expr = Reduce(combiner, (self.dims[at],), self.expr) if self.dims[at] else self.expr
        middle = ("",) if keepdims else ()
        return TracedArray((*self.dims[:at], *middle, *self.dims[at + 1 :]), expr, self.sizes)

    def sum(
        self, axis: int | None = None, dtype: npt.DTypeLike | None = None, out: object = None, keepdims: bool = False
    ) -> TracedArray:
        own = self.expr.dtype
        if dtype is None and own not in FLOATS and own != "i64":
            raise UsageError(f"NumPy's sum of {own} is i64", stage="describe", hint="say dtype=np.int32, or what it is")
        added = self if dtype is None else self.astype(dtype)
        return added._reduced("sum", axis, keepdims, out)

    def max(self, axis: int | None = None, out: object = None, keepdims: bool = False) -> TracedArray:
        return self._reduced("max", axis, keepdims, out)

    def min(self, axis: int | None = None, out: object = None, keepdims: bool = False) -> TracedArray:
        return self._reduced("min", axis, keepdims, out)


def _constant(x: float | np.generic, dtype: str) -> Const:
    """A number beside an array of `dtype`; UsageError where NumPy would take another type for both."""
    own = LOOP_TYPES[dtype].numpy
    wide = isinstance(x, np.generic) and np.result_type(x.dtype, own) != own
    if wide or (dtype not in FLOATS and isinstance(x, float)):
        raise UsageError(f"a number {x!r} beside {dtype}", stage="describe", hint="say astype, or give a plain number")
    value = float(x) if dtype in FLOATS else int(x)
    return Const(value, dtype)


@dataclass(frozen=True)
class Meaning:
    """What an instruction writes, by operand: an element as an expression of the operands' elements, whose indices are
    the dimensions, and of the fields, which are variables unless they are `chosen`."""

    instruction: Instruction
    values: dict[str, Expr] = field(default_factory=dict)
    chosen: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        dims = {o.name: ", ".join(o.dims) for o in self.instruction.operands}
        return "\n".join(f"{name}[{dims[name]}] = {e}" for name, e in self.values.items())


def meaning(instruction: Instruction) -> Meaning:
    """Read the body of an instruction; UsageError if it uses what has no meaning here, or gives results whose dims or
    types are not those of the operands."""
    sizes, where = {d.name: d.limit for d in instruction.dims}, f"instruction {instruction.name}"
    given = [TracedArray(o.dims, Load(o.name, tuple(map(Var, o.dims)), o.dtype), sizes) for o in instruction.inputs]
    fields = {f.name: TracedArray((), Var(f.name, f.dtype), sizes) for f in instruction.fields}
    try:
        made = run_body(instruction, given, fields)
    except UsageError as e:
        raise UsageError(e.message, stage="describe", operator=e.operator or where, hint=e.hint) from None
    except Exception as e:  # whatever a body may do that arrays can and these cannot
        why = re.sub(r"'TracedArray' object", "an operand", f"{type(e).__name__}: {e}")
        raise UsageError(f"the body cannot be read: {why}", stage="describe", operator=where, hint=_MAY) from e
    values = {}
    for o, value in zip(instruction.outputs, made, strict=True):
        if not isinstance(value, TracedArray):
            raise _wrong(instruction, f"the body gives {value!r} for {o.name}")
        dims = ("",) * (len(o.dims) - value.ndim) + value.dims
        dtype = value.expr.dtype
        if len(dims) != len(o.dims) or any(d not in ("", want) for d, want in zip(dims, o.dims, strict=True)):
            shown = ", ".join(d or "1" for d in dims)
            raise _wrong(instruction, f"the body gives ({shown}) for {o.name}, which is ({', '.join(o.dims)})")
        if dtype != o.dtype:
            raise _wrong(instruction, f"the body gives {dtype} for {o.name}, which is {o.dtype}")
        values[o.name] = canonical(value.expr)
    return Meaning(instruction, values)


def choices(m: Meaning) -> list[Meaning]:
    """What an instruction means with each choice of its fields of one bit: what they turn off is not there."""
    bits = [f.name for f in m.instruction.fields if (f.bits, f.signed) == (1, False)]
    made = []
    for values in product((0, 1), repeat=len(bits)):
        chosen = dict(zip(bits, values, strict=True))
        made.append(replace(m, values={o: canonical(_chosen(e, chosen)) for o, e in m.values.items()}, chosen=chosen))
    return made


def _chosen(e: Expr, values: Mapping[str, int]) -> Expr:
    """An expression for these values of fields, without what they turn off."""
    if isinstance(e, Var) and e.name in values:
        return Const(values[e.name], e.dtype)
    e = with_parts(e, tuple(_chosen(p, values) for p in parts(e)))
    if not isinstance(e, Op) or len(e.args) != 2 or e.dtype in FLOATS:
        return e
    for a, b in (e.args, e.args[::-1]):
        number = b.value if isinstance(b, Const) else None
        if e.op == "muli" and number in (0, 1):
            return a if number else b
        if number == 0 and (e.op in ("addi", "ori") or (e.op in ("subi", "shli", "shrsi") and b is e.args[1])):
            return a
    return e


def accumulated(like: Expr, name: str) -> Reduce | None:
    """What an instruction adds to its operand `name`, or takes the maximum or minimum of, from the neutral number on: a
    sum, or one thing each time (a sum over nothing); None if it does another thing."""
    if isinstance(like, Op) and like.op in COMBINERS:
        for a, b in (like.args, like.args[::-1]):
            if isinstance(a, Load) and a.buffer == name:
                return b if isinstance(b, Reduce) and b.combiner == like.op else Reduce(like.op, (), b)
    return None


@lru_cache(maxsize=256)
def first_number(i: Instruction) -> float:
    """What an accumulating instruction finds in place of its operand where it starts anew: 0, or for a maximum the
    smallest number.

    >>> from tilewright.targets.chips.systolic32 import CHIP
    >>> first_number(CHIP().instruction("mma"))
    0
    """
    out = next(o for o in i.outputs if o.access == ACCUMULATE)
    found = accumulated(meaning(i).values[out.name], out.name)
    assert found is not None
    number: float = neutral(found.combiner, out.dtype).value
    return number


def run_body(instruction: Instruction, arrays: list[Any], fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the body gives, as a tuple with one item for each operand that is written."""
    made = instruction.body(*arrays, **fields)
    made = made if isinstance(made, tuple) else (made,)
    if len(made) != len(instruction.outputs):
        wanted = ", ".join(o.name for o in instruction.outputs)
        raise _wrong(instruction, f"the body gives {len(made)} results, not {len(instruction.outputs)} ({wanted})")
    return made


def _wrong(instruction: Instruction, message: str) -> UsageError:
    return UsageError(message, stage="describe", operator=f"instruction {instruction.name}")


# ---- one form for what means the same --------------------------------------------------------------------------------


def canonical(e: Expr) -> Expr:
    """One of several ways to write the same: quotients as products with a reciprocal, maxima that differ for NaN only,
    differences of integers as sums.

    >>> x, y = Var("x", "f32"), Var("y", "f32")
    >>> print(canonical(Op("divf", (x, y), "f32")))
    (x *. (1.0:f32 /. y))
    """
    memo: dict[int, Expr] = {}

    def visit(x: Expr) -> Expr:
        if id(x) not in memo:
            memo[id(x)] = _canonical_node(with_parts(x, tuple(map(visit, parts(x)))))
        return memo[id(x)]

    return visit(e)


#: combiners that differ for NaN only
SAME = {"maxnumf": "maximumf", "minnumf": "minimumf"}


def _canonical_node(e: Expr) -> Expr:
    if isinstance(e, Reduce):
        return Reduce(SAME.get(e.combiner, e.combiner), e.over, e.body)
    if not isinstance(e, Op):
        return e
    if e.op in SAME:
        return Op(SAME[e.op], e.args, e.dtype)
    if e.op == "divf" and not (isinstance(e.args[0], Const) and e.args[0].value == 1):
        a, b = e.args
        return Op("mulf", (a, Op("divf", (Const(1.0, e.dtype), b), e.dtype)), e.dtype)
    if e.op == "subi" and e.dtype != "index" and isinstance(e.args[1], Const):
        return Op("addi", (e.args[0], Const(-e.args[1].value, e.dtype)), e.dtype)
    return e
