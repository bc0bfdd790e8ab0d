"""PyTorch's own table of operators (`op_db`), each entry compiled through `tw.compile(module, inputs)` and compared
with PyTorch, in worker processes: a crash or a hang costs one entry.

Of an entry its first samples are tried, in float32, or in an integer type or bool where there is no float32.
"""

from __future__ import annotations

import copy
import itertools
import sys
import time
import types
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[3])]

from isolated import run_isolated  # noqa: E402
from op_db_table import arbitrary  # noqa: E402

#: samples of an entry that are tried
SAMPLES = 3
#: seconds for one entry
TIMEOUT = 240


@dataclass(frozen=True)
class Result:
    """One entry: `outcome` is pass, unsupported (refused with a reason), no reference (PyTorch cannot run it here),
    incomparable (any number would be right:
    shapes and types are compared), wrong, error, crash or hang."""

    name: str
    outcome: str
    detail: str = ""
    samples: int = 0
    seconds: float = 0.0


def entries() -> dict[str, Any]:
    """All entries by name; a variant stands after a dot."""
    if "expecttest" not in sys.modules:  # imported by PyTorch's test utilities; the table needs nothing of it
        try:
            import expecttest  # noqa: F401
        except ImportError:
            stand_in = types.ModuleType("expecttest")
            stand_in.TestCase = unittest.TestCase
            sys.modules["expecttest"] = stand_in
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {f"{o.name}.{o.variant_test_name}" if o.variant_test_name else o.name: o for o in op_db}


def dtype_of(entry: Any) -> Any:
    import torch

    supported = entry.supported_dtypes("cpu")
    for dtype in (torch.float32, torch.int64, torch.bool, torch.int32, torch.uint8, torch.float64):
        if dtype in supported:
            return dtype
    return None


def tolerances(entry: Any, dtype: Any) -> dict[str, float]:
    """Those that the table gives the entry, where these are wider than `assert_close` has them."""
    found = [
        d.d[dtype]
        for info in entry.decorators
        for d in getattr(info, "decorators", ())
        if hasattr(d, "d") and dtype in d.d and getattr(info, "device_type", None) in (None, "cpu")
    ]
    if not found:
        return {}
    return {"rtol": max(1.3e-6, *(t.rtol for t in found)), "atol": max(1e-5, *(t.atol for t in found))}


def samples(entry: Any) -> Iterator[Any]:
    import torch

    torch.manual_seed(0)
    return itertools.islice(entry.sample_inputs("cpu", dtype_of(entry), requires_grad=False), SAMPLES)


def module_of(entry: Any, sample: Any) -> tuple[Any, tuple[Any, ...]]:
    """The operator on a sample as a module, and the tensors that it takes."""
    import torch
    from torch.utils import _pytree as pytree

    flat, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]

    class Operator(torch.nn.Module):
        def forward(self, *tensors):
            values = list(flat)
            for place, tensor in zip(places, tensors, strict=True):
                values[place] = tensor
            args, kwargs = pytree.tree_unflatten(values, spec)
            return entry.op(*args, **kwargs)

    return Operator(), tuple(_copy(flat[i].detach()) for i in places)


def _copy(tensor: Any) -> Any:
    """A tensor with memory of its own, which lies as the tensor's does."""
    import torch

    return copy.deepcopy(tensor) if tensor.layout == torch.strided else tensor.clone()


def compiled(module: Any, inputs: tuple[Any, ...], interpret: bool) -> Callable[..., Any]:
    import tilewright as tw

    if not interpret:
        return tw.compile(module, inputs, threads=1, cache=False)
    from tilewright.frontends.protocol import find
    from tilewright.graph.interpret import interpret as references

    program = find(module).trace(module, inputs, None)
    graph = program.graph({})

    class Interpreted:
        _draws = any(n == "tw.random_key" for n, _ in graph.inputs())
        inputs = [types.SimpleNamespace(name=n) for n, _ in graph.inputs() if n != "tw.random_key"]

        def __call__(self, *arrays):
            import numpy as np

            given = {i.name: a for i, a in zip(self.inputs, arrays, strict=True)}
            if len(given) < len(graph.inputs()):
                given["tw.random_key"] = np.array(1, np.int32)
            return [np.array(v) for v in references(graph, given).values()]

    return program.wrap(Interpreted())


def check(entry: Any, name: str, interpret: bool) -> tuple[str, int]:
    """The outcome and the number of samples. Raises AssertionError for a wrong result, else what Tilewright raises."""
    import torch

    count, outcome = 0, "pass"
    for sample in samples(entry):
        module, inputs = module_of(entry, sample)
        try:
            want = module(*map(_copy, inputs))
        except Exception:
            return "no reference", count
        again = module(*map(_copy, inputs))
        run = compiled(module, inputs, interpret)
        got = run(*map(_copy, inputs))
        close = {"check_stride": False, "equal_nan": True, **tolerances(entry, dtype_of(entry))}
        any_number = arbitrary(name) or run.executable._draws
        try:
            torch.testing.assert_close(want, again, **close)
        except AssertionError:
            any_number = True
        if any_number:
            outcome, close = "incomparable", {**close, "rtol": float("inf"), "atol": float("inf")}
            want, got = (torch.utils._pytree.tree_map(_shape, v) for v in (want, got))
        torch.testing.assert_close(got, want, **close)
        count += 1
    return outcome, count


def _shape(value: Any) -> Any:
    import torch

    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else value


_ENTRIES: dict[str, Any] = {}


def run(item: tuple[str, bool]) -> Result:
    """Try one entry in this process."""
    name, interpret = item
    start, count = time.perf_counter(), 0
    if not _ENTRIES:
        _ENTRIES.update(entries())
    if dtype_of(_ENTRIES[name]) is None:
        return Result(name, "unsupported", "samples that are complex or for other devices only")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome, count = check(_ENTRIES[name], name, interpret)
        detail = ""
    except AssertionError as e:
        outcome, detail = "wrong", str(e) or "an assertion"
    except Exception as e:
        refused = any(t.__name__ == "UnsupportedError" for t in type(e).__mro__)
        outcome, detail = ("unsupported", str(e)) if refused else ("error", f"{type(e).__name__}: {e}")
    return Result(name, outcome, detail[:2000], count, round(time.perf_counter() - start, 3))


def select(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    return [n for n in names if not patterns or any(fnmatchcase(n, p) for p in patterns)]


def run_all(
    names: Sequence[str],
    *,
    interpret: bool = False,
    workers: int = 1,
    timeout: float = TIMEOUT,
    progress: Callable[[Result], None] | None = None,
    seconds: float | None = None,
) -> list[Result]:
    """The results of entries, in order; a dead worker is one crash."""

    def lost(item: tuple[str, bool], outcome: str, detail: str, passed: float) -> Result:
        return Result(item[0], outcome, detail, 0, passed)

    todo = [(n, interpret) for n in names]
    return run_isolated(todo, run, lost, workers=workers, timeout=timeout, progress=progress, seconds=seconds)
