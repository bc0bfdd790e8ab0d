"""Complex tensors, which are pairs of numbers in one dimension more: arithmetic, parts, moving them about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from . import elementwise, shape
from .linear import explicit
from .node import COMPLEX, Axes, FxNode, FxTensor, is_complex
from .registry import aten

Pair = tuple[FxTensor, FxTensor]


#: a pair whose second part is None where it is 0
Half = tuple[FxTensor | None, FxTensor | None]


def parts(n: FxNode, position: int, x: FxTensor | complex, dtype: str | None = None) -> Pair:
    """Real and imaginary part of an argument of the node, in the dtype given or that of its result."""
    dtype = dtype or n.dtype
    if isinstance(x, FxTensor):
        given = n.node.args[position]
        if isinstance(given, torch.fx.Node) and is_complex(given.meta.get("val")):
            return halves(n, n.cast(x, dtype))
        return n.cast(x, dtype), n.tensor(0, dtype)
    number = complex(x)
    return n.tensor(number.real, dtype), n.tensor(number.imag, dtype)


def halves(n: FxNode, x: FxTensor) -> Pair:
    last = x.rank - 1
    re, im = (n.reshape(n.slice(x, last, i, 1), x.shape[:-1]) for i in range(2))
    return re, im


def joined(n: FxNode, re: FxTensor, im: FxTensor) -> FxTensor:
    """A complex tensor of the shape of the node's result."""
    dims = n.shape[:-1]
    return n.concat([n.unsqueeze(n.expand(n.cast(v, n.dtype), dims), len(dims)) for v in (re, im)], len(dims))


# ---- made of real numbers, and taken apart -------------------------------------------------------------------------


@aten("complex.complex")
def pair(n: FxNode, re: FxTensor, im: FxTensor) -> FxTensor:
    return joined(n, re, im)


@aten("complex.polar")
def polar(n: FxNode, radius: FxTensor, angle: FxTensor) -> FxTensor:
    return joined(n, n("mul", radius, n("cos", angle)), n("mul", radius, n("sin", angle)))


@aten("complex.view_as_complex", "complex.view_as_real")
def view_as(n: FxNode, x: FxTensor) -> FxTensor:
    return x


@aten("complex.real", "complex.imag")
def part(n: FxNode, x: FxTensor) -> FxTensor:
    return halves(n, x)[n.overload == "aten.imag"]


@aten("complex.abs", "complex.angle")
def magnitude(n: FxNode, x: FxTensor) -> FxTensor:
    re, im = halves(n, x)
    return elementwise.hypot(n, re, im) if n.overload == "aten.abs" else elementwise.atan2(n, im, re)


@aten("complex._to_copy", "complex.prims.convert_element_type")
def convert(n: FxNode, x: FxTensor, *_: object, **__: object) -> FxTensor:
    given, result = n.node.args[0], n.node.meta["val"]
    if not isinstance(given, torch.fx.Node) or not is_complex(given.meta["val"]):
        return joined(n, n.cast(x, n.dtype), n.tensor(0, n.dtype))
    if result.dtype in COMPLEX:
        return n.cast(x, n.dtype)
    re, im = halves(n, x)
    if result.dtype == torch.bool:
        return n("or", n.cast(re, "i1"), n.cast(im, "i1"))
    return n.cast(re, n.dtype)


# ---- arithmetic ----------------------------------------------------------------------------------------------------


@aten("complex.add.Tensor", "complex.sub.Tensor", "complex.add.Scalar", "complex.sub.Scalar")
def add(n: FxNode, x: FxTensor | complex, y: FxTensor | complex, alpha: complex = 1) -> FxTensor:
    (a, b), (c, d) = parts(n, 0, x), parts(n, 1, y)
    if alpha != 1:
        c, d = product((c, d), n, alpha)
    kind = "add" if n.overload.startswith("aten.add") else "sub"
    return joined(n, n(kind, a, c), n(kind, b, d))


def product(x: Pair, n: FxNode, factor: complex) -> Pair:
    number = complex(factor)
    return times(n, x, (n.tensor(number.real, n.dtype), n.tensor(number.imag, n.dtype)))


def times(n: FxNode, x: Pair, y: Pair) -> Pair:
    (a, b), (c, d) = x, y
    return n("sub", n("mul", a, c), n("mul", b, d)), n("add", n("mul", a, d), n("mul", b, c))


@aten("complex.mul.Tensor", "complex.mul.Scalar")
def mul(n: FxNode, x: FxTensor | complex, y: FxTensor | complex) -> FxTensor:
    return joined(n, *times(n, parts(n, 0, x), parts(n, 1, y)))


