"""Whole models for NVIDIA GPUs without one: each kernel in the emulator and through NVIDIA's assembler.

`CheckedDevice` runs a package's program as the runtime does, with this processor's own kernels. Where a kernel is
called first, the emulator runs some blocks of its grid (all of a small one) on the same arguments, and what these wrote
is compared. So every kernel is tried on the numbers of the model, at its full size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from support.cuda_emulator import run_some
from support.ptxas import Taken, assembled
from tilewright.codegen.gpu.launch import Launch
from tilewright.codegen.kernel_info import pack_array
from tilewright.codegen.nvptx.emitter import NvptxKernel
from tilewright.driver.compile_state import State
from tilewright.driver.compiler import compile_state
from tilewright.driver.kernels import BuiltKernel
from tilewright.program.package import Package
from tilewright.schedule.nest import Nest, Pack
from tilewright.schedule.rules import schedule
from tilewright.targets.base import find
from tilewright.targets.cuda.stages import CudaKernel
from tilewright.targets.gpu.device import BufferSlice, Dispatch, Run
from tilewright.targets.gpu.runner import GpuRunner
from tilewright.tensor.evaluate import NUMPY

#: threads that the emulator runs of a kernel, at least (the first and the last block always run)
THREADS = 512
#: how far results may be from the processor's, relative to the largest: sums in another order; one more or less in the
#: last of 8 digits of bf16
ALLOWED = {"f32": 1e-5, "bf16": 2**-7, "f16": 2**-10}


@dataclass
class Checked:
    """A kernel: the rule that made it, how it is launched, blocks that were run and the worst error of each dtype, why
    it failed if it did, and what it takes of each GPU."""

    name: str
    rule: str
    launch: Launch
    shared: int  # bytes of shared memory that a launch gives
    blocks: int = 0
    error: float = 0.0
    failed: str = ""
    taken: dict[str, Taken] | None = None


class CheckedModel:
    """A model compiled for a GPU, and what is known of its kernels. `known` are results of kernels by their text, so
    that one of several models is tried once."""

    def __init__(self, source: Any, target: str, known: dict[str, Checked] | None = None, **options: Any) -> None:
        self.state, _ = compile_state(source, target=target, cache=False, **options)
        assert self.state.package is not None
        self.package: Package = self.state.package
        self.known = {} if known is None else known
        self.kernels: dict[str, Checked] = {}

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of the model by this processor's kernels; afterwards `kernels` has what each of them does."""
        device = CheckedDevice(self)
        context = GpuRunner(self.package, lambda: device, CudaKernel.from_bytes).context()
        infos = self.package.program
        given = [np.ascontiguousarray(a, i.numpy_dtype) for a, i in zip(inputs, infos.inputs, strict=True)]
        made = [np.empty(o.shape, o.numpy_dtype) for o in infos.outputs]
        context.run([a.ctypes.data for a in given], [a.ctypes.data for a in made])
        return made

    def assemble(self, sm: Sequence[str], folder: Path) -> None:
        """What the assembler says of each kernel; AssertionError if it refuses one."""
        for name, data in self.package.objects.items():
            text = CudaKernel.from_bytes(data).ptx
            self.kernels[name].taken = {s: assembled(text, s, folder) for s in sm}


