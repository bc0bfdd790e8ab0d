"""ONNX models written in a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def value(name: str, shape: Sequence[Any] | None = None, element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """An input or output; a dimension is a size, a name or None, a shape None is left open."""
    return helper.make_tensor_value_info(name, element, shape)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node whose inputs and outputs are named with blanks between them.

    >>> node("Add", "a b", "y").input
    ['a', 'b']
    """
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def graph(nodes: Iterable, inputs: Iterable, outputs: Iterable, constants: Mapping[str, Any] | None = None, name="g"):
    """A graph; `constants` are arrays by name."""
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    return helper.make_graph(list(nodes), name, list(inputs), list(outputs), tensors)


def model(
    nodes: Iterable,
    inputs: Iterable,
    outputs: Iterable,
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 18,
    name: str = "g",
    domains: Iterable[str] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model of one graph; `domains` are those besides ONNX's own, in version 1, with those of `functions`."""
    more = dict.fromkeys([*domains, *(f.domain for f in functions)])
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in more)]
    made = graph(nodes, inputs, outputs, constants, name)
    return helper.make_model(made, opset_imports=opsets, ir_version=8, functions=list(functions))
