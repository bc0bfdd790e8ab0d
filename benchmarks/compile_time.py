"""What compiling costs: processor seconds, wall-clock seconds and peak memory of cold compilations.

    python benchmarks/compile_time.py                              # the models that benchmarks/models.py has written
    python benchmarks/compile_time.py --models bert_tiny,resnet18 --repeat 3 --out results/latest.compile_time
    python benchmarks/compile_time.py --tree ../before             # another checkout as well, in turns with this one

Each compilation runs in a process of its own, with an empty cache and one thread, and counts its child processes.
Beside it the creation of a session of ONNX Runtime, in a process of its own too. Of several repetitions the least
counts. Processor seconds compare on a busy machine, too; the others do not. `--out` writes NAME.json and NAME.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

#: prints what one thing took: imports come first and are not counted
_MEASURE = """
import json, resource, sys, time
{prepare}
def spent():
    uses = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in uses)
def peak():
    return max(resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
cpu, wall = spent(), time.perf_counter()
{run}
wall = time.perf_counter() - wall
print(json.dumps({{"cpu_s": spent() - cpu, "wall_s": wall, "peak_mb": peak()}}))
"""
#: kernels are compiled in this process, so that a worker that is still running is not left out of the count
_TILEWRIGHT = _MEASURE.format(
    prepare="import os, tilewright as tw, tilewright.driver.compiler\nos.environ['TILEWRIGHT_COMPILE'] = 'inprocess'",
    run="made = tw.compile(sys.argv[1], threads=1, cache=False)",
)
_ONNXRUNTIME = _MEASURE.format(
    prepare="import onnxruntime as o; s = o.SessionOptions(); s.intra_op_num_threads = 1; s.log_severity_level = 3",
    run="made = o.InferenceSession(sys.argv[1], s, providers=['CPUExecutionProvider'])",
)


def measure(script: str, model: Path, tree: Path) -> dict[str, float]:
    """One run of a script in a fresh process, with the packages of a checkout and an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPATH": str(tree), "TILEWRIGHT_CACHE": cache, "TILEWRIGHT_JOBS": "1"}
        command = [sys.executable, "-c", script, str(model)]
        done = subprocess.run(command, cwd=cache, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{model.name}, {tree}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def least(runs: list[dict[str, float]]) -> dict[str, float]:
    return {k: round(min(r[k] for r in runs), 3) for k in runs[0]}


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """The results as Markdown."""
    columns = list(next(iter(results.values())))
    head = ["model", *(f"{c}: CPU s" for c in columns), *(f"{c}: s" for c in columns), *(f"{c}: MB" for c in columns)]
    rows = [" | ".join(head), "|".join(["---", *["---:"] * (len(head) - 1)])]
    for name, row in results.items():
        numbers = [f"{row[c][k]:.{d}f}" for k, d in (("cpu_s", 2), ("wall_s", 2), ("peak_mb", 0)) for c in columns]
        rows.append(" | ".join([name, *numbers]))
    return "\n".join(f"| {r} |" for r in rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=HERE / "models", help="where models.py has written the models")
    parser.add_argument("--models", help="names with commas between them; all that are in the folder")
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout to compare with")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true", help="leave out ONNX Runtime")
    parser.add_argument("--out", type=Path, help="write this name with .json and .md")
    chosen = parser.parse_args()
    chosen.folder = chosen.folder.resolve()
    names = chosen.models.split(",") if chosen.models else sorted(p.stem for p in chosen.folder.glob("*.onnx"))
    if not names:
        raise SystemExit(f"there are no models in {chosen.folder}: python benchmarks/models.py writes them")
    trees = {"tilewright": HERE.parent, **{t.resolve().name: t.resolve() for t in chosen.tree}}
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in names:
        runs: dict[str, list[dict[str, float]]] = {}
        for _ in range(chosen.repeat):  # in turns, so that what else the machine does falls on all alike
            for label, tree in trees.items():
                runs.setdefault(label, []).append(measure(_TILEWRIGHT, chosen.folder / f"{name}.onnx", tree))
            if not chosen.no_peer:
                peer = measure(_ONNXRUNTIME, chosen.folder / f"{name}.onnx", HERE.parent)
                runs.setdefault("onnxruntime", []).append(peer)
        results[name] = {label: least(r) for label, r in runs.items()}
        print(name, *(f"{label} {r['cpu_s']:.2f} s" for label, r in results[name].items()), flush=True)
    print("\n" + table(results))
    if chosen.out:
        chosen.out.with_name(chosen.out.name + ".json").write_text(json.dumps(results, indent=1) + "\n")
        chosen.out.with_name(chosen.out.name + ".md").write_text(table(results))


if __name__ == "__main__":
    main()
