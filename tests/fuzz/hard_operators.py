"""ONNX's node tests on hard numbers: `python tests/fuzz/hard_operators.py`.

The models of ONNX's own tests of operators, with other inputs: floats are NaN, infinities, signed zeros, subnormals,
ties and the ends of the type, first few among ordinary numbers, then all; integers as well where an operator computes
with them (elsewhere they are places and sizes). A result is right if it is that of ONNX's reference or of ONNX
Runtime, bit for bit or within some units in the last place; where those two disagree is told at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "conformance"), str(HERE.parents[1])]
sys.path[:0] = [str(HERE.parent / "conformance" / "onnx")]

from conformance_suite import cases, data_sets, flatten, select  # noqa: E402
from conformance_table import not_comparable, reason_of  # noqa: E402
from hard_allowed import ANY, OPERATORS, Seen, excused  # noqa: E402
from isolated import run_isolated  # noqa: E402
from support.hard_numbers import draw, hard, is_float  # noqa: E402

#: operators whose integers are numbers, not places or sizes
COMPUTES = (
    "Abs", "Add", "And", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike",
    "Clip", "Concat", "Div", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max",
    "Mean", "Min", "Mod", "Mul", "Neg", "Not", "Or", "ReduceL1", "ReduceMax", "ReduceMin", "ReduceProd",
    "ReduceSum", "Relu", "Sign", "Sub", "Sum", "Transpose", "Where", "Xor", "ArgMax", "ArgMin", "Flatten",
    "Squeeze", "DynamicQuantizeLinear",
)  # fmt: skip
#: outputs may be off by so many units in the last place, and so much of the largest number that went in
ULPS, RELATIVE = 16, 1e-6
MODES = ("few", "all")
#: operators whose other floats are places, sizes or scales -> their inputs that are numbers
NUMBERS = {"OneHot": (2,), "Resize": (0,), "Upsample": (0,), "RoiAlign": (0,), "Range": (), "NonMaxSuppression": (1,)}
NUMBERS |= {"QuantizeLinear": (0, 1)}  # a zero point of floats is zero


@dataclass(frozen=True)
class Result:
    """One test: `pass`, `allowed` (what differs has a reason in `hard_allowed.py`), `wrong`, `refused` (by us),
    `no reference` (neither runs it), `error`, `crash` or `hang`; whether the references disagree, and where."""

    name: str
    operator: str
    outcome: str
    detail: str = ""
    disagree: str = ""


def hardened(x: np.ndarray, rng: np.random.Generator, mode: str, integers: bool) -> np.ndarray:
    """An input of a test with hard numbers in it."""
    if not isinstance(x, np.ndarray) or x.size == 0 or x.dtype.kind in "OUSc":
        return x
    if x.dtype.kind in "iu" and not integers:
        return x
    if x.dtype.kind == "b" or (not is_float(x.dtype) and x.dtype.kind not in "iu"):
        return x
    made = draw(rng, x.dtype, x.shape, tame=0.1)
    if mode == "all":
        return made
    plain = hard(x.dtype)
    if is_float(x.dtype):
        with np.errstate(all="ignore"):
            plain = plain[~(np.abs(plain.astype(np.float64)) > 1e4) | ~np.isfinite(plain)]
        made = plain[rng.integers(0, len(plain), x.shape)]
    return np.where(rng.random(x.shape) < 0.15, made, x).astype(x.dtype)


def close(got: np.ndarray, want: np.ndarray, scale: float) -> np.ndarray:
    """Where a result is as wanted."""
    if got.dtype.kind in "OUS" or want.dtype.kind in "OUS":
        return np.asarray(got == want)
    a, b = got.astype(np.float64), want.astype(np.float64)
    same = (got == want) | (np.isnan(a) & np.isnan(b))
    if not is_float(got.dtype):
        return same
    eps = 2.0**-10 if got.dtype.itemsize == 2 else 1e-7 if got.dtype.itemsize == 4 else 2.3e-16
    eps = 2.0**-7 if got.dtype.name == "bfloat16" else eps
    room = ULPS * eps * np.abs(b) + (RELATIVE * scale if np.isfinite(scale) else 0) + 1e-45
    return same | (np.abs(a - b) <= room)


def references(model: Any, feed: dict[str, Any]) -> list[list]:
    """What ONNX's evaluator and ONNX Runtime give; without those that do not run it."""
    import onnxruntime

    found = []
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    for make in (
        lambda: ReferenceEvaluator(model).run(None, feed),
        lambda: onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feed),
    ):
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append([np.asarray(v) for v in flatten(make())])
        except Exception:
            found.append([])
    return found


