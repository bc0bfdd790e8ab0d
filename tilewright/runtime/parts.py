"""Partitioned execution: bodies of nodes (`support/host_plan.py`), their subgraphs, and the specializations of these.

A model whose shapes or control flow depend on data is split into subgraphs that are compiled one by one, at run time,
each for the shapes (and values) that reach it; `staged.py` runs them. What compiles a new specialization is a `Source`.
Nothing here imports MLIR.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from ..support.dtypes import NUMPY
from ..support.errors import UsageError
from ..support.host_plan import BodyInfo, SubgraphPlan, Tree
from ..support.mapped_file import MappedFile

if TYPE_CHECKING:
    from .executable import Executable
    from .open_parts import SubgraphVersions

#: the value of a name at run time: an array, an `EmbeddedConstant`, a list of arrays (a sequence), None (an empty
#: optional)
Entry = Any


class EmbeddedConstant:
    """A result that does not depend on inputs: the subgraphs that read it are compiled with it as a constant.

    Those with the same content are equal, so that they lead to the same specializations of the following subgraphs.
    """

    __slots__ = ("_hash", "array")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self._hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.array.dtype, self.array.shape, self.array.reshape(-1)[:1024].tobytes()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, EmbeddedConstant):
            return self is other
        a, b = self.array, other.array
        return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def plain(entry: Entry) -> Entry:
    """The entry, an `EmbeddedConstant` replaced by its array."""
    return entry.array if type(entry) is EmbeddedConstant else entry


@dataclass(frozen=True)
class DynamicInfo:
    """An input or output: `shape` has a size, a name or None for each dimension, and is None if the rank is open.
    `kind` is "tensor", "sequence" (a list of arrays) or "optional" (None is possible).

    >>> print(DynamicInfo("ids", ("batch", None, 8), "i64"))
    ids: i64[batch, ?, 8]
    """

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: str
    kind: str = "tensor"

    @property
    def numpy_dtype(self) -> np.dtype:
        return NUMPY[self.dtype]

    def __str__(self) -> str:
        dims = "..." if self.shape is None else ", ".join("?" if d is None else str(d) for d in self.shape)
        text = f"{self.dtype}[{dims}]"
        return f"{self.name}: {text if self.kind == 'tensor' else f'{self.kind} of {text}'}"


@dataclass
class StoredSource:
    """A `Source` of front end `kind` as data: a model without its arrays, these by name, and recipes of its bodies."""

    kind: str
    data: bytes
    arrays: dict[str, np.ndarray]
    bodies: list[list[str]]


class Source(Protocol):
    """A model that can be partitioned and compiled piece by piece: what a front end offers to the runtime."""

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """Files that its constants are mapped from."""
        return ()

    @property
    def source(self) -> object:
        """All of it, as its front end takes it."""

    def signature(self) -> tuple[list[DynamicInfo], list[DynamicInfo]]:
        """Inputs and outputs, with their dtypes and dimensions as far as these are known."""

    def recipes(self) -> list[list[str]]:
        """How its bodies are made again, for `StoredSource.bodies`."""
        return []

    def store(self) -> StoredSource:
        """All of it as data: what a saved model keeps to specialize itself after loading."""

    def body(self, body: str) -> BodyInfo: ...

    def keep(self, bodies: Set[str]) -> None:
        """What is known of other bodies than these may go; they may be asked for again."""
        return

    def reads(self, body: str, todo: tuple[int, ...]) -> tuple[str, ...]:
        """Names that the nodes read, and that are neither constants nor made by the nodes."""

    def plan(
        self, body: str, todo: tuple[int, ...], frozen: frozenset[str], entries: Mapping[str, Entry]
    ) -> SubgraphPlan: ...

    def evaluate(self, body: str, node: int, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        """The outputs of one node by the references of its operators, for actions of the kind "fold"."""
        raise UsageError("its nodes are not evaluated one by one")


@runtime_checkable
class DynamicShapeSource(Source, Protocol):
    """A source whose subgraphs can be compiled with dynamic shapes, once for all sizes."""

    def plan_open(
        self, body: str, todo: tuple[int, ...], frozen: frozenset[str], entries: Mapping[str, Entry]
    ) -> SubgraphPlan:
        """`plan`, where shapes of entries and numbers in them may be open sizes (`support/sizes.py`)."""


class SpecializedSubgraph:
    """A subgraph compiled for one combination of shapes (and values, where they matter): a specialization."""

    def __init__(
        self, plan: SubgraphPlan, executable: Executable | None, following: Subgraph | None, seconds: float
    ) -> None:
        self.executable, self.feeds, self.actions, self.following = executable, plan.feeds, plan.actions, following
        self.constants = [EmbeddedConstant(a) for a in plan.constants]
        self.results = plan.results
        self.seconds, self.runs = seconds, 0
        #: the sizes that it is for, if these are all of a range
        self.form = ""
        memory = executable.memory if executable is not None else None
        #: of its arena and code; weights are shared with other specializations
        self.nbytes = memory.arena + memory.code if memory is not None else 0

    def entry(self, tree: Tree, outputs: list[np.ndarray], frame: Frame) -> Entry:
        kind = tree[0]
        if kind == "out":
            return outputs[tree[1]]
        if kind == "in":
            return frame.find(tree[1])
        if kind == "const":
            return self.constants[tree[1]]
        if kind == "list":
            return [plain(self.entry(t, outputs, frame)) for t in tree[1:]]
        if kind == "part":
            buffer, count = (plain(self.entry(t, outputs, frame)) for t in tree[1:3])
            index = (slice(None),) * tree[3] + (slice(0, int(count.reshape(()))),)
            return np.ascontiguousarray(buffer[index])
        return None


class Subgraph:
    """The nodes of a body that are left to execute, and their specializations."""

    def __init__(
        self,
        body: PartitionedBody,
        todo: tuple[int, ...],
        frozen: frozenset[str],
        reads: tuple[str, ...],
        parts: SubgraphVersions,
    ) -> None:
        self.body, self.todo, self.start, self.reads, self.parts = body, todo, frozen, reads, parts
        self.frozen = frozen
        self.first = len(todo) == body.info.nodes

    def key(self, frame: Frame) -> tuple[object, ...]:
        """The cache key: dtype and shape of the arrays that are read, the values of those that decide shapes."""
        found = []
        for name in self.reads:
            entry = frame.find(name)
            if type(entry) is np.ndarray:
                value = entry.tobytes() if name in self.frozen else None
                found.append((entry.dtype, entry.shape, value))
            elif type(entry) is list:
                found.append(("list", *{a.dtype for a in entry}, *{a.ndim for a in entry if a is not None}))
            else:
                found.append(entry)
        return (self.frozen, *found)


class PartitionedBody:
    """A body with its subgraphs."""

    def __init__(self, info: BodyInfo) -> None:
        self.info = info
        self.stages: dict[tuple[object, ...], Subgraph] = {}
        self.first: Subgraph | None = None


class Frame:
    """The names of a body that is running; names that it does not define are looked up around it."""

    __slots__ = ("parent", "values")

    def __init__(self, values: dict[str, Entry], parent: Frame | None = None) -> None:
        self.values, self.parent = values, parent

    def find(self, name: str) -> Entry:
        frame: Frame | None = self
        while frame is not None:
            if name in frame.values:
                return frame.values[name]
            frame = frame.parent
        return Missing

    def find_plain(self, name: str) -> Entry:
        return plain(self.find(name)) if name else None


class Missing:
    """No such name: the source says what is wrong."""
