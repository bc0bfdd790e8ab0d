"""Front ends: whatever the user has becomes a `Graph` of level 2 (ONNX, `tw` text) or level 3 (StableHLO, TOSA, linalg
text)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch_mlir import ir

from ..ir.context import BYTECODE
from ..ir.graph import Graph
from ..support.errors import UsageError

Shapes = Mapping[str, tuple[int, ...]]


def load_source(
    source: Any, inputs: Mapping[str, Any] | None = None, lazy: bool = False, check_indices: bool = False
) -> tuple[Graph, str]:
    """A graph and its name.

    `source`: path of an ``.onnx`` or ``.mlir`` file, serialized ONNX or MLIR bytes, MLIR text, an ``onnx.ModelProto``,
    an MLIR module, or a `Graph`. `inputs`: shapes (or arrays, for their shapes) of inputs with dynamic dimensions.
    `lazy` and `check_indices` are for ONNX models; the latter is refused for others.
    Raises UsageError for anything else, ModelError for a damaged file.
    """
    shapes = _shapes(inputs)
    if check_indices and _is_mlir(source):
        raise UsageError("indices are checked in ONNX models only", stage="import", hint="leave out check_indices")
    if isinstance(source, Graph):
        return _specialized(source.clone(), shapes), "graph"
    if isinstance(source, ir.Module):
        from .mlir import load_mlir

        return _specialized(load_mlir(str(source), "<module>"), shapes), "module"
    if _is_text(source):
        from .mlir import load_mlir

        return _specialized(load_mlir(source, "<text>"), shapes), "text"
    if isinstance(source, (str, os.PathLike)):
        return _load_file(Path(source), shapes, lazy, check_indices)
    if isinstance(source, bytes) and source.startswith(BYTECODE):
        from .mlir import load_mlir

        return _specialized(load_mlir(source, "<bytes>"), shapes), "module"
    from . import onnx

    return onnx.load(source, inputs=shapes, lazy=lazy, check_indices=check_indices), "model"


def _is_text(source: Any) -> bool:
    """Whether a string is MLIR text and not a path."""
    return isinstance(source, str) and ("\n" in source or source.lstrip().startswith(("module", "func", "#")))


def _is_mlir(source: Any) -> bool:
    if isinstance(source, bytes):
        return source.startswith(BYTECODE)
    if isinstance(source, (str, os.PathLike)):
        return _is_text(source) or Path(source).suffix in (".mlir", ".mlirbc")
    return isinstance(source, (Graph, ir.Module))


def _load_file(path: Path, shapes: Shapes | None, lazy: bool, check_indices: bool) -> tuple[Graph, str]:
    if not path.exists():
        raise UsageError(f"there is no file {str(path)!r}", stage="import")
    if path.suffix in (".mlir", ".mlirbc"):
        from .mlir import load_mlir_file

        return _specialized(load_mlir_file(path), shapes), path.stem
    if path.suffix == ".tw":
        raise UsageError(f"{path} is compiled already", stage="import", hint="use tilewright.load")
    from . import onnx

    return onnx.load(path, inputs=shapes, lazy=lazy, check_indices=check_indices), path.stem


def _shapes(inputs: Mapping[str, Any] | None) -> Shapes | None:
    if inputs is None:
        return None
    found = {}
    for name, value in inputs.items():
        shape = value if isinstance(value, (tuple, list)) else getattr(value, "shape", np.shape(value))
        if any(d is None or isinstance(d, str) or (isinstance(d, (int, np.integer)) and d < 0) for d in shape):
            raise UsageError(
                f"inputs[{name!r}] is {value!r}: every dimension needs a size, none can stay open",
                stage="import",
                hint="leave this input out, and the model is compiled for each size that it is called with",
            )
        if not all(isinstance(d, (int, np.integer)) for d in shape):
            raise UsageError(f"inputs[{name!r}] is {value!r}: expected a shape or an array", stage="import")
        found[name] = tuple(int(d) for d in shape)
    return found


def _specialized(graph: Graph, shapes: Shapes | None) -> Graph:
    """Fix dynamic dimensions; UsageError if some are left open."""
    if shapes:
        from ..graph.specialize import Specialize

        Specialize(shapes=shapes).run(graph)
    open_inputs = [f"{n}: {t}" for n, t in graph.inputs() if not t.static]
    if open_inputs:
        error = UsageError(
            f"the shapes of these inputs are not fixed: {', '.join(open_inputs)}",
            stage="import",
            hint="pass inputs={name: shape}",
        )
        error.run_time = True
        raise error
    return graph
