"""Kernels that chips are tried with, and the way from a kernel to what its program computes."""

from __future__ import annotations

import numpy as np

from support.chip_layers import twice
from tilewright import Schedule
from tilewright.codegen.kernel_info import pack_array
from tilewright.lang import te
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.text import parse_nest
from tilewright.targets.accelerator.binary import Formats
from tilewright.targets.accelerator.emit import emit
from tilewright.targets.accelerator.functional import Functional
from tilewright.targets.accelerator.match import select
from tilewright.targets.accelerator.plan import plans
from tilewright.targets.accelerator.tiles import TiledNest
from tilewright.tensor.evaluate import NUMPY


def requantized(total: str, at: str, even: bool = False) -> str:
    """Sums to bytes: bias p2, multiplier p3 and shift p4, then zero point -5. Exact halves go up, or to the even
    neighbour."""
    doubled = twice(f"addi({total}, p2[{at}])", f"p3[{at}]", f"p4[{at}]", -9, even)
    return f"trunci[i8](minsi(maxsi(shrsi({doubled}, i32(1)), i32(-128)), i32(127)))"


def params(channels: int, scalar: bool) -> str:
    """Those of `requantized`, one number a channel; with `scalar`, multiplier and shift are one for all channels."""
    shape = "[()]" if scalar else f"[{channels}]"
    return f"p2: i32[{channels}], p3: i32{shape}, p4: i32{shape}"


def conv(h, w, c, o, kh=3, kw=3, s=1, pad=0, scalar=False, even=False):
    """i8 convolution of [1, h, w * c] (borders are there already) to [1, oh + 2 pad, ow + 2 pad, o], with a border of
    -5 around what it computes."""
    oh, ow = (h - kh) // s + 1, (w - kw) // s + 1
    at = requantized("t0[0, j1, k1, l1]", "l1", even)
    if scalar:
        at = at.replace("p3[l1]", "p3[()]").replace("p4[l1]", "p4[()]")
    out = "p7" if not pad else "t1"
    text = f"""
def conv(p0: i8[1, {h}, {w * c}], p1: i8[{kh}, {kw * c}, {o}], {params(o, scalar)},
         p7: out(i8[1, {oh + 2 * pad}, {ow + 2 * pad}, {o}])):
    t0 = local(i32[1, {oh}, {ow}, {o}])
""".replace(",\n        ", ",")
    if pad:
        text += f"    t1 = local(i8[1, {oh}, {ow}, {o}])\n"
    product = f"muli(extsi[i32](p0[0, j0 * {s} + m0, k0 * {s * c} + n0]), extsi[i32](p1[m0, n0, l0]))"
    total = f"reduce(addi(t0[0, j0, k0, l0], {product}), init=i32(0), over=(m0, n0))"
    text += f"""
    for j0 in serial({oh}):
        for k0 in serial({ow}):
            for l0 in serial({o}):
                for m0 in serial({kh}):
                    for n0 in serial({kw * c}):
                        s0: t0[0, j0, k0, l0] = {total}
    for j1 in serial({oh}):
        for k1 in serial({ow}):
            for l1 in serial({o}):
                s1: {out}[0, j1, k1, l1] = {at}
"""
    if not pad:
        return te.from_nest(text, constants=["p1", "p2", "p3", "p4"])
    border = [("k", f"0, {n}, k", ow + 2 * pad) for n in (*range(pad), *range(oh + pad, oh + 2 * pad))]
    border += [("k", f"0, k + {pad}, {n}", oh) for n in (*range(pad), *range(ow + pad, ow + 2 * pad))]
    for n, (_, place, extent) in enumerate(border, 2):
        text += f"""
    for k{n} in serial({extent}):
        for l{n} in serial({o}):
            s{n}: p7[{place.replace("k", f"k{n}")}, l{n}] = i8(-5)"""
    n = len(border) + 2
    text += f"""
    for j{n} in serial({oh}):
        for k{n} in serial({ow}):
            for l{n} in serial({o}):
                s{n}: p7[0, j{n} + {pad}, k{n} + {pad}, l{n}] = t1[0, j{n}, k{n}, l{n}]
"""
    return te.from_nest(text, constants=["p1", "p2", "p3", "p4"])


