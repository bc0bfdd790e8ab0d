"""Random numbers from a counter: element i of the stream `seed` is a hash of both, so any element can be computed at
any time."""

from __future__ import annotations

import math

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import NUMPY, Type
from ..support.errors import OpError

KINDS = ("uniform", "normal")
#: keys are numbers of runs: this spreads them over all bits (odd, so that no two become one)
KEY_FACTOR = 0x85EBCA6B
#: constants of a mixing function of 32 bits whose outputs differ in half of the bits for any change of the input
MIX = ((16, 0x21F0AAAD), (15, 0xD35A2D97))


class Random(Operator):
    """A tensor of random numbers: ``uniform`` in [0, 1), or ``normal`` with mean 0 and deviation 1.

    They are a function of `seed`, of the element's place, and of `key` (i32[]) if it is given: other numbers for every
    key. Without a key the tensor is a constant.

    ``"tw.random"(%key) {dtype = "f32", kind = "uniform", seed = 7 : i64, shape = array<i64: 2, 3>} : (tensor<i32>) ->
    tensor<2x3xf32>``
    """

    @staticmethod
    def infer(key=None, *, kind: str, shape: tuple, dtype: str, seed: int):
        if key is not None and (key.rank, key.dtype) != (0, "i32"):
            raise OpError(f"the key is i32[], not {key}")
        if kind not in KINDS or dtype not in ("f32", "f64"):
            raise OpError(f"there are no {kind!r} numbers of dtype {dtype!r}")
        return Type(tuple(shape), dtype)

    @staticmethod
    def reference(key=None, *, kind, shape, dtype, seed):
        places = np.arange(math.prod(shape), dtype=np.uint64).astype(np.uint32)
        first = _fraction(_hash(places, seed, key), dtype)
        if kind == "normal":
            first = np.sqrt(-2 * np.log(1 - first)) * np.cos(
                2 * np.pi * _fraction(_hash(places, seed ^ 0x5BD1E995, key), dtype)
            )
        return first.astype(NUMPY[dtype]).reshape(shape)

    @staticmethod
    def lower(b, key=None, *, kind, shape, dtype, seed):
        def mixed(h):
            for shift, factor in MIX:
                h = (h ^ h.shift_right(shift)) * factor
            return h ^ h.shift_right(15)

        def body(*at):
            place = b.constant(0, "index")
            for i, n in zip(at, shape, strict=True):
                place = place * n + i
            place = b.cast(place, "ui32")

            def fraction(stream):
                h = mixed(place + stream % (1 << 32))
                if key is not None:
                    h = mixed(h ^ b.cast(b.load(key, []), "ui32") * KEY_FACTOR)
                bits = 32 if dtype == "f64" else 24
                return b.cast(h.shift_right(32 - bits) if bits < 32 else h, dtype) * 2.0**-bits

            u = fraction(seed * 0x9E3779B1)
            if kind == "uniform":
                return u
            radius = b.unary("sqrt", b.unary("log", 1.0 - u) * -2.0)
            return radius * b.unary("cos", fraction((seed ^ 0x5BD1E995) * 0x9E3779B1) * (2 * math.pi))

        return b.compute(Type(tuple(shape), dtype), body)


def _hash(places, seed, key):
    h = _mixed(places + np.uint32(seed * 0x9E3779B1 % (1 << 32)))
    if key is not None:
        h = _mixed(h ^ np.uint32(int(key) * KEY_FACTOR % (1 << 32)))
    return h


def _mixed(h):
    for shift, factor in MIX:
        h = (h ^ (h >> np.uint32(shift))) * np.uint32(factor)
    return h ^ (h >> np.uint32(15))


def _fraction(h, dtype):
    bits = 32 if dtype == "f64" else 24
    return ((h >> np.uint32(32 - bits)) * 2.0**-bits).astype(NUMPY[dtype])
