"""Differences on hard numbers that are allowed, each with its reason, as docs/semantics.md names them."""

from __future__ import annotations

import re

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


#: of an operator of ONNX -> why its results may differ from both references
OPERATORS: dict[str, str] = {
    "Attention": "keys that a mask hides are not read, so that NaN there does not spread; a row whose scores are all "
    "-inf gives 0; scores are scaled before or after they are summed, in f32, so that they overflow elsewhere",
    "FlexAttention": "a row whose scores are all -inf gives 0; scores may be scaled before they are summed",
    "ConvTranspose": "a sum also over the places between strides, whose zeros times an infinite weight are NaN",
    "DFT": "a sum of products, or a fast transform: infinities meet in another order",
    "DynamicQuantizeLinear": "a range that overflows, or NaN: there is no scale that quantizes it",
    "GridSample": "a place that is infinite or NaN makes its weights NaN, and these times a zero of the border are NaN",
    "MaxPool": "NaN is the largest number, as PyTorch has it; the references keep or lose it by its place",
    "NonMaxSuppression": "NaN has no place in an order",
    "OneHot": "the reference adds the difference of the two values to one of them, which rounds",
    "RoiAlign": "NaN is the largest number, as of MaxPool",
    "QuantizeLinear": "what is too large for the integer is its largest number; the reference wraps before it limits",
    "STFT": "as of DFT",
    "LinearAttention": "sums that overflow do so in another order",
}

#: of an entry of PyTorch's table -> the same
TORCH: dict[str, str] = {
    **{f"polygamma.polygamma_n_{n}": "infinite at its poles, where PyTorch's sine misses zero" for n in range(5)},
    **dict.fromkeys(
        ("std", "std.unbiased", "std_mean", "std_mean.unbiased"),
        "squares beyond the type are infinite; PyTorch sums them in f64",
    ),
}
