"""MLIR, as text, bytecode, files and modules, and graphs that were made by hand; see `reader`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..protocol import Wanted, existing, is_a, path_of

if TYPE_CHECKING:
    from ...ir.graph import Graph


class Mlir:
    """See `protocol.FrontEnd`."""

    name = "mlir"
    doc = "an .mlir or .mlirbc file, MLIR text, bytecode or module (tw, StableHLO, TOSA, linalg), a Graph"

    def accepts(self, source: Any) -> bool:
        if isinstance(source, bytes):
            return source.startswith(b"ML\xefR")
        path = path_of(source)
        file = path is not None and path.suffix in (".mlir", ".mlirbc")
        return file or _is_text(source) or _is_graph(source) or is_a(source, "torch_mlir.ir", "Module")

    def load(self, source: Any, wanted: Wanted) -> Graph:
        if _is_graph(source):
            clone: Graph = source.clone()
            return clone
        from .reader import load_mlir, load_mlir_file

        if isinstance(source, bytes):
            return load_mlir(source, "<bytes>")
        if _is_text(source):
            return load_mlir(source, "<text>")
        path = path_of(source)
        return load_mlir(str(source), "<module>") if path is None else load_mlir_file(existing(path))


def _is_graph(source: Any) -> bool:
    return is_a(source, "tilewright.ir.graph", "Graph")


def _is_text(source: Any) -> bool:
    """Whether a string is MLIR text and not a path."""
    return isinstance(source, str) and ("\n" in source or source.lstrip().startswith(("module", "func", "#")))


FRONT_END = Mlir()
