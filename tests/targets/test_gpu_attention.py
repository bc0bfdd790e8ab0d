"""Attention on the devices that have a driver here: drawn sizes by tiles of queries and by keys that are shared out."""

from __future__ import annotations

import numpy as np
import pytest
from support.attention_cases import Case, drawn
from support.gpus import device_of

import tilewright as tw


@pytest.fixture(scope="module", params=["opencl", "vulkan"])
def target(request):
    device_of(request.param)
    return request.param


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_drawn_sizes(seed, few, target):
    case = drawn(seed + 10 * (target == "vulkan"), few=few)
    run = tw.compile(case.text, target=target)
    assert "block_attention" in run.explain()
    inputs = case.inputs(seed)
    case.check(run(*inputs)[0], inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_queries_that_see_no_key_give_zeros(causal, target):
    case = Case(20, 24, causal=causal, offset=-9 if causal else 0, mask="qk")
    inputs = case.inputs()
    inputs[3][0, 0, :5] = -np.inf
    found = tw.compile(case.text, target=target)(*inputs)[0]
    assert (found[:, :, :5] == 0).all()
    case.check(found, inputs)


def test_what_is_around_it_joins(target):
    """A layer as models have it: heads are cut out of one matrix, and put together again with a sum."""
    from onnx import parser

    made = parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        m (float[1, 21, 32] q, float[1, 21, 32] k, float[1, 21, 32] v, float[1, 21, 32] r) => (float[1, 21, 32] y)
        <int64[4] split = {1, 21, 4, 8}, int64[3] joined = {1, 21, 32}, float scale = {0.353}> {
            qs = Reshape(q, split) qt = Transpose<perm=[0, 2, 1, 3]>(qs)
            ks = Reshape(k, split) kt = Transpose<perm=[0, 2, 3, 1]>(ks)
            vs = Reshape(v, split) vt = Transpose<perm=[0, 2, 1, 3]>(vs)
            s = MatMul(qt, kt) t = Mul(s, scale) p = Softmax<axis=-1>(t) o = MatMul(p, vt)
            ot = Transpose<perm=[0, 2, 1, 3]>(o) oj = Reshape(ot, joined) y = Add(oj, r) }""")
    g = np.random.default_rng(0)
    inputs = [g.standard_normal((1, 21, 32)).astype(np.float32) for _ in range(4)]
    run = tw.compile(made, target=target)
    (line,) = [x for x in run.explain().splitlines() if "block_attention" in x]
    assert "transpose_attention" in line
    np.testing.assert_allclose(run(*inputs)[0], tw.compile(made)(*inputs)[0], rtol=1e-5, atol=1e-5)