def depthwise(h, w, c, kh=3, kw=3, s=1, even=False):
    """i8 convolution of [h, w, c] that leaves channels apart, requantized."""
    oh, ow = (h - kh) // s + 1, (w - kw) // s + 1
    product = f"muli(extsi[i32](p0[j0 * {s} + m0, k0 * {s} + n0, l0]), extsi[i32](p1[m0, n0, l0]))"
    return te.from_nest(
        f"""
def depthwise(p0: i8[{h}, {w}, {c}], p1: i8[{kh}, {kw}, {c}], {params(c, False)}, p7: out(i8[{oh}, {ow}, {c}])):
    t0 = local(i32[{oh}, {ow}, {c}])
    for j0 in serial({oh}):
        for k0 in serial({ow}):
            for l0 in serial({c}):
                for m0 in serial({kh}):
                    for n0 in serial({kw}):
                        s0: t0[j0, k0, l0] = reduce(addi(t0[j0, k0, l0], {product}), init=i32(0), over=(m0, n0))
    for j1 in serial({oh}):
        for k1 in serial({ow}):
            for l1 in serial({c}):
                s1: p7[j1, k1, l1] = {requantized("t0[j1, k1, l1]", "l1", even)}
""",
        constants=["p1", "p2", "p3", "p4"],
    )


def matmul(m, k, n, scalar=False, even=False):
    """i8[m, k] @ i8[k, n], requantized."""
    product = "muli(extsi[i32](p0[i0, n0]), extsi[i32](p1[n0, l0]))"
    at = requantized("t0[i1, l1]", "l1", even)
    if scalar:
        at = at.replace("p3[l1]", "p3[()]").replace("p4[l1]", "p4[()]")
    return te.from_nest(
        f"""
def matmul(p0: i8[{m}, {k}], p1: i8[{k}, {n}], {params(n, scalar)}, p7: out(i8[{m}, {n}])):
    t0 = local(i32[{m}, {n}])
    for i0 in serial({m}):
        for l0 in serial({n}):
            for n0 in serial({k}):
                s0: t0[i0, l0] = reduce(addi(t0[i0, l0], {product}), init=i32(0), over=(n0,))
    for i1 in serial({m}):
        for l1 in serial({n}):
            s1: p7[i1, l1] = {at}
""",
        constants=["p1", "p2", "p3", "p4"],
    )


def float_matmul(m, k, n, constant=True, dtype="f32", relu=False):
    """[m, k] @ [k, n] of f32 or bf16, with sums and results of f32; with `relu`, where they are positive."""
    out = "t0" if relu else "p7"
    last = f"""
    for i1 in serial({m}):
        for l1 in serial({n}):
            s1: p7[i1, l1] = maximumf(t0[i1, l1], f32(0.0))
"""
    a, b = ("p0[i0, n0]", "p1[n0, l0]") if dtype == "f32" else ("extf[f32](p0[i0, n0])", "extf[f32](p1[n0, l0])")
    return te.from_nest(
        f"""
def matmul(p0: {dtype}[{m}, {k}], p1: {dtype}[{k}, {n}], p7: out(f32[{m}, {n}])):
    {f"t0 = local(f32[{m}, {n}])" if relu else ""}
    for i0 in serial({m}):
        for l0 in serial({n}):
            for n0 in serial({k}):
                s0: {out}[i0, l0] = reduce(addf({out}[i0, l0], mulf({a}, {b})), init=f32(0.0), over=(n0,))
{last if relu else ""}""",
        constants=["p1"] if constant else [],
    )


