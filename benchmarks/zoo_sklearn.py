"""Pipelines of scikit-learn in the zoo, through skl2onnx: their own predictions are what is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from zoo_models import SEED, MadeOnnx, entry

ROWS, COLUMNS, CLASSES = 64, 20, 3


def data() -> tuple[np.ndarray, np.ndarray]:
    """Rows of three overlapping clouds (f32) and which cloud each is of (i64)."""
    random = np.random.default_rng(SEED)
    labels = np.arange(1200) % CLASSES
    centres = random.standard_normal((CLASSES, COLUMNS))
    return (centres[labels] + random.standard_normal((1200, COLUMNS))).astype(np.float32), labels


def converted(model: Any, regression: bool = False) -> MadeOnnx:
    """A fitted pipeline as ONNX over 64 rows."""
    from skl2onnx import to_onnx

    x, labels = data()
    y = x[:, 0] * 2 + np.sin(x[:, 1]) if regression else labels
    model.fit(x, y)
    rows = x[:ROWS]
    options = {} if regression or not hasattr(model, "predict_proba") else {id(model): {"zipmap": False}}
    proto = to_onnx(model, rows, target_opset={"": 17, "ai.onnx.ml": 3}, options=options)
    names = [o.name for o in proto.graph.output]
    if regression:
        results = [np.asarray(model.predict(rows), np.float32).reshape(ROWS, -1)]
    elif hasattr(model, "predict_proba"):
        results = [model.predict(rows), model.predict_proba(rows).astype(np.float32)]
    elif hasattr(model, "predict"):
        results = [model.predict(rows), model.transform(rows).astype(np.float32)][: len(names)]
    else:
        results = [model.transform(rows).astype(np.float32)]
    return MadeOnnx(proto, {proto.graph.input[0].name: rows}, dict(zip(names, results, strict=True)))


def pipeline(*steps: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), *steps)


def _models() -> dict[str, tuple[Callable[[], Any], bool]]:
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.ensemble import (
        GradientBoostingRegressor,
        RandomForestClassifier,
        RandomForestRegressor,
    )
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import PolynomialFeatures
    from sklearn.tree import DecisionTreeClassifier

    def forest() -> Any:
        return RandomForestClassifier(60, max_depth=8, random_state=0)

    return {
        "forest": (forest, False),
        "forest_regressor": (lambda: RandomForestRegressor(60, max_depth=8, random_state=0), True),
        "boosting": (lambda: GradientBoostingRegressor(n_estimators=80, random_state=0), True),
        "tree": (lambda: DecisionTreeClassifier(max_depth=9, random_state=0), False),
        "logistic": (lambda: pipeline(PCA(8), LogisticRegression(max_iter=300)), False),
        "mlp": (lambda: pipeline(MLPClassifier((64, 32), max_iter=60, random_state=0)), False),
        "ridge_polynomial": (lambda: pipeline(PolynomialFeatures(2), Ridge()), True),
        "naive_bayes": (lambda: GaussianNB(), False),
        "kmeans": (lambda: KMeans(6, n_init=2, random_state=0), False),
    }


NAMES = [
    "forest",
    "forest_regressor",
    "boosting",
    "hist_boosting",
    "tree",
    "logistic",
    "mlp",
    "ridge_polynomial",
    "naive_bayes",
    "kmeans",
]


def _make(name: str) -> MadeOnnx:
    build, regression = _models()[name]
    return converted(build(), regression)


for _name in NAMES:
    entry("sklearn", f"sk_{_name}", exporter="skl2onnx")(lambda name=_name: _make(name))
