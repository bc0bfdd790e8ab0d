"""What the same module costs in a call through `torch.compile(backend="tilewright")` and through `tw.compile`.

    python benchmarks/torch_doors.py                                # the 20 of the dashboard that compile fastest
    python benchmarks/torch_doors.py --count 3 --match hf_bert
    python benchmarks/torch_doors.py --missing                      # only those that the results lack

The models are those of `results/torch_dashboard.json`, with the options of both doors as they are by default, under
`torch.no_grad()`, one thread. Each model has a process of its own, in which the doors take turns in short bursts, in an
order that changes. The ratio is of the least CPU time of a call, which neighbours disturb least. `guards` is the least
time of the same module by TorchDynamo with a backend that computes nothing and gives a result that is there already:
its guards, and the loading of arguments. Writes `results/torch_doors.json` and `.md` after every model.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from bench import HERE, grid, machine, write

#: what torch.compile may cost of tw.compile's time
LIMIT = 1.3
#: CPU time after which a model has no more turns
SECONDS = 15.0
RESULTS = HERE / "results" / "torch_doors.json"


def quickest(match: str) -> list[str]:
    """The models of the dashboard, those that tilewright compiles fastest first."""
    models = json.loads((HERE / "results" / "torch_dashboard.json").read_text())["models"]
    seconds = {n: m["threads"].get("1", {}).get("tilewright", {}).get("cold_s") for n, m in models.items()}
    return sorted((n for n, s in seconds.items() if s is not None and match in n), key=lambda n: seconds[n])


def measure(name: str, rounds: int) -> dict[str, Any]:
    """One model in this process."""
    import torch
    from modules import module_of

    import tilewright as tw
    from tilewright.compat.torch_backend import backend

    warnings.simplefilter("ignore")
    made = module_of(name, 1)
    module, given = made.module, tuple(made.inputs.values())
    with torch.no_grad():
        want = _flat(module(*given))
        doors: dict[str, Callable[..., Any]] = {"tw.compile": tw.compile(module, given, threads=1)}
        doors["torch.compile"] = torch.compile(module, backend=backend)
        # in a frame of its own: TorchDynamo keeps what it compiled with the code that it compiled
        doors["guards"] = torch.compile(lambda *xs: module(*xs), backend=_nothing)
        errors = {n: _error(_flat(door(*given)), want) for n, door in doors.items()}
        row = {"model": name, "error": max(errors.values()), **times(doors, given, rounds)}
    row["ratio"] = row["cpu_ms"]["torch.compile"] / row["cpu_ms"]["tw.compile"]
    return row


def _nothing(module: Any, example_inputs: Any) -> Callable[..., Any]:
    made = module(*example_inputs)
    return lambda *given: made


def _flat(result: Any) -> list[Any]:
    return [result] if hasattr(result, "shape") else list(result)


def _error(found: list[Any], want: list[Any]) -> float:
    return max(
        float((a.double() - b.double()).abs().max() / (b.double().abs().max() or 1.0))
        for a, b in zip(found, want, strict=True)
    )


def times(doors: Mapping[str, Callable[..., Any]], given: tuple[Any, ...], rounds: int) -> dict[str, Any]:
    """The least milliseconds of a call, on the clock and of the processor; of bursts of some 4 ms."""
    calls, least = {}, {kind: dict.fromkeys(doors, float("inf")) for kind in ("wall_ms", "cpu_ms")}
    for name, door in doors.items():
        begin = time.process_time()
        for _ in range(5):
            door(*given)
        calls[name] = max(1, int(0.02 / (time.process_time() - begin)))
    end = time.process_time() + SECONDS
    for number in range(rounds):
        if time.process_time() > end:
            break
        order = list(doors)
        random.Random(number).shuffle(order)
        for name in order:
            begin = time.perf_counter(), time.process_time()
            for _ in range(calls[name]):
                doors[name](*given)
            spent = time.perf_counter() - begin[0], time.process_time() - begin[1]
            for kind, seconds in zip(least, spent, strict=True):
                least[kind][name] = min(least[kind][name], 1e3 * seconds / calls[name])
    return least


def markdown(report: Mapping[str, Any]) -> str:
    facts, rows = report["machine"], sorted(report["models"].values(), key=lambda r: -r["ratio"])
    ratios = [r["ratio"] for r in rows]
    heads = "model, tw.compile (CPU ms), torch.compile (CPU ms), guards (CPU ms), ratio, ratio on the clock, error"
    lines = [heads.split(", ")]
    for r in rows:
        cpu, wall = ([r[kind][n] for n in ("tw.compile", "torch.compile", "guards")] for kind in ("cpu_ms", "wall_ms"))
        shown = [*(f"{ms:.3f}" for ms in cpu), f"{r['ratio']:.2f}", f"{wall[1] / wall[0]:.2f}", f"{r['error']:.0e}"]
        lines.append([r["model"], *shown])
    out = [
        "# The doors of PyTorch: torch.compile beside tw.compile",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['system']}, {facts['date']}; "
        f"{report['versions']}. 1 thread, random weights, `torch.no_grad()`, on a machine on which others worked too: "
        "least time of many bursts, taken in turns. `guards`: the same module in TorchDynamo with a backend that "
        "computes nothing. Made by `python benchmarks/torch_doors.py`.",
        "",
        f"{sum(r <= LIMIT for r in ratios)} of {len(ratios)} at most {LIMIT}; the geometric mean is "
        f"{statistics.geometric_mean(ratios):.2f}.",
        "",
        *grid(lines),
    ]
    return "\n".join(out) + "\n"


def in_a_process(name: str, rounds: int, timeout: float) -> dict[str, Any] | None:
    """What `measure` finds in a process of its own; None where it fails."""
    command = [sys.executable, __file__, "--one", name, "--rounds", str(rounds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        print(f"{name}: nothing after {timeout:.0f} s", flush=True)
        return None
    if done.returncode:
        print(f"{name}: {(done.stderr.strip().splitlines() or ['?'])[-1][:300]}", flush=True)
        return None
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def main(
    count: Annotated[int, typer.Option(help="so many models")] = 20,
    match: Annotated[str, typer.Option(help="only models whose name has this in it")] = "",
    rounds: Annotated[int, typer.Option(help="turns of each door")] = 200,
    timeout: Annotated[float, typer.Option(help="seconds that a model may take")] = 900.0,
    missing: Annotated[bool, typer.Option(help="only those that the results lack")] = False,
    one: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Race torch.compile(backend="tilewright") and tw.compile."""
    if one:
        print(json.dumps(measure(one, rounds)))
        return
    import torch

    import tilewright as tw

    report = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"models": {}}
    report |= {"machine": machine(), "versions": f"PyTorch {torch.__version__}, tilewright {tw.__version__}"}
    for name in quickest(match)[:count]:
        if missing and name in report["models"]:
            continue
        if (row := in_a_process(name, rounds, timeout)) is None:
            continue
        report["models"][name] = row
        print(f"{name}: {row['ratio']:.2f}", flush=True)
        write(RESULTS, json.dumps(report, indent=1) + "\n")
        write(RESULTS.with_suffix(".md"), markdown(report))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} s of CPU")


if __name__ == "__main__":
    typer.run(main)
