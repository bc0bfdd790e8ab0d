"""Single kernels on an NVIDIA GPU beside cuBLAS, FlashAttention and the memory's speed; `gpu.py` runs this.

    python benchmarks/gpu_kernels.py [--scale 8]      # JSON on stdout; sizes divided by 8

Products of matrices in bf16 against `torch.matmul` (cuBLAS), attention against `scaled_dot_product_attention` (the
implementation that PyTorch chooses: FlashAttention for these), and what a decoder does for one token, whose yardstick
is the memory: products of a row with weights, and attention of one query to a cache. Times are those of the GPU's
clock, of the kernels alone, medians; those of both sides in turns. Results that differ by more than bf16 explains are
no results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import tilewright as tw
from tilewright.support.errors import TilewrightError
from tilewright.targets.base import find

#: generations whose code is not for later ones, by compute capability
OWN = {(9, 0): "sm_90a", (10, 0): "sm_100"}
TURNS, RUNS = 5, 20
#: of the largest value: both sides round to 8 bits, and sum in their own order
TOLERANCE = 0.02
#: a side: its result, and a function that gives seconds of some runs
Side = tuple[np.ndarray, Callable[[], list[float]]]


@dataclass(frozen=True)
class Case:
    """A kernel: its MLIR, shapes of its inputs (bf16), operations, bytes that must move, and PyTorch's name for it."""

    name: str
    text: str
    shapes: tuple[tuple[int, ...], ...]
    operations: float
    nbytes: float
    peer: str
    bound: str


def product(m: int, k: int, n: int, bound: str) -> Case:
    a, b, c = (f"tensor<{x}x{y}xbf16>" for x, y in ((m, k), (k, n), (m, n)))
    text = f"""func.func @main(%a: {a}, %b: {b}) -> {c} {{
  %0 = "tw.matmul"(%a, %b) : ({a}, {b}) -> {c}
  return %0 : {c}
}}"""
    moved = 2.0 * (m * k + k * n + m * n)
    return Case(f"matmul {m} x {k} x {n}", text, ((m, k), (k, n)), 2.0 * m * k * n, moved, "matmul", bound)


def attention(heads: int, queries: int, keys: int, width: int, bound: str) -> Case:
    q, k = (f"tensor<1x{heads}x{s}x{width}xbf16>" for s in (queries, keys))
    text = f"""func.func @main(%q: {q}, %k: {k}, %v: {k}) -> {q} {{
  %0 = "tw.attention"(%q, %k, %v) {{scale = {width**-0.5} : f64}} : ({q}, {k}, {k}) -> {q}
  return %0 : {q}
}}"""
    shapes = ((1, heads, queries, width), *((1, heads, keys, width),) * 2)
    moved = 2.0 * heads * width * (2 * queries + 2 * keys)
    name = f"attention, {heads} heads of {width}, {queries} queries, {keys} keys"
    return Case(name, text, shapes, 4.0 * heads * queries * keys * width, moved, "attention", bound)


def cases(scale: int) -> list[Case]:
    """What is measured, in sizes divided by `scale`."""
    n = 4096 // scale
    return [
        *(product(size // scale, size // scale, size // scale, "peer") for size in (4096, 8192)),
        attention(32, n, n, 128, "peer"),
        product(1, n, 4 * n, "memory"),
        product(1, 4 * n, n, "memory"),
        attention(32, 1, 8 * n, 128, "memory"),
    ]


def inputs(case: Case) -> list[np.ndarray]:
    import ml_dtypes

    random = np.random.default_rng(0)
    return [random.standard_normal(s, np.float32).astype(ml_dtypes.bfloat16) for s in case.shapes]


# ---- the two sides ----


def ours(case: Case, target: str) -> Side:
    executable, given = tw.compile(case.text, target=target), inputs(case)

    def times() -> list[float]:
        return [float(line.seconds().sum()) for line in executable.timelines(given, runs=RUNS)]

    return executable(*given)[0].astype(np.float32), times


def theirs(case: Case, device: str = "cuda") -> Side:
    import torch

    given = [torch.from_numpy(a.astype(np.float32)).to(device, torch.bfloat16) for a in inputs(case)]
    function = torch.matmul if case.peer == "matmul" else torch.nn.functional.scaled_dot_product_attention

    def times() -> list[float]:
        function(*given)
        if device != "cuda":
            return [_clocked(lambda: function(*given)) for _ in range(RUNS)]
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(RUNS)]
        for begin, end in events:
            begin.record()
            function(*given)
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in events]

    return function(*given).float().cpu().numpy(), times


def _clocked(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def cuda_target() -> str:
    """The target of the first GPU, for its generation; PackageError where there is none."""
    device = find("cuda").open_device()
    own = OWN.get(device.driver.capability())
    return f"cuda:sm={own}" if own else "cuda"


def measure(case: Case, target: str, device: str, memory: float) -> dict:
    """One row: medians, operations a second, the part of the peer's speed or of the memory's."""
    row: dict = {"name": case.name, "bound": case.bound}
    try:
        (got, mine), (want, other) = ours(case, target), theirs(case, device)
        row["error"] = float(np.abs(got - want).max() / np.abs(want).max())
        if not row["error"] < TOLERANCE:
            return row | {"failed": f"the results differ by {row['error']:.1e} of the largest"}
        times: dict[str, list[float]] = {"ours": [], "torch": []}
        for _ in range(TURNS):
            times["ours"] += mine()
            times["torch"] += other()
    except (TilewrightError, ImportError, RuntimeError) as error:
        return row | {"failed": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    seconds = {name: statistics.median(found) for name, found in times.items()}
    row |= {f"{name}_us": 1e6 * s for name, s in seconds.items()}
    row["gflops"], row["gbytes"] = (x / seconds["ours"] / 1e9 for x in (case.operations, case.nbytes))
    part = seconds["torch"] / seconds["ours"] if case.bound == "peer" else case.nbytes / seconds["ours"] / memory
    return row | {"part": part}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=1, help="divide the sizes by this")
    options = parser.parse_args()
    from tilewright.schedule.ceilings import ceilings

    target = cuda_target()
    limits = ceilings(find(target), 1)
    rows = [measure(case, target, "cuda", limits.levels[-1].read) for case in cases(options.scale)]
    json.dump({"target": target, "ceilings": limits.to_json(), "rows": rows}, sys.stdout)


if __name__ == "__main__":
    main()
