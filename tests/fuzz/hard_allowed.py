"""Differences on hard numbers that are allowed, each with its reason, as docs/semantics.md names them.

A reason holds for single numbers: a function says of which results, by the inputs and by what came out. All other
results of the same operator are compared like those of any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

#: of chains on a target: what its name begins with, a pattern of the shortened chain, and the reason
CHAINS: tuple[tuple[str, str, str], ...] = (
    ("vulkan", r"(Reciprocal|Div)\(.*Reciprocal\(", "Mesa's driver takes 1 / (1 / x) for x; the language allows it"),
)


def reason_of(target: str, text: str) -> str:
    """Why a chain may give other numbers on a target, "" if it may not.

    >>> reason_of("cpu", "Reciprocal(Reciprocal(x))"), bool(reason_of("vulkan", "Reciprocal(Reciprocal(x))"))
    ('', True)
    """
    return next((why for name, form, why in CHAINS if target.startswith(name) and re.search(form, text)), "")


@dataclass(frozen=True)
class Seen:
    """One output of an operator: its inputs (None: not given) and attributes, what came out and what should have.

    `run` gives the outputs of the reference for other inputs.
    """

    inputs: Sequence[Any]
    attributes: dict[str, Any]
    output: int
    got: np.ndarray
    wants: Sequence[np.ndarray]
    run: Callable[[Sequence[Any]], list] = field(default=lambda inputs: [])

    def input(self, i: int) -> Any:
        """An input in f64, None if it is not given."""
        x = self.inputs[i] if i < len(self.inputs) else None
        return x if x is None or x.dtype == bool else x.astype(np.float64)

    @property
    def most(self) -> float:
        """The largest number of the first input's type."""
        return float(ml_dtypes.finfo(self.inputs[0].dtype).max)

    def special(self) -> np.ndarray:
        """Where the result, or what it should be, is infinite or NaN."""
        return ~np.all([np.isfinite(v.astype(np.float64)) for v in (self.got, *self.wants)], axis=0)


#: why a number may differ, and which numbers of an output do
Reason = tuple[str, Callable[[Seen], Any]]


def excused(reasons: Sequence[Reason], seen: Seen) -> tuple[np.ndarray, str]:
    """The numbers of an output that may differ, and the reason of those.

    >>> x = np.array([np.nan, 1], np.float32)
    >>> seen = Seen([x], {}, 0, x, [x])
    >>> excused([("NaN has no place", lambda s: np.isnan(s.input(0)))], seen)
    (array([ True, False]), 'NaN has no place')
    """
    found, why = np.zeros(seen.got.shape, bool), []
    with np.errstate(all="ignore"):
        for text, holds in reasons:
            here = np.broadcast_to(holds(seen), seen.got.shape)
            found, why = found | here, why + [text] * bool(here.any())
    return found, "; ".join(why)


