"""The front-end protocol and the registry of front ends. Nothing outside `frontends/` names one where any would do.

A front end is a folder in `tilewright/frontends` (or an entry point of the group ``tilewright.frontends`` of any
installed package) whose module has an attribute ``FRONT_END`` that fulfils the protocol `FrontEnd`. The module is
imported to list front ends, so it must import what reads its sources only inside its methods.

What not every front end can do are protocols of their own, asked with ``isinstance``: `Digesting` (packages are kept
for its files), `Staging` (models whose structure depends on data) and `Tracing` (programs that are run on examples).
docs/add_a_front_end.md builds a small one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from ..runtime.parts import Source, StoredSource
from ..support.discovery import Registry
from ..support.errors import ModelError, UsageError
from ..support.formulas import derived
from ..support.sizes import Dim, current, decode, open_size

if TYPE_CHECKING:
    from ..ir.graph import Graph


@dataclass(frozen=True)
class Wanted:
    """What a caller wants of an import: the shapes of inputs that the source leaves open, by name.

    `lazy`: what is better left to run time may be refused by an error with ``run_time`` (for `Staging` front ends).
    `check_indices`: the graph gets the outputs of `runtime.indices`; asked of `Staging` front ends only.
    """

    shapes: Mapping[str, tuple[int, ...]]
    lazy: bool = False
    check_indices: bool = False


@runtime_checkable
class FrontEnd(Protocol):
    """A kind of source: what it looks like, and how it becomes a graph. `doc` lists what is accepted."""

    name: str
    doc: str

    def accepts(self, source: object) -> bool:
        """Whether the source is for this front end, by its type, its name or how it begins."""

    def load(self, source: object, wanted: Wanted) -> Graph:
        """The graph; where dimensions of a level-2 graph stay open, it is specialized for `wanted.shapes`, or later
        for the shapes of each call. TilewrightError says what is wrong with the source, and where."""


@runtime_checkable
class Digesting(Protocol):
    """A front end for whose files packages are kept: compiled again, they are loaded."""

    name: str

    def digest(self, source: object) -> str | None:
        """Of the file's bytes, without importing what reads it; None if it is no file, or no package is to be kept."""

    def versions(self) -> tuple[str, ...]:
        """The versions of what reads it."""


@runtime_checkable
class Staging(Protocol):
    """A front end whose models may decide by their data how they go on: it makes them in parts. It checks indices if
    it has an attribute `checks_indices` that holds."""

    name: str

    def open(self, source: object, check_indices: bool) -> Source:
        """The model as what parts are made of."""

    def restore(self, stored: StoredSource, check_indices: bool) -> Source:
        """The inverse of `Source.store`."""


@runtime_checkable
class TracedSource(Protocol):
    """A source that came of running a program on examples."""

    def wrap(self, executable: Any) -> Any:
        """What the caller gets for its executable: called as the program was."""

    def open_dims(self) -> Sequence[Dim]:
        """The open dimensions that it has where `Wanted.shapes` does not give sizes."""


@runtime_checkable
class Tracing(Protocol):
    """A front end whose sources are programs, which are run on examples of their inputs to see what they do."""

    name: str

    def trace(self, source: object, examples: object, dynamic_shapes: object) -> TracedSource:
        """What `load` takes."""


# ---- which there are -----------------------------------------------------------------------------------------------

_FRONT_ENDS: Registry[FrontEnd] = Registry(
    "front end",
    "tilewright.frontends",
    "FRONT_END",
    lambda x: isinstance(x, FrontEnd),
    ("name", "doc", "accepts", "load"),
)


def register(front_end: FrontEnd) -> None:
    """Add a front end for this process; an installed package gives an entry point instead. UsageError if it is none, or
    another one has its name.

        register(MyFrontEnd())
        tw.compile("model.mine")
    """
    _FRONT_ENDS.add(front_end)


def front_ends() -> dict[str, FrontEnd]:
    """All front ends by name, in the order in which they are asked: those of `register`, installed ones, ours.

    >>> "onnx" in front_ends()
    True
    """
    return _FRONT_ENDS.all()


def front_end_of(source: object) -> FrontEnd | None:
    """The front end of a source, None if there is none."""
    return next((f for f in front_ends().values() if f.accepts(source)), None)


