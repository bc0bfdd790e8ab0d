"""How well layers use a chip's array, by its timing simulator: as planned, and tuned.

    python benchmarks/chips.py                                     # systolic32
    python benchmarks/chips.py --target systolic32:array=16 --name chips_16
    python benchmarks/chips.py --part networks                     # the rest of the page stays as it is
    python benchmarks/chips.py --part attention

The layers are a product of 512 x 512 x 512, the convolutions of ResNet-18 at 224 x 224, and some drawn at random, for
which nothing was chosen. The network is MobileNetV2 at 224 x 224, quantized, beside a host; so are blocks of attention,
on the chips of the package and two of a file. Cycles are simulated: they are the same on every machine.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from dataclasses import asdict, dataclass
from enum import Enum
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from bench import HERE, grid, machine, write
from quantized_networks import attention, mobilenet_v2

from tilewright import te
from tilewright.driver.chip_layers import chip_layers
from tilewright.driver.compiler import compile_state
from tilewright.driver.kernel_key import kernel_key
from tilewright.driver.tuning_database import Database
from tilewright.schedule.work import work_of as operations
from tilewright.support.options import Options
from tilewright.targets.accelerator.binary import Formats
from tilewright.targets.accelerator.costs import step_cycles
from tilewright.targets.accelerator.layers import LayerRun, work_of
from tilewright.targets.accelerator.layers import peak as highest
from tilewright.targets.accelerator.layouts import TilePlan
from tilewright.targets.accelerator.match import InstructionSelection, select
from tilewright.targets.accelerator.plan import Planned, joins, planned
from tilewright.targets.accelerator.stages import OnChip
from tilewright.targets.accelerator.tiles import TiledNest
from tilewright.targets.base import find
from tilewright.tensor.kernel import Kernel
from tilewright.tune.chip_space import CorrectedEstimate
from tilewright.tune.chip_tuner import PlanTuner
from tilewright.tune.measure_design import measured
from tilewright.tune.tasks import Task

#: (image, channels, results, window, stride) of ResNet-18's convolutions, each once
RESNET18 = (
    *((224, 3, 64, 7, 2), (56, 64, 64, 3, 1), (56, 64, 128, 3, 2), (56, 64, 128, 1, 2), (28, 128, 128, 3, 1)),
    *((28, 128, 256, 3, 2), (28, 128, 256, 1, 2), (14, 256, 256, 3, 1), (14, 256, 512, 3, 2), (14, 256, 512, 1, 2)),
    (7, 512, 512, 3, 1),
)
REQUANTIZED = (
    "trunci[i8](minsi(maxsi(shrsi(addi(shrsi(mulhsi(addi({sum}, p2[o1]), p3[o1]), p4[o1]), i32(-9)), i32(1)), "
    "i32(-128)), i32(127)))"
)


@dataclass(frozen=True)
class Layer:
    """A layer of bytes: its name, its kernel, and whether it is a convolution with a window of more than one."""

    name: str
    kernel: Kernel
    window: bool = False


def product(m: int, k: int, n: int) -> Layer:
    """p0 [m, k] times p1 [k, n], requantized."""
    text = f"""
def product(p0: i8[{m}, {k}], p1: i8[{k}, {n}], p2: i32[{n}], p3: i32[{n}], p4: i32[{n}], p5: out(i8[{m}, {n}])):
    t = local(i32[{m}, {n}])
    for i in serial({m}):
        for o in serial({n}):
            for r in serial({k}):
                s0: t[i, o] = reduce(addi(t[i, o], muli(extsi[i32](p0[i, r]), extsi[i32](p1[r, o]))), \
init=i32(0), over=(r,))
    for i1 in serial({m}):
        for o1 in serial({n}):
            s1: p5[i1, o1] = {REQUANTIZED.format(sum="t[i1, o1]")}
"""
    return Layer(f"{m} x {k} x {n}", te.from_nest(text, constants=["p1", "p2", "p3", "p4"]))


def convolution(size: int, c: int, o: int, k: int, s: int) -> Layer:
    """An image [size, size, c] with its border already there, windows of k x k every s pixels, o results."""
    edge = size + 2 * (k // 2)
    out = (edge - k) // s + 1
    text = f"""
