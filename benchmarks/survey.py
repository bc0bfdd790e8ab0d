"""Where is untuned code slow? Operators at random sizes, beside ONNX Runtime and what this machine can do.

    python benchmarks/survey.py                                      # all families, with 1 and 2 threads
    python benchmarks/survey.py --family softmax --family resize --threads 1
    python benchmarks/survey.py --prepare                            # only make the models and compile them
    python benchmarks/survey.py --quick --seed 7 --name other-sizes  # two of each family at other sizes
    BENCH_BEFORE=../before python benchmarks/survey.py --against tilewright_before_bound --name survey_change

The sizes are drawn from the seed (survey_cases.py). The two runtimes have a process each, which goes from operator to
operator and is stopped while the other has its turn (bench.py); the least time is that of operators.py. What was
measured before with the same seed on the same machine stays in the result files. Results are compared with those of
ONNX Runtime.
"""

from __future__ import annotations

import json
import math
import random
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from bench import HERE, PeerFailed, Racer, grid, machine, write
from operators import ceiling_line
from survey_cases import FAMILIES, Case, cases

from tilewright.runtime.profile import Traffic, least_time
from tilewright.schedule.ceilings import Ceilings, ceilings
from tilewright.targets.base import find

OURS, THEIRS = "tilewright_bound", "ort_bound"
#: the largest difference that rounding explains, relative to the largest result
TOLERANCE = 1e-4
WORST = 10


@dataclass
class Settings:
    """How long to measure, and where things are; `Racer` reads `burst` and `timeout`."""

    rounds: int
    burst: float
    timeout: float
    models: Path
    threads: list[int] = field(default_factory=list)
    against: str = THEIRS


# ---- models ----


