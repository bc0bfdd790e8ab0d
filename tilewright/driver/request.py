"""What is asked of a compilation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ..support.lazy_array import Stored
from ..support.options import Options

if TYPE_CHECKING:
    from ..program.package import Package
    from .journal import Observer


class PackedBefore:
    """What the entries of one package have packed, in the order in which they are compiled: each follows those before.

    layouts: how kernels with open sizes pack their constants (splits and order), by their names. Arrays that several
    entries have (one graph in two of them) are packed once.
    """

    def __init__(self) -> None:
        self.layouts: dict[str, Mapping[str, tuple[object, object]]] = {}
        self._arrays: dict[tuple[object, ...], tuple[weakref.ref[Stored], Stored]] = {}

    def array(self, source: Stored, form: tuple[object, ...], make: Callable[[], Stored]) -> Stored:
        """What `make` gives for this array and form; what it gave before for the same object."""
        key = (id(source), *form)
        known = self._arrays.get(key)
        if known is None or known[0]() is not source:
            known = self._arrays[key] = weakref.ref(source), make()
        return known[1]


@dataclass(frozen=True)
class CompileRequest:
    """A model, the options, and what its compilation is for.

    >>> CompileRequest.of("model.onnx", threads=2, keep=False).options.threads
    2
    """

    source: Any
    options: Options
    #: the stage that the source, a file that `dump` wrote, was dumped after
    start_after: str | None = None
    #: what the model is called; "": as its file is
    name: str = ""
    #: whether what was made on the way is looked at: if not, constants go when they have been packed
    keep: bool = True
    #: whether the processes that compile kernels start when the model has been read, as many as it may have work for
    ahead: bool = False
    #: whether the package is only written: it comes in place of an executable (unless that is to be verified), and its
    #: constants are computed as they are written
    unloaded: bool = False
    #: those of the pass `winograd`, in place of what the tuning database says
    algorithms: Mapping[str, str] | None = None
    #: sees the graph after every pass, and after every stage up to `schedule`
    observe: Observer | None = None
    #: may replace constants of the package by equal ones before it is loaded
    share: Callable[[Package], None] | None = None
    #: what entries of the same package that were compiled before have packed
    packed: PackedBefore | None = None

    @staticmethod
    def of(source: Any, **how: Any) -> CompileRequest:
        """A request from keyword arguments: fields of this class, and options; UsageError for others."""
        own = {f.name: how.pop(f.name) for f in fields(CompileRequest) if f.name in how}
        return CompileRequest(source, Options.of(**how), **own)


__all__ = ["CompileRequest", "PackedBefore"]
