"""f32 functions as NVIDIA's approximate instructions: ``ex2.approx``, 2^x within 2 ULP.

Results below the smallest normal number are 0: the instruction that keeps them takes four times as many.
"""

from __future__ import annotations

from ...tensor.expr import Op
from ...tensor.mathlib.build import V, f32, fma
from ...tensor.mathlib.exponential import OVERFLOW, UNDERFLOW

#: log2(e) as the sum of two f32, and ln(2)
LOG2_E, LOG2_E_LOW, LN2 = 1.4426950216293335, 1.925963033500011e-08, 0.6931471805599453
INSTRUCTIONS = {"ex2": "llvm.nvvm.ex2.approx.ftz.f32"}


def exp2(x: V) -> V:
    """2^x."""
    return V(Op("ex2", (x.e,), "f32"))


def exp(x: V) -> V:
    """e^x, within 4 ULP: 2^(x log2 e), where the exponent is a sum of two numbers, of which the second one is small."""
    x = V(Op("minimumf", (x.e, f32(OVERFLOW).e), "f32"))
    x = V(Op("maximumf", (x.e, f32(UNDERFLOW).e), "f32"))
    high = x * LOG2_E
    low = fma(x, LOG2_E_LOW, fma(x, LOG2_E, -high))
    return exp2(high) * fma(low, LN2, 1.0)


FUNCTIONS = {"exp": exp, "exp2": exp2}

__all__ = ["FUNCTIONS", "INSTRUCTIONS", "exp", "exp2"]
