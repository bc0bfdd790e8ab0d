"""Floats to unsigned integers: what does not fit is the same number whether it is computed now or folded."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw

EDGES = [0.0, -0.0, 0.9, 1.5, -0.5, -1.0, -3.7, np.nan, np.inf, -np.inf, 127.0, 128.0, 254.9, 255.0, 255.9, 256.0]
EDGES += [300.0, 32767.0, 32768.0, 65503.0, 65535.0, 65536.0, 2.0**31, 2.0**32 - 256, 2.0**32, 5e9, 2.0**63, 2.0**64]
EDGES += [1e30, -1e19]
FLOATS = {"FLOAT": np.float32, "DOUBLE": np.float64, "FLOAT16": np.float16}


def expected(x, dtype):
    top = np.iinfo(dtype).max
    return np.array([0 if not v > 0 else top if v >= float(top) else int(v) for v in x.astype(np.float64)], dtype)


@pytest.mark.parametrize("to", ["UINT8", "UINT16", "UINT32", "UINT64"])
@pytest.mark.parametrize("source", FLOATS)
def test_run_time_and_folding(source, to):
    with np.errstate(over="ignore"):
        more = np.random.default_rng(0).standard_normal(7) * 1e5
        x = np.array([*EDGES, *more], np.float64).astype(FLOATS[source])
    kinds = getattr(TensorProto, source), getattr(TensorProto, to)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=kinds[1]), helper.make_node("Cast", ["c"], ["z"], to=kinds[1])],
        "g",
        [helper.make_tensor_value_info("x", kinds[0], x.shape)],
        [helper.make_tensor_value_info(n, kinds[1], x.shape) for n in ("y", "z")],
        [helper.make_tensor("c", kinds[0], x.shape, x.tobytes(), raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    y, z = tw.compile(model, threads=1)(x)
    np.testing.assert_array_equal(y, expected(x, y.dtype))
    np.testing.assert_array_equal(z, y)
