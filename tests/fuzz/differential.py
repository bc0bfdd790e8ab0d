"""Compare Tilewright with ONNX Runtime on a folder of models: `python tests/fuzz/differential.py FOLDER`.

Inputs are random with a fixed seed. A result counts as a mismatch if it is further from ONNX Runtime's, and from the
one in double precision, than the tolerance, and lies outside of what roundings can make of it (conditioning.py).
"""

from __future__ import annotations

import argparse
import itertools
import os
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

from conditioning import Truth, allowed  # noqa: E402
from isolated import run_isolated  # noqa: E402

TIMEOUT, RTOL = 120, 1e-3
#: outcomes that need no attention
GOOD = ("equal", "equal to the references", "refused")


@dataclass(frozen=True)
class Outcome:
    """equal (to ONNX Runtime), equal to the references (ONNX Runtime lacks an operator for one of the types), refused
    (ONNX Runtime finds the model invalid), mismatch, unsupported (by us), error, crash or hang."""

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


def differs(got: np.ndarray, want: np.ndarray, truth: Truth, output: int, target: str = "cpu") -> str:
    """Why a result counts as wrong, "" if it does not; `want` of ONNX Runtime, or as the references have it. What a
    number that is none is as an integer, ONNX does not say: on other targets than processors, anything."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        tolerance = np.zeros(got.shape)
        if got.dtype.kind in "fV":
            scale = np.max(np.abs(b), where=np.isfinite(b), initial=1.0)
            tolerance = (2e-2 if got.dtype.itemsize == 2 else RTOL) * np.abs(b) + 1e-5 * scale
        far = ~((got == want) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= tolerance))
        if target != "cpu" and got.dtype.kind == "i":
            far &= want != np.iinfo(want.dtype).min
        if not far.any():
            return ""
        exact = np.asarray(truth.exact(output)).astype(np.float64)
        far &= ~((np.abs(a - exact) <= tolerance) | (np.isnan(a) & np.isnan(exact)) | (a == exact))
        if far.any():
            far &= ~allowed(got, [exact, want, *truth.samples(output)], np.nan_to_num(tolerance))
    if not far.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(far)[0])
    values = f"{a[at]:.8g}, ONNX Runtime has {b[at]:.8g}, exact is {exact[at]:.8g}"
    return f"{far.sum()} of {far.size} differ, at {at}: {values}"


def compare(path: Path, target: str = "cpu") -> Outcome:
    """One model, on a target."""
    import onnx

    data = path.read_bytes()
    model = onnx.load_from_string(data)
    feed = feed_of(model, seed=int("".join(c for c in path.stem if c.isdigit()) or 0))
    want = oracle(data, feed)
    import tilewright as tw
    from tilewright.support.errors import CompileError, TilewrightError, UnsupportedError

    invalid = isinstance(want, str) and "NOT_IMPLEMENTED" not in want
    try:
        got = tw.compile(data, target=target).run(feed)
    except UnsupportedError as e:
        return Outcome(path.name, "unsupported", str(e))
    except Exception as e:
        if invalid and isinstance(e, TilewrightError) and not isinstance(e, CompileError):
            return Outcome(path.name, "refused", str(want))
        return Outcome(path.name, "error", f"{type(e).__name__}: {e}")
    if invalid:
        return Outcome(path.name, "refused", f"by ONNX Runtime only: {want}")
    truth = Truth(data, feed)
    alone = isinstance(want, str)
    for i, (output, value) in enumerate(zip(model.graph.output, got, strict=True)):
        expected = np.asarray(truth.exact(i)).astype(value.dtype) if alone else want[i]
        why = differs(value, expected, truth, i, target)
        if why:
            return Outcome(path.name, "mismatch", f"{output.name}: {why}")
    return Outcome(path.name, "equal to the references" if alone else "equal")


def lost(path: Path, outcome: str, detail: str, seconds: float) -> Outcome:
    return Outcome(path.name, outcome, detail)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no new model after this time")
    parser.add_argument("--only", help="one file, in this process")
    parser.add_argument("--target", default="cpu", help="what is compiled for, as opencl")
    arguments = parser.parse_args()
    os.environ.setdefault("TILEWRIGHT_COMPILE", "inprocess")
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TILEWRIGHT_CACHE", cache)
        if arguments.only:
            print(compare(arguments.folder / arguments.only, arguments.target))
            return 0
        paths = sorted(arguments.folder.glob("*.onnx"))
        begun = time.monotonic()

        done = itertools.count(1)

        def show(result: Outcome) -> None:
            if (number := next(done)) % 100 == 0:
                print(f"[{number}/{len(paths)}] {time.monotonic() - begun:.0f} s", flush=True)
            if result.outcome not in GOOD:
                print(f"{result.outcome:8} {result.name}: {' '.join(result.detail.split())[:300]}", flush=True)

        outcomes = run_isolated(
            paths,
            partial(compare, target=arguments.target),
            lost,
            workers=arguments.jobs,
            timeout=TIMEOUT,
            progress=show,
            seconds=arguments.seconds,
        )
    counts = Counter(o.outcome for o in outcomes)
    seconds = time.monotonic() - begun
    print(f"{len(outcomes)} models in {seconds:.0f} s: {', '.join(f'{n} {o}' for o, n in counts.most_common())}")
    return bool(set(counts) - set(GOOD))


if __name__ == "__main__":
    sys.exit(main())
