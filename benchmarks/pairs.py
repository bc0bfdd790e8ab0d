"""f32, bf16 and int8 of the same models: beside OpenVINO in each precision, and in int8 beside ONNX Runtime, too.

    python benchmarks/pairs.py resnet18 hf_segformer           # of benchmarks/models/ and benchmarks/models/zoo/
    python benchmarks/pairs.py timm_swin --precision bf16 --force
    python benchmarks/pairs.py --report-only                   # the page again from the JSON

Models are those of models.py and zoo_models.py, which export them. ``NAME.int8.onnx`` is made of ``NAME.onnx`` by ONNX
Runtime's static quantizer where it is not there: QDQ, uint8 activations, int8 weights by output channel, every operator
that it quantizes, calibrated with the model's one input and noise.

Each runtime has a process of its own, stopped while another has its turn (bench.py), and one thread. What is compared
is the least CPU time of a run: neighbours on a shared machine lengthen runs and shorten none. Errors are parts of the
largest value of the framework's f32 outputs; those of int8 are the quantizer's first of all.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from bench import HERE, PeerFailed, Racer, grid, machine, write

#: precision -> ours first, then the peers that it is compared with
PEERS = {
    "f32": ("tilewright", "openvino"),
    "bf16": ("tilewright_bf16", "openvino_bf16"),
    "int8": ("tilewright", "ort", "openvino"),
}
FOLDERS = (HERE / "models", HERE / "models" / "zoo")


# ---- int8 models ----


def int8_model(path: Path) -> Path:
    """``NAME.int8.onnx`` beside ``NAME.onnx``, with its inputs and the f32 outputs; made if it is not there."""
    made = path.with_suffix(".int8.onnx")
    if not made.exists():
        part = path.with_name(f".{os.getpid()}.onnx")
        try:
            quantize(path, part)
            os.replace(part, made)
        finally:
            for left in path.parent.glob(f".{os.getpid()}.*"):
                left.unlink()
    for kind in ("inputs", "expected"):
        link = path.with_suffix(f".int8.{kind}.npz")
        if not link.exists():
            link.symlink_to(path.with_suffix(f".{kind}.npz").name)
    return made


def quantize(path: Path, target: Path) -> None:
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    own = dict(np.load(path.with_suffix(".inputs.npz")))
    rng = np.random.default_rng(1)

    class Samples(q.CalibrationDataReader):
        """The model's inputs, and noise with their mean and deviation in the place of those that are floats."""

        def __init__(self) -> None:
            noise = {
                n: rng.normal(x.mean(), x.std(), x.shape).astype(x.dtype) if x.dtype.kind == "f" else x
                for n, x in own.items()
            }
            self.left = [own, noise]

        def get_next(self):
            return self.left.pop() if self.left else None

    plain = target.with_suffix(".plain.onnx")
    quant_pre_process(str(path), str(plain), skip_symbolic_shape=True)
    q.quantize_static(
        str(plain),
        str(target),
        Samples(),
        quant_format=q.QuantFormat.QDQ,
        activation_type=q.QuantType.QUInt8,
        weight_type=q.QuantType.QInt8,
        per_channel=True,
    )


# ---- measuring ----


def race(path: Path, peers: tuple[str, ...], rounds: int, burst: float, timeout: float) -> dict[str, dict]:
    """All peers on one model, in turns: peer -> its summary, or ``{"failed": reason}``."""
    results: dict[str, dict] = {}
    racers: dict[str, Racer] = {}
    scratch = Path(tempfile.mkdtemp(prefix="pairs"))
    cache = Path(os.environ.get("TILEWRIGHT_CACHE", scratch / "cache"))
    options = type("Options", (), {"burst": burst, "timeout": timeout})

    def attempt(peer: str, step) -> None:
        try:
            step()
        except PeerFailed as failure:
            results[peer] = {"failed": str(failure).splitlines()[0]}
            racers.pop(peer).end()

    def launch(racer: Racer) -> None:
        racer.facts = racer.launch(timeout)
        racer.send(19)  # SIGSTOP

    try:
        for peer in peers:
            racers[peer] = Racer(peer, path, 1, cache, scratch / f"{peer}.log")
            attempt(peer, lambda peer=peer: launch(racers[peer]))
        for number in range(rounds):
            order = list(racers)
            random.Random(number).shuffle(order)
            for peer in order:
                attempt(peer, lambda peer=peer: racers[peer].burst(options))
        for peer, racer in racers.items():
            kept = ("version", "computes", "error")
            results[peer] = {k: racer.facts[k] for k in kept if k in racer.facts}
            results[peer] |= {"cpu_ms": 1e3 * min(racer.cpu), "runs": len(racer.cpu)}
    finally:
        for racer in racers.values():
            racer.end()
        shutil.rmtree(scratch, ignore_errors=True)
    return results


# ---- the report ----