# ---- attention ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """An attention's rows of scores: [B, H, Sq, Sk] what hides a key, the score, the sum of its terms' magnitudes, and
    whether the values of a key are all finite; [B, H, Sq] made from them is `rows`, laid out as the output by `of`."""

    hidden: np.ndarray
    score: np.ndarray
    size: np.ndarray
    finite: np.ndarray
    flat: bool
    seen: Seen

    def of(self, rows: np.ndarray) -> np.ndarray:
        if self.seen.output in (1, 2):  # keys and values with those before
            return np.zeros((), bool)
        if not self.flat:
            return rows.reshape(*self.seen.got.shape[:-1], 1)
        return np.repeat(rows.transpose(0, 2, 1), self.seen.got.shape[2] // rows.shape[1], axis=2)


def rows_of(s: Seen) -> Rows:
    q, k, v, mask, past_k, past_v, valid = (s.input(i) for i in range(7))
    flat = q.ndim == 3 and "q_num_heads" in s.attributes
    if flat:
        heads = s.attributes["q_num_heads"], *[s.attributes["kv_num_heads"]] * 2
        q, k, v = (t.reshape(*t.shape[:2], h, -1).transpose(0, 2, 1, 3) for t, h in zip((q, k, v), heads, strict=True))
    q, k, v = (t[(None,) * (4 - t.ndim)] for t in (q, k, v))
    if past_k is not None:
        k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    k, v = (np.repeat(t, q.shape[1] // t.shape[1], 1) for t in (k, v))
    scale, kt = s.attributes.get("scale") or q.shape[3] ** -0.5, k.swapaxes(2, 3)
    tame = [np.where(np.isfinite(t), abs(t), 0) for t in (q, kt)]
    row, key = np.indices((q.shape[2], k.shape[2]))
    first = np.zeros((1, 1, 1, 1)) if past_k is None else np.full((1, 1, 1, 1), past_k.shape[2])
    hidden = np.zeros((*q.shape[:3], k.shape[2]), bool)
    if valid is not None:
        first = valid.reshape(-1, 1, 1, 1) - q.shape[2]
        hidden |= key >= valid.reshape(-1, 1, 1, 1)
    if mask is not None:
        unseen = ~mask if mask.dtype == bool else mask == -np.inf
        missing = max(0, k.shape[2] - mask.shape[-1]) if mask.shape[-1] > 1 else 0
        hidden |= np.pad(unseen, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=True)
    left, right = (s.attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    right = 0 if s.attributes.get("is_causal") else right
    if right >= 0:
        hidden |= key > row + first + right
    if left >= 0:
        hidden |= key < row + first - left
    return Rows(hidden, q @ kt * scale, tame[0] @ tame[1] * max(scale, 1), np.isfinite(v).all(-1)[:, :, None], flat, s)


def overflows(s: Seen) -> Any:
    rows = rows_of(s)
    return rows.of((rows.size > s.most).any(-1))


def rounds(s: Seen) -> Any:
    rows, eps = rows_of(s), float(ml_dtypes.finfo(s.inputs[0].dtype).eps)
    return rows.of((rows.size * eps > 1e-5 + 10 * eps).any(-1))


def hides(s: Seen) -> Any:
    rows = rows_of(s)
    return rows.of((rows.hidden & ~(np.isfinite(rows.score) & rows.finite)).any(-1))


def sees_nothing(s: Seen) -> Any:
    rows = rows_of(s)
    return rows.of((rows.hidden | (rows.score == -np.inf)).all(-1)) & (s.got == 0)


def nothing_and_no_number(s: Seen) -> Any:
    """Of flexible attention, whose masks are subgraphs: the softmax of a row with a score that is not finite."""
    rows = rows_of(s)
    return rows.of(~np.isfinite(rows.score).all(-1)) & (s.got == 0)


OVERFLOWS: Reason = ("scores overflow, before or after they are scaled, in f32 or in halves", overflows)
ROUNDS: Reason = ("scores so large that their own roundings change the weights", rounds)


# ---- sums and places ------------------------------------------------------------------------------------------------


def lines(s: Seen) -> Any:
    """A transform of a line with a number that is infinite or NaN, or whose sum overflows."""
    x = s.input(0)
    axis = s.attributes.get("axis", 1)
    if len(s.inputs) > 2 and s.inputs[2] is not None:
        axis = int(s.inputs[2])
    total = np.abs(x).sum(axis=(axis, -1), keepdims=True)
    return ~(4 * total <= s.most) & s.special()


def signals(s: Seen) -> Any:
    """The same for frames: of the whole signal, and its window."""
    sizes = [np.abs(x).sum() for x in (s.input(0), s.input(2)) if x is not None]
    return ~(np.prod(sizes) <= s.most) & s.special()


def states(s: Seen) -> Any:
    """Products of a query, a key and a value that overflow, by batch."""
    most = [np.abs(s.input(i)).max(axis=tuple(range(1, s.inputs[i].ndim))) for i in range(3)]
    much = ~(np.prod(most, axis=0) * s.inputs[1].size <= s.most)
    return much.reshape(-1, *[1] * (s.got.ndim - 1)) & s.special()


def beyond_windows(s: Seen) -> Any:
    """NaN where a window, widened by a stride, has an input that is infinite or NaN; anywhere for such weights."""
    x, w = s.input(0), s.input(1)
    if not np.isfinite(w).all():
        return np.isnan(s.got)
    marks = [(~np.isfinite(x)).astype(s.inputs[0].dtype), np.ones_like(s.inputs[1])]
    near = s.run([*marks, *[None if b is None else np.zeros_like(b) for b in s.inputs[2:]]])[0] > 0
    steps = np.broadcast_to(s.attributes.get("strides", s.attributes.get("stride", 1)), w.ndim - 2)
    for axis, step in enumerate(steps, near.ndim - len(steps)):
        wide = np.pad(near, [(step, step) if a == axis else (0, 0) for a in range(near.ndim)])
        size = near.shape[axis]
        near = np.any([wide.take(range(i, i + size), axis) for i in range(2 * step + 1)], axis=0)
    return near & np.isnan(s.got)


def with_nan_largest(s: Seen) -> Any:
    """NaN where the reference has the largest number for infinities instead of the NaN among the inputs; the place of
    it, too."""
    x = s.inputs[0]
    made = s.run([np.where(np.isnan(x), np.array(np.inf, x.dtype), x), *s.inputs[1:]])
    largest = made[0].astype(np.float64) == np.inf
    return largest & (np.isnan(s.got.astype(np.float64)) if s.output == 0 else True)


def with_nan_in_bins(s: Seen) -> Any:
    """The same of regions: NaN where a bin has one, or an infinity (which a weight may be 0 of), or beside it."""
    x, rois, image = s.input(0), s.input(1) * s.attributes.get("spatial_scale", 1), s.inputs[2]
    found = np.zeros(s.got.shape, bool)
    for r, _, *bin_ in np.argwhere(np.isnan(s.got)):
        box = []
        for first, last, at, count in zip(rois[r, 1::-1], rois[r, :1:-1], bin_, s.got.shape[2:], strict=True):
            size = max(last - first, 1) / count
            box.append(slice(max(int(first + at * size) - 2, 0), int(first + (at + 1) * size) + 3))
        found[(r, slice(None), *bin_)] = (~np.isfinite(x[(image[r], slice(None), *box)])).any((1, 2))
    return found


def no_scale(s: Seen) -> Any:
    x = s.input(0)
    return ~(max(x.max(), 0) - min(x.min(), 0) <= s.most)


def saturated(s: Seen) -> Any:
    """The end of the integer on the number's side."""
    x, scale = s.input(0), s.input(1)
    if scale.ndim and scale.size > 1:
        axis, block = s.attributes.get("axis", 1), s.attributes.get("block_size", 0)
        scale = (
            np.repeat(scale, block, axis)
            if block
            else scale.reshape([-1 if a == axis % x.ndim else 1 for a in range(x.ndim)])
        )
    ends = ml_dtypes.iinfo(s.got.dtype)
    whole = x / scale
    end = np.where(whole > 0, int(ends.max), int(ends.min))
    return (np.abs(whole) >= 2**31) & (s.got.astype(np.int64) == end)


