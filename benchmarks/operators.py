"""Single operators beside what this machine can do, and beside other runtimes.

    python benchmarks/operators.py                                  # all, to results/operators.json and .md
    python benchmarks/operators.py --only matmul_1024,softmax       # some; the others keep their results
    python benchmarks/operators.py --prepare                        # only make the models and compile them
    python benchmarks/operators.py --only none --network resnet50   # the kernels inside a model

The least time of an operator follows from the ceilings of the machine (docs/profiling.md): its arithmetic at the peak
of multiply-adds, or its operands and results, once each, at the speed of the memory that holds them all. The loops that
measure these ceilings take turns with the peers, and medians are compared with medians, so that a busy neighbour slows
both. The times are whole calls from Python with outputs in arrays that are reused; all arrays begin with a cache line.
Winograd's method saves multiplications, so a convolution may pass 100%, as may what is written past the caches.

The peers take turns as in bench.py. Every result is checked against PyTorch in float64.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from bench import HERE, PeerFailed, Racer, grid, machine, write

from tilewright.runtime.profile import Traffic, least_time
from tilewright.schedule.ceilings import Ceilings, Level, ceilings
from tilewright.targets.base import find

PEERS = {"tilewright_bound": "tilewright", "ort_bound": "onnxruntime", "openvino": "openvino"}
OURS, BASELINE = "tilewright_bound", "ort_bound"


@dataclass(frozen=True)
class Operator:
    """`make` gives the ONNX nodes, the inputs and the constants by name; the last node makes ``y``. `operations` is the
    arithmetic of the direct method, `wanted` the part of the ceiling that we mean to reach."""

    doc: str
    make: Callable[[np.random.Generator], tuple[list, dict[str, np.ndarray], dict[str, np.ndarray]]]
    operations: int
    wanted: float = 0.85


def array(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return generator.standard_normal(shape).astype(np.float32)


def matmul(m: int, k: int, n: int, doc: str, wanted: float = 0.85) -> Operator:
    def make(g):
        from onnx import helper

        return [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": array(g, m, k)}, {"w": array(g, k, n)}

    return Operator(doc, make, 2 * m * k * n, wanted)


def conv(channels: int, filters: int, size: int, window: int, doc: str, stride: int = 1, group: int = 1) -> Operator:
    def make(g):
        from onnx import helper

        pads, shape = [window // 2] * 4, [window, window]
        node = helper.make_node(
            "Conv", ["x", "w", "b"], ["y"], kernel_shape=shape, pads=pads, strides=[stride] * 2, group=group
        )
        constants = {"w": array(g, filters, channels // group, window, window), "b": array(g, filters)}
        return [node], {"x": array(g, 1, channels, size, size)}, constants

    pixels = (size // stride) ** 2
    return Operator(doc, make, 2 * filters * (channels // group) * window * window * pixels)


def layer_norm(rows: int, columns: int) -> Operator:
    def make(g):
        from onnx import helper

        node = helper.make_node("LayerNormalization", ["x", "w", "b"], ["y"], axis=-1, epsilon=1e-5)
        return [node], {"x": array(g, rows, columns)}, {"w": array(g, columns), "b": array(g, columns)}

    return Operator(f"{rows} rows of {columns}", make, 7 * rows * columns)


def softmax(rows: int, columns: int) -> Operator:
    def make(g):
        from onnx import helper

        return [helper.make_node("Softmax", ["x"], ["y"], axis=-1)], {"x": array(g, rows, columns)}, {}

    return Operator(f"{rows} rows of {columns}", make, 5 * rows * columns)


def attention(heads: int, length: int, depth: int) -> Operator:
    def make(g):
        from onnx import helper

        nodes = [
            helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
            helper.make_node("MatMul", ["q", "kt"], ["s"]),
            helper.make_node("Mul", ["s", "scale"], ["t"]),
            helper.make_node("Softmax", ["t"], ["p"], axis=-1),
            helper.make_node("MatMul", ["p", "v"], ["y"]),
        ]
        inputs = {name: array(g, 1, heads, length, depth) for name in ("q", "k", "v")}
        return nodes, inputs, {"scale": np.array(depth**-0.5, np.float32)}

    return Operator(f"{heads} heads, {length} x {depth}", make, 4 * heads * length * length * depth)


OPERATORS = {
    "matmul_1024": matmul(1024, 1024, 1024, "1024 x 1024 x 1024", 0.92),
    "matmul_bert_ffn": matmul(128, 768, 3072, "BERT-base, 128 x 768 x 3072"),
    "conv3x3_64": conv(64, 64, 56, 3, "ResNet-50, 64 to 64 at 56 x 56"),
    "conv3x3_128": conv(128, 128, 28, 3, "ResNet-50, 128 to 128 at 28 x 28"),
    "conv3x3_256": conv(256, 256, 14, 3, "ResNet-50, 256 to 256 at 14 x 14"),
    "conv3x3_512": conv(512, 512, 7, 3, "ResNet-50, 512 to 512 at 7 x 7"),
    "conv1x1_64_256": conv(64, 256, 56, 1, "ResNet-50, 64 to 256 at 56 x 56"),
    "conv1x1_512_128": conv(512, 128, 28, 1, "ResNet-50, 512 to 128 at 28 x 28"),
    "conv1x1_256_1024": conv(256, 1024, 14, 1, "ResNet-50, 256 to 1024 at 14 x 14"),
    "conv1x1_2048_512": conv(2048, 512, 7, 1, "ResNet-50, 2048 to 512 at 7 x 7"),
    "conv7x7_first": conv(3, 64, 224, 7, "ResNet-50, 3 to 64 at 224 x 224, stride 2", stride=2),
    "depthwise3x3": conv(144, 144, 56, 3, "MobileNet v2, 144 channels at 56 x 56", group=144),
    "attention": attention(12, 512, 64),
    "layer_norm": layer_norm(2048, 768),
    "layer_norm_large": layer_norm(32768, 768),
    "softmax": softmax(3072, 512),
    "softmax_large": softmax(49152, 512),
    "decode_4096": matmul(1, 4096, 4096, "Llama 7B decode, 1 x 4096 x 4096"),
    "decode_11008": matmul(1, 4096, 11008, "Llama 7B decode, 1 x 4096 x 11008"),
}


# ---- the models ----


def prepare(name: str, folder: Path) -> Path:
    """The model with its inputs and expected outputs, made once."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    nodes, inputs, constants = OPERATORS[name].make(np.random.default_rng(0))
    y = reference(nodes, {**inputs, **constants})

    def info(label: str, value: np.ndarray):
        return helper.make_tensor_value_info(label, TensorProto.FLOAT, value.shape)

    weights = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, name, [info(k, v) for k, v in inputs.items()], [info("y", y)], weights)
    np.savez(folder / f"{name}.inputs.npz", **inputs)
    np.savez(folder / f"{name}.expected.npz", y=y)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path)
    return path


