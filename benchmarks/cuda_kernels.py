"""Every kernel of models for NVIDIA GPUs, without a GPU: right in the emulator, and what NVIDIA's assembler says of it.

    python benchmarks/cuda_kernels.py                          # the six models, f32 and bf16, two GPUs: half an hour
    python benchmarks/cuda_kernels.py --models resnet18 --machines cuda --precisions bf16

A model is compiled for a GPU, and its program runs on its own inputs by this processor's kernels. Where a kernel is
called first, some blocks of its grid (the first, the last and drawn ones; all of a small grid) run in the emulator of
`tests/support/cuda_emulator.py` on the same arguments, and what they write is compared. So are the model's outputs with
PyTorch's. ``ptxas`` then assembles the kernel for each GPU, and says what registers it takes and what is spilled.

Runs that are in the result file already stay; delete it to do them again.

Needs a C compiler, ``ptxas`` (`pip install nvidia-cuda-nvcc`) and the models of `models.py`, which are exported where
they are missing.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from bench import HERE, MODELS, grid, machine, write

sys.path.insert(0, str(HERE.parent / "tests"))
from support.cuda_models import ALLOWED, Checked, CheckedModel
from support.ptxas import find as find_ptxas

#: a GPU, and others that take its code
ALSO = {"cuda": ("sm_80", "sm_100"), "cuda:sm_90a": ("sm_90a",), "cuda:sm_100": ("sm_100",)}
#: how far a model's outputs may be from PyTorch's in f32, relative to the largest
OUTPUTS = 1e-4


def check(path: Path, target: str, precision: str, known: dict[str, Checked]) -> dict:
    """What is known of one model's kernels on one GPU."""
    start = time.process_time()
    made = CheckedModel(path, target, known, precision=precision)
    arrays = np.load(path.with_suffix(".inputs.npz"))
    found = made.run([arrays[i.name] for i in made.package.program.inputs])
    expected = dict(np.load(path.with_suffix(".expected.npz")))
    apart = [np.abs(f - e).max() / np.abs(e).max() for f, e in zip(found, expected.values(), strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        made.assemble(ALSO[target], Path(folder))
    return {
        "outputs": float(max(apart)),
        "calls": len(made.package.program.calls),
        "kernels": [asdict(k) for k in made.kernels.values()],
        "seconds": time.process_time() - start,
    }


def values(kernel: dict, what: str) -> list[int]:
    """What a kernel takes of something on each GPU."""
    return [t[what] for t in (kernel["taken"] or {}).values()]


def most(kernels: list[dict], what: str) -> int:
    """Of the kernel that takes most."""
    return max(n for k in kernels for n in values(k, what))


def failures(runs: list[dict]) -> list[str]:
    """What is wrong, in sentences."""
    found = []
    for r in runs:
        name = f"{r['model']}, {r['precision']}, {r['target']}"
        found += [f"{name}: {k['name']}: {k['failed']}" for k in r["kernels"] if k["failed"]]
        own = ALSO[r["target"]][0]  # another assembler may think otherwise of its code
        found += [f"{name}: {k['name']} spills registers" for k in r["kernels"] if k["taken"][own]["spilled"]]
        if r["precision"] == "f32" and not r["outputs"] <= OUTPUTS:
            found.append(f"{name}: outputs differ by {r['outputs']:.1e}")
    return found


def markdown(report: dict) -> str:
    runs, facts = report["runs"], report["machine"]
    heading = ["model", "precision", "GPU", "kernels", "right", "blocks run", "worst error", "outputs"]
    rows = [[*heading, "registers", "spilled", "shared memory"]]
    for r in runs:
        kernels = r["kernels"]
        right = sum(not k["failed"] for k in kernels)
        error = max(k["error"] for k in kernels)
        row = [r["model"], r["precision"], "+".join(ALSO[r["target"]]), str(len(kernels)), str(right)]
        row += [str(sum(k["blocks"] for k in kernels)), f"{error:.1e}", f"{r['outputs']:.1e}"]
        row += [str(most(kernels, "registers")), f"{most(kernels, 'spilled')} B"]
        rows.append([*row, f"{max(most(kernels, 'shared'), *(k['shared'] for k in kernels)) / 1024:.0f} KB"])
    rules = Counter((r["precision"], k["rule"]) for r in runs for k in r["kernels"])
    by_rule = [["rule", *report["precisions"]]]
    for rule in sorted({k for _, k in rules}):
        by_rule.append([rule, *(str(rules[p, rule]) for p in report["precisions"])])
    local = {
        (k["name"], r["model"], r["precision"], f"{max(values(k, 'stack'))} B")
        for r in runs
        for k in r["kernels"]
        if any(values(k, "stack"))
    }
    allowed = ", ".join(f"{n} {x:.1e}" for n, x in ALLOWED.items())
    lines = [
        "# Kernels for NVIDIA GPUs in the emulator and the assembler",
        "",
        f"{facts['date']}; {report['ptxas']}. No GPU was used: nothing here is a time. `benchmarks/cuda_kernels.py`.",
        "",
        "Each kernel of a model runs on the model's own numbers at its full size, some blocks of its grid, beside the "
        "processor's kernel. Errors are relative to the largest value of a result and count as right up to "
        f"{allowed}; integers have to be the same. `outputs`: the whole model by the processor's kernels, beside "
        "PyTorch in f32. Registers, bytes spilled and shared memory are those of the kernel that takes most, on "
        "whichever of the GPUs.",
        "",
        *grid(rows),
        "",
        f"Wrong: {'; '.join(failures(runs)) or 'none'}.",
        "",
        "## By rule",
        "",
        *grid(by_rule),
        "",
        "## Memory of single threads",
        "",
        "Arrays that a thread keeps beside its registers (`stack`), which lie in local memory:",
        "",
        *grid([["kernel", "model", "precision", "a thread"], *map(list, sorted(local))]),
    ]
    return "\n".join(lines) + "\n"


def exported(model: str, folder: Path) -> Path:
    """The file of a model, made now if it is not there."""
    path = folder / f"{model}.onnx"
    if not path.exists():
        from models import ensure  # loads PyTorch

        ensure(model, folder)
    return path


def version(program: str) -> str:
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return f"ptxas {text.rpartition('release ')[2].split(',')[0]}"


def main(
    models: Annotated[str, typer.Option(help="names, with commas")] = ",".join(MODELS),
    precisions: Annotated[str, typer.Option(help="f32, bf16")] = "f32,bf16",
    machines: Annotated[str, typer.Option(help="targets")] = "cuda,cuda:sm_90a",
    folder: Annotated[Path, typer.Option(help="folder of the models")] = HERE / "models",
    name: Annotated[str, typer.Option(help="name of the result files")] = "cuda_kernels",
    results: Annotated[Path, typer.Option(help="folder of the result files")] = HERE / "results",
) -> None:
    """Check every kernel of models for NVIDIA GPUs."""
    program = find_ptxas()
    if program is None:
        raise SystemExit("ptxas is not installed: pip install nvidia-cuda-nvcc")
    report = {"machine": machine(), "ptxas": version(program), "precisions": precisions.split(","), "runs": []}
    file = results / f"{name}.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    if before.get("ptxas") == report["ptxas"]:
        report["runs"] = before["runs"]
    done = {(r["target"], r["model"], r["precision"]) for r in report["runs"]}
    known: dict[str, Checked] = {}
    for which in itertools.product(machines.split(","), models.split(","), precisions.split(",")):
        if which in done:
            continue
        target, model, precision = which
        run = check(exported(model, folder), target, precision, known)
        report["runs"].append({"model": model, "precision": precision, "target": target, **run})
        wrong = sum(bool(k["failed"]) for k in run["kernels"])
        print(f"{model} {precision} {target}: {len(run['kernels'])} kernels, {wrong} wrong, {run['seconds']:.0f} s")
        write(file, json.dumps(report) + "\n")
        write(file.with_suffix(".md"), markdown(report))
    found = failures(report["runs"])
    print("\n".join(found))
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    typer.run(main)
