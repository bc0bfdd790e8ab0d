"""The six models on every GPU that has a driver here, and single kernels on an NVIDIA GPU; `make bench-gpu` runs this.

    python benchmarks/gpu.py                                       # to benchmarks/results/gpu.json and gpu.md
    python benchmarks/gpu.py --language model-Q4_0.gguf            # a language model too, on each device
    python benchmarks/gpu.py --devices opencl --models resnet18 --rounds 1 --out /tmp

A device is the first of its driver: OpenCL, Vulkan, CUDA; drivers that run on the processor (PoCL, Mesa's) count too.
Latency is from arrays of the host to arrays of the host. All peers of a model take turns, as in `bench.py`. The
yardstick is on CUDA what PyTorch does there (eager, and torch.compile with max-autotune; float32 without TF32), on
other devices our own target `cpu` on all cores. Where there is no GPU of a kind the report says what would be measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import bench  # noqa: E402

from tilewright.support.errors import TilewrightError  # noqa: E402
from tilewright.targets.base import find  # noqa: E402

#: target -> peers beside ours, the last of which the goal is stated against
PEERS = {"opencl": ["tilewright"], "vulkan": ["tilewright"], "cuda": ["gpu_torch", "gpu_torch_compile"]}
NAMES = {"tilewright": "target `cpu`", "gpu_torch": "PyTorch", "gpu_torch_compile": "torch.compile"}
KERNELS = [
    "products of matrices in bf16 at 4096 and 8192 beside cuBLAS (goal: at least 0.90 of its speed)",
    "attention forward in bf16 beside FlashAttention as PyTorch has it (goal: 0.85)",
    "what a decoder does for one token, as a share of the memory's speed (goal: 0.85)",
]


def told(command: list[str], timeout: float) -> dict:
    """The JSON that a process of its own prints, in its last line; "failed" says why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer in {timeout:.0f} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def language(target: str, model: Path, timeout: float) -> dict:
    """What `llm_worker.py` measures of a language model on a target: tokens a second of prompts and of decoding."""
    worker = str(HERE / "llm_worker.py")
    found = told([sys.executable, worker, str(model), "1", "--target", target, "--tokens", "16"], timeout)
    found.pop("model", None)  # a path of this machine
    return found


