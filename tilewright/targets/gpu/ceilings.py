"""Measures the rooflines of a device by four microbenchmarks, for profiles (`schedule.ceilings`).

    peak    multiply-adds on registers, in several chains     read   sums over memory
    write   one value to all of memory                        copy   one buffer to another

They are loop nests, emitted as those of models are. Each is run with more and more work until it takes long enough to
be measured; the fastest counts. In every pass over memory a block has another part of it than in the one before, far
from that: else compilers would see that one pass is enough, and caches would have what the neighbours had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...schedule.ceilings import Ceilings, Level
from ...schedule.machine import Machine
from ...schedule.nest import Nest
from ...schedule.parse import parse_nest
from .device import BufferSlice, Device, DeviceKernel, Dispatch, Run

#: threads of a block, at most 256 on some devices; blocks of kernels on registers
_UNITS, _PEAK_BLOCKS = 256, 2048
#: blocks of kernels over memory: few with long loops (GPUs), or one for each piece of memory without loops (processors,
#: whose drivers make vectors of threads); and so many of them along x at most
_BLOCKS, _SIDE = (1024, 1 << 40), 1024
_F32 = 4
#: bytes that are gone over, the last as far as the device has it; names of what is as fast as with so many in use
_SIZES = (2 << 20, 16 << 20, 256 << 20)
#: chains of multiply-adds: a few leave registers to many threads, many keep a processor busy that has one
_CHAINS = (8, 32)
#: how often a loop in a kernel is run, the next where a kernel ends sooner than can be measured
_STEPS, _PASSES = (64, 1024, 16384), (1, 8, 64, 512)
_LONG_ENOUGH_NS = 1e6
#: the part of its memory that a block leaves out between two passes
_FAR = 0.618
#: how often a kernel is run at most, and when that has taken enough time
_RUNS, _ENOUGH_NS = 8, 2e8


def measure(bench: CeilingBench, name: str) -> Ceilings:
    """Measure a device; it takes seconds."""
    peak = max(rate(bench.peak(chains)) for chains in _CHAINS)
    most = 1 << (min(_SIZES[-1], bench.device.largest // 2).bit_length() - 1)
    sizes = [*(s for s in _SIZES[:-1] if s < most), most]
    levels = tuple(bench.level(size, None if size == most else size) for size in sizes)
    return Ceilings(name, 1, {"f32": peak}, levels)


def rate(tried: Iterator[tuple[float, float]]) -> float:
    """The best rate of work a second, over kernels with more and more of it."""
    best = 0.0
    for work, taken in tried:
        best = max(best, work / taken * 1e9)
        if taken > _LONG_ENOUGH_NS:
            break
    return best


class CeilingBench:
    """A device, for which `built` makes kernels of nests for this machine."""

    def __init__(self, built: Callable[[Nest], DeviceKernel], machine: Machine, device: Device) -> None:
        self.built, self.machine, self.device = built, machine, device

    def nanoseconds(self, text: str, sizes: tuple[int, ...]) -> float:
        """The fastest run of a kernel on buffers of so many bytes."""
        kernel = self.built(parse_nest(text.strip(), self.machine))
        parts = tuple(BufferSlice(self.device.allocate(n), 0, n) for n in sizes)
        for p in parts:  # memory that was never written to may be one page of zeros
            self.device.write(p.buffer, np.full(p.nbytes // _F32, 0.5, np.float32).view(np.uint8))
        recorded, taken = self.device.record(Run((Dispatch(kernel, parts),))), list[float]()
        while len(taken) < _RUNS and sum(taken) < _ENOUGH_NS:
            begin, end = self.device.run_timed(recorded, (), ()).steps[0]
            taken.append(max(float(end - begin), 1.0))
        return min(taken)

    def peak(self, chains: int) -> Iterator[tuple[float, float]]:
        """Measures arithmetic: operations and time of multiply-adds."""
        for steps in _STEPS:
            text = _PEAK.format(u=_UNITS, b=_PEAK_BLOCKS, c=chains, steps=steps, n=_UNITS * _PEAK_BLOCKS)
            taken = self.nanoseconds(text, (_UNITS * _F32, _UNITS * _PEAK_BLOCKS * _F32))
            yield 2.0 * _UNITS * _PEAK_BLOCKS * chains * steps, taken

    def level(self, size: int, capacity: int | None) -> Level:
        """Measures bandwidth: reading, writing and copying with a working set of so many bytes."""
        name = "memory" if capacity is None else f"{size >> 20} MB"
        return Level(name, capacity, *(max(self.speeds(text, size)) for text in (_READ, _WRITE, _COPY)))

    def speeds(self, text: str, size: int) -> Iterator[float]:
        """Bytes a second of a kernel in few blocks and in many."""
        each = size // (2 if text == _COPY else 1) // _F32
        for blocks in sorted({min(b, each // _UNITS) for b in _BLOCKS}):
            yield rate(self.passes(text, size, each, blocks))

    def passes(self, text: str, size: int, each: int, blocks: int) -> Iterator[tuple[float, float]]:
        """Bytes and time of passes over memory: `each` elements of a buffer, shared out among so many blocks."""
        read = each if text != _WRITE else _UNITS
        written = each if text != _READ else _UNITS * blocks
        for passes in _PASSES:
            steps, x, y = each // _UNITS // blocks, min(blocks, _SIDE), max(blocks // _SIDE, 1)
            far = int(blocks * _FAR) | 1
            at = f"((h * {x} + b + p * {far}) % {blocks} * {steps} + i) * {_UNITS} + u"
            filled = text.format(u=_UNITS, gx=x, gy=y, p=passes, i=steps, at=at, read=read, written=written)
            yield float(size * passes), self.nanoseconds(filled, (read * _F32, written * _F32))


_PEAK = """
def peak(x: f32[{u}], y: out(f32[{n}])):
    for b in grid.x({b}):
        for u in block.x({u}):
            a = register(f32[{u}, {c}])
            for c in unroll({c}):
                s0: a[u, c] = x[(u + c) % {u}]
            for i in serial({steps}):
                for d in unroll({c}):
                    s1: a[u, d] = fma(a[u, d], f32(0.5), f32(0.25))
            s2: y[b * {u} + u] = f32(0.0)
            for e in unroll({c}):
                s3: y[b * {u} + u] = addf(y[b * {u} + u], a[u, e])
"""
_READ = """
def read(x: f32[{read}], y: out(f32[{written}])):
    for h in grid.y({gy}):
        for b in grid.x({gx}):
            for u in block.x({u}):
                a = register(f32[{u}])
                s0: a[u] = f32(0.0)
                for p in serial({p}):
                    for i in serial({i}):
                        s1: a[u] = addf(a[u], x[{at}])
                s2: y[(h * {gx} + b) * {u} + u] = a[u]
"""
_WRITE = """
def write(x: f32[{read}], y: out(f32[{written}])):
    for h in grid.y({gy}):
        for b in grid.x({gx}):
            for u in block.x({u}):
                for p in serial({p}):
                    for i in serial({i}):
                        s0: y[{at}] = x[u]
"""
_COPY = """
def copy(x: f32[{read}], y: out(f32[{written}])):
    for h in grid.y({gy}):
        for b in grid.x({gx}):
            for u in block.x({u}):
                for p in serial({p}):
                    for i in serial({i}):
                        s0: y[{at}] = x[{at}]
"""
