"""Decision trees whose nodes all test the same make one comparison a step (`tw.tree_leaves`)."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.teams import teams

import tilewright as tw

TREES, DEPTH, FEATURES, ROWS = 5, 3, 4, 40
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def forest(rng, modes, missing) -> onnx.ModelProto:
    """Full trees, every node with one of `modes`; splits are whole numbers, so that examples can equal them."""
    inner, count = 2**DEPTH - 1, 2 ** (DEPTH + 1) - 1
    nodes = [(t, i) for t in range(TREES) for i in range(count)]
    leaf = [i >= inner for _, i in nodes]
    at = [n for n, end in zip(nodes, leaf, strict=True) if end]
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=[t for t, _ in nodes], nodes_nodeids=[i for _, i in nodes],
        nodes_modes=["LEAF" if end else str(rng.choice(modes)) for end in leaf],
        nodes_featureids=[int(rng.integers(FEATURES)) for _ in nodes],
        nodes_values=[float(rng.integers(-1, 2)) for _ in nodes],
        nodes_truenodeids=[0 if end else 2 * i + 1 for (_, i), end in zip(nodes, leaf, strict=True)],
        nodes_falsenodeids=[0 if end else 2 * i + 2 for (_, i), end in zip(nodes, leaf, strict=True)],
        nodes_missing_value_tracks_true=[int(missing) for _ in nodes],
        target_treeids=[t for t, _ in at], target_nodeids=[i for _, i in at], target_ids=[0] * len(at),
        target_weights=[float(v) for v in rng.integers(0, 1000, len(at))],
    )  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, FEATURES])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, 1])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=10)


def walked(model, x) -> np.ndarray:
    """By the definition of the operator, one node after the other."""
    a = {v.name: helper.get_attribute_value(v) for v in model.graph.node[0].attribute}
    place = {at: k for k, at in enumerate(zip(a["nodes_treeids"], a["nodes_nodeids"], strict=True))}
    weight = dict(zip(zip(a["target_treeids"], a["target_nodeids"], strict=True), a["target_weights"], strict=True))
    tests = dict(
        zip(MODES, (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal), strict=True)
    )

    def value(row, tree) -> float:
        i = 0
        while (mode := a["nodes_modes"][k := place[tree, i]].decode()) != "LEAF":
            v = row[a["nodes_featureids"][k]]
            yes = tests[mode](v, a["nodes_values"][k]) or (a["nodes_missing_value_tracks_true"][k] and np.isnan(v))
            i = a["nodes_truenodeids" if yes else "nodes_falsenodeids"][k]
        return weight[tree, i]

    return np.array([[sum(value(row, t) for t in range(TREES))] for row in x], np.float32)


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 17])
def test_walks_side_by_side(rows):
    """Few examples walk through several trees at once, many through one."""
    rng = np.random.default_rng(rows)
    model = forest(rng, MODES, False)
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = rows
    x = rng.integers(-2, 3, (rows, FEATURES)).astype(np.float32)
    for run in teams(tw.compile(model, threads=1)):
        np.testing.assert_array_equal(run(x)[0], walked(model, x))


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("modes", [*[[m] for m in MODES], MODES], ids=lambda m: m[0] if len(m) == 1 else "mixed")
def test_nodes_that_test_the_same(modes, missing):
    rng = np.random.default_rng(7)
    model = forest(rng, modes, missing)
    x = rng.integers(-2, 3, (ROWS, FEATURES)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    text = tw.compile(model, stop_after="import").text()
    assert ("always" in text) == (len(modes) == 1 and not (missing and modes == ["BRANCH_EQ"]))
    np.testing.assert_array_equal(tw.compile(model, threads=1)(x)[0], walked(model, x))