def softmax(m, n):
    """f32[m, n] along n, in four stages."""
    return te.from_nest(f"""
def softmax(p0: f32[{m}, {n}], p1: out(f32[{m}, {n}])):
    a = local(f32[{m}])
    b = local(f32[{m}, {n}])
    c = local(f32[{m}])
    for i0 in serial({m}):
        for j0 in serial({n}):
            s0: a[i0] = reduce(maxnumf(a[i0], p0[i0, j0]), init=f32(-inf), over=(j0,))
    for i1 in serial({m}):
        for j1 in serial({n}):
            s1: b[i1, j1] = exp(subf(p0[i1, j1], a[i1]))
    for i2 in serial({m}):
        for j2 in serial({n}):
            s2: c[i2] = reduce(addf(c[i2], b[i2, j2]), init=f32(0.0), over=(j2,))
    for i3 in serial({m}):
        for j3 in serial({n}):
            s3: p1[i3, j3] = mulf(b[i3, j3], divf(f32(1.0), c[i3]))
""")


def add_relu(m, n, bias=True):
    """f32[m, n] and a constant f32[n] (or, without `bias`, another f32[m, n]): their sum, where it is positive."""
    shape, at = (f"[{n}]", "[l0]") if bias else (f"[{m}, {n}]", "[i0, l0]")
    return te.from_nest(
        f"""
def add_relu(p0: f32[{m}, {n}], p1: f32{shape}, p7: out(f32[{m}, {n}])):
    t = local(f32[{m}, {n}])
    for i0 in serial({m}):
        for l0 in serial({n}):
            s0: t[i0, l0] = addf(p0[i0, l0], p1{at})
    for i1 in serial({m}):
        for l1 in serial({n}):
            s1: p7[i1, l1] = maximumf(t[i1, l1], f32(0.0))
""",
        constants=["p1"] if bias else [],
    )


def inputs(kernel, seed=0):
    """Arguments of a kernel: whole range of bytes, multipliers below one, shifts that keep some of the result. Every
    other multiplier has zeros at its end, so that there are exact halves."""
    rng, made = np.random.default_rng(seed), {}
    ranges = {"p2": (-9999, 9999), "p3": (1 << 30, (1 << 31) - 1), "p4": (3, 9)}
    for p in kernel.params:
        if p.name in kernel.outputs:
            continue
        if p.dtype in ("f32", "bf16"):
            made[p.name] = np.asarray(rng.standard_normal(p.shape)).astype(NUMPY[p.dtype])
        else:
            made[p.name] = np.asarray(rng.integers(*ranges.get(p.name, (-128, 128)), p.shape)).astype(NUMPY[p.dtype])
    if "p3" in made:
        made["p3"].reshape(-1)[::2] &= -1 << 29
    return made


def packed(nest, arrays):
    """Constants as the nest wants them."""
    return {n: (pack_array(a, nest.packs[n]) if n in nest.packs else a) for n, a in arrays.items()}


def reference(kernel, arrays):
    """What the kernel computes, by the interpreter."""
    (name,) = kernel.outputs
    return interpret_nest(parse_nest(str(Schedule(kernel))), arrays)[name]


def arguments(nest, arrays):
    """Arrays for all parameters of a nest, and the one of its result."""
    given = packed(nest, arrays)
    made = [
        np.ascontiguousarray(given[b.name]) if b.name in given else np.zeros(b.shape, NUMPY[b.dtype])
        for b in nest.params
    ]
    return made, made[[b.name for b in nest.params].index(nest.outputs[0])]


def compiled(kernel, listing, plan=None):
    """(nest, formats, program) of a kernel, by a plan or the best one."""
    selection = select(kernel, listing)
    formats = Formats(listing.chip)
    nest = TiledNest(selection, listing, plan or plans(selection, listing)[0][0]).build()
    return nest, formats, emit(nest, formats)


def computed(nest, formats, program, arrays):
    """What the program computes, by the functional simulator."""
    given, result = arguments(nest, arrays)
    Functional(formats).run(program, given)
    return result


def close(got, want):
    """Integers are equal bit for bit, floats as sums in another order may be."""
    if got.dtype.kind in "iu":
        return np.array_equal(got, want)
    return np.allclose(got, want, rtol=1e-5, atol=1e-5)
