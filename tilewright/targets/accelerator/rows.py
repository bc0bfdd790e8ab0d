"""Loop splitting before instruction selection: a loop over all pixels becomes loops over rows and columns again, where
a later stage has them separate.

A convolution with a window of one pixel is a product with one row a pixel; what follows knows the image:

    for i in serial(64):                                  for i_0 in serial(8):
        t[i, o] = ...p[i, c]                                  for i_1 in serial(8):
    for y in serial(8):                            ->             t[i_0, i_1, o] = ...p[i_0 * 8 + i_1, c]
        for x in serial(8):                               for y in serial(8):
            q[y, x, o] = ...t[y * 8 + x, o]                   for x in serial(8):
                                                                  q[y, x, o] = ...t[y, x, o]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from ...tensor.expr import Expr, Load, Var, linear, loads, map_loads, substitute, variables
from ...tensor.kernel import Kernel, Stage

_T = TypeVar("_T")


def with_rows(kernel: Kernel) -> Kernel:
    """A kernel that computes the same with the same parameters; see above."""
    while (found := _found(kernel)) is not None:
        kernel = found.split(kernel)
    return kernel


@dataclass(frozen=True)
class _SplitDimension:
    """Dimension `axis` of a temporary: one loop, `var`, in the stage that writes it, loops of `sizes` where it is
    read."""

    buffer: str
    axis: int
    writer: Stage
    var: str
    sizes: tuple[int, ...]

    def split(self, kernel: Kernel) -> Kernel:
        old = kernel.buffer(self.buffer)
        new = replace(old, shape=self.instead(old.shape, self.sizes))
        return replace(
            kernel,
            temporaries=tuple(new if b is old else b for b in kernel.temporaries),
            stages=tuple(self.written(s) if s is self.writer else self.read(s) for s in kernel.stages),
        )

    def instead(self, whole: tuple[_T, ...], parts: tuple[_T, ...]) -> tuple[_T, ...]:
        """A tuple with several items at the place of the dimension."""
        return (*whole[: self.axis], *parts, *whole[self.axis + 1 :])

    def written(self, s: Stage) -> Stage:
        """The writer with several loops instead of one."""
        loops = tuple(Var(f"{self.var}_{n}") for n in range(len(self.sizes)))
        together: Expr = loops[0]
        for v, size in zip(loops[1:], self.sizes[1:], strict=True):
            together = together * size + v
        (t,) = s.targets
        apart = {t.buffer: self.instead(t.indices, loops)}
        value = map_loads(
            substitute(t.value, {self.var: together}), lambda e: replace(e, indices=apart.get(e.buffer, e.indices))
        )
        parts = [(v.name, n) for v, n in zip(loops, self.sizes, strict=True)]
        dims = tuple(d for v, n in s.dims for d in (parts if v == self.var else [(v, n)]))
        return replace(s, dims=dims, targets=(replace(t, indices=apart[t.buffer], value=value),))

    def read(self, s: Stage) -> Stage:
        """A reader that names the loops instead of adding them up."""

        def element(e: Load) -> Load:
            if e.buffer != self.buffer:
                return e
            return replace(e, indices=self.instead(e.indices, _loops(e.indices[self.axis])))

        return replace(s, targets=tuple(replace(t, value=map_loads(t.value, element)) for t in s.targets))


def _found(kernel: Kernel) -> _SplitDimension | None:
    for b in kernel.temporaries:
        writers = [s for s in kernel.stages if any(t.buffer == b.name for t in s.targets)]
        if len(writers) != 1 or len(writers[0].targets) != 1:
            continue
        (writer,) = writers
        indices = writer.targets[0].indices
        for axis, index in enumerate(indices):
            if not isinstance(index, Var) or sum(index.name in variables(i) for i in indices) != 1:
                continue
            sizes = _sizes(kernel, b.name, axis, writer)
            if sizes is not None and prod(sizes) == writer.extents[index.name]:
                return _SplitDimension(b.name, axis, writer, index.name, sizes)
    return None


def _sizes(kernel: Kernel, buffer: str, axis: int, writer: Stage) -> tuple[int, ...] | None:
    """The extents of the loops that count a dimension, if they are the same in all stages that read it and several."""
    found = {
        _counted(e.indices[axis], s)
        for s in kernel.stages
        for t in s.targets
        for e in loads(t.value)
        if s is not writer and e.buffer == buffer
    }
    sizes = found.pop() if len(found) == 1 else None
    return sizes if sizes is not None and len(sizes) > 1 else None


def _counted(index: Expr, s: Stage) -> tuple[int, ...] | None:
    """The extents of the loops that count an index, the slowest first: ``y * 8 + x`` with x in 0..7."""
    terms, constant = linear(index)
    sizes: tuple[int, ...] = ()
    for v in reversed(_loops(index)):
        if not isinstance(v, Var) or terms[v] != prod(sizes) or constant:
            return None
        sizes = (s.extents[v.name], *sizes)
    return sizes


def _loops(index: Expr) -> tuple[Expr, ...]:
    """What an index is the sum of, the largest steps first."""
    terms, _ = linear(index)
    return tuple(sorted(terms, key=lambda v: -terms[v]))
