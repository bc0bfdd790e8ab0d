"""Our server beside llama.cpp's `llama-server` and vLLM under the same load, in the same minutes.

    export BENCH_VENVS=... BENCH_MODELS=...        # the peers' environments and models, as for llm.py
    python benchmarks/llm_serve.py                 # all that there are files for, to results/llm_serve.json
    python benchmarks/llm_serve.py --requests 6 --formats "4 bits" --name try

The load is that of `tilewright bench-serve`: requests come when a Poisson process says so, with a seeded mix of
lengths, answers of fixed lengths (`ignore_eos`), drawn (`SAMPLING`): with random weights the most probable text would
repeat itself, and drafts of it come for nothing. What our server answers a second when all requests come at
once is called its capacity; every server is then asked at the same shares of it (`--shares`), the last of which is more
than it can take. The same requests come at every rate, with other texts, so that no cache of prompts knows them.

BENCH_VENVS/llamacpp/bin/llama-server is compiled from the sources that come with llama-cpp-python, BENCH_VENVS/vllm has
vLLM's build for processors. A server that does not start is named in the report with the reason. Before each load it is
waited until other processes leave the processor alone; what they took while it ran is "others", in processors. "CPU" is
the processor time of the server alone: it says more than latencies do where others disturbed. The client takes the
cores that the server has: its share is in the report, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bench import grid, machine, write  # noqa: E402
from llm import busy, wait_for_quiet  # noqa: E402

OURS = "tilewright"
#: what each server is given, by the bits of a weight
FORMATS = {
    "4 bits": {OURS: "q4_0.gguf", "llamacpp": "q4_0.gguf"},
    "8 bits": {OURS: "q8_0.gguf", "llamacpp": "q8_0.gguf"},
    "16 bits": {OURS: "hf", "llamacpp": "f16.gguf", "vllm": "hf"},
}
CONTEXT, SEQUENCES = 4096, 16
SAMPLING = {"temperature": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.0}


def tilewright(model: Path, port: int, options: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "tilewright", "serve", f"model={model}", "--port", str(port)]
    return [*command, "--context", str(CONTEXT), "--sequences", str(SEQUENCES), "--threads", str(options.threads)]


def llamacpp(model: Path, port: int, options: argparse.Namespace) -> list[str]:
    command = [options.venvs / "llamacpp" / "bin" / "llama-server", "-m", model, "--port", port, "--no-ui"]
    sizes = ["--ctx-size", CONTEXT * SEQUENCES, "--parallel", SEQUENCES, "--threads", options.threads]
    return [str(part) for part in (*command, *sizes, "--threads-http", 4, "--alias", "model")]


def vllm(model: Path, port: int, options: argparse.Namespace) -> list[str]:
    command = [options.venvs / "vllm" / "bin" / "vllm", "serve", model, "--port", port, "--served-model-name", "model"]
    sizes = ["--max-model-len", CONTEXT, "--max-num-seqs", SEQUENCES, "--dtype", "bfloat16"]
    return [str(part) for part in (*command, *sizes)]


#: each server's command
SERVERS: dict[str, Callable[[Path, int, argparse.Namespace], list[str]]] = {
    OURS: tilewright, "llamacpp": llamacpp, "vllm": vllm,
}  # fmt: skip


def environment(options: argparse.Namespace) -> dict[str, str]:
    """Of the servers: nothing is fetched, threads are those that are asked for."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TILEWRIGHT_API_KEY")
    found = {n: v for n, v in os.environ.items() if n not in names}
    found["PYTHONPATH"] = os.pathsep.join((str(HERE.parent), os.environ.get("PYTHONPATH", "")))
    more = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(options.threads),
    }
    return {**found, **more}


