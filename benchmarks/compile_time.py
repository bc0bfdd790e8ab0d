"""What compiling costs: processor and wall-clock seconds and peak memory, cold and warm, with one core and with two.

    python benchmarks/compile_time.py                              # the models that benchmarks/models.py has written
    python benchmarks/compile_time.py --models bert_tiny,resnet50:bf16 --repeat 3 --out results/latest.compile_time
    python benchmarks/compile_time.py --tree ../before             # another checkout as well, in turns with this one

A model is a name in the folder, or a path, with `:PRECISION` behind it where that is not f32. Each run is a process of
its own, which is pinned to so many cores and counts its child processes, and has what a call of `tw.compile` has to
import in it. Cold runs begin with an empty cache; a warm one is a second process with the cache that a cold one left,
where packages are kept. Beside it ONNX Runtime and OpenVINO (in its latency mode), whose imports are counted too. Of
several repetitions the least counts, which is taken in turns. Processor seconds compare on a busy machine too, the
others do not. `--out` writes NAME.json and NAME.md.

The last lines are geometric means, and the worst model: of this checkout, and of each other column relative to it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from math import exp, log
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: what is measured -> digits in the table, and its name there
COLUMNS = {"cpu_s": (2, "CPU s"), "wall_s": (2, "s"), "peak_mb": (0, "MB")}
Numbers = dict[str, float]
#: model -> column ("tilewright cold, 2 cores") -> numbers
Results = dict[str, dict[str, Numbers]]

#: prints what one thing took, with its imports. Processes that others have left count too, on Linux: they become
#: children of this one, which ends them
_MEASURE = """
import ctypes, glob, json, os, resource, signal, sys, time
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
model, precision, cores = sys.argv[1], sys.argv[2], int(sys.argv[3])
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
def spent():
    uses = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in uses)
def children():
    for file in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(file) as f:
                pid, rest = f.read().split(" ", 1)
        except OSError:  # it has ended
            continue
        if rest.rsplit(")", 1)[1].split()[1] == str(os.getpid()):
            yield int(pid)
def end_children():
    while True:
        for pid in children():
            os.kill(pid, signal.SIGTERM)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
def peak():
    return max(resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
cpu, wall = spent(), time.perf_counter()
{run}
wall = time.perf_counter() - wall
end_children()
print(json.dumps({{"cpu_s": spent() - cpu, "wall_s": wall, "peak_mb": peak()}}))
"""
_TILEWRIGHT = _MEASURE.format(
    run="import tilewright as tw; made = tw.compile(model, precision=precision, threads=cores)"
)
_PEERS = {
    "onnxruntime": _MEASURE.format(
        run="""
import onnxruntime as o
s = o.SessionOptions(); s.intra_op_num_threads = cores; s.log_severity_level = 3
made = o.InferenceSession(model, s, providers=["CPUExecutionProvider"])
"""
    ),
    "openvino": _MEASURE.format(
        run="""
import openvino as ov
made = ov.Core().compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": cores,
                                              "INFERENCE_PRECISION_HINT": precision})
