"""Small kernels as programs of the chips that are in the package."""

from __future__ import annotations

from tilewright import te
from tilewright.targets.accelerator.binary import Formats
from tilewright.targets.accelerator.layouts import TilePlan
from tilewright.targets.accelerator.match import select
from tilewright.targets.accelerator.plan import Planned, planned
from tilewright.tensor.kernel import Kernel


def quantized_matmul(m: int, k: int, n: int) -> Kernel:
    """Bytes times bytes, bias, scale, back to bytes."""
    text = f"""
def matmul(x: i8[{m}, {k}], w: i8[{k}, {n}], b: i32[{n}], f: i32[{n}], s: i32[{n}], y: out(i8[{m}, {n}])):
    t = local(i32[{m}, {n}])
    for i0 in serial({m}):
        for j0 in serial({n}):
            for k0 in serial({k}):
                s0: t[i0, j0] = reduce(addi(t[i0, j0], muli(extsi[i32](x[i0, k0]), extsi[i32](w[k0, j0]))), init=i32(0), over=(k0,))
    for i1 in serial({m}):
        for j1 in serial({n}):
            s1: y[i1, j1] = trunci[i8](minsi(maxsi(shrsi(addi(shrsi(mulhsi(addi(t[i1, j1], b[j1]), f[j1]), s[j1]), i32(-9)), i32(1)), i32(-128)), i32(127)))
"""  # noqa: E501
    return te.from_nest(text, constants=["w", "b", "f", "s"])


def bordered(h: int, w: int, c: int) -> Kernel:
    """A 1x1 convolution of bytes whose result has a border of a number."""
    text = f"""
def conv(x: i8[{h}, {w}, {c}], w: i8[{c}, {c}], b: i32[{c}], f: i32[{c}], s: i32[{c}], y: out(i8[{h + 2}, {w}, {c}])):
    t = local(i32[{h}, {w}, {c}])
    u = local(i8[{h}, {w}, {c}])
    for i0 in serial({h}):
        for j0 in serial({w}):
            for l0 in serial({c}):
                for k0 in serial({c}):
                    s0: t[i0, j0, l0] = reduce(addi(t[i0, j0, l0], muli(extsi[i32](x[i0, j0, k0]), extsi[i32](w[k0, l0]))), init=i32(0), over=(k0,))
    for i1 in serial({h}):
        for j1 in serial({w}):
            for l1 in serial({c}):
                s1: u[i1, j1, l1] = trunci[i8](minsi(maxsi(shrsi(addi(shrsi(mulhsi(addi(t[i1, j1, l1], b[l1]), f[l1]), s[l1]), i32(-9)), i32(1)), i32(-128)), i32(127)))
    for j2 in serial({w}):
        for l2 in serial({c}):
            s2: y[0, j2, l2] = i8(-5)
    for j3 in serial({w}):
        for l3 in serial({c}):
            s3: y[{h + 1}, j3, l3] = i8(-5)
    for i4 in serial({h}):
        for j4 in serial({w}):
            for l4 in serial({c}):
                s4: y[i4+1, j4, l4] = u[i4, j4, l4]
"""  # noqa: E501
    return te.from_nest(text, constants=["w", "b", "f", "s"])


def float_matmul(m: int, k: int, n: int) -> Kernel:
    return te.from_nest(f"""
def matmul(x: f32[{m}, {k}], w: f32[{k}, {n}], y: out(f32[{m}, {n}])):
    for i0 in serial({m}):
        for j0 in serial({n}):
            for k0 in serial({k}):
                s0: y[i0, j0] = reduce(addf(y[i0, j0], mulf(x[i0, k0], w[k0, j0])), init=f32(0.0), over=(k0,))
""")


def add_relu(m: int, n: int) -> Kernel:
    return te.from_nest(f"""
def add_relu(x: f32[{m}, {n}], b: f32[{n}], y: out(f32[{m}, {n}])):
    t = local(f32[{m}, {n}])
    for i0 in serial({m}):
        for j0 in serial({n}):
            s0: t[i0, j0] = addf(x[i0, j0], b[j0])
    for i1 in serial({m}):
        for j1 in serial({n}):
            s1: y[i1, j1] = maximumf(t[i1, j1], f32(0.0))
""")


def on_chip(kernel: Kernel, formats: Formats, tiles: dict[str, int], order: tuple[str, ...]) -> Planned:
    """A kernel cut into tiles, as a program of a chip."""
    return planned(select(kernel, formats.listing), formats, TilePlan(tiles, order))
