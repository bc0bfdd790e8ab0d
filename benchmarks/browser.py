"""Models as WebAssembly in Node, beside native code with vectors of the same length, and ONNX Runtime Web.

    python benchmarks/browser.py [--models mobilenet_v2,...] [--ort-web FOLDER] [--two] [--out DIR]

Peers take turns in short bursts on the same inputs. On one thread the time is that of the processor, which other work
on the machine changes little, as the median of all runs; with --two also the shortest on the clock of two. Native code
is that of the target `cpu` on one thread: with all the processor has, and without vectors of more than 128 bits (it
keeps the fused multiply-add, which WebAssembly has not). FOLDER is where ``npm install onnxruntime-web`` was called;
without it that column is empty. Needs Node and wasm-ld.
"""

from __future__ import annotations

import argparse
import base64
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from quantized import processor  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.targets.base import register  # noqa: E402
from tilewright.targets.cpu import CpuTarget  # noqa: E402
from tilewright.targets.cpu.description import describe_x86, host  # noqa: E402
from tilewright.targets.wasm.run_here import node  # noqa: E402

MODELS = ("digits", "mobilenet_v2", "bert_two_layers", "kws_dscnn", "tiny_resnet8")
#: what the exported site of a model is besides its weights, but for the plan of the memory
CODE = ("model.wasm", "model.threads.wasm")
Burst = Callable[[float], list[tuple[float, float]]]


class Narrow(CpuTarget):
    """This processor without vectors of more than 128 bits."""

    name = "cpu128"

    def describe(self):
        features = tuple(f for f in host().features if not f.startswith(("avx2", "avx512", "avxvnni", "amx")))
        return describe_x86(host().triple, features, l1_bytes=host().l1_bytes, l2_bytes=host().l2_bytes)


# ---- the peers -----------------------------------------------------------------------------------------------------


def native(executable, inputs: dict[str, np.ndarray]) -> Burst:
    def burst(seconds: float) -> list[tuple[float, float]]:
        times, end = [], time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            before = time.perf_counter(), time.thread_time()
            executable.run(inputs)
            times.append((1e3 * (time.perf_counter() - before[0]), 1e3 * (time.thread_time() - before[1])))
        return times

    return burst


