"""Decoding with the wrong number of threads, with half a quota, and beside a busy process.

    BENCH_MODELS=... python benchmarks/llm_threads.py                       # to results/llm_threads.json
    python benchmarks/llm_threads.py MODEL.gguf --rounds 5 --name try

Tokens per second of `llm_worker.py` (64 tokens behind a prompt of 128), in turns with those of the right number of
threads: twice as many threads as cores; as many as cores with a quota of one core (a control group, which needs root;
left out without); as many as cores beside a process that computes all the time. The best round of each counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from bench import HERE, grid, machine, write

CORES = len(os.sched_getaffinity(0))
#: name, threads, whose speed it is held against, the bound of the ratio
CASES = (
    ("as many threads as cores", CORES, None, None),
    ("one thread", 1, None, None),
    ("twice as many threads as cores", 2 * CORES, 0, 0.8),
    ("a quota of one core", CORES, 1, 0.8),
    ("beside a busy process", CORES, 0, 0.4),
)
GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def quota(process: int):
    """The processor time of a process is that of one core, by version 1 or 2 of control groups."""
    old = (GROUPS / "cpu" / "cpu.cfs_quota_us").exists()
    group = (GROUPS / "cpu" if old else GROUPS) / f"tilewright-{process}"
    group.mkdir()
    try:
        if old:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("100000")
        else:
            (group / "cpu.max").write_text("100000 100000")
        (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        group.rmdir()  # the process has ended


def tokens_per_second(model: Path, threads: int, limited: bool = False) -> float:
    """Of a process of its own, which waits for a line before it begins, so that the quota holds from the start."""
    command = [sys.executable, str(HERE / "llm_worker.py"), str(model), str(threads), "--prompt", "128"]
    waiting = ["sh", "-c", 'read begin; exec "$@"', "sh", *command]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        if limited:
            with quota(run.pid):
                out, _ = run.communicate("begin\n")
        else:
            out, _ = run.communicate("begin\n")
    return json.loads(out.strip().splitlines()[-1])["tg_tok_s"]


def measure(name: str, model: Path, threads: int) -> float:
    if "busy" not in name:
        return tokens_per_second(model, threads, "quota" in name)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return tokens_per_second(model, threads)
    finally:
        busy.kill()
        busy.wait()


def markdown(report: dict[str, Any]) -> str:
    m, best = report["machine"], {name: max(found) for name, found in report["tok_s"].items()}
    rows = [["case", "threads", "tok/s", "held against", "ratio", "bound"]]
    for name, threads, other, bound in CASES:
        if name in best:
            against = CASES[other][0] if other is not None else ""
            ratio = f"{best[name] / best[against]:.2f}" if against else "–"
            rows.append([name, str(threads), f"{best[name]:.1f}", against or "–", ratio, str(bound or "–")])
    lines = [
        "# Language models and the number of threads", "",
        f"{m['cpu']}, {m['cores']} cores, {m['system']}, {m['date']}. Made by `benchmarks/llm_threads.py`: "
        f"{report['model']}, the best of {report['rounds']} rounds.", "", *grid(rows),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(
    model: Annotated[Path | None, typer.Argument(help="A model; default: SmolLM2 135M, Q4_0, of BENCH_MODELS.")] = None,
    rounds: Annotated[int, typer.Option(help="Turns of every case.")] = 3,
    name: Annotated[str, typer.Option(help="Name of the result files.")] = "llm_threads",
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = HERE / "results",
) -> None:
    """Decode with the wrong number of threads, with a quota, and beside a busy process."""
    model = model or Path(os.environ["BENCH_MODELS"]) / "smollm2_135m" / "q4_0.gguf"
    cases = CASES if os.access(GROUPS, os.W_OK) and os.getuid() == 0 else [c for c in CASES if "quota" not in c[0]]
    found: dict[str, list[float]] = {case[0]: [] for case in cases}
    for _, threads, _, _ in cases:
        tokens_per_second(model, threads)  # compiles, where it must
    for _ in range(rounds):
        for case, threads, _, _ in cases:
            found[case].append(measure(case, model, threads))
            print(f"{case}: {found[case][-1]:.1f} tok/s", flush=True)
    report = {"machine": machine(), "model": f"{model.parent.name} {model.stem}", "rounds": rounds, "tok_s": found}
    write(results / f"{name}.json", json.dumps(report, indent=1) + "\n")
    write(results / f"{name}.md", markdown(report))


if __name__ == "__main__":
    typer.run(main)
