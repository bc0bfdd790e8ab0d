"""Activation functions. Halves are computed in f32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from ..ir.types import is_float
from ..support.errors import OpError
from .common import Binary, Elementwise, Unary, in_wide
from .math import erf


class Activation(Elementwise, abstract=True):
    """Base of the activations: float in, float out. A subclass gives `compute` in NumPy and `scalar`."""

    accepts = "float"
    widens = True
    compute: ClassVar[Callable[..., np.ndarray]]

    @classmethod
    def infer(cls, x):
        return cls.check(x)

    @classmethod
    def reference(cls, x, **attrs):
        return in_wide(cls.compute, x, **attrs)


def _sigmoid(b, x):
    return 1.0 / (b.unary("exp", -x) + 1.0)


class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    @staticmethod
    def compute(x):
        return 1 / (1 + np.exp(-x))

    @staticmethod
    def scalar(b, x):
        return _sigmoid(b, x)


class Relu(Unary):
    """max(x, 0); integers too."""

    accepts = "number"

    @staticmethod
    def reference(x):
        return np.maximum(x, np.zeros((), x.dtype))

    @staticmethod
    def scalar(b, x):
        return b.maximum(x, 0.0 if is_float(x.dtype) else 0)


class LeakyRelu(Activation):
    """x if x >= 0 else alpha * x."""

    @classmethod
    def infer(cls, x, *, alpha: float = 0.01):
        return cls.check(x)

    @staticmethod
    def compute(x, *, alpha):
        return np.where(x >= 0, x, x * alpha)

    @staticmethod
    def scalar(b, x, *, alpha):
        return b.select(x >= 0.0, x, x * alpha)


class Prelu(Binary):
    """x if x >= 0 else slope * x, the slope broadcast to x."""

    accepts = "float"
    widens = True

    @staticmethod
    def reference(x, slope):
        return in_wide(lambda v, s: np.where(v >= 0, v, v * s), x, slope)

    @staticmethod
    def scalar(b, x, slope):
        return b.select(x >= 0.0, x, x * slope)


class Gelu(Activation):
    """x * Phi(x): exact with erf, or its tanh form where ``approximate = "tanh"``.

    ``"tw.gelu"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>``
    """

    @classmethod
    def infer(cls, x, *, approximate: str = "none"):
        if approximate not in ("none", "tanh"):
            raise OpError(f'approximate is "none" or "tanh", not {approximate!r}')
        return cls.check(x)

    @staticmethod
    def compute(x, *, approximate):
        if approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))

    @staticmethod
    def scalar(b, x, *, approximate):
        if approximate == "tanh":  # (1 + tanh(t)) / 2 is 1 / (1 + exp(-2 t))
            twice = -2 * math.sqrt(2 / math.pi)
            return x / (b.unary("exp", x * (x * x * (0.044715 * twice) + twice)) + 1.0)
        return x * 0.5 * (b.unary("erf", x * math.sqrt(0.5)) + 1.0)


class Silu(Activation):
    """x * sigmoid(alpha * x), also called swish."""

    @classmethod
    def infer(cls, x, *, alpha: float = 1.0):
        return cls.check(x)

    @staticmethod
    def compute(x, *, alpha):
        return x / (1 + np.exp(-alpha * x))

    @staticmethod
    def scalar(b, x, *, alpha):
        return x / (b.unary("exp", x * -alpha) + 1.0)


class HardSigmoid(Activation):
    """alpha * x + beta limited to [0, 1]."""

    @classmethod
    def infer(cls, x, *, alpha: float = 0.2, beta: float = 0.5):
        return cls.check(x)

    @staticmethod
    def compute(x, *, alpha, beta):
        return np.clip(alpha * x + beta, 0, 1)

    @staticmethod
    def scalar(b, x, *, alpha, beta):
        return b.minimum(b.maximum(x * alpha + beta, 0.0), 1.0)


class HardSwish(Activation):
    """x * clip(x + 3, 0, 6) / 6."""

    @staticmethod
    def compute(x):
        return x * np.clip(x + 3, 0, 6) / 6

    @staticmethod
    def scalar(b, x):
        return x * b.minimum(b.maximum(x + 3.0, 0.0), 6.0) * (1 / 6)


class Elu(Activation):
    """x if x > 0 else alpha * (exp(x) - 1)."""

    @classmethod
    def infer(cls, x, *, alpha: float = 1.0):
        return cls.check(x)

    @staticmethod
    def compute(x, *, alpha):
        return np.where(x > 0, x, alpha * np.expm1(np.where(x > 0, 0, x)))

    @staticmethod
    def scalar(b, x, *, alpha):
        return b.select(x > 0.0, x, b.unary("expm1", b.minimum(x, 0.0)) * alpha)


class Selu(Activation):
    """gamma * (x if x > 0 else alpha * (exp(x) - 1))."""

    @classmethod
    def infer(cls, x, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805):
        return cls.check(x)

    @staticmethod
    def compute(x, *, alpha, gamma):
        return gamma * np.where(x > 0, x, alpha * np.expm1(np.where(x > 0, 0, x)))

    @staticmethod
    def scalar(b, x, *, alpha, gamma):
        return b.select(x > 0.0, x, b.unary("expm1", b.minimum(x, 0.0)) * alpha) * gamma


class Celu(Activation):
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""

    @classmethod
    def infer(cls, x, *, alpha: float = 1.0):
        return cls.check(x)

    @staticmethod
    def compute(x, *, alpha):
        return np.where(x > 0, x, alpha * np.expm1(np.where(x > 0, 0, x) / alpha))

    @staticmethod
    def scalar(b, x, *, alpha):
        return b.select(x > 0.0, x, b.unary("expm1", b.minimum(x, 0.0) * (1 / alpha)) * alpha)


class Softplus(Activation):
    """log(1 + exp(x)), without overflow."""

    @staticmethod
    def compute(x):
        return _softplus_numpy(x)

    @staticmethod
    def scalar(b, x):
        return _softplus(b, x)


def _softplus_numpy(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _softplus(b, x):
    return b.maximum(x, 0.0) + b.unary("log1p", b.unary("exp", -b.abs(x)))


class Mish(Activation):
    """x * tanh(softplus(x))."""

    @staticmethod
    def compute(x):
        return x * np.tanh(_softplus_numpy(x))

    @staticmethod
    def scalar(b, x):
        return x * b.unary("tanh", _softplus(b, x))


class Softsign(Activation):
    """x / (1 + |x|)."""

    @staticmethod
    def compute(x):
        return x / (1 + np.abs(x))

    @staticmethod
    def scalar(b, x):
        return x / (b.abs(x) + 1.0)


class ThresholdedRelu(Activation):
    """x if x > alpha else 0."""

    @classmethod
    def infer(cls, x, *, alpha: float = 1.0):
        return cls.check(x)

    @staticmethod
    def compute(x, *, alpha):
        return np.where(x > alpha, x, np.zeros((), x.dtype))

    @staticmethod
    def scalar(b, x, *, alpha):
        return b.select(x > alpha, x, 0.0)


class Shrink(Elementwise):
    """x + bias below -lambd, x - bias above lambd, 0 between; integers too."""

    accepts = "number"

    @classmethod
    def infer(cls, x, *, lambd: float = 0.5, bias: float = 0.0):
        return cls.check(x)

    @staticmethod
    def reference(x, *, lambd, bias):
        low, high = (x + bias).astype(x.dtype), (x - bias).astype(x.dtype)
        return np.where(x < -lambd, low, np.where(x > lambd, high, np.zeros((), x.dtype)))

    @staticmethod
    def scalar(b, x, *, lambd, bias):
        wide = x if is_float(x.dtype) else b.cast(x, "f64")
        zero = b.constant(0.0, wide.dtype)
        out = b.select(wide < -lambd, wide + bias, b.select(wide > lambd, wide - bias, zero))
        return b.cast(out, x.dtype)
