"""Tensor expressions: kernels written in Python, for schedules by hand and for experiments.

    from tilewright import te
    a, b = te.placeholder((64, 256), "a"), te.placeholder((256, 128), "b")
    k = te.reduce_axis(256)
    c = te.compute((64, 128), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    kernel = te.kernel(te.compute((64, 128), lambda i, j: te.maximum(c[i, j], 0.0)))
    s = tw.Schedule(kernel)

`kernel` collects everything its outputs need. `from_mlir` reads kernels from linalg or `tw` text instead.
"""

from __future__ import annotations

import builtins
import inspect
import itertools
import keyword
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from unicodedata import is_normalized

import numpy as np

from ..support.dtypes import FLOATS, NUMPY, TYPES, named
from ..support.errors import UsageError
from ..tensor.access_bounds import outside
from ..tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, floordiv, mod, neutral, variables, walk
from ..tensor.kernel import Kernel, Stage

if TYPE_CHECKING:
    import numpy.typing as npt

#: what stands for an element: numbers mix in
Operand: TypeAlias = "Value | float"


class Value:
    """A scalar expression; has the arithmetic operators of Python and a `dtype`."""

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    @property
    def dtype(self) -> str:
        return self.expr.dtype

    def __add__(self, other: Operand) -> Value:
        return _binary("add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return _binary("add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return _binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return _binary("sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return _binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return _binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return _binary("div", other, self)

    def __floordiv__(self, other: Operand) -> Value:
        return _binary("floordiv", self, other)

    def __mod__(self, other: Operand) -> Value:
        return _binary("mod", self, other)

    def __neg__(self) -> Value:
        return _binary("sub", 0, self)

    def __lt__(self, other: Operand) -> Value:
        return _compare("lt", self, other)

    def __le__(self, other: Operand) -> Value:
        return _compare("le", self, other)

    def __gt__(self, other: Operand) -> Value:
        return _compare("gt", self, other)

    def __ge__(self, other: Operand) -> Value:
        return _compare("ge", self, other)

    def equal(self, other: Operand) -> Value:
        """``self == other`` for every element."""
        return _compare("eq", self, other)

    def __and__(self, other: Value) -> Value:
        return Value(Op("andi", (self.expr, other.expr), self.dtype))

    def __or__(self, other: Value) -> Value:
        return Value(Op("ori", (self.expr, other.expr), self.dtype))

    def __bool__(self) -> bool:
        raise UsageError(
            "a te expression has no truth value while the kernel is being written", hint="use te.where(condition, a, b)"
        )

    def __str__(self) -> str:
        return str(self.expr)


class Axis(Value):
    """A reduction axis: an index that runs from 0 to `extent`."""

    def __init__(self, extent: int, name: str) -> None:
        super().__init__(Var(name) if extent != 1 else Const(0, "index"))
        self.extent, self.name = extent, name


@dataclass(frozen=True)
class _Reduction:
    combiner: str
    value: Expr
    axes: tuple[Axis, ...]
    init: Expr


@dataclass(eq=False)
class Tensor:
    """An input (no `stage`), or what `compute` makes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    stage: Stage | None = None
    constant: bool = False
    sources: dict[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, index: Operand) -> Value:
        """The element at an index: one value or integer for each dimension."""
        given = index if isinstance(index, tuple) else (index,)
        if len(given) != len(self.shape):
            raise UsageError(f"tensor {self.name} has {len(self.shape)} dimensions, indexed with {len(given)}")
        indices = tuple(_index(i) for i in given)
        known = vars(_read).setdefault("tensors", {}).setdefault(self.name, self)
        if known is not self:
            raise UsageError(f"two tensors are called {self.name!r}", hint="give them different names")
        return Value(Load(self.name, indices, self.dtype))


#: what the body of the `compute` that a thread calls has read: `tensors`
_read = threading.local()
_numbers = itertools.count()


def _unique(name: str | None, kind: str) -> str:
    if name is not None and (not name.isidentifier() or keyword.iskeyword(name) or not is_normalized("NFKC", name)):
        # nests are read back by Python's parser, for which other spellings of a letter are that letter
        raise UsageError(f"{name!r} is not a name", hint="use letters, digits and underscores")
    return name or f"{kind}{next(_numbers)}"


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(int(n) if isinstance(n, np.integer) else n for n in shape)
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes):
        raise UsageError(f"shape {sizes} is not made of positive integers")
    return sizes


def placeholder(shape: Sequence[int], name: str | None = None, dtype: str = "f32", *, constant: bool = False) -> Tensor:
    """An input of a kernel; a `constant` one may be packed into another layout when the program is built."""
    return Tensor(_unique(name, "x"), _shape(shape), _dtype(dtype), constant=constant)


def _dtype(given: npt.DTypeLike | None) -> str:
    """The short name of a dtype: ``f32`` for itself, ``float32`` and ``np.float32``; UsageError for an unknown one."""
    found = named(given)
    if found is None or found.startswith("ui"):
        signless = ", ".join(d for d in NUMPY if not d.startswith("ui"))
        raise UsageError(f"unknown dtype {given!r}", hint=f"dtypes: {signless}")
    return found


def reduce_axis(extent: int, name: str | None = None) -> Axis:
    """An axis for `sum`, `max`, `min` and `prod`."""
    (size,) = _shape((extent,))
    return Axis(size, _unique(name, "k"))


def compute(shape: Sequence[int], body: Callable[..., Operand | _Reduction], name: str | None = None) -> Tensor:
    """A tensor whose element at (i, j, ...) is ``body(i, j, ...)``: an expression, or one reduction of an expression.

    >>> x = placeholder((4, 8), "x")
    >>> k = reduce_axis(8, "k")
    >>> compute((4,), lambda i: sum(x[i, k], k), "total").shape
    (4,)

    UsageError if it reads outside of a tensor, or if an index that depends on data may (`tensor.access_bounds`):

    >>> compute((4,), lambda i: x[i + 1, 0], "y")
    Traceback (most recent call last):
        ...
    tilewright.support.errors.UsageError: y goes out of bounds: index 0 of x, (i_y + 1), is 1 to 4, but x has 4 ...
      hint: ...
    """
    sizes, label = _shape(shape), _unique(name, "t")
    names = [p.name for p in inspect.signature(body).parameters.values() if p.default is p.empty]
    if len(names) != len(sizes):
        raise UsageError(f"{label} has {len(sizes)} dimensions, its function takes {len(names)} indices")
    variables_ = [f"{n}_{label}" for n in names]
    index: tuple[Expr, ...] = tuple(
        Var(v) if n != 1 else Const(0, "index") for v, n in zip(variables_, sizes, strict=True)
    )
    read: dict[str, Tensor] = {}
    _read.tensors = read
    result = body(*[Value(i) for i in index])
    dims = [(v, n) for v, n in zip(variables_, sizes, strict=True) if n != 1]
    if isinstance(result, _Reduction):
        dtype = result.value.dtype
        axes = [(a.name, a.extent) for a in result.axes if a.extent != 1]
        update = Op(result.combiner, (Load(label, index, dtype), result.value), dtype)
        target, dims, reduction = Target(label, index, update, result.init), dims + axes, tuple(a for a, _ in axes)
        expr: Expr = result.value
    else:
        expr = _value(result).expr
        dtype, reduction = expr.dtype, ()
        target = Target(label, index, expr)
    loose = variables(expr) - {v for v, _ in dims}
    if loose:
        raise UsageError(f"{label} uses {', '.join(sorted(loose))}, which is no index of it and is not reduced over")
    unknown = {x.buffer for x in walk(expr) if isinstance(x, Load)} - set(read)
    if unknown:
        raise UsageError(
            f"{label} uses an element of {', '.join(sorted(unknown))} that was taken outside of its function"
        )
    stage = Stage(label, tuple(dims), (target,), reduction)
    _check_inside(stage, {label: sizes, **{t.name: t.shape for t in read.values()}})
    return Tensor(label, sizes, dtype, stage, False, read)


def _check_inside(stage: Stage, shapes: dict[str, tuple[int, ...]]) -> None:
    """UsageError if a stage reads or writes outside of its buffers, or may."""
    found = outside(stage, shapes)
    if found:
        raise UsageError(
            f"{stage.name} goes out of bounds: {found}",
            hint="te.where((i >= 0) & (i < n), x[i], 0.0) reads only what is there, "
            "te.minimum(te.maximum(i, 0), n - 1) keeps an index inside",
        )


# ---- reductions and functions --------------------------------------------------------------------------------------


def _reduce(kind: str, value: Operand, axes: tuple[Axis, ...]) -> _Reduction:
    v = _value(value)
    combiner = (
        kind + ("f" if v.dtype in FLOATS else "i")
        if kind in ("add", "mul")
        else kind + ("imumf" if v.dtype in FLOATS else "si")
    )
    if not axes:
        raise UsageError("a reduction needs at least one axis", hint="k = te.reduce_axis(n); te.sum(x[i, k], k)")
    return _Reduction(combiner, v.expr, axes, neutral(combiner, v.dtype))


def sum(value: Operand, *axes: Axis) -> _Reduction:
    """The sum over the axes; must be the whole body of `compute`."""
    return _reduce("add", value, axes)


def prod(value: Operand, *axes: Axis) -> _Reduction:
    """The product over the axes; must be the whole body of `compute`."""
    return _reduce("mul", value, axes)


def max(value: Operand, *axes: Axis) -> _Reduction:
    """The largest value over the axes; must be the whole body of `compute`."""
    return _reduce("max", value, axes)


def min(value: Operand, *axes: Axis) -> _Reduction:
    """The smallest value over the axes; must be the whole body of `compute`."""
    return _reduce("min", value, axes)


def _unary(op: str) -> Callable[[Operand], Value]:
    def call(x: Operand) -> Value:
        v = _value(x)
        if v.dtype not in FLOATS:
            raise UsageError(f"te.{call.__name__} wants a float, not {v.dtype}", hint="te.cast(x, 'f32')")
        return Value(Op(op, (v.expr,), v.dtype))

    call.__name__ = op
    call.__doc__ = f"The function `{op}` of every element (floats)."
    return call


exp, log, sqrt, rsqrt, tanh, erf, sin, cos, absf = map(
    _unary, ["exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "absf"]
)


def maximum(a: Operand, b: Operand) -> Value:
    """The larger of two values; NaN if either is."""
    return _binary("max", a, b)


def minimum(a: Operand, b: Operand) -> Value:
    """The smaller of two values; NaN if either is."""
    return _binary("min", a, b)


def where(condition: Value, a: Operand, b: Operand) -> Value:
    """`a` where the condition holds, else `b`; elements of `a` are read only where it holds (padding)."""
    x, y = _together(a, b)
    return Value(Op("guard", (condition.expr, x.expr, y.expr), x.dtype))


def cast(x: Operand, dtype: str) -> Value:
    """A value as another dtype. A float becomes an integer toward zero, as ``i1`` any number whether it is not zero.

    A float out of the range of an integer becomes its nearest end, and NaN 0. UsageError for sub-byte types and 8-bit
    floats, which are only stored.
    """
    v = _value(x)
    dtype = dtype if dtype == "index" else _dtype(dtype)
    if v.dtype == dtype:
        return v
    for d in (v.dtype, dtype):
        if d != "index" and TYPES[d].computed:
            raise UsageError(f"te.cast makes no {dtype} of {v.dtype}", hint=f"{d} is only stored; cast its codes, i8")
    old_float, new_float = v.dtype in FLOATS, dtype in FLOATS
    if dtype == "i1":
        return Value(
            Op("cmpf.une" if old_float else "cmpi.ne", (v.expr, Const(0.0 if old_float else 0, v.dtype)), "i1")
        )
    if old_float and not new_float:
        return cast(_whole(v, "i64"), "index") if dtype == "index" else _whole(v, dtype)
    if old_float:
        if NUMPY[dtype].itemsize == NUMPY[v.dtype].itemsize:  # f16 and bf16
            v = cast(v, "f32")
        op = "extf" if NUMPY[dtype].itemsize > NUMPY[v.dtype].itemsize else "truncf"
    elif new_float:
        op = "uitofp" if v.dtype == "i1" else "sitofp"
        if v.dtype == "index":
            v = Value(Op("index_cast", (v.expr,), "i64"))
    elif "index" in (v.dtype, dtype):
        op = "index_castui" if v.dtype == "i1" else "index_cast"
    else:
        wider = NUMPY[dtype].itemsize > NUMPY[v.dtype].itemsize or v.dtype == "i1"
        op = ("extui" if v.dtype == "i1" else "extsi") if wider else "trunci"
    return Value(Op(op, (v.expr,), dtype))


def _whole(v: Value, dtype: str) -> Value:
    """A float as an integer; only what is in its range is converted, since the rest is undefined to some machines."""
    v = v if v.dtype in ("f32", "f64") else cast(v, "f32")
    low, high = (float(s * 2 ** (8 * NUMPY[dtype].itemsize - 1)) for s in (-1, 1))

    def chosen(test: str, bound: float, a: Expr | float, b: Expr) -> Expr:
        a = a if isinstance(a, Expr) else Const(a, b.dtype)
        return Op("select", (Op(f"cmpf.{test}", (v.expr, Const(bound, v.dtype)), "i1"), a, b), b.dtype)

    zero = Const(0.0, v.dtype)
    inside = Op("fptosi", (chosen("ogt", low, chosen("olt", high, v.expr, zero), zero),), dtype)
    return Value(chosen("oge", high, int(high) - 1, chosen("ole", low, int(low), inside)))


def _value(x: object, dtype: str = "f32") -> Value:
    if isinstance(x, Value):
        return x
    if isinstance(x, _Reduction):
        raise UsageError(
            "a reduction must be the whole body of te.compute", hint="compute it first, then use the tensor"
        )
    if isinstance(x, Tensor):
        raise UsageError(
            f"tensor {x.name} stands where one of its elements is wanted", hint=f"index it: {x.name}[i, ...]"
        )
    if isinstance(x, (bool, int, float)):
        return Value(Const(float(x) if dtype in FLOATS else int(x), dtype))
    raise UsageError(f"{x!r} is no value of a tensor expression")


def _index(x: object) -> Expr:
    v = _value(x, "index")
    return v.expr if v.dtype == "index" else Op("index_cast", (v.expr,), "index")


def _together(a: Operand, b: Operand) -> tuple[Value, Value]:
    """Both as values of one dtype; plain numbers take the other's."""
    if isinstance(a, Value):
        x, y = a, _value(b, a.dtype)
    else:
        y = _value(b)
        x = _value(a, y.dtype)
    if x.dtype != y.dtype:
        raise UsageError(f"the operands are {x.dtype} and {y.dtype}", hint="te.cast(x, dtype) makes them equal")
    return x, y


def _binary(kind: str, a: Operand, b: Operand) -> Value:
    x, y = _together(a, b)
    if x.dtype == "index" and kind in ("add", "sub", "mul", "floordiv", "mod"):
        p, q = x.expr, y.expr
        table: dict[str, Callable[[], Expr]] = {
            "add": lambda: p + q, "sub": lambda: p - q, "mul": lambda: p * q,
            "floordiv": lambda: floordiv(p, q), "mod": lambda: mod(p, q),
        }  # fmt: skip
        return Value(table[kind]())
    suffix = (
        {"max": "imumf", "min": "imumf"}.get(kind, "f")
        if x.dtype in FLOATS
        else {"max": "si", "min": "si", "div": "si"}.get(kind, "i")
    )
    if kind in ("floordiv", "mod"):
        raise UsageError(f"// and % are for indices, not {x.dtype}")
    return Value(Op(kind + suffix, (x.expr, y.expr), x.dtype))


def _compare(kind: str, a: Operand, b: Operand) -> Value:
    x, y = _together(a, b)
    if x.dtype in FLOATS:
        return Value(Op(f"cmpf.o{kind}", (x.expr, y.expr), "i1"))
    return Value(Op(f"cmpi.{'' if kind == 'eq' else 's'}{kind}", (x.expr, y.expr), "i1"))


# ---- kernels -------------------------------------------------------------------------------------------------------


def kernel(*outputs: Tensor, name: str = "kernel", inputs: Sequence[Tensor] | None = None) -> Kernel:
    """The kernel that computes the outputs.

    Inputs are the placeholders they need, in order of first use, or as given by `inputs`. UsageError if there are no
    outputs, an output is a placeholder, or two tensors have the same name.

    >>> x = placeholder((4,), "x")
    >>> [p.name for p in kernel(compute((4,), lambda i: exp(x[i]), "y")).params]
    ['x', 'y']
    """
    if not outputs:
        raise UsageError("a kernel needs an output", hint="te.kernel(te.compute(...))")
    order: dict[str, Tensor] = {}

    def visit(t: Tensor) -> None:
        if t.name in order:
            if order[t.name] is not t:
                raise UsageError(f"two tensors are called {t.name!r}")
            return
        for s in t.sources.values():
            visit(s)
        order[t.name] = t

    for t in outputs:
        if t.stage is None:
            raise UsageError(f"{t.name} is a placeholder, not something computed")
        visit(t)
    given = [t for t in order.values() if t.stage is None]
    if inputs is not None:
        missing = [t.name for t in given if not builtins.any(t is i for i in inputs)]
        if missing:
            raise UsageError(f"inputs {', '.join(missing)} are used but not listed in `inputs`")
        given = list(inputs)
    ends = {t.name for t in outputs}
    stages = tuple(t.stage for t in order.values() if t.stage is not None)
    return Kernel(
        name,
        tuple(Buffer(t.name, t.shape, t.dtype) for t in (*given, *outputs)),
        tuple(t.name for t in outputs),
        tuple(
            Buffer(t.name, t.shape, t.dtype, "local")
            for t in order.values()
            if t.stage is not None and t.name not in ends
        ),
        _private_axes(stages),
        frozenset(t.name for t in given if t.constant),
    )


def _private_axes(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """A reduction axis used by several stages gets a name of its own in each."""
    from ..tensor.expr import substitute

    seen: set[str] = set()
    result = []
    for s in stages:
        new = {v: f"{v}_{s.name}" for v in s.reduction if v in seen}
        seen |= set(s.reduction)
        if new:
            values: dict[str, Expr] = {v: Var(n) for v, n in new.items()}
            targets = tuple(Target(t.buffer, t.indices, substitute(t.value, values), t.init) for t in s.targets)
            s = Stage(
                s.name, tuple((new.get(v, v), n) for v, n in s.dims), targets, tuple(new.get(v, v) for v in s.reduction)
            )
        result.append(s)
    return tuple(result)


def from_mlir(text: object, kernel: str | None = None) -> Kernel:
    """A kernel from MLIR text (linalg, StableHLO, TOSA or `tw`), a path, a model, or a `Graph`, after fusion.

    If the source becomes several kernels, `kernel` is the name (or its beginning) of the one that is meant; UsageError
    lists them."""
    from ..driver.kernels import fused_kernels

    found = fused_kernels(text)
    chosen = [k for k in found if kernel is None or k.name.startswith(kernel)]
    if len(chosen) != 1:
        what = f"{len(chosen)} kernels" + (f" whose names begin with {kernel!r}" if kernel else "")
        raise UsageError(f"the source has {what}", hint=f"name one with kernel=: {', '.join(k.name for k in found)}")
    return chosen[0]


def from_nest(text: str, constants: Sequence[str] = ()) -> Kernel:
    """A kernel written as a loop nest (see `schedule.text`): one stage for each perfect nest of plain loops.

    `constants` are the parameters whose values are known when the kernel is compiled. UsageError if a loop has no
    constant extent or is not perfectly nested; NestSyntaxError if the text cannot be read.

    >>> k = from_nest('''
    ... def k(x: f32[4], y: out(f32[4])):
    ...     for i in serial(4):
    ...         s0: y[i] = negf(x[i])''')
    >>> [stage.name for stage in k.stages]
    ['s0']
    """
    import textwrap

    from ..schedule.nest import Alloc, For, Seq, Stmt, Store
    from ..schedule.text import parse_nest

    nest = parse_nest(textwrap.dedent(text).strip())
    stages: list[Stage] = []

    def visit(s: Stmt) -> None:
        if isinstance(s, Seq):
            for x in s.stmts:
                visit(x)
            return
        if isinstance(s, Alloc):
            return visit(s.body)
        dims = []
        while isinstance(s, For):
            if s.trip is None or s.kind != "serial":
                raise UsageError(f"loop {s.var} of a kernel written as a nest must be serial({s.trip or 'constant'})")
            dims.append((s.var, s.trip))
            s = s.body
        if not isinstance(s, Store):
            raise UsageError(
                f"a kernel written as a nest has perfect loop nests, this is none: {[v for v, _ in dims]}",
                hint="each block must stand alone in its loops; compute_at and the like move blocks into others",
            )
        stages.append(Stage(s.block or f"s{len(stages)}", tuple(dims), s.targets, s.reduction))

    visit(nest.body)
    unknown = set(constants) - {p.name for p in nest.params}
    if unknown:
        raise UsageError(f"{', '.join(sorted(unknown))} is no parameter of {nest.name}")
    for stage in stages:
        _check_inside(stage, {n: b.shape for n, b in nest.buffers().items()})
    made = tuple(b for b in nest.buffers().values() if b.scope != "param")
    return Kernel(nest.name, nest.params, nest.outputs, made, tuple(stages), frozenset(constants))


__all__ = [
    "Axis", "Tensor", "Value", "absf", "cast", "compute", "cos", "erf", "exp", "from_mlir", "from_nest", "kernel",
    "log", "max", "maximum", "min", "minimum", "placeholder", "prod", "reduce_axis", "rsqrt", "sin", "sqrt", "sum",
    "tanh", "where",
]  # fmt: skip