class InNode:
    """A process of Node with an exported site, or with ONNX Runtime Web."""

    def __init__(self, folder: Path, model: Path, inputs: dict[str, np.ndarray], threads: int) -> None:
        told = {n: [a.dtype.name, a.shape, base64.b64encode(a.tobytes()).decode()] for n, a in inputs.items()}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(told, file)
            file.flush()
            command = [node()[0], str(HERE / "browser_peer.mjs"), str(folder.resolve()), str(model), file.name]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.process = subprocess.Popen([*command, str(threads)], text=True, **pipes)
            self.version = self.answer()

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def __call__(self, seconds: float) -> list[tuple[float, float]]:
        self.process.stdin.write(f"{1e3 * seconds}\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


# ---- measuring -----------------------------------------------------------------------------------------------------


def given(name: str) -> tuple[Path, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The model's file, its inputs, and PyTorch's outputs if they are for these."""
    if name == "digits":
        path = HERE.parent / "examples" / "digits" / "digits.onnx"
        return path, {"image": np.random.default_rng(0).random((1, 1, 8, 8)).astype(np.float32)}, {}
    path = HERE / "models" / f"{name}.onnx"
    return path, *(dict(np.load(path.with_suffix(f".{what}.npz"))) for what in ("inputs", "expected"))


def measure(name: str, options: argparse.Namespace) -> dict:
    path, inputs, expected = given(name)
    shapes = {n: a.shape for n, a in inputs.items()}

    def compiled(target: str):
        return tw.compile(onnx.load(path), target=target, threads=1, inputs=shapes)  # in this process

    wasm, cpu = compiled("wasm"), compiled("cpu")
    pairs = zip(wasm.run(inputs), expected.values() or cpu.run(inputs), strict=True)
    row: dict = {"model": name, "error": max(float(np.abs(g - e).max() / np.abs(e).max()) for g, e in pairs)}
    wasm.close()
    bursts: dict[str, Burst] = {"cpu128": native(compiled("cpu128"), inputs), "cpu": native(cpu, inputs)}
    with tempfile.TemporaryDirectory() as folder:
        sizes = {f.name: f.stat().st_size for f in wasm.export(folder) if f.stem != "memory"}
        (Path(folder) / "package.json").write_text('{"type": "module"}')
        counts = (1, 2) if options.two else (1,)
        peers = {f"wasm_{t}": InNode(Path(folder), path, inputs, t) for t in counts}
        if options.ort_web:
            peers |= {f"ort_{t}": InNode(options.ort_web, path, inputs, t) for t in counts}
            options.ort_version = peers["ort_1"].version
        times: dict[str, list[tuple[float, float]]] = {key: [] for key in (*peers, *bursts)}
        for turn in range(options.rounds + 1):
            for key, burst in (bursts | peers).items():
                taken = burst(options.burst)
                times[key] += taken if turn else []  # the first turn warms up
        for peer in peers.values():
            peer.close()
    row |= {"weights": sizes.pop("weights.bin"), "site": sum(sizes.values()), **{n: sizes.get(n, 0) for n in CODE}}
    for key, taken in times.items():
        clock, processor_time = zip(*taken, strict=True)
        row[f"{key}_ms"] = round(min(clock) if key.endswith("_2") else statistics.median(processor_time), 4)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ort-web", type=Path, metavar="FOLDER")
    parser.add_argument("--two", action="store_true", help="two threads too: the machine must have nothing else to do")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--burst", type=float, default=0.3, help="seconds")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args(namespace=argparse.Namespace(ort_version=None))
    register(Narrow())
    rows = []
    for name in options.models.split(","):
        rows.append(measure(name, options))
        print(rows[-1], flush=True)
    write(rows, options)


def compared(row: dict) -> list[str]:
    """The times of a row, and ratios."""
    one, cells = row["wasm_1_ms"], [f"{row['wasm_1_ms']:.3g}"]
    for key in ("cpu128_ms", "cpu_ms", "ort_1_ms"):
        cells += [f"{row[key]:.3g}", f"{one / row[key]:.2f}"] if key in row else ["", ""]
    return cells + [f"{row[key]:.3g}" for key in ("wasm_2_ms", "ort_2_ms") if key in row]


def write(rows: list[dict], options: argparse.Namespace) -> None:
    options.out.mkdir(exist_ok=True)
    version = subprocess.run([node()[0], "--version"], capture_output=True, text=True).stdout.strip()
    versions = {"node": version, "onnxruntime-web": options.ort_version, "onnx": onnx.__version__}
    data = {"machine": processor(), "python": platform.python_version(), "date": time.strftime("%Y-%m-%d"), **versions}
    (options.out / "browser.json").write_text(json.dumps({**data, "rows": rows}, indent=1) + "\n")
    ort = f", ONNX Runtime Web {options.ort_version}" if options.ort_version else ""
    lines = [
        "# WebAssembly beside native code",
        "",
        f"{processor()}, {data['date']}; Node {version}{ort}. Milliseconds of a run, batch 1, f32; made by "
        "`benchmarks/browser.py`. Times are those of the processor on one thread, medians (of two threads: the "
        "shortest on the clock). *128-bit*: native code without longer vectors; *native*: with all the processor has. "
        "Ratios: WebAssembly over the other. Error: the largest of an output, relative to its largest value, against "
        "PyTorch (digits: against native code).",
        "",
    ]
    columns = ["WebAssembly", "128-bit", "ratio", "native", "ratio", "ORT Web", "ratio"]
    columns += ["two threads", "ORT Web"] if "wasm_2_ms" in rows[0] else []
    lines += [f"| model | {' | '.join(columns)} | error |", "|" + "---|" * (len(columns) + 2)]
    lines += ["| " + " | ".join([r["model"], *compared(r), f"{r['error']:.1e}"]) + " |" for r in rows]
    lines += ["", "Bytes of an exported site; *site* is all but the weights.", ""]
    lines += ["| model | " + " | ".join(f"`{n}`" for n in CODE) + " | site | weights |", "|---|---|---|---|---|"]
    lines += [f"| {r['model']} | " + " | ".join(f"{r[n]:,}" for n in (*CODE, "site", "weights")) + " |" for r in rows]
    (options.out / "browser.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
