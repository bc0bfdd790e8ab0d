"""Models with dynamic axes, compiled with no further argument: what a new size costs, and what compiling costs.

    python benchmarks/open_default.py                         # all six, one thread
    python benchmarks/open_default.py --only u-net,bert

Every model of `open_exports.py` is called with ten sizes that it was not called with before, in four ways: what
`tw.compile` gives, an `InferenceSession`, a package that was saved and loaded, and `tilewright run` (which is timed by
itself). Counted are the compilations after the first one; timed the first and the second call of each size. Some sizes
are compiled for themselves: how long that takes, and how fast their programs are (time of the processor).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
from bench import HERE, grid, machine
from open_exports import EXPORTS, VOCABULARY, ensure
from open_race import ALLOWED, largest_error, mean, ort_session, race, save
from worker import cpu_seconds

import tilewright as tw
from tilewright.cli import main as tilewright
from tilewright.compat.onnxruntime import InferenceSession, SessionOptions
from tilewright.driver import compiler

#: the most milliseconds that the first call of a size may take beyond the second
MOST_EXTRA = 50.0
Feeds = Mapping[str, np.ndarray]
#: sizes of calls: batch, length (or for images height and width in steps of 8), length of a cache
TEXTS = ((1, 1), (2, 5), (1, 17), (3, 64), (8, 100), (1, 2), (1, 9), (5, 31), (64, 3), (7, 7))
SHORT = ((1, 1), (2, 5), (1, 17), (3, 64), (8, 50), (1, 2), (1, 9), (5, 31), (16, 3), (7, 7))
CACHES = (
    (1, 7, 0),
    (1, 1, 7),
    (1, 1, 8),
    (2, 5, 0),
    (3, 40, 3),
    (8, 1, 63),
    (1, 2, 33),
    (5, 31, 2),
    (64, 3, 9),
    (1, 1, 1),
)
IMAGES = ((1, 8, 8), (2, 64, 32), (1, 40, 40), (3, 128, 72), (8, 16, 16), (1, 8, 64), (1, 96, 48), (5, 80, 80))
SIZES: dict[str, tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]] = {
    "bert": (("batch", "seq"), TEXTS),
    "gpt2": (("batch", "seq"), TEXTS),
    "llama": (("batch", "seq", "past"), CACHES),
    "resnet50": (("batch",), tuple((n,) for n in (1, 2, 3, 4, 5, 7, 8, 16, 31, 64))),
    "unet": (("batch", "height", "width"), (*IMAGES, (4, 32, 32), (1, 256, 8))),
    "whisper": (("batch", "seq"), SHORT),
}
#: of these a program for the size alone is made too
RACED = (2, 3, 4)


def feeds(session: Any, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random inputs; a mask of ones, and positions that exist."""
    found: dict[str, np.ndarray] = {}
    for info in session.get_inputs():
        shape = [sizes[d] if isinstance(d, str) else d for d in info.shape]
        if "int64" not in info.type:
            found[info.name] = rng.standard_normal(shape, np.float32)
        elif "mask" in info.name or "type" in info.name:
            found[info.name] = np.full(shape, "mask" in info.name, np.int64)
        else:
            found[info.name] = rng.integers(0, 60 if "position" in info.name else VOCABULARY, shape)
    return found


def busy(call: Callable[[], Any]) -> float:
    """Milliseconds of the processor: others may use it too while a size is called for the first time."""
    begin = time.process_time()
    call()
    return 1e3 * (time.process_time() - begin)


@contextlib.contextmanager
def counted(counts: list[str]) -> Iterator[None]:
    """Programs that this process makes are added to a list."""
    before = compiler._run_stage

    def run_stage(stage: Any, state: Any, pipeline: Any) -> None:
        counts.extend([state.name] if stage.name == "schedule" else [])
        before(stage, state, pipeline)

    compiler._run_stage = run_stage
    try:
        yield
    finally:
        compiler._run_stage = before


def by_command(path: Path, folder: Path, given: Feeds) -> tuple[float, float]:
    """Milliseconds of the first and the second call, as the command line says them."""
    np.savez(folder / "in.npz", **given)  # type: ignore[arg-type]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = tilewright(["run", str(path), "--input", str(folder / "in.npz"), "--repeat", "2", "--threads", "1"])
    times = re.search(r"min ([\d.]+) ms.* max ([\d.]+) ms", said.getvalue())
    if code or times is None:
        raise SystemExit(f"tilewright run {path.name}: {said.getvalue()}")
    return float(times[2]), float(times[1])