def reference(nodes: list, values: dict[str, np.ndarray]) -> np.ndarray:
    """The result by PyTorch in float64."""
    import torch

    known = {k: torch.from_numpy(v).double() for k, v in values.items()}
    for node in nodes:
        kept = {x.name: list(x.ints) or x.i for x in node.attribute}
        known[node.output[0]] = _apply(node.op_type, kept, *[known[n] for n in node.input])
    return known["y"].float().numpy()


def _apply(kind: str, kept: dict, a, *more):
    import torch
    from torch.nn import functional

    if kind == "Conv":
        window, groups = kept["kernel_shape"][0], kept["group"]
        return functional.conv2d(a, *more, stride=kept["strides"][0], padding=window // 2, groups=groups)
    if kind == "LayerNormalization":
        return functional.layer_norm(a, a.shape[-1:], *more, 1e-5)
    if kind == "Softmax":
        return torch.softmax(a, -1)
    if kind == "Transpose":
        return a.transpose(-1, -2)
    return a @ more[0] if kind == "MatMul" else a * more[0]


# ---- measuring ----


def race(name: str, threads: int, options: argparse.Namespace, limits) -> dict:
    """All peers on one operator and the loops of its ceilings, in turns. `limits`: ceilings that were measured before,
    which say what memory holds the operator."""
    from tilewright.targets.cpu.ceilings import measure

    read, written = traffic(name, options.models_dir)
    memory, probes = limits.level(read + written).name, []
    results: dict = {}
    racers: dict[str, Racer] = {}
    folder = options.models_dir
    for peer in options.peers:
        cache = folder / "caches" / peer
        cache.mkdir(parents=True, exist_ok=True)
        racer = Racer(peer, folder / f"{name}.onnx", threads, cache, folder / f"{peer}.log")
        try:
            racer.facts = racer.launch(options.timeout)
            racers[peer] = racer
        except PeerFailed as failure:
            results[peer] = {"failed": str(failure).splitlines()[0]}
        racer.send(signal.SIGSTOP)
    try:
        for number in range(options.rounds):
            order = [*racers, None]
            random.Random(number).shuffle(order)
            for peer in order:
                if peer is None:
                    probes.append(measure(threads, ["f32"], [memory]))
                else:
                    racers[peer].burst(options)
        results |= {peer: racer.summary() for peer, racer in racers.items()}
    finally:
        for racer in racers.values():
            racer.end()
    ceiling = typical(probes)
    traffic_ = Traffic(far_read=read, far_written=written)
    ideal, limit = least_time(traffic_, OPERATORS[name].operations, "f32", read + written, ceiling)
    for result in results.values():
        if "failed" not in result:
            result["of_ceiling"] = 1e3 * ideal / result["median_ms"]
    return {"ideal_ms": 1e3 * ideal, "limit": limit, "ceilings": ceiling.to_json(), "peers": results}


def traffic(name: str, folder: Path) -> tuple[int, int]:
    """Bytes that must be read and written."""
    _, inputs, constants = OPERATORS[name].make(np.random.default_rng(0))
    read = sum(v.nbytes for v in (*inputs.values(), *constants.values()))
    return read, np.load(folder / f"{name}.expected.npz")["y"].nbytes


def typical(probes: list[Ceilings]) -> Ceilings:
    """The medians of several measurements of one precision and one memory."""
    levels = [p.levels[0] for p in probes]
    speeds = (statistics.median(getattr(v, kind) for v in levels) for kind in ("read", "write", "copy"))
    level = Level(levels[0].name, levels[0].capacity, *speeds)
    compute = {"f32": statistics.median(p.compute["f32"] for p in probes)}
    return replace(probes[0], compute=compute, levels=(level,), quiet=all(p.quiet for p in probes))


# ---- the report ----


def markdown(report: dict) -> str:
    facts, out = report["machine"], []
    out.append(f"{facts['cpu']}, {facts['cores']} cores ({' '.join(facts['features'])}), {facts['memory_gb']} GB,")
    out.append(f"{facts['system']}, Python {facts['python']}, {facts['date']}.")
    out.append("Versions: " + ", ".join(report["versions"].values()) + ".")
    out.append(
        "Medians of interleaved rounds; percentages are of the least time by the ceilings, whose loops take turns"
    )
    out.append("with the peers; in brackets ours over theirs, smaller is better. Single convolutions take and give")
    out.append("channels first, so that they include changes of layout. Made by `python benchmarks/operators.py`.")
    for threads in sorted({t for by in report["results"].values() for t in by}):
        ceilings = report["ceilings"][threads]
        out += ["", f"## {threads} thread{'s' if threads != '1' else ''}", "", ceiling_line(ceilings), ""]
        others = [p for p in report["peers"] if p != OURS]
        heading = ["operator", "sizes", "limit", "least, ms", "tilewright, ms", "of the ceiling", "wanted"]
        rows = [[*heading, *(f"{PEERS.get(p, p)}, ms" for p in others)]]
        for name, operator in OPERATORS.items():
            result = report["results"].get(name, {}).get(threads)
            if result:
                rows.append(row(name, operator, result, others))
        out += grid(rows)
    for name, by_threads in report.get("networks", {}).items():
        for threads, data in sorted(by_threads.items()):
            out += ["", f"## Kernels inside {name}, {threads} thread{'s' if threads != '1' else ''}", ""]
            out += network_table(data)
    return "\n".join(out) + "\n"


def ceiling_line(data: dict) -> str:
    speeds = ", ".join(f"{v['name']} {v['read'] / 1e9:.0f} / {v['copy'] / 1e9:.0f}" for v in data["levels"])
    quiet = "" if data["quiet"] else " (measured on a busy machine)"
    return f"Peak {data['compute']['f32'] / 1e9:.1f} GFLOP/s; GB/s reading / copying: {speeds}{quiet}."


def row(name: str, operator: Operator, result: dict, others: list[str]) -> list[str]:
    ours = result["peers"].get(OURS, {"failed": ""})
    cells = [name, operator.doc, result["limit"], f"{result['ideal_ms']:.4g}"]
    if "failed" in ours:
        cells += ["–", "–"]
    else:
        wrong = " WRONG" if ours["error"] > 1e-4 else ""
        cells += [f"{ours['median_ms']:.4g}{wrong}", f"{100 * ours['of_ceiling']:.0f}%"]
    cells.append(f"{100 * operator.wanted:.0f}%")
    for peer in others:
        theirs = result["peers"].get(peer, {"failed": ""})
        if "failed" in theirs or "failed" in ours:
            cells.append("–")
        else:
            cells.append(f"{theirs['median_ms']:.4g} ({ours['median_ms'] / theirs['median_ms']:.2f})")
    return cells


def network_table(data: dict) -> list[str]:
    """Where kernels stand in a network, their operands have the layouts that were chosen for the whole of it."""
    lines = [f"{1e3 * data['seconds']:.3f} ms a run; kernels of at least 1% of it.", ""]
    rows = [["kernel", "from", "calls", "ms", "share", "GFLOP/s", "of its ceiling", "limit"]]
    for e in data["kernels"]:
        if e["share"] >= 0.01:
            first = e["names"][0] if e["names"] else ""
            cells = [e["symbol"], first, str(e["calls"]), f"{1e3 * e['seconds']:.3f}", f"{e['share']:.1%}"]
            rows.append([*cells, f"{e['gflops'] or 0:.0f}", f"{e['efficiency'] or 0:.0%}", e["limit"]])
    return lines + grid(rows)


def measure_network(name: str, threads: int, options: argparse.Namespace) -> dict:
    """The profile of a whole model that `models.py` has made, without its timeline."""
    import tilewright as tw

    base = HERE / "models" / name
    run = tw.compile(str(base.with_suffix(".onnx")), threads=threads)
    profile = run.profile(dict(np.load(f"{base}.inputs.npz")), repeats=20)
    return {
        k: v for k, v in profile.to_json().items() if k in ("seconds", "low", "high", "between", "kernels", "total")
    }


def load_report(path: Path, options: argparse.Namespace) -> dict:
    if path.exists():
        report = json.loads(path.read_text())
        if report["machine"]["cpu"] == machine()["cpu"]:  # results of another machine are not mixed with ours
            return report
    return {"machine": machine(), "versions": {}, "peers": options.peers, "ceilings": {}, "results": {}}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def listed(text: str) -> list[str]:
        return [part for part in text.split(",") if part]

    parser.add_argument("--only", type=listed, default=list(OPERATORS), help="names, separated by commas; or none")
    parser.add_argument("--network", help="also the kernels inside a model of models.py, by name (resnet50)")
    parser.add_argument("--peers", type=listed, default=list(PEERS), help=f"default: {','.join(PEERS)}")
    parser.add_argument("--threads", type=listed, default=["1", "2"], help="thread counts (default: 1,2)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each peer (default: 5)")
    parser.add_argument("--burst", type=float, default=0.25, help="seconds of timed runs a turn (default: 0.25)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds one peer may take to load (default: 300)")
    parser.add_argument("--prepare", action="store_true", help="make and compile the models, and stop")
    parser.add_argument("--name", default="operators", help="name of the result files (default: operators)")
    parser.add_argument("--models-dir", type=Path, default=HERE / "models" / "operators", help="folder of the models")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the result files")
    options = parser.parse_args()
    options.only = [] if options.only == ["none"] else options.only
    unknown = [n for n in options.only if n not in OPERATORS]
    if unknown:
        parser.error(f"no operator {', '.join(unknown)}; there are: {', '.join(OPERATORS)}")
    return options


def main() -> int:
    options = parse_arguments()
    for name in options.only:
        prepare(name, options.models_dir)
    if options.prepare:
        return compile_all(options)
    path = options.results / f"{options.name}.json"
    report = load_report(path, options)
    failed = False
    for threads in options.threads:
        limits = ceilings(find("cpu"), int(threads))
        report["ceilings"][threads] = limits.to_json()
        if options.network:
            found = measure_network(options.network, int(threads), options)
            report.setdefault("networks", {}).setdefault(options.network, {})[threads] = found
            save(path, report)
        for name in options.only:
            result = race(name, int(threads), options, limits)
            report["results"].setdefault(name, {})[threads] = result
            report["versions"] |= {p: r["version"] for p, r in result["peers"].items() if "version" in r}
            ours = result["peers"].get(OURS, {"failed": "not asked for"})
            failed |= "failed" in ours or ours["error"] > 1e-4
            said = (
                ours.get("failed")
                or f"{ours['median_ms']:.3f} ms, {100 * ours['of_ceiling']:.0f}% of {result['limit']}"
            )
            print(f"{name}, {threads} threads: {said}", flush=True)
            save(path, report)
    return int(failed)


def save(path: Path, report: dict) -> None:
    """Both files; called after every operator, so that a long run can be watched and interrupted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps(report, indent=1) + "\n")
    write(path.with_suffix(".md"), markdown(report))


def compile_all(options: argparse.Namespace) -> int:
    """Load every operator once with every peer, so that a measurement starts from caches."""
    for name in options.only:
        for threads in options.threads:
            for peer in options.peers:
                cache = options.models_dir / "caches" / peer
                cache.mkdir(parents=True, exist_ok=True)
                with tempfile.NamedTemporaryFile(suffix=".log") as log:
                    racer = Racer(peer, options.models_dir / f"{name}.onnx", int(threads), cache, Path(log.name))
                    try:
                        facts = racer.launch(options.timeout, "--once")
                        print(f"{name}, {threads} threads, {peer}: error {facts['error']:.1e}", flush=True)
                    except PeerFailed as failure:
                        print(f"{name}, {threads} threads, {peer}: {failure}", flush=True)
                    racer.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