@aten("complex.div.Tensor", "complex.div.Scalar")
def div(n: FxNode, x: FxTensor, y: FxTensor | complex) -> FxTensor:
    """Divided by the larger part of the divisor first, so that nothing overflows on the way (Smith)."""
    if not isinstance(y, complex) and not isinstance(y, FxTensor):
        return n("div", n.cast(x, n.dtype), n.tensor(y, n.dtype))
    (a, b), (c, d) = parts(n, 0, x), parts(n, 1, y)
    large = n("greater_equal", n("abs", c), n("abs", d))
    high, low = n("where", large, c, d), n("where", large, d, c)
    ratio = n("div", low, high)
    below = n("add", high, n("mul", low, ratio))
    re = n("where", large, n("add", a, n("mul", b, ratio)), n("add", n("mul", a, ratio), b))
    im = n("where", large, n("sub", b, n("mul", a, ratio)), n("sub", n("mul", b, ratio), a))
    return joined(n, n("div", re, below), n("div", im, below))


@aten("complex.neg")
def neg(n: FxNode, x: FxTensor) -> FxTensor:
    return n("neg", x)


@aten("complex._conj", "complex._conj_physical", "complex.conj_physical", "complex._neg_view")
def conjugate(n: FxNode, x: FxTensor) -> FxTensor:
    if n.overload == "aten._neg_view":
        return n("neg", x)
    re, im = halves(n, x)
    return joined(n, re, n("neg", im))


@aten("complex.resolve_conj", "complex.resolve_neg", "complex.clone", "complex.alias", "complex.detach",
      "complex.lift_fresh_copy", "complex.contiguous")  # fmt: skip
def same(n: FxNode, x: FxTensor, **_: object) -> FxTensor:
    return x


@aten("complex.sigmoid", "complex.exp", "complex.silu")
def function(n: FxNode, x: FxTensor) -> FxTensor:
    """e^z, 1 / (1 + e^-z), z / (1 + e^-z)."""
    re, im = halves(n, x)
    if n.overload == "aten.exp":
        size = n("exp", re)
        return joined(n, n("mul", size, n("cos", im)), n("mul", size, n("sin", im)))
    size = n("exp", n("neg", re))
    c, d = n("add", n("mul", size, n("cos", im)), 1.0), n("neg", n("mul", size, n("sin", im)))
    below = n("add", n("mul", c, c), n("mul", d, d))
    inverse = n("div", c, below), n("neg", n("div", d, below))
    return joined(n, *(inverse if n.overload == "aten.sigmoid" else times(n, (re, im), inverse)))


@aten("complex.eq.Tensor", "complex.ne.Tensor", "complex.eq.Scalar", "complex.ne.Scalar")
def compare(n: FxNode, x: FxTensor | complex, y: FxTensor | complex) -> FxTensor:
    dtype = next(v.dtype for v in (x, y) if isinstance(v, FxTensor))
    (a, b), (c, d) = parts(n, 0, x, dtype), parts(n, 1, y, dtype)
    same_parts = n("and", n("equal", a, c), n("equal", b, d))
    return n("not", same_parts) if ".ne." in n.overload else same_parts


@aten("complex.sum.dim_IntList", "complex.sum", "complex.mean", "complex.mean.dim")
def total(n: FxNode, x: FxTensor, dim: Axes = None, keepdim: bool = False, **_: object) -> FxTensor:
    rank = x.rank - 1
    given = [dim] if isinstance(dim, int) else list(dim or range(rank))
    axes = tuple(sorted(a % max(rank, 1) for a in given)) if rank else ()
    name = "reduce_mean" if "mean" in n.overload else "reduce_sum"
    return n(name, n.cast(x, n.dtype), axes=axes, keepdims=keepdim) if axes else x


@aten("complex.matmul", "complex.mm", "complex.bmm")
def matmul(n: FxNode, x: FxTensor, y: FxTensor) -> FxTensor:
    (a, b), (c, d) = parts(n, 0, x), parts(n, 1, y)
    if not math.prod(n.shape) or not math.prod(x.shape):
        return n.full(n.shape, 0, n.dtype)
    re = n("sub", n("matmul", a, c), n("matmul", b, d))
    return joined(n, re, n("add", n("matmul", a, d), n("matmul", b, c)))


