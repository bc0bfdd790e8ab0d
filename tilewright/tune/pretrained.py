"""The pretrained cost model: what the kernels of other shapes have taught, for the first rounds of a search.

``pretrained.txt`` beside this file has it as text: lines ``# name: value`` that say how it was made, an empty line, and
the trees as LightGBM writes them. ``benchmarks/cost_data.py`` makes the measurements, ``benchmarks/cost_train.py`` the
file, ``benchmarks/cost_replay.py`` says what it is worth."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..support.errors import UsageError
from ..support.options import DEFAULT_TARGET
from .cost import require
from .features import VERSION, names

FILE = Path(__file__).with_name("pretrained.txt")
#: what the lines at the head of the file tell
ABOUT = ("features", "target", "measurements", "kernels", "machine", "made by", "digest")


def columns() -> list[str]:
    """The names of what the pretrained model looks at: the features of a candidate, and how much more each is than the
    default schedule's."""
    return [*names(), *(f"{n}_more" for n in names())]


def compared(features: Sequence[Sequence[float]], default: Sequence[float]) -> np.ndarray:
    """The features of candidates (n, k) with their differences from the default schedule's (k): an array (n, 2 k).

    A ratio to the default is asked for, so the differences are what holds for kernels of other shapes.

    >>> compared([(3.0, 1.0)], (2.0, 1.0)).tolist()
    [[3.0, 1.0, 1.0, 0.0]]
    """
    own = np.array(features, np.float64).reshape(-1, len(default))
    return np.hstack([own, own - np.array(default)])


@dataclass(frozen=True)
class Pretrained:
    """A model from a file; `about` has its head."""

    about: dict[str, str]
    booster: Any = field(repr=False)

    def predict(self, features: Sequence[Sequence[float]], default: Sequence[float]) -> np.ndarray:
        """The logarithms (base 2) of time over the default's that are expected of candidates, from their features and
        the default schedule's."""
        if not len(features):
            return np.zeros(0)
        return np.asarray(self.booster.predict(compared(features, default), num_threads=1))

    def __str__(self) -> str:
        return f"{self.about['measurements']} measurements of {self.about['kernels']} kernels, {self.about['machine']}"


def load(target: str = DEFAULT_TARGET, path: Path = FILE) -> Pretrained | None:
    """The pretrained model of a target, None if there is none for it.

    UsageError if the file is missing or damaged, or was made for other features than those of this version of
    Tilewright.
    """
    lightgbm = require()
    try:
        head, _, trees = path.read_text(encoding="utf-8").partition("\n\n")
        about = dict(re.findall(r"^# ([^:]+): (.*)$", head, re.MULTILINE))
        missing = [n for n in ABOUT if n not in about]
        if missing:
            raise ValueError(f"its head does not tell {', '.join(missing)}")
        if about["digest"] != digest(trees):
            raise ValueError("it is damaged: its trees are not those that its head was written for")
        booster = lightgbm.Booster(model_str=trees)
    except (OSError, ValueError, lightgbm.basic.LightGBMError) as e:
        raise _unfit(path, str(e)) from None
    if about["features"] != str(VERSION) or booster.feature_name() != columns():
        raise _unfit(path, f"it is made for features of version {about['features']}, these are of version {VERSION}")
    return Pretrained(about, booster) if about["target"] == target else None


def digest(trees: str) -> str:
    """What the head says of the trees: LightGBM may end the process when it reads damaged ones."""
    return hashlib.sha256(trees.encode()).hexdigest()[:24]


def _unfit(path: Path, why: str) -> UsageError:
    return UsageError(
        f"the pretrained cost model {path.name} cannot be used: {why}",
        stage="tune",
        hint="tune without it (--no-pretrained, pretrained=False), or train it anew with benchmarks/cost_train.py",
    )


__all__ = ["ABOUT", "FILE", "Pretrained", "columns", "compared", "digest", "load"]
