"""One language model under Tilewright, by token ids, for `llm.py`: what is measured as a JSON line.

    python benchmarks/llm_worker.py MODEL THREADS [--batch 8] [--prompt 512] [--tokens 64] [--reps 3]
    python benchmarks/llm_worker.py MODEL THREADS --rows 1,4       # steps of one row and of four, in turns
    python benchmarks/llm_worker.py MODEL THREADS --first          # only load it and give the first token
    python benchmarks/llm_worker.py MODEL THREADS --prepare        # only compile it into the package cache
    python benchmarks/llm_worker.py MODEL THREADS --profile        # one step of decoding, by kernel

MODEL is a folder of Hugging Face, a GGUF file or a package. Arguments, tokens and the meaning of the numbers are those
of the peers' scripts (`llm.py`): the prompt is one step, tokens are given, not chosen.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np

from tilewright import __version__
from tilewright.llm.batch import Batch
from tilewright.llm.program import compilations, load_model
from tilewright.program.barriers import barriers

#: what all runs are compiled for, so that they share a package
CONTEXT, SEQUENCES, PAGE = 1024, 8, 16


def arguments() -> argparse.Namespace:
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model")
    a.add_argument("threads", type=int)
    a.add_argument("--target", default="cpu")
    a.add_argument("--batch", type=int, default=1)
    a.add_argument("--prompt", type=int, default=512)
    a.add_argument("--tokens", type=int, default=64)
    a.add_argument("--reps", type=int, default=3)
    a.add_argument("--seconds", type=float, default=45, help="no further repetition begins after this many")
    a.add_argument("--precision", default="auto")
    a.add_argument("--cache-dtype", default="bf16")
    a.add_argument("--rows", type=lambda text: [int(n) for n in text.split(",")], default=[])
    a.add_argument("--first", action="store_true")
    a.add_argument("--prepare", action="store_true")
    a.add_argument("--profile", action="store_true")
    return a.parse_args()


def weights_bytes(path: Path) -> int:
    """Bytes of the model's files."""
    files = [path] if path.is_file() else list(path.glob("*.safetensors"))
    return sum(f.stat().st_size for f in files)


class Steps:
    """Steps of some sequences of the same length, each in pages of its own."""

    def __init__(self, runner, ids: np.ndarray) -> None:
        self.runner, self.ids = runner, ids.astype(np.int32)
        pages = CONTEXT // PAGE
        self.table = np.arange(len(ids) * pages, dtype=np.int32).reshape(len(ids), pages)

    def run(self, *what) -> np.ndarray:
        """The logits of a `batch`."""
        return self.runner.step(self.batch(*what)).logits

    def batch(self, first: int, count: int, sequences: slice = slice(None), every: bool = True) -> Batch:
        """Positions `first` to `first + count` of these sequences; with the logits of all or of each one's last."""
        ids, table = self.ids[sequences, first : first + count], self.table[sequences]
        positions = np.tile(np.arange(first, first + count, dtype=np.int32), (len(ids), 1))
        slots = np.take_along_axis(table, positions // PAGE, 1) * PAGE + positions % PAGE
        starts = np.arange(len(ids) + 1, dtype=np.int32) * count
        rows = np.arange(ids.size, dtype=np.int32) if every else starts[1:] - 1
        filled = -(-(first + count) // PAGE)
        return Batch(
            ids.reshape(-1), positions.reshape(-1), slots.reshape(-1).astype(np.int32), starts,
            np.full(len(ids), first + count, np.int32), np.ascontiguousarray(table[:, :filled]), rows,
        )  # fmt: skip

    def prompt(self, count: int) -> np.ndarray:
        """All prompts: as many together as a step takes."""
        together = max(1, self.runner.limits.tokens // count)
        for at in range(0, len(self.ids), together):
            logits = self.run(0, count, slice(at, at + together), False)
        return logits


def seconds(work, *given) -> float:
    begin = time.perf_counter()
    work(*given)
    return time.perf_counter() - begin


def decoding(a: argparse.Namespace, steps: Steps) -> dict:
    """Prompts, then tokens one by one, as the peers' scripts do it."""
    pp, tg, begin = [], [], time.perf_counter()
    steps.prompt(a.prompt)
    steps.run(a.prompt, 1)
    for rep in range(a.reps):
        if rep and time.perf_counter() - begin > a.seconds:
            break
        pp.append(seconds(steps.prompt, a.prompt))
        tg.append([seconds(steps.run, a.prompt + i, 1) for i in range(a.tokens)])
    return {
        "batch": a.batch,
        "reps": len(pp),
        "pp_tok_s": round(a.prompt * a.batch / min(pp), 2),
        "tg_tok_s": round(a.tokens * a.batch / min(map(sum, tg)), 2),
        "tg_best_tok_s": round(a.batch / min(map(min, tg)), 2),
    }


def by_rows(a: argparse.Namespace, steps: Steps) -> dict:
    """Steps of several rows of one sequence behind the prompt, in turns; the fastest and the median of each."""
    steps.prompt(a.prompt)
    times: dict[int, list[float]] = {n: [] for n in a.rows}
    for _ in range(a.tokens):
        for n in a.rows:
            times[n].append(seconds(steps.run, a.prompt, n))
    return {
        "rows_ms": {n: round(1e3 * min(t), 3) for n, t in times.items()},
        "rows_median_ms": {n: round(1e3 * float(np.median(t)), 3) for n, t in times.items()},
    }


def by_kernel(a: argparse.Namespace, steps: Steps) -> dict:
    """One step of decoding: its kernels, its barriers, and the time by kernel (`Executable.profile`)."""
    steps.prompt(a.prompt)
    entry, batch = steps.runner.executable.entries["decode"], steps.batch(a.prompt, 1)
    profile = entry.profile([getattr(batch, t.name) for t in entry.inputs])
    calls = entry.package.program.calls
    return {"kernels": len(calls), "barriers": sum(barriers(calls)), "profile": str(profile)}


def main() -> None:
    a = arguments()
    begin = time.perf_counter()
    runner = load_model(
        a.model, target=a.target, threads=a.threads, context=CONTEXT, sequences=SEQUENCES,
        cache_tokens=CONTEXT * SEQUENCES, page_length=PAGE, precision=a.precision, cache_dtype=a.cache_dtype,
    )  # fmt: skip
    load = time.perf_counter() - begin
    vocabulary = runner.limits.vocabulary
    ids = np.random.default_rng(0).integers(3, vocabulary, (a.batch, a.prompt + max(a.tokens, *a.rows, 1)))
    steps = Steps(runner, ids)
    found: dict = {}
    if a.first:
        int(np.argmax(steps.run(0, 16)[-1]))
        found = {"first_token_at": time.time()}
    elif a.profile:
        found = by_kernel(a, steps)
    elif a.rows:
        found = by_rows(a, steps)
    elif not a.prepare:
        found = decoding(a, steps)
    line = {
        "peer": f"tilewright {__version__}", "model": a.model, "threads": a.threads, "precision": a.precision, **found,
        "load_s": round(load, 2), "compilations": compilations(),
        "weights_MB": round(weights_bytes(Path(a.model)) / 1e6, 1),
        "kv_MB": round(sum(v.nbytes for v in runner.executable.states.values()) / 1e6, 1),
        "rss_MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }  # fmt: skip
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