def find(source: object) -> FrontEnd:
    """The front end of a source; UsageError, for a file ModelError, lists what is accepted."""
    if (found := front_end_of(source)) is not None:
        return found
    if (path := path_of(source)) is not None:
        if path.suffix == ".tw":
            raise UsageError(f"{path} is compiled already", stage="import", hint="use tilewright.load")
        existing(path)
    what = f"an object of type {type(source).__name__}" if path is None else f"file {str(path)!r}"
    accepted = "; ".join(f"{name}: {f.doc}" for name, f in sorted(front_ends().items()))
    kind = UsageError if path is None else ModelError
    raise kind(f"no front end takes {what}", stage="import", hint=f"accepted are {accepted}")


def load_source(
    source: object, inputs: Mapping[str, Any] | None = None, lazy: bool = False, check_indices: bool = False
) -> tuple[Graph, str]:
    """A graph and its name, from any source that a front end takes; all its dimensions are known.

    `inputs`: shapes (or arrays, for their shapes) of inputs with open dimensions. `lazy`: see `Wanted`.
    Raises UsageError for other sources, for dimensions that stay open, and for `check_indices` where there are no
    checks; the errors of the front end.
    """
    front_end, shapes = find(source), shapes_of(inputs)
    if check_indices and not getattr(front_end, "checks_indices", False):
        able = ", ".join(f.name.upper() for f in front_ends().values() if getattr(f, "checks_indices", False))
        raise UsageError(f"indices are checked in {able} models only", stage="import", hint="leave out check_indices")
    if isinstance(front_end, Staging):
        return front_end.load(source, Wanted(shapes, lazy, check_indices)), name_of(source)
    from .open_graph import fixed

    return fixed(front_end.load(source, Wanted(shapes, lazy)), shapes), name_of(source)


def open_source(source: object, check_indices: bool) -> Source:
    """A source as what programs for the shapes of a call are made of."""
    front_end = find(source)
    if isinstance(front_end, Staging):
        return front_end.open(source, check_indices)
    from .open_graph import OpenGraph

    return OpenGraph(front_end.load(source, Wanted({})))


def restore(stored: StoredSource, check_indices: bool = False) -> Source:
    """The inverse of `Source.store`; UsageError if its front end is not there."""
    front_end = front_ends().get(stored.kind)
    if isinstance(front_end, Staging):
        return front_end.restore(stored, check_indices)
    from .open_graph import KIND, OpenGraph

    if stored.kind != KIND:
        raise UsageError(f"the model needs front end {stored.kind!r}, which is not installed", stage="specialize")
    return OpenGraph.restore(stored)


def compilable(stored: StoredSource) -> Any:
    """A stored source as one that front ends take."""
    return restore(stored).source


# ---- for front ends ------------------------------------------------------------------------------------------------


def is_a(source: object, module: str, name: str) -> bool:
    """Whether a source is an instance of a class without importing its module.

    >>> is_a(1.5, "fractions", "Fraction")
    False
    """
    kind = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return kind is not None and isinstance(source, kind)


def path_of(source: object) -> Path | None:
    """The path that a source is; None for what is text of several lines, or no path."""
    if isinstance(source, os.PathLike) or (isinstance(source, str) and "\n" not in source):
        return Path(source)
    return None


def existing(path: Path) -> Path:
    """The path; UsageError if there is no such file."""
    if not path.exists():
        raise UsageError(f"there is no file {str(path)!r}", stage="import")
    return path


def name_of(source: object) -> str:
    """What a model is called: as its file is, without the ending.

    >>> name_of("models/tiny.onnx"), name_of(b"...")
    ('tiny', 'model')
    """
    path = path_of(source)
    return "model" if path is None or not path.suffix else path.stem


def shapes_of(inputs: Mapping[str, Any] | None) -> dict[str, tuple[int, ...]]:
    """Shapes by name of what the option `inputs` has: shapes, or arrays that have them."""
    found = {}
    for name, value in (inputs or {}).items():
        shape: Sequence[Any] = value if isinstance(value, (tuple, list)) else np.shape(value)
        shape = [_open(d, f"inputs[{name!r}]") for d in shape]
        if any(d is None or isinstance(d, str) or (isinstance(d, (int, np.integer)) and d < 0) for d in shape):
            raise UsageError(
                f"inputs[{name!r}] is {value!r}: every dimension needs a size, none can stay open",
                stage="import",
                hint="leave this input out, and the model is compiled for each size that it is called with",
            )
        if not all(isinstance(d, (int, np.integer)) for d in shape):
            raise UsageError(f"inputs[{name!r}] is {value!r}: expected a shape or an array", stage="import")
        found[name] = tuple(decode(int(d)) for d in shape)
    return found


def _open(d: Any, where: str) -> Any:
    """The size that an open dimension, or a formula of such, is in this compilation; whatever else `d` is."""
    d = open_size(d)
    return derived(d, where) if isinstance(d, str) and current() is not None else d
