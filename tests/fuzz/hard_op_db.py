"""PyTorch's table of operators on hard numbers: `python tests/fuzz/hard_op_db.py`.

Each entry of `op_db` on its first samples, in several element types, with NaN, infinities, signed zeros, subnormals,
ties and the ends of the types in place of floats (of integers where the entry is an elementwise operator or a
reduction). Many operators go into one module, since compiling is what costs; what does not compile is looked for by
halves. A result is right if it is eager PyTorch's, or eager PyTorch's in float64 rounded, bit for bit or within some
units in the last place.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "conformance"), str(HERE.parents[1])]
sys.path[:0] = [str(HERE.parent / "conformance" / "torch")]

from hard_allowed import ANY, TORCH, Seen, excused  # noqa: E402
from isolated import run_isolated  # noqa: E402
from op_db_suite import entries, module_of, select  # noqa: E402
from op_db_table import arbitrary  # noqa: E402
from support.hard_numbers import BF16, DTYPES, draw, hard  # noqa: E402

TYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "bool": "bool", "u8": "uint8"}
TYPES |= {f"i{n}": f"int{n}" for n in (8, 16, 32, 64)}
SAMPLES, PACK, ULPS, RUNS = 2, 12, 8, 6
ORDER = ("pass", "allowed", "wrong")
#: entries that use the numbers they are given as places, sizes or seeds, or whose result any number may be
SKIPPED = (
    "linalg.*", "fft.*", "*sparse*", "stft", "istft", "geqrf", "ormqr", "lu*", "svd*", "pca_lowrank", "cholesky*",
    "*lowrank*", "pinverse", "triangular_solve", "to_sparse", "*jagged*", "nn.functional.ctc_loss",
    "nn.functional.rrelu",
)  # fmt: skip
#: entries that PyTorch computes in as many steps as the number says: those get none beyond 1e4
COUNTED = ("special.*polynomial*", "*polygamma*", "special.zeta")


@dataclass(frozen=True)
class Result:
    """An entry in one type: pass, wrong, allowed, refused, no reference, error, crash or hang."""

    name: str
    dtype: str
    outcome: str
    detail: str = ""


def computes(entry: Any) -> bool:
    """Whether its integers are numbers."""
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

    return isinstance(entry, (BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo))


def hardened(x: Any, rng: np.random.Generator, entry: Any) -> Any:
    """An input with hard numbers in it: all of them for an elementwise operator or a reduction, else few."""
    import torch

    names = {v: k for k, v in TYPES.items()}
    name = names.get(str(x.dtype).removeprefix("torch."))
    floats = x.dtype.is_floating_point
    if name is None or name == "bool" or not x.numel() or x.layout != torch.strided or not (floats or computes(entry)):
        return x
    dtype = DTYPES[name]
    made = draw(rng, dtype, tuple(x.shape), tame=0.15)
    if not computes(entry) or select([entry.name], COUNTED):
        plain = hard(dtype)
        with np.errstate(all="ignore"):
            plain = plain[~(np.abs(plain.astype(np.float64)) > 1e4) | ~np.isfinite(plain)]
        made = plain[rng.integers(0, len(plain), tuple(x.shape))]
    numbers = tensor_of(made)
    if computes(entry):
        return numbers.reshape(x.shape)
    keep = torch.from_numpy(rng.random(tuple(x.shape)) > 0.15)
    return torch.where(keep, x.detach(), numbers.reshape(x.shape))


def leaves(value: Any) -> list[Any]:
    import torch

    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def numpy_of(t: Any) -> np.ndarray:
    """A tensor as an array; NumPy has no bfloat16 of its own."""
    import torch

    t = t.detach().contiguous()
    return t.view(torch.uint16).numpy().view(BF16) if t.dtype == torch.bfloat16 else t.numpy()


def tensor_of(a: np.ndarray) -> Any:
    import torch

    a = np.ascontiguousarray(a)
    return torch.from_numpy(a.view(np.uint16)).view(torch.bfloat16) if a.dtype == BF16 else torch.from_numpy(a)


def close(got: Any, want: Any, scale: float) -> bool:
    return not far(got, want, scale).any()


def far(got: Any, want: Any, scale: float) -> Any:
    """Where two tensors differ."""
    import torch

    if not (got.dtype.is_floating_point or got.dtype.is_complex):
        return got != want
    a, b = (got, want) if got.dtype.is_complex else (got.double(), want.double())
    eps = torch.finfo(got.dtype).eps
    room = ULPS * eps * b.abs() + 4 * eps * scale + 2 * torch.finfo(got.dtype).smallest_normal * eps
    return ~((a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= room))


def wider(inputs: Sequence[Any]) -> list[Any]:
    import torch

    return [t.double() if t.dtype in (torch.float32, torch.float16, torch.bfloat16) else t.clone() for t in inputs]


@dataclass
class Case:
    """An operator on a sample with hard numbers, and what PyTorch gives."""

    name: str
    attributes: dict[str, Any]
    module: Any
    inputs: tuple[Any, ...]
    want: list[Any]
    scale: float

    def differs(self, got: list[Any]) -> tuple[str, str]:
        """ "pass", "allowed" or "wrong", and what differs."""
        if [(t.dtype, t.shape) for t in got] != [(t.dtype, t.shape) for t in self.want]:
            made, wanted = ([(t.dtype, list(t.shape)) for t in v] for v in (got, self.want))
            return "wrong", f"{made} instead of {wanted}"
        exact, allowed = None, ""
        for i, (a, b) in enumerate(zip(got, self.want, strict=True)):
            off = far(a, b, self.scale)
            if off.any() and (a.dtype.is_floating_point or a.dtype.is_complex):
                exact = exact or self._exact()
                if exact and exact[i].shape == a.shape:
                    off = off & far(a, exact[i].to(a.dtype), self.scale)
            if off.any():
                may, why = self._excused(i, a, b)
                allowed = why if (off & may).any() else allowed
                off = off & ~may
            if off.any():
                at = tuple(off.nonzero()[0].tolist())
                read = [repr(t[at].item()) for t in self.inputs if t.shape == a.shape]
                values = f"{a[at].item()!r}, right: {b[at].item()!r}, of {read}"
                return "wrong", f"{int(off.sum())} of {off.numel()} differ, at {at}: {values}"
        return "allowed" if allowed else "pass", allowed

    def _excused(self, output: int, got: Any, want: Any) -> tuple[Any, str]:
        import torch

        def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
            return [numpy_of(t) for t in leaves(self.module(*map(tensor_of, inputs)))]

        if got.dtype.is_complex:
            return torch.zeros(got.shape, dtype=torch.bool), ""
        inputs = [numpy_of(t) for t in self.inputs]
        seen = Seen(inputs, self.attributes, output, numpy_of(got), [numpy_of(want)], run)
        may, why = excused((*TORCH.get(self.name, ()), *ANY), seen)
        return torch.from_numpy(np.array(may)), why

    def _exact(self) -> list[Any]:
        try:
            return leaves(self.module(*wider(self.inputs)))
        except Exception:
            return []


def cases_of(entry: Any, name: str, dtype: str) -> list[Case]:
    """Those of an entry in a type; none where PyTorch does not run it."""
    import torch

    kind = getattr(torch, TYPES[dtype])
    if kind not in entry.supported_dtypes("cpu"):
        return []
    torch.manual_seed(0)
    found, rng = [], np.random.default_rng(len(name))
    for i, sample in enumerate(entry.sample_inputs("cpu", kind, requires_grad=False)):
        if len(found) == SAMPLES or i > 8:
            break
        module, inputs = module_of(entry, sample)
        given = tuple(hardened(x, rng, entry) for x in inputs)
        try:
            want = [t.detach().clone() for t in leaves(module(*(t.clone() for t in given)))]
        except Exception:
            continue
        if not all(  # of a few random numbers two runs may be alike
            close(a, b, 0.0)
            for _ in range(RUNS)
            for a, b in zip(leaves(module(*(t.clone() for t in given))), want, strict=True)
        ):
            continue
        finite = [t[t.isfinite()].double().abs().max() for t in given if not t.is_complex() and t.isfinite().any()]
        elementwise = computes(entry) and type(entry).__name__ != "ReductionOpInfo"
        scale = 0.0 if elementwise or not finite else float(max(finite))
        found.append(Case(name, dict(sample.kwargs), module, given, want, scale))
    return found


def run_cases(cases: Sequence[Case]) -> list[list[Any]]:
    """The results of several operators, compiled as one module."""
    import torch

    import tilewright as tw

    counts = [len(c.inputs) for c in cases]

    class Pack(torch.nn.Module):
        def forward(self, *tensors: Any) -> Any:
            made, at = [], 0
            for c, n in zip(cases, counts, strict=True):
                made.append(leaves(c.module(*tensors[at : at + n])))
                at += n
            return tuple(made)

    inputs = tuple(t.clone() for c in cases for t in c.inputs)
    run = tw.compile(Pack(), inputs, threads=1, cache=False)
    return [list(r) for r in run(*(t.clone() for t in inputs))]


def judged(named: list[tuple[str, Case]]) -> dict[str, tuple[str, str]]:
    """The outcome of each operator by name; those that fail are looked for by halves."""
    try:
        results = run_cases([c for _, c in named])
    except Exception as e:
        if len(named) == 1:
            refused = any(t.__name__ == "UnsupportedError" for t in type(e).__mro__)
            return {named[0][0]: ("refused" if refused else "error", f"{type(e).__name__}: {str(e)[:200]}")}
        half = len(named) // 2
        return {**judged(named[half:]), **judged(named[:half])}
    found: dict[str, tuple[str, str]] = {}
    for (name, case), got in zip(named, results, strict=True):
        outcome = case.differs(got)
        if name not in found or ORDER.index(outcome[0]) > ORDER.index(found[name][0]):
            found[name] = outcome
    return found


def run_pack(item: tuple[str, tuple[str, ...]]) -> list[Result]:
    """Several entries in one type, in this process."""
    dtype, names = item
    table = entries()
    named, results = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            try:
                cases = cases_of(table[name], name, dtype)
            except Exception as e:
                results.append(Result(name, dtype, "no reference", str(e)[:100]))
                continue
            named += [(name, c) for c in cases]
            if not cases:
                results.append(Result(name, dtype, "no reference"))
        for name, (outcome, detail) in judged(named).items() if named else ():
            results.append(Result(name, dtype, outcome, detail))
    return results


def lost(item: Any, outcome: str, detail: str, seconds: float) -> list[Result]:
    return [Result(" ".join(item[1]), item[0], outcome, detail)]


def packs(
    patterns: Sequence[str], types: Sequence[str], size: int, done: Sequence[Result] = ()
) -> list[tuple[str, tuple[str, ...]]]:
    """Elementwise operators and reductions first; without those that have a result."""
    table = entries()
    left = set(select(list(table), SKIPPED))
    names = [n for n in select(list(table), patterns) if n not in left and not arbitrary(n)]
    names.sort(key=lambda n: not computes(table[n]))
    had = {(r.dtype, r.name) for r in done}
    left_of = {t: [n for n in names if (t, n) not in had] for t in types}
    return [(t, tuple(left_of[t][i : i + size])) for i in range(0, len(names), size) for t in types if left_of[t][i:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", help="names of entries, with * and ? (default: all)")
    parser.add_argument("--types", nargs="*", default=["f32", "i32", "f64", "bf16", "u8", "i64"], choices=list(TYPES))
    parser.add_argument("--pack", type=int, default=PACK)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no new pack after this time")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for a pack")
    parser.add_argument("--resume", type=Path, help="a file of results: entries that it has are not run again")
    arguments = parser.parse_args()
    os.environ.setdefault("TILEWRIGHT_COMPILE", "inprocess")
    begun, results = time.monotonic(), []
    if arguments.resume and arguments.resume.exists():
        results = [Result(**json.loads(line)) for line in arguments.resume.read_text().splitlines()]
        results = [r for r in results if " " not in r.name]

    def show(found: list[Result]) -> None:
        results.extend(found)
        if arguments.resume:
            with arguments.resume.open("a") as f:
                f.writelines(json.dumps(asdict(r)) + "\n" for r in found)
        for r in found:
            if r.outcome not in ("pass", "refused", "allowed", "no reference"):
                print(f"{r.outcome:8} {r.name} {r.dtype}: {' '.join(r.detail.split())[:300]}", flush=True)

    todo = packs(arguments.patterns, arguments.types, arguments.pack, results)
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TILEWRIGHT_CACHE", cache)
        run_isolated(
            todo, run_pack, lost, workers=arguments.jobs, timeout=arguments.timeout, progress=show,
            seconds=arguments.seconds,
        )  # fmt: skip
    for dtype in arguments.types:
        counts = Counter(r.outcome for r in results if r.dtype == dtype)
        print(f"{dtype}: {', '.join(f'{n} {o}' for o, n in counts.most_common())}")
    tried = {r.name for r in results if r.outcome in ("pass", "wrong", "allowed")}
    print(f"{len(tried)} entries in {time.monotonic() - begun:.0f} s")
    return bool({r.outcome for r in results} - {"pass", "refused", "allowed", "no reference"})


if __name__ == "__main__":
    sys.exit(main())