@aten("complex.einsum")
def einsum(n: FxNode, equation: str, tensors: Sequence[FxTensor], *, path: object = None) -> FxTensor:
    """One operand after the other is multiplied to the sum of products so far; letters that others need stay."""
    n.need(not any(0 in t.shape for t in tensors), "of empty tensors")
    given: Any = n.node.args[1]
    pairs = [
        halves(n, n.cast(t, n.dtype)) if is_complex(g.meta["val"]) else (n.cast(t, n.dtype), None)
        for t, g in zip(tensors, given, strict=True)
    ]
    names, _, out = explicit(n, equation.replace(" ", ""), [re.rank for re, _ in pairs]).partition("->")
    left, *rest = names.split(",")
    (re, im), todo = pairs[0], list(zip(rest, pairs[1:], strict=True))
    made: list[Any] = []
    if not todo:
        made = [v if v is None else n("einsum", v, equation=f"{left}->{out}") for v in (re, im)]
    for i, (right, (c, d)) in enumerate(todo):
        wanted = set("".join([out, *(name for name, _ in todo[i + 1 :])]))
        kept = out if i == len(todo) - 1 else "".join(dict.fromkeys(k for k in left + right if k in wanted))
        made = _products(n, f"{left},{right}->{kept}", (re, im), (c, d))
        left, (re, im) = kept, made
    return joined(n, made[0], n.tensor(0, n.dtype) if made[1] is None else made[1])


def _products(n: FxNode, equation: str, x: Half, y: Half) -> list[Any]:
    """Real and imaginary part of an einsum of two; None is an imaginary part that is 0."""

    def product(kind: str, p: Half, q: Half) -> FxTensor | None:
        found = [n("einsum", *v, equation=equation) for v in (p, q) if None not in v]
        if len(found) == 2:
            return n(kind, *found)
        return None if not found else n("neg", found[0]) if kind == "sub" and None in p else found[0]

    (a, b), (c, d) = x, y
    return [product("sub", (a, c), (b, d)), product("add", (a, d), (b, c))]


# ---- moving --------------------------------------------------------------------------------------------------------


def front(x: FxTensor, dim: int) -> int:
    """A dimension of a complex tensor, counted from the front."""
    return dim % max(x.rank - 1, 1)


@aten("complex.view", "complex.reshape", "complex._unsafe_view", "complex.squeeze.dims", "complex.squeeze.dim",
      "complex.squeeze", "complex.unsqueeze", "complex.flatten.using_ints", "complex.view_copy")  # fmt: skip
def reshape(n: FxNode, x: FxTensor, *_: object) -> FxTensor:
    return n.reshape(x, n.shape)


@aten("complex.permute")
def permute(n: FxNode, x: FxTensor, dims: Sequence[int]) -> FxTensor:
    return n.transpose(x, [*(front(x, d) for d in dims), x.rank - 1])


@aten("complex.transpose.int", "complex.t")
def transpose(n: FxNode, x: FxTensor, first: int = 0, second: int = 1) -> FxTensor:
    order = list(range(x.rank))
    a, b = (front(x, d) for d in (first, second))
    if x.rank > 2:
        order[a], order[b] = b, a
    return n.transpose(x, order)


@aten("complex.expand")
def expand(n: FxNode, x: FxTensor, size: Sequence[int], **_: object) -> FxTensor:
    return n.expand(n.reshape(x, (1,) * (len(n.shape) - x.rank) + x.shape), n.shape)


@aten("complex.slice.Tensor")
def slice_(n: FxNode, x: FxTensor, dim: int = 0, *limits: Any) -> FxTensor:
    return shape.slice_(n, x, front(x, dim), *limits)


@aten("complex.select.int")
def select(n: FxNode, x: FxTensor, dim: int, index: int) -> FxTensor:
    return shape.select(n, x, front(x, dim), index)


@aten("complex.cat")
def cat(n: FxNode, xs: Sequence[FxTensor], dim: int = 0) -> FxTensor:
    kept = [n.cast(x, n.dtype) for x in xs if x.shape != (0, 2)]
    return n.concat(kept, dim % (len(n.shape) - 1)) if kept else n.full(n.shape, 0, n.dtype)


@aten("complex.flip")
def flip(n: FxNode, x: FxTensor, dims: Sequence[int]) -> FxTensor:
    return shape.flip(n, x, [front(x, d) for d in dims])


@aten("complex.constant_pad_nd")
def pad(n: FxNode, x: FxTensor, pad: Sequence[int], value: float = 0) -> FxTensor:
    n.need(value == 0, "with another number than 0")
    return shape.constant_pad(n, x, [0, 0, *pad], 0)


@aten("complex.zeros", "complex.zeros_like", "complex.empty.memory_format", "complex.new_zeros",
      "complex.full")  # fmt: skip
def constant(n: FxNode, *arguments: Any, **_: object) -> FxTensor:
    value = arguments[1] if n.overload == "aten.full" else 0
    number = complex(value)
    return joined(n, n.tensor(number.real, n.dtype), n.tensor(number.imag, n.dtype))