"""
    ),
}


def measure(script: str, model: str, cores: int, tree: Path, cache: str) -> Numbers:
    """One run of a script in a fresh process, with the packages of a checkout."""
    path, _, precision = model.partition(":")
    environment = {**os.environ, "PYTHONPATH": str(tree), "TILEWRIGHT_CACHE": cache}
    for name in ("TILEWRIGHT_COMPILE", "TILEWRIGHT_JOBS", "TILEWRIGHT_STRICT"):
        environment.pop(name, None)
    command = [sys.executable, "-c", script, path, precision or "f32", str(cores)]
    done = subprocess.run(command, cwd=cache, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{model}, {tree}: {(done.stderr.strip() or 'it ended without a word').splitlines()[-1]}")
    found: Numbers = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def both(model: str, cores: int, tree: Path) -> dict[str, Numbers]:
    """A cold run, and a warm one behind it."""
    with tempfile.TemporaryDirectory() as cache:
        return {kind: measure(_TILEWRIGHT, model, cores, tree, cache) for kind in ("cold", "warm")}


def round_of(model: str, cores: int, trees: dict[str, Path], peers: list[str]) -> dict[str, Numbers]:
    """One run of each column."""
    on = f"{cores} core" + "s" * (cores > 1)
    found = {}
    for label, tree in trees.items():
        found |= {f"{label} {kind}, {on}": n for kind, n in both(model, cores, tree).items()}
    for peer in peers:
        with tempfile.TemporaryDirectory() as cache:
            found[f"{peer}, {on}"] = measure(_PEERS[peer], model, cores, HERE.parent, cache)
    return found


def least(runs: list[Numbers]) -> Numbers:
    return {k: round(min(r[k] for r in runs), 3) for k in runs[0]}


def mean(numbers: list[float]) -> float:
    """The geometric mean."""
    return exp(sum(log(max(n, 1e-3)) for n in numbers) / len(numbers))


def table(results: Results) -> str:
    """The results as Markdown: a table for each thing measured, with the mean and the worst."""
    columns = list(next(iter(results.values())))
    parts = []
    for key, (digits, called) in COLUMNS.items():
        rows = [["model", *columns]]
        rows += [[name, *(f"{row[c][key]:.{digits}f}" for c in columns)] for name, row in results.items()]
        rows.append(["geometric mean", *(f"{mean([r[c][key] for r in results.values()]):.{digits}f}" for c in columns)])
        rows.append(["worst", *(f"{max(r[c][key] for r in results.values()):.{digits}f}" for c in columns)])
        rows[1:1] = [["---", *["---:"] * len(columns)]]
        parts.append(f"{called}\n\n" + "".join(f"| {' | '.join(r)} |\n" for r in rows))
    return "\n".join([*parts, *compared(results, columns)])


def compared(results: Results, columns: list[str]) -> list[str]:
    """This checkout relative to the others, where the same was measured: the mean and the worst model."""
    lines = []
    for other in columns:
        label, _, how = other.rpartition(" cold, " if " cold, " in other else ", ")
        own = f"tilewright cold, {how}"
        if own == other or own not in columns or " warm" in other:
            continue
        for key, (_, called) in COLUMNS.items():
            ratios = {name: r[own][key] / max(r[other][key], 1e-3) for name, r in results.items()}
            worst = max(ratios, key=lambda name: ratios[name])
            lines.append(
                f"- {called}, {how}: {mean(list(ratios.values())):.2f} of {label}, "
                f"at most {ratios[worst]:.2f} ({worst})\n"
            )
    return ["".join(lines)] if lines else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=HERE / "models", help="where models.py has written the models")
    parser.add_argument("--models", help="names or paths with commas between them; all that are in the folder")
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout to compare with")
    parser.add_argument("--cores", default="1,2", help="numbers of cores with commas between them")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peers", default=",".join(_PEERS), help="those to compare with; none with ''")
    parser.add_argument("--out", type=Path, help="write this name with .json and .md")
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    names = chosen.models.split(",") if chosen.models else sorted(p.stem for p in folder.glob("*.onnx"))
    if not names:
        raise SystemExit(f"there are no models in {folder}: python benchmarks/models.py writes them")
    trees = {"tilewright": HERE.parent, **{t.resolve().name: t.resolve() for t in chosen.tree}}
    peers = [p for p in chosen.peers.split(",") if p]
    results: Results = {}
    for name in names:
        file, colon, precision = name.partition(":")
        path = Path(file).resolve() if file.endswith(".onnx") else folder / f"{file}.onnx"
        runs: dict[str, list[Numbers]] = {}
        for _ in range(chosen.repeat):  # in turns, so that what else the machine does falls on all alike
            for cores in map(int, chosen.cores.split(",")):
                for column, numbers in round_of(f"{path}{colon}{precision}", cores, trees, peers).items():
                    runs.setdefault(column, []).append(numbers)
        results[path.stem + colon + precision] = {column: least(r) for column, r in runs.items()}
        print(path.stem, *(f"{c}: {r['cpu_s']:.2f} s" for c, r in results[path.stem + colon + precision].items()))
        sys.stdout.flush()
        if chosen.out:  # what there is so far, too
            chosen.out.with_name(chosen.out.name + ".json").write_text(json.dumps(results, indent=1) + "\n")
            chosen.out.with_name(chosen.out.name + ".md").write_text(table(results))
    print("\n" + table(results))


if __name__ == "__main__":
    main()
