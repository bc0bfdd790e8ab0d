"""An executable whose inputs have open dimensions: one program for all sizes in their ranges.

run = tw.compile("bert.onnx", inputs={"ids": (tw.Dim("batch", 1, 64), tw.Dim("seq", 1, 512))})
y, = run(np.zeros((1, 17), np.int64))
y, = run(np.zeros((8, 128), np.int64))      # compiles nothing
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from ..program.open_sizes import OpenSizes
from ..program.package import Package
from ..program.program import TensorInfo
from ..program.states import StateBuffers
from ..support.aligned import address
from ..support.errors import PackageError, UsageError
from ..targets import base
from . import arrays
from .executable import Executable

#: sizes whose tables are kept, those used last
_KEPT = 256


@dataclass(frozen=True)
class Bound:
    """What a program needs for sizes: the table that it reads, the bytes of the arena, its inputs and outputs."""

    table: np.ndarray
    arena: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    @cached_property
    def address(self) -> int:
        """Where the table lies."""
        return address(self.table)

    @cached_property
    def makers(self) -> list[Callable[[], np.ndarray]]:
        """Functions that make arrays for the outputs."""
        return [arrays.maker(t) for t in self.outputs]


class OpenExecutable(Executable):
    """A program for all sizes of its open dimensions; made by `tilewright.compile` and `tilewright.load`.

    `inputs` and `outputs` have formulas as sizes: ``ids: i64[batch, seq]``. The first call of a size computes where
    everything lies; nothing is compiled. The arena grows with the largest size that was called.

    InputError where a size is not in the range of its dimension, or two inputs do not agree.
    """

    def __init__(self, package: Package, threads: int | None = None, buffers: StateBuffers | None = None) -> None:
        super().__init__(package, threads, buffers)
        assert package.program.open is not None
        self.sizes: OpenSizes = package.program.open
        self._typical_inputs, self._typical_outputs = list(self.inputs), list(self.outputs)
        self.inputs = _open(self.inputs, self.sizes.inputs)
        self.outputs = _open(self.outputs, self.sizes.outputs)
        self._bound: OrderedDict[tuple[tuple[int, ...], ...], Bound] = OrderedDict()

    def _load(self, threads: int) -> base.Runner:
        if not isinstance(self._target, base.SizeTaker):
            name = self._package.target
            raise PackageError(f"the package has open dimensions, target {name!r} has none", stage="load")
        return self._target.load_with_sizes(self._package, threads)

    def __call__(
        self, /, *args: Any, out: Sequence[np.ndarray] | Mapping[str, np.ndarray] | None = None, **named: Any
    ) -> list[np.ndarray]:
        """Run the model on arrays of any sizes in range; as `Executable.__call__` otherwise."""
        if named:
            args = arrays.with_named(self.inputs, args, named)
        return self._judged(self.run_all(args, out))

    def run_all(self, args: tuple[Any, ...], out: Any = None) -> list[np.ndarray]:
        """A call that gives all `results` and judges none of them."""
        values = self._values(args)
        bound = self._bound_for(tuple([v.shape for v in values]))
        given = [arrays.to_array(v, t, bound.inputs) for v, t in zip(values, bound.inputs, strict=True)]
        pointers = [address(a) for a in given]
        if out is None:
            results = [make() for make in bound.makers]
            addresses = [address(a) for a in results]
        else:
            results, addresses = arrays.check_outputs(out, bound.outputs, given, pointers)
        context = self._take()
        try:
            cast(base.SizedContext, context).resize(bound.address, bound.arena)  # as `SizeTaker` promises
            context.run(pointers, addresses)
        finally:
            self._give(context)
        return results

    def _values(self, args: tuple[Any, ...]) -> list[np.ndarray]:
        """The arguments as arrays, in order; their shapes are not checked yet."""
        if self._draws:
            args = self._with_key(args)
        infos = self.arguments
        given = list(args)
        if len(given) != len(infos) or (len(args) == 1 and isinstance(args[0], Mapping)):
            given = arrays.bind(infos, args)
        return [
            v if isinstance(v, np.ndarray) else arrays.imported(v, t, self.inputs)
            for v, t in zip(given, infos, strict=True)
        ]

    def _bound_for(self, shapes: tuple[tuple[int, ...], ...]) -> Bound:
        """What the program needs for inputs of these shapes; InputError if there is no such size."""
        found = self._bound.get(shapes)
        if found is None:
            sizes = self.sizes.sizes(shapes, [t.name for t in self.arguments])
            table, arena = self.sizes.table(sizes)
            infos = tuple(replace(t, shape=s) for t, s in zip(self.arguments, shapes, strict=True))
            made = self.sizes.shapes(sizes)
            outputs = tuple(replace(t, shape=s) for t, s in zip(self.results, made, strict=True))
            found = self._bound[shapes] = Bound(np.array(table, np.int64), arena, infos, outputs)
            while len(self._bound) > _KEPT:
                self._bound.popitem(last=False)
        return found

    def _bind(self, args: tuple[Any, ...]) -> list[np.ndarray]:
        raise UsageError(
            "a program with open dimensions is measured at fixed sizes only",
            stage="run",
            hint="compile it with inputs={name: shape} for the sizes in question",
        )


def _open(infos: Sequence[TensorInfo], shapes: Sequence[tuple[Any, ...]]) -> list[TensorInfo]:
    return [replace(t, shape=s) for t, s in zip(infos, shapes, strict=False)]


def make(package: Package, threads: int | None = None, buffers: StateBuffers | None = None) -> Executable:
    """The executable of a package: one for all sizes if it has open dimensions."""
    kind = OpenExecutable if package.program.open is not None else Executable
    return kind(package, threads, buffers)


__all__ = ["OpenExecutable", "make"]
