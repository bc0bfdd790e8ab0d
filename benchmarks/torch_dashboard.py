"""PyTorch modules of many architectures: eager, torch.compile with its own backend, and ours.

    python benchmarks/torch_dashboard.py                            # all of timm and transformers; most of a day
    python benchmarks/torch_dashboard.py --match swin --threads 1
    python benchmarks/torch_dashboard.py --sample 10 --seed 3       # so many architectures, drawn
    python benchmarks/torch_dashboard.py --peers eager,tilewright,backend
    python benchmarks/torch_dashboard.py --report-only              # the page and the plot again from the JSON

The architectures are those of zoo_models.py, with random weights. A peer has a process of its own, stopped while others
have their turns (bench.py). A cold compilation begins with empty caches and ends after the first run; the warm one is
that of a second process. Wall seconds, and the largest resident size of any process. Speedups are of median times over
eager's; with one thread, of CPU time, which neighbours disturb least. A result is right if it differs from float64's by
at most 1e-4 of the largest value, or by ten times what eager's differs by.

Results are written after every model, and what is in the file is not measured again.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from bench import HERE, PeerFailed, Racer, grid, machine, write
from zoo_plot import plot

FAMILIES = ("timm", "transformers")
BASELINE, THEIRS, OURS = "eager", "inductor", "tilewright"
PEERS = (BASELINE, THEIRS, OURS)
TOLERANCE, ROUNDING = 1e-4, 10.0
#: what is kept of a peer's summary
KEPT = ("median_ms", "cpu_ms", "runs", "error", "cold_s", "warm_s", "peak_mb", "version")


@dataclass
class Settings:
    """How long to measure; `Racer` reads `burst` and `timeout`."""

    rounds: int
    burst: float
    timeout: float
    peers: tuple[str, ...]


# ---- measuring ----


def loaded(peer: str, path: Path, threads: int, scratch: Path, settings: Settings) -> Racer:
    """A peer that has compiled twice, with an empty cache and with a full one, and waits, stopped."""
    cache = scratch / peer
    cache.mkdir()
    racer = Racer(f"module_{peer}", path, threads, cache, scratch / f"{peer}.log")
    try:
        cold = racer.launch(settings.timeout, "--once")
        racer.end()
        racer.facts = racer.launch(settings.timeout)
    except PeerFailed:
        racer.end()
        raise
    racer.send(19)  # SIGSTOP
    for kind, facts in (("cold_s", cold), ("warm_s", dict(racer.facts))):
        racer.facts[kind] = facts["load_s"] + facts["first_run_s"]
    racer.facts["peak_mb"] = max(cold["peak_mb"], cold["load_peak_mb"])
    return racer


def race(path: Path, threads: int, settings: Settings) -> dict[str, dict[str, Any]]:
    """All peers on one module, in turns: peer -> its summary, or ``{"failed": reason}``."""
    found: dict[str, dict[str, Any]] = {}
    racers: dict[str, Racer] = {}
    scratch = Path(tempfile.mkdtemp(prefix="dashboard"))
    try:
        for peer in settings.peers:
            try:
                racers[peer] = loaded(peer, path, threads, scratch, settings)
            except PeerFailed as e:
                found[peer] = {"failed": str(e).splitlines()[0][:300]}
        for number in range(settings.rounds):
            order = list(racers)
            random.Random(number).shuffle(order)
            for peer in order:
                try:
                    racers[peer].burst(settings)  # type: ignore[arg-type]
                except PeerFailed as e:
                    found[peer] = {"failed": str(e).splitlines()[0][:300]}
                    racers.pop(peer).end()
        for peer, racer in racers.items():
            found[peer] = {k: v for k, v in racer.summary().items() if k in KEPT}
    finally:
        for racer in racers.values():
            racer.end()
        shutil.rmtree(scratch, ignore_errors=True)
    return found


def wrong(found: Mapping[str, Mapping[str, Any]], peer: str) -> str:
    """Why a result does not count; empty if it is right."""
    one = found.get(peer, {"failed": "not measured"})
    if "failed" in one:
        return str(one["failed"])
    allowed = max(TOLERANCE, ROUNDING * float(found.get(BASELINE, {}).get("error", 0.0)))
    return "" if one["error"] <= allowed else f"WRONG by {one['error']:.1e}"


def ratio(found: Mapping[str, Mapping[str, Any]], peer: str, to: str, threads: str) -> float | None:
    """The time of one peer over that of another; None unless both are right."""
    if wrong(found, peer) or wrong(found, to):
        return None
    key = "cpu_ms" if threads == "1" else "median_ms"
    return float(found[peer][key]) / float(found[to][key])


# ---- the report ----


def mean(ratios: Iterable[float]) -> float:
    """Geometric; nan of none."""
    known = list(ratios)
    return statistics.geometric_mean(known) if known else math.nan


def summary(models: Mapping[str, Any], threads: str, peers: Iterable[str]) -> list[str]:
    """A line a peer: pass rate, speedup over eager, time over inductor's, compilation, memory, error."""
    there = {n: m["threads"][threads] for n, m in models.items() if threads in m["threads"]}
    heads = (
        "peer, right, speedup over eager, time / inductor (worst), compile cold (s), warm, peak memory / eager, error"
    )
    rows = [heads.split(", ")]
    for peer in peers:
        right = [f for f in there.values() if not wrong(f, peer)]

        def middle(key: str, right: list[dict] = right, peer: str = peer) -> float:
            return statistics.median([f[peer][key] for f in right]) if right else math.nan

        over = [r for f in right if (r := ratio(f, peer, BASELINE, threads))]
        beside = [r for f in right if (r := ratio(f, peer, THEIRS, threads))]
        memory = [f[peer]["peak_mb"] / f[BASELINE]["peak_mb"] for f in right if not wrong(f, BASELINE)]
        rows.append(
            [
                peer,
                f"{len(right)} of {len(there)}",
                f"{1 / mean(over):.2f}",
                f"{mean(beside):.2f} ({max(beside, default=math.nan):.2f})",
                f"{middle('cold_s'):.1f}",
                f"{middle('warm_s'):.1f}",
                f"{statistics.median(memory) if memory else math.nan:.2f}",
                f"{middle('error'):.0e}",
            ]
        )
    return grid(rows)


