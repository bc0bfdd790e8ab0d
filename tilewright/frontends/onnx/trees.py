"""Tree ensembles of `ai.onnx.ml`: `tw.tree_leaves`, then a gather of the leaves' values and their aggregate."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...ir.types import NUMPY, is_float
from ...ops.trees import COMPARISONS, EQUAL, GREATER, LESS, NAN
from .ml import DOMAIN, classify, labels_of, post_transform
from .registry import onnx_op
from .values import OnnxNotImported

TESTS = {
    "BRANCH_LEQ": LESS | EQUAL,
    "BRANCH_LT": LESS,
    "BRANCH_GTE": GREATER | EQUAL,
    "BRANCH_GT": GREATER,
    "BRANCH_EQ": EQUAL,
    "BRANCH_NEQ": LESS | GREATER | NAN,
}
#: numbers of modes and aggregates in TreeEnsemble
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass
class Forest:
    """Nodes as lists; `weights` are (leaf, target, value)."""

    feature: list[int] = field(default_factory=list)
    split: list[float] = field(default_factory=list)
    test: list[int] = field(default_factory=list)
    yes: list[int] = field(default_factory=list)
    no: list[int] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    weights: list[tuple[int, int, float]] = field(default_factory=list)

    def add(self, feature: int, split: float, test: int, yes: int, no: int) -> int:
        self.feature.append(feature)
        self.split.append(split)
        self.test.append(test)
        self.yes.append(yes)
        self.no.append(no)
        return len(self.feature) - 1

    def leaf(self) -> int:
        at = len(self.feature)
        return self.add(0, 0.0, 0, at, at)

    def depth(self, n) -> int:
        """The longest way from a root to a leaf; an error if the nodes form a cycle."""
        known: dict[int, int] = {}
        for root in self.roots:
            path = [(root, False)]
            open_: set[int] = set()
            while path:
                at, left = path.pop()
                if left:
                    open_.discard(at)
                    known[at] = 1 + max(known[self.yes[at]], known[self.no[at]])
                elif at in known:
                    continue
                elif self.yes[at] == at == self.no[at]:
                    known[at] = 0
                else:
                    if at in open_:
                        raise n.error("the nodes of a tree form a cycle")
                    open_.add(at)
                    path += [(at, True), (self.yes[at], False), (self.no[at], False)]
        return max((known[r] for r in self.roots), default=0)

    def check(self, n, features: int) -> None:
        """An error if nodes or features are named that do not exist."""
        count = len(self.feature)
        if any(not 0 <= v < count for v in (*self.yes, *self.no, *self.roots)):
            raise n.error("a tree leads to a node that does not exist")
        if any(not 0 <= f < features for f in self.feature):
            raise n.error(f"a tree uses feature {max(self.feature)}, the input has {features}")

    def leaves(self, n, x):
        """The leaf of every example in every tree, [N, T]."""
        self.check(n, x.shape[1])
        ints = [n.constant(np.array(v, np.int32)) for v in (self.feature, self.test, self.yes, self.no, self.roots)]
        split = n.constant(np.array(self.split, NUMPY[x.dtype]))
        tests = {t for i, t in enumerate(self.test) if not self.yes[i] == i == self.no[i]}
        always = tests.pop() if len(tests) == 1 and tests <= set(COMPARISONS) else 0
        return n("tree_leaves", x, ints[0], split, *ints[1:], depth=self.depth(n), always=always)

    def scores(self, n, x, targets: int, aggregate: str, dtype: str = "f32"):
        """The aggregate of the leaves' values for every target, [N, targets]."""
        leaf = self.leaves(n, x)
        fill = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
        table = np.full((len(self.feature), targets), fill)
        for at, target, value in self.weights:
            if not 0 <= target < targets:
                raise n.error(f"a leaf is for target {target}, there are {targets}")
            old = table[at, target]
            table[at, target] = {"MIN": min(old, value), "MAX": max(old, value)}.get(aggregate, old + value)
        values = n("gather", n.constant(table.astype(NUMPY[dtype])), leaf, axis=0)  # [N, T, targets]
        reduce = {"SUM": "reduce_sum", "AVERAGE": "reduce_sum", "MIN": "reduce_min", "MAX": "reduce_max"}.get(aggregate)
        if reduce is None:
            raise n.error(f"aggregate {aggregate!r} is not known")
        total = n(reduce, values, axes=(1,), keepdims=False)
        if fill:  # targets that no leaf on the way is for
            total = n("where", n("equal", total, float(fill)), n.zero(total), total)
        return n("div", total, float(len(self.roots))) if aggregate == "AVERAGE" and self.roots else total