def measure(name: str, folder: Path, turns: int, burst: float) -> dict[str, Any]:
    """One model."""
    path, rng = ensure(name, folder), np.random.default_rng(1)
    names, sizes = SIZES[name]
    session = ort_session(onnx.load(path), 1)
    calls = [feeds(session, dict(zip(names, s, strict=True)), rng) for s in sizes]
    begin = cpu_seconds()
    run = tw.compile(path, threads=1)
    found: dict[str, Any] = {"model": name, "compile_s": cpu_seconds() - begin, "sizes": []}
    found["ranges"] = [str(d) for p in run.open_versions.programs for d in p.sizes.dims]  # type: ignore[union-attr]
    options = SessionOptions()
    options.intra_op_num_threads = 1
    own = InferenceSession(path, options)
    run.save(folder / f"{name}.tw")
    loaded = tw.load(folder / f"{name}.tw", threads=1)
    ways: dict[str, Callable[..., Any]] = {"compile": run, "session": partial(own.run, None), "loaded": loaded}
    compilations: list[str] = []
    with counted(compilations):
        for size, given in zip(sizes, calls, strict=True):
            extra = {}
            for way, call in ways.items():
                first, second = (busy(partial(call, given)) for _ in range(2))
                extra[way] = first - second
            tries = [by_command(path, folder, given) for _ in range(3)]  # of the clock: others run meanwhile
            extra["command"] = min(first - second for first, second in tries)
            error = largest_error(run(given), session.run(None, given))
            if not error <= ALLOWED:
                raise SystemExit(f"{name} is wrong at {size}: error {error}")
            found["sizes"].append({"size": " x ".join(map(str, size)), "extra_ms": extra, "error": error})
            print(f"{name} {size}: {', '.join(f'{k} {v:.2f} ms' for k, v in extra.items())}", flush=True)
    found["compilations"] = len(compilations)
    found["fixed_s"] = []
    for i in RACED:
        begin = cpu_seconds()
        fixed = tw.compile(path, inputs={n: a.shape for n, a in calls[i].items()}, threads=1)
        found["fixed_s"].append(cpu_seconds() - begin)
        ms = race({"open": partial(run, calls[i]), "fixed": partial(fixed, calls[i])}, turns, burst, time.process_time)
        found["sizes"][i] |= ms
        print(f"{name} {sizes[i]}: {ms}", flush=True)
    return found


def markdown(report: Mapping[str, Any]) -> str:
    m, models = report["machine"], report["models"]
    rows = [
        ["model", "ranges", "compiled later", "most extra (ms)", "open (CPU s)", "one size (CPU s)", "open / one size"]
    ]
    every, costs = [], []
    for x in models:
        extra = max(v for s in x["sizes"] for v in s["extra_ms"].values())
        speed = [s["open"] / s["fixed"] for s in x["sizes"] if "fixed" in s]
        every += speed
        one = sum(x["fixed_s"]) / len(x["fixed_s"])
        costs.append(x["compile_s"] / one)
        row = [x["model"], ", ".join(x["ranges"]), x["compilations"], f"{extra:.1f}", f"{x['compile_s']:.1f}"]
        rows.append([*map(str, row), f"{one:.1f}", f"{mean(speed):.2f}"])
    lines = [
        f"{m['cpu']}, {m['cores']} cores, 1 thread, ONNX Runtime {report['onnxruntime']} (for the results).",
        "Models with dynamic axes, compiled with no further argument; ten new sizes, each called twice by what "
        "`tw.compile` gives, an `InferenceSession`, a loaded package and `tilewright run`. Compiled later: programs "
        "after the first. Most extra: of the first call of a size beyond its second, in any of these ways "
        "(milliseconds of the processor; of the command line of the clock, the best of three). Open, one size: "
        "seconds of the processor until a program is made; processor time of a call, the median, by turns (others used "
        "the machine meanwhile).",
        "",
        *grid(rows),
        "",
        f"Geometric means: a call {mean(every):.2f} of programs for one size, compiling {mean(costs):.2f}.",
    ]
    return "\n".join(lines) + "\n"


def main(
    only: Annotated[str, typer.Option(help="Names of models, with commas between them.")] = "",
    turns: Annotated[int, typer.Option(help="Turns of each program.")] = 5,
    burst: Annotated[float, typer.Option(help="Seconds of a turn.")] = 0.1,
    name: Annotated[str, typer.Option(help="Name of the result files.")] = "open_default",
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = HERE / "results",
) -> None:
    """Call models with dynamic axes with new sizes."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TILEWRIGHT_CACHE"] = str(Path(folder) / "cache")  # everything is compiled
        os.environ["TILEWRIGHT_JOBS"] = "1"
        chosen = only.split(",") if only else list(EXPORTS)
        report: dict[str, Any] = {"machine": machine(), "onnxruntime": onnxruntime.__version__}
        report["models"] = [measure(n, Path(folder), turns, burst) for n in chosen]
    save(report, markdown(report), results, name)
    late = [f"{x['model']} at {s['size']}" for x in report["models"] for s in x["sizes"]
            if max(s["extra_ms"].values()) > MOST_EXTRA]  # fmt: skip
    again = [x["model"] for x in report["models"] if x["compilations"]]
    if late or again:
        raise SystemExit(f"first calls took more than {MOST_EXTRA} ms more: {late}; compiled again: {again}")


if __name__ == "__main__":
    typer.run(main)
