"""The demo: compile a small real model, look at the levels it goes through, run it on real images, check and time it.

    make demo            # or: python examples/digits/demo.py [--threads 1] [--batch 64]

Needs scikit-learn (the images) and onnxruntime (the comparison), the `demo` extra.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
from data import load
from rich.console import Console
from rich.table import Table
from rich.text import Text

import tilewright as tw

MODEL = Path(__file__).with_name("digits.onnx")
SHADES = " ░▒▓█"
#: a terminal's own width; in a pipe, wide enough for the tables
console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)


def compile_model(batch: int, threads: int) -> tuple[tw.Executable, float]:
    """The compiled model, made without the kernel cache, and the seconds it took."""
    start = time.perf_counter()
    model = tw.compile(MODEL, inputs={"image": (batch, 1, 8, 8)}, threads=threads, cache=False)
    return model, time.perf_counter() - start


def show_levels(model: tw.Executable) -> None:
    table = Table(title="The levels it went through", title_justify="left")
    for column in ("stage", "level", "ms", "lines"):
        table.add_column(column, justify="left" if column == "stage" else "right", no_wrap=True)
    table.add_column("one of them", no_wrap=True, overflow="ellipsis", max_width=console.width - 40)
    texts = model.package.levels
    for entry in model.package.report["levels"]:
        lines = [line.strip() for line in texts.get(entry["stage"], "").splitlines() if line.strip()]
        row = [entry["stage"], str(entry["level"]), f"{1e3 * entry['seconds']:.0f}", str(len(lines) or "")]
        table.add_row(*row, Text(typical(lines)))
    console.print(table)


def typical(lines: list[str]) -> str:
    """A line of the convolutions, as this level writes them; otherwise nothing."""
    for word in ("math.fma", "addf(", "linalg.generic", "tw.conv"):
        found = [line for line in lines if word in line]
        if found:
            return re.sub(r" loc\(.*\)$", "", max(found, key=len))
    return ""


def classify(model: tw.Executable, images: np.ndarray, batch: int) -> np.ndarray:
    """Probabilities for all images, a batch at a time; the last one is filled up with blank images."""
    results = []
    for start in range(0, len(images), batch):
        part = images[start : start + batch]
        blank = np.zeros((batch - len(part), *images.shape[1:]), images.dtype)
        results.append(np.array(model.run({"image": np.concatenate([part, blank])})[0][: len(part)]))
    return np.concatenate(results)


def show_images(images: np.ndarray, labels: np.ndarray, guesses: np.ndarray) -> None:
    """A few test images with what they are and what the model says."""
    picks = [int(np.flatnonzero(labels == digit)[0]) for digit in range(min(10, console.width // 18))]
    rows = [""] * 8
    for image in images[picks, 0]:
        for y, line in enumerate(image):
            rows[y] += "".join(SHADES[min(int(v * len(SHADES)), len(SHADES) - 1)] * 2 for v in line) + "  "
    console.print("\n".join(rows), style="cyan")
    captions = [f"is {label}, seen as {guess}" for label, guess in zip(labels[picks], guesses[picks], strict=True)]
    console.print("".join(f"{caption:18}" for caption in captions) + "\n")


def race(
    model: tw.Executable, images: np.ndarray, batch: int, threads: int, seconds: float = 1.0
) -> tuple[float, float]:
    """Median seconds of a run of Tilewright and of ONNX Runtime, in alternating bursts."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # threads that wait for work by spinning would slow whoever runs next
    options.add_session_config_entry("session.intra_op.allow_spinning", "0" if threads > 1 else "1")
    session = onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])
    inputs = {"image": np.ascontiguousarray(images[:batch])}
    runs = (lambda: model.run(inputs), lambda: session.run(None, inputs))
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for run, taken in zip(runs, times, strict=True):
            run()
            for _ in range(20):
                start = time.perf_counter()
                run()
                taken.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def show_kernels(model: tw.Executable, images: np.ndarray, batch: int) -> None:
    taken = np.median(model.time_calls({"image": np.ascontiguousarray(images[:batch])}, runs=200), axis=0)
    table = Table(title=f"Time by kernel, batch of {batch}", title_justify="left")
    for column in ("kernel", "from the model's", "µs", "share"):
        table.add_column(column, justify="right" if column in ("µs", "share") else "left")
    for call, seconds in zip(model.package.program.calls, taken, strict=True):
        table.add_row(call.symbol, ", ".join(call.names), f"{1e6 * seconds:.1f}", f"{seconds / taken.sum():.0%}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="images a run (default: 64)")
    parser.add_argument("--threads", type=int, default=1, help="threads of both runtimes (default: 1)")
    options = parser.parse_args()
    batch, threads = options.batch, options.threads

    _, (images, labels) = load()
    model, seconds = compile_model(batch, threads)
    console.print(f"[bold]Compiled {MODEL.name} to native code in {seconds:.2f} s[/] (no cache, no C compiler)\n")
    show_levels(model)
    guesses = classify(model, images, batch).argmax(1)
    show_images(images, labels, guesses)
    right = int((guesses == labels).sum())
    console.print(f"[bold green]{right} of {len(labels)} test images right: {right / len(labels):.2%}[/]\n")
    show_kernels(model, images, batch)
    ours, theirs = race(model, images, batch, threads)
    console.print(
        f"\nA batch of {batch} with {threads} thread{'s' if threads > 1 else ''}: Tilewright {1e6 * ours:.0f} µs, "
        f"ONNX Runtime {onnxruntime.__version__} {1e6 * theirs:.0f} µs\n"
        f"ratio [bold]{ours / theirs:.2f}[/] (below 1 is faster)"
    )


if __name__ == "__main__":
    main()