def devices(wanted: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Targets with the name of their first device, and those that have none with the reason."""
    there, missing = {}, {}
    for target in wanted:
        try:
            names = find(target).device_list()
            there[target] = names[0]
        except (TilewrightError, IndexError) as error:
            missing[target] = getattr(error, "message", "no device")
    return there, missing


def once(model: str, threads: int, options: argparse.Namespace, scratch: Path) -> dict[str, dict]:
    """As `bench.race`, but each peer by itself, and the second run of each is the one that counts."""
    results: dict[str, dict] = {}
    for peer in options.peers:
        (cache := scratch / f"{model}.{peer}").mkdir()
        path = options.models_dir / f"{model}.onnx"
        racer = bench.Racer(peer, path, threads, cache, scratch / f"{peer}.log")
        try:
            facts = racer.launch(options.timeout, "--once")
            results[peer] = {**facts, "runs": 1, "min_ms": 1e3 * facts["second_run_s"]}
        except bench.PeerFailed as failure:
            results[peer] = {"failed": str(failure)}
        finally:
            racer.end()
        print(f"  {peer}: {results[peer].get('failed') or results[peer]['min_ms']}", flush=True)
    return results


def kernels(scale: int, timeout: float) -> dict:
    """What `gpu_kernels.py` measures."""
    return told([sys.executable, str(HERE / "gpu_kernels.py"), "--scale", str(scale)], timeout)


# ---- the report ----


def ms(result: dict) -> str:
    """Milliseconds, in three digits."""
    return f"{result['min_ms']:.3g}" if result["min_ms"] < 1000 else f"{result['min_ms']:,.0f}"


def row(model: str, target: str, results: dict) -> list[str]:
    """Latency of ours and the peers, the ratio to the last peer, time of loading, error."""
    mine = results.get(f"gpu_{target}", {"failed": "not run"})
    peers = [results.get(p, {"failed": ""}) for p in PEERS[target]]
    cells = ["–" if "failed" in p else ms(p) for p in peers]
    if "failed" in mine:
        reason = mine["failed"].splitlines()[0]
        return [model, f"failed: {reason}", *cells, "–", "–", "–"]
    ratio = "–" if "failed" in peers[-1] else f"{mine['min_ms'] / peers[-1]['min_ms']:.2f}"
    times = " (one run)" if mine["runs"] == 1 else ""
    wrong = " WRONG" if mine["error"] > 1e-4 else ""
    return [
        model,
        f"{ms(mine)}{times}",
        *cells,
        ratio,
        f"{mine['load_s']:.1f} + {mine['first_run_s']:.1f}",
        f"{mine['error']:.0e}{wrong}",
    ]


def reasons(report: dict, peers: list[str]) -> list[str]:
    """Why peers have no numbers, each reason once."""
    failed = [
        (p, r[p]["failed"].splitlines()[0]) for r in report["results"].values() for p in peers if "failed" in r[p]
    ]
    return ["", *(f"- {NAMES[p]}: {why}" for p, why in dict.fromkeys(failed))] if failed else []


def kernel_lines(found: dict) -> list[str]:
    """The table of kernels."""
    if "failed" in found:
        return [f"Kernels were not measured: {found['failed']}"]
    rows = [["kernel", "us", "PyTorch, us", "GFLOP/s", "GB/s", "part of", ""]]
    for r in found["rows"]:
        if "failed" in r:
            rows.append([r["name"], f"failed: {r['failed']}", "–", "–", "–", r["bound"], "–"])
        else:
            numbers = [f"{r[k]:.4g}" for k in ("ours_us", "torch_us", "gflops", "gbytes")]
            rows.append([r["name"], *numbers, r["bound"], f"{r['part']:.2f}"])
    return [f"Target {found['target']}, bf16.", "", *bench.grid(rows)]


def markdown(report: dict) -> str:
    facts = report["machine"]
    busy = f"Other programs ran meanwhile (load {facts['load_average'][0]}): the times say little."
    out = [
        "# Models on GPUs",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['system']},",
        f"Python {facts['python']}, {facts['date']}. Made by `make bench-gpu` (`benchmarks/gpu.py`).",
        *([busy] if facts["load_average"][0] > facts["cores"] else []),
        "",
        "Milliseconds of a run, batch 1, f32, from arrays of the host to arrays of the host: the shortest. *Loading*:",
        "seconds of compiling with an empty cache, and of the first run, in which the driver compiles the kernels.",
        "*Error*: the largest of an output, relative to its largest value, against PyTorch on the processor.",
    ]
    for target, name in report["devices"].items():
        heads = [NAMES[p] for p in PEERS[target]]
        rows = [["model", "ms", *[f"{h}, ms" for h in heads], f"ratio to {heads[-1]}", "loading, s", "error"]]
        rows += [row(m, target, results) for m, results in report["results"].items()]
        out += ["", f"## {target}: {name}", "", *bench.grid(rows), *reasons(report, PEERS[target])]
    if report["kernels"]:
        out += ["", "## Kernels on cuda", "", *kernel_lines(report["kernels"])]
    if measured := report.get("language"):
        rows = [["target", "prompt, tokens/s", "decoding, tokens/s"]]
        rows += [[t, *(str(r.get(k, r.get("failed"))) for k in ("pp_tok_s", "tg_tok_s"))] for t, r in measured.items()]
        out += ["", "## A language model, one sequence", "", *bench.grid(rows)]
    for target, reason in report["missing"].items():
        out += [
            "",
            f"## Not measured: {target}",
            "",
            f"There is no such device here: {reason}. With one this measures",
            "",
        ]
        heads = " and ".join(NAMES[p] for p in PEERS[target])
        out += [f"- the models {', '.join(report['models'])}: latency, time of loading and error, beside {heads}"]
        out += [f"- {text}" for text in KERNELS if target == "cuda"]
    return "\n".join(out) + "\n"


def store(report: dict, folder: Path) -> None:
    """After every model: a long run can be watched and ended."""
    folder.mkdir(parents=True, exist_ok=True)
    bench.write(folder / "gpu.json", json.dumps(report, indent=1) + "\n")
    bench.write(folder / "gpu.md", markdown(report))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(bench.MODELS), help="default: %(default)s")
    parser.add_argument("--devices", default=",".join(PEERS), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each peer (default: 3)")
    parser.add_argument("--burst", type=float, default=0.3, help="seconds of timed runs a turn (default: 0.3)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a peer may take to load (default: 900)")
    parser.add_argument("--scale", type=int, default=1, help="divide the sizes of kernels by this")
    parser.add_argument("--models-dir", type=Path, default=HERE / "models", help="where the .onnx files are or go")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the results")
    parser.add_argument("--language", type=Path, metavar="MODEL", help="a language model: a folder or a .gguf file")
    parser.add_argument("--once", action="store_true", help="one timed run: for drivers that take minutes")
    parser.add_argument("--keep", action="store_true", help="keep the models that the results have, measure others")
    options = parser.parse_args()
    options.models, options.wanted = options.models.split(","), options.devices.split(",")
    options.warm = False
    return options


def main() -> int:
    options = parse_arguments()
    bench.export_missing(options)
    there, missing = devices(options.wanted)
    for target, reason in missing.items():
        print(f"{target}: {reason}")
    options.peers = list(dict.fromkeys(p for t in there for p in (f"gpu_{t}", *PEERS[t])))
    old = json.loads((options.out / "gpu.json").read_text())["results"] if options.keep else {}
    report = {"machine": bench.machine(), "devices": there, "missing": missing, "models": options.models, "kernels": {}}
    report["results"] = {m: r for m, r in old.items() if m in options.models}
    scratch = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        for model in options.models:
            if model not in report["results"]:
                print(model, flush=True)
                race = once if options.once else bench.race
                report["results"][model] = race(model, report["machine"]["cores"], options, scratch)
            store(report, options.out)
        if options.language is not None:
            report["language"] = {t: language(t, options.language, options.timeout) for t in (*there, "cpu")}
        if "cuda" in there:
            report["kernels"] = kernels(options.scale, options.timeout)
        store(report, options.out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print("\n" + markdown(report))
    own = {f"gpu_{target}" for target in there}
    mine = [r for results in report["results"].values() for p, r in results.items() if p in own]
    return int(any("failed" in r or r["error"] > 1e-4 for r in mine))


if __name__ == "__main__":
    sys.exit(main())
