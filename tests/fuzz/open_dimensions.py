"""Random graphs with open dimensions against ONNX Runtime: `python tests/fuzz/open_dimensions.py --count 300 --seed 1`.

Each graph (`open_graphs.py`) is compiled once and run at a few sizes: the smallest, the largest, primes, multiples of
16. A result counts as wrong if it is further from ONNX Runtime's than 1e-4 of the largest value (1e-7 where all values
are below 1e-3: what is left of larger ones that cancel); integers have to be the same.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "conformance"), str(HERE.parents[1])]

from isolated import run_isolated  # noqa: E402
from open_graphs import Graph, feed_of, random_graph, sizes_of  # noqa: E402

TIMEOUT, MEMORY, RTOL = 40, 6 << 30, 1e-4
#: outcomes that need no attention
GOOD = ("equal", "refused", "invalid")


@dataclass(frozen=True)
class Outcome:
    """equal (at all sizes), refused (with an error of ours that says why), invalid (ONNX Runtime refuses the graph),
    wrong, wrong at fixed sizes too, error (an exception that is not ours, or one of a stage), crash or hang."""

    seed: int
    outcome: str
    detail: str = ""


def differs(got: np.ndarray, want: np.ndarray) -> str:
    """Why a result counts as wrong, "" if it does not."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    if want.dtype.kind != "f":
        far = got != want
    else:
        scale = np.max(np.abs(want), where=np.isfinite(want), initial=1e-3)
        with np.errstate(all="ignore"):
            far = ~((np.abs(got - want) <= RTOL * scale) | (got == want) | (np.isnan(got) & np.isnan(want)))
    if not far.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(far)[0])
    return f"{far.sum()} of {far.size} differ, at {at}: {got[at]:.8g}, ONNX Runtime has {want[at]:.8g}"


def oracle(data: bytes):
    """ONNX Runtime's session for a model, without its optimizer; a string if it refuses the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(data, options)
    except Exception as e:
        return str(e)


def compare(seed: int, target: str = "cpu") -> Outcome:
    """One graph, at a few sizes."""
    g = random_graph(seed)
    found, detail = judged(g, seed, target)
    return Outcome(seed, found, f"{detail} | {'; '.join(g.steps)}")


def judged(g: Graph, seed: int, target: str = "cpu") -> tuple[str, str]:
    """An outcome of one graph, and what there is to say."""
    import tilewright as tw

    data = g.model().SerializeToString()
    session = oracle(data)
    if isinstance(session, str):
        return "invalid", session
    cases = []
    for i, sizes in enumerate(sizes_of(g)):
        feed = feed_of(g, sizes, seed + i)
        try:
            cases.append((sizes, feed, session.run(None, feed)))
        except Exception as e:
            return "invalid", f"{sizes}: {e}"
    dims = {name: tw.Dim(name, *of) for name, of in g.dims.items()}
    how = {"threads": 1, "cache": False, "target": target}
    try:
        run = tw.compile(data, inputs={n: tuple(dims.get(d, d) for d in s) for n, (s, _) in g.inputs.items()}, **how)
    except Exception as e:
        return "refused" if refuses(e) else "error", f"{type(e).__name__}: {e}"
    for sizes, feed, want in cases:
        try:
            got = run(feed)
        except Exception as e:
            return "error", f"{sizes}: {type(e).__name__}: {e}"
        if why := next(filter(None, map(differs, got, want)), ""):
            closed = tw.compile(data, inputs={n: x.shape for n, x in feed.items()}, **how)(feed)
            too = any(map(differs, closed, want)) and not any(map(differs, got, closed))
            return "wrong at fixed sizes too" if too else "wrong", f"{sizes}: {why}"
    return "equal", ""


def refuses(e: Exception) -> bool:
    """Whether an error says what cannot be compiled; false for one that stands for another exception."""
    from tilewright.support.errors import CompileError, TilewrightError

    if isinstance(e.__cause__, Exception) and not isinstance(e.__cause__, TilewrightError):
        return False
    lacks_size = "not known when the model is compiled" in str(e)
    return isinstance(e, TilewrightError) and (lacks_size or not isinstance(e, CompileError))


def reason(detail: str) -> str:
    """What refusals have in common: the first line without numbers and names.

    >>> reason("Undecided: whether 12*seq < 5 is not known | relu->[seq]")
    'Undecided: whether ... < N is not known'
    """
    if found := re.search(r"opaque: ([^;]*)", detail):  # of all the rules, the one that is for the operator
        detail = f"{re.search(r'kernel ([a-z_]*)_[0-9a-f]{10}', detail)[1]}: {found[1]}"
    text = re.sub(r"[^\s,]*\b(batch|seq|height|width)\b\S*", "...", detail.split(" | ")[0].split("\n")[0])
    return re.sub(r"(\.\.\.[ ,*+/-]*)+", "... ", re.sub(r"\b[tw]?\d[\d.]*\b", "N", text)).strip()[:140]


def lost(seed: int, outcome: str, detail: str, seconds: float) -> Outcome:
    return Outcome(seed, outcome, f"{detail} | {'; '.join(random_graph(seed).steps)}")


def show(result: Outcome) -> None:
    if result.outcome not in GOOD:
        print(f"{result.outcome:8} seed {result.seed}: {' '.join(result.detail.split())[:700]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="of the first graph")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no new graph after this time")
    parser.add_argument("--target", default="cpu", help="what is compiled for, as opencl")
    parser.add_argument("--only", action="store_true", help="the graph of --seed alone, in this process")
    parser.add_argument("--save", type=Path, help="write the graph of --seed to this file")
    arguments = parser.parse_args()
    os.environ.setdefault("TILEWRIGHT_COMPILE", "inprocess")
    if arguments.save:
        arguments.save.write_bytes(random_graph(arguments.seed).model().SerializeToString())
    if arguments.only:
        print(compare(arguments.seed, arguments.target))
        return 0
    seeds, begun = range(arguments.seed, arguments.seed + arguments.count), time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TILEWRIGHT_CACHE", cache)
        outcomes = run_isolated(
            seeds,
            partial(compare, target=arguments.target),
            lost,
            workers=arguments.jobs,
            timeout=TIMEOUT,
            memory=MEMORY,
            progress=show,
            seconds=arguments.seconds,
        )
    for outcome in ("refused", "invalid"):
        reasons = Counter(reason(o.detail) for o in outcomes if o.outcome == outcome)
        for text, n in reasons.most_common(12):
            first = next(o.seed for o in outcomes if o.outcome == outcome and reason(o.detail) == text)
            print(f"{outcome} {n} times, seed {first}: {text}")
    counts = Counter(o.outcome for o in outcomes)
    seconds = time.monotonic() - begun
    print(f"{len(outcomes)} graphs in {seconds:.0f} s: {', '.join(f'{n} {o}' for o, n in counts.most_common())}")
    return bool(set(counts) - set(GOOD))


if __name__ == "__main__":
    sys.exit(main())