def examples(n, x):
    """The input as floats [N, F]."""
    if x.rank == 1:
        x = n.reshape(x, (1, x.shape[0]))
    if x.rank != 2:
        raise n.error(f"takes examples [N, F], got {x.type}")
    return x if is_float(x.dtype) and x.dtype in ("f32", "f64") else n.cast(x, "f32")


def numbers(n, name):
    """A list of floats given as attribute NAME or as tensor NAME_as_tensor."""
    tensor = n.attr(f"{name}_as_tensor")
    return list(map(float, tensor.reshape(-1))) if tensor is not None else [float(v) for v in n.attr(name) or []]


def old_forest(n, kind: str) -> Forest:
    """The forest of TreeEnsembleRegressor (kind "target") and TreeEnsembleClassifier ("class")."""
    forest = Forest()
    trees, ids = n.required("nodes_treeids"), n.required("nodes_nodeids")
    modes, features, splits = n.required("nodes_modes"), n.required("nodes_featureids"), numbers(n, "nodes_values")
    yes, no = n.required("nodes_truenodeids"), n.required("nodes_falsenodeids")
    missing = n.attr("nodes_missing_value_tracks_true") or [0] * len(ids)
    lists = (trees, modes, features, splits, yes, no, missing)
    if any(len(v) != len(ids) for v in lists):
        raise n.error("the lists that describe the nodes have different lengths")
    places = {(t, i): k for k, (t, i) in enumerate(zip(trees, ids, strict=True))}
    if len(places) != len(ids):
        raise n.error("two nodes have the same tree and number")

    def place(tree, node):
        if (tree, node) not in places:
            raise n.error(f"tree {tree} has no node {node}")
        return places[tree, node]

    children = set()
    for k, mode in enumerate(modes):
        if mode == "LEAF":
            forest.leaf()
            continue
        if mode not in TESTS:
            raise OnnxNotImported(f"with nodes of mode {mode}")
        a, c = place(trees[k], yes[k]), place(trees[k], no[k])
        children |= {a, c}
        forest.add(features[k], splits[k], TESTS[mode] | (NAN if missing[k] else 0), a, c)
    first: dict[int, int] = {}
    for k, tree in enumerate(trees):
        if k not in children:
            first.setdefault(tree, k)
    if len(first) != len(set(trees)):
        raise n.error("a tree has no root")
    forest.roots = list(first.values())
    own = zip(
        n.required(f"{kind}_treeids"),
        n.required(f"{kind}_nodeids"),
        n.required(f"{kind}_ids"),
        numbers(n, f"{kind}_weights"),
        strict=True,
    )
    forest.weights = [(place(t, i), target, value) for t, i, target, value in own]
    return forest


def with_base(n, scores, base):
    if not base:
        return scores
    if len(base) not in (1, scores.shape[1]):
        raise n.error(f"{len(base)} base values for {scores.shape[1]} targets")
    return n("add", scores, n.constant(np.array(base, NUMPY[scores.dtype])))


@onnx_op("TreeEnsembleRegressor", since=1, domain=DOMAIN)
def tree_regressor(n, x):
    x = examples(n, x)
    aggregate = n.attr("aggregate_function", "SUM")
    scores = old_forest(n, "target").scores(n, x, n.attr("n_targets", 1), aggregate, x.dtype)
    return post_transform(
        n, n.cast(with_base(n, scores, numbers(n, "base_values")), "f32"), n.attr("post_transform", "NONE")
    )


