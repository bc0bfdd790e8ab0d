"""How well layers use a chip's array, by its timing simulator: as planned, and after asking the simulator.

    python benchmarks/chips.py                                     # systolic32
    python benchmarks/chips.py --target systolic32:array=16 --name chips_16
    python benchmarks/chips.py --part networks                     # the rest of the page stays as it is

The layers are a product of 512 x 512 x 512, the convolutions of ResNet-18 at 224 x 224, and some drawn at random, for
which nothing was chosen. The network is MobileNetV2 at 224 x 224, quantized, beside a host. Cycles are simulated: they
are the same on every machine.
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
from typing import Annotated, Any

import numpy as np
import typer
from bench import HERE, grid, machine, write
from quantized_networks import mobilenet_v2

from tilewright import te
from tilewright.driver.compiler import compile_state
from tilewright.schedule.work import work_of as operations
from tilewright.targets.accelerator.binary import Formats
from tilewright.targets.accelerator.layers import peak as highest
from tilewright.targets.accelerator.match import Selection, select
from tilewright.targets.accelerator.partition import work
from tilewright.targets.accelerator.plan import Planned, best
from tilewright.targets.accelerator.stages import OnChip
from tilewright.targets.base import find
from tilewright.tensor.kernel import Kernel
from tilewright.tune.explore import measured

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


def peak(formats: Formats, s: Selection) -> float:
    """Multiply-adds that the array does in a cycle at best."""
    i = s.steps[0].instruction
    limits = {d.name: d.limit for d in i.dims}
    return prod(limits.values()) / max(i.busy(limits | {f.name: 0 for f in i.fields}))


def measure(layer: Layer, formats: Formats, asked: int) -> dict[str, Any]:
    """A layer as planned, and by the best of `asked` plans."""
    s = select(layer.kernel, formats.listing)
    floor = work(s) / peak(formats, s)
    found: dict[str, Any] = {"layer": layer.name, "window": layer.window, "floor": floor}
    for name, many in (("planned", 1), ("asked", asked)):
        begin = time.perf_counter()
        p: Planned = best(s, formats, many)
        array = s.steps[0].instruction.engine
        found[name] = {
            "cycles": p.timing.cycles,
            "use": floor / p.timing.cycles,
            "array": p.timing.utilization(array),
            "engines": {n: e.busy for n, e in p.timing.engines.items()},
            "plan": str(p.plan),
            "seconds": time.perf_counter() - begin,
        }
    return found


# ---- networks --------------------------------------------------------------------------------------------------------


def network(name: str, model: Any, target: str) -> dict[str, Any]:
    """A model on a host with the chip: its kernels on the chip as they are planned, what is left to the host, sums."""
    how: dict[str, Any] = {"threads": 1, "cache": False, "stop_after": "schedule"}
    state, _ = compile_state(model, target=f"cpu+{target}", **how)
    formats = state.target.formats
    calls = Counter(op.attributes["callee"].value for op in state.module.operations() if op.name == "func.call")
    chip, host = [], []
    for kernel, times in calls.items():
        made = state.schedules[kernel]
        if isinstance(made, OnChip):
            chip.append({"calls": times, **on_chip(state.kernels[kernel], made.planned, formats)})
        else:
            seconds = operations(state.kernels[kernel], made.schedule.nest()).operations / 2 / formats.chip.host_rate
            host.append({"calls": times, "kernel": kernel.rpartition("_")[0], "seconds": seconds})
    return {"network": name, "chip": chip, "host": host, "whole": asdict(measured(state))}


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
        "use": work(s) / (highest(formats.listing)[1] * planned.timing.cycles),
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


# ---- the page --------------------------------------------------------------------------------------------------------


def table(layers: list[dict[str, Any]]) -> list[str]:
    rows = [["layer", "array's floor", "planned", "use", "array works", "asked", "use", "slowest copy engine"]]
    for x in layers:
        a, b = x["planned"], x["asked"]
        copies = max(b["engines"][e] for e in ("load", "store"))
        rows.append(
            [
                x["layer"],
                f"{x['floor']:,.0f}",
                f"{a['cycles']:,}",
                f"{a['use']:.1%}",
                f"{a['array']:.1%}",
                f"{b['cycles']:,}",
                f"{b['use']:.1%}",
                f"{copies:,}",
            ]
        )
    return grid(rows)


def markdown(report: dict[str, Any]) -> str:
    named, random = report["layers"], report["drawn"]
    ratio = [x["planned"]["cycles"] / x["asked"]["cycles"] for x in (*named, *random)]
    worst = sorted(random, key=lambda x: x["asked"]["use"])
    return "\n".join(
        [
            f"{report['target']}, cycles by its timing simulator. The floor is what the array takes with all of its "
            f"multipliers at work; asked: the best of {report['asked']} plans by the simulator.",
            "",
            "## Layers",
            "",
            *table(named),
            "",
            f"## {len(random)} layers drawn at random, worst use first",
            "",
            *table(worst),
            "",
            f"Asking gains {statistics.geometric_mean(ratio) - 1:.1%} (at most {max(ratio) - 1:.0%}). Median use of "
            f"the drawn layers: {statistics.median(x['asked']['use'] for x in random):.1%}.",
            "With fewer channels than the array has rows or columns, the rest is idle.",
            "",
            *networks(report["networks"]),
        ]
    )


class Part(str, Enum):
    """What is measured; the other part is taken from the result files."""

    all = "all"
    layers = "layers"
    networks = "networks"


def main(
    target: Annotated[str, typer.Option(help="The chip.")] = "systolic32",
    asked: Annotated[int, typer.Option(help="Plans that the simulator is asked about.")] = 8,
    count: Annotated[int, typer.Option(help="Layers drawn at random.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the layers drawn at random.")] = 1,
    part: Annotated[Part, typer.Option(help="What is measured; the rest is kept.")] = Part.all,
    name: Annotated[str, typer.Option(help="Name of the result files.")] = "chips",
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = HERE / "results",
) -> None:
    """Plan layers and networks for a chip and count their cycles."""
    formats = find(target).formats  # type: ignore[attr-defined]
    report: dict[str, Any] = {"machine": machine(), "target": target, "asked": asked}
    if part is not Part.all:
        report = json.loads((results / f"{name}.json").read_text())
    if part is not Part.networks:
        report |= {"layers": [], "drawn": []}
        for where, layers in (
            ("layers", [product(512, 512, 512), *(convolution(*x) for x in RESNET18)]),
            ("drawn", drawn(count, seed)),
        ):
            for layer in layers:
                report[where].append(measure(layer, formats, asked))
                x = report[where][-1]
                print(f"{layer.name}: {x['planned']['use']:.1%}, asked {x['asked']['use']:.1%}", flush=True)
    if part is not Part.layers:
        report["networks"] = [network("MobileNetV2 at 224 x 224, quantized", mobilenet_v2(224), report["target"])]
    write(results / f"{name}.json", json.dumps(report, indent=1) + "\n")
    write(results / f"{name}.md", markdown(report))


if __name__ == "__main__":
    typer.run(main)
