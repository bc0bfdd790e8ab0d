"""The part of ONNX Runtime's Python interface that most programs use, on Tilewright.

import tilewright.ort_like as ort      # instead of: import onnxruntime as ort

session = ort.InferenceSession("model.onnx")
y, = session.run(["y"], {"x": x})
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from .errors import UsageError
from .frontends.onnx.reader import read
from .kept import compile

__all__ = ["InferenceSession", "NodeArg", "SessionOptions", "get_available_providers", "get_device"]

#: how ONNX Runtime writes element types
_TYPES = {
    "FLOAT": "float", "DOUBLE": "double", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "BOOL": "bool",
    "STRING": "string",
    "INT64": "int64", "INT32": "int32", "INT16": "int16", "INT8": "int8",
    "UINT64": "uint64", "UINT32": "uint32", "UINT16": "uint16", "UINT8": "uint8",
}  # fmt: skip


@dataclass(frozen=True)
class NodeArg:
    """An input or output: `type` such as ``"tensor(float)"``, `shape` with a name or None for an open dimension."""

    name: str
    type: str
    shape: list[int | str | None] = field(default_factory=list)


@dataclass
class SessionOptions:
    """Options of a session; 0 threads means the default of `tilewright.compile`. Others are accepted and do nothing."""

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: Any = None
    log_severity_level: int = 2


class InferenceSession:
    """A model to run with a dict of arrays.

    >>> from onnx import TensorProto, helper
    >>> x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2]) for n in "xy")
    >>> graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    >>> session = InferenceSession(helper.make_model(graph).SerializeToString())
    >>> session.get_inputs()
    [NodeArg(name='x', type='tensor(float)', shape=['n', 2])]
    >>> session.run(None, {"x": np.ones((1, 2), np.float32)})
    [array([[-1., -1.]], dtype=float32)]
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Compile a model; raises what `tilewright.compile` raises. Providers are not needed: it runs on the CPU."""
        threads = sess_options.intra_op_num_threads if sess_options else 0
        graph = read(path_or_bytes).proto.graph
        constants = {t.name for t in graph.initializer}
        self._inputs = [_node_arg(i) for i in graph.input if i.name not in constants]
        self._outputs = [_node_arg(o) for o in graph.output]
        self._executable = compile(path_or_bytes, threads=threads or None)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[np.ndarray]:
        """The named outputs (all for None), from arrays by input name.

        InputError for arrays that do not fit, UsageError for an output that the model does not have.
        """
        results = dict(zip([o.name for o in self._outputs], self._executable.run(input_feed), strict=True))
        unknown = [n for n in output_names or () if n not in results]
        if unknown:
            hint = f"its outputs are {', '.join(results)}"
            raise UsageError(f"the model has no output {unknown[0]!r}", stage="run", hint=hint)
        return list(results.values()) if not output_names else [results[n] for n in output_names]

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        return get_available_providers()


def _node_arg(info: onnx.ValueInfoProto) -> NodeArg:
    if info.type.WhichOneof("value") != "tensor_type":
        return NodeArg(info.name, str(info.type.WhichOneof("value")).removesuffix("_type"))
    t = info.type.tensor_type
    name = onnx.TensorProto.DataType.Name(t.elem_type)
    shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in t.shape.dim]
    return NodeArg(info.name, f"tensor({_TYPES.get(name, name.lower())})", shape)


def get_available_providers() -> list[str]:
    """The names ONNX Runtime would list."""
    return ["CPUExecutionProvider"]


def get_device() -> str:
    return "CPU"
