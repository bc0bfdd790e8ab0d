"""Programs for single sizes that are made in the background: what they gain, and what calls feel of their making.

    python benchmarks/background.py                                  # one thread
    python benchmarks/background.py --threads 2 --name background_2

The encoders of `open_dimensions.py`. A program for all sizes is called with one size, without a pause, until the size
has a program of its own: how long that takes, and how long single calls take meanwhile, beside those of a program for
all sizes that nothing is compiled for. Then the program that was made races the one that is compiled for the size
ahead, and the one for all sizes, by turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from bench import HERE, grid, machine
from open_dimensions import INPUTS, MODELS, encoder, feeds
from open_race import largest_error, mean, save

import tilewright as tw

#: sizes of calls, fewer than those of `open_dimensions.py`: each is compiled twice
SIZES = ((1, 1), (1, 17), (1, 128), (2, 97), (16, 5), (8, 64))
MIB = 1 << 20
#: seconds of calls while nothing else is done
QUIET_S = 3.0
#: the largest difference of results relative to the largest
ALLOWED = 1e-5


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds."""
    found = np.quantile(seconds, [0.5, 0.99, 1.0]) * 1e3
    return dict(zip(("median", "p99", "max"), map(float, found), strict=True))


def calls(
    run: Callable[[], Any], until: Callable[[], bool], clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of calls one after the other, at least one, until something is true."""
    found: list[float] = []
    while not found or not until():
        begin = clock()
        run()
        found.append(clock() - begin)
    return found


def race(runs: dict[str, Any], threads: int, turns: int, burst: float) -> dict[str, float]:
    """Milliseconds of each by turns: what a tenth of its calls stays below, with one thread of its own time. So they
    say little of other processes."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns):
        for name in list(runs)[:: 1 if turn % 2 else -1]:
            runs[name]()
            end = time.perf_counter() + burst
            times[name] += calls(runs[name], lambda end=end: time.perf_counter() > end, clock)
    return {name: float(np.quantile(t, 0.1)) * 1e3 for name, t in times.items()}


def measure(name: str, threads: int, turns: int, burst: float, seed: int) -> dict[str, Any]:
    """A model at all sizes."""
    model = encoder(*MODELS[name], seed)
    alone = tw.compile(model, inputs=INPUTS, threads=threads, cache=False)
    run: Any = tw.compile(model, inputs=INPUTS, threads=threads, cache=False, specialize="background")
    found: dict[str, Any] = {"model": name, "weights": run.memory.weights, "sizes": []}
    rng = np.random.default_rng(seed)
    for batch, length in SIZES:
        given = feeds(batch, length, rng)
        before = run(given)
        end = time.perf_counter() + QUIET_S
        quiet = calls(partial(alone, given), lambda end=end: time.perf_counter() > end)
        run(given)
        taken, begin = run.background.nbytes, time.perf_counter()
        run(given)  # the third
        meanwhile = calls(partial(run, given), lambda: run.background.wait(0))
        ready = time.perf_counter() - begin
        error = largest_error(run(given), before)
        if not error <= ALLOWED or {"batch": batch, "seq": length} not in run.background.sizes():
            raise SystemExit(f"wrong: error {error}, or no program")
        now = tw.compile(model, inputs={n: a.shape for n, a in given.items()}, threads=threads, cache=False)
        runs = {"background": partial(run, given), "now": partial(now, given), "open": partial(alone, given)}
        ms = race(runs, threads, turns, burst)
        one = {"batch": batch, "seq": length, "ready_s": ready, "bytes": run.background.nbytes - taken, **ms}
        found["sizes"].append({**one, "quiet": quantiles(quiet), "meanwhile": quantiles(meanwhile)})
        print(f"{name} {batch} x {length}: " + ", ".join(f"{k} {v:.3f} ms" for k, v in ms.items()), flush=True)
    run.close()
    return found


def markdown(report: dict[str, Any]) -> str:
    """The report as tables."""
    m = report["machine"]
    lines = [
        f"{m['cpu']}, {m['cores']} cores, {report['threads']} threads.",
        "Ready: seconds from the third call until the size has its program. Background, now, open: the program that "
        "was made, one compiled for the size ahead, the one for all sizes. Quiet, meanwhile: calls of the program for "
        "all sizes one after the other while nothing, and while the other process works.",
    ]
    every = [s for model in report["models"] for s in model["sizes"]]
    for model in report["models"]:
        heads = (
            "batch x seq, ready (s), background (ms), now, open, background / now, open / now, quiet median (ms), p99, "
            "max, meanwhile median (ms), p99, max, memory (MiB)"
        )
        rows = [heads.split(", ")]
        for s in model["sizes"]:
            rows.append(
                [
                    f"{s['batch']} x {s['seq']}",
                    f"{s['ready_s']:.1f}",
                    *(f"{s[k]:.3f}" for k in ("background", "now", "open")),
                    *(f"{s[k] / s['now']:.2f}" for k in ("background", "open")),
                    *(f"{s[w][k]:.2f}" for w in ("quiet", "meanwhile") for k in ("median", "p99", "max")),
                    f"{s['bytes'] / MIB:.1f}",
                ]
            )
        lines += ["", f"## {model['model']} (weights {model['weights'] / MIB:.1f} MiB)", "", *grid(rows)]
    to = {k: mean([s[k] / s["now"] for s in every]) for k in ("background", "open")}
    slower = mean([s["meanwhile"]["median"] / s["quiet"]["median"] for s in every])
    lines += [
        "",
        f"Geometric mean of the program compiled ahead: {to['background']:.3f} for what the background made, "
        f"{to['open']:.3f} for the one for all sizes. While the other process works the median call takes {slower:.3f} "
        "of what it takes otherwise.",
    ]
    return "\n".join(lines) + "\n"


def main(
    threads: Annotated[int, typer.Option(help="Threads of every program.")] = 1,
    turns: Annotated[int, typer.Option(help="Turns of each program.")] = 5,
    burst: Annotated[float, typer.Option(help="Seconds of a turn.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the weights.")] = 1,
    name: Annotated[str, typer.Option(help="Name of the result files.")] = "background",
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = HERE / "results",
) -> None:
    """Measure what programs that are made in the background gain and cost."""
    report: dict[str, Any] = {"machine": machine(), "threads": threads}
    report["models"] = [measure(m, threads, turns, burst, seed) for m in MODELS]
    save(report, markdown(report), results, name)


if __name__ == "__main__":
    typer.run(main)