def table(models: Mapping[str, Any], peers: list[str]) -> list[str]:
    """Every model: times at the smallest thread count, ratios at all, the slowest beside inductor first."""
    counts = sorted({t for m in models.values() for t in m["threads"]}, key=int)
    others = [p for p in peers if p not in (BASELINE, THEIRS)]
    heads = [f"{p} / inductor, {t}" for p in others for t in counts]
    rows = [["model", "eager (ms)", *heads, *(f"{p}: compile (s)" for p in peers if p != BASELINE), "error"]]

    def worst(name: str) -> float:
        ratios = [ratio(f, p, THEIRS, t) for t, f in models[name]["threads"].items() for p in others]
        return -max((math.inf if r is None else r for r in ratios), default=0.0)

    for name in sorted(models, key=worst):
        by_count = models[name]["threads"]
        first = next(iter(by_count.values()))
        ratios = [ratio(by_count.get(t, {}), p, THEIRS, t) for p in others for t in counts]
        times = [first.get(p, {}).get("cold_s") for p in peers if p != BASELINE]
        errors = [wrong(first, p) or f"{first[p]['error']:.0e}" for p in others]
        eager = first.get(BASELINE, {}).get("median_ms")
        rows.append(
            [
                name,
                _number(eager, ".3g"),
                *(_number(r, ".2f") for r in ratios),
                *(_number(s, ".1f") for s in times),
                ", ".join(errors),
            ]
        )
    return grid(rows)


def _number(x: float | None, form: str) -> str:
    return "–" if x is None else format(x, form)


def markdown(report: Mapping[str, Any]) -> str:
    facts, models = report["machine"], report["models"]
    peers = [p for p in (*PEERS, "backend") if any(p in f for m in models.values() for f in m["threads"].values())]
    versions = ". ".join(f"{p}: {v}" for p, v in report["versions"].items())
    out = [
        "# PyTorch modules: eager, torch.compile, and ours",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['system']}, {facts['date']}.",
        f"{versions}. Random weights. Made by `python benchmarks/torch_dashboard.py`.",
        "",
        f"![time relative to inductor's]({report['name']}.svg)",
    ]
    for threads in sorted({t for m in models.values() for t in m["threads"]}, key=int):
        out += ["", f"## {threads} thread{'s' if threads != '1' else ''}", "", *summary(models, threads, peers)]
    return "\n".join([*out, "", "## Every model", "", *table(models, peers)]) + "\n"


