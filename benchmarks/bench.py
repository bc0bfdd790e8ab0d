"""Race the compilers and runtimes of `peers/` on the models of `models.py`, and check every result.

    python benchmarks/bench.py --short                       # what `make bench` runs
    python benchmarks/bench.py --models resnet18,bert_base --peers ort,tilewright --threads 1,2
    python benchmarks/bench.py --name my-machine             # everything, to results/my-machine.json and .md
    python benchmarks/bench.py --busy 1 --name busy          # the same beside a process that computes all the time

How the noise of a shared machine is kept out of the comparison: each peer has one process a model and thread count;
the processes take turns in short bursts, several rounds, in an order that changes; whoever is not running is stopped
(SIGSTOP), so that no spinning thread disturbs the others. Ratios are of medians over the same minutes.

Loads are measured cold (an empty cache folder) and warm (a second process with the cache the first one filled), with
the first run, because some peers compile only then.
The error is the largest difference from PyTorch's float32 output, relative to the largest value of that output; above
1e-3 a result counts as wrong, unless the peer says that it computes in less than float32 (``REDUCED = True``).

A peer is a file ``peers/NAME.py`` with ``version() -> str`` and ``load(onnx_path, threads) -> fn``, where ``fn`` takes
a dict of arrays and gives a list of arrays; one that knows has ``sizes(fn)``, the bytes of code, weights and arena.
The environment variable BENCH_CACHE names a folder that it may keep things in from the cold to the warm load.
A peer whose package is not installed is skipped, and the table says so.

Needs POSIX signals (Linux or macOS).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from plot import plot  # noqa: E402

BASELINE = "ort"
PEERS = ["ort", "openvino", "torch", "tilewright"]
MODELS = ["resnet18", "resnet50", "mobilenet_v2", "vit_b16", "bert_base", "gpt2_prefill"]
EDGE = ["kws_dscnn", "tiny_ae", "tiny_resnet8"]
FLAGS = ["avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "asimd", "asimddp", "sve"]


class PeerFailed(Exception):
    """A peer could not load or run; the text says why."""


@dataclass
class Racer:
    """The process of one peer, stopped whenever it is not its turn."""

    peer: str
    onnx_path: Path
    threads: int
    cache: Path
    log: Path
    facts: dict = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def launch(self, timeout: float, *flags: str) -> dict:
        """Start a process, wait until it has loaded and run twice, and give what it measured."""
        environment = dict(os.environ, BENCH_CACHE=str(self.cache))
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[variable] = str(self.threads)
        command = [sys.executable, str(HERE / "worker.py"), self.peer, str(self.onnx_path), str(self.threads), *flags]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
                start_new_session=True,
            )
        return self.answer(timeout)

    def answer(self, timeout: float) -> dict:
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        line = self.process.stdout.readline() if ready else ""
        if line:
            facts = json.loads(line)
            if "failed" not in facts:
                return facts
            reason = f"package {facts['missing']!r} is not installed" if facts["missing"] else facts["failed"]
        else:
            reason = f"process ended with code {self.process.wait()}" if ready else f"no answer in {timeout:.0f} s"
        raise PeerFailed(reason)

    def send(self, number: int) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def burst(self, options: argparse.Namespace) -> None:
        """One turn."""
        request = {"seconds": options.burst, "warm": options.burst / 5, "least": 2}
        self.send(signal.SIGCONT)
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        result = self.answer(options.timeout)
        self.send(signal.SIGSTOP)
        self.times += result["times"]
        self.cpu += result["cpu"]
        self.facts["peak_mb"] = max(self.facts["peak_mb"], result["peak_mb"])

    def end(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait()

    def summary(self) -> dict:
        times = sorted(self.times)
        return {
            **self.facts,
            "runs": len(times),
            "median_ms": 1e3 * statistics.median(times),
            "min_ms": 1e3 * times[0],
            "p90_ms": 1e3 * times[int(0.9 * (len(times) - 1))],
            "cpu_ms": 1e3 * statistics.median(self.cpu),
        }


def prepare(racer: Racer, options: argparse.Namespace) -> None:
    """Cold load, then (in a second process) warm load; the first process stays, stopped."""
    racer.facts = racer.launch(options.timeout)
    racer.send(signal.SIGSTOP)
    if options.warm:
        second = Racer(racer.peer, racer.onnx_path, racer.threads, racer.cache, racer.log)
        try:
            facts = second.launch(options.timeout, "--once")
            seconds = {f"warm_{key}": facts[key] for key in ("load_s", "first_run_s")}
            racer.facts |= seconds | {"warm_peak_mb": facts["peak_mb"]}
        finally:
            second.end()


def race(model: str, threads: int, options: argparse.Namespace, scratch: Path) -> dict[str, dict]:
    """All peers on one model: peer -> its summary, or ``{"failed": reason}``."""
    results: dict[str, dict] = {}
    racers: dict[str, Racer] = {}

    def attempt(peer: str, step) -> None:
        try:
            step()
        except PeerFailed as failure:
            results[peer] = {"failed": str(failure)}
            racers.pop(peer).end()
            print(f"  {peer}: {failure}", flush=True)

    try:
        for peer in options.peers:
            cache = scratch / f"{model}.{threads}.{peer}"
            cache.mkdir(parents=True)
            racer = Racer(peer, options.models_dir / f"{model}.onnx", threads, cache, scratch / f"{peer}.log")
            racers[peer] = racer
            attempt(peer, lambda racer=racer: prepare(racer, options))
        for number in range(options.rounds):
            order = list(racers)
            random.Random(number).shuffle(order)
            for peer in order:
                attempt(peer, lambda peer=peer: racers[peer].burst(options))
        for peer, racer in racers.items():
            results[peer] = racer.summary()
    finally:
        for racer in racers.values():
            racer.end()
    for peer, result in results.items():
        if "failed" not in result:
            print(
                f"  {peer:12} {result['median_ms']:9.3f} ms  min {result['min_ms']:9.3f}"
                f"  load {result['load_s']:6.2f} s  error {result['error']:.1e}",
                flush=True,
            )
    return {peer: results[peer] for peer in options.peers}


# ---- the report ----


def machine() -> dict:
    """What the numbers were measured on."""
    name, flags = platform.processor() or platform.machine(), []
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line.partition(":") for line in info.read_text().splitlines()]
        entries = {key.strip(): value.strip() for key, _, value in lines}
        name = entries.get("model name", name)
        present = set((entries.get("flags") or entries.get("Features", "")).split())
        flags = [flag for flag in FLAGS if flag in present]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return {
        "cpu": name,
        "features": flags,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def grid(rows: list[list[str]]) -> list[str]:
    """A Markdown table; the first row is the heading."""
    return ["| " + " | ".join(row) + " |" for row in [rows[0], ["---"] + ["---:"] * (len(rows[0]) - 1), *rows[1:]]]


def speed(report: dict, threads: int) -> list[str]:
    """Medians, each with its ratio to the baseline."""
    peers, ratios = report["peers"], {peer: [] for peer in report["peers"]}
    baseline = report.get("baseline", BASELINE)
    rows = [["model, ms (ratio to " + baseline + ")", *peers]]
    for model, by_threads in report["results"].items():
        results = by_threads.get(str(threads), {})
        base, row = results.get(baseline, {}).get("median_ms"), [model]
        for peer in peers:
            result = results.get(peer, {"failed": ""})
            if "failed" in result:
                row.append("–")
                continue
            cell = f"{result['median_ms']:.4g}"
            if base:
                ratios[peer].append(result["median_ms"] / base)
                cell += f" ({ratios[peer][-1]:.2f})"
            wrong = result["error"] > 1e-3 and not result.get("reduced")
            row.append(cell + (" WRONG" if wrong else ""))
        rows.append(row)
    means = [f"{statistics.geometric_mean(ratios[peer]):.2f}" if ratios[peer] else "–" for peer in peers]
    return grid([*rows, ["geometric mean of ratios", *means]])


def details(report: dict, threads: int, title: str, cell) -> list[str]:
    """One more figure a peer and model."""
    rows = [[title, *report["peers"]]]
    for model, by_threads in report["results"].items():
        results = [by_threads.get(str(threads), {}).get(peer, {"failed": ""}) for peer in report["peers"]]
        rows.append([model, *["–" if "failed" in r else cell(r) for r in results]])
    return grid(rows)


def markdown(report: dict) -> str:
    facts, out = report["machine"], []
    out.append(f"{facts['cpu']}, {facts['cores']} cores ({' '.join(facts['features'])}), {facts['memory_gb']} GB,")
    out.append(f"{facts['system']}, Python {facts['python']}, {facts['date']}.")
    out.append("Versions: " + ", ".join(report["versions"].values()) + ".")
    if report.get("busy"):
        out.append(f"Beside {report['busy']} process{'es' * (report['busy'] > 1)} that computed all the time.")
    used = sorted({int(t) for by_threads in report["results"].values() for t in by_threads})
    for threads in used:
        out += ["", f"## {threads} thread{'s' if threads > 1 else ''}", "", *speed(report, threads)]
        out += ["", *details(report, threads, "load and first run, s: cold / warm", load_cell)]
        out += ["", *details(report, threads, "peak memory, MB: cold / warm", memory_cell)]
        if any("sizes" in r for m in report["results"].values() for r in m.get(str(threads), {}).values()):
            out += ["", *details(report, threads, "code, KB / weights, MB / arena, MB", sizes_cell)]
        out += ["", *details(report, threads, "largest error", lambda r: f"{r['error']:.0e}")]
    return "\n".join(out + not_measured(report)) + "\n"


def not_measured(report: dict) -> list[str]:
    """One line for each peer and reason, with what it concerns."""
    reasons: dict[str, list[str]] = {}
    for model, by_threads in report["results"].items():
        for threads, results in by_threads.items():
            for peer, result in results.items():
                if "failed" in result:
                    reason = f"{peer}: {result['failed'].splitlines()[0]}"
                    reasons.setdefault(reason, []).append(f"{model} with {threads}")
    lines = [f"- {reason} ({', '.join(where)})" for reason, where in reasons.items()]
    return ["", "Not measured (model with threads):", "", *lines] if lines else []


def load_cell(r: dict) -> str:
    cold = f"{r['load_s'] + r['first_run_s']:.2f}"
    return cold + (f" / {r['warm_load_s'] + r['warm_first_run_s']:.2f}" if "warm_load_s" in r else "")


def sizes_cell(r: dict) -> str:
    sizes = r.get("sizes")
    return f"{sizes['code'] / 1e3:.0f} / {sizes['weights'] / 1e6:.1f} / {sizes['arena'] / 1e6:.1f}" if sizes else "–"


def memory_cell(r: dict) -> str:
    return f"{r['peak_mb']:.0f}" + (f" / {r['warm_peak_mb']:.0f}" if "warm_peak_mb" in r else "")


def write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)


def store(report: dict, results: Path, name: str) -> None:
    """The files of a report; called after every model, so that a long run can be watched and interrupted."""
    results.mkdir(parents=True, exist_ok=True)
    write(results / f"{name}.json", json.dumps(report, indent=1) + "\n")
    write(results / f"{name}.md", markdown(report))
    write(results / f"{name}.svg", plot(report))


# ---- command line ----


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def listed(text: str) -> list[str]:
        return [part for part in text.split(",") if part]

    parser.add_argument("--models", type=listed, help=f"default: {','.join(MODELS + EDGE)}")
    parser.add_argument("--peers", type=listed, help=f"default: {','.join(PEERS)}")
    parser.add_argument("--baseline", default=BASELINE, help=f"the peer that ratios are to (default: {BASELINE})")
    parser.add_argument("--threads", type=listed, default=["1", "2"], help="thread counts (default: 1,2)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each peer (default: 5)")
    parser.add_argument("--burst", type=float, default=0.5, help="seconds of timed runs a turn (default: 0.5)")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile (default: 0)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds one peer may take to load (default: 600)")
    parser.add_argument("--no-warm", dest="warm", action="store_false", help="do not measure the warm load")
    parser.add_argument("--short", action="store_true", help="four models, two peers, three rounds of 0.3 s")
    parser.add_argument("--name", default="latest", help="name of the result files (default: latest)")
    parser.add_argument("--models-dir", type=Path, default=HERE / "models", help="where the .onnx files are or go")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the result files")
    options = parser.parse_args()
    if options.short:
        options.models = options.models or ["resnet18", "mobilenet_v2", "kws_dscnn", "tiny_resnet8"]
        options.peers = options.peers or [BASELINE, "tilewright"]
        options.rounds, options.burst = 3, 0.3
    options.models = options.models or MODELS + EDGE
    options.peers = options.peers or PEERS
    options.threads = [int(n) for n in options.threads]
    for peer in options.peers:
        if not (HERE / "peers" / f"{peer}.py").exists():
            there = ", ".join(sorted(p.stem for p in (HERE / "peers").glob("*.py")))
            parser.error(f"no peer {peer!r}; there are: {there}")
    return options


def export_missing(options: argparse.Namespace) -> None:
    missing = [name for name in options.models if not (options.models_dir / f"{name}.onnx").exists()]
    if missing:  # in a process of its own: PyTorch need not be installed where the models are there already
        script = [sys.executable, str(HERE / "models.py"), "--out", str(options.models_dir)]
        subprocess.run([*script, "--models", ",".join(missing)], check=True)


def main() -> int:
    options = parse_arguments()
    export_missing(options)
    report: dict = {
        "machine": machine(),
        "versions": {},
        "baseline": options.baseline,
        "peers": options.peers,
        "busy": options.busy,
        "results": {},
    }
    scratch = Path(tempfile.mkdtemp(prefix="bench"))
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    try:
        for model in options.models:
            for threads in options.threads:
                print(f"{model}, {threads} thread{'s' if threads > 1 else ''}", flush=True)
                results = race(model, threads, options, scratch)
                report["results"].setdefault(model, {})[str(threads)] = results
                report["versions"] |= {p: r["version"] for p, r in results.items() if "version" in r}
                store(report, options.results, options.name)
        print("\n" + markdown(report))
        print(f"written: {options.results / options.name}.json, .md and .svg")
        failed = [r for m in report["results"].values() for t in m.values() for p, r in t.items() if p == "tilewright"]
        return int(any("failed" in r or r["error"] > 1e-4 for r in failed))
    finally:
        for neighbour in neighbours:
            neighbour.kill()
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
