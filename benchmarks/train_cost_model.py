"""Train a cost model before any tuning: measure random schedules of kernels of many forms and sizes, and fit one model.

    python benchmarks/train_cost_model.py measure --trials 48 --db prior.sqlite [--test]     (an hour or so)
    python benchmarks/train_cost_model.py fit --db prior.sqlite --test-db test.sqlite [-o model.txt]

The sizes are not those of `tune_kernels`, which is what ``--test`` measures and `fit` judges the model by: how well it
ranks candidates of kernels it has never seen (Spearman), and what the best of the first eight candidates that it picks
out of all gains over the best of eight at random."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from statistics import mean

import numpy as np
import tune_kernels as kernels

from tilewright import te
from tilewright.options import Options
from tilewright.targets.base import find
from tilewright.tensor.kernel import Kernel
from tilewright.tune.cost import CostModel
from tilewright.tune.database import Database
from tilewright.tune.measure import Meter
from tilewright.tune.tasks import task_of
from tilewright.tune.tuner import Tuner

Samples = list[tuple[tuple[float, ...], float]]


def matmul(m: int, n: int, k: int) -> Kernel:
    a, b, r = te.placeholder((m, k), "a"), te.placeholder((k, n), "b", constant=True), te.reduce_axis(k, "k")
    return te.kernel(te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), "c"), name="matmul")


def depthwise(n: int, c: int, size: int) -> Kernel:
    x, w = te.placeholder((n + size - 1, n + size - 1, c), "x"), te.placeholder((size, size, c), "w", constant=True)
    ry, rx = te.reduce_axis(size, "ry"), te.reduce_axis(size, "rx")
    value = te.compute((n, n, c), lambda y, z, f: te.sum(x[y + ry, z + rx, f] * w[ry, rx, f], ry, rx), "y")
    return te.kernel(value, name="depthwise")


def rows(m: int, n: int) -> Kernel:
    """Softmax without the maximum."""
    x, k = te.placeholder((m, n), "x"), te.reduce_axis(n, "k")
    e = te.compute((m, n), lambda i, j: te.exp(x[i, j]), "e")
    total = te.compute((m,), lambda i: te.sum(e[i, k], k), "total")
    return te.kernel(te.compute((m, n), lambda i, j: e[i, j] / total[i], "y"), name="rows")


def transpose(m: int, n: int) -> Kernel:
    x = te.placeholder((m, n), "x")
    return te.kernel(te.compute((n, m), lambda i, j: x[j, i], "y"), name="transpose")


TRAINING = [
    matmul(17, 300, 200), matmul(128, 100, 555), matmul(260, 260, 64), matmul(1, 1000, 512),
    kernels.conv(13, 40, 56, 3), kernels.conv(19, 96, 72, 1), depthwise(28, 72, 3), depthwise(15, 200, 5),
    depthwise(56, 24, 3), rows(300, 700), rows(64, 2000), transpose(500, 900), transpose(1300, 256),
]  # fmt: skip


def measure(args: argparse.Namespace) -> None:
    chosen = [make() for make in kernels.KERNELS.values()] if args.test else TRAINING
    for kernel in chosen:
        meter = Meter(find("cpu"), 1, seconds=0.15)
        tuner = Tuner([task_of(kernel)], Options(threads=1), None, Database(args.db), args.seed, meter=meter)
        report = tuner.run(args.trials)
        print(f"{kernel.name:14} {report.trials:4} trials {report.seconds:6.1f} s", flush=True)


def samples(path: Path) -> dict[str, Samples]:
    """(features, ratio) of every good measurement, by kernel."""
    db, found = Database(path), {}
    for row in db.rows():
        good = [(m.features, m.ratio) for m in db.measurements(row.id) if m.ratio is not None]
        found[f"{row.label} {row.id}"] = good
    return found


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    ranks = [np.argsort(np.argsort(x)) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def fit(args: argparse.Namespace) -> None:
    model = CostModel(0)
    model.fit([], [s for found in samples(args.db).values() for s in found])
    rng, gains = random.Random(0), []
    for name, found in samples(args.test_db).items():
        if len(found) < 16:
            continue
        ratios = np.array([r for _, r in found])
        scores = model.predict([f for f, _ in found])
        picked = ratios[scores.argsort(kind="stable")[:8]].min()
        blind = mean(min(rng.sample(list(ratios), 8)) for _ in range(200))
        gains.append(blind / picked)
        print(f"{name:20} rank correlation {spearman(scores, ratios):5.2f}  best of 8: picked {picked:.3f}, "
              f"random {blind:.3f}, all {ratios.min():.3f}")  # fmt: skip
    print(f"picked over random, geometric mean: {np.exp(np.mean(np.log(gains))):.3f}")
    if args.output:
        model._model.save_model(str(args.output))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("measure", "fit"))
    parser.add_argument("--db", type=Path, default=Path("prior.sqlite"))
    parser.add_argument("--test-db", type=Path, default=Path("test.sqlite"))
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test", action="store_true", help="measure the kernels of tune_kernels instead")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    measure(args) if args.what == "measure" else fit(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
