"""Train the pretrained cost model of the tuner on what cost_data.py has measured, and write it into the package.

    python benchmarks/cost_train.py train.sqlite [more.sqlite ...] [-o tilewright/tune/pretrained.txt]

Prints how well kernels that a model has not seen are ranked (each eighth of them by a model of the others): Spearman's
correlation of predicted and measured ratios within a kernel, and how far the best of the quarter that is predicted to
be fastest is from the best of all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import lightgbm
import numpy as np
import typer
from tune_kernels import machine_facts

from tilewright.driver.tuning_database import Database
from tilewright.tune.cost import WORST
from tilewright.tune.features import VERSION
from tilewright.tune.pretrained import ABOUT, FILE, columns, compared, digest

#: fewer candidates of a kernel say nothing about their order
ENOUGH = 4
FOLDS = 8
#: small trees: the kernels differ from each other more than the candidates of one
ROUNDS, PARAMETERS = 150, {
    "objective": "regression", "learning_rate": 0.1, "num_leaves": 7, "min_data_in_leaf": 5,
    "min_sum_hessian_in_leaf": 1e-4, "feature_fraction": 0.4, "bagging_fraction": 0.8, "bagging_freq": 1,
    "lambda_l2": 0.1, "verbosity": -1, "num_threads": 1, "seed": 0, "deterministic": True, "force_row_wise": True,
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """The measurements of one kernel: what the model looks at (n, columns), and log2 of the ratios (n). The first is
    the default schedule."""

    label: str
    inputs: np.ndarray
    ratios: np.ndarray

    def __len__(self) -> int:
        return len(self.ratios)


def tables(files: list[Path]) -> list[Table]:
    """The kernels of databases that cost_data.py has made."""
    found = []
    for file in files:
        data = Database(file, read_only=True)
        for row in data.rows():
            rows = data.measurements(row.id)
            if len(rows) > ENOUGH:
                ratios = [WORST if m.ratio is None else min(max(m.ratio, 1e-3), WORST) for m in rows]
                described = compared([m.features for m in rows], rows[0].features)
                found.append(Table(row.label, described, np.log2(ratios)))
    return found


def train(data: list[Table]) -> Any:
    """A LightGBM model of all tables; a kernel with more candidates counts more, but not in proportion."""
    weights = np.concatenate([np.full(len(t), 1 / math.sqrt(len(t))) for t in data])
    rows = lightgbm.Dataset(
        np.vstack([t.inputs for t in data]),
        label=np.concatenate([t.ratios for t in data]),
        weight=weights,
        feature_name=columns(),
    )
    return lightgbm.train(PARAMETERS, rows, num_boost_round=ROUNDS)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's."""
    return float(np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1])


def cross_validated(data: list[Table]) -> tuple[float, float]:
    """(mean correlation, mean loss of the best predicted quarter as log2 of a ratio) for kernels not trained on."""
    fold = np.random.default_rng(0).integers(0, FOLDS, len(data))
    correlations, losses = [], []
    for k in range(FOLDS):
        model = train([t for t, f in zip(data, fold, strict=True) if f != k])
        for t in (t for t, f in zip(data, fold, strict=True) if f == k):
            predicted, measured = model.predict(t.inputs[1:]), t.ratios[1:]
            correlations.append(correlation(predicted, measured))
            chosen = np.argsort(predicted, kind="stable")[: max(1, len(predicted) // 4)]
            losses.append(float(measured[chosen].min() - measured.min()))
    return float(np.mean(correlations)), float(np.mean(losses))


def text(booster: Any, about: dict[str, str]) -> str:
    """The file: its head, and the trees without the parameters, which are here."""
    trees, end, _ = booster.model_to_string().partition("end of trees\n")
    head = {**about, "digest": digest(trees + end)}
    return "".join(f"# {name}: {head[name]}\n" for name in ABOUT) + "\n" + trees + end


def main(
    data: Annotated[list[Path], typer.Argument(help="Databases that cost_data.py has made.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = FILE,
) -> None:
    found = tables(data)
    size = sum(len(t) - 1 for t in found)
    ranked, lost = cross_validated(found)
    print(f"{len(found)} kernels, {size} measurements; on kernels not seen: correlation {ranked:.2f}, the best of the ")
    print(f"quarter predicted fastest takes {2**lost:.3f} times as long as the best of all")
    facts = machine_facts()
    about = {
        "features": str(VERSION), "target": "cpu", "measurements": str(size), "kernels": str(len(found)),
        "machine": f"{facts['processor']} ({facts['vector_bytes']}-byte vectors, {facts['toolchain']})",
        "made by": "benchmarks/cost_data.py, benchmarks/cost_train.py",
    }  # fmt: skip
    written = text(train(found), about)
    output.write_text(written, encoding="utf-8")
    print(f"{output}: {len(written) / 1024:.0f} KB")


if __name__ == "__main__":
    typer.run(main)