def judged(got: list[np.ndarray], found: list[list], scale: float, model: Any, given: list) -> tuple[str, str, str]:
    """Why a result is wrong, what is allowed of it, and where the references disagree; "" for none."""
    why = allowed = apart = ""
    node = next(reversed(model.graph.node))
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}

    def run(inputs: list) -> list:
        feed = {i.name: v for i, v in zip(model.graph.input, inputs, strict=True)}
        return [np.asarray(v) for v in ReferenceEvaluator(model).run(None, feed)]

    taken = dict(zip([i.name for i in model.graph.input], given, strict=False))
    inputs = [taken.get(n) for n in node.input]
    for i, made in enumerate(got):
        made = np.asarray(made)
        wants = [f[i] for f in found if f and f[i].shape == made.shape and f[i].dtype == made.dtype]
        if not wants:
            return f"output {i} is {made.dtype}{list(made.shape)}", allowed, apart
        right = [close(made, w, scale) for w in wants]
        if len(wants) == 2 and not (both := close(wants[1], wants[0], scale)).all():
            at = tuple(np.argwhere(~both)[0])
            whose = "reference" if right[0].all() else "ONNX Runtime" if right[1].all() else "neither's throughout"
            apart = f"{wants[0][at].item()!r}, ONNX Runtime {wants[1][at].item()!r}; ours is {whose}"
        off = ~np.logical_or.reduce(right)
        if off.any():
            seen = Seen(inputs, attributes, i, made, wants, run)
            may, reason = excused((*OPERATORS.get(node.op_type, ()), *ANY), seen)
            allowed = allowed or (f"{reason}: {(off & may).sum()} of {off.size}" if (off & may).any() else "")
            off = off & ~may
        if off.any():
            at = tuple(np.argwhere(off)[0])
            values = ", ".join(repr(w[at].item()) for w in wants)
            why = (
                why
                or f"{off.sum()} of {off.size} differ, at {tuple(map(int, at))}: {made[at].item()!r}, right: {values}"
            )
    return why, allowed, apart


def check(case: Any) -> Result:
    """One test, in this process."""
    import tilewright.compat.onnx_backend as backend

    model, name = case.model, case.name
    operator = next(n.op_type for n in reversed(model.graph.node))
    integers = len(model.graph.node) == 1 and operator in COMPUTES
    names = [i.name for i in model.graph.input]
    try:
        prepared = backend.prepare(model, target=os.environ.get("TILEWRIGHT_CONFORMANCE_TARGET", "cpu"))
    except Exception as e:
        refused = any(t.__name__ == "UnsupportedError" for t in type(e).__mro__)
        return Result(name, operator, "refused" if refused else "error", str(e)[:300])
    why = apart = allowed = ""
    compared = 0
    for mode in MODES:
        rng = np.random.default_rng(len(name))
        for inputs, _ in data_sets(case, model):
            with np.errstate(all="ignore"):
                numbers = NUMBERS.get(operator, range(len(inputs)))
                given = [hardened(x, rng, mode, integers) if i in numbers else x for i, x in enumerate(inputs)]
            feed = dict(zip(names, given, strict=False))
            found = references(model, feed)
            if not any(found):
                continue
            floats = [x for x in given if isinstance(x, np.ndarray) and is_float(x.dtype)]
            sizes = [np.abs(x[np.isfinite(x)].astype(np.float64)).max(initial=0) for x in floats]
            elementwise = any(f and np.asarray(f[0]).shape == np.asarray(given[0]).shape for f in found if given)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    got = [np.asarray(v) for v in flatten(prepared.run(given))]
            except Exception as e:
                return Result(name, operator, "error", f"{type(e).__name__}: {str(e)[:300]}")
            scale = 0.0 if elementwise and operator in COMPUTES else max(sizes, default=1.0)
            w, may, a = judged(got, found, scale, model, given)
            why, allowed, apart, compared = why or (w and f"{mode}: {w}"), allowed or may, apart or a, compared + 1
    if not compared:
        return Result(name, operator, "no reference")
    return Result(name, operator, "wrong" if why else "allowed" if allowed else "pass", why or allowed, apart)


def run_test(case: Any) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return check(case)
        except Exception as e:
            return Result(case.name, "", "error", f"{type(e).__name__}: {str(e)[:300]}")


def todo(patterns: list[str]) -> list[Any]:
    """The tests of one model each that can be compared; not those of operators written out as others."""
    found = [c for _, c in select(cases(["node"]), patterns)]
    return [
        c
        for c in found
        if c.model is not None
        and not_comparable(c.name) is None
        and reason_of(c.name) is None
        and "_expanded" not in c.name
        and not any(i.type.HasField("sequence_type") or i.type.HasField("optional_type") for i in c.model.graph.input)
    ]


def lost(case: Any, outcome: str, detail: str, seconds: float) -> Result:
    return Result(case.name, "", outcome, detail)


def summary(results: list[Result]) -> str:
    counts = Counter(r.outcome for r in results)
    operators = {r.operator for r in results if r.outcome in ("pass", "allowed", "wrong")}
    lines = [
        f"{len(results)} tests of {len(operators)} operators: {', '.join(f'{n} {o}' for o, n in counts.most_common())}"
    ]
    apart: dict[str, str] = {}
    for r in results:
        if r.disagree:
            apart.setdefault(r.operator, f"{r.name}: {r.disagree}")
    lines.append(f"the references disagree in {len(apart)} operators:")
    return "\n".join(lines + [f"- {o} ({text})" for o, text in sorted(apart.items())])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", help="names of tests, with * and ? (default: all)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no new test after this time")
    parser.add_argument("--target", default="cpu")
    arguments = parser.parse_args()
    os.environ.setdefault("TILEWRIGHT_COMPILE", "inprocess")
    os.environ["TILEWRIGHT_CONFORMANCE_TARGET"] = arguments.target
    begun = time.monotonic()

    def show(r: Result) -> None:
        if r.outcome not in ("pass", "refused", "allowed", "no reference"):
            print(f"{r.outcome:8} {r.name}: {' '.join(r.detail.split())[:300]}", flush=True)

    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TILEWRIGHT_CACHE", cache)
        results = run_isolated(
            todo(arguments.patterns), run_test, lost, workers=arguments.jobs, timeout=120, progress=show,
            seconds=arguments.seconds,
        )  # fmt: skip
    print(f"{summary(results)}\n{time.monotonic() - begun:.0f} s")
    return bool({r.outcome for r in results} - {"pass", "refused", "allowed", "no reference"})


if __name__ == "__main__":
    sys.exit(main())
