"""Random quantized layers as kernels: products and convolutions of bytes (depthwise too), brought back to bytes."""

from __future__ import annotations

import numpy as np

from tilewright import te
from tilewright.codegen.kernel_info import pack_array
from tilewright.schedule.nest import Nest
from tilewright.tensor.evaluate import NUMPY
from tilewright.tensor.kernel import Kernel

_NUMBERS = "bias: i32[{o}], multiplier: i32[{o}], shift: i32[{o}]"
_ACCUMULATED = "addi(sums[{row}, l], muli(extsi[i32](x[{x}]), extsi[i32](w[{w}, l])))"
_VALUE = "addi(sums[{row}, l1], bias[l1])"
_BYTES = "trunci[i8](minsi(maxsi(shrsi({twice}, i32(1)), i32({low})), i32(127)))"


def twice(value: str, multiplier: str, shift: str, offset: int, even: bool) -> str:
    """Twice the product of a sum, with one more for the rounding; exact halves go up, or to the even neighbour."""
    upper = f"mulhsi({value}, {multiplier})"
    scaled = f"shrsi({upper}, {shift})"
    rounded = f"addi({scaled}, i32({offset}))"
    if not even:
        return rounded
    exact = f"andi(cmpi.eq(muli({value}, {multiplier}), i32(0)), cmpi.eq(shli({scaled}, {shift}), {upper}))"
    return f"subi({rounded}, extui[i32](andi({exact}, cmpi.eq(andi({scaled}, i32(3)), i32(1)))))"


def _stored(row: str, offset: int, low: int, even: bool) -> str:
    """The bytes of sums of a row."""
    value = _VALUE.format(row=row)
    return _BYTES.format(twice=twice(value, "multiplier[l1]", "shift[l1]", offset, even), low=low)


def product(m: int, k: int, o: int, offset: int = -9, low: int = -128, even: bool = False) -> Kernel:
    """x[m, k] @ w[k, o], requantized."""
    return te.from_nest(
        f"""
def product(x: i8[{m}, {k}], w: i8[{k}, {o}], {_NUMBERS.format(o=o)}, y: out(i8[{m}, {o}])):
    sums = local(i32[{m}, {o}])
    for i in serial({m}):
        for l in serial({o}):
            for n in serial({k}):
                s0: sums[i, l] = reduce({_ACCUMULATED.format(row="i", x="i, n", w="n")}, init=i32(0), over=(n,))
    for i1 in serial({m}):
        for l1 in serial({o}):
            s1: y[i1, l1] = {_stored("i1", offset, low, even)}
""",
        constants=["w", "bias", "multiplier", "shift"],
    )


def conv(
    h: int, w: int, c: int, o: int, kernel: int, stride: int, offset: int = -9, low: int = -128, even: bool = False
) -> Kernel:
    """A convolution of x[h, w * c] with a square kernel, requantized."""
    oh, ow = (h - kernel) // stride + 1, (w - kernel) // stride + 1
    x = f"j * {stride} + m, k * {stride * c} + n"
    return te.from_nest(
        f"""
def conv(x: i8[{h}, {w * c}], w: i8[{kernel}, {kernel * c}, {o}], {_NUMBERS.format(o=o)}, y: out(i8[{oh}, {ow}, {o}])):
    sums = local(i32[{oh}, {ow}, {o}])
    for j in serial({oh}):
        for k in serial({ow}):
            for l in serial({o}):
                for m in serial({kernel}):
                    for n in serial({kernel * c}):
                        s0: sums[j, k, l] = reduce({_ACCUMULATED.format(row="j, k", x=x, w="m, n")}, \
init=i32(0), over=(m, n))
    for j1 in serial({oh}):
        for k1 in serial({ow}):
            for l1 in serial({o}):
                s1: y[j1, k1, l1] = {_stored("j1, k1", offset, low, even)}
""",
        constants=["w", "bias", "multiplier", "shift"],
    )


def depthwise(
    h: int, w: int, c: int, kernel: int, stride: int, offset: int = -9, low: int = -128, even: bool = False
) -> Kernel:
    """A convolution of x[h, w, c] that leaves channels apart, requantized."""
    oh, ow = (h - kernel) // stride + 1, (w - kernel) // stride + 1
    x = f"extsi[i32](x[j * {stride} + m, k * {stride} + n, l])"
    product = f"muli({x}, extsi[i32](w[m, n, l]))"
    return te.from_nest(
        f"""
def depthwise(x: i8[{h}, {w}, {c}], w: i8[{kernel}, {kernel}, {c}], {_NUMBERS.format(o=c)}, \
y: out(i8[{oh}, {ow}, {c}])):
    sums = local(i32[{oh}, {ow}, {c}])
    for j in serial({oh}):
        for k in serial({ow}):
            for l in serial({c}):
                for m in serial({kernel}):
                    for n in serial({kernel}):
                        s0: sums[j, k, l] = reduce(addi(sums[j, k, l], {product}), init=i32(0), over=(m, n))
    for j1 in serial({oh}):
        for k1 in serial({ow}):
            for l1 in serial({c}):
                s1: y[j1, k1, l1] = {_stored("j1, k1", offset, low, even)}
""",
        constants=["w", "bias", "multiplier", "shift"],
    )


def random_layer(rng: np.random.Generator, largest: int = 48) -> tuple[str, Kernel]:
    """A layer with channels up to `largest`, and what it is."""

    def number(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    o, offset, low = number(1, largest), 2 * number(-100, 100) + 1, int(rng.choice([-128, -20, 0]))
    even = bool(number(0, 1))
    if rng.random() < 0.4:
        m, k = number(1, 80), number(1, 3 * largest)
        return f"product {m} x {k} x {o}", product(m, k, o, offset, low, even)
    kernel, stride, c = int(rng.choice([1, 2, 3, 5])), number(1, 2), number(1, largest // 2)
    h, w = number(kernel, 16), number(kernel, 16)
    if rng.random() < 0.3:
        return f"depthwise {h} x {w} x {o}, {kernel} by {stride}", depthwise(h, w, o, kernel, stride, offset, low, even)
    return f"conv {h} x {w} x {c} -> {o}, {kernel} by {stride}", conv(h, w, c, o, kernel, stride, offset, low, even)


#: what the numbers of a layer are taken from
_RANGES = {"bias": (-9999, 9999), "multiplier": (1 << 30, (1 << 31) - 1), "shift": (3, 9), "y": (0, 1)}


def layer_arguments(kernel: Kernel, nest: Nest, rng: np.random.Generator) -> list[np.ndarray]:
    """Random arrays for the parameters of a layer's nest, constants packed as it wants them. The multipliers of every
    other channel have zeros at their end, so that there are exact halves."""
    made = {
        p.name: rng.integers(*_RANGES.get(p.name, (-128, 128)), p.shape).astype(NUMPY[p.dtype]) for p in kernel.params
    }
    made["multiplier"][::2] &= -1 << 29
    made |= {name: pack_array(made[name], pack) for name, pack in nest.packs.items()}
    return [np.ascontiguousarray(made[p.name]) for p in nest.params]