@contextmanager
def server(who: str, model: Path, options: argparse.Namespace) -> Iterator[tuple[str, int, float]]:
    """Its address, its process and the seconds until it answered, while it runs; RuntimeError for one that does not."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        begin = time.monotonic()
        process = subprocess.Popen(
            SERVERS[who](model, port, options), stdout=log, stderr=log, env=environment(options), start_new_session=True
        )
        try:
            while not answers(address):
                if process.poll() is not None or time.monotonic() - begin > options.start:
                    log.seek(0)
                    raise RuntimeError(reason(log.read(), model) or f"no answer in {options.start:g} s")
                time.sleep(0.1)
            yield address, process.pid, time.monotonic() - begin
        finally:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def with_tokenizer(source: Path, tokenizer: Path, folder: Path) -> Path:
    """A copy of a GGUF file of `BENCH_MODELS`, which has none, with a tokenizer of Hugging Face."""
    import gguf

    out = folder / source.name
    if out.exists():
        return out
    read = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, read.fields["general.architecture"].contents())
    for name, field in read.fields.items():
        if not name.startswith(("GGUF.", "general.architecture", "tokenizer.")):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[1] if field.types[1:] else None)
    found = json.loads(tokenizer.read_text())
    tokens = sorted(found["model"]["vocab"], key=found["model"]["vocab"].__getitem__)
    special = {entry["content"]: entry["id"] for entry in found["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in found["model"]["merges"]])
    writer.add_bos_token_id(special["<s>"])
    writer.add_eos_token_id(special["</s>"])
    writer.add_add_bos_token(False)
    for tensor in read.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address + "/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def reason(log: str, model: Path) -> str:
    """The last error of a log, without paths of this machine."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    wrong = [line for line in lines if "Error" in line or "error" in line] or lines
    return wrong[-1].replace(str(model.parent), "").replace(str(Path.home()), "~")[-300:] if wrong else ""


def processor_seconds(session: int) -> float:
    """What the processes of a session have used."""
    found = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session:
            found += int(fields[11]) + int(fields[12])
    return found / os.sysconf("SC_CLK_TCK")


