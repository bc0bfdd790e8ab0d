"""Language models beside llama.cpp, OpenVINO, onnxruntime-genai and CTranslate2, in the same minutes.

    export BENCH_HARNESS=... BENCH_VENVS=... BENCH_MODELS=...     # the peers' scripts, environments and models
    python benchmarks/llm.py                                      # all that there are files for, to results/llm.json
    python benchmarks/llm.py --models smollm2_135m --formats q4_0,q8_0 --rounds 1 --name try

BENCH_HARNESS is a folder with one script a peer (`PEERS`), called ``SCRIPT MODEL THREADS --batch N --prompt N ...``,
which prints one JSON line, and `bandwidth.c`. BENCH_VENVS has an environment for each, BENCH_MODELS a folder for each
model with one of its files a format: NAME.gguf, `hf`, `ov_int4`, `ov_int8`, `ort_int4`, `ct2`. All have the same
weights. Tilewright runs in this Python (`llm_worker.py`).

Measured are: 512 tokens of prompt and 64 tokens one by one after them, with 1 and 2 threads; 8 sequences of 64 tokens
together; steps of four rows beside steps of one; the time from the start of a process to its first token, with the
files in memory (warm) and not (cold); the peak memory of each process. Runs of all peers take turns, a round after the
other, every second one backwards; before each, the read bandwidth is measured, and it is waited until other processes
leave the processor alone. What they took during a run is in its line as "others", in processors: above 0.1 a run does
not count where there is a better one. Results are kept after every run, and a run that is there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bench import grid, machine, write  # noqa: E402

MODELS = ("smollm2_135m", "llama_1b", "qwen3_0.6b")
#: bits of a weight, by the format; a folder or, of llama.cpp's kinds, a file
GGUF = {"q4_0": 4, "q4_1": 4, "iq4_nl": 4, "iq4_xs": 4, "q4_k_m": 4, "q5_0": 5, "q5_1": 5, "q5_k_m": 5, "q6_k": 6,
        "q8_0": 8, "f16": 16}  # fmt: skip
BITS = {**GGUF, "ov_int4": 4, "ort_int4": 4, "ov_int8": 8, "ct2": 8, "hf": 16}
MAIN = ("q4_0", "q4_k_m", "q8_0", "f16")
#: of each peer its environment, script and the formats it reads beside those of `--formats`
PEERS = {"openvino": ("ov_int4", "ov_int8"), "ortgenai": ("ort_int4",), "ct2": ("ct2",)}
OURS = "tilewright"
#: above so many processors that others took, a run is disturbed
DISTURBED = 0.1
#: what a run measures, and the arguments for it
KINDS = {"decode": (), "eight": ("--batch", "8", "--prompt", "64"), "rows": ("--rows", "1,4"), "cold": ("--first",),
         "warm": ("--first",), "prepare": ("--prepare",)}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One process: what it measures (`KINDS`), whose, of which model and format."""

    kind: str
    peer: str
    model: str
    format: str
    threads: int

    @property
    def key(self) -> str:
        return f"{self.kind} {self.peer} {self.model} {self.format} t{self.threads}"

    def file(self, models: Path) -> Path:
        return models / self.model / (f"{self.format}.gguf" if self.format in GGUF else self.format)

    def command(self, places: argparse.Namespace) -> list[str]:
        more = KINDS[self.kind]
        path, threads = str(self.file(places.models_dir)), str(self.threads)
        if self.peer == OURS:
            return [sys.executable, str(HERE / "llm_worker.py"), path, threads, *more, *places.ours]
        mode = ("--mode", "int8") if self.peer == "ct2" else ()
        python = places.venvs / self.peer / "bin" / "python"
        reps = ("--reps", "2" if self.model == MODELS[0] else "1")
        return [str(python), str(places.harness / f"{self.peer}_bench.py"), path, threads, *more, *mode, *reps]


