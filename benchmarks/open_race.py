"""Races one program for all sizes against programs made for each size and ONNX Runtime with its dynamic axes.

What `open_dimensions.py`, `open_decoder.py` and `open_images.py` have in common. All run in one process, by turns in
short bursts; a ratio is of medians. Every result is compared with that of ONNX Runtime.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
from bench import HERE, grid, machine, write

import tilewright as tw

#: the largest error relative to the largest result
ALLOWED = 1e-4
Shape = tuple[int | tw.Dim | str, ...]
Feeds = Mapping[str, np.ndarray]
#: columns of times, and what they are divided by
PEERS = {"fixed": "fixed", "ort": "ORT"}


@dataclass(frozen=True)
class OpenModel:
    """A model, the shapes of its inputs, and the calls it is measured with: a text for each size, and its inputs."""

    name: str
    proto: onnx.ModelProto
    inputs: Mapping[str, Shape]
    calls: Sequence[tuple[str, Feeds]]
    #: measures more with so many threads: lines for the report
    more: Callable[[int], Sequence[str]] = lambda threads: ()


@dataclass(frozen=True)
class Options:
    """How programs run and are timed."""

    threads: int
    turns: int
    burst: float
    target: str = "cpu"


def ort_session(proto: onnx.ModelProto, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


def mean(ratios: Iterable[float]) -> float:
    """Geometric."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def seconds(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    begin = clock()
    call()
    return clock() - begin


def race(
    runs: Mapping[str, Callable[[], Any]],
    turns: int,
    burst: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The median milliseconds of each, by turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns):
        for name in list(runs)[:: 1 if turn % 2 else -1]:
            runs[name]()
            end = time.perf_counter() + burst
            while time.perf_counter() < end:
                times[name].append(seconds(runs[name], clock))
    return {name: statistics.median(t) * 1e3 for name, t in times.items()}


def largest_error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Relative to the largest value of an output."""
    return max(float(np.abs(a - e).max() / np.abs(e).max()) for a, e in zip(found, expected, strict=True))


def measure(model: OpenModel, options: Options) -> dict[str, Any]:
    """A model at all sizes."""
    begin = time.perf_counter()
    how: dict[str, Any] = {"threads": options.threads, "cache": False, "target": options.target}
    run = tw.compile(model.proto, inputs=dict(model.inputs), **how)
    found: dict[str, Any] = {"model": model.name, "compile_s": time.perf_counter() - begin, "sizes": []}
    ort = ort_session(model.proto, options.threads)
    for size, feeds in model.calls:
        first, second = (seconds(partial(run, feeds)) for _ in range(2))
        error = largest_error(run(feeds), ort.run(None, feeds))
        if not error <= ALLOWED:
            raise SystemExit(f"{model.name} is wrong at {size}: error {error}")
        fixed = {n: a.shape for n, a in feeds.items()}
        special = tw.compile(model.proto, inputs=fixed, **how)
        runs = {"open": partial(run, feeds), "fixed": partial(special, feeds), "ort": partial(ort.run, None, feeds)}
        ms = race(runs, options.turns, options.burst)
        found["sizes"].append({"size": size, **ms, "extra_ms": (first - second) * 1e3, "error": error})
        print(f"{model.name} {size}: " + ", ".join(f"{k} {v:.3f} ms" for k, v in ms.items()), flush=True)
    found["more"] = list(model.more(options.threads))
    return found


def _ratios(sizes: Sequence[Mapping[str, Any]], to: str) -> list[float]:
    return [s["open"] / s[to] for s in sizes]


def _table(model: Mapping[str, Any]) -> list[str]:
    rows = [["size", "open (ms)", "fixed", "ONNX Runtime", "open / fixed", "open / ORT", "first call more (ms)"]]
    for s in model["sizes"]:
        times = [f"{s[k]:.3f}" for k in ("open", *PEERS)]
        rows.append([s["size"], *times, *(f"{s['open'] / s[k]:.2f}" for k in PEERS), f"{s['extra_ms']:.2f}"])
    to = {k: mean(_ratios(model["sizes"], k)) for k in PEERS}
    means = f"Geometric mean: {to['fixed']:.3f} of fixed, {to['ort']:.3f} of ONNX Runtime."
    return [f"## {model['model']} (compiled in {model['compile_s']:.1f} s)", "", *grid(rows), "", means, *model["more"]]


def markdown(report: Mapping[str, Any], about: str) -> str:
    """The report as tables."""
    m = report["machine"]
    lines = [
        f"{m['cpu']}, {m['cores']} cores, {report['threads']} threads, target {report['target']}, ONNX Runtime "
        f"{report['onnxruntime']}.",
        f"{about} Open: one program for all of them. Fixed: a program for each size.",
    ]
    for model in report["models"]:
        lines += ["", *_table(model)]
    every = [s for model in report["models"] for s in model["sizes"]]
    to, worst = ({k: pick(_ratios(every, k)) for k in PEERS} for pick in (mean, max))
    lines += [
        "",
        f"Geometric mean of all: {to['fixed']:.3f} of the programs made for each size (worst {worst['fixed']:.2f}), "
        f"{to['ort']:.3f} of ONNX Runtime (worst {worst['ort']:.2f}).",
        f"Largest error {max(s['error'] for s in every):.1e}; a first call takes at most "
        f"{max(s['extra_ms'] for s in every):.2f} ms more than the second.",
    ]
    return "\n".join(lines) + "\n"


def save(report: Mapping[str, Any], text: str, results: Path, name: str) -> None:
    results.mkdir(parents=True, exist_ok=True)
    write(results / f"{name}.json", json.dumps(report, indent=1) + "\n")
    write(results / f"{name}.md", text)
    print(text)


def start(models: Callable[[int], Iterable[OpenModel]], results_name: str, about: str) -> None:
    """The command line of a benchmark: `models` makes them from a seed, `about` says which sizes they take."""

    def main(
        threads: Annotated[int, typer.Option(help="Threads of every runtime.")] = 1,
        turns: Annotated[int, typer.Option(help="Turns of each runtime.")] = 5,
        burst: Annotated[float, typer.Option(help="Seconds of a turn.")] = 0.1,
        seed: Annotated[int, typer.Option(help="Of the weights and inputs.")] = 1,
        only: Annotated[str, typer.Option(help="A part of the names of the models to run.")] = "",
        target: Annotated[str, typer.Option(help="What programs are compiled for.")] = "cpu",
        name: Annotated[str, typer.Option(help="Name of the result files.")] = results_name,
        results: Annotated[Path, typer.Option(help="Folder of the result files.")] = HERE / "results",
    ) -> None:
        """Race programs with open dimensions against programs for each size and ONNX Runtime."""
        options = Options(threads, turns, burst, target)
        report: dict[str, Any] = {"machine": machine(), "onnxruntime": onnxruntime.__version__, "threads": threads}
        report["target"] = target
        report["models"] = [measure(m, options) for m in models(seed) if only.lower() in m.name.lower()]
        if not report["models"]:
            raise SystemExit(f"no model has {only!r} in its name")
        save(report, markdown(report, about), results, name)

    typer.run(main)
