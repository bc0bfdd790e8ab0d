"""Quantized numbers: the operators `quantized_decomposed` of PyTorch's quantized graphs (pt2e).

A quantization of a whole tensor by known numbers is `quantize_linear`, and every dequantization whose zero points
fit is `dequantize_linear`: the passes on quantized models know these. Others are the arithmetic that PyTorch does, and
what is quantized of constants PyTorch itself computes, when the program is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import torch

from ...graph.rewrite import defined_by
from ...ops.quant import limits
from ...support.sizes import is_open
from . import arrays
from .node import FxNode, FxTensor, Operand
from .registry import F, aten

PREFIX = "quantized_decomposed."
#: dtypes that numbers are quantized to here
STORED = ("i8", "ui8", "i16", "ui16", "i32")
BYTES = ("i8", "ui8")


def decomposed(*names: str) -> Callable[[F], F]:
    """Register an import function for operators of `quantized_decomposed`."""
    return aten(*(PREFIX + name for name in names))


def known(n: FxNode, x: Operand | np.ndarray) -> np.ndarray | None:
    """The array of a number, of a constant, or of one number that is repeated; None for what is computed."""
    if not isinstance(x, FxTensor):
        return np.asarray(x)
    value = x.ssa
    op = defined_by(value, "expand")
    array = n.make.graph.constant_value(value if op is None else op.operands[0])
    return array if array is None or op is None or is_open(*x.shape) else np.array(np.broadcast_to(array, x.shape))


def by_pytorch(n: FxNode, arguments: Sequence[Any]) -> FxTensor | None:
    """What the operator itself gives if all tensors among its arguments are known, else None."""
    given = [known(n, a) if isinstance(a, FxTensor) else a for a in arguments]
    if any(g is None and a is not None for g, a in zip(given, arguments, strict=True)):
        return None
    with torch.no_grad():
        made = n.node.target(*[arrays.tensor(np.array(g)) if isinstance(g, np.ndarray) else g for g in given])  # type: ignore[operator]
    return n.constant(arrays.view(made))


def folded(f: Callable[..., FxTensor]) -> Callable[..., FxTensor]:
    """Decorator: constants are quantized when the program is imported, by PyTorch."""

    @wraps(f)
    def imported(n: FxNode, *arguments: object, **named: object) -> FxTensor:
        made = None if named else by_pytorch(n, arguments)
        return f(n, *arguments, **named) if made is None else made

    return imported


def number(n: FxNode, x: Operand | np.ndarray, what: str) -> Any:
    """A number, or a constant of one element as one; NotImported if it is computed."""
    array = known(n, x)
    n.need(array is not None and array.size == 1, f"whose {what} is computed")
    assert array is not None
    return array.reshape(-1)[0].item()


# ---- one scale for a tensor ----------------------------------------------------------------------------------------


def check_range(n: FxNode, low: int, high: int) -> None:
    n.need(n.dtype in STORED, f"to {n.dtype}")
    least, most = limits(n.dtype)
    n.need(least <= low <= high <= most, f"to {low} ... {high}, which {n.dtype} does not hold")


def stored(n: FxNode, values: FxTensor, low: int, high: int) -> FxTensor:
    """Whole floats as the dtype of the result, limited to low ... high."""
    wide = n.cast(values, "f64") if n.dtype == "i32" else values
    return n.cast(n("clip", wide, low=float(low), high=float(high)), n.dtype)


@decomposed("quantize_per_tensor", "quantize_per_tensor.tensor", "quantize_per_tensor.tensor2")
@folded
def quantize_per_tensor(
    n: FxNode, x: FxTensor, scale: Operand, zero: Operand, low: Any, high: Any, dtype: torch.dtype
) -> FxTensor:
    low, high = (number(n, v, "range") for v in (low, high))
    check_range(n, low, high)
    x = n.cast(x, "f32")
    by, at = known(n, scale), known(n, zero)
    if by is not None and at is not None and n.dtype in BYTES:
        made = _by_known(n, x, number(n, by, "scale"), number(n, at, "zero point"), low, high)
        if made is not None:
            return made
    one = n.reshape(n.tensor(scale, "f64"), ())
    inverse = n.cast(n("div", n.tensor(1.0, "f64"), one), "f32")
    rounded = n("round", n("mul", x, inverse))
    return stored(n, n("add", rounded, n.reshape(n.tensor(zero, "f32"), ())), low, high)


def _by_known(n: FxNode, x: FxTensor, scale: float, zero: int, low: int, high: int) -> FxTensor | None:
    """By the operator, behind a clip where not all numbers of the dtype are meant; None where it has no meaning.

    PyTorch multiplies by the inverse of the scale where the operator divides: numbers that lie between two codes may be
    rounded to the other one.
    """
    least, most = limits(n.dtype)
    step = np.float32(scale)
    if not (least <= zero <= most and np.isfinite(step) and step > 0):
        return None
    if (low, high) != (least, most):
        x = n("clip", x, low=(low - zero) * float(step), high=(high - zero) * float(step))
    return n("quantize_linear", x, n.constant(step), n.constant(zero, n.dtype), to=n.dtype)


@decomposed("dequantize_per_tensor", "dequantize_per_tensor.tensor", "dequantize_per_tensor.tensor2")
def dequantize_per_tensor(n: FxNode, x: FxTensor, scale: Operand, zero: Operand, *_: object, **__: object) -> FxTensor:
    scale = n.reshape(n.tensor(scale, "f32"), ())
    array = known(n, zero)
    zero = n.reshape(n.tensor(zero), ()) if array is None else n.constant(array.reshape(()))
    return _dequantized(n, x, scale, zero, None, axis=0)


def _dequantized(
    n: FxNode,
    x: FxTensor,
    scale: FxTensor,
    zero: FxTensor | None,
    along: Callable[[FxTensor], FxTensor] | None,
    **attributes: object,
) -> FxTensor:
    """By the operator if the zero points are certain to fit the dtype of x; else PyTorch's arithmetic, with
    parameters that `along` brings to a shape which broadcasts to x."""
    fits = None if zero is None else _fitting(n, x, zero)
    if scale.dtype == "f32" and (zero is None or fits is not None):
        return n("dequantize_linear", x, scale, fits, **attributes)
    if along is not None:
        scale, zero = along(scale), None if zero is None else along(zero)
    return _times(n, x, scale, zero)


def _times(n: FxNode, x: FxTensor, scale: FxTensor, zero: FxTensor | None) -> FxTensor:
    """(x - zero) * scale, in f64 where one of them is that."""
    kind = "f64" if "f64" in (scale.dtype, "" if zero is None else zero.dtype) else "f32"
    centred = n.cast(x, kind) if zero is None else n("sub", n.cast(x, kind), n.cast(zero, kind))
    return n("mul", centred, n.cast(scale, kind))


def _fitting(n: FxNode, x: FxTensor, zero: FxTensor) -> FxTensor | None:
    """Zero points in the dtype of x; None if they might not fit."""
    array = known(n, zero)
    if array is None:
        return n.cast(zero, x.dtype) if _was_chosen(n.node.args[2], x.dtype) else None
    low, high = limits(x.dtype)
    whole = array.dtype.kind in "iu" and (not array.size or (array.min() >= low and array.max() <= high))
    return n.constant(array, x.dtype) if whole else None


def _was_chosen(zero: object, dtype: str) -> bool:
    """Whether a zero point comes from an operator that chooses it within the range of this dtype."""
    source = zero.args[0] if isinstance(zero, torch.fx.Node) and zero.args else None
    if not isinstance(source, torch.fx.Node) or not str(source.target).startswith(PREFIX + "choose_qparams."):
        return False
    low, high = source.args[1:3]
    least, most = limits(dtype)
    return bool(least <= low and high <= most)  # type: ignore[operator]


# ---- one scale for a channel, a group or a token ---------------------------------------------------------------------


def _quantized(n: FxNode, x: FxTensor, scale: FxTensor, zero: FxTensor, low: int, high: int, after: bool) -> FxTensor:
    """PyTorch's arithmetic with parameters that broadcast to x; `after`: zero points are added to what was rounded."""
    check_range(n, low, high)
    kind = "f64" if "f64" in (x.dtype, scale.dtype) else "f32"
    inverse = n("div", n.tensor(1.0, scale.dtype), scale)
    made, zero = n("mul", n.cast(x, kind), n.cast(inverse, kind)), n.cast(zero, kind)
    made = n("add", n("round", made), zero) if after else n("round", n("add", made, zero))
    return stored(n, made, low, high)