class CheckedDevice:
    """See the file, and `tilewright.targets.gpu.device.Device`. Buffers are arrays of bytes."""

    name = "a GPU that is not here"

    def __init__(self, model: CheckedModel) -> None:
        self.model = model
        self.references: dict[str, BuiltKernel] = {}

    def allocate(self, nbytes: int) -> np.ndarray:
        return np.zeros(nbytes, np.uint8)

    def write(self, buffer: np.ndarray, data: np.ndarray) -> None:
        buffer[: data.nbytes] = data

    def read(self, buffer: np.ndarray, out: np.ndarray) -> None:
        out[:] = buffer[: out.nbytes]

    def record(self, run: Run) -> Run:
        return run

    def run(self, recorded: Run, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        for part, array in zip(recorded.inputs, inputs, strict=True):
            _bytes(part)[:] = array
        for step in recorded.steps:
            if isinstance(step, Dispatch):
                self.call(step.kernel.name, step.arguments)
            else:
                _bytes(step.target)[:] = _bytes(step.source).copy()
        for part, array in zip(recorded.outputs, outputs, strict=True):
            array[:] = _bytes(part)

    def call(self, name: str, arguments: Sequence[BufferSlice]) -> None:
        """What the kernel computes, by this processor; the first time beside what the emulator makes of it."""
        state = self.model.state
        nest: Nest = state.nests[name]
        arrays = {}
        for p, a in zip(nest.params, arguments, strict=True):
            arrays[p.name] = _bytes(a).view(NUMPY[p.dtype]).reshape(p.shape)
        inputs = {n: a.copy() for n, a in arrays.items() if n not in nest.outputs}
        shapes = {p.name: p.shape for p in state.kernels[name].params}
        plain = {n: unpacked(a, nest.packs[n], shapes[n]) if n in nest.packs else a for n, a in inputs.items()}
        want = self.reference(name)(*plain.values())
        results = dict(zip(self.outputs(nest), [want] if isinstance(want, np.ndarray) else want, strict=True))
        if name not in self.model.kernels:
            self.model.kernels[name] = self.checked(state, name, inputs, results)
        for n, value in results.items():
            arrays[n][...] = value

    def outputs(self, nest: Nest) -> list[str]:
        return [p.name for p in nest.params if p.name in nest.outputs]

    def reference(self, name: str) -> BuiltKernel:
        """The same kernel as this processor's rules make it."""
        if name not in self.references:
            target = find("cpu")
            made = schedule(self.model.state.kernels[name], target.describe())
            self.references[name] = BuiltKernel(made.nest, target, 1)
        return self.references[name]

    def checked(self, state: State, name: str, inputs: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> Checked:
        nest, emitted = state.nests[name], self.emitted(name)
        key = sha256(emitted.text.replace(name, "").encode()).hexdigest()
        if key not in self.model.known:
            given = CudaKernel.from_bytes(self.model.package.objects[name]).shared
            found = Checked(name, state.schedules[name].rule, emitted.launch, given)
            self.model.known[key] = found
            compare(found, nest, emitted, inputs, want)
        known = self.model.known[key]
        return replace(known, name=name)

    def emitted(self, name: str) -> NvptxKernel:
        launched = CudaKernel.from_bytes(self.model.package.objects[name])
        launch = Launch(launched.grid, launched.block)
        return NvptxKernel(name, self.model.state.emitted[name], launch, {}, maps=launched.maps)


def compare(
    found: Checked, nest: Nest, emitted: NvptxKernel, inputs: dict[str, np.ndarray], want: dict[str, np.ndarray]
) -> None:
    """Note what some blocks of a kernel do."""
    blocks = some_blocks(emitted.launch)
    found.blocks = len(blocks)
    try:
        made = run_some(nest, emitted, inputs, blocks)
    except Exception as e:  # all that a kernel does wrong is wanted, not the first one
        found.failed = f"{type(e).__name__}: {e}"
        return
    dtypes = {p.name: p.dtype for p in nest.params}
    if not any(mark.any() for _, mark in made.values()):
        found.failed = "nothing was written"
    for n, (value, mark) in made.items():
        if len(blocks) == blocks_of(emitted.launch) and not mark.all():
            found.failed = f"{n} has elements that nobody wrote"
        error = difference(value[mark], want[n][mark], np.abs(_wide(want[n])).max(initial=0))
        found.error = max(found.error, error)
        if not error <= ALLOWED.get(dtypes[n], 0.0):
            found.failed = found.failed or f"{n} differs by {error:.2g} of its largest value"


def difference(a: np.ndarray, b: np.ndarray, largest: float) -> float:
    """The largest one, relative to the largest value; of integers how many differ."""
    if a.dtype.kind in "ib":
        return float((a != b).sum())
    a, b = _wide(a), _wide(b)
    other = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    apart = np.abs(a[other] - b[other])
    return float(apart.max(initial=0) / largest) if largest else float(apart.max(initial=0))


def _wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


def unpacked(a: np.ndarray, pack: Pack, shape: Sequence[int]) -> np.ndarray:
    """A constant as it was before it was laid out for a kernel."""
    place = pack_array(np.arange(1, prod(shape) + 1, dtype=np.int32).reshape(shape), pack).reshape(-1)
    plain = np.empty(prod(shape), a.dtype)
    plain[place[place > 0] - 1] = a.reshape(-1)[place > 0]
    return plain.reshape(shape)


def blocks_of(on: Launch) -> int:
    return prod(on.grid)


def some_blocks(on: Launch) -> list[int]:
    """The first, the last, and some drawn ones; all if there are few."""
    count, some = blocks_of(on), max(3, THREADS // on.threads)
    if count <= some:
        return list(range(count))
    drawn = np.random.default_rng(count).choice(np.arange(1, count - 1), some - 2, replace=False)
    return sorted({0, count - 1, *drawn.tolist()})


def _bytes(part: BufferSlice) -> np.ndarray:
    return part.buffer[part.offset : part.offset + part.nbytes]
