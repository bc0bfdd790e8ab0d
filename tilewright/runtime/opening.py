"""A model with open shapes of which nobody said between which sizes: one program for all of them.

run = tw.compile("bert.onnx", specialize="background")      # ids: i64[batch, sequence]
y, = run(np.zeros((1, 128), np.int64))      # compiles for batch 1 to 64, sequence 1 to 2048
y, = run(np.zeros((8, 77), np.int64))       # compiles nothing; sizes that recur get programs of their own

See docs/dynamic_models.md.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..support.dims import Dim
from ..support.errors import InputError, TilewrightError
from .background import Shapes, shapes_of
from .open_executable import OpenExecutable
from .parts import DynamicInfo
from .staged import Staged

log = logging.getLogger("tilewright")

#: a range goes from 1 to so many times the size of the call that it is made for, and at least to this
TIMES, AT_LEAST = 16, 64
#: combinations of shapes that are known to be in the ranges
KNOWN = 4096


class Opening:
    """The program for all sizes of a `DynamicExecutable`, made in its first call. A call with a size beyond the ranges
    makes a program with wider ones, in the caller. Where a model cannot be compiled for all sizes at once, nothing is
    served here: a program is then made for each size, in its call.
    """

    def __init__(
        self, inputs: Sequence[DynamicInfo], staged: Staged, name: str, compile: Callable[[dict[str, Any]], Any]
    ) -> None:
        """`compile` makes the executable for the option `inputs`."""
        self.inputs, self.staged, self.name, self.compile = inputs, staged, name, compile
        self.program: OpenExecutable | None = None
        #: nothing more is tried: there is no program, or none with wider ranges
        tensors = all(t.kind == "tensor" and t.shape is not None for t in inputs)
        self.refused = not tensors or not any(isinstance(d, (str, type(None))) for t in inputs for d in t.shape or ())
        self._known: set[Shapes] = set()

    def at_once(self, args: tuple[Any, ...], out: Any) -> list[np.ndarray] | None:
        """The results of a call with shapes that were served before; None for others."""
        shapes = shapes_of(self.inputs, args)  # type: ignore[arg-type]
        if shapes not in self._known or self.program is None:
            return None
        return self.program(*args, out=out)

    def serve(self, given: Mapping[str, Any]) -> list[np.ndarray] | None:
        """The results for inputs by name, which are checked; None if no program can serve them all."""
        shapes = tuple([given[t.name].shape for t in self.inputs])
        program = self._program_for(shapes)
        if program is None:
            return None
        results = program(*(given[t.name] for t in self.inputs))
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known.add(shapes)
        return results

    def forget(self) -> None:
        """There may be a better program for some shapes now."""
        self._known.clear()

    def _program_for(self, shapes: Shapes) -> OpenExecutable | None:
        if self._fits(shapes):
            return self.program
        if self.refused or not all(n > 0 for shape in shapes for n in shape):
            return None
        with self.staged.alone():
            if not self._fits(shapes) and not self.refused:
                self._make(shapes)
            return self.program if self._fits(shapes) else None

    def _fits(self, shapes: Shapes) -> bool:
        if self.program is None:
            return False
        try:
            self.program.sizes.sizes(shapes, [t.name for t in self.inputs])
        except InputError:
            return False
        return True

    def _make(self, shapes: Shapes) -> None:
        wanted = self._ranges(shapes)
        try:
            made = self.compile(wanted)
        except TilewrightError as e:
            self.refused = True
            log.warning(
                "%s: cannot be compiled for all sizes at once, so each new size is compiled in its call: %s",
                self.name,
                e.message,
            )
            return
        before, self.program = self.program, made
        if before is not None:
            before.close()
        named = ", ".join(map(str, made.sizes.dims))
        log.info("%s: compiled for all sizes of %s", self.name, named)

    def _ranges(self, shapes: Shapes) -> dict[str, tuple[int | Dim, ...]]:
        """The option `inputs`: known sizes, and a range for each open one that holds these shapes and all before."""
        names: dict[int | str | None, str] = {}
        highs = {d.name: d.high for d in self.program.sizes.dims} if self.program is not None else {}
        places: dict[str, list[int | str]] = {}
        for info, shape in zip(self.inputs, shapes, strict=True):
            dims: list[int | str] = []
            for axis, (d, n) in enumerate(zip(info.shape or (), shape, strict=True)):
                if isinstance(d, int):
                    dims.append(d)
                    continue
                name = _identifier(d or f"{info.name}_{axis}", names)
                if n > highs.get(name, 0):
                    highs[name] = max(AT_LEAST, TIMES * n)
                dims.append(name)
            places[info.name] = dims
        return {
            name: tuple(Dim(d, 1, highs[d]) if isinstance(d, str) else d for d in dims) for name, dims in places.items()
        }

    def describe(self) -> list[str]:
        """What `DynamicExecutable.explain` says of it."""
        if self.program is None:
            return ["", "no program for all sizes" + (": each is compiled in its call" if self.refused else " yet")]
        ranges = ", ".join(map(str, self.program.sizes.dims))
        more = self.program.background.describe() if self.program.background is not None else []
        return ["", f"one program for {ranges}", *more]

    def close(self) -> None:
        if self.program is not None:
            self.program.close()


def _identifier(name: str, names: dict[Any, str]) -> str:
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


__all__ = ["Opening"]