@onnx_op("TreeEnsembleClassifier", since=1, domain=DOMAIN)
def tree_classifier(n, x):
    x, labels, forest = examples(n, x), labels_of(n, "classlabels_int64s"), old_forest(n, "class")
    used = {target for _, target, _ in forest.weights}
    positive = all(value >= 0 for _, _, value in forest.weights)
    kind, base = n.attr("post_transform", "NONE"), numbers(n, "base_values")
    if len(labels) == 2 and used == {0}:  # one score decides between two classes
        scores = n.cast(with_base(n, forest.scores(n, x, 1, "SUM", x.dtype), base[:1]), "f32")
        return classify(n, scores, labels, kind, probabilities=positive)
    scores = n.cast(with_base(n, forest.scores(n, x, len(labels), "SUM", x.dtype), base), "f32")
    if len(labels) == 2 and used == {1}:  # so does this, but the first class has a score of 0
        second = n.slice(scores, 1, 1, 1)
        return [classify(n, second, labels, kind, probabilities=positive)[0], post_transform(n, scores, kind)]
    return classify(n, scores, labels, kind)


@onnx_op("TreeEnsemble", since=5, domain=DOMAIN)
def tree_ensemble(n, x):
    x = examples(n, x)
    forest = Forest()
    modes, features, splits = (
        n.required("nodes_modes").reshape(-1),
        n.required("nodes_featureids"),
        n.required("nodes_splits").reshape(-1),
    )
    weights, targets = n.required("leaf_weights").reshape(-1), n.required("leaf_targetids")
    count = len(features)
    missing = n.attr("nodes_missing_value_tracks_true") or [0] * count
    lists = [
        n.required(name) for name in ("nodes_truenodeids", "nodes_trueleafs", "nodes_falsenodeids", "nodes_falseleafs")
    ]
    if any(len(v) != count for v in (modes, splits, missing, *lists)) or len(weights) != len(targets):
        raise n.error("the lists that describe the nodes have different lengths")
    for k in range(count):  # the nodes first, so that their numbers stay; branches of sets follow
        forest.add(features[k], float(splits[k]), 0, 0, 0)
    leaves = [forest.leaf() for _ in targets]
    sets = members(n)
    for k in range(count):
        ways = []
        for number, is_leaf in ((lists[0][k], lists[1][k]), (lists[2][k], lists[3][k])):
            limit = len(leaves) if is_leaf else count
            if not 0 <= number < limit:
                raise n.error(f"node {k} leads to a node that does not exist")
            ways.append(leaves[number] if is_leaf else number)
        if not 0 <= modes[k] < len(MODES):
            raise n.error(f"mode {modes[k]} is not known")
        branch(n, forest, k, MODES[modes[k]], ways, bool(missing[k]), sets)
    forest.roots = list(n.required("tree_roots"))
    forest.weights = [
        (leaf, target, float(value)) for leaf, target, value in zip(leaves, targets, weights, strict=True)
    ]
    aggregate, transform = AGGREGATES[n.attr("aggregate_function", 1)], TRANSFORMS[n.attr("post_transform", 0)]
    return post_transform(n, forest.scores(n, x, n.attr("n_targets", 1), aggregate, x.dtype), transform)


def members(n):
    """The sets of the BRANCH_MEMBER nodes in order: NaN ends each."""
    values = n.attr("membership_values")
    found: list[list[float]] = [[]]
    for v in [] if values is None else values.reshape(-1):
        if np.isnan(v):
            found.append([])
        else:
            found[-1].append(float(v))
    return iter(found)


def branch(n, forest: Forest, k: int, mode: str, ways: list[int], missing: bool, sets) -> None:
    """Fill in node k; a set becomes a chain of comparisons."""
    nan = NAN if missing else 0
    if mode != "BRANCH_MEMBER":
        forest.test[k], (forest.yes[k], forest.no[k]) = TESTS[mode] | nan, ways
        return
    values = next(sets, None)
    if values is None:
        raise n.error("there are fewer sets than nodes that need one")
    at = k
    for i, v in enumerate(values or [float("nan")]):
        last = i + 1 >= len(values)
        after = ways[1] if last else forest.add(forest.feature[k], 0.0, 0, 0, 0)
        forest.split[at], forest.test[at], forest.yes[at], forest.no[at] = v, EQUAL | nan, ways[0], after
        at = after
