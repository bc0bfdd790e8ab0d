"""The builder that operators use to lower themselves to linalg on tensors (level 2 -> level 3).

`Tensor` is an SSA value with its Type; `Scalar` is an SSA value inside a linalg body with Python operators. Integers
are signless at level 3: a Scalar keeps the level-2 dtype (``ui8``) and so picks unsigned operations where they differ.

    # y = max(x + bias, 0), shapes broadcast as in NumPy
    b.elementwise(lambda v, w: b.maximum(v + w, 0.0), x, bias)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import arith, math, tensor

from ..support.sizes import Size, Undecided, is_open, too_large
from ..support.sub_byte import NARROW, decode_scalar, encode, encode_scalar
from .linalg import linalg
from .types import Type, Typed, broadcast_shapes, element_type, is_float, is_unsigned, signless


def within(index: ir.AffineExpr, size: int) -> ir.AffineExpr:
    """An index of a dimension, so that MLIR's verifier takes it.

    The verifier computes with the numbers that stand for open sizes, for which ``2 * d0 + d1`` may be outside of the
    dimension where it never is for the sizes themselves. Of an index below the size the remainder is the index:
    ``(2 * d0 + d1) mod size``, which who reads the map leaves out again (`unwrapped`).
    """
    if not is_open(size) or isinstance(index, (ir.AffineDimExpr, ir.AffineConstantExpr)):
        return index
    return ir.AffineExpr.get_mod(index, ir.AffineExpr.get_constant(size))


def unwrapped(index: ir.AffineExpr, size: int) -> ir.AffineExpr:
    """What `within` was given."""
    if not isinstance(index, ir.AffineModExpr) or not isinstance(index.rhs, ir.AffineConstantExpr):
        return index
    return index.lhs if is_open(size) and index.rhs.value == int(size) else index


@dataclass(frozen=True)
class Tensor(Typed):
    """A level-3 value: `value` has signless element type, `type` the level-2 type."""

    value: ir.Value
    type: Type


#: what scalars are computed with: numbers mix in
Operand: TypeAlias = "Scalar | float"
Binary: TypeAlias = Callable[[ir.Value, ir.Value], ir.Value]


class Scalar:
    """One element inside a linalg body; arithmetic builds `arith`/`math` operations.

    Python numbers mix in and take the Scalar's dtype. Comparisons give ``i1``. Integer ``/`` truncates toward zero as
    in C (ONNX Div), ``//`` and ``%`` are floor division and its remainder on ``index``; for integers use `Builder`
    methods.
    """

    __slots__ = ("dtype", "value")

    def __init__(self, value: ir.Value, dtype: str) -> None:
        self.value, self.dtype = value, dtype

    def _pair(self, other: Operand) -> tuple[ir.Value, ir.Value]:
        return self.value, constant(other, self.dtype).value if not isinstance(other, Scalar) else other.value

    def _binary(
        self,
        other: Operand,
        f: Binary,
        i: Binary,
        u: Binary | None = None,
        *,
        swap: bool = False,
    ) -> Scalar:
        a, b = self._pair(other)
        if swap:
            a, b = b, a
        op = f if is_float(self.dtype) else (u if u is not None and is_unsigned(self.dtype) else i)
        return Scalar(op(a, b), self.dtype)

    def __add__(self, o: Operand) -> Scalar:
        return self._binary(o, arith.addf, arith.addi)

    def __sub__(self, o: Operand) -> Scalar:
        return self._binary(o, arith.subf, arith.subi)

    def __mul__(self, o: Operand) -> Scalar:
        return self._binary(o, arith.mulf, arith.muli)

    def __truediv__(self, o: Operand) -> Scalar:
        return self._binary(o, arith.divf, arith.divsi, arith.divui)

    def __floordiv__(self, o: Operand) -> Scalar:
        return self._binary(o, _floordiv_float, arith.floordivsi, arith.divui)

    def __mod__(self, o: Operand) -> Scalar:
        """Remainder with the sign of the divisor, as Python and NumPy have it."""
        a, b = self._pair(o)
        if is_float(self.dtype):
            quotient = math.floor(arith.divf(a, b))
            return Scalar(arith.subf(a, arith.mulf(quotient, b)), self.dtype)
        if is_unsigned(self.dtype):
            return Scalar(arith.remui(a, b), self.dtype)
        return Scalar(arith.subi(a, arith.muli(arith.floordivsi(a, b), b)), self.dtype)

    def __radd__(self, o: Operand) -> Scalar:
        return self.__add__(o)

    def __rmul__(self, o: Operand) -> Scalar:
        return self.__mul__(o)

    def __rsub__(self, o: Operand) -> Scalar:
        return self._binary(o, arith.subf, arith.subi, swap=True)

    def __rtruediv__(self, o: Operand) -> Scalar:
        return self._binary(o, arith.divf, arith.divsi, arith.divui, swap=True)

    def __neg__(self) -> Scalar:
        return Scalar(arith.negf(self.value), self.dtype) if is_float(self.dtype) else 0 - self

    def __and__(self, o: Operand) -> Scalar:
        return Scalar(arith.andi(*self._pair(o)), self.dtype)

    def __or__(self, o: Operand) -> Scalar:
        return Scalar(arith.ori(*self._pair(o)), self.dtype)

    def __xor__(self, o: Operand) -> Scalar:
        return Scalar(arith.xori(*self._pair(o)), self.dtype)

    def shift_left(self, count: int) -> Scalar:
        """By a number of bits less than the type has."""
        return Scalar(arith.shli(*self._pair(count)), self.dtype)

    def shift_right(self, count: int) -> Scalar:
        op = arith.shrui if is_unsigned(self.dtype) else arith.shrsi
        return Scalar(op(*self._pair(count)), self.dtype)

    def __invert__(self) -> Scalar:
        return self ^ (True if self.dtype == "i1" else -1)

    def _compare(self, o: Operand, name: str) -> Scalar:
        a, b = self._pair(o)
        if is_float(self.dtype):
            predicate = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "ne": 13}[name]  # ordered; ne is unordered
            return Scalar(arith.cmpf(arith.CmpFPredicate(predicate), a, b), "i1")
        unsigned = is_unsigned(self.dtype) or self.dtype == "i1"
        base = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5}[name]
        return Scalar(arith.cmpi(arith.CmpIPredicate(base + 4 if unsigned and base > 1 else base), a, b), "i1")

    def __lt__(self, o: Operand) -> Scalar:
        return self._compare(o, "lt")

    def __le__(self, o: Operand) -> Scalar:
        return self._compare(o, "le")

    def __gt__(self, o: Operand) -> Scalar:
        return self._compare(o, "gt")

    def __ge__(self, o: Operand) -> Scalar:
        return self._compare(o, "ge")

    def eq(self, o: Operand) -> Scalar:
        return self._compare(o, "eq")

    def ne(self, o: Operand) -> Scalar:
        return self._compare(o, "ne")


def _floordiv_float(a: ir.Value, b: ir.Value) -> ir.Value:
    return math.floor(arith.divf(a, b))


def constant(value: float, dtype: str) -> Scalar:
    """A scalar constant of any dtype."""
    if isinstance(value, Size) and dtype != "index":
        return Builder().cast(constant(value, "index"), dtype)
    t = element_type(signless(dtype))
    if is_float(dtype):
        return Scalar(arith.constant(t, ir.FloatAttr.get(t, float(value))), dtype)
    if dtype in NARROW and value != 0:
        value = int(encode(np.array(value), dtype).view(np.uint8))
    v = int(value)
    if isinstance(value, int) and too_large(value):
        raise Undecided(f"{value} has too many open dimensions as factors: no integer has room for it")
    if dtype in ("i1", "index"):
        return Scalar(arith.constant(t, ir.IntegerAttr.get(t, v)), dtype)
    bits = int(signless(dtype)[1:])
    v &= (1 << bits) - 1
    return Scalar(arith.constant(t, ir.IntegerAttr.get(t, v - (1 << bits) if v >> (bits - 1) else v)), dtype)


#: unary math functions of a float Scalar, by name
UNARY = {
    n: getattr(math, n)
    for n in (
        *("exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "sqrt", "rsqrt", "cbrt", "erf", "sin", "cos", "tan"),
        *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("floor", "ceil", "trunc", "roundeven"),
    )
} | {"round": math.roundeven, "absf": math.absf}


class Builder:
    """Appends linalg operations at the current insertion point. All shapes are static.

    `label` (usually the mnemonic of the operator being lowered) is kept on what is built as attribute ``tw.op``;
    kernels are named by it.
    """

    def __init__(self, label: str = "") -> None:
        self.label = label

    def _mark(self, op: ir.OpView) -> ir.OpView:
        if self.label:
            op.operation.attributes["tw.op"] = ir.StringAttr.get(self.label)
        return op

    # ---- scalars (inside a body) ----

    def constant(self, value: float, dtype: str) -> Scalar:
        return constant(value, dtype)

    def index(self, dimension: int) -> Scalar:
        """The value of iteration dimension `dimension`, dtype ``index``."""
        return Scalar(linalg.IndexOp(ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dimension)).result, "index")

    def unary(self, name: str, x: Scalar) -> Scalar:
        """One of `UNARY` applied to a float: ``b.unary("exp", x)``."""
        return Scalar(UNARY[name](x.value), x.dtype)

    def abs(self, x: Scalar) -> Scalar:
        if is_unsigned(x.dtype):
            return x
        return Scalar(math.absf(x.value) if is_float(x.dtype) else math.absi(x.value), x.dtype)

    def pow(self, x: Scalar, y: Scalar) -> Scalar:
        """x ** y for floats (math.powf semantics)."""
        return Scalar(math.powf(x.value, y.value), x.dtype)

    def fma(self, x: Scalar, y: Scalar, z: Scalar) -> Scalar:
        return Scalar(math.fma(x.value, y.value, z.value), x.dtype)

    def maximum(self, x: Scalar, y: Operand) -> Scalar:
        """NaN propagates."""
        return x._binary(y, arith.maximumf, arith.maxsi, arith.maxui)

    def larger(self, x: Scalar, y: Operand) -> Scalar:
        """The maximum where a NaN yields to the other: for floats, and cheaper than `maximum`."""
        return x._binary(y, arith.maxnumf, arith.maxsi, arith.maxui)

    def minimum(self, x: Scalar, y: Operand) -> Scalar:
        return x._binary(y, arith.minimumf, arith.minsi, arith.minui)

    def select(self, condition: Scalar, x: Operand, y: Operand) -> Scalar:
        dtype = next(v.dtype for v in (x, y) if isinstance(v, Scalar))
        a = x if isinstance(x, Scalar) else constant(x, dtype)
        c = y if isinstance(y, Scalar) else constant(y, dtype)
        return Scalar(arith.select(condition.value, a.value, c.value), dtype)

    def shift_left(self, x: Scalar, y: Scalar) -> Scalar:
        """0 where the shift is as wide as the type or wider."""
        bits = int(signless(x.dtype)[1:])
        return self.select(
            Scalar(y.value, "u" + signless(y.dtype)) < bits, Scalar(arith.shli(x.value, y.value), x.dtype), 0
        )

    def shift_right(self, x: Scalar, y: Scalar) -> Scalar:
        bits = int(signless(x.dtype)[1:])
        op = arith.shrui if is_unsigned(x.dtype) else arith.shrsi
        return self.select(Scalar(y.value, "u" + signless(y.dtype)) < bits, Scalar(op(x.value, y.value), x.dtype), 0)

    def multiply_high(self, x: Scalar, y: Scalar) -> Scalar:
        """The upper 32 bits of the product of two i32 numbers, with 64 bits."""
        return Scalar(arith.MulSIExtendedOp(x.value, y.value).high, x.dtype)

    def shift_left_by(self, x: Scalar, y: Scalar) -> Scalar:
        """By a number of bits known to be less than the type has."""
        return Scalar(arith.shli(x.value, y.value), x.dtype)

    def shift_right_by(self, x: Scalar, y: Scalar) -> Scalar:
        """The same to the right; the sign is kept."""
        return Scalar(arith.shrsi(x.value, y.value), x.dtype)

    def remainder(self, x: Scalar, y: Operand) -> Scalar:
        """C remainder (sign of the dividend), ONNX Mod with fmod=1."""
        return x._binary(y, arith.remf, arith.remsi, arith.remui)

    def reinterpret(self, x: Scalar, dtype: str) -> Scalar:
        """The bits of x as another dtype of the same width."""
        if signless(x.dtype) == signless(dtype):
            return Scalar(x.value, dtype)
        return Scalar(arith.bitcast(element_type(signless(dtype)), x.value), dtype)

    def cast(self, x: Scalar, dtype: str, saturate: bool = True, round_mode: str = "up") -> Scalar:
        """Value conversion: float to integer truncates (out of range the result is undefined), to ``i1`` is ``!= 0``.

        `saturate` and `round_mode` are for the 8-bit floats of `sub_byte`.
        """
        if x.dtype in NARROW and x.dtype != dtype:
            return self.cast(decode_scalar(self, x), dtype, saturate, round_mode)
        if dtype in NARROW and x.dtype != dtype:
            encoded: Scalar = encode_scalar(self, x, dtype, saturate, round_mode)
            return encoded
        if x.dtype == dtype or (signless(x.dtype) == signless(dtype)):
            return Scalar(x.value, dtype)
        t = element_type(signless(dtype))
        if dtype == "i1":
            return x.ne(0)
        if "index" in (x.dtype, dtype):
            op = arith.index_castui if is_unsigned(x.dtype) or x.dtype == "i1" else arith.index_cast
            if is_float(dtype) or is_float(x.dtype):
                return self.cast(self.cast(x, "i64"), dtype)
            return Scalar(op(t, x.value), dtype)
        if is_float(x.dtype) and is_float(dtype):
            wide, narrow = width(dtype), width(x.dtype)
            if wide == narrow:  # f16 <-> bf16
                return self.cast(self.cast(x, "f32"), dtype)
            return Scalar((arith.extf if wide > narrow else arith.truncf)(t, x.value), dtype)
        if is_float(x.dtype):
            return Scalar((arith.fptoui if is_unsigned(dtype) else arith.fptosi)(t, x.value), dtype)
        unsigned = is_unsigned(x.dtype) or x.dtype == "i1"
        if is_float(dtype):
            return Scalar((arith.uitofp if unsigned else arith.sitofp)(t, x.value), dtype)
        if width(dtype) > width(x.dtype):
            return Scalar((arith.extui if unsigned else arith.extsi)(t, x.value), dtype)
        return Scalar(arith.trunci(t, x.value), dtype)

    def load(self, x: Tensor, indices: Sequence[Scalar]) -> Scalar:
        """x[indices] at computed positions (dtype ``index``, in range): makes the body a gather."""
        return Scalar(tensor.extract(x.value, [i.value for i in indices]), x.dtype)

    # ---- tensors ----

    def empty(self, t: Type) -> Tensor:
        return Tensor(tensor.EmptyOp(list(t.dims), element_type(signless(t.dtype))).result, t)

    def fill(self, value: float, t: Type) -> Tensor:
        """A tensor with every element `value`."""
        out = self.empty(t)
        op = linalg.FillOp([out.value.type], [constant(value, t.dtype).value], [out.value])
        linalg.fill_builtin_region(op.operation)
        return Tensor(op.results[0], t)

    def generic(
        self,
        inputs: Sequence[tuple[Tensor, Sequence[ir.AffineExpr]]],
        outputs: Sequence[tuple[Tensor, Sequence[ir.AffineExpr]]],
        iterators: str,
        body: Callable[..., Scalar | Sequence[Scalar]],
    ) -> list[Tensor]:
        """A `linalg.generic`.

        `inputs`/`outputs` pair a tensor with one affine index expression a dimension (``b.dim(i)`` arithmetic);
        `iterators` has a ``p`` (parallel) or ``r`` (reduction) for each loop; `body` gets one Scalar an input, then one
        an output (the accumulators), and returns one Scalar an output.
        """
        n = len(iterators)
        places = [[within(i, d) for i, d in zip(e, t.shape, strict=True)] for t, e in [*inputs, *outputs]]
        maps = [ir.AffineMapAttr.get(ir.AffineMap.get(n, 0, e)) for e in places]
        kinds = {"p": "parallel", "r": "reduction"}
        op = linalg.GenericOp(
            [o.value.type for o, _ in outputs],
            [t.value for t, _ in inputs],
            [o.value for o, _ in outputs],
            ir.ArrayAttr.get(maps),
            ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{kinds[c]}>") for c in iterators]),
        )
        operands = [t for t, _ in [*inputs, *outputs]]
        block = op.regions[0].blocks.append(*[element_type(signless(t.dtype)) for t in operands])
        with ir.InsertionPoint(block):
            made = body(*[Scalar(a, t.dtype) for a, t in zip(block.arguments, operands, strict=True)])
            out = [made] if isinstance(made, Scalar) else list(made)
            linalg.YieldOp([s.value for s in out])
        self._mark(op)
        return [Tensor(v, o.type) for v, (o, _) in zip(op.results, outputs, strict=True)]

    @staticmethod
    def dim(i: int) -> ir.AffineExpr:
        return ir.AffineExpr.get_dim(i)

    def elementwise(self, body: Callable[..., Scalar], *xs: Tensor, dtype: str | None = None) -> Tensor:
        """body(x0, x1, ...) over NumPy-broadcast operands; `dtype` of the result defaults to the first operand's."""
        shape = broadcast_shapes(*[x.shape for x in xs])
        out = self.empty(Type(shape, dtype or xs[0].dtype))
        inputs = [(x, self.broadcast_index(x.shape, shape)) for x in xs]
        index = [self.dim(i) for i in range(len(shape))]
        return self.generic(inputs, [(out, index)], "p" * len(shape), lambda *a: body(*a[: len(xs)]))[0]

    def broadcast_index(self, shape: Sequence[int], to: Sequence[int]) -> list[ir.AffineExpr]:
        offset = len(to) - len(shape)
        return [
            self.dim(offset + i) if d == to[offset + i] else ir.AffineExpr.get_constant(0) for i, d in enumerate(shape)
        ]

    def compute(self, t: Type, body: Callable[..., Scalar]) -> Tensor:
        """out[i, j, ...] = body(i, j, ...) with ``index`` Scalars; read other tensors with `load`."""
        out = self.empty(t)
        index = [self.dim(i) for i in range(t.rank)]
        return self.generic([], [(out, index)], "p" * t.rank, lambda *_: body(*[self.index(i) for i in range(t.rank)]))[
            0
        ]

    def reduce(
        self,
        body: Callable[[Scalar, Scalar], Scalar],
        init: float,
        x: Tensor,
        axes: Sequence[int],
        *,
        keepdims: bool = False,
        dtype: str | None = None,
    ) -> Tensor:
        """Fold `body(x, accumulator)` over `axes`, starting from the number `init`."""
        kept = [i for i in range(x.rank) if i not in axes]
        shape = [1 if i in axes else d for i, d in enumerate(x.shape) if keepdims or i not in axes]
        acc = self.fill(init, Type(tuple(shape), dtype or x.dtype))
        zero = ir.AffineExpr.get_constant(0)
        index = [zero if i in axes else self.dim(i) for i in range(x.rank)] if keepdims else [self.dim(i) for i in kept]
        kinds = "".join("r" if i in axes else "p" for i in range(x.rank))
        return self.generic([(x, [self.dim(i) for i in range(x.rank)])], [(acc, index)], kinds, body)[0]

    def contract(self, spec: str, x: Tensor, y: Tensor, *, dtype: str | None = None) -> Tensor:
        """Sum of products in Einstein notation: ``b.contract("bmk,bkn->bmn", x, y)``; letters absent from the result
        are summed.

        Operand dimensions of size 1 broadcast. The accumulator has the result's dtype (`dtype`, default x's).
        """
        ins, out = spec.split("->")
        left, right = ins.split(",")
        letters = out + "".join(dict.fromkeys(c for c in left + right if c not in out))
        size: dict[str, int] = {}
        for names, t in ((left, x), (right, y)):
            for c, d in zip(names, t.shape, strict=True):
                size[c] = d if not d or size.get(c, 1) == 1 else size[c]
        acc_dtype = dtype or x.dtype

        def index(names: str, shape: Sequence[int]) -> list[ir.AffineExpr]:
            zero = ir.AffineExpr.get_constant(0)
            return [self.dim(letters.index(c)) if d == size[c] else zero for c, d in zip(names, shape, strict=True)]

        acc = self.fill(0, Type(tuple(size[c] for c in out), acc_dtype))
        kinds = "".join("p" if c in out else "r" for c in letters)
        return self.generic(
            [(x, index(left, x.shape)), (y, index(right, y.shape))],
            [(acc, index(out, acc.shape))],
            kinds,
            lambda a, c, s: s + self.cast(a, acc_dtype) * self.cast(c, acc_dtype),
        )[0]

    def cast_tensor(self, x: Tensor, dtype: str, saturate: bool = True, round_mode: str = "up") -> Tensor:
        """Elementwise conversion; the tensor itself where only signedness differs."""
        if x.dtype == dtype:
            return x
        if x.dtype in NARROW or dtype in NARROW:
            return self.elementwise(lambda v: self.cast(v, dtype, saturate, round_mode), x, dtype=dtype)
        if signless(x.dtype) == signless(dtype):
            return Tensor(x.value, x.type.with_dtype(dtype))
        return self.elementwise(lambda v: self.cast(v, dtype), x, dtype=dtype)

    def transpose(self, x: Tensor, permutation: Sequence[int]) -> Tensor:
        """out[i0, i1, ...] = x with dimension permutation[j] of x as dimension j of the result."""
        if list(permutation) == list(range(x.rank)):
            return x
        out = self.empty(x.type.with_shape([x.shape[p] for p in permutation]))
        source: list[ir.AffineExpr] = [None] * x.rank
        for j, p in enumerate(permutation):
            source[p] = self.dim(j)
        return self.generic([(x, source)], [(out, [self.dim(i) for i in range(x.rank)])], "p" * x.rank, lambda v, _: v)[
            0
        ]

    def broadcast(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """x repeated along its size-1 and missing leading dimensions up to `shape`."""
        if tuple(shape) == x.shape:
            return x
        out = self.empty(x.type.with_shape(tuple(shape)))
        index = [self.dim(i) for i in range(len(shape))]
        return self.generic(
            [(x, self.broadcast_index(x.shape, shape))], [(out, index)], "p" * len(shape), lambda v, _: v
        )[0]

    def slice(self, x: Tensor, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Tensor:
        """out[i...] = x[starts + steps * i ...]; steps may be negative, starts must be in range."""
        t = x.type.with_shape(tuple(sizes))
        return self.compute(
            t, lambda *i: self.load(x, [v * step + s for v, s, step in zip(i, starts, steps, strict=True)])
        )

    def pad(self, x: Tensor, low: Sequence[int], high: Sequence[int], value: float = 0) -> Tensor:
        """x with `low`/`high` elements of the number `value` added before/after each dimension (none negative)."""
        if not any(low) and not any(high):
            return x
        shape = tuple(a + d + c for a, d, c in zip(low, x.shape, high, strict=True))
        t = x.type.with_shape(shape)
        fill = constant(value, x.dtype)  # outside the region: one scalar, visible to every reader
        op = tensor.PadOp(t.mlir(signless_ints=True), x.value, [], [], list(low), list(high))
        block = op.regions[0].blocks.append(*[ir.IndexType.get()] * x.rank)
        with ir.InsertionPoint(block):
            tensor.YieldOp(fill.value)
        return Tensor(self._mark(op).result, t)

    def concat(self, xs: Sequence[Tensor], axis: int) -> Tensor:
        """Tensors joined along `axis` (0 <= axis < rank)."""
        if len(xs) == 1:
            return xs[0]
        shape = list(xs[0].shape)
        shape[axis] = sum(x.shape[axis] for x in xs)
        t = xs[0].type.with_shape(shape)
        op = tensor.ConcatOp(t.mlir(signless_ints=True), axis, [x.value for x in xs])
        return Tensor(self._mark(op).result, t)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Same elements in row-major order under a new shape: `tensor.collapse_shape` and `tensor.expand_shape` (free
        views)."""
        shape = tuple(shape)
        if shape == x.shape:
            return x
        value = x.value
        if too_large(x.type.size) and shape:
            return self._reshape_between(x, shape)
        if x.rank > 1:  # to one dimension first; canonicalization merges the pair where it can
            flat = Type((x.type.size,), x.dtype)
            groups = [list(range(x.rank))]
            value = tensor.CollapseShapeOp(flat.mlir(signless_ints=True), value, groups).result
        if len(shape) == 1 and x.rank >= 1:
            return Tensor(value, x.type.with_shape(shape))
        t = x.type.with_shape(shape)
        if len(shape) == 0:
            return Tensor(tensor.CollapseShapeOp(t.mlir(signless_ints=True), value, []).result, t)
        groups = [list(range(len(shape)))] if x.rank else []
        return Tensor(tensor.ExpandShapeOp(t.mlir(signless_ints=True), value, groups, [], list(shape)).result, t)

    def _reshape_between(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """`reshape` for so many open dimensions that their product is no number of a type: the equal ones at both ends
        stay, those between become one."""
        first = next((i for i, (a, b) in enumerate(zip(x.shape, shape, strict=False)) if a != b), 0)
        room = min(x.rank, len(shape)) - first - 1
        pairs = zip(x.shape[::-1], shape[::-1], strict=False)
        last = min(next((i for i, (a, b) in enumerate(pairs) if a != b), room), room)
        between, value = x.shape[first : x.rank - last], x.value

        def groups(rank: int) -> list[list[int]]:
            middle = list(range(first, rank - last))
            return [*([i] for i in range(first)), middle, *([i] for i in range(rank - last, rank))]

        if len(between) > 1:
            flat = x.type.with_shape((*shape[:first], prod(between), *shape[len(shape) - last :]))
            value = tensor.CollapseShapeOp(flat.mlir(signless_ints=True), value, groups(x.rank)).result
        t = x.type.with_shape(shape)
        if len(shape) > first + 1 + last:
            made = tensor.ExpandShapeOp(t.mlir(signless_ints=True), value, groups(len(shape)), [], list(shape))
            value = made.result
        return Tensor(value, t)


def width(dtype: str) -> int:
    """Bits of a dtype."""
    return int(signless(dtype).lstrip("bfi"))