def ratios(models: dict, precision: str, peer: str) -> dict[str, float]:
    """Model -> our time over the peer's, the worst first."""
    found = {}
    for name, measured in models.items():
        ours, theirs = (measured.get(precision, {}).get(p, {}) for p in (PEERS[precision][0], peer))
        if "cpu_ms" in ours and "cpu_ms" in theirs:
            found[name] = ours["cpu_ms"] / theirs["cpu_ms"]
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def markdown(report: dict) -> str:
    facts, models = report["machine"], report["models"]
    out = ["# f32, bf16 and int8 beside OpenVINO and ONNX Runtime", ""]
    out.append(f"{facts['cpu']}, {facts['cores']} cores ({' '.join(facts['features'])}), {facts['memory_gb']} GB,")
    out.append(
        f"{facts['system']}, Python {facts['python']}, {facts['date']}; {', '.join(sorted(report['versions']))}."
    )
    out.append(
        "Least CPU time of a run, one thread, batch 1; ratios are ours over theirs, smaller is better. Random weights."
    )
    out += ["Made by `python benchmarks/pairs.py`, which says how.", ""]
    rows = [["precision", "beside", "models", "geometric mean", "worst"]]
    for precision, (_, *peers) in PEERS.items():
        for peer in peers:
            found = ratios(models, precision, peer)
            if found:
                worst = ", ".join(f"{n} {r:.2f}" for n, r in list(found.items())[:3])
                mean = f"{statistics.geometric_mean(found.values()):.2f}"
                rows.append([precision, peer, str(len(found)), mean, worst])
    out += grid(rows)
    for precision, (ours, *peers) in PEERS.items():
        there = [n for n in models if precision in models[n]]
        if not there:
            continue
        rows = [["model", "ours, ms", *(f"{p}, ms (ratio)" for p in peers), "error", *(f"{p}'s" for p in peers)]]
        order = ratios(models, precision, peers[-1])
        for name in sorted(there, key=lambda n: -order.get(n, 99.0)):
            found = models[name][precision]
            mine = found[ours]
            cells = [name, mine.get("failed") or f"{mine['cpu_ms']:.4g}"]
            for p in peers:
                ratio = ratios({name: models[name]}, precision, p).get(name)
                shown = found[p].get("failed") or f"{found[p]['cpu_ms']:.4g}"
                cells.append(shown + (f" ({ratio:.2f})" if ratio else ""))
            rows.append([*cells, *(f"{found[p]['error']:.0e}" if "error" in found[p] else "–" for p in (ours, *peers))])
        out += ["", f"## {precision}", "", *grid(rows)]
    return "\n".join(out) + "\n"


def find(name: str) -> Path | None:
    return next((p for f in FOLDERS if (p := f / f"{name}.onnx").exists()), None)


def main(
    models: Annotated[list[str] | None, typer.Argument(help="names of models that were exported")] = None,
    precision: Annotated[str, typer.Option(help="which ones")] = ",".join(PEERS),
    rounds: Annotated[int, typer.Option(help="turns of each runtime")] = 6,
    burst: Annotated[float, typer.Option(help="seconds of timed runs a turn")] = 0.5,
    timeout: Annotated[float, typer.Option(help="seconds that loading may take")] = 900.0,
    force: Annotated[bool, typer.Option(help="measure again what was measured")] = False,
    report_only: Annotated[bool, typer.Option(help="write the page again from the JSON")] = False,
    name: Annotated[str, typer.Option(help="name of the result files")] = "pairs",
    results: Annotated[Path, typer.Option(help="folder of the result files")] = HERE / "results",
) -> None:
    """Race the models in each precision; results are written after each, and what is there is not measured again."""
    target = results / f"{name}.json"
    report = json.loads(target.read_text()) if target.exists() else {"machine": machine(), "versions": [], "models": {}}
    for model in () if report_only else models or ():
        path = find(model)
        if path is None:
            print(f"{model}: not exported", file=sys.stderr)
            continue
        entry = report["models"].setdefault(model, {})
        for kind in precision.split(","):
            if kind in entry and not force:
                continue
            found = entry[kind] = race(
                int8_model(path) if kind == "int8" else path, PEERS[kind], rounds, burst, timeout
            )
            versions = {r["version"] for r in found.values() if "version" in r}
            report["versions"] = sorted(versions | set(report["versions"]))
            report["machine"] = machine()
            said = [f"{p} {ratios({model: entry}, kind, p).get(model, float('nan')):.2f}" for p in PEERS[kind][1:]]
            print(
                f"{model} {kind}: {', '.join(said)}",
                *(r["failed"] for r in found.values() if "failed" in r),
                flush=True,
            )
            write(target, json.dumps(report, indent=1) + "\n")
            write(target.with_suffix(".md"), markdown(report))
    write(target.with_suffix(".md"), markdown(report))


if __name__ == "__main__":
    typer.run(main)
