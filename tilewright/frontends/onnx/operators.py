"""All operators that can be imported, and `load`, which makes the level-2 `Graph` of a model.

Every ONNX operator is one small function in the file of its family, registered for the opset version from which it is
valid; of several versions the newest that the model's opset reaches is taken (there is no version converter). Operators
without a function of their own that ONNX defines as functions, and functions of the model itself, are expanded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from ...ir.graph import Graph
from . import (  # noqa: F401  (register the operators)
    contrib,
    contrib_attention,
    contrib_bits,
    contrib_gpu,
    contrib_moe,
    contrib_paged,
    contrib_quant,
    control,
    detection,
    index,
    legacy_opsets,
    linear,
    math,
    ml,
    nn,
    quant,
    random,
    recurrent,
    reduce,
    resize,
    sampling,
    shape,
    spectral,
    text,
    training,
    trees,
)
from .importer import OnnxImporter
from .reader import Model, read
from .registry import supported

__all__ = ["load", "supported"]


def load(
    source: str | os.PathLike | bytes | onnx.ModelProto | Model,
    *,
    inputs: Mapping[str, Sequence[int] | np.ndarray] | None = None,
    lazy: bool = False,
    check_indices: bool = False,
) -> Graph:
    """The level-2 graph of an ONNX model, with static shapes and a verified IR.

    `source` is a path, the bytes of a file, or a `ModelProto`. Weights are not copied: they stay memory-mapped in the
    file (and its external data files). `inputs` gives the shapes of inputs that the model leaves open, ``{"ids": (1,
    128)}``; an array instead of a shape makes that input a constant (for models that take, say, a target shape as an
    input). `lazy`: refuse costly branches and long loops, which are better left to the runtime
    (`tilewright.driver.specialization`).
    `check_indices`: the graph gets the outputs of `runtime.indices`.

    Raises ModelError (damaged or inconsistent model, open input dimensions), InputError (`inputs` does not fit the
    model), UnsupportedError (all operators that cannot be imported, at once).

    >>> from onnx import TensorProto, helper
    >>> x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    >>> y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    >>> graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "act")], "g", [x], [y])
    >>> load(helper.make_model(graph), inputs={"x": (2, 4)}).outputs()
    [('y', Type(shape=(2, 4), dtype='f32'))]
    """
    model = read(source)
    graph = OnnxImporter(model, lazy, check_indices).run(dict(inputs or {}))
    graph.constants.files = model.files
    return graph
