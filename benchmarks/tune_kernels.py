"""Ten single kernels at sizes the default rules were not written for: what tuning gains, and guided against random
search.

    python benchmarks/tune_kernels.py [--sizes prime|survey] [--trials 200] [--seeds 1] [--kernels matmul,softmax]
        [--threads 2] [--random] -o results

The default rules were written for layers of networks: channels and widths that are multiples of 16, images of 7 to 112
rows, hundreds of rows, a handful of heads. There are two sets of sizes that are none of that.

``--sizes prime`` was chosen by two principles alone: every size is a prime, so that no tile and no vector divides it;
and every kernel has extreme proportions, in the way that it can. Matrices are tall, rows short and very many (or very
long and few), batches large and of small matrices, images large with few channels or tiny with many. They were fixed
before anything was measured at them.

``--sizes survey`` are shapes that `survey.py --seed 1` draws. For the sums of products and attention it is, of those
without groups or a causal mask, the one whose default schedule was furthest above the least time by the machine's
ceilings, alone and with everything in the caches, at one thread. They were chosen by measurement, so they do not say
what tuning brings on average; and some of what was found for them has become the default since, which leaves less to
tune. Softmax, layer_norm, reduction and transpose were chosen in the same way, but on the rules of after that; of
norms only layer norms were compared.

Writes results.json, results.md and results.svg: for every kernel the time of the default schedule, the speedup of the
best confirmed one, after how many trials guided search was as good as the best of random search, and the best so far
after every trial. ``--list`` shows the kernels, ``--merge A.json B.json`` puts results of several runs together."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tilewright.driver.kernels import fused_kernels
from tilewright.driver.tuning_database import Database
from tilewright.lang import te
from tilewright.schedule.ceilings import ceilings
from tilewright.schedule.work import work_of
from tilewright.support.options import Options
from tilewright.targets.base import find
from tilewright.tensor.kernel import Kernel
from tilewright.tune.cost import CostModel
from tilewright.tune.measure import Meter
from tilewright.tune.pretrained import load
from tilewright.tune.space import Space
from tilewright.tune.tasks import task_of
from tilewright.tune.tuner import Tuner


def matmul(m: int, depth: int, n: int) -> Kernel:
    a, b = te.placeholder((m, depth), "a"), te.placeholder((depth, n), "b", constant=True)
    k = te.reduce_axis(depth, "k")
    return te.kernel(te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c"), name="matmul")


def conv(height: int, width: int, channels: int, filters: int, size: int, stride: int = 1, dilation: int = 1) -> Kernel:
    """A convolution, its bias and ReLU, of an image of channels last and with its border; `height` and `width` are
    those of the result."""
    h, w = ((n - 1) * stride + (size - 1) * dilation + 1 for n in (height, width))
    x = te.placeholder((h, w, channels), "x")
    weights = te.placeholder((size, size, channels, filters), "w", constant=True)
    bias = te.placeholder((filters,), "bias", constant=True)
    ry, rx, rc = te.reduce_axis(size, "ry"), te.reduce_axis(size, "rx"), te.reduce_axis(channels, "rc")
    out = te.compute(
        (height, width, filters),
        lambda y, z, f: te.sum(
            x[y * stride + ry * dilation, z * stride + rx * dilation, rc] * weights[ry, rx, rc, f], ry, rx, rc
        ),
        "conv",
    )
    return te.kernel(
        te.compute((height, width, filters), lambda y, z, f: te.maximum(out[y, z, f] + bias[f], 0.0), "y"),
        name=f"conv{size}x{size}",
    )


def depthwise(height: int, width: int, c: int, size: int, stride: int = 1) -> Kernel:
    h, w = ((n - 1) * stride + size for n in (height, width))
    x, weights = te.placeholder((h, w, c), "x"), te.placeholder((size, size, c), "w", constant=True)
    ry, rx = te.reduce_axis(size, "ry"), te.reduce_axis(size, "rx")
    out = te.compute(
        (height, width, c),
        lambda y, z, f: te.sum(x[y * stride + ry, z * stride + rx, f] * weights[ry, rx, f], ry, rx),
        "y",
    )
    return te.kernel(out, name="depthwise")


def batch_matmul(batch: int, m: int, depth: int, n: int, transposed: bool = False) -> Kernel:
    """Products of pairs of matrices; the second ones may be given transposed."""
    a, k = te.placeholder((batch, m, depth), "a"), te.reduce_axis(depth, "k")
    b = te.placeholder((batch, n, depth) if transposed else (batch, depth, n), "b")
    out = te.compute(
        (batch, m, n), lambda q, i, j: te.sum(a[q, i, k] * (b[q, j, k] if transposed else b[q, k, j]), k), "c"
    )
    return te.kernel(out, name="batch_matmul")


def softmax(rows: int, n: int) -> Kernel:
    x = te.placeholder((rows, n), "x")
    k, k2 = te.reduce_axis(n, "k"), te.reduce_axis(n, "k2")
    top = te.compute((rows,), lambda i: te.max(x[i, k], k), "top")
    e = te.compute((rows, n), lambda i, j: te.exp(x[i, j] - top[i]), "e")
    total = te.compute((rows,), lambda i: te.sum(e[i, k2], k2), "total")
    return te.kernel(te.compute((rows, n), lambda i, j: e[i, j] / total[i], "y"), name="softmax")


def layer_norm(rows: int, n: int) -> Kernel:
    x, g, b = (
        te.placeholder((rows, n), "x"),
        te.placeholder((n,), "g", constant=True),
        te.placeholder((n,), "b", constant=True),
    )
    k, k2 = te.reduce_axis(n, "k"), te.reduce_axis(n, "k2")
    total = te.compute((rows,), lambda i: te.sum(x[i, k], k), "total")
    mean = te.compute((rows,), lambda i: total[i] * (1.0 / n), "mean")
    square = te.compute((rows,), lambda i: te.sum((x[i, k2] - mean[i]) * (x[i, k2] - mean[i]), k2), "square")
    scale = te.compute((rows,), lambda i: te.rsqrt(square[i] * (1.0 / n) + 1e-5), "scale")
    return te.kernel(
        te.compute((rows, n), lambda i, j: (x[i, j] - mean[i]) * scale[i] * g[j] + b[j], "y"), name="layer_norm"
    )


def reduction(rows: int, n: int) -> Kernel:
    x, k = te.placeholder((rows, n), "x"), te.reduce_axis(n, "k")
    return te.kernel(te.compute((rows,), lambda i: te.sum(x[i, k], k), "y"), name="reduction")


def arg_max(rows: int, n: int) -> Kernel:
    """The place of the largest element of every row."""
    types = f"tensor<{rows}x{n}xf32>", f"tensor<{rows}xi64>"
    (kernel,) = fused_kernels(ARG_MAX.replace("TYPE", types[0]).replace("PLACES", types[1]))
    return kernel


def transpose(*shape: int) -> Kernel:
    """All dimensions in reverse order."""
    x = te.placeholder(shape, "x")
    if len(shape) == 2:
        return te.kernel(te.compute(shape[::-1], lambda i, j: x[j, i], "y"), name="transpose")
    return te.kernel(te.compute(shape[::-1], lambda i, j, k: x[k, j, i], "y"), name="transpose")


ARG_MAX = """
func.func @main(%x: TYPE) -> PLACES {
  %0 = "tw.arg_max"(%x) {axis = 1 : i64, keepdims = false} : (TYPE) -> PLACES
  return %0 : PLACES
}
"""
ATTENTION = """
func.func @main(%q: TYPE, %k: TYPE, %v: TYPE) -> TYPE {
  %0 = "tw.attention"(%q, %k, %v) {scale = SCALE : f64} : (TYPE, TYPE, TYPE) -> TYPE
  return %0 : TYPE
}
"""


def attention(heads: int, queries: int, width: int) -> Kernel:
    text = ATTENTION.replace("TYPE", f"tensor<1x{heads}x{queries}x{width}xf32>")
    (kernel,) = fused_kernels(text.replace("SCALE", f"{width**-0.5:.9e}"))
    return kernel


#: the two sets of sizes; the head of this file says how they were chosen
SIZES: dict[str, dict[str, Callable[[], Kernel]]] = {
    "prime": {
        "matmul": lambda: matmul(5003, 31, 23),
        "conv3x3": lambda: conv(113, 113, 13, 29, 3),
        "conv1x1": lambda: conv(7, 7, 1021, 509, 1),
        "depthwise": lambda: depthwise(53, 53, 37, 5),
        "batch_matmul": lambda: batch_matmul(503, 17, 31, 13),
        "softmax": lambda: softmax(10007, 61),
        "layer_norm": lambda: layer_norm(5003, 127),
        "attention": lambda: attention(61, 29, 23),
        "reduction": lambda: reduction(7, 100003),
        "transpose": lambda: transpose(13, 30011),
    },
    "survey": {
        "matmul": lambda: matmul(1, 35, 497),
        "conv3x3": lambda: conv(108, 107, 3, 17, 3),
        "conv1x1": lambda: conv(43, 42, 35, 9, 1),
        "depthwise": lambda: depthwise(86, 87, 33, 3),
        "batch_matmul": lambda: batch_matmul(59, 160, 64, 18, transposed=True),
        "softmax": lambda: softmax(1357, 106),
        "layer_norm": lambda: layer_norm(217, 2249),
        "attention": lambda: attention(11, 77, 64),
        "reduction": lambda: arg_max(119 * 116, 14),
        "transpose": lambda: transpose(66, 55, 63),
    },
}


def search(kernel: Kernel, trials: int, seed: int, threads: int, guided: bool) -> dict[str, Any]:
    """One search from nothing: the best ratio after every trial, and the confirmed result."""
    with tempfile.TemporaryDirectory() as folder:
        options = Options(threads=threads)
        meter = Meter(find("cpu"), threads, seconds=0.2)
        tuner = Tuner(
            [task_of(kernel)],
            options,
            CostModel(seed, pretrained=load()) if guided else None,
            Database(Path(folder) / "t.sqlite"),
            seed,
            meter=meter,
        )
        start = time.perf_counter()
        report = tuner.run(trials)
        found = tuner.database.measurements(tuner.numbers[0])
        result = tuner.database.result(tuner.tasks[0].key.kernel, tuner.machine)
        tuner.database.close()
        curve, best = [], 1.0
        for m in found:
            best = min(best, m.ratio) if m.ratio is not None else best
            curve.append(round(best, 4))
        return {
            "guided": guided, "seed": seed, "space": report.tasks[0].space, "trials": len(found),
            "seconds": round(time.perf_counter() - start, 1),
            "curve": curve, "failed": {k: v for k, v in report.outcomes.items() if k != "ok"},
            "ratio": result.seconds / result.baseline if result else 1.0,
            "default_us": median(m.seconds / m.ratio for m in found if m.ratio) * 1e6 if found else None,
            "decisions": result.decisions if result else {},
            "least_us": least_seconds(kernel, threads) * 1e6,
        }  # fmt: skip


def least_seconds(kernel: Kernel, threads: int) -> float:
    """What a kernel takes at least by the machine's ceilings, alone and with its operands in the caches they fit into.

    A function (exp) counts as one operation, so where there are many of them no schedule gets near."""
    target = find("cpu")
    work = work_of(kernel, Space(kernel, target.describe()).default.schedule.nest())
    limits = ceilings(target, threads)
    written = sum(n for p, n in zip(kernel.params, work.touched, strict=True) if p.name in kernel.outputs)
    moved = limits.level(sum(work.touched)).seconds(sum(work.touched) - written, written)
    return max(moved, work.operations / limits.peak(work.precision))


def reached(curve: list[float], goal: float) -> int | None:
    """After how many trials a curve is within 2% of a goal."""
    return next((i + 1 for i, r in enumerate(curve) if r <= goal * 1.02), None)


def machine_facts() -> dict[str, Any]:
    """What the times depend on."""
    target = find("cpu")
    description = target.describe()
    _, toolchain = target.tuning().measured_on(description)  # type: ignore[attr-defined]
    return {
        "processor": target.machine_name().partition("|")[0],  # type: ignore[attr-defined]
        "cores": description.cores, "vector_bytes": description.vector_bytes,
        "l1_bytes": description.l1_bytes, "l2_bytes": description.l2_bytes, "l3_bytes": description.l3_bytes,
        "toolchain": toolchain,
    }  # fmt: skip


def markdown(results: dict[str, Any]) -> str:
    facts = results["machine"]
    lines = [
        "# Tuning single kernels",
        "",
        f"{facts['processor']}, {facts['cores']} cores, caches {facts['l1_bytes'] >> 10} KB, "
        f"{facts['l2_bytes'] >> 10} KB, {facts['l3_bytes'] >> 20} MB; {facts['toolchain']}.",
        "",
        f"Sizes: {results.get('sizes', 'prime')}.",
        "",
        f"{results['threads']} thread(s), up to {results['trials']} trials a search. Speedups are over the default "
        "schedule, in the median of five bursts in which both run in turns; 1.00 means that nothing was clearly "
        "faster. `Least` is what the machine's ceilings allow, with a function (exp) as one operation. The last column "
        "says after how many trials the guided search was within 2% of the best that random search found at all.",
        "",
        "| kernel | default, us | least, us | space | guided: trials | confirmed | random: trials | confirmed "
        "| as good after |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in results["kernels"].items():
        guided, blind = ([r for r in runs if r["guided"] is g] for g in (True, False))
        best = min(guided or blind, key=lambda r: r["ratio"])
        micros = next((f"{r['default_us']:.1f}" for r in runs if r["default_us"]), "")
        least = f"{best['least_us']:.1f}" if "least_us" in best else ""
        row = [name, micros, least, best["space"], best["trials"], f"{1 / best['ratio']:.2f}"]
        if blind:
            goal = min(min(r["curve"], default=1.0) for r in blind)
            at = [a for r in guided if (a := reached(r["curve"], goal)) is not None]
            other = min(blind, key=lambda r: r["ratio"])
            whole = best["trials"] >= best["space"] - 1
            row += [
                other["trials"],
                f"{1 / other['ratio']:.2f}",
                0 if goal * 1.02 >= 1.0 else min(at) if at else "whole space" if whole else "never",
            ]
        else:
            row += ["", "", ""]
        lines.append("| " + " | ".join(map(str, row)) + " |")
    bad = {k: sum(r["failed"].get(k, 0) for runs in results["kernels"].values() for r in runs) for k in FAILURES}
    lines += [
        "",
        f"Geometric mean of the confirmed speedups of guided search: {geometric_mean(results):.3f}.",
        "Candidates that failed: " + (", ".join(f"{n} {k}" for k, n in bad.items() if n) or "none") + ".",
    ]
    lines += ["", results["note"]] if results.get("note") else []
    return "\n".join(lines) + "\n"


FAILURES = ("build", "crash", "timeout", "wrong", "unstable")


def geometric_mean(results: dict[str, Any]) -> float:
    found = [[r["ratio"] for r in runs if r["guided"]] for runs in results["kernels"].values()]
    best = [1 / min(ratios) for ratios in found if ratios]
    return math.exp(sum(map(math.log, best)) / len(best)) if best else 1.0


COLOURS = {"guided": "#0a58ca", "random": "#999", "TVM MetaSchedule": "#d97706"}


def kind(run: dict[str, Any]) -> str:
    return "TVM MetaSchedule" if "tvm" in run else "guided" if run["guided"] else "random"


def plot(results: dict[str, Any]) -> str:
    """Best so far against trials, one panel a kernel, as SVG; from 0 where there are runs of TVM, which may be slower
    than the default."""
    names = list(results["kernels"])
    width, height, across = 220, 150, 5
    kinds = [k for k in COLOURS if any(k == kind(r) for runs in results["kernels"].values() for r in runs)]
    bottom = 0 if "TVM MetaSchedule" in kinds else 1
    rows = -(-len(names) // across)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width * across}" height="{height * rows + 24}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="8" y="15">speedup of the best so far over the default schedule, against trials: '
        + ", ".join(f'<tspan fill="{COLOURS[k]}">{k}</tspan>' for k in kinds)
        + "</text>",
    ]
    for n, name in enumerate(names):
        left, top = width * (n % across) + 34, height * (n // across) + 44
        w, h = width - 46, height - 46
        runs = results["kernels"][name]
        speeds = [[1 / c for c in r["curve"]] for r in runs]
        most = max([1.05, *(s[-1] for s in speeds if s)])
        trials = max([8, *map(len, speeds)])
        out.append(f'<rect x="{left}" y="{top}" width="{w}" height="{h}" fill="none" stroke="#ccc"/>')
        out.append(f'<text x="{left}" y="{top - 5}">{name}</text>')
        out.append(f'<text x="{left - 4}" y="{top + 9}" text-anchor="end">{most:.2f}</text>')
        out.append(f'<text x="{left - 4}" y="{top + h}" text-anchor="end">{bottom}</text>')
        if bottom == 0:
            one = top + h * (1 - 1 / most)
            out.append(f'<line x1="{left}" x2="{left + w}" y1="{one:.1f}" y2="{one:.1f}" stroke="#ccc"/>')
        out.append(f'<text x="{left + w}" y="{top + h + 12}" text-anchor="end">{trials}</text>')
        for r, curve in zip(runs, speeds, strict=True):
            start = 0 if "tvm" in r else 1  # ours begins with the default, TVM's with nothing
            points = [(left, top + h * (1 - (start - bottom) / (most - bottom)))]
            for i, s in enumerate(curve):
                x, y = left + w * (i + 1) / trials, top + h * (1 - (s - bottom) / (most - bottom))
                points += [(x, points[-1][1]), (x, y)]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[kind(r)]}" stroke-width="1.5"/>')
    return "\n".join([*out, "</svg>"]) + "\n"


def write(results: dict[str, Any], output: str) -> None:
    Path(f"{output}.json").write_text(json.dumps(results, indent=1) + "\n")
    Path(f"{output}.md").write_text(markdown(results))
    Path(f"{output}.svg").write_text(plot(results))


def merged(files: list[Path]) -> dict[str, Any]:
    """The results of several runs on one machine as those of one."""
    parts = [json.loads(f.read_text()) for f in files]
    found = {**parts[0], "machine": machine_facts(), "trials": max(p["trials"] for p in parts), "kernels": {}}
    for name in SIZES["prime"]:
        runs = [r for p in parts for r in p["kernels"].get(name, [])]
        if runs:
            found["kernels"][name] = runs
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sizes", choices=list(SIZES), default="prime", help="which sizes; see the head of this file")
    parser.add_argument("--kernels", default=",".join(SIZES["prime"]))
    parser.add_argument("--random", action="store_true", help="run random search too, for comparison")
    parser.add_argument("--only-random", action="store_true", help="run random search only")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="put results together instead")
    parser.add_argument("--note", default="", help="a sentence about the circumstances, for the report")
    parser.add_argument("-o", "--output", default="tune_kernels")
    args = parser.parse_args()
    if args.list:
        print("\n".join(SIZES[args.sizes]))
        return 0
    if args.merge:
        write({**merged(args.merge), "note": args.note}, args.output)
        return 0
    results: dict[str, Any] = {
        "machine": machine_facts(),
        "sizes": args.sizes,
        "threads": args.threads,
        "trials": args.trials,
        "note": args.note,
        "kernels": {},
    }
    for name in args.kernels.split(","):
        kernel = SIZES[args.sizes][name]()
        runs = results["kernels"][name] = []
        for seed in range(args.seeds):
            for guided in (False,) if args.only_random else (True, False) if args.random else (True,):
                runs.append(search(kernel, args.trials, seed, args.threads, guided))
                r = runs[-1]
                best = 1 / min(r["curve"], default=1.0)
                print(
                    f"{name:13} {kind(r)} {r['trials']:4} trials {r['seconds']:6.1f} s  best {best:.3f}x"
                    f"  confirmed {1 / r['ratio']:.3f}x",
                    flush=True,
                )
        write(results, args.output)
    print(markdown(results), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