def _channel(n: FxNode, x: FxTensor, axis: int) -> Callable[[FxTensor], FxTensor]:
    """From a vector to one along this dimension of x."""
    return lambda v: n.reshape(v, [v.shape[0] if i == axis else 1 for i in range(x.rank)])


@decomposed("quantize_per_channel")
@folded
def quantize_per_channel(
    n: FxNode, x: FxTensor, scales: FxTensor, zeros: FxTensor, axis: int, low: int, high: int, dtype: torch.dtype
) -> FxTensor:
    along = _channel(n, x, axis % x.rank)
    return _quantized(n, n.cast(x, "f32"), along(scales), along(zeros), low, high, after=True)


@decomposed("dequantize_per_channel")
def dequantize_per_channel(
    n: FxNode, x: FxTensor, scales: FxTensor, zeros: FxTensor | None, axis: int, *_: object, **__: object
) -> FxTensor:
    axis = axis % x.rank
    return _dequantized(n, x, scales, zeros, _channel(n, x, axis), axis=axis)


def _group(n: FxNode, x: FxTensor, scales: FxTensor, size: int) -> int:
    """How many neighbours of a row have one scale; one scale a row may be given with larger groups."""
    size = x.shape[-1] if size > x.shape[-1] and scales.shape[-1] == 1 else size
    n.need(x.rank == 2 and size > 1 and x.shape[1] % size == 0, f"of {x.type} in groups of {size}")
    return size