def chosen(s: Seen) -> Any:
    """One of the two values, where the reference chooses it of 0 and 1."""
    values = s.inputs[2]
    hot = s.run([*s.inputs[:2], np.array([0, 1], values.dtype)])[0] == 1
    return s.got == np.where(hot, values[1], values[0])


def far_places(s: Seen) -> Any:
    """Reflected places beyond 2^16, whose fraction f32 rounds; places that are infinite (0, if nothing is there) or NaN
    (as the result, or 0), where ONNX Runtime and PyTorch take others."""
    grid = s.input(1)
    padding, mode = (s.attributes.get(n, b"").decode() for n in ("padding_mode", "mode"))
    odd = ~np.isfinite(grid).all(-1)[:, None]
    if padding == "reflection":
        return odd | ~(np.abs(grid) <= 2.0**16).all(-1)[:, None]
    return odd & ((s.got == 0) | np.isnan(s.got) | (padding == "border" and "cubic" not in mode))


def no_subnormals(s: Seen) -> Any:
    """0 for a bf16 up to the smallest normal number."""
    if s.got.dtype != ml_dtypes.bfloat16:
        return np.zeros((), bool)
    tiny = float(ml_dtypes.finfo(s.got.dtype).smallest_normal)
    return (s.got == 0) & np.any([np.abs(w.astype(np.float64)) <= tiny for w in s.wants], axis=0)


#: of any operator
ANY: tuple[Reason, ...] = (("subnormal bf16 is 0 on processors with AVX512-BF16", no_subnormals),)

