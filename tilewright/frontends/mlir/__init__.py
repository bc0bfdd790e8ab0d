"""MLIR, as text, bytecode, files and modules, and graphs that were made by hand; see `reader`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..protocol import Wanted, existing, is_a, path_of

if TYPE_CHECKING:
    from ...ir.graph import Graph
    from ...runtime.parts import Source, StoredSource


class Mlir:
    """See `protocol.FrontEnd` and `Staging`."""

    name = "mlir"
    doc = "an .mlir or .mlirbc file, MLIR text, bytecode or module (tw, StableHLO, TOSA, linalg), a Graph"

    def accepts(self, source: object) -> bool:
        if isinstance(source, bytes):
            return source.startswith(b"ML\xefR")
        path = path_of(source)
        file = path is not None and path.suffix in (".mlir", ".mlirbc")
        return file or _is_text(source) or _is_graph(source) or is_a(source, "torch_mlir.ir", "Module")

    def load(self, source: Any, wanted: Wanted) -> Graph:
        from ..open_graph import fixed
        from .reader import load_mlir, load_mlir_file

        if _is_graph(source):
            clone: Graph = source.clone()
            return fixed(clone, wanted.shapes)
        path = _file(source)
        if path is not None:
            graph = load_mlir_file(path, wanted.shapes)
        else:
            graph = load_mlir(*_text(source), shapes=wanted.shapes)
        return graph if all(t.static for _, t in graph.inputs()) else fixed(graph, wanted.shapes)

    def open(self, source: Any, check_indices: bool) -> Source:
        """A StableHLO program with open sizes, another model as its graph."""
        from ..open_graph import OpenGraph
        from .reader import file_text, load_mlir, load_mlir_file, read_program
        from .stablehlo.staging import StableHloSource

        if _is_graph(source):
            return OpenGraph(source.clone())
        path = _file(source)
        text = _text(source) if path is None else (file_text(path), str(path))
        if (program := read_program(*text)) is not None:
            return StableHloSource(program)
        return OpenGraph(load_mlir(*text) if path is None else load_mlir_file(path))

    def restore(self, stored: StoredSource, check_indices: bool) -> Source:
        from .stablehlo.staging import restore

        return restore(stored)


def _file(source: object) -> Path | None:
    """The file that a source is, None for text, bytes and modules."""
    path = None if isinstance(source, bytes) or _is_text(source) else path_of(source)
    return None if path is None else existing(path)


def _text(source: Any) -> tuple[str | bytes, str]:
    """The text or bytecode of a source that is no file, and what errors call it."""
    if isinstance(source, bytes):
        return source, "<bytes>"
    return (source, "<text>") if _is_text(source) else (str(source), "<module>")


def _is_graph(source: object) -> bool:
    return is_a(source, "tilewright.ir.graph", "Graph")


def _is_text(source: object) -> bool:
    """Whether a string is MLIR text and not a path."""
    return isinstance(source, str) and ("\n" in source or source.lstrip().startswith(("module", "func", "#")))


FRONT_END = Mlir()