@decomposed("quantize_per_channel_group")
@folded
def quantize_per_channel_group(
    n: FxNode, x: FxTensor, scales: FxTensor, zeros: FxTensor, low: int, high: int, dtype: torch.dtype, group: int = 128
) -> FxTensor:
    rows = n.reshape(x, (-1, _group(n, x, scales, group)))
    made = _quantized(n, rows, n.reshape(scales, (-1, 1)), n.reshape(zeros, (-1, 1)), low, high, after=False)
    return n.reshape(made, x.shape)


@decomposed("dequantize_per_channel_group")
def dequantize_per_channel_group(n: FxNode, x: FxTensor, scales: FxTensor, zeros: FxTensor | None, low: int, high: int,
                                 dtype: torch.dtype, group: int = 128, output_dtype: torch.dtype = torch.float32
                                 ) -> FxTensor:  # fmt: skip
    block = _group(n, x, scales, group)
    form = (x.shape[0], x.shape[1] // block)
    scales, zeros = n.reshape(scales, form), None if zeros is None else n.reshape(zeros, form)

    def along(v: FxTensor) -> FxTensor:
        wide = n.expand(n.unsqueeze(v, 2), (*form, block))
        return n.reshape(wide, x.shape)

    return _dequantized(n, x, scales, zeros, along, axis=1, block=block)


def _token(n: FxNode, x: FxTensor) -> Callable[[FxTensor], FxTensor]:
    return lambda v: n.reshape(v, (*x.shape[:-1], 1))


@decomposed("quantize_per_token")
@folded
def quantize_per_token(
    n: FxNode, x: FxTensor, scales: FxTensor, zeros: FxTensor, low: int, high: int, dtype: torch.dtype
) -> FxTensor:
    along = _token(n, x)
    return _quantized(n, x, along(scales), along(zeros), low, high, after=False)


@decomposed("dequantize_per_token")
def dequantize_per_token(
    n: FxNode, x: FxTensor, scales: FxTensor, zeros: FxTensor, *_: object, **__: object
) -> FxTensor:
    along = _token(n, x)
    return _times(n, x, along(scales), along(zeros))


# ---- scales of what is quantized when the program runs ---------------------------------------------------------------


def _ends(n: FxNode, x: FxTensor) -> tuple[FxTensor, FxTensor]:
    """The smallest and the largest element, or 0 if that is beyond."""
    axes = tuple(range(x.rank))
    least, most = (n(name, x, axes=axes, keepdims=False) if axes else x for name in ("reduce_min", "reduce_max"))
    return n("min", least, 0.0), n("max", most, 0.0)


@decomposed("choose_qparams.tensor", "choose_qparams_symmetric.tensor")
def choose_qparams(n: FxNode, x: FxTensor, low: int, high: int, eps: float, dtype: torch.dtype) -> list[FxTensor]:
    n.need(x.dtype == "f32", f"of {x.dtype}")
    least, most = _ends(n, x)
    if "symmetric" in n.overload:
        scale = n("div", n("max", n("neg", least), most), (high - low) / 2)
        scale = n("max", scale, eps)
        zero = n.constant(np.int64(128 if dtype == torch.uint8 else 0))
    else:
        scale = n("max", n("div", n("sub", most, least), float(high - low)), eps)
        zero = n("sub", n.tensor(float(low), "f32"), n("round", n("div", least, scale)))
        zero = n("clip", zero, low=float(low), high=float(high))
    return [n.reshape(n.cast(scale, "f64"), (1,)), n.reshape(n.cast(zero, "i64"), (1,))]


@decomposed("choose_qparams_per_token")
def choose_qparams_per_token(n: FxNode, x: FxTensor, dtype: torch.dtype) -> list[FxTensor]:
    n.need(dtype == torch.int8, f"to {dtype}")
    scale = n("reduce_max", n("abs", x), axes=(x.rank - 1,), keepdims=True)
    scale = n.cast(scale, "f32") if x.dtype == "f16" else scale
    scale = n("div", n("clip", scale, low=1e-5), 127.0)
    return [scale, n.full(scale.shape, 0, scale.dtype)]


@decomposed("choose_qparams_per_token_asymmetric", "_choose_qparams_per_token_asymmetric_impl")
def choose_qparams_per_token_asymmetric(n: FxNode, x: FxTensor, dtype: torch.dtype) -> list[FxTensor]:
    low, high = limits("i8")  # whatever the dtype
    n.need(x.dtype == "f32", f"of {x.dtype}")
    ends = {"axes": (x.rank - 1,), "keepdims": True}
    least, most = n("min", n("reduce_min", x, **ends), 0.0), n("max", n("reduce_max", x, **ends), 0.0)
    scale = n("div", n("sub", most, least), float(high - low))
    scale = n("clip", scale, low=float(np.finfo(np.float32).eps))
    below, above = n("div", least, scale), n("div", most, scale)
    errors = n("add", n("add", below, float(low)), n("add", above, float(high)))
    bottom, top = (n("sub", n.tensor(float(v), "f32"), below if v == low else above) for v in (low, high))
    zero = n("where", n("greater", errors, 0.0), bottom, top)
    zero = n("round", n("clip", zero, low=float(low), high=float(high)))
    return [n.cast(scale, "f64"), n.cast(zero, "i64")]


@decomposed("convert_element_type.no_fuse")
def convert(n: FxNode, x: FxTensor, dtype: torch.dtype) -> FxTensor:
    return n.cast(x, n.dtype)
