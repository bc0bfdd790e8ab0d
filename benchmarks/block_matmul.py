"""Products with weights of 4 and 8 bits in blocks (`MatMulNBits`) at random sizes, beside ONNX Runtime.

    python benchmarks/block_matmul.py                                  # 48 products, one thread
    python benchmarks/block_matmul.py --count 12 --seed 7 --name block_matmul_held_out --threads 2

Every product has columns and a depth of 576 to 8192 drawn from the seed, half of them of no round size; rows, bits and
accuracy level take turns, blocks and zero points are drawn. Both runtimes run in one process, by turns, and what counts
is the CPU time of the process, of all its threads and divided by their number: other work matters little.
Products measured before with the same seed, threads, processor and ONNX Runtime stay in the result files; delete these
to measure again. Results are compared with the product in float64.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import onnxruntime
import typer
from bench import HERE, grid, machine, write
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw

SMALLEST, LARGEST = 576, 8192
ROWS, BITS, LEVELS, BLOCKS = (1, 8, 128), (4, 8), (0, 4), (16, 32, 64, 128, 256)
#: the largest error relative to the largest result: f32, and activations of 8 bits
ALLOWED = {0: 1e-5, 4: 3e-2}
#: what a ratio should be at most
GOAL = 0.9


@dataclass(frozen=True)
class Case:
    """x [rows, depth] times [depth, columns]."""

    rows: int
    columns: int
    depth: int
    bits: int
    block: int
    zero_points: bool
    level: int

    @property
    def label(self) -> str:
        zero = ", zero points" if self.zero_points else ""
        return f"{self.rows} x {self.depth} x {self.columns}, {self.bits} bits by {self.block}{zero}"


def cases(count: int, seed: int) -> list[Case]:
    """The first `count` of an endless row of products."""
    rng = random.Random(seed)
    kinds = list(itertools.product(ROWS, BITS, LEVELS))
    rng.shuffle(kinds)
    found = []
    for (rows, bits, level), _ in zip(itertools.cycle(kinds), range(count), strict=False):
        columns, depth = (round(SMALLEST * (LARGEST / SMALLEST) ** rng.random()) for _ in range(2))
        if rng.random() < 0.5:
            columns, depth = (round(n / 64) * 64 for n in (columns, depth))
        found.append(Case(rows, columns, depth, bits, rng.choice(BLOCKS), rng.random() < 0.5, level))
    return found


def model_of(case: Case, seed: int) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """The model, an input, and the result in float64."""
    rng = np.random.default_rng(seed)
    blocks = -(-case.depth // case.block)
    w = rng.integers(0, 256, (case.columns, blocks, case.block * case.bits // 8), dtype=np.uint8)
    s = rng.uniform(0.01, 0.1, case.columns * blocks).astype(np.float32)
    x = rng.standard_normal((case.rows, case.depth)).astype(np.float32)
    arrays = {"w": w, "s": s}
    zero = np.full((case.columns, blocks), 1 << case.bits - 1)
    if case.zero_points:
        packed = rng.integers(0, 256, (case.columns, -(-blocks * case.bits // 8)), dtype=np.uint8)
        arrays["z"], zero = packed.reshape(-1), numbers(packed, case.bits)[:, :blocks]
    weights = (numbers(w, case.bits).astype(np.float32) - zero[..., None]) * s.reshape(zero.shape)[..., None]
    expected = x.astype(np.float64) @ weights.reshape(case.columns, -1)[:, : case.depth].T.astype(np.float64)
    sizes = {"K": case.depth, "N": case.columns, "bits": case.bits, "block_size": case.block}
    node = helper.make_node(
        "MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", accuracy_level=case.level, **sizes
    )
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, expected.shape)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), x, expected


def numbers(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers in bytes, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[..., None] >> shifts) & ((1 << bits) - 1)).reshape(*packed.shape[:-1], -1)


def seconds(run: Callable[[], object], calls: int) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    for _ in range(calls):
        run()
    return (time.process_time() - start) / calls


def measure(case: Case, seed: int, threads: int, turns: int, burst: float) -> dict:
    """Both runtimes on one product: lower quartiles of the turns."""
    model, x, expected = model_of(case, seed)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    start = time.process_time()
    ours = tw.compile(model, threads=threads)
    compiled = time.process_time() - start
    runs = {"ours": lambda: ours(x)[0], "theirs": lambda: session.run(None, {"x": x})[0]}
    found: dict = {"case": asdict(case), "label": case.label, "compile_s": compiled}
    times: dict[str, list[float]] = {}
    for name, run in runs.items():
        error = float(abs(run() - expected).max() / abs(expected).max())
        found[f"{name}_error"], times[name] = error, []
    calls = {name: max(1, round(burst / max(seconds(run, 2), 1e-7))) for name, run in runs.items()}
    for _ in range(turns):
        for name, run in runs.items():
            times[name].append(seconds(run, calls[name]) / threads)
    for name, t in times.items():
        found[f"{name}_us"] = sorted(t)[len(t) // 4] * 1e6
    found["ratio"] = found["ours_us"] / found["theirs_us"]
    found["right"] = found["ours_error"] <= ALLOWED[case.level]
    return found


def mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def markdown(report: dict) -> str:
    """The page: groups, then every product."""
    all_found, facts = report["products"], report["machine"]
    groups = [["level, rows, bits", "products", "geometric mean", "worst", f"above {GOAL}"]]
    for level, rows, bits in itertools.product(LEVELS, ROWS, BITS):
        kind = {"level": level, "rows": rows, "bits": bits}
        own = [p["ratio"] for p in all_found if kind.items() <= p["case"].items()]
        if own:
            name = f"level {level}, {rows} rows, {bits} bits"
            above = str(sum(r > GOAL for r in own))
            groups.append([name, str(len(own)), f"{mean(own):.2f}", f"{max(own):.2f}", above])
    each = [["product", "level", "ours, us", "ONNX Runtime, us", "ratio", "error", "its error"]]
    for p in sorted(all_found, key=lambda p: -p["ratio"]):
        times = [f"{p['ours_us']:.1f}", f"{p['theirs_us']:.1f}", f"{p['ratio']:.2f}"]
        errors = [f"{p[f'{n}_error']:.1e}" for n in ("ours", "theirs")]
        each.append([p["label"], str(p["case"]["level"]), *times, *errors])
    ratios = [p["ratio"] for p in all_found]
    lines = [
        "# Products with weights in blocks of 4 and 8 bits",
        "",
        f"{facts['cpu']}, {facts['date']}; ONNX Runtime {report['onnxruntime']}; {report['threads']} thread(s), seed "
        f"{report['seed']}. CPU time of both in one process, by turns; ratios are ours to theirs, less is better. "
        f"`benchmarks/block_matmul.py`.",
        "",
        f"{len(ratios)} products: geometric mean {mean(ratios):.3f}, worst {max(ratios):.2f}; wrong results: "
        f"{sum(not p['right'] for p in all_found)}. Errors are relative to the largest result, of the product in "
        "float64; at level 4 activations are rounded to 8 bits.",
        "",
        *grid(groups),
        "",
        *grid(each),
    ]
    return "\n".join(lines) + "\n"


def main(
    count: Annotated[int, typer.Option(help="number of products")] = 48,
    seed: Annotated[int, typer.Option(help="of the sizes and numbers")] = 1,
    threads: Annotated[int, typer.Option(help="threads of both")] = 1,
    turns: Annotated[int, typer.Option(help="turns of each runtime")] = 9,
    burst: Annotated[float, typer.Option(help="CPU seconds of a turn")] = 0.01,
    name: Annotated[str, typer.Option(help="name of the result files")] = "block_matmul",
    results: Annotated[Path, typer.Option(help="folder of the result files")] = HERE / "results",
) -> None:
    """Measure products at sizes drawn from a seed, beside ONNX Runtime."""
    path = results / f"{name}.json"
    report = {"machine": machine(), "onnxruntime": onnxruntime.__version__, "seed": seed, "threads": threads}
    before = json.loads(path.read_text()) if path.exists() else {}
    same = all(before.get(k) == report[k] for k in ("onnxruntime", "seed", "threads"))
    known = before["products"] if same and before["machine"]["cpu"] == report["machine"]["cpu"] else []
    report["products"] = found = []
    for i, case in enumerate(cases(count, seed)):
        old = next((p for p in known if p["case"] == asdict(case)), None)
        found.append(old or measure(case, seed + i, threads, turns, burst))
        if old is None:
            p = found[-1]
            print(f"{p['label']:60} level {case.level}  {p['ratio']:.3f}{'' if p['right'] else '  WRONG'}", flush=True)
            write(path, json.dumps(report, indent=1) + "\n")
            write(path.with_suffix(".md"), markdown(report))
    raise SystemExit(0 if all(p["right"] for p in found) else 1)


if __name__ == "__main__":
    typer.run(main)
