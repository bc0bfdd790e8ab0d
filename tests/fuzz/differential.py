"""Compare Tilewright with ONNX Runtime on a folder of models: `python tests/fuzz/differential.py FOLDER`.

Inputs are random with a fixed seed. A result counts as a mismatch if it is further from ONNX Runtime's than the
tolerance, and also further from the one in double precision than ONNX Runtime is: random models amplify roundings.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / "conformance"), str(Path(__file__).parents[2])]

from isolated import run_isolated  # noqa: E402

TIMEOUT, RTOL = 120, 1e-3


@dataclass(frozen=True)
class Outcome:
    """equal, mismatch, unsupported (either refuses it), error (of ours), crash or hang."""

    name: str
    outcome: str
    detail: str = ""


def feed_of(model, seed: int) -> dict[str, np.ndarray]:
    """Random inputs: floats between 1 and 2 in size (few overflows), small integers."""
    from onnx import helper

    rng = np.random.default_rng(seed)
    constants = {t.name for t in model.graph.initializer}
    feed = {}
    for i in model.graph.input:
        if i.name in constants:
            continue
        t = i.type.tensor_type
        shape, dtype = [d.dim_value for d in t.shape.dim], helper.tensor_dtype_to_np_dtype(t.elem_type)
        if dtype.kind == "f":
            x = rng.uniform(1, 2, shape) * rng.choice([-1, 1], shape)
        elif dtype.kind == "b":
            x = rng.integers(0, 2, shape)
        else:
            x = rng.integers(0 if dtype.kind == "u" else -5, 6, shape)
        feed[i.name] = np.asarray(x).astype(dtype)
    return feed


def oracle(data: bytes, feed):
    """What ONNX Runtime computes, without its optimizer; a string if it refuses the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(data, options).run(None, feed)
    except Exception as e:
        return str(e)


def precise(data: bytes, feed):
    """The operators' references in double precision."""
    from tilewright.frontends.onnx import load
    from tilewright.graph.interpret import interpret

    with np.errstate(all="ignore"):
        return list(interpret(load(data), feed, float64=True).values())


def differs(got: np.ndarray, want: np.ndarray, exact) -> str:
    """Why a result counts as wrong, "" if it does not."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    if got.dtype.kind not in "fV":
        if np.array_equal(got, want):
            return ""
        truth = np.asarray(exact())
        bad = (got != want) & (got != truth)
        return f"{bad.sum()} of {bad.size} integers differ" if bad.any() else ""
    rtol = 2e-2 if got.dtype.itemsize == 2 else RTOL
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        scale = np.nanmax(np.abs(np.where(np.isfinite(b), b, 0)), initial=1.0)
        far = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= rtol * np.abs(b) + 1e-5 * scale))
        if not far.any():
            return ""
        truth = np.asarray(exact()).astype(np.float64)
        own, other = np.abs(a - truth), np.abs(b - truth)
        good = (
            (own <= 3 * other)
            | (a == truth)
            | (np.isnan(a) & np.isnan(truth))
            | (own <= rtol * np.abs(truth) + 1e-5 * scale)
        )
        # beyond what the type can hold, roundings decide between numbers, infinities and NaN
        good |= ~np.isfinite(truth) | (np.abs(truth) > np.finfo(got.dtype).max / 4 if got.dtype.kind == "f" else False)
        bad = far & ~good
    if not bad.any():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(bad))
    values = f"{a[at]:.8g}, ONNX Runtime has {b[at]:.8g}, exact is {truth[at]:.8g}"
    return f"{bad.sum()} of {bad.size} differ, at {at}: {values}"


def compare(path: Path) -> Outcome:
    """One model."""
    import onnx

    data = path.read_bytes()
    model = onnx.load_from_string(data)
    feed = feed_of(model, seed=int("".join(c for c in path.stem if c.isdigit()) or 0))
    want = oracle(data, feed)
    if isinstance(want, str):
        return Outcome(path.name, "unsupported", f"ONNX Runtime: {want}")
    import tilewright as tw
    from tilewright.errors import UnsupportedError

    try:
        got = tw.compile(data).run(feed)
    except UnsupportedError as e:
        return Outcome(path.name, "unsupported", str(e))
    except Exception as e:
        return Outcome(path.name, "error", f"{type(e).__name__}: {e}")
    names = [o.name for o in model.graph.output]
    exact: list = []

    def exactly(i: int):
        if not exact:
            exact.extend(precise(data, feed))
        return exact[i]

    for i, (name, a, b) in enumerate(zip(names, got, want, strict=True)):
        why = differs(a, b, lambda i=i: exactly(i))
        if why:
            return Outcome(path.name, "mismatch", f"{name}: {why}")
    return Outcome(path.name, "equal")


def lost(path: Path, outcome: str, detail: str, seconds: float) -> Outcome:
    return Outcome(path.name, outcome, detail)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no new model after this time")
    parser.add_argument("--only", help="one file, in this process")
    arguments = parser.parse_args()
    os.environ.setdefault("TILEWRIGHT_COMPILE", "inprocess")
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TILEWRIGHT_CACHE", cache)
        if arguments.only:
            print(compare(arguments.folder / arguments.only))
            return 0
        paths = sorted(arguments.folder.glob("*.onnx"))
        begun = time.monotonic()

        def show(result: Outcome) -> None:
            if result.outcome not in ("equal", "unsupported"):
                print(f"{result.outcome:8} {result.name}: {' '.join(result.detail.split())[:300]}", flush=True)

        outcomes = run_isolated(
            paths, compare, lost, workers=arguments.jobs, timeout=TIMEOUT, progress=show, seconds=arguments.seconds
        )
    counts = Counter(o.outcome for o in outcomes)
    seconds = time.monotonic() - begun
    print(f"{len(outcomes)} models in {seconds:.0f} s: {', '.join(f'{n} {o}' for o, n in counts.most_common())}")
    reasons = Counter(" ".join(o.detail.split())[:120] for o in outcomes if o.outcome == "unsupported")
    for reason, n in reasons.most_common(10):
        print(f"  {n} unsupported: {reason}")
    return bool(set(counts) - {"equal", "unsupported"})


if __name__ == "__main__":
    sys.exit(main())
