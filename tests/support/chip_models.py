"""Models that run on chips."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save


def dense(path, inputs, outputs, count=1, batch=8):
    """Layers of a product and a ReLU, the same one several times: one kernel that is called `count` times."""
    w = np.random.default_rng(0).standard_normal((inputs, outputs)).astype(np.float32)
    nodes, x = [], "x"
    for n in range(count):
        nodes += [helper.make_node("MatMul", [x, "w"], [f"m{n}"]), helper.make_node("Relu", [f"m{n}"], [f"y{n}"])]
        x = f"y{n}"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, inputs])
    result = helper.make_tensor_value_info(x, TensorProto.FLOAT, [batch, outputs])
    graph = helper.make_graph(nodes, "dense", [given], [result], [numpy_helper.from_array(w, "w")])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return str(path)
