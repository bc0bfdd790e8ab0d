"""Dynamic shapes without bounds from the user: default ranges of the dimensions, and one program for all sizes in them.

run = tw.compile("bert.onnx")               # ids: i64[batch, sequence]: for batch 1 to 64, sequence 1 to 512
y, = run(np.zeros((1, 128), np.int64))      # compiles nothing
y, = run(np.zeros((8, 77), np.int64))       # nor does this

See docs/open_dimensions.md.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..program.versions import Limits, Versions, making, reach
from ..support.dims import ChosenDim
from ..support.errors import InputError, ModelError, TilewrightError
from ..support.formulas import numbered
from .background import Shapes, sizes_of_inputs
from .open_executable import OpenExecutable
from .parts import DynamicInfo

if TYPE_CHECKING:
    import numpy as np

    from .dynamic import DynamicExecutable

log = logging.getLogger("tilewright")

#: the largest size of a dimension, and the one that questions of the model are answered for, where no call tells them:
#: of the first dimension of an input (a batch), of those of an image, of all others
BATCH, IMAGE, LENGTH = (64, 8), (1024, 32), (4096, 64)
#: programs that are kept, and failures to make one after which nothing more is tried
MOST_PROGRAMS, MOST_REFUSALS = 8, 2


class OpenVersions:
    """Makes the open versions of a `DynamicExecutable`: one program for all sizes, and more for sizes that it does not
    serve, such as those beyond its ranges, or a 0. Each is made in the caller. Where a model cannot be compiled for all
    sizes at once, nothing is served here: a program is then made for each size, in its call.
    """

    def __init__(
        self, run: DynamicExecutable, compile: Callable[[dict[str, tuple[int | str | ChosenDim, ...]]], OpenExecutable]
    ) -> None:
        """`compile` makes the executable for the option `inputs`."""
        self.inputs, self.name, self.compile = run.inputs, run.name, compile
        #: one that serves all sizes of another takes its place: it was made because they were too few
        self.versions: Versions[Shapes, OpenExecutable, OpenExecutable] = Versions(
            Limits(0), bind=_takes, covers=_covers, drop=run.drop
        )
        tensors = all(t.kind == "tensor" and t.shape is not None for t in run.inputs)
        #: nothing more is tried
        self.refused = not tensors or all(isinstance(d, int) for t in run.inputs for d in t.shape or ())
        self._refusals, self._warned = 0, False

    @property
    def programs(self) -> list[OpenExecutable]:
        """Those there are, the latest first."""
        return self.versions.open

    def program_for(self, given: Mapping[str, np.ndarray]) -> OpenExecutable | None:
        """The program that serves inputs by name, which are checked; made if there is none yet. None if no program can
        serve them all."""
        if self.refused and not self.programs:
            return None
        shapes = tuple([given[t.name].shape for t in self.inputs])
        return self.versions.obtain(shapes, lambda: self._make(shapes))

    def prepare(self) -> None:
        """Make the program for usual sizes, before anything is called."""
        with making():
            if not self.programs and (made := self._make(None)) is not None:
                self.versions.widen(made)

    def _make(self, shapes: Shapes | None) -> OpenExecutable | None:
        """A program around these shapes, or around usual ones."""
        if self.refused or len(self.programs) >= MOST_PROGRAMS:
            return None
        wanted = self._ranges(shapes)
        if not any(isinstance(d, ChosenDim) for dims in wanted.values() for d in dims):
            return None
        try:
            made: OpenExecutable = self.compile(wanted)
        except TilewrightError as e:
            self._failed(e, shapes)
            return None
        log.info("%s: compiled for all sizes of %s", self.name, ", ".join(map(str, made.sizes.dims)))
        return made

    def _failed(self, error: TilewrightError, shapes: Shapes | None) -> None:
        """There is no such program. Sizes that a model refuses say nothing about others."""
        if shapes is not None and isinstance(error, (InputError, ModelError)):
            return
        self._refusals += 1
        # Of usual sizes it is not known that the model takes them, so a call's are tried, where the import failed.
        final = shapes is not None or error.run_time or error.stage not in (None, "import", "specialize")
        self.refused = self._refusals >= MOST_REFUSALS or (final and not self.programs)
        warn = self.refused and not (error.run_time or self._warned)
        self._warned |= warn
        what = "cannot be compiled for all sizes at once, so each new size is compiled in its call"
        if error.run_time:
            what = "runs in parts, which are compiled when it is called"
        log.log(logging.WARNING if warn else logging.INFO, "%s: %s: %s", self.name, what, error.message)

    def _ranges(self, shapes: Shapes | None) -> dict[str, tuple[int | str | ChosenDim, ...]]:
        """The option `inputs`: known sizes, and a range for each open one that holds these shapes and all before."""
        dims = _dimensions(self.inputs)
        before = {d.name: d.high for p in self.programs for d in p.sizes.dims}
        chosen: dict[str, int | ChosenDim] = {}
        for t, names, shape in zip(self.inputs, dims, shapes or [None] * len(dims), strict=True):
            for axis, name in enumerate(names):
                if isinstance(name, int) or name in chosen or not name.isidentifier():
                    continue
                high, point = _usual(t, axis)
                n, largest = point if shape is None else shape[axis], before.get(name, high)
                high = reach(n, 0) if n > largest else max(high, largest)
                chosen[name] = ChosenDim(name, 0 if _grows(self.inputs, name, dims) else 1, high, point=n) if n else 0
        return {
            t.name: tuple(d if isinstance(d, int) else _with(d, chosen) for d in names)
            for t, names in zip(self.inputs, dims, strict=True)
        }

    def describe(self) -> list[str]:
        """What `DynamicExecutable.explain` says of it."""
        if not self.programs:
            return ["", "no program for all sizes" + (": each is compiled in its call" if self.refused else " yet")]
        lines: list[str] = []
        for program in self.programs:
            lines += ["", f"one program for {', '.join(map(str, program.sizes.dims))}"]
            lines += [f"  {line}".rstrip() for line in program.explain().splitlines()]
        return lines


def _dimensions(inputs: Sequence[DynamicInfo]) -> list[list[int | str]]:
    """For each input its sizes, names of dimensions, and formulas of those of others, as exporters write them.

    >>> ids, mask = DynamicInfo("ids", ("batch", None), "i64"), DynamicInfo("mask", ("batch", "past + ids"), "f32")
    >>> _dimensions([ids, mask, DynamicInfo("past", ("past", "ids", 4), "f32")])
    [['batch', 'ids_1'], ['batch', 'past + ids'], ['past', 'ids', 4]]
    """
    names: dict[int | str | None, str] = {}
    plain = tuple({d for t in inputs for d in t.shape or () if isinstance(d, str) and d.isidentifier()})

    def name(d: int | str | None, info: DynamicInfo, axis: int) -> int | str:
        if isinstance(d, int):
            return d
        return d if d is not None and _formula(d, plain) else _identifier(d or f"{info.name}_{axis}", names)

    return [[name(d, t, axis) for axis, d in enumerate(t.shape or ())] for t in inputs]


def _formula(text: str, names: tuple[str, ...]) -> bool:
    """Whether the name of a dimension says what it is made of."""
    if text in names:
        return False
    try:
        numbered(text, names)
    except ValueError:
        return False
    return not text.isdecimal()


def _usual(info: DynamicInfo, axis: int) -> tuple[int, int]:
    """The largest size of a dimension, and a usual one."""
    shape = info.shape or ()
    if axis == 0:
        return BATCH
    unknown = sum(not isinstance(d, int) for d in shape[1:])
    return IMAGE if len(shape) > 3 and unknown > 1 and info.dtype[0] != "i" else LENGTH


def _grows(inputs: Sequence[DynamicInfo], name: str, dims: Sequence[Sequence[int | str]]) -> bool:
    """Whether a dimension may be that of caches, which are empty at first: several inputs have it, alike but for their
    names, none as a batch, and no tokens have it."""
    found = [t for t, names in zip(inputs, dims, strict=True) if name in names]
    alike = Counter((t.shape, t.dtype) for t in found)
    first = any(names and names[0] == name for names in dims)
    return not first and max(alike.values()) > 1 and not any(t.dtype[0] in "iu" for t in found)


def _with(name: str, chosen: Mapping[str, int | ChosenDim]) -> int | str | ChosenDim:
    """A dimension by its name; a formula with the sizes in it that are known."""
    if name in chosen:
        return chosen[name]
    for n, d in chosen.items():
        if isinstance(d, int):
            name = re.sub(rf"\b{re.escape(n)}\b", str(d), name)
    return name


def _takes(program: OpenExecutable, shapes: Shapes) -> OpenExecutable | None:
    """A program, None if it does not take inputs of these shapes."""
    try:
        sizes_of_inputs(program.package.program).sizes(shapes, [t.name for t in program.inputs])
    except InputError:
        return None
    return program


def _covers(program: OpenExecutable, other: OpenExecutable) -> bool:
    """Whether a program serves all sizes that another one serves."""
    if program.sizes.inputs != other.sizes.inputs:
        return False
    pairs = zip(sorted(program.sizes.dims, key=str), sorted(other.sizes.dims, key=str), strict=True)
    return all(a.low <= b.low and b.high <= a.high and b.divisor % a.divisor == 0 for a, b in pairs)


def _identifier(name: str, names: dict[int | str | None, str]) -> str:
    """A name of a dimension that `Dim` takes, another one for each.

    >>> names = {}
    >>> [_identifier(n, names) for n in ("seq", "2*seq", "2+seq", "seq")]
    ['seq', '_2_seq', '_2_seq_', 'seq']
    """
    if name not in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = plain if plain.isidentifier() else f"_{plain}"
        while plain in names.values():
            plain += "_"
        names[name] = plain
    return names[name]


__all__ = ["OpenVersions"]