def prepare(name: str, case: Case, folder: Path) -> Path:
    """The model of a case with its inputs, and the outputs that ONNX Runtime computes; made once."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)

    def info(label: str, dtype: np.dtype, shape) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(label, helper.np_dtype_to_tensor_dtype(dtype), shape)

    def model(outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
        inputs = [info(k, v.dtype, v.shape) for k, v in case.inputs.items()]
        weights = [numpy_helper.from_array(v, k) for k, v in case.constants.items()]
        graph = helper.make_graph(case.nodes, name, inputs, outputs, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)

    names = list(case.nodes[-1].output)
    first = model([helper.make_empty_tensor_value_info(n) for n in names])
    session = onnxruntime.InferenceSession(first.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run(None, case.inputs)
    np.savez(folder / f"{name}.inputs.npz", **case.inputs)
    np.savez(folder / f"{name}.expected.npz", **dict(zip(names, results, strict=True)))
    onnx.save(model([info(n, r.dtype, r.shape) for n, r in zip(names, results, strict=True)]), path)
    return path


def ideal(case: Case, expected: Path, limits: Ceilings) -> tuple[float, str]:
    """The least time in seconds, and what limits it."""
    written = sum(v.nbytes for v in np.load(expected).values())
    read = sum(v.nbytes for v in (*case.inputs.values(), *case.constants.values()))
    read = min(read, written) if case.part else read
    return least_time(Traffic(far_read=read, far_written=written), case.operations, "f32", read + written, limits)


# ---- measuring ----


class Seat:
    """The process of one peer, which goes from model to model; a new one where it ended."""

    def __init__(self, peer: str, threads: int, settings: Settings) -> None:
        self.peer, self.threads, self.settings = peer, threads, settings
        self.racer: Racer | None = None

    def load(self, path: Path) -> None:
        """Load a model and stop; PeerFailed if that is not possible."""
        timeout, folder = self.settings.timeout, self.settings.models
        try:
            if self.racer is None:
                cache = folder / "caches" / self.peer
                cache.mkdir(parents=True, exist_ok=True)
                self.racer = Racer(self.peer, path, self.threads, cache, folder / f"{self.peer}.log")
                self.racer.facts = self.racer.launch(timeout)
            else:
                racer = self.racer
                racer.send(signal.SIGCONT)
                assert racer.process.stdin is not None
                racer.process.stdin.write(json.dumps({"model": str(path)}) + "\n")
                racer.process.stdin.flush()
                racer.facts, racer.times, racer.cpu = racer.answer(timeout), [], []
        except (PeerFailed, BrokenPipeError) as e:
            self.end()
            raise PeerFailed(str(e)) from e
        self.racer.send(signal.SIGSTOP)

    def end(self) -> None:
        if self.racer is not None:
            self.racer.end()
        self.racer = None


def race(seats: Iterable[Seat], path: Path, settings: Settings) -> dict[str, dict]:
    """Both on one model, in turns: peer -> its summary, or ``{"failed": reason}``."""
    results: dict[str, dict] = {}
    ready: list[Seat] = []
    for seat in seats:
        try:
            seat.load(path)
            ready.append(seat)
        except PeerFailed as e:
            results[seat.peer] = {"failed": str(e).splitlines()[0]}
    for number in range(settings.rounds):
        random.Random(number).shuffle(ready)
        for seat in ready:
            assert seat.racer is not None
            seat.racer.burst(settings)
    for seat in ready:
        assert seat.racer is not None
        results[seat.peer] = seat.racer.summary()
    return results


def measured(case: Case, path: Path, seats: Iterable[Seat], settings: Settings, limits: Ceilings) -> dict:
    """One operator: who took how long, beside the least time."""
    seconds, limit = ideal(case, path.with_suffix(".expected.npz"), limits)
    found = race(seats, path, settings)
    result: dict = {"doc": case.doc, "ideal_ms": 1e3 * seconds, "limit": limit}
    for key, peer in (("ours", OURS), ("ort", settings.against)):
        wanted = ("median_ms", "min_ms", "runs", "error", "version", "failed")
        result[key] = {k: v for k, v in found[peer].items() if k in wanted}
    if "median_ms" in result["ours"]:
        result["of_limit"] = result["ideal_ms"] / result["ours"]["median_ms"]
        if "median_ms" in result["ort"]:
            result["ratio"] = result["ours"]["median_ms"] / result["ort"]["median_ms"]
    return result


def bad(result: dict) -> str:
    """Why a result of ours is not to be used; empty if it is."""
    ours = result["ours"]
    return ours.get("failed") or (f"WRONG by {ours['error']:.1e}" if ours["error"] > TOLERANCE else "")


# ---- the report ----


def markdown(report: dict) -> str:
    facts, out = report["machine"], ["# Operators at random sizes", ""]
    out.append(f"{facts['cpu']}, {facts['cores']} cores ({' '.join(facts['features'])}), {facts['memory_gb']} GB,")
    out.append(
        f"{facts['system']}, Python {facts['python']}, {facts['date']}. {', '.join(report['versions'].values())}."
    )
    theirs = theirs_of(report)
    out.append(f"Medians of interleaved rounds, untuned; ratios are ours over {theirs}'s, smaller is better; the")
    out.append("share is of the least time by the machine's ceilings. Single operators take and give channels first.")
    out.append(f"Made by `python benchmarks/survey.py --seed {report['seed']}`.")
    for threads, ceiling in sorted(report["ceilings"].items()):
        found = {n: by[threads] for n, by in report["results"].items() if threads in by}
        out += ["", f"## {threads} thread{'s' if threads != '1' else ''}", "", ceiling_line(ceiling), ""]
        out += [*summary(found, theirs), "", "Every operator:", "", *table(found, theirs)]
    return "\n".join(out) + "\n"


def mean(ratios: Iterable[float]) -> float:
    """Geometric."""
    logs = [math.log(r) for r in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def theirs_of(report: dict) -> str:
    """Who is raced against, in words."""
    return "ONNX Runtime" if report.get("against", THEIRS) == THEIRS else "the tree before"


def summary(found: dict[str, dict], theirs: str = "ONNX Runtime") -> list[str]:
    ratios = {n: r["ratio"] for n, r in found.items() if "ratio" in r}
    slower = sum(r > 1 for r in ratios.values())
    lines = [f"{len(ratios)} operators, geometric mean {mean(ratios.values()):.2f}; {slower} slower than theirs.", ""]
    rows = [["family", "operators", "geometric mean", "worst", "median share of the limit"]]
    for family in FAMILIES:
        own = [n for n in ratios if n.rpartition("_")[0] == family]
        if own:
            shares = np.median([found[n]["of_limit"] for n in own])
            worst = max(ratios[n] for n in own)
            rows.append([family, str(len(own)), f"{mean(ratios[n] for n in own):.2f}", f"{worst:.2f}", f"{shares:.0%}"])
    lines += [*grid(rows), "", f"The worst {WORST}:", ""]
    return [*lines, *table(dict(sorted(found.items(), key=_badness)[:WORST]), theirs)]


def _badness(item: tuple[str, dict]) -> float:
    """Sorts what failed or is wrong first, then the worst ratios."""
    result = item[1]
    return -math.inf if bad(result) else -result.get("ratio", 0.0)


def table(found: dict[str, dict], theirs: str = "ONNX Runtime") -> list[str]:
    rows = [["operator", "sizes", "ours, ms", f"{theirs}, ms", "ratio", "share", "limit"]]
    for name, r in sorted(found.items(), key=_badness):
        ours = bad(r) or f"{r['ours']['median_ms']:.4g}"
        theirs = f"{r['ort']['median_ms']:.4g}" if "median_ms" in r["ort"] else "–"
        ratio = f"{r['ratio']:.2f}" if "ratio" in r else "–"
        share = f"{r['of_limit']:.0%}" if "of_limit" in r else "–"
        rows.append([name, r["doc"], ours, theirs, ratio, share, r["limit"]])
    return grid(rows)


def load_report(path: Path, seed: int, against: str = THEIRS) -> dict:
    """What was measured before, if with the same sizes on this machine."""
    if path.exists():
        report = json.loads(path.read_text())
        same = report.get("against", THEIRS) == against and report["machine"]["cpu"] == machine()["cpu"]
        if same and report["seed"] == seed:
            return report
    return {"machine": machine(), "versions": {}, "against": against, "seed": seed, "ceilings": {}, "results": {}}


# ---- command line ----


def compile_all(chosen: dict[str, Case], settings: Settings) -> bool:
    """Load every operator once with ours, so that a measurement starts from caches; whether all are right."""
    right = True
    for threads in settings.threads:
        seat = Seat(OURS, threads, settings)
        for name in chosen:
            try:
                seat.load(settings.models / f"{name}.onnx")
                assert seat.racer is not None
                said = bad({"ours": seat.racer.facts})
            except PeerFailed as e:
                said = str(e)
            if said:
                print(f"{name}, {threads} threads: {said}", flush=True)
            right &= not said
        seat.end()
    return right


def survey(chosen: dict[str, Case], settings: Settings, path: Path, seed: int) -> bool:
    """Measure, and write both files after each operator; whether all are right."""
    report, right = load_report(path, seed, settings.against), True
    for threads in settings.threads:
        limits = ceilings(find("cpu"), threads)
        report["ceilings"][str(threads)] = limits.to_json()
        seats = [Seat(peer, threads, settings) for peer in (OURS, settings.against)]
        try:
            for name, case in chosen.items():
                r = measured(case, settings.models / f"{name}.onnx", seats, settings, limits)
                report["results"].setdefault(name, {})[str(threads)] = r
                report["versions"] |= {k: r[k].pop("version") for k in ("ours", "ort") if "version" in r[k]}
                right &= not bad(r)
                said = bad(r) or f"{r['ours']['median_ms']:.4g} ms, {r['of_limit']:.0%} of {r['limit']}"
                print(f"{name}, {threads} threads: {said}, ratio {r.get('ratio', math.nan):.2f}", flush=True)
        finally:
            for seat in seats:
                seat.end()
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, json.dumps(report, indent=1) + "\n")
            write(path.with_suffix(".md"), markdown(report))
    return right


def main(
    family: Annotated[list[str] | None, typer.Option(help="one of the families; several times for several")] = None,
    only: Annotated[str, typer.Option(help="names of operators, separated by commas")] = "",
    threads: Annotated[str, typer.Option(help="thread counts")] = "1,2",
    seed: Annotated[int, typer.Option(help="of the sizes")] = 1,
    quick: Annotated[bool, typer.Option(help="two of each family")] = False,
    rounds: Annotated[int, typer.Option(help="turns of each runtime")] = 5,
    burst: Annotated[float, typer.Option(help="seconds of timed runs a turn")] = 0.04,
    timeout: Annotated[float, typer.Option(help="seconds that loading may take")] = 120.0,
    prepare_only: Annotated[bool, typer.Option("--prepare", help="make and compile the models, and stop")] = False,
    name: Annotated[str, typer.Option(help="name of the result files")] = "survey",
    against: Annotated[str, typer.Option(help="the peer that ratios are to")] = THEIRS,
    models_dir: Annotated[Path, typer.Option(help="folder of the models")] = HERE / "models" / "survey",
    results: Annotated[Path, typer.Option(help="folder of the result files")] = HERE / "results",
) -> None:
    """Measure the default schedules at sizes drawn from a seed, beside ONNX Runtime and the ceilings of the machine."""
    unknown = [f for f in family or [] if f not in FAMILIES]
    if unknown:
        raise typer.BadParameter(f"no family {', '.join(unknown)}; there are: {', '.join(FAMILIES)}")
    chosen = cases(family or list(FAMILIES), seed, quick)
    chosen = {n: c for n, c in chosen.items() if not only or n in only.split(",")}
    counts = [int(t) for t in threads.split(",")]
    settings = Settings(rounds, burst, timeout, models_dir / str(seed), counts, against)
    for label, case in chosen.items():
        prepare(label, case, settings.models)
    if prepare_only:
        right = compile_all(chosen, settings)
    else:
        right = survey(chosen, settings, results / f"{name}.json", seed)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    typer.run(main)