def picture(models: Mapping[str, Any]) -> str:
    points = {
        n: {
            "family": m["family"],
            "threads": {t: {"ratio": ratio(f, OURS, THEIRS, t)} for t, f in m["threads"].items()},
        }
        for n, m in models.items()
    }
    return plot(points, "inductor's")


def store(report: dict[str, Any], results: Path) -> None:
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{report['name']}.json"
    write(path, json.dumps(report, indent=1) + "\n")
    write(path.with_suffix(".md"), markdown(report))
    write(path.with_suffix(".svg"), picture(report["models"]))


def known(path: Path, name: str) -> dict[str, Any]:
    """What was measured before, if on this kind of machine."""
    if path.exists():
        report: dict[str, Any] = json.loads(path.read_text())
        if report["machine"]["cpu"] == machine()["cpu"]:
            return report
    return {"name": name, "machine": machine(), "versions": {}, "models": {}}


# ---- command line ----


def prepared(name: str, folder: Path, timeout: float) -> str:
    """Write the inputs and results of a module, in a process of its own; why there are none, or nothing."""
    command = [sys.executable, str(HERE / "modules.py"), name, str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"no module after {timeout:.0f} s"
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1][:300] if lines else f"exit {done.returncode}")


def chosen(match: list[str] | None, sample: int, seed: int, registered: Callable[[], Mapping[str, Any]]) -> list[str]:
    names = [n for n, e in registered().items() if e.family in FAMILIES and (not match or any(m in n for m in match))]
    if not names:
        raise typer.BadParameter(f"no architecture has {' or '.join(match or [])} in its name")
    return sorted(random.Random(seed).sample(names, min(sample, len(names)))) if sample else names


def main(
    match: Annotated[list[str] | None, typer.Option(help="only models whose name has this in it")] = None,
    sample: Annotated[int, typer.Option(help="so many of them, drawn; 0: all")] = 0,
    seed: Annotated[int, typer.Option(help="of the draw")] = 0,
    threads: Annotated[str, typer.Option(help="thread counts")] = "1,2",
    peers: Annotated[str, typer.Option(help="of eager, inductor, tilewright, backend")] = ",".join(PEERS),
    rounds: Annotated[int, typer.Option(help="turns of each peer")] = 5,
    burst: Annotated[float, typer.Option(help="seconds of timed runs a turn")] = 0.25,
    timeout: Annotated[float, typer.Option(help="seconds that compiling may take")] = 900.0,
    force: Annotated[bool, typer.Option(help="measure again what was measured")] = False,
    report_only: Annotated[bool, typer.Option(help="write the page again from the JSON")] = False,
    name: Annotated[str, typer.Option(help="name of the result files")] = "torch_dashboard",
    results: Annotated[Path, typer.Option(help="folder of the result files")] = HERE / "results",
) -> None:
    """Race PyTorch modules of many architectures: eager, torch.compile, and ours."""
    import zoo_models

    def registered() -> Mapping[str, Any]:
        zoo_models.load_families()
        return zoo_models.REGISTRY

    report = known(results / f"{name}.json", name)
    settings = Settings(rounds, burst, timeout, tuple(peers.split(",")))
    for model in chosen(match, sample, seed, registered) if not report_only else ():
        entry = report["models"].setdefault(model, {"family": registered()[model].family, "threads": {}})
        todo = [t for t in threads.split(",") if force or not set(settings.peers) <= set(entry["threads"].get(t, {}))]
        folder = Path(tempfile.mkdtemp(prefix="modules"))
        try:
            problem = prepared(model, folder, timeout) if todo else ""
            for count in todo:
                failed = {p: {"failed": problem} for p in settings.peers}
                found = failed if problem else race(folder / f"{model}.onnx", int(count), settings)
                entry["threads"][count] = {**entry["threads"].get(count, {}), **found}
                report["versions"] |= {p: f["version"] for p, f in found.items() if "version" in f}
                said = [
                    f"{p} {wrong(found, p) or format(found[p]['median_ms'], '.3g') + ' ms'}" for p in settings.peers
                ]
                print(f"{model}, {count}: {', '.join(said)}", flush=True)
                store(report, results)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    store(report, results)


if __name__ == "__main__":
    typer.run(main)