def runs(options: argparse.Namespace) -> Iterator[Run]:
    """All runs of a round: who is compared stands together."""
    for model in options.models:
        for kind, threads in (("decode", 1), ("decode", 2), ("eight", 2)):
            for form in options.formats:
                yield Run(kind, OURS, model, form, threads)
                if form in GGUF:
                    yield Run(kind, "llamacpp", model, form, threads)
            yield from (Run(kind, peer, model, form, threads) for peer, forms in PEERS.items() for form in forms)
        for kind in ("rows", "cold", "warm"):
            yield from (Run(kind, OURS, model, form, 2) for form in options.formats)


# ---- the machine ----


def bandwidth(threads: int, options: argparse.Namespace) -> dict:
    """What the threads read and copy per second, now."""
    program = Path(tempfile.gettempdir()) / f"tilewright-bandwidth-{os.getuid()}"
    if not program.exists():
        source = options.harness / "bandwidth.c"
        subprocess.run(["gcc", "-O3", "-march=native", "-pthread", source, "-o", program], check=True)
    return json.loads(subprocess.run([program, str(threads)], capture_output=True, check=True).stdout)


def busy() -> float:
    """Seconds that all processors have worked since the machine started (user, nice, system, interrupts)."""
    fields = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return sum(fields[i] for i in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(most: float) -> None:
    """Until others take less than a tenth of a processor, or so many seconds have gone."""
    end = time.monotonic() + most
    while time.monotonic() < end:
        begin = busy()
        time.sleep(0.5)
        if busy() - begin < 0.05:
            return


def forget(folder: Path) -> None:
    """The system no longer keeps the content of these files in memory."""
    os.sync()
    for file in folder.rglob("*") if folder.is_dir() else (folder,):
        if file.is_file():
            with file.open("rb") as f:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(run: Run, options: argparse.Namespace) -> dict:
    """The line of a run; "error" in it says why there is none."""
    environment = {n: v for n, v in os.environ.items() if n not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    environment["PYTHONPATH"] = os.pathsep.join((str(HERE.parent), os.environ.get("PYTHONPATH", "")))
    environment.setdefault("TILEWRIGHT_PACKAGES_SIZE", "32G")  # nothing is compiled again in the next round
    if run.peer == OURS:  # compiling is not what is measured
        prepared = Run("prepare", OURS, run.model, run.format, run.threads)
        subprocess.run(prepared.command(options), capture_output=True, env=environment, timeout=options.limit)
    if run.kind == "cold":
        forget(run.file(options.models_dir))
        forget(options.cache)
    wait_for_quiet(options.wait)
    line = {"kind": run.kind, "who": run.peer, "shape": run.model, "format": run.format}
    line |= {"at": time.strftime("%Y-%m-%d %H:%M:%S"), **bandwidth(run.threads, options)}
    if run.kind == "cold":  # the bandwidth took a while; nothing else may have read them
        forget(run.file(options.models_dir))
        forget(options.cache)
    begin, mine, start, since = busy(), sum(os.times()[2:4]), time.monotonic(), time.time()
    try:
        done = subprocess.run(
            run.command(options), capture_output=True, text=True, timeout=options.limit, env=environment
        )
        line |= json.loads(done.stdout.strip().splitlines()[-1])
        line.pop("model", None)  # a path of this machine
    except subprocess.TimeoutExpired:
        line["error"] = f"no answer in {options.limit:g} s"
    except (IndexError, ValueError):
        line["error"] = done.stderr.strip()[-300:] or f"ended with {done.returncode}"
    if "first_token_at" in line:
        line["start_s"] = round(line.pop("first_token_at") - since, 3)
    line["others"] = round((busy() - begin - sum(os.times()[2:4]) + mine) / (time.monotonic() - start), 2)
    return line


# ---- the report ----


def better(a: dict, b: dict | None) -> bool:
    """Whether a run is the one to report, of two of the same: the undisturbed, then the faster one."""

    def rank(line: dict) -> tuple[float, float]:
        start = line.get("start_s") or min(line.get("rows_ms", {"": 0}).values())
        return max(line["others"], DISTURBED), -line["tg_tok_s"] if "tg_tok_s" in line else start

    return b is None or rank(a) < rank(b)


def chosen(report: dict) -> dict[tuple, dict]:
    """Of every run the best round, by kind, model, threads, peer and format."""
    found: dict[tuple, dict] = {}
    for line in report["runs"]:
        key = tuple(line[n] for n in ("kind", "shape", "threads", "who", "format"))
        if "error" not in line and better(line, found.get(key)):
            found[key] = line
    return found


def best_peer(found: dict[tuple, dict], kind: str, model: str, threads: int, unit: str, bits: range) -> dict | None:
    """The fastest of the others with formats of so many bits."""
    lines = [v for (k, m, t, who, form), v in found.items()
             if (k, m, t) == (kind, model, threads) and who != OURS and BITS[form] in bits]  # fmt: skip
    return max(lines, key=lambda line: line[unit], default=None)


def against(ours: dict, peer: dict | None, unit: str) -> str:
    if peer is None:
        return "–"
    return f"{peer[unit]:.1f} {peer['who']} {peer['format']} ({ours[unit] / peer[unit]:.2f})"


def speeds(found: dict[tuple, dict], model: str) -> list[str]:
    """Tokens per second of every format beside the best peer with as many bits, and with as many or fewer."""
    rows = [["case", "threads", "format", "tok/s", "of read", "llama.cpp, same format", "best peer, same bits",
             "best peer, same bits or fewer", "peak MB", "over weights and cache"]]  # fmt: skip
    for (kind, m, threads, who, form), line in found.items():
        if m != model or who != OURS or kind not in ("decode", "eight"):
            continue
        bits, same = BITS[form], found.get((kind, m, threads, "llamacpp", form))
        for unit, name in (("tg_tok_s", kind), ("pp_tok_s", "prompt")):
            if name == "prompt" and kind == "eight":
                continue
            read = line["tg_best_tok_s"] * line["weights_MB"] / 1e3 / line["read_GBps"] if name == "decode" else 0
            rows.append([
                name, str(threads), form, f"{line[unit]:.1f}", f"{read:.0%}" if read else "–",
                against(line, same, unit),
                against(line, best_peer(found, kind, m, threads, unit, range(bits, bits + 1)), unit),
                against(line, best_peer(found, kind, m, threads, unit, range(bits + 1)), unit),
                str(line["rss_MB"]), f"{line['rss_MB'] - line['weights_MB'] - line['kv_MB']:.0f}",
            ])  # fmt: skip
    return grid(rows)


def others(found: dict[tuple, dict], model: str) -> list[str]:
    """Four rows, starts."""
    rows = [["format", "one row, ms", "four rows", "start to first token, warm, s", "cold, s"]]
    for form in BITS:
        one = found.get(("rows", model, 2, OURS, form))
        starts = [found.get((kind, model, 2, OURS, form)) for kind in ("warm", "cold")]
        if one is None and starts == [None, None]:
            continue
        ms = {int(n): t for n, t in one["rows_ms"].items()} if one else {}
        cells = [f"{ms[1]:.2f}", f"{ms[4] / ms[1]:.2f} times"] if ms else ["–", "–"]
        rows.append([form, *cells, *(f"{s['start_s']:.2f}" if s else "–" for s in starts)])
    return grid(rows) if len(rows) > 1 else []


def means(found: dict[tuple, dict]) -> list[str]:
    """Geometric means, and the least, of the ratios to the best peer with as many bits."""
    lines = []
    for kind, unit, name in (
        ("decode", "tg_tok_s", "decode"),
        ("decode", "pp_tok_s", "prompt"),
        ("eight", "tg_tok_s", "eight"),
    ):
        ratios = {}
        for (k, m, t, who, form), line in found.items():
            peer = best_peer(found, k, m, t, unit, range(BITS[form], BITS[form] + 1))
            if k == kind and who == OURS and peer is not None:
                ratios[f"{m} {form}, {t} threads"] = line[unit] / peer[unit]
        if ratios:
            least = min(ratios, key=ratios.__getitem__)
            mean = statistics.geometric_mean(ratios.values())
            lines.append(f"- {name}: {mean:.2f} of the best peer in the mean of {len(ratios)}, "
                         f"the least {ratios[least]:.2f} ({least})")  # fmt: skip
    return lines


def failures(report: dict) -> list[str]:
    """What was never measured, and why."""
    texts: dict[str, str] = {}
    for line in sorted(report["runs"], key=lambda line: "error" not in line):
        name = line["run"].rpartition(" round")[0]
        if "error" in line:
            texts[name] = line["error"]
        else:
            texts.pop(name, None)
    return [f"- {name}: {text.strip().splitlines()[-1]}" for name, text in texts.items()]


def markdown(report: dict) -> str:
    found, m = chosen(report), report["machine"]
    lines = [
        "# Language models beside other runtimes", "",
        f"{m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB, {m['system']}, {m['date']}; "
        f"{', '.join(m['features'])}. Made by `benchmarks/llm.py`.", "",
        "Random weights with the shapes of published models. Numbers in parentheses: our tokens per second over the "
        "peer's. \"Of read\" is the size of the weights times the fastest step, over the read bandwidth right before.",
        "", *means(found),
    ]  # fmt: skip
    for model in dict.fromkeys(key[1] for key in found):
        lines += ["", f"## {model}", "", *speeds(found, model), "", *others(found, model)]
    disturbed = sum(line["others"] > DISTURBED for line in found.values())
    lines += ["", f"{disturbed} of {len(found)} runs shown were disturbed by other processes."]
    return "\n".join([*lines, *failures(report)]) + "\n"


# ---- command line ----


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def listed(text: str) -> list[str]:
        return [part for part in text.split(",") if part]

    parser.add_argument("--models", type=listed, default=list(MODELS), help=f"default: {','.join(MODELS)}")
    parser.add_argument("--formats", type=listed, default=list(MAIN), help=f"default: {','.join(MAIN)}; or all")
    parser.add_argument("--kinds", type=listed, help="decode, eight, rows, cold, warm; default: all")
    parser.add_argument("--peers", type=listed, help="default: all that there are files for")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each run (default: 3)")
    parser.add_argument("--wait", type=float, default=60, help="most seconds to wait for a quiet machine (default: 60)")
    parser.add_argument("--limit", type=float, default=600, help="most seconds of a run (default: 600)")
    parser.add_argument("--ours", type=str.split, default=[], help="more arguments for llm_worker.py")
    parser.add_argument("--name", default="llm", help="name of the result files (default: llm)")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where they go")
    for name, variable in (("harness", "HARNESS"), ("venvs", "VENVS"), ("models-dir", "MODELS")):
        given = os.environ.get(f"BENCH_{variable}")
        parser.add_argument(f"--{name}", type=Path, default=given and Path(given), required=given is None)
    options = parser.parse_args()
    options.formats = list(BITS) if options.formats == ["all"] else options.formats
    return options


def main() -> int:
    options = parse_arguments()
    from tilewright.support.options import get

    options.cache = Path(get("TILEWRIGHT_CACHE")) / "models"
    path = options.results / f"{options.name}.json"
    report = json.loads(path.read_text()) if path.exists() else {"runs": []}
    report["machine"] = machine()
    done = {line["run"] for line in report["runs"] if "error" not in line}
    round_ = [
        run for run in runs(options)
        if run.file(options.models_dir).exists()
        and (options.kinds is None or run.kind in options.kinds)
        and (options.peers is None or run.peer in options.peers)
        and (run.peer == OURS or (options.venvs / run.peer).is_dir())
    ]  # fmt: skip
    for number in range(options.rounds):
        for run in round_ if number % 2 == 0 else reversed(round_):
            name = f"{run.key} round {number}"
            if name in done:
                continue
            line = {"run": name, "threads": run.threads, **measure(run, options)}
            report["runs"] = [other for other in report["runs"] if other["run"] != name] + [line]
            options.results.mkdir(parents=True, exist_ok=True)
            write(path, json.dumps(report, indent=1) + "\n")
            write(path.with_suffix(".md"), markdown(report))
            said = ("error", "tg_tok_s", "pp_tok_s", "rows_ms", "start_s", "read_GBps", "rss_MB", "others")
            print(name, {n: line[n] for n in said if n in line}, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
