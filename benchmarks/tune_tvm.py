"""The kernels of tune_kernels.py, tuned by our tuner and by TVM's MetaSchedule with the same number of trials, and then
raced.

    python benchmarks/tune_tvm.py --python /path/to/tvm/bin/python [--trials 200] [--kernels matmul,softmax]
        [--threads 1] [--random] [--folder tune_tvm] [--only ours,tvm,race] -o results

TVM runs in processes of its own (tvm_worker.py) with a Python that has it: `pip install "apache-tvm[all]"`, and for TVM
0.27 `apache-tvm-ffi==0.1.14.post1`: with 0.1.15.post2 it ends with a segmentation fault when its tuner starts. What was
tuned stays in the folder; ``--only`` makes one part after the other, and again.

Both have the same sizes, threads and arrays (float32, in large pages, warm), and both may lay out constant weights as
they like before anything is measured. In the race the default schedule, the tuned one and the best of TVM run in turns,
in bursts; a time is the mean of the fastest 30% of the calls in a burst, and the median of the bursts counts. Kernels
whose name ends in ``_round`` are the same ones at sizes with many factors.

Writes results.json, results.md and results.svg (the best so far of both against trials)."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tune_kernels as kernels
from tune_kernels import SIZES, machine_facts, plot, reached, search

from tilewright.targets.base import find
from tilewright.tune.measure import Meter
from tilewright.tune.runner import KernelBench
from tilewright.tune.space import Space
from tilewright.tune.tasks import task_of

HERE = Path(__file__).resolve().parent
KERNELS = SIZES["prime"]
ROUNDS, SECONDS = 9, 0.15
#: the kernels again at sizes with many factors: TVM cuts a loop only into parts of equal length, of which primes have
#: none
ROUND = {
    "matmul_round": lambda: kernels.matmul(5120, 32, 32),
    "conv3x3_round": lambda: kernels.conv(112, 112, 16, 32, 3),
    "conv1x1_round": lambda: kernels.conv(8, 8, 1024, 512, 1),
    "depthwise_round": lambda: kernels.depthwise(56, 56, 32, 5),
    "batch_matmul_round": lambda: kernels.batch_matmul(512, 16, 32, 16),
    "softmax_round": lambda: kernels.softmax(10240, 64),
    "layer_norm_round": lambda: kernels.layer_norm(5120, 128),
    "attention_round": lambda: kernels.attention(64, 32, 24),
    "reduction_round": lambda: kernels.reduction(8, 98304),
    "transpose_round": lambda: kernels.transpose(16, 30720),
}
ALL = {**KERNELS, **ROUND}


class Ours:
    """A kernel with its default schedule and the tuned one, on arrays of its own."""

    def __init__(self, name: str, threads: int) -> None:
        kernel = ALL[name]()
        self.meter = Meter(find("cpu"), threads)
        self.subject, self.space = task_of(kernel).subject("cpu", threads), Space(kernel, self.meter.description)
        self.bench = KernelBench(self.subject)
        self.variants = {"base": self.meter.default(self.subject, self.space.default)}

    def save(self, file: Path) -> None:
        """The inputs, and the result of the default schedule behind them."""
        (result,) = self.bench.outputs(self.variants)[0]["base"]
        inputs = [self.bench.arrays[n] for n, _, _ in self.subject.params if n not in self.subject.outputs]
        np.savez(file, *inputs, result)

    def add(self, decisions: dict[str, Any]) -> None:
        """Take the tuned schedule into the race."""
        candidate = self.space.realize(decisions)
        if candidate is None:
            raise SystemExit(f"{self.subject.params}: the rules refuse what was tuned; tune again")
        built = self.meter.build({"tuned": candidate})["tuned"]
        if isinstance(built, str):
            raise SystemExit(f"the tuned schedule does not compile: {built}")
        self.variants["tuned"] = built

    def time(self) -> dict[str, float]:
        """Seconds of every variant in one burst."""
        return {s: t[0] for s, t in self.bench.time(self.variants, SECONDS * len(self.variants), 1).items()}


class Theirs:
    """A process with TVM."""

    def __init__(self, python: str, folder: Path, threads: int) -> None:
        command = [python, str(HERE / "tvm_worker.py"), "serve", str(folder), str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.facts = self.answer()

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise SystemExit(f"TVM's process ended with status {self.process.wait()}; its last words are above")
        return json.loads(line)

    def ask(self, **request: Any) -> dict[str, Any]:
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self.answer()


def tune_ours(name: str, folder: Path, args: argparse.Namespace) -> None:
    runs = [search(ALL[name](), args.trials, 0, args.threads, g) for g in ((True, False) if args.random else (True,))]
    (folder / f"{name}.ours.json").write_text(json.dumps(runs))
    print(f"{name}: {runs[0]['trials']} trials, {1 / runs[0]['ratio']:.3f}x", file=sys.stderr, flush=True)


def race(name: str, folder: Path, threads: int, theirs: Theirs) -> dict[str, Any]:
    """Bursts of ours and theirs in turns: the runs as tune_kernels.py has them, and the times."""
    runs = json.loads((folder / f"{name}.ours.json").read_text())
    ours = Ours(name, threads)
    if runs[0]["decisions"]:
        ours.add(runs[0]["decisions"])
    loaded = theirs.ask(load=name)
    bursts: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        found = ours.time()
        found["tvm"] = theirs.ask(seconds=SECONDS)["seconds"]
        bursts.append({"tuned": found["base"], **found})
    times = {k: median(b[k] for b in bursts) for k in ("base", "tuned", "tvm")}
    tvm = tvm_run(loaded["trials"], times["tvm"] / times["base"])
    return {
        "us": {k: round(t * 1e6, 2) for k, t in times.items()},
        "ratio": round(median(b["tvm"] / b["tuned"] for b in bursts), 3),
        "error": loaded["error"], "runs": [*runs, tvm],
    }  # fmt: skip


def tvm_run(seconds: list[float | None], ratio: float) -> dict[str, Any]:
    """TVM's search in the form of ours: the best after every trial over our default schedule. TVM's own times are
    scaled so that the last is what it was in the race."""
    best, so_far = math.inf, []
    for s in seconds:
        best = min(best, s if s is not None else best)
        so_far.append(best)
    curve = [round(min(b / best * ratio, 1e6), 4) for b in so_far]
    return {"tvm": True, "guided": False, "trials": len(seconds), "failed": sum(s is None for s in seconds),
            "curve": curve, "ratio": ratio}  # fmt: skip


def markdown(results: dict[str, Any]) -> str:
    facts = results["machine"]
    lines = [
        "# Our tuner and TVM MetaSchedule",
        "",
        f"{facts['processor']}, {facts['cores']} cores, caches {facts['l1_bytes'] >> 10} KB, "
        f"{facts['l2_bytes'] >> 10} KB, {facts['l3_bytes'] >> 20} MB; {facts['toolchain']}; TVM {results['tvm']} for "
        f"{results['cpu']}.",
        "",
        f"{results['threads']} thread(s), microseconds; `benchmarks/tune_tvm.py` says how they are measured. *best "
        "after* is the trial after which a search was within 2% of its own best; *error* is TVM's largest difference "
        "from our result, relative to the largest value.",
        "",
        "| kernel | default | tuned | TVM tuned | TVM / tuned | our trials | TVM's | failed | best after | error |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, k in results["kernels"].items():
        us, guided, tvm = k["us"], k["runs"][0], k["runs"][-1]
        row = [name, *(f"{us[v]:.1f}" for v in ("base", "tuned", "tvm")), f"{k['ratio']:.2f}", guided["trials"],
               tvm["trials"], tvm["failed"], reached(tvm["curve"], tvm["curve"][-1]), f"{k['error']:.0e}"]  # fmt: skip
        lines.append("| " + " | ".join(map(str, row)) + " |")
    lines += [""]
    for group, what in ((KERNELS, "prime sizes"), (ROUND, "round sizes")):
        logs = [math.log(k["ratio"]) for n, k in results["kernels"].items() if n in group]
        if logs:
            mean = math.exp(sum(logs) / len(logs))
            lines += [f"Geometric mean of TVM / tuned over the {len(logs)} kernels at {what}: {mean:.2f}."]
    lines += ["", results["note"]] if results["note"] else []
    return "\n".join(lines) + "\n"


def write(results: dict[str, Any], output: str) -> None:
    Path(f"{output}.json").write_text(json.dumps(results) + "\n")
    Path(f"{output}.md").write_text(markdown(results))
    Path(f"{output}.svg").write_text(plot({"kernels": {n: k["runs"] for n, k in results["kernels"].items()}}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="a Python that has TVM")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kernels", default=",".join(KERNELS), help="also those of ROUND in this file")
    parser.add_argument("--random", action="store_true", help="our random search too, for the picture")
    parser.add_argument("--folder", type=Path, default=Path("tune_tvm"), help="what was tuned is kept here")
    parser.add_argument("--only", default="ours,tvm,race", help="which parts to do")
    parser.add_argument("--note", default="", help="a sentence about the circumstances, for the report")
    parser.add_argument("-o", "--output", default="tuning_tvm")
    args = parser.parse_args()
    names, parts = args.kernels.split(","), args.only.split(",")
    if unknown := [n for n in names if n not in ALL] + [p for p in parts if p not in ("ours", "tvm", "race")]:
        parser.error(f"unknown: {', '.join(unknown)}; kernels: {', '.join(ALL)}; parts: ours, tvm, race")
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (args.folder / f"{name}.npz").exists():
            Ours(name, args.threads).save(args.folder / f"{name}.npz")
        if "ours" in parts:
            tune_ours(name, args.folder, args)
    if "tvm" in parts:
        command = [args.python, HERE / "tvm_worker.py", "tune", args.folder, args.threads, args.trials, *names]
        if status := subprocess.run(list(map(str, command))).returncode:
            raise SystemExit(f"TVM's process ended with status {status}; its last words are above")
    if "race" in parts:
        theirs, file = Theirs(args.python, args.folder, args.threads), Path(f"{args.output}.json")
        old = json.loads(file.read_text())["kernels"] if file.exists() else {}
        raced = {name: race(name, args.folder, args.threads, theirs) for name in names}
        results = {
            "machine": machine_facts(), "tvm": theirs.facts["version"], "cpu": theirs.facts["cpu"],
            "threads": args.threads, "note": args.note,
            "kernels": {n: raced.get(n) or old[n] for n in ALL if n in raced or n in old},
        }  # fmt: skip
        write(results, args.output)
        print(markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
