"""Random quantized layers as kernels: products and convolutions of bytes, brought back to bytes."""

from __future__ import annotations

import numpy as np

from tilewright import te
from tilewright.codegen.kernel_info import pack_array
from tilewright.schedule.nest import Nest
from tilewright.tensor.evaluate import NUMPY
from tilewright.tensor.kernel import Kernel

_NUMBERS = "bias: i32[{o}], multiplier: i32[{o}], shift: i32[{o}]"
_ACCUMULATED = "addi(sums[{row}, l], muli(extsi[i32](x[{x}]), extsi[i32](w[{w}, l])))"
_BYTES = (
    "trunci[i8](minsi(maxsi(shrsi(addi(shrsi(mulhsi(addi(sums[{row}, l1], bias[l1]), multiplier[l1]), shift[l1]),"
    " i32({offset})), i32(1)), i32({low})), i32(127)))"
)


def product(m: int, k: int, o: int, offset: int = -9, low: int = -128) -> Kernel:
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
            s1: y[i1, l1] = {_BYTES.format(row="i1", offset=offset, low=low)}
""",
        constants=["w", "bias", "multiplier", "shift"],
    )


def conv(h: int, w: int, c: int, o: int, kernel: int, stride: int, offset: int = -9, low: int = -128) -> Kernel:
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
                s1: y[j1, k1, l1] = {_BYTES.format(row="j1, k1", offset=offset, low=low)}
""",
        constants=["w", "bias", "multiplier", "shift"],
    )


def random_layer(rng: np.random.Generator, largest: int = 48) -> tuple[str, Kernel]:
    """A layer with channels up to `largest`, and what it is."""

    def number(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    o, offset, low = number(1, largest), number(-200, 200), int(rng.choice([-128, -20, 0]))
    if rng.random() < 0.4:
        m, k = number(1, 80), number(1, 3 * largest)
        return f"product {m} x {k} x {o}", product(m, k, o, offset, low)
    kernel, stride, c = int(rng.choice([1, 2, 3, 5])), number(1, 2), number(1, largest // 2)
    h, w = number(kernel, 16), number(kernel, 16)
    return f"conv {h} x {w} x {c} -> {o}, {kernel} by {stride}", conv(h, w, c, o, kernel, stride, offset, low)


#: what the numbers of a layer are taken from
_RANGES = {"bias": (-9999, 9999), "multiplier": (1 << 30, (1 << 31) - 1), "shift": (3, 9), "y": (0, 1)}


def layer_arguments(kernel: Kernel, nest: Nest, rng: np.random.Generator) -> list[np.ndarray]:
    """Random arrays for the parameters of a layer's nest, constants packed as it wants them."""
    made = {
        p.name: rng.integers(*_RANGES.get(p.name, (-128, 128)), p.shape).astype(NUMPY[p.dtype]) for p in kernel.params
    }
    made |= {name: pack_array(made[name], pack) for name, pack in nest.packs.items()}
    return [np.ascontiguousarray(made[p.name]) for p in nest.params]
