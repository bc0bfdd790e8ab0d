"""The executable of one dynamic-shape program: it binds the sizes of each call, and serves all in their ranges.

run = tw.compile("bert.onnx", inputs={"ids": (tw.Dim("batch", 1, 64), tw.Dim("seq", 1, 512))})
y, = run(np.zeros((1, 17), np.int64))
y, = run(np.zeros((8, 128), np.int64))      # compiles nothing
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..program.open_sizes import SizeTable
from ..program.package import Package
from ..program.program import TensorInfo
from ..program.states import StateBuffers
from ..program.versions import Limits, Versions
from ..support.aligned import address
from ..support.errors import InputError, PackageError
from ..support.formulas import evaluate
from ..support.notebook import NotebookText
from ..support.numbers import count
from ..targets import base
from . import arrays
from .background import Background, shapes_of
from .executable import Executable

if TYPE_CHECKING:
    from .profile import Profile

log = logging.getLogger("tilewright")

#: sizes whose tables are kept, those used last
KEPT = 256


@dataclass(frozen=True)
class SizeBinding:
    """What a program needs for sizes: the table that it reads, the bytes of the arena, its inputs and outputs."""

    table: np.ndarray
    arena: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    #: how long states that grow are afterwards
    lengths: tuple[int, ...] = ()
    #: what contexts are prepared with before a call (`targets.base.Context.expect`)
    forms: Any = None

    @cached_property
    def address(self) -> int:
        """Where the table lies."""
        return address(self.table)

    @cached_property
    def dtypes(self) -> list[np.dtype]:
        """Of the inputs."""
        return [t.numpy_dtype for t in self.inputs]

    def dense(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Arrays of these shapes as the program takes them; InputError for those of another dtype."""
        given = list(values)
        for i, (value, dtype) in enumerate(zip(values, self.dtypes, strict=True)):
            # The usual case without a function call, as in `Executable._bind`; the shapes are those of the table.
            flags = value.flags
            if value.dtype != dtype or not (flags.c_contiguous and flags.aligned):
                given[i] = arrays.to_array(value, self.inputs[i], self.inputs)
        return given

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
        self.sizes: SizeTable = package.program.open
        self.inputs = _open(self.inputs, map(self.sizes.shown, self.sizes.inputs))
        self.outputs = _open(self.outputs, map(self.sizes.shown, self.sizes.outputs))
        #: states that grow, with their buffers
        self._growing = [
            (s.name, s.growth, b)
            for s, b in zip(self._buffers.infos, self._buffers.buffers, strict=True)
            if s.growth is not None
        ]
        self._bound: Versions[tuple[tuple[int, ...], ...], SizeBinding, None] = Versions(Limits(KEPT))
        #: compiles specializations for fixed sizes in the background; None: nothing does (`background.Background`)
        self.background: Background | None = None

    def _load(self, threads: int) -> base.ProgramRunner:
        if not self._target.takes_sizes:
            name = self._package.target
            raise PackageError(f"the package has open dimensions, target {name!r} has none", stage="load")
        return super()._load(threads)

    def __call__(
        self, /, *args: object, out: Sequence[np.ndarray] | Mapping[str, np.ndarray] | None = None, **named: object
    ) -> list[np.ndarray]:
        """Run the model on arrays of any sizes in range; as `Executable.__call__` otherwise."""
        if named:
            args = arrays.with_named(self.inputs, args, named)
        if (background := self.background) is None:
            found = self._at_once(args) if out is None else None
            return self._judged(self.run_all(args, out) if found is None else found)
        shapes = shapes_of(self.inputs, args)
        if (special := background.program(shapes)) is not None:
            return special(*args, out=out)
        results = self._judged(self.run_all(args, out))
        background.called(shapes)
        return results

    def _at_once(self, args: tuple[Any, ...]) -> list[np.ndarray] | None:
        """All results of a call with plain arrays of a size that was called before; None where nothing has run."""
        if self._draws:  # a key that is drawn must be used
            return None
        if len(args) == 1 and type(args[0]) is dict and len(args[0]) == len(self._names):
            args = tuple(map(args[0].get, self._names))
        try:
            bound = self._bound.get(tuple([a.shape for a in args]))
        except (AttributeError, TypeError):
            return None
        if bound is None or bound.forms is None:
            return None
        results = [make() for make in bound.makers]
        context = self._take()
        try:
            context.resize(bound.address, bound.arena)
            context.expect(bound.forms)
            done = context.enter(*args, *results)
            if done > 1:
                context.judge()
        finally:
            self._give(context)
        return results if done else None

    def at_sizes(self, sizes: Mapping[str, int]) -> Callable[[Sequence[int], Sequence[int]], None]:
        """`run_at` for these sizes of the dimensions, in their ranges, which the caller answers for too."""
        found, arena = self.sizes.table(sizes)
        table = np.array(found, np.int64)
        place = address(table)

        def run_at(inputs: Sequence[int], outputs: Sequence[int], table: np.ndarray = table) -> None:
            context = self._take()
            try:
                context.resize(place, arena)
                context.run(inputs, outputs)
            finally:
                self._give(context)

        return run_at

    def run_with_sizes(self, sizes: Mapping[str, int], *args: np.ndarray) -> list[np.ndarray]:
        """A call where these are the sizes of dimensions, which inputs need not have."""
        return self._judged(self._run(self._values(args), None, None, sizes))

    def run_all(
        self, args: tuple[object, ...], out: Sequence[np.ndarray] | Mapping[str, np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """A call that gives all `results` and judges none of them."""
        values = self._values(args)
        if not self._growing:
            return self._run(values, out, None)
        context = self._take()  # before one looks how long the states are
        try:
            return self._run(values, out, context)
        finally:
            self._give(context)

    def _run(
        self,
        values: Sequence[np.ndarray],
        out: Sequence[np.ndarray] | Mapping[str, np.ndarray] | None,
        taken: base.Context | None,
        sizes: Mapping[str, int] | None = None,
    ) -> list[np.ndarray]:
        """The results for arrays of any shapes, of the context that is taken, or of one that is for the run alone."""
        bound = self._bound_for(tuple([v.shape for v in values]), sizes)
        given = bound.dense(values)
        pointers = [address(a) for a in given]
        if out is None:
            results = [make() for make in bound.makers]
            addresses = [address(a) for a in results]
        else:
            results, addresses = arrays.check_outputs(out, bound.outputs, given, pointers)
        context = self._take() if taken is None else taken
        try:
            context.resize(bound.address, bound.arena)
            context.run(pointers, addresses)
            for (_, _, buffer), length in zip(self._growing, bound.lengths, strict=True):
                buffer.length = length
        finally:
            if taken is None:
                self._give(context)
        return results

    def _values(self, args: tuple[object, ...]) -> list[np.ndarray]:
        """The arguments as arrays, in order; their shapes are not checked yet."""
        if self._draws:
            args = self._with_key(args)
        infos = self.arguments  # of typical sizes, which are none of the caller's business
        given = list(args)
        if len(given) != len(infos) or (len(args) == 1 and isinstance(args[0], Mapping)):
            given = arrays.bind([*self.inputs, *infos[len(self.inputs) :]], args)
        return [
            v if isinstance(v, np.ndarray) else arrays.imported(v, t, self.inputs)
            for v, t in zip(given, infos, strict=True)
        ]

    def _bound_for(self, shapes: tuple[tuple[int, ...], ...], known: Mapping[str, int] | None = None) -> SizeBinding:
        """What the program needs for inputs of these shapes, states of their lengths, and sizes that are `known`;
        InputError if there is no such size, or no room for what it would append."""
        key = (*shapes, tuple([b.length for _, _, b in self._growing])) if self._growing else shapes
        if known is not None:
            key = (*key, tuple(known.values()))
        found = self._bound.get(key)
        if found is None:
            states = [(name, growth.before, buffer.length) for name, growth, buffer in self._growing]
            sizes = self.sizes.sizes(shapes, [t.name for t in self.arguments], states, known or {})
            lengths = self._lengths(sizes)
            table, arena = self.sizes.table(sizes)
            infos = tuple(replace(t, shape=s) for t, s in zip(self.arguments, shapes, strict=True))
            made = self.sizes.shapes(sizes)
            outputs = tuple(replace(t, shape=s) for t, s in zip(self.results, made, strict=True))
            forms = self._runner.forms_of(infos, outputs)
            found = SizeBinding(np.array(table, np.int64), arena, infos, outputs, lengths, forms)
            self._bound.keep(key, found)
        return found

    def _lengths(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """How long states that grow will be; InputError if there is no room for that."""
        after = [growth.after for _, growth, _ in self._growing]
        lengths = evaluate(after, self.sizes.values(sizes)) if after else ()
        for (name, growth, buffer), length in zip(self._growing, lengths, strict=True):
            most = buffer.tensor.shape[growth.axis]
            if length > most:
                raise InputError(
                    f"state {name!r} has room for {most} rows, and this call would make them {length}",
                    stage="run",
                    hint=f"reset() empties it; it was compiled with {growth.before}:0..{most}",
                )
        return lengths

    def profile(self, inputs: Mapping[str, object] | Sequence[object], repeats: int = 20) -> Profile:
        """As `Executable.profile`; the program that a call of these sizes runs is measured. Work and bytes of the
        program for all sizes are known at typical sizes; at others there are times alone."""
        if self.background is not None:
            special = self.background.program(shapes_of(self.inputs, arrays.spread(inputs)))
            if special is not None:
                return special.profile(inputs, repeats)
        from .profile import make_profile

        values = self._values(arrays.spread(inputs))
        typical = [v.shape for v in values] == [t.shape for t in self.arguments]
        return make_profile(self, inputs, repeats, counted=typical)

    def explain(self) -> NotebookText:
        """What was compiled, as text, and the sizes that have programs of their own."""
        more = self.background.describe() if self.background is not None else []
        return NotebookText("\n".join([super().explain(), *more]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program for all sizes to one file that `tilewright.load` reads, without those for single sizes;
        UsageError if that is not possible."""
        super().save(path)
        if self.background is not None:
            log.warning(
                "%s has the program for all sizes only: what is loaded from it has no model that programs for single "
                "sizes could be compiled from",
                path,
            )

    def close(self) -> None:
        """End the threads of all contexts that are free, and what is compiled in the background; the executable can
        still be called."""
        if self.background is not None:
            self.background.close()
        super().close()

    def __repr__(self) -> str:
        text = super().__repr__()
        if self.background is None:
            return text
        return f"{text[:-1]}, {count(len(self.background.sizes()), 'size')} specialized>"

    def _for_timing(
        self, args: tuple[object, ...]
    ) -> tuple[list[np.ndarray], list[np.ndarray], Callable[[base.Context], None]]:
        values = self._values(args)
        bound = self._bound_for(tuple([v.shape for v in values]))

        def prepare(context: base.Context) -> None:
            context.resize(bound.address, bound.arena)

        return bound.dense(values), [make() for make in bound.makers], prepare


def _open(infos: Sequence[TensorInfo], shapes: Iterable[tuple[Any, ...]]) -> list[TensorInfo]:
    return [replace(t, shape=s) for t, s in zip(infos, shapes, strict=False)]


def make(package: Package, threads: int | None = None, buffers: StateBuffers | None = None) -> Executable:
    """The executable of a package: one for all sizes if it has open dimensions."""
    kind = OpenExecutable if package.program.open is not None else Executable
    return kind(package, threads, buffers)


__all__ = ["OpenExecutable", "make"]
