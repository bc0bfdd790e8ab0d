"""Compiling models that are specialized at run time: the sources of parts, and how parts are compiled.

`compiler.compile` comes here when the import finds that shapes, branches or sizes are known at run time only.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from torch_mlir import ir

from ..frontends.onnx.reader import DTYPES, PACKED, Model, read
from ..frontends.onnx.staging import OnnxSource
from ..ir.constants import ConstantTable
from ..ir.context import parse, use
from ..ir.graph import Graph
from ..ir.types import from_array
from ..program.package import Package
from ..runtime.dynamic import DynamicExecutable, DynamicInfo, Pool, StoredSource
from ..runtime.executable import Executable
from ..runtime.staged import BodyInfo, Entry, Plan
from ..support.errors import ModelError, UnsupportedError, UsageError
from ..support.mapped_file import MappedFile
from ..support.options import Options

#: initializers of more bytes than this are stored beside the model
SMALL = 1024


def compile_dynamic(source: Any, options: Options) -> DynamicExecutable:
    """The executable of a model that cannot be one static program. With ``options.inputs`` it specializes ahead.

    Raises UsageError for a level-3 module with open dimensions and for ``options.schedules``, InputError for `inputs`
    that do not fit.
    """
    if options.schedules:
        raise UsageError(
            "the model leaves shapes open, so it has no kernels yet that option 'schedules' could name",
            hint="give the shapes with inputs",
        )
    if isinstance(source, (Graph, ir.Module)) or _is_mlir(source):
        made: Any = GraphSource(_graph(source))
        inputs, outputs = made.signature()
        name = "graph"
    else:
        made = OnnxSource(read(source), options.check_indices)
        inputs, outputs = signature(made.model)
        name = Path(source).stem if isinstance(source, (str, os.PathLike)) else "model"
    shapes = _shapes(options.inputs, inputs)
    inputs = [dataclasses.replace(t, shape=shapes.get(t.name, t.shape)) for t in inputs]
    executable = DynamicExecutable(
        lambda: made,
        builder(options, name),
        inputs,
        outputs,
        lambda: store(made),
        name=name,
        options=options,
    )
    executable.staged.files = lambda: made.files
    if shapes and all(t.kind == "tensor" and t.shape and all(isinstance(d, int) for d in t.shape) for t in inputs):
        executable.specialize({t.name: t.shape for t in inputs if t.shape is not None})  # type: ignore[misc]
    return executable


def builder(options: Options, name: str, pool: Pool | None = None) -> Callable[[Graph, str], Executable]:
    """A function from a graph and the name of its body to an executable; all share their constants."""
    from .compiler import build

    pool = pool or Pool()
    static = dataclasses.replace(options, inputs=None, stop_after=None)

    def share(package: Package) -> None:
        for i, (info, array) in enumerate(zip(package.program.constants, package.constants, strict=True)):
            package.constants[i] = pool.share(info.name, array)

    return lambda graph, body: build(graph, name if body == "main" else f"{name} {body}", static, share)


def _shapes(given: Mapping[str, Any] | None, inputs: list[DynamicInfo]) -> dict[str, tuple[int, ...]]:
    """Shapes by name, as `inputs` gives them (or arrays with those shapes)."""
    from ..frontends import _shapes as shapes_of

    shapes = dict(shapes_of(given) or {})
    known = {t.name: t for t in inputs}
    for name in shapes:
        if name not in known:
            raise UsageError(
                f"the model has no input named {name!r}", stage="import", hint=f"its inputs are {', '.join(known)}"
            )
    return shapes


# ---- ONNX ----------------------------------------------------------------------------------------------------------


def signature(model: Model) -> tuple[list[DynamicInfo], list[DynamicInfo]]:
    """Inputs and outputs of an ONNX model as it declares them."""
    constants = {t.name for t in model.proto.graph.initializer}
    inputs = [_info(i, model.source) for i in model.proto.graph.input if i.name not in constants]
    if not model.proto.graph.output:
        raise ModelError(f"{model.source} has no outputs", stage="import")
    return inputs, [_info(o, model.source, output=True) for o in model.proto.graph.output]


def _info(value: onnx.ValueInfoProto, source: str, output: bool = False) -> DynamicInfo:
    kinds, t = [], value.type
    while (kind := t.WhichOneof("value")) in ("sequence_type", "optional_type"):
        kinds.append(kind.removesuffix("_type"))
        t = getattr(t, kind).elem_type
    if kind != "tensor_type" and not output:
        raise UnsupportedError(f"{source}: input {value.name!r} is a {kind or 'value without type'}", stage="import")
    element = t.tensor_type.elem_type
    if element not in DTYPES and not output:
        raise UnsupportedError(
            f"{source}: input {value.name!r} has element type {onnx.TensorProto.DataType.Name(element)}",
            stage="import",
        )
    dims = None
    if t.tensor_type.HasField("shape"):
        dims = tuple(_dim(d) for d in t.tensor_type.shape.dim)
    return DynamicInfo(value.name, dims, DTYPES.get(element, "f32"), kinds[0] if kinds else "tensor")


def _dim(d: onnx.TensorShapeProto.Dimension) -> int | str | None:
    return d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or None


# ---- level-2 graphs ------------------------------------------------------------------------------------------------


class GraphSource:
    """A level-2 graph with open dimensions; see `runtime.staged.Source`."""

    kind = "graph"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        open_ = [f"{n}: {t}" for n, t in graph.inputs() if not t.static]
        if graph.level != 2 and open_:
            raise UsageError(
                f"the shapes of these inputs are not fixed: {', '.join(open_)}",
                stage="import",
                hint="only level-2 graphs and ONNX models may have open dimensions",
            )

    @property
    def files(self) -> tuple[MappedFile, ...]:
        return self.graph.constants.files

    def signature(self) -> tuple[list[DynamicInfo], list[DynamicInfo]]:
        with use():
            lists = [
                [DynamicInfo(n, t.shape, t.dtype) for n, t in s()] for s in (self.graph.inputs, self.graph.outputs)
            ]
        return lists[0], lists[1]

    def body(self, body: str) -> BodyInfo:
        inputs, outputs = self.signature()
        return BodyInfo("main", tuple(t.name for t in inputs), tuple(t.name for t in outputs), 1)

    def reads(self, body: str, todo: tuple[int, ...]) -> tuple[str, ...]:
        return self.body(body).inputs

    def plan(self, body: str, todo: tuple[int, ...], frozen: frozenset[str], entries: Mapping[str, Entry]) -> Plan:
        from ..graph.specialize import Specialize

        graph = self.graph.clone()
        Specialize(shapes={n: from_array(a).dims for n, a in entries.items()}).run(graph)
        info = self.body(body)
        results: dict[str, list] = {n: ["out", i] for i, n in enumerate(info.outputs)}
        return Plan(graph, info.inputs, results, [], (), (), frozenset())

    def evaluate(self, body: str, node: int, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        raise UsageError("a graph has no nodes to evaluate")


def _is_mlir(source: Any) -> bool:
    if isinstance(source, str) and ("\n" in source or source.lstrip().startswith(("module", "func", "#"))):
        return True
    return isinstance(source, (str, os.PathLike)) and Path(source).suffix in (".mlir", ".mlirbc")


def _graph(source: Any) -> Graph:
    from ..frontends.mlir import load_mlir, load_mlir_file

    if isinstance(source, Graph):
        return source.clone()
    if isinstance(source, ir.Module):
        return load_mlir(str(source), "<module>")
    if isinstance(source, str) and ("\n" in source or not Path(source).suffix):
        return load_mlir(source, "<text>")
    return load_mlir_file(Path(source))


# ---- sources as data -----------------------------------------------------------------------------------------------


def store(source: OnnxSource | GraphSource) -> StoredSource:
    """A source as a package keeps it."""
    if isinstance(source, GraphSource):
        with use():
            text = source.graph.text()
        return StoredSource("graph", text.encode(), dict(source.graph.constants), [])
    proto, arrays = onnx.ModelProto(), {}
    proto.CopyFrom(source.model.proto)
    for i, tensor in enumerate(proto.graph.initializer):
        given = source.model.proto.graph.initializer[i]
        data = source.model.data(given, i)
        if tensor.data_type in DTYPES and DTYPES[tensor.data_type] not in PACKED:
            array = source.model.array(given, i)  # equal to what the parts made of it, and so stored once
        elif data is not None:
            array = data
        else:
            continue  # its elements stand in the message
        bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        if array.nbytes > SMALL:
            arrays[str(i)] = array
            tensor.CopyFrom(bare)
        elif data is not None:  # the reader may have cut it out of the message
            tensor.CopyFrom(bare)
            tensor.raw_data = data.tobytes()
    _embed(proto, source.model)
    return StoredSource("onnx", proto.SerializeToString(), arrays, bodies(source))


def bodies(source: OnnxSource | GraphSource) -> list[list[str]]:
    return source.recipes() if isinstance(source, OnnxSource) else []


def restore(stored: StoredSource, check_indices: bool = False) -> OnnxSource | GraphSource:
    """The inverse of `store`."""
    if stored.kind == "graph":
        table = ConstantTable()
        table._arrays.update(stored.arrays)
        return GraphSource(Graph(parse(stored.data.decode(), "the saved graph"), table))
    raw = {int(i): a.reshape(-1).view(np.uint8) for i, a in stored.arrays.items()}
    source = OnnxSource(Model(onnx.ModelProto.FromString(stored.data), "the saved model", raw), check_indices)
    source.restore(stored.bodies)
    return source


def _embed(message: Any, model: Model) -> None:
    """Data in external files of tensors of all kinds moves into the message."""
    for _, content in message.ListFields():
        several = (
            [content] if isinstance(content, Message) else content if not isinstance(content, (str, bytes)) else []
        )
        for item in several if not isinstance(several, (int, float, bool)) else []:
            if not isinstance(item, Message):
                break
            if isinstance(item, onnx.TensorProto) and item.data_location == onnx.TensorProto.EXTERNAL:
                array = model.array(item)
                item.CopyFrom(onnx.TensorProto(name=item.name, data_type=item.data_type, dims=item.dims))
                item.raw_data = array.tobytes()
            else:
                _embed(item, model)
