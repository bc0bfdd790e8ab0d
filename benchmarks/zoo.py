"""Is it right, and fast, on architectures that nobody tuned for? The models of zoo_models.py beside ONNX Runtime.

    python benchmarks/zoo.py                                  # export what is missing, race all at 1 and 2 threads
    python benchmarks/zoo.py --match swin --match nest --force
    python benchmarks/zoo.py --family transformers --threads 1
    python benchmarks/zoo.py --report-only                    # the page and the plot again from the JSON

Each runtime has a process of its own a model, stopped while the other has its turn (bench.py). With one thread the
ratio is of CPU time, which neighbours on a shared machine disturb least; with more it is of wall time. Compilation is
measured cold, in CPU seconds of all processes, with the largest resident size of any of them. A result is right if it
differs from the framework's by at most 1e-4 of the largest value, or by ten times what ONNX Runtime's differs by.

Results are written after every model, and models that are in the file are not measured again: an interrupted run goes
on where it was.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from bench import HERE, PeerFailed, Racer, grid, machine, write
from zoo_plot import plot

OURS, THEIRS = "tilewright", "ort"
TOLERANCE = 1e-4
#: an error of ours below this many times ONNX Runtime's is rounding
ROUNDING = 10.0
#: ratios above this are cliffs
CLIFF = 1.2
KEPT = ("median_ms", "min_ms", "cpu_ms", "runs", "error", "load_s", "load_cpu_s", "load_peak_mb", "failed")


@dataclass
class Settings:
    """How long to measure; `Racer` reads `burst` and `timeout`."""

    rounds: int
    burst: float
    timeout: float
    models: Path


# ---- measuring ----


def race(path: Path, threads: int, settings: Settings, scratch: Path) -> dict[str, dict]:
    """Both runtimes on one model, in turns: peer -> its summary, or ``{"failed": reason}``."""
    results: dict[str, dict] = {}
    racers: dict[str, Racer] = {}
    try:
        for peer in (OURS, THEIRS):
            cache = scratch / peer
            cache.mkdir(parents=True, exist_ok=True)
            racer = racers[peer] = Racer(peer, path, threads, cache, scratch / f"{peer}.log")
            racer.facts = racer.launch(settings.timeout)
            racer.send(19)  # SIGSTOP
        for number in range(settings.rounds):
            order = list(racers)
            random.Random(number).shuffle(order)
            for peer in order:
                racers[peer].burst(settings)  # type: ignore[arg-type]
    except PeerFailed as e:
        results[peer] = {"failed": str(e).splitlines()[0]}
    finally:
        for racer in racers.values():
            if hasattr(racer, "process"):
                racer.end()
    for name, racer in racers.items():
        if racer.times:
            results.setdefault(name, {k: v for k, v in racer.summary().items() if k in KEPT})
    return results


def compared(found: dict[str, dict], threads: int) -> dict[str, Any]:
    """The two summaries with the ratio of their times."""
    ours, theirs = (found.get(peer, {"failed": "not measured"}) for peer in (OURS, THEIRS))
    result: dict[str, Any] = {"ours": ours, "ort": theirs}
    if "failed" not in ours and "failed" not in theirs:
        key = "cpu_ms" if threads == 1 else "median_ms"
        result["ratio"] = ours[key] / theirs[key]
    return result


def wrong(result: dict) -> str:
    """Why a result of ours does not count; empty if it is right."""
    ours, theirs = result["ours"], result["ort"]
    if "failed" in ours:
        return str(ours["failed"])
    error = float(ours.get("error", math.inf))
    return "" if error <= max(TOLERANCE, ROUNDING * float(theirs.get("error", 0.0))) else f"WRONG by {error:.1e}"


def facts_of(path: Path) -> dict[str, Any]:
    import onnx

    model = onnx.load(path, load_external_data=False)
    exporter = next((p.value for p in model.metadata_props if p.key == "exporter"), "skl2onnx")
    return {"exporter": exporter, "nodes": len(model.graph.node), "megabytes": round(path.stat().st_size / 1e6, 1)}


# ---- the report ----


def mean(ratios: list[float]) -> float:
    """Geometric; nan of none."""
    return statistics.geometric_mean(ratios) if ratios else math.nan


def markdown(report: dict) -> str:
    facts, models = report["machine"], report["models"]
    out = ["# The zoo: architectures that nothing is tuned for", ""]
    out.append(f"{facts['cpu']}, {facts['cores']} cores ({' '.join(facts['features'])}), {facts['memory_gb']} GB,")
    out.append(f"{facts['system']}, Python {facts['python']}, {facts['date']}.")
    out.append(" ".join(f"{peer}: {version}." for peer, version in sorted(report["versions"].items())))
    out.append("Ratios are ours over ONNX Runtime's, smaller is better: of CPU time with one thread, of wall time with")
    out.append("more. Random weights. Made by `python benchmarks/zoo.py`.")
    out += ["", "![ratios](zoo.svg)"]
    for threads in sorted({t for m in models.values() for t in m["threads"]}, key=int):
        out += ["", f"## {threads} thread{'s' if threads != '1' else ''}", "", *summary(models, threads)]
    out += ["", "## Every model", "", *table(models), *not_exported(report)]
    return "\n".join(out) + "\n"


def summary(models: dict[str, dict], threads: str) -> list[str]:
    there = {n: m["threads"][threads] for n, m in models.items() if threads in m["threads"]}
    ratios = {n: r["ratio"] for n, r in there.items() if "ratio" in r and not wrong(r)}
    bad = [f"{n} ({wrong(r)})" for n, r in there.items() if wrong(r)]
    cliffs = sorted((n for n in ratios if ratios[n] > CLIFF), key=lambda n: -ratios[n])
    ours = [r["ours"] for n, r in there.items() if n in ratios]
    lines = [
        f"{len(there)} models, {len(there) - len(bad)} right; geometric mean {mean(list(ratios.values())):.2f}; "
        f"{sum(r > 1 for r in ratios.values())} slower than ONNX Runtime, {len(cliffs)} by more than {CLIFF}"
        + (": " + ", ".join(f"{n} {ratios[n]:.2f}" for n in cliffs) if cliffs else "")
        + "."
    ]
    if bad:
        lines.append(f"Not right: {'; '.join(bad)}.")
    if threads == "1" and ours:
        compile_s = statistics.median(o["load_cpu_s"] for o in ours)
        times = [there[n]["ours"]["load_peak_mb"] / there[n]["ort"]["load_peak_mb"] for n in ratios]
        errors = statistics.median(o["error"] for o in ours)
        lines.append(
            f"Median compilation {compile_s:.1f} CPU seconds (worst {max(o['load_cpu_s'] for o in ours):.0f}), memory "
            f"while compiling {statistics.median(times):.2f} times ONNX Runtime's while loading, error {errors:.1e}."
        )
    rows = [["family", "models", "geometric mean", "worst"]]
    for family in sorted({m["family"] for m in models.values()}):
        own = [r for n, r in ratios.items() if models[n]["family"] == family]
        if own:
            rows.append([family, str(len(own)), f"{mean(own):.2f}", f"{max(own):.2f}"])
    return [*lines, "", *grid(rows)]


def table(models: dict[str, dict]) -> list[str]:
    counts = sorted({t for m in models.values() for t in m["threads"]}, key=int)
    head = ["model", "exporter", "nodes", *[f"ratio, {t}" for t in counts], "ms, 1", "ORT", "compile, CPU s", "error"]
    rows = [head]
    for name in sorted(models, key=lambda n: -_worst(models[n])):
        m = models[name]
        first = next(iter(m["threads"].values()))
        ours, theirs = first["ours"], first["ort"]
        ratios = [f"{r['ratio']:.2f}" if "ratio" in (r := m["threads"].get(t, {})) else "–" for t in counts]
        rest = [f"{p[k]:.3g}" if k in p else "–" for p, k in
                ((ours, "cpu_ms"), (theirs, "cpu_ms"), (ours, "load_cpu_s"))]  # fmt: skip
        rows.append([name, m["exporter"], str(m["nodes"]), *ratios, *rest, wrong(first) or f"{ours['error']:.0e}"])
    return grid(rows)


def _worst(model: dict) -> float:
    """Sorts what failed first, then the worst ratios."""
    return max((math.inf if wrong(r) else r.get("ratio", 0.0)) for r in model["threads"].values())


def not_exported(report: dict) -> list[str]:
    lines = [f"- {name}: {reason}" for name, reason in sorted(report["not_exported"].items())]
    return ["", "Not exported by the framework:", "", *lines] if lines else []


def load_report(path: Path) -> dict:
    """What was measured before, if on this kind of machine."""
    if path.exists():
        report = json.loads(path.read_text())
        if report["machine"]["cpu"] == machine()["cpu"]:
            return report
    return {"machine": machine(), "versions": {}, "models": {}, "not_exported": {}}


def store(report: dict, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps(report, indent=1) + "\n")
    write(path.with_suffix(".md"), markdown(report))
    write(path.with_suffix(".svg"), plot(report["models"]))


# ---- command line ----


def measure(name: str, family: str, counts: list[int], report: dict, settings: Settings) -> str:
    """One model at all thread counts, into the report; a line about it."""
    path = settings.models / f"{name}.onnx"
    entry = report["models"].setdefault(name, {"family": family, "threads": {}})
    entry |= facts_of(path)
    said = []
    scratch = Path(tempfile.mkdtemp(prefix="zoo"))
    try:
        for threads in counts:
            found = race(path, threads, settings, scratch)
            result = entry["threads"][str(threads)] = compared(found, threads)
            said.append(wrong(result) or f"{result.get('ratio', math.nan):.2f}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return ", ".join(said)


def main(
    match: Annotated[list[str] | None, typer.Option(help="only models whose name has this in it")] = None,
    family: Annotated[list[str] | None, typer.Option(help="only this family")] = None,
    threads: Annotated[str, typer.Option(help="thread counts")] = "1,2",
    rounds: Annotated[int, typer.Option(help="turns of each runtime")] = 5,
    burst: Annotated[float, typer.Option(help="seconds of timed runs a turn")] = 0.25,
    timeout: Annotated[float, typer.Option(help="seconds that loading may take")] = 300.0,
    force: Annotated[bool, typer.Option(help="measure again what was measured")] = False,
    there: Annotated[bool, typer.Option("--no-export", help="only models that were exported before")] = False,
    report_only: Annotated[bool, typer.Option(help="write the page again from the JSON")] = False,
    name: Annotated[str, typer.Option(help="name of the result files")] = "zoo",
    models_dir: Annotated[Path, typer.Option(help="folder of the models")] = HERE / "models" / "zoo",
    results: Annotated[Path, typer.Option(help="folder of the result files")] = HERE / "results",
) -> None:
    """Race all models of the zoo against ONNX Runtime and check every result."""
    import zoo_models

    zoo_models.load_families()
    path, settings = results / f"{name}.json", Settings(rounds, burst, timeout, models_dir)
    report, counts = load_report(path), [int(t) for t in threads.split(",")]
    chosen = [n for n, e in zoo_models.REGISTRY.items()
              if (not match or any(m in n for m in match)) and (not family or e.family in family)]  # fmt: skip
    for model in chosen if not report_only else ():
        done = report["models"].get(model, {}).get("threads", {})
        todo = [t for t in counts if force or str(t) not in done]
        if not todo:
            continue
        problem = "" if (models_dir / f"{model}.onnx").exists() else "not exported yet"
        if problem and not there:
            problem = zoo_models.ensure(model, models_dir)
        if problem:
            if not there:
                report["not_exported"][model] = problem
            continue
        report["not_exported"].pop(model, None)
        kind = zoo_models.REGISTRY[model].family
        said = measure(model, kind, todo, report, settings)
        report["versions"] |= _versions()
        print(f"{model}: {said}", flush=True)
        store(report, path)
    store(report, path)
    sys.exit(any(wrong(r) for n in chosen for r in report["models"].get(n, {}).get("threads", {}).values()))


def _versions() -> dict[str, str]:
    import onnxruntime

    import tilewright

    return {"ours": f"tilewright {tilewright.__version__}", "theirs": f"onnxruntime {onnxruntime.__version__}"}


if __name__ == "__main__":
    typer.run(main)