#: of an operator of ONNX -> why some of its results may differ from both references
OPERATORS: dict[str, tuple[Reason, ...]] = {
    "Attention": (
        OVERFLOWS,
        ROUNDS,
        ("a key that a mask hides, whose score or values are infinite or NaN, may be read or not", hides),
        ("a query that sees no key, or whose scores are all -inf, gives 0", sees_nothing),
    ),
    "FlexAttention": (
        OVERFLOWS,
        ROUNDS,
        ("a query whose scores are all -inf gives 0", nothing_and_no_number),
    ),
    "ConvTranspose": (("zeros between strides, or weights, times an infinity are NaN", beyond_windows),),
    "DFT": (("infinities meet in another order", lines),),
    "DynamicQuantizeLinear": (("of a range that overflows, or NaN, there is no scale", no_scale),),
    "GridSample": (("a reflected place so far out, or NaN, is none", far_places),),
    "MaxPool": (("NaN is the largest number; the references keep or lose it by its place", with_nan_largest),),
    "OneHot": (("the reference adds the difference of the two values to one of them, which rounds", chosen),),
    "RoiAlign": (("NaN is the largest number, as of MaxPool", with_nan_in_bins),),
    "QuantizeLinear": (
        ("what is too large is the end of the integer; the reference wraps before it limits", saturated),
    ),
    "STFT": (("infinities meet in another order", signals),),
    "LinearAttention": (("sums that overflow do so in another order", states),),
}


# ---- PyTorch --------------------------------------------------------------------------------------------------------


def poles(s: Seen) -> Any:
    """At 0, -1, -2 ..., beside them as far as a rounding of x changes the power of the distance, and far below, where
    PyTorch adds up a term for each whole number on the way to 0."""
    x, want = s.input(0), s.wants[0].astype(np.float64)
    bound = 10 * float(ml_dtypes.finfo(s.got.dtype).eps) * np.abs(x / (x - np.rint(x)))
    return (x <= 0) & ((x == np.floor(x)) | (np.abs(s.got - want) <= bound * np.abs(want)) | (x < -1e3))


def squares(s: Seen) -> Any:
    """Infinity where the sum of squares is beyond the type."""
    x = s.input(0)
    return np.isposinf(s.got.astype(np.float64)) & (np.square(x[np.isfinite(x)]).sum() * 4 > s.most)


def ties(s: Seen) -> Any:
    """Places of equal numbers, along the dimension that they are places of (which the result may lack)."""
    x, (want,) = s.inputs[0], s.wants
    found = np.zeros(s.got.shape, bool)
    if s.got.dtype != np.int64 or s.attributes.get("stable"):
        return found
    for d in range(x.ndim):
        i, j = (v if v.ndim == x.ndim else np.expand_dims(v, d) for v in (s.got, want))
        if all(m == n for k, (m, n) in enumerate(zip(i.shape, x.shape, strict=True)) if k != d):
            a, b = np.take_along_axis(x, i, d), np.take_along_axis(x, j, d)
            found |= ((a == b) | ((a != a) & (b != b))).reshape(found.shape)
    return found


def trigamma_ends(s: Seen) -> Any:
    """Where PyTorch's series of the trigamma function leaves out terms."""
    x = s.input(0)
    return np.abs(s.got - s.wants[0]) <= 1.1 / 30 / (np.where(x < 0.5, 1 - x, x) + 6) ** 9


def as_exact_as(function: str, phase: Callable[[np.ndarray], np.ndarray], *order: int) -> Callable[[Seen], Any]:
    """What mpmath gives, as exactly as the argument of a wave permits, in f64; of integers that are rounded to f32."""

    def holds(s: Seen) -> Any:
        import mpmath

        x = (s.inputs[0].astype(np.float32) if s.inputs[0].dtype.kind in "iu" else s.inputs[0]).astype(np.float64)
        got, eps = s.got.astype(np.float64), float(ml_dtypes.finfo(s.got.dtype).eps)
        found = np.zeros(got.shape, bool)
        for at in np.argwhere(np.isfinite(x) & np.isfinite(got) & (np.abs(x) < 2.0**22) & (s.got != s.wants[0])):
            v = float(x[(at := tuple(at))])
            right = complex(getattr(mpmath, function)(*order, v)).real
            found[at] = abs(got[at] - right) <= 8 * eps * abs(right) + (2 * eps + 4e-16 * abs(phase(v)))
        return found

    return holds


