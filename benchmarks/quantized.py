"""int8 models on this machine: our integer kernels against ONNX Runtime's, on the same QDQ models; f32 beside them.

    python benchmarks/quantized.py [--models resnet50,mobilenet_v2] [--threads 1] [--seconds 5] [--prepare] [--out DIR]

The models are those of models.py, quantized by quantize.py (uint8 activations, int8 weights per output channel) into
benchmarks/models/NAME.int8.onnx; ``--prepare`` only makes these and fills the kernel cache. Times are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from quantize import normal_inputs, quantize

import tilewright as tw

HERE = Path(__file__).resolve().parent
MODELS = ("resnet50", "resnet18", "mobilenet_v2")


def paths(name: str) -> tuple[Path, Path]:
    """The float model, and its int8 form, which is made if it is not there."""
    plain, made = HERE / "models" / f"{name}.onnx", HERE / "models" / f"{name}.int8.onnx"
    if not made.exists():
        model = onnx.load(plain)
        onnx.save(quantize(model, normal_inputs(model, 2), unsigned=True), f"{made}.tmp")
        os.replace(f"{made}.tmp", made)
    return plain, made


def ours(path: Path, threads: int) -> Callable[[dict], list[np.ndarray]]:
    return tw.compile(path, threads=threads).run


def peer(path: Path, threads: int) -> Callable[[dict], list[np.ndarray]]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options)
    return lambda inputs: session.run(None, inputs)


def median(run: Callable[[dict], list[np.ndarray]], inputs: dict, seconds: float) -> float:
    """Milliseconds of one run."""
    for _ in range(3):
        run(inputs)
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        run(inputs)
        taken.append(time.perf_counter() - start)
    return round(float(np.median(taken)) * 1e3, 3)


def measure(name: str, threads: int, seconds: float) -> dict:
    plain, int8 = paths(name)
    inputs = normal_inputs(onnx.load(plain), 1, seed=3)[0]
    row: dict = {"model": name, "threads": threads}
    runs = {"ours_int8": ours(int8, threads), "ort_int8": peer(int8, threads)}
    runs |= {"ours_f32": ours(plain, threads), "ort_f32": peer(plain, threads)}
    a, b = (runs[k](inputs)[0].copy() for k in ("ours_int8", "ort_int8"))
    row["difference"] = float(f"{np.abs(a - b).max() / max(np.abs(b).max(), 1e-30):.1e}")
    for key, run in runs.items():
        row[f"{key}_ms"] = median(run, inputs, seconds)
    row["ratio"] = round(row["ours_int8_ms"] / row["ort_int8_ms"], 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    rows = []
    for name in options.models.split(","):
        if options.prepare:
            for path in paths(name):
                ours(path, options.threads)
            continue
        rows.append(measure(name, options.threads, options.seconds))
        print(rows[-1], flush=True)
    if rows:
        write(rows, options.out)


def write(rows: list[dict], folder: Path) -> None:
    """Rows of models measured before are kept."""
    import onnxruntime as ort

    folder.mkdir(exist_ok=True)
    target = folder / "quantized.json"
    old = json.loads(target.read_text())["rows"] if target.exists() else []
    mine = {(r["model"], r["threads"]) for r in rows}
    rows = sorted([r for r in old if (r["model"], r["threads"]) not in mine] + rows, key=lambda r: r["model"])
    data = {"onnxruntime": ort.__version__, "python": platform.python_version(), "machine": processor(), "rows": rows}
    target.write_text(json.dumps(data, indent=1) + "\n")
    lines = [
        "# int8 models against ONNX Runtime",
        "",
        f"{processor()}; ONNX Runtime {ort.__version__}. Milliseconds a run, batch 1, medians; made by "
        "`benchmarks/quantized.py`. Difference: the largest of an output, relative to its largest value.",
        "",
        "| model | threads | int8 | int8, ORT | ratio | f32 | f32, ORT | difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = [r["model"], r["threads"], r["ours_int8_ms"], r["ort_int8_ms"], r["ratio"], r["ours_f32_ms"]]
        lines.append("| " + " | ".join(map(str, [*cells, r["ort_f32_ms"], r["difference"]])) + " |")
    (folder / "quantized.md").write_text("\n".join([*lines, ""]))


def processor() -> str:
    """The processor's name where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