def load(address: str, pid: int, rate: float, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The numbers of one rate."""
    from tilewright.llm.server.bench import sweep

    wait_for_quiet(options.wait)
    begin, client, used, start = busy(), sum(os.times()[:2]), processor_seconds(pid), time.monotonic()
    found = asyncio.run(
        sweep(address, mix=options.mix, rates=[rate], count=options.requests, seed=options.seed, texts=seed,
              more=SAMPLING, sla=options.sla, limit=options.limit)
    )  # fmt: skip
    (run,) = found["runs"]
    seconds = time.monotonic() - start
    client, used = sum(os.times()[:2]) - client, processor_seconds(pid) - used
    del run["each"]
    tokens = max(run["output_tokens_per_second"] * run["seconds"], 1)
    run |= {
        "ignore_eos": found["ignore_eos"],
        "cpu_ms_token": 1e3 * used / tokens,
        "client_ms_token": 1e3 * client / tokens,
    }
    run["others"] = round((busy() - begin - client - used) / seconds, 2)
    return run


def measure(who: str, bits: str, rates: list[float], options: argparse.Namespace) -> dict[str, Any]:
    """One server at each rate; without rates all requests at once."""
    line: dict[str, Any] = {"who": who, "format": bits, "at": time.strftime("%Y-%m-%d %H:%M:%S"), "runs": []}
    folder = options.models_dir / options.model
    model = folder / FORMATS[bits][who]
    try:
        if model.suffix == ".gguf":
            model = with_tokenizer(model, folder / "hf" / "tokenizer.json", options.scratch)
        with server(who, model, options) as (address, pid, seconds):
            line["start_s"] = round(seconds, 2)
            load(address, pid, 1e4, 0, argparse.Namespace(**{**vars(options), "requests": 4}))  # it warms up
            for number, rate in enumerate(rates or [1e4]):
                line["runs"].append(load(address, pid, rate, number + 1, options))
            line["drafts"] = drafts(address) if who == OURS else None
    except Exception as error:
        line["error"] = f"{type(error).__name__}: {error}"[:400]
    return line


def drafts(address: str) -> float:
    """The share of tokens that came from drafts."""
    with urllib.request.urlopen(address + "/metrics", timeout=5) as answer:
        lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[:1] != "#")
    numbers = [float(lines[f"tilewright_engine_{n}_total"]) for n in ("draft_tokens_accepted", "generated_tokens")]
    return numbers[0] / max(numbers[1], 1)


# ---- the report ----


def markdown(report: dict) -> str:
    m, s = report["machine"], report["settings"]
    sla = ", ".join(f"{name} {1000 * most:g} ms" for name, most in s["sla"].items())
    lines = [
        "# Servers of language models beside each other", "",
        f"{m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB, {m['system']}, {m['date']}; "
        f"{', '.join(m['features'])}. Made by `benchmarks/llm_serve.py`.", "",
        f"{s['model']}, random weights, {s['threads']} threads, at most {SEQUENCES} requests at a time. "
        f"{s['requests']} requests a run of the mix `{s['mix']}`, open loop; a good request keeps {sla}. Rates are "
        "shares of what our server answers when all requests come at once. Times in milliseconds, from when a request "
        "was due. CPU: milliseconds of processor time of the server for a token of an answer, prompts included; "
        "client: of the process that asks, on the same cores.",
    ]  # fmt: skip
    for bits in dict.fromkeys(line["format"] for line in report["lines"]):
        rows = [["server", "req/s asked", "of capacity", "req/s", "tok/s out", "ttft p50", "p99", "itl p50", "p99",
                 "gap p99", "goodput", "good", "failed", "CPU", "client", "others"]]  # fmt: skip
        notes = []
        for line in report["lines"]:
            if line["format"] != bits:
                continue
            if "error" in line:
                notes.append(f"- {line['who']}: not measured: {line['error']}")
            elif line["who"] == OURS:
                notes.append(f"- {OURS}: {100 * line['drafts']:.0f}% of the tokens came from drafts of its own text")
            rows += [row(line["who"], run, share) for run, share in zip(line["runs"], line["shares"], strict=False)]
        lines += ["", f"## {bits}", "", *grid(rows), "", *notes]
    return "\n".join(lines) + "\n"


def row(who: str, run: dict, share: float) -> list[str]:
    def ms(name: str, *parts: str) -> list[str]:
        return [f"{1000 * run[name][p]:.1f}" if run[name] else "–" for p in parts]

    return [
        who, f"{run['rate']:.2f}", f"{share:.0%}", f"{run['requests_per_second']:.2f}",
        f"{run['output_tokens_per_second']:.0f}", *ms("ttft", "p50", "p99"), *ms("itl", "p50", "p99"),
        *ms("gap", "p99"), f"{run['goodput']:.2f}", f"{run['good_share']:.0%}",
        str(run["requests"] - run["completed"]), f"{run['cpu_ms_token']:.2f}", f"{run['client_ms_token']:.2f}",
        f"{run['others']:.2f}",
    ]  # fmt: skip


# ---- command line ----


def parse_arguments() -> argparse.Namespace:
    from tilewright.llm.server.bench import parse_sla

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def listed(text: str) -> list[str]:
        return [part for part in text.split(",") if part]

    parser.add_argument("--model", default="smollm2_135m", help="default: smollm2_135m")
    parser.add_argument("--formats", type=listed, default=["4 bits", "16 bits"], help="default: 4 bits,16 bits")
    parser.add_argument("--servers", type=listed, default=list(SERVERS), help=f"default: {','.join(SERVERS)}")
    parser.add_argument("--shares", type=lambda t: [float(p) for p in t.split(",")], default=[0.5, 0.8, 1.5],
                        help="of our capacity (default: 0.5,0.8,1.5)")  # fmt: skip
    parser.add_argument("--mix", default="turns", help="as of bench-serve (default: turns)")
    parser.add_argument("--requests", type=int, default=32, help="of a run (default: 32)")
    parser.add_argument("--sla", type=parse_sla, default=parse_sla("ttft=500,itl=50"), help="default: ttft=500,itl=50")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--wait", type=float, default=10, help="most seconds to wait for a quiet machine (default: 10)")
    parser.add_argument("--start", type=float, default=180, help="most seconds that a server starts (default: 180)")
    parser.add_argument("--limit", type=float, default=120, help="most seconds that a server is silent (default: 120)")
    parser.add_argument("--name", default="llm_serve", help="name of the result files (default: llm_serve)")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where they go")
    for name, variable in (("venvs", "VENVS"), ("models-dir", "MODELS")):
        given = os.environ.get(f"BENCH_{variable}")
        parser.add_argument(f"--{name}", type=Path, default=given and Path(given), required=given is None)
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as scratch:
        options.scratch = Path(scratch)
        return run_all(options)


def run_all(options: argparse.Namespace) -> int:
    settings = {n: getattr(options, n) for n in ("model", "mix", "requests", "seed", "threads", "shares", "sla")}
    report: dict[str, Any] = {"machine": machine(), "settings": settings, "lines": []}
    path = options.results / f"{options.name}.json"
    options.results.mkdir(parents=True, exist_ok=True)
    for bits in options.formats:
        first = measure(OURS, bits, [], options)  # compiles, too
        if "error" in first:
            print(bits, first["error"], file=sys.stderr)
            return 1
        capacity = first["runs"][0]["requests_per_second"]
        for who in options.servers:
            if who not in FORMATS[bits]:
                continue
            line = measure(who, bits, [share * capacity for share in options.shares], options)
            report["lines"].append({**line, "shares": options.shares, "capacity": capacity})
            write(path, json.dumps(report, indent=1) + "\n")
            write(path.with_suffix(".md"), markdown(report))
            print(bits, who, line.get("error") or [row(who, r, 0)[3:] for r in line["runs"]], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