def by_its_norm(s: Seen) -> Any:
    """An exponential of a matrix within what a rounding of the matrix changes, of its largest element."""
    x, want = s.input(0), s.wants[0].astype(np.float64)
    norm = np.abs(x).sum(-1).max(-1)[..., None, None]
    apart = np.abs(s.got.astype(np.float64) - want)
    return apart <= 64 * float(ml_dtypes.finfo(s.got.dtype).eps) * norm * np.abs(want).max((-2, -1), keepdims=True)


def one_rounding(s: Seen) -> Any:
    """A difference of almost equal numbers, within a rounding of those."""
    apart = np.abs(s.got.astype(np.float64) - s.wants[0].astype(np.float64))
    return apart <= float(ml_dtypes.finfo(s.got.dtype).eps) * np.abs(s.input(0))


def near_zero(s: Seen) -> Any:
    """As exact as the terms, which are near 30, of which it is the difference."""
    apart = np.abs(s.got.astype(np.float64) - s.wants[0].astype(np.float64))
    return apart <= 16 * float(ml_dtypes.finfo(s.got.dtype).eps)


def with_nan(s: Seen) -> Any:
    """Of slices with a NaN, along the dimension that is missing in the result."""
    odd = [np.isnan(s.input(0)).any(d, keepdims=k) for d in range(s.inputs[0].ndim) for k in (False, True)]
    return np.any([o for o in odd if o.shape == s.got.shape], axis=0)


def odd_places(s: Seen) -> Any:
    grid = s.input(1)
    odd = ~np.isfinite(grid).all(-1)[:, None] & ((s.got == 0) | np.isnan(s.got))
    return odd | (np.abs(grid) > 2.0**16).any(-1)[:, None]


#: of an entry of PyTorch's table -> the same
TORCH: dict[str, tuple[Reason, ...]] = {
    **dict.fromkeys(
        [f"{p}polygamma.{p.replace('.', '_')}polygamma_n_{n}" for p in ("", "special.") for n in range(5)],
        (
            ("PyTorch's sine misses zero at the poles, and it sums one term for each whole number", poles),
            ("PyTorch's series of the trigamma function ends at x^-7", trigamma_ends),
        ),
    ),
    **dict.fromkeys(
        ("std", "std.unbiased", "std_mean", "std_mean.unbiased"),
        (("squares beyond the type are infinite; PyTorch sums them in f64", squares),),
    ),
    **{
        f"special.bessel_{n}": (
            ("PyTorch rounds x - pi / 4", lambda s: np.abs(s.input(0)) > 2.0**22),
            ("right is what mpmath gives", as_exact_as(f"bessel{n[0]}", lambda x: x, int(n[1]))),
        )
        for n in ("j0", "j1", "y0", "y1")
    },
    "special.airy_ai": (
        ("PyTorch rounds 2 / 3 |x|^1.5 in x's type", lambda s: s.input(0) < -(2.0**12)),
        ("right is what mpmath gives", as_exact_as("airyai", lambda x: abs(x) ** 1.5)),
    ),
    "matrix_exp": (("within a rounding of the matrix", by_its_norm),),
    "nn.functional.scaled_dot_product_attention": OPERATORS["Attention"],
    **{f"nn.functional.conv_transpose{r}d": OPERATORS["ConvTranspose"] for r in (1, 2, 3)},
    **dict.fromkeys(("sort", "argsort", "msort", "topk", "kthvalue"), (("equal numbers stand in any order", ties),)),
    "nn.functional.tanhshrink": (("x - tanh(x) is as exact as tanh(x)", one_rounding),),
    **dict.fromkeys(
        [f"mvlgamma.mvlgamma_p_{p}" for p in (1, 3, 5)],
        (("near its zeros the logarithm of gamma is as exact as beside them", near_zero),),
    ),
    "mode": (("PyTorch's order has no place for NaN", with_nan),),
    **dict.fromkeys(
        ("grid_sampler_2d", "grid_sampler_3d", "nn.functional.grid_sample"),
        (("an infinite place is outside; PyTorch has NaN of it in two dimensions, and 0 of NaN in three", odd_places),),
    ),
}
