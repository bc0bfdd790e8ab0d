"""Models of one node, computed by Tilewright and by ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper

import tilewright as tw
from tilewright.frontends.onnx import load
from tilewright.graph.interpret import interpret

MS = "com.microsoft"


def model_of(operator, inputs, constants=(), outputs=1, domain=MS, **attributes):
    """A model of one node; `inputs` by name (None: absent), those in `constants` become initializers."""
    given = {k: v for k, v in inputs.items() if v is not None}
    names = [k if v is not None else "" for k, v in inputs.items()]
    wanted = range(outputs) if isinstance(outputs, int) else outputs
    results = [f"y{i}" if i in wanted else "" for i in range(max(wanted) + 1)]
    node = helper.make_node(operator, names, results, domain=domain, **attributes)
    values = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in given.items()
        if k not in constants
    ]
    graph = helper.make_graph(
        [node],
        operator,
        values,
        [helper.make_empty_tensor_value_info(r) for r in results if r],
        [numpy_helper.from_array(given[k], k) for k in constants if k in given],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return model.SerializeToString(), {k: v for k, v in given.items() if k not in constants}


def onnx_runtime(data, feed):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feed)


def compare(actual, expected, tolerance=1e-5):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape
        if a.dtype.kind in "iub":
            # half of a quantum is rounded by whoever comes first
            assert np.abs(a.astype(np.int64) - e.astype(np.int64)).max(initial=0) <= (tolerance >= 1)
        else:
            half = a.dtype == np.float16
            np.testing.assert_allclose(a.astype(np.float64), e.astype(np.float64), 1e-2 if half else tolerance,
                                       1e-2 if half else tolerance)  # fmt: skip


def check(operator, inputs, constants=(), *, native=False, tolerance=1e-5, **rest):
    """The references' results, and natively computed ones, against ONNX Runtime's."""
    data, feed = model_of(operator, inputs, constants, **rest)
    expected = onnx_runtime(data, feed)
    compare(list(interpret(load(data), feed).values()), expected, tolerance)
    if native:
        compare(tw.compile(data).run(feed), expected, tolerance)


def compute(operator, inputs, constants=(), **rest):
    """Natively computed results."""
    data, feed = model_of(operator, inputs, constants, **rest)
    return tw.compile(data).run(feed)


def equal(operator, inputs, others, **rest):
    """Two ways to give an operator the same inputs."""
    results = []
    for given in (inputs, others):
        data, feed = model_of(operator, given, **rest)
        results.append(list(interpret(load(data), feed).values()))
    compare(*results)


def floats(*shape, seed=0, scale=1.0, dtype=np.float32):
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(dtype)


def bytes_(*shape, low=0, high=256, dtype=np.uint8, seed=0):
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype)
