"""Whole models: what tuning gains, how soon, and how much there was to gain.

    python benchmarks/tune_models.py [--models resnet50,mobilenet_v2] [--minutes 15] [--threads 2] [-o results]

Each model is tuned with an empty database. While that runs, the best so far is what the kernels take by their measured
shares; at the end the tuned model races two untuned ones, by turns, in several sets of executables that are made anew:
where their memory happens to lie makes one of the untuned ones up to 1% faster than the other. The result is the median
of all rounds of tuned over the mean of both untuned. How much there was to gain follows from the machine's ceilings
(docs/profiling.md): with every kernel at its ceiling, nothing between them and the same work, the untuned model could
take that part of its time less.

Writes results.json, results.md and results.svg. The models come from `python benchmarks/models.py`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tune_kernels import machine_facts
from worker import error_of

import tilewright as tw
from tilewright.driver.tuning_database import Database
from tilewright.tune.recheck import seconds_a_call, using

HERE = Path(__file__).resolve().parent
#: sets of executables in the race at the end, rounds of each, and seconds of calls of each executable in a round
SETS, ROUNDS, SECONDS = 4, 9, 0.25


def tuned(path: Path, minutes: float, threads: int) -> dict[str, Any]:
    """Tune a model from nothing, and race the result."""
    points: list[tuple[float, int, float]] = []
    begin = time.perf_counter()

    def watch(report: Any, at: int | None, used: float) -> None:
        points.append((time.perf_counter() - begin, sum(t.trials for t in report.tasks), report.speedup))

    base = str(path).removesuffix(".onnx")
    inputs = list(np.load(f"{base}.inputs.npz").values())
    expected = list(np.load(f"{base}.expected.npz").values())
    with tempfile.TemporaryDirectory() as folder:
        database = Database(Path(folder) / "t.sqlite")
        report = tw.tune(path, minutes=minutes, threads=threads, database=database, watch=watch)
        seconds = time.perf_counter() - begin
        with using(database):
            raced = race(path, threads, inputs)
            plain, best = (tw.compile(path, threads=threads, tuned=t) for t in (False, True))
        database.close()
        return {
            "seconds": round(seconds, 1), "trials": report.trials,
            "failed": {k: v for k, v in report.outcomes.items() if k != "ok"},
            "kernels": len(report.tasks), "improved": sum(t.ratio < 1 for t in report.tasks),
            "ways": [str(w) for w in report.ways],
            "withdrawn": len(report.recheck.withdrawn) if report.recheck else 0,
            **outcome(raced), "errors": [error_of(x(*inputs), expected) for x in (plain, best)],
            "ceiling": min(1.0, plain.profile(inputs).total.ideal / float(raced[..., :2].min())),
            "decisions": {t.label: t.decisions for t in report.tasks if t.ratio < 1},
            "curve": thinned(points),
        }  # fmt: skip


def race(path: Path, threads: int, inputs: list[np.ndarray]) -> np.ndarray:
    """Seconds of a call, [sets, rounds, 3]: of two untuned executables and of a tuned one; medians of bursts."""
    found = np.zeros((SETS, ROUNDS, 3))
    for one in found:
        models = [tw.compile(path, threads=threads, tuned=tuned) for tuned in (False, False, True)]
        for turn, times in enumerate(one):
            for i in range(3):
                which = (turn + i) % 3
                times[which] = seconds_a_call(models[which], inputs, SECONDS)
    return found


def outcome(raced: np.ndarray) -> dict[str, float]:
    """The times, tuned over untuned, and by how much two untuned executables of a set differ at most."""
    first, second, tuned = np.moveaxis(raced, -1, 0)
    untuned = (first + second) / 2
    return {
        "untuned_ms": float(np.median(untuned)) * 1e3, "tuned_ms": float(np.median(tuned)) * 1e3,
        "ratio": float(np.median(tuned / untuned)),
        "noise": float(np.abs(np.median(second / first, axis=1) - 1).max()),
    }  # fmt: skip


def thinned(points: list[tuple[float, int, float]]) -> list[tuple[float, int, float]]:
    """The points where something became better, and the last."""
    kept = [p for p, q in zip(points, [None, *points], strict=False) if q is None or p[2] > q[2]]
    return [(round(t, 1), n, round(s, 4)) for t, n, s in [*kept, *points[-1:]]]


def markdown(results: dict[str, Any]) -> str:
    facts = results["machine"]
    lines = [
        "# Tuning whole models",
        "",
        f"{facts['processor']}, {facts['cores']} cores; {facts['toolchain']}. {results['minutes']:g} minutes a model, "
        f"{results['threads']} thread(s), made by `python benchmarks/tune_models.py`.",
        "",
        "The gain is the median of rounds in which two untuned executables and a tuned one run in turns, in "
        f"{SETS} sets of new executables; `noise` is by how much the two untuned ones of a set differ at most, in the "
        "median of its rounds. The ceiling is the part of the untuned time (in its best round) that the kernels would "
        "take at the machine's measured ceilings, and `most` the gain that this leaves to schedules of any kind.",
        "",
        "| model | untuned, ms | tuned, ms | gain | noise | ceiling | most | trials | kernels improved | errors |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, r in results["models"].items():
        a, b = r["errors"]
        lines.append(
            f"| {name} | {r['untuned_ms']:.3f} | {r['tuned_ms']:.3f} | {1 / r['ratio'] - 1:+.1%} | {r['noise']:.1%} "
            f"| {r['ceiling']:.1%} | {1 / r['ceiling'] - 1:+.1%} | {r['trials']} | {r['improved']} of {r['kernels']} "
            f"| {a:.0e}, {b:.0e} |"
        )
    for name, r in results["models"].items():
        lines += ["", *(f"- {name}: {w}" for w in r["ways"])] if r["ways"] else []
    lines += ["", results["note"]] if results.get("note") else []
    return "\n".join(lines) + "\n"


def plot(results: dict[str, Any]) -> str:
    """Best so far of all kernels, by their shares, against minutes: one panel a model."""
    width, height = 420, 240
    names = list(results["models"])
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width * len(names)}" height="{height}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>',
        '<text x="8" y="15">speedup of all kernels over their default schedules, against minutes of tuning</text>',
    ]
    for n, name in enumerate(names):
        left, top, w, h = width * n + 44, 44, width - 64, height - 70
        curve = results["models"][name]["curve"]
        most, last = max(1.05, *(s for _, _, s in curve)), max(t for t, _, _ in curve)
        out.append(f'<rect x="{left}" y="{top}" width="{w}" height="{h}" fill="none" stroke="#ccc"/>')
        out.append(f'<text x="{left}" y="{top - 5}">{name}, {curve[-1][1]} trials</text>')
        out.append(f'<text x="{left - 4}" y="{top + 9}" text-anchor="end">{most:.2f}</text>')
        out.append(f'<text x="{left - 4}" y="{top + h}" text-anchor="end">1</text>')
        out.append(f'<text x="{left + w}" y="{top + h + 12}" text-anchor="end">{last / 60:.0f}</text>')
        points, y = [], top + h
        for t, _, s in curve:
            x = left + w * t / last
            points += [(x, y), (x, y := top + h * (1 - (s - 1) / (most - 1)))]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="#0a58ca" stroke-width="1.5"/>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="resnet50,mobilenet_v2")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--note", default="", help="a sentence about the circumstances, for the report")
    parser.add_argument("-o", "--output", default=str(HERE / "results" / "tuning_models"))
    args = parser.parse_args()
    results: dict[str, Any] = {
        "machine": machine_facts(), "minutes": args.minutes, "threads": args.threads, "note": args.note, "models": {},
    }  # fmt: skip
    for name in args.models.split(","):
        path = HERE / "models" / f"{name}.onnx"
        if not path.exists():
            parser.error(f"there is no {path}: make it with `python benchmarks/models.py`")
        results["models"][name] = tuned(path, args.minutes, args.threads)
        r = results["models"][name]
        print(f"{name}: {r['trials']} trials, {r['untuned_ms']:.3f} -> {r['tuned_ms']:.3f} ms", flush=True)
        Path(f"{args.output}.json").write_text(json.dumps(results, indent=1) + "\n")
        Path(f"{args.output}.md").write_text(markdown(results))
        Path(f"{args.output}.svg").write_text(plot(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
