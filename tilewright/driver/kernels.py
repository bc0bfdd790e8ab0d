"""Standalone kernels: compiles one scheduled loop nest to native code, or to text of the levels below."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..codegen.kernel_info import pack_array
from ..ir.context import use
from ..program.package import Package
from ..program.program import BufferRef, Call, Program, TensorInfo
from ..runtime.executable import Executable
from ..schedule.finish import finish
from ..schedule.machine import Machine
from ..schedule.nest import Nest
from ..schedule.schedule import Schedule
from ..support.errors import CompileError, InputError, UsageError
from ..support.options import DEFAULT_TARGET
from ..targets.base import Target, Tuning, of
from ..tensor.kernel import Kernel
from ..tensor.read import read_kernel
from .compare import random_inputs
from .service import compile as compile_model


def _tuning(target: Target) -> Tuning:
    """What builds single kernels for a target; UsageError if nothing does."""
    if (tuning := target.tuning()) is None:
        raise UsageError(f"target {target.name} does not build single kernels", stage="schedule")
    return tuning


class BuiltKernel:
    """A compiled kernel. Called with one array for each input it returns its result (a list if there are several).

    Constant inputs that the schedule packs are packed in each call; `time` packs them before it measures.
    """

    def __init__(self, nest: Nest, target: Target, threads: int | None = None, machine: Machine | None = None) -> None:
        """`machine`: what the kernel was scheduled for; None: what the target describes."""
        name = "kernel"
        description = machine or target.describe()
        (built,) = (
            _tuning(target).build({name: replace(nest, name=name)}, description, workers=1, timeout=600.0).values()
        )
        if isinstance(built, str):
            raise CompileError(f"kernel {nest.name} cannot be compiled: {built}", stage="schedule")
        self.nest, self.packs = nest, built.info.packs
        infos = [TensorInfo(p.name, p.shape, p.dtype) for p in nest.params]
        inputs = [i for i in infos if i.name not in nest.outputs]
        outputs = [i for i in infos if i.name in nest.outputs]
        refs, counts = [], {"input": 0, "output": 0}
        for info in infos:
            space = "output" if info.name in nest.outputs else "input"
            refs.append(BufferRef(space, counts[space], 0, info.nbytes))
            counts[space] += 1
        writes = tuple(i for i, p in enumerate(infos) if p.name in nest.outputs)
        call = Call(name, tuple(refs), writes, (), built.info.parallel, None, built.info.pieces)

        def linked(calls: tuple[Call, ...]) -> Package:
            program = Program(tuple(inputs), tuple(outputs), (), calls, scratch_size=built.info.scratch)
            objects = target.link(program, {name: built.data}, description)
            return Package(target.name, description.to_json(), program, objects, [])

        #: the `Executable` that runs the kernel once
        self.executable = Executable(linked((call,)), threads)
        # twice for `time`: in between all threads wait for each other
        self._link_twice: Callable[[], Package] = partial(linked, (call, call))
        self._twice: Executable | None = None

    def with_threads(self, threads: int) -> BuiltKernel:
        """The same code, run by so many threads."""
        other = copy(self)
        other.executable, other._twice = Executable(self.executable.package, threads), None
        return other

    def __call__(self, *arrays: object) -> np.ndarray | list[np.ndarray]:
        """The result for these inputs, in the order of the kernel's parameters; InputError says what does not fit."""
        results = self.executable(*self._packed(arrays))
        return results[0] if len(results) == 1 else results

    def time(self, *arrays: object, seconds: float = 0.3) -> float:
        """Seconds of one call, without what Python takes: the mean of the fastest third of as many runs as fit into
        `seconds`.

        Without arrays the inputs are random.
        """
        executable = self._twice = self._twice or Executable(self._link_twice(), self.executable.threads)
        if not arrays:
            made = random_inputs([(i.name, i.shape, i.numpy_dtype) for i in executable.inputs], 0)
            given: Sequence[object] = list(made.values())
        else:
            given = self._packed(arrays)
        taken: list[float] = []
        end = time.perf_counter() + seconds
        while not taken or time.perf_counter() < end:
            taken += executable.time_calls(given, runs=3, warm=False)[:, 1].tolist()
        taken.sort()
        return float(np.mean(taken[: max(1, len(taken) // 3)]))

    def _packed(self, arrays: Sequence[object]) -> list[object]:
        names = [p.name for p in self.nest.params if p.name not in self.nest.outputs]
        if len(arrays) != len(names):
            raise InputError(
                f"the kernel takes {len(names)} arrays ({', '.join(names)}), not {len(arrays)}", stage="run"
            )
        packs = {self.nest.params[i].name: p for i, p in self.packs.items()}
        return [pack_array(np.asarray(a), packs[n]) if n in packs else a for n, a in zip(names, arrays, strict=True)]


def build(s: Schedule, threads: int | None = None) -> BuiltKernel:
    """See `Schedule.build`."""
    return BuiltKernel(finish(s.nest()), _target(s), threads, s.machine())


def _target(s: Schedule) -> Target:
    """The target that builds a schedule. One that a rule made has a machine in its place, not a target: such machines
    are built by the default target, if that describes them."""
    if not isinstance(s.target, Machine):
        return of(s.target)
    target = of(DEFAULT_TARGET)
    if type(target.describe()) is not type(s.target):
        raise UsageError(
            f"the schedule of {s.kernel.name} is for a machine, of which no target is known",
            stage="schedule",
            hint="Schedule.replay(kernel, str(s.trace), target) makes one for a target",
        )
    return target


def source(s: Schedule, form: str = "mlir") -> str:
    """See `Schedule.source`."""
    nest = finish(s.nest())
    if form == "nest":
        return str(nest) + "\n"
    target = _target(s)
    forms = target.forms()
    if form not in forms:
        raise UsageError(
            f"target {target.name} has no form {form!r}", stage="schedule", hint=f"forms: {', '.join(('nest', *forms))}"
        )
    return forms[form](nest, s.machine())


def fused_kernels(source: object, **options: Any) -> list[Kernel]:
    """The kernels that a model (or MLIR text) becomes."""
    graph: Any = compile_model(source, **{**options, "stop_after": "fuse"})
    with use():
        return [read_kernel(f) for f in graph.functions()]


__all__ = ["BuiltKernel", "build", "fused_kernels", "source"]
