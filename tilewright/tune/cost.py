"""The learned cost model: gradient-boosted trees (LightGBM) that predict how a candidate compares with the default
schedule.

It learns from all measurements made so far, of every kernel on this machine, and is trained again as they come in. What
kernels of other shapes have taught before (`pretrained`) leads while there are few. Needs the extra
``tilewright[tune]``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..support.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType

    from .pretrained import Pretrained

#: fewer measurements than this teach nothing
ENOUGH = 12
#: slower than this many times the default is all the same
WORST = 8.0
#: after so many measurements of a kernel they count as much as the pretrained model
HALF = 16


def require() -> ModuleType:
    """The lightgbm module; UsageError that says how to get it."""
    try:
        import lightgbm
    except (ImportError, OSError) as e:
        raise UsageError(
            f"tuning needs the package lightgbm, which cannot be imported ({e})",
            stage="tune",
            hint="pip install tilewright[tune]",
        ) from None
    return lightgbm


class CostModel:
    """Predicts the logarithm (base 2) of time over the default's time; smaller is better.

    Own measurements of a task count fully, those of other kernels `foreign` as much. A `pretrained` model is all there
    is at first, and counts less with every measurement of the kernel; it is not trained any further.
    """

    def __init__(self, seed: int = 0, foreign: float = 0.3, pretrained: Pretrained | None = None) -> None:
        self.lightgbm = require()
        self.seed, self.foreign, self.pretrained = seed, foreign, pretrained
        self._model: Any = None

    @property
    def trained(self) -> bool:
        """True once measurements of this machine have been learnt."""
        return self._model is not None

    @property
    def ready(self) -> bool:
        """True if predictions say something."""
        return self.trained or self.pretrained is not None

    def fit(
        self, own: Sequence[tuple[tuple[float, ...], float]], others: Sequence[tuple[tuple[float, ...], float]] = ()
    ) -> None:
        """Train on (features, ratio) pairs; too few leave the model as it is."""
        length = len(own[0][0]) if own else len(others[0][0]) if others else 0
        own = [(f, r) for f, r in own if len(f) == length]
        others = [(f, r) for f, r in others if len(f) == length]
        if len(own) + len(others) < ENOUGH:
            return
        rows = [*own, *others]
        x = np.array([f for f, _ in rows], np.float32)
        y = np.array([math.log2(min(max(r, 1e-3), WORST)) for _, r in rows])
        # the fast ones are those that must be ranked
        weight = np.array([1.0] * len(own) + [self.foreign] * len(others)) * np.exp2(-1.5 * np.maximum(y, -1.0))
        parameters = {
            "objective": "regression", "learning_rate": 0.1, "num_leaves": 15, "min_data_in_leaf": 2,
            "min_sum_hessian_in_leaf": 1e-3,
            "feature_fraction": 0.6, "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 0.5,
            "verbosity": -1, "num_threads": 1,
            "seed": self.seed, "deterministic": True, "force_row_wise": True,
        }  # fmt: skip
        data = self.lightgbm.Dataset(x, label=y, weight=weight, free_raw_data=True)
        self._model = self.lightgbm.train(parameters, data, num_boost_round=120)

    def predict(
        self, features: Sequence[tuple[float, ...]], default: tuple[float, ...] | None = None, measured: int = 0
    ) -> np.ndarray:
        """The predicted logarithms; zeros before the model is `ready`.

        The pretrained model needs the features of the kernel's default schedule; without them it is left out.
        `measured` says how many candidates of the kernel were measured.
        """
        if not len(features):
            return np.zeros(0)
        learnt = self._model.predict(np.array(features, np.float32)) if self.trained else np.zeros(len(features))
        if self.pretrained is None or default is None:
            return np.asarray(learnt)
        share = HALF / (HALF + measured) if self.trained else 1.0
        return share * self.pretrained.predict(features, default) + (1.0 - share) * np.asarray(learnt)


__all__ = ["CostModel", "require"]