def conv(p0: i8[{edge}, {edge * c}], p1: i8[{k}, {k * c}, {o}], p2: i32[{o}], p3: i32[{o}], p4: i32[{o}], \
p5: out(i8[{out}, {out}, {o}])):
    t = local(i32[{out}, {out}, {o}])
    for y in serial({out}):
        for x in serial({out}):
            for o in serial({o}):
                for r in serial({k}):
                    for w in serial({k * c}):
                        s0: t[y, x, o] = reduce(addi(t[y, x, o], muli(extsi[i32](p0[y * {s} + r, x * {s * c} + w]), \
extsi[i32](p1[r, w, o]))), init=i32(0), over=(r, w))
    for y1 in serial({out}):
        for x1 in serial({out}):
            for o1 in serial({o}):
                s1: p5[y1, x1, o1] = {REQUANTIZED.format(sum="t[y1, x1, o1]")}
"""
    name = f"{size} x {size} x {c}, {k}x{k}/{s}, {o}"
    return Layer(name, te.from_nest(text, constants=["p1", "p2", "p3", "p4"]), k > 1)


def drawn(count: int, seed: int) -> list[Layer]:
    """Layers of random sizes."""
    rng = np.random.default_rng(seed)
    layers = []
    for n in range(count):
        if n % 3 == 2:
            layers.append(product(*(int(x) for x in rng.integers(1, 700, 3))))
            continue
        k = int(rng.choice([1, 3, 3, 5]))
        size, c, o = (int(rng.integers(low, high)) for low, high in ((k, 64), (1, 300), (1, 300)))
        layers.append(convolution(size, c, o, k, int(rng.choice([1, 1, 2]))))
    return layers


def padded(s: InstructionSelection, formats: Formats) -> int:
    """Cycles that the array needs however the layer is cut: instructions are not full where channels or columns are
    left over, and take their weights in whatever number of rows they have."""
    plans = (TilePlan(), *(TilePlan(joined=j) for j in joins(s)))
    return min(round(step_cycles(TiledNest(s, formats.listing, p), s.steps[0])) for p in plans)


def said(p: Planned, formats: Formats, work: int) -> dict[str, Any]:
    """What is kept of a planned layer."""
    run = LayerRun.of("", (), p, formats, work)
    return {
        "cycles": run.cycles,
        "use": run.utilization,
        "engines": {e.name: e.busy for e in run.engines},
        "floors": {e.name: e.floor for e in run.engines if e.floor},
        "bound": run.bound,
        "plan": str(p.plan),
    }


def measure(layer: Layer, target: Any, trials: int) -> dict[str, Any]:
    """A layer as planned, and as tuned."""
    formats = target.coprocessor.formats
    s = select(layer.kernel, formats.listing)
    work = work_of(s)
    options = Options.of(target=target.name, threads=1)
    with TemporaryDirectory() as folder:
        begin = time.process_time()
        task = Task(layer.kernel, kernel_key(layer.kernel), None, 1, 1.0)
        tuner = PlanTuner([task], target, options, CorrectedEstimate(), Database(Path(folder) / "tuned.sqlite"))
        tuner.run(trials)
        tuner.check()
        seconds = time.process_time() - begin
    best: Any = tuner.incumbents[0]
    default: Any = tuner.searches[0].space.default
    return {
        "layer": layer.name,
        "window": layer.window,
        "padded": padded(s, formats),
        "planned": said(planned(s, formats, default.plan), formats, work),
        "tuned": said(planned(s, formats, best.plan), formats, work),
        "trials": tuner.report.tasks[0].trials,
        "seconds": seconds,
    }


def floor(x: dict[str, Any]) -> int:
    """The least cycles of a layer that are known: of the array as it is filled, or of a copy engine."""
    return max(x["padded"], *(n for e, n in x["tuned"]["floors"].items() if e in ("load", "store")))


# ---- networks --------------------------------------------------------------------------------------------------------


def network(name: str, model: Any, target: str) -> dict[str, Any]:
    """A model on a host with the chip: its kernels on the chip as they are planned, what is left to the host, sums."""
    how: dict[str, Any] = {"target": f"cpu+{target}", "threads": 1, "cache": False, "tuned": False}
    state, _ = compile_state(model, stop_after="schedule", **how)
    lowered, _ = compile_state(model, stop_after="lower", **how)
    formats = state.target.coprocessor.formats
    calls = Counter(op.attributes["callee"].value for op in state.module.operations() if op.name == "func.call")
    chip, host = [], []
    for kernel, times in calls.items():
        made = state.schedules[kernel]
        if isinstance(made, OnChip):
            chip.append({"calls": times, **on_chip(state.kernels[kernel], made.planned, formats)})
        else:
            seconds = operations(state.kernels[kernel], made.schedule.nest()).operations / 2 / formats.chip.host_rate
            host.append({"calls": times, "kernel": kernel.rpartition("_")[0], "seconds": seconds})
    return {"network": name, "chip": chip, "host": host, "whole": asdict(measured(lowered, f"cpu+{target}"))}


def on_chip(kernel: Kernel, planned: Planned, formats: Formats) -> dict[str, Any]:
    """A kernel of a network: what it does, its cycles, its use of the whole array."""
    s = select(kernel, formats.listing)
    first = s.steps[0]
    rows, columns = (prod(s.extents[v] for v in first.dims[d]) for d in ("m", "n"))
    terms = prod(s.extents[v] for v in first.sums)
    return {
        "instruction": first.instruction.name,
        "shape": f"{rows} x {terms} x {columns}",
        "cycles": planned.timing.cycles,
        "use": work_of(s) / (highest(formats.listing)[1] * planned.timing.cycles),
        "slowest": max(planned.timing.engines, key=lambda e: planned.timing.engines[e].busy),
    }


def networks(found: list[dict[str, Any]]) -> list[str]:
    lines = []
    for x in found:
        calls = Counter[tuple[str, ...]]()
        for k in x["chip"]:
            row = f"{k['instruction']} {k['shape']}", f"{k['cycles']:,}", f"{k['use']:.1%}", k["slowest"]
            calls[row] += k["calls"]
        rows = [["instruction, rows x terms x columns", "cycles of a call", "use of the array", "busiest", "calls"]]
        rows += [[*row, str(n)] for row, n in calls.items()]
        kinds: dict[str, tuple[int, float]] = {}
        for k in x["host"]:
            n, seconds = kinds.get(k["kernel"], (0, 0.0))
            kinds[k["kernel"]] = n + k["calls"], seconds + k["calls"] * k["seconds"]
        left = [["left to the host", "calls", "ms"]]
        left += [[k, str(n), f"{1e3 * s:.3f}"] for k, (n, s) in sorted(kinds.items(), key=lambda k: -k[1][1])]
        lines += [f"## {x['network']}", "", total(x["whole"]), "", *grid(rows), "", *grid(left), ""]
    return lines


def total(w: dict[str, Any]) -> str:
    """A network in two sentences."""
    on_chip = 1e3 * (w["seconds"] - w["host"])
    return (
        f"{w['calls']} calls of kernels on the chip: {w['cycles']:,} cycles, {on_chip:.3f} ms, {w['work'] / 1e6:,.0f} "
        f"million multiply-adds, {w['use']:.1%} of what the array could do. {w['left']} calls on the host: "
        f"{1e3 * w['host']:.3f} ms, if it does as many multiply-adds in a second as the description says."
    )


# ---- attention ----------------------------------------------------------------------------------------------------

#: chips, and (tokens, channels, heads) of blocks of attention
CHIPS = ("systolic32", "outer4", f"{HERE / 'two_chips.py'}:gem", f"{HERE / 'two_chips.py'}:dsp")
BLOCKS = ((128, 256, 4), (64, 64, 4))


def block(chip: str, size: tuple[int, int, int]) -> dict[str, Any]:
    """A quantized block of attention on a host with a chip: the kernels that the chip runs, their cycles and floors."""
    tokens, channels, heads = size
    found = chip_layers(attention(*size), f"cpu+{chip}", cache=False, tuned=False, threads=1)
    runs = [{"kernel": r.name.rpartition("_")[0], "cycles": r.cycles, "floor": r.floor} for r in found.runs]
    name = f"{tokens} tokens, {channels} channels, {heads} heads"
    return {"chip": found.formats.chip.name, "block": name, "kernels": runs}


def blocks(found: list[dict[str, Any]]) -> list[str]:
    rows = [["block", "chip", "kernels", "cycles", "floors", "floors / cycles", "least of a kernel"]]
    for x in found:
        cycles, floors = (sum(k[n] for k in x["kernels"]) for n in ("cycles", "floor"))
        least = min(x["kernels"], key=lambda k: k["floor"] / k["cycles"])
        share = f"{least['floor'] / least['cycles']:.0%} ({least['kernel'].replace('_', ' ')})"
        counts = str(len(x["kernels"])), f"{cycles:,}", f"{floors:,}", f"{floors / cycles:.0%}"
        rows.append([x["block"], x["chip"], *counts, share])
    text = (
        "Four projections, scores, softmax and context, quantized, beside a host. A floor is what the engine of a "
        "kernel takes that has most to do, at its full rate, with every byte moved once. Chips of bytes run all six "
        "products; outer4, of floats, scores, softmax and context. The host does the rest. Heads of 16 fill half of an "
        "array of 32."
    )
    return ["## Quantized attention", "", text, "", *grid(rows), ""]


# ---- the page --------------------------------------------------------------------------------------------------------


def table(layers: list[dict[str, Any]]) -> list[str]:
    rows = [["layer", "floor: array", "filled", "load", "planned", "use", "tuned", "use", "over the floor", "bound"]]
    for x in layers:
        a, b = x["planned"], x["tuned"]
        rows.append(
            [
                x["layer"],
                f"{b['floors']['array']:,}",
                f"{x['padded']:,}",
                f"{b['floors']['load']:,}",
                f"{a['cycles']:,}",
                f"{a['use']:.1%}",
                f"{b['cycles']:,}",
                f"{b['use']:.1%}",
                f"{b['cycles'] / floor(x) - 1:.1%}",
                b["bound"],
            ]
        )
    return grid(rows)


def markdown(report: dict[str, Any]) -> str:
    named, random = report["layers"], report["drawn"]
    every = [*named, *random]
    ratio = [x["planned"]["cycles"] / x["tuned"]["cycles"] for x in every]
    over = [x["tuned"]["cycles"] / floor(x) for x in every]
    worst = sorted(random, key=lambda x: x["tuned"]["use"])
    use = {k: statistics.median(x[k]["use"] for x in random) for k in ("planned", "tuned")}
    seconds = sum(x["seconds"] for x in every)
    return "\n".join(
        [
            f"{report['target']}, cycles by its timing simulator, as planned and after {report['trials']} trials of "
            "the tuner for each layer. Floors: what the array takes with all of its multipliers at work; what it takes "
            "as they are filled, where channels and columns are left over and weights come in for few rows; and what "
            "the bus takes to bring every byte once. No plan is below the last two.",
            "",
            "## Layers",
            "",
            *table(named),
            "",
            f"## {len(random)} layers drawn at random, worst use first",
            "",
            *table(worst),
            "",
            f"Tuning gains {statistics.geometric_mean(ratio) - 1:.1%} (at most {max(ratio) - 1:.0%}). Tuned layers are "
            f"{statistics.geometric_mean(over) - 1:.1%} over their floors, at most {max(over) - 1:.0%}. Median use of "
            f"the drawn layers: {use['planned']:.1%} planned, {use['tuned']:.1%} tuned. Tuning took {seconds:.0f} s of "
            "one processor in all.",
            "",
            *networks(report["networks"]),
            *blocks(report["attention"]),
        ]
    )


class Part(str, Enum):
    """What is measured; the other part is taken from the result files."""

    all = "all"
    layers = "layers"
    networks = "networks"
    attention = "attention"


def main(
    target: Annotated[str, typer.Option(help="The chip.")] = "systolic32",
    trials: Annotated[int, typer.Option(help="Plans that the tuner tries for each layer.")] = 32,
    count: Annotated[int, typer.Option(help="Layers drawn at random.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the layers drawn at random.")] = 1,
    part: Annotated[Part, typer.Option(help="What is measured; the rest is kept.")] = Part.all,
    name: Annotated[str, typer.Option(help="Name of the result files.")] = "chips",
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = HERE / "results",
) -> None:
    """Plan and tune layers for a chip, plan networks, and count their cycles."""
    chip = find(target)
    report: dict[str, Any] = {"machine": machine(), "target": target, "trials": trials}
    if part is not Part.all:
        report = json.loads((results / f"{name}.json").read_text())
    if part in (Part.all, Part.layers):
        report |= {"layers": [], "drawn": [], "trials": trials}
        for where, layers in (
            ("layers", [product(512, 512, 512), *(convolution(*x) for x in RESNET18)]),
            ("drawn", drawn(count, seed)),
        ):
            for layer in layers:
                report[where].append(measure(layer, chip, trials))
                x = report[where][-1]
                print(f"{layer.name}: {x['planned']['use']:.1%}, tuned {x['tuned']['use']:.1%}", flush=True)
    if part in (Part.all, Part.networks):
        report["networks"] = [network("MobileNetV2 at 224 x 224, quantized", mobilenet_v2(224), report["target"])]
    if part in (Part.all, Part.attention):
        report["attention"] = [block(chip, size) for size in BLOCKS for chip in CHIPS]
    write(results / f"{name}.json", json.dumps(report, indent=1) + "\n")
    write(results / f"{name}.md", markdown(report))


if __name__ == "__main__":
    typer.run(main)
