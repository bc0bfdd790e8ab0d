"""The source of a loaded dynamic model: the compiler is imported when a specialization is missing, not before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..support import providers
from ..support.errors import PackageError
from ..support.forks import wait_for
from ..support.options import Options
from .constant_pool import ConstantPool
from .executable import Executable
from .parts import Source, StoredSource

if TYPE_CHECKING:
    from ..ir.graph import Graph
    from .open_executable import OpenExecutable

_importing = threading.Lock()
wait_for(_importing)  # the locks of Python's imports stay locked in a forked process


class LazySource:
    """Makes source and builder from what a package holds, at the first use."""

    def __init__(self, stored: StoredSource, options: Options, name: str, pool: ConstantPool) -> None:
        self.stored, self.options, self.name, self.pool = stored, options, name, pool
        self._source: Source | None = None
        self._build: Callable[[Graph, str], Executable] | None = None

    def source(self) -> Source:
        """PackageError if the compiler is not installed."""
        if self._source is None:
            self._source = _compiler().restore(self.stored, self.options.check_indices)
        return self._source

    def build(self, graph: Graph, body: str) -> Executable:
        if self._build is None:
            self._build = _compiler().builder(self.options, self.name, self.pool)
        return self._build(graph, body)

    def open(self, inputs: Mapping[str, object]) -> Any:
        """The executable for the option `inputs`, with open dimensions; PackageError if the compiler is missing."""
        return _compiler("open_compiler")(self.store(), self.options)(inputs)

    def resume(self, program: OpenExecutable) -> None:
        """Enable background specialization for sizes that recur; not where the compiler is missing."""
        with suppress(PackageError):
            _compiler("background_compiler")(program, self.store(), self.options)

    def opens(self) -> bool:
        """Whether parts may be compiled for all sizes at once."""
        return bool(_compiler().can_open(self.options))

    def store(self) -> StoredSource:
        if self._source is None:
            return self.stored
        return StoredSource(self.stored.kind, self.stored.data, self.stored.arrays, self._source.recipes())


def _compiler(what: str = "specialization") -> Any:
    try:
        with _importing:
            return providers.ask(what)
    except ImportError as e:
        raise PackageError(
            f"the model was not specialized for these shapes before it was saved, and the compiler does not load: {e}",
            stage="specialize",
            hint="install torch-mlir and what reads the model, or save it after calling (or `specialize`) with these "
            "shapes",
        ) from None
