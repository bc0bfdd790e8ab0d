"""Measures the rooflines of an NVIDIA GPU: those of every device (`targets.gpu.ceilings`), and the peak of tensor
cores.

warps    each warp has a tile of 32 x 32 sums and its factors in registers          (mma)
groups   four warps have 64 x 128 sums, and their factors in shared memory          (wgmma, where there is such)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...schedule.ceilings import Ceilings
from ..gpu import ceilings
from ..gpu.ceilings import CeilingBench
from .description import CudaDescription

PRECISIONS = ("bf16", "f16")
#: blocks for each multiprocessor, which has several at a time
_BLOCKS = 8
#: steps of the loop, until a kernel takes long enough
_STEPS = (64, 1024, 16384)


def measure(bench: CeilingBench, machine: CudaDescription, name: str) -> Ceilings:
    """Measure a GPU; it takes seconds."""
    found = ceilings.measure(bench, name)
    peaks = {p: max(ceilings.rate(products(bench, machine, p, text)) for text in texts(machine)) for p in PRECISIONS}
    return replace(found, compute={**found.compute, **peaks})


def texts(machine: CudaDescription) -> list[str]:
    """The kernels that this GPU has instructions for."""
    groups = any(p.memory == "sums" for p in machine.warp_products)
    return [WARPS, GROUPS] if groups else [WARPS]


def products(bench: CeilingBench, machine: CudaDescription, precision: str, text: str) -> Iterator[tuple[float, float]]:
    """Operations and time of products on tensor cores."""
    blocks = _BLOCKS * machine.multiprocessors
    rows, columns, depth = (32, 128, 16) if text == WARPS else (64, 128, 64)
    factors = (rows, depth, *((16, 32) if text == WARPS else (columns, depth)))
    sizes = (2 * factors[0] * factors[1], 2 * factors[2] * factors[3], 4 * blocks * rows * columns)
    for steps in _STEPS:
        taken = bench.nanoseconds(text.format(t=precision, b=blocks, steps=steps), sizes)
        yield 2.0 * blocks * rows * columns * depth * steps, taken


WARPS = """
def warps(x: {t}[32, 16], z: {t}[16, 32], y: out(f32[{b}, 32, 128])):
    for b in grid.x({b}):
        p = shared({t}[32, 16])
        for pw in warp(4):
            for pl in lane(32):
                for pi in serial(4):
                    bring_x: p[pw * 8 + pl // 4, pl % 4 * 4 + pi] = x[pw * 8 + pl // 4, pl % 4 * 4 + pi]
        q = shared({t}[16, 32])
        for qw in warp(4):
            for ql in lane(32):
                for qi in serial(4):
                    bring_z: q[qw * 4 + ql // 8, ql % 8 * 4 + qi] = z[qw * 4 + ql // 8, ql % 8 * 4 + qi]
        barrier(block)
        c = fragment(f32[32, 128])
        for w in warp(4):
            a = fragment({t}[32, 16])
            for am in serial(32):
                for an in serial(16, notes={{'warp': 'ldmatrix'}}):
                    load_a: a[am, an] = p[am, an]
            d = fragment({t}[16, 32])
            for dm in serial(16):
                for dn in serial(32, notes={{'warp': 'ldmatrix'}}):
                    load_d: d[dm, dn] = q[dm, dn]
            for zm in serial(32):
                for zn in serial(32):
                    zero: c[zm, w * 32 + zn] = f32(0.0)
            for s in serial({steps}):
                for io in unroll(2):
                    for jo in unroll(4):
                        for i in serial(16):
                            for j in serial(8):
                                for k in serial(16, notes={{'warp': 'mma_{t}'}}):
                                    s0: c[io * 16 + i, w * 32 + jo * 8 + j] = addf(c[io * 16 + i, w * 32 + jo * 8 + j],
                                        mulf(extf[f32](a[io * 16 + i, k]), extf[f32](d[k, jo * 8 + j])))
        for sw in warp(4):
            for sm in serial(32):
                for sn in serial(32):
                    last: y[b, sm, sw * 32 + sn] = c[sm, sw * 32 + sn]
"""
GROUPS = """
def groups(x: {t}[64, 64], z: {t}[128, 64], y: out(f32[{b}, 64, 128])):
    for b in grid.x({b}):
        p = shared({t}[64, 64])
        for po in serial(4):
            for pg in group(1):
                for pm in member(128):
                    for pi in vector(8, lanes=8):
                        bring_x: p[po * 16 + pm // 8, xori(pm % 8, (po * 16 + pm // 8) % 8) * 8 + pi] = (
                            x[po * 16 + pm // 8, pm % 8 * 8 + pi])
        q = shared({t}[128, 64])
        for qo in serial(8):
            for qg in group(1):
                for qm in member(128):
                    for qi in vector(8, lanes=8):
                        bring_z: q[qo * 16 + qm // 8, xori(qm % 8, (qo * 16 + qm // 8) % 8) * 8 + qi] = (
                            z[qo * 16 + qm // 8, qm % 8 * 8 + qi])
        c = sums(f32[64, 128])
        barrier(block)
        for g in group(1):
            for zm in serial(64):
                for zn in serial(128):
                    zero: c[g * 64 + zm, zn] = f32(0.0)
            for s in serial({steps}):
                for ko in unroll(4):
                    for i in serial(64):
                        for j in serial(128):
                            for k in serial(16, notes={{'warp': 'wgmma_{t}_n128'}}):
                                s0: c[g * 64 + i, j] = addf(c[g * 64 + i, j], mulf(
                                    extf[f32](p[g * 64 + i, xori((ko * 16 + k) // 8, i % 8) * 8 + k % 8]),
                                    extf[f32](q[j, xori((ko * 16 + k) // 8, j % 8) * 8 + k % 8])))
        for sg in group(1):
            for sm in serial(64):
                for sn in serial(128):
                    last: y[b, sg * 64 + sm, sn] = c[sg * 64 + sm, sn]
"""
