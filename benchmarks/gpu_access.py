"""What kernels for GPUs do with memory and with the threads of the machine, counted without a GPU: nothing is timed.

    python benchmarks/gpu_access.py                            # the six models, and 300 random chains of operators
    python benchmarks/gpu_access.py --machine vulkan --chains 50 --name gpu_access_vulkan

Threads of a warp that read or write together move whole sectors of memory, and wait for each other where they ask one
bank of shared memory for different words (`tilewright.schedule.coalescing`). Both are counted as multiples of what
would do. `threads` is how much longer kernels take because fewer threads work than the machine needs to be busy, by the
estimate that places kernels on devices (`Machine.device_costs`), with the time of the calls.

The chains are those of `tests/fuzz/random_chains.py`; no rule was written for them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer
from bench import HERE, MODELS, grid, machine, write

sys.path.insert(0, str(HERE.parent / "tests" / "fuzz"))
from random_chains import random_chain

from tilewright.codegen.gpu.launch import LaunchAxes
from tilewright.driver.compile_state import State
from tilewright.driver.request import CompileRequest
from tilewright.driver.stages import FRONT
from tilewright.schedule.coalescing import Together, together
from tilewright.schedule.work import work_of
from tilewright.targets.base import find

#: multiples from which on an access counts as scattered, and as far from what it could be
LIMITS = (1.25, 2.0, 4.0)
#: kernels that move less are left out of the distribution: nothing about them takes time
LEAST_SECTORS = 1000
WORST = 12


@dataclass
class Counted:
    """A kernel: its accesses as multiples of what would do, and its time by estimate, as it is and if all threads of
    the machine worked."""

    source: str
    kernel: str
    rule: str
    sectors: float
    memory: float
    banks: float
    seconds: float
    busy_seconds: float
    worst: str


def over(found: list[Together], shared: bool) -> tuple[float, float]:
    """What the accesses to one memory move, and that as a multiple of what would do."""
    own = [t for t in found if t.shared == shared]
    moved, least = sum(t.times * t.moved for t in own), sum(t.times * t.least for t in own)
    return moved, moved / least if least else 1.0


def counted(source: Any, name: str, target: str, precision: str) -> Iterator[Counted]:
    """The kernels of a model."""
    chosen = find(target)
    description = chosen.describe()
    costs = description.device_costs(1)
    request = CompileRequest.of(source, cache=False, tuned=False, threads=1, jobs=1, precision=precision)
    state = State(request, chosen, description)
    for stage in FRONT:
        stage.run(state)
    for symbol, kernel in state.kernels.items():
        nest, work = state.nests[symbol], work_of(kernel, state.nests[symbol])
        launch = LaunchAxes(nest, description).launch
        found = together(nest, description)
        (sectors, memory), (_, banks) = over(found, False), over(found, True)
        own = work.precision if work.precision in costs.ceilings.compute else "f32"
        touched, threads = float(sum(work.touched)), launch.threads * prod(launch.grid)
        times = [costs.kernel(work.flops, touched, 0.0, own, n) for n in (threads, costs.threads)]
        worst = max(found, key=lambda t: t.needless, default=None)
        said = "" if worst is None else f"{worst.buffer} in {worst.block}: {worst.moved:.1f} for {worst.least:.1f}"
        yield Counted(name, symbol, state.schedules[symbol].rule, sectors, memory, banks, *times, said)


def distribution(kernels: list[Counted]) -> list[list[str]]:
    large = [k for k in kernels if k.sectors >= LEAST_SECTORS]
    rows = [["of the kernels, more than", *(f"{n} times" for n in LIMITS), "most"]]
    for what in ("memory", "banks"):
        values = [getattr(k, what) for k in large]
        counts = (f"{sum(v > n for v in values)} ({sum(v > n for v in values) / len(values):.1%})" for n in LIMITS)
        rows.append([f"{what} ({len(values)} kernels)", *counts, f"{max(values):.1f}"])
    return rows


def markdown(report: dict) -> str:
    models = [Counted(**k) for k in report["models"]]
    chains = [Counted(**k) for k in report["chains"]]
    rows = [["model", "kernels", "memory, all", "worst", "banks, worst", "threads, all"]]
    for name in dict.fromkeys(k.source for k in models):
        own = [k for k in models if k.source == name]
        total = sum(k.sectors for k in own) / sum(k.sectors / k.memory for k in own)
        most = [f"{max(getattr(k, w) for k in own):.2f}" for w in ("memory", "banks")]
        idle = sum(k.seconds for k in own) / sum(k.busy_seconds for k in own)
        rows.append([name, str(len(own)), f"{total:.2f}", *most, f"{idle:.2f}"])
    worst = sorted((k for k in chains if k.sectors >= LEAST_SECTORS), key=lambda k: -k.memory)[:WORST]
    told = [["chain", "rule", "memory", "banks", "most needless"]]
    told += [[k.source, k.rule, f"{k.memory:.1f}", f"{k.banks:.1f}", k.worst] for k in worst]
    return "\n".join(
        [
            f"# What kernels for {report['target']} touch together",
            "",
            f"{report['machine']['date']}; `python benchmarks/gpu_access.py --machine {report['target']} --chains "
            f"{report['count']}`. Counted, not timed: no GPU was used.",
            "",
            "Sectors of memory that warps move, and turns that shared memory takes, as multiples of what would do; "
            "`threads`: what idle threads cost, by estimate.",
            "",
            *grid(rows),
            "",
            f"## {report['count']} random chains of operators",
            "",
            f"Kernels that move at least {LEAST_SECTORS} sectors:",
            "",
            *grid(distribution(chains)),
            "",
            *grid(told),
            "",
        ]
    )


def main(
    target: Annotated[str, typer.Option("--machine", help="a target with a grid of blocks")] = "cuda:sm_90a",
    models: Annotated[str, typer.Option(help="names, with commas")] = ",".join(MODELS),
    precisions: Annotated[str, typer.Option(help="f32, bf16")] = "f32,bf16",
    chains: Annotated[int, typer.Option(help="random chains of operators")] = 300,
    folder: Annotated[Path, typer.Option(help="folder of the models")] = HERE / "models",
    name: Annotated[str, typer.Option(help="name of the result files")] = "gpu_access",
    results: Annotated[Path, typer.Option(help="folder of the result files")] = HERE / "results",
) -> None:
    """Count what kernels touch together."""
    from cuda_kernels import exported

    report: dict[str, Any] = {"machine": machine(), "target": target, "count": chains, "models": [], "chains": []}
    for model in models.split(","):
        for precision in precisions.split(","):
            found = counted(str(exported(model, folder)), f"{model}, {precision}", target, precision)
            report["models"] += map(asdict, found)
    for seed in range(chains):
        report["chains"] += map(asdict, counted(random_chain(seed).model(), f"seed {seed}", target, "f32"))
        if seed % 50 == 49:
            typer.echo(f"{seed + 1} chains")
    write(results / f"{name}.json", json.dumps(report, indent=1) + "\n")
    write(results / f"{name}.md", markdown(report))
    typer.echo(markdown(report))


if __name__ == "__main__":
    typer.run(main)
