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
import unittest.mock
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
    random (compared by shapes, types, distribution and
    seeds), incomparable (any number would be right: shapes and types are compared), wrong, error, crash or hang."""

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
    for dtype in (
        torch.float32, torch.int64, torch.bool, torch.int32, torch.uint8, torch.float64, torch.complex64,
    ):  # fmt: skip
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
    rtol, atol = [getattr(t, "rtol", 0.0) for t in found], [getattr(t, "atol", t) for t in found]
    return {"rtol": max(1.3e-6, *rtol), "atol": max(1e-5, *atol)}


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
    from tilewright.support.errors import UnsupportedError

    front_end = find(module)
    program = front_end.trace(module, inputs, None)
    try:
        run = Interpreted(program.graph({}))
    except UnsupportedError as e:
        if not e.run_time:
            raise
        run = InParts(front_end.open(program, False))
    return program.wrap(run)


class Interpreted:
    """A graph as an executable, by the references of its operators."""

    memory = None

    def __init__(self, graph: Any) -> None:
        names = [n for n, _ in graph.inputs()]
        self.graph, self._draws = graph, "tw.random_key" in names
        self.inputs = [types.SimpleNamespace(name=n) for n in names if n != "tw.random_key"]

    def __call__(self, *arrays: Any) -> list[Any]:
        import numpy as np

        from tilewright.graph.interpret import interpret
        from tilewright.runtime import random_seed

        given = {i.name: a for i, a in zip(self.inputs, arrays, strict=True)}
        if self._draws:
            given["tw.random_key"] = random_seed.next_key()
        return [np.array(v) for v in interpret(self.graph, given).values()]


class InParts:
    """A program in parts as an executable, whose native parts are `Interpreted`."""

    def __init__(self, source: Any) -> None:
        from tilewright.runtime.staged import Staged

        self.inputs, _ = source.signature()
        self.staged = Staged(lambda: source, lambda graph, _: Interpreted(graph), None)

    def __call__(self, *arrays: Any) -> list[Any]:
        return self.staged.run("main", {i.name: a for i, a in zip(self.inputs, arrays, strict=True)})


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
        draws = getattr(run.executable, "_draws", False)
        any_number = arbitrary(name) or draws
        try:
            torch.testing.assert_close(want, again, **close)
        except AssertionError:
            any_number = True
        if any_number:
            if draws:
                _check_draws(module, run, inputs)
            outcome = "random" if draws else "incomparable"
            close = {**close, "rtol": float("inf"), "atol": float("inf")}
            want, got = (torch.utils._pytree.tree_map(_shape, v) for v in (want, got))
        try:
            torch.testing.assert_close(got, want, **close)
        except AssertionError:
            if not _as_good(sample, module, inputs, got, want, close):
                raise
        count += 1
    return outcome, count


def _as_good(sample: Any, module: Any, inputs: tuple[Any, ...], got: Any, want: Any, close: dict[str, Any]) -> bool:
    """Whether a result is right where it is not PyTorch's: what is determined up to a sign or a phase the table knows
    how to compare; where PyTorch itself is less accurate, its result in float64 counts."""
    import torch

    process = sample.output_process_fn_grad or (lambda x: x)
    wide = torch.utils._pytree.tree_map(_wide, inputs)
    for judge in (want, None):
        try:
            if judge is None:
                narrow = [t.dtype for t in torch.utils._pytree.tree_leaves(want) if isinstance(t, torch.Tensor)]
                if narrow != [t.dtype for t in torch.utils._pytree.tree_leaves(got) if isinstance(t, torch.Tensor)]:
                    return False
                judge = module(*wide)
            torch.testing.assert_close(process(got), process(judge), check_dtype=judge is want, **close)
            return True
        except Exception:  # another judge may do
            continue
    return False


def _wide(tensor: Any) -> Any:
    import torch

    wider = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    return tensor.to(wider[tensor.dtype]) if tensor.dtype in wider else _copy(tensor)


#: numbers that are drawn of a distribution, in so many runs at most, and how far apart the distributions may be
DRAWS, RUNS, FAR = 4000, 100, 4.0


def _check_draws(module: Any, run: Any, inputs: tuple[Any, ...]) -> None:
    """AssertionError unless equal seeds give equal numbers and others others, distributed as PyTorch's are (by the
    statistic of Kolmogorov and Smirnov over all elements of all results)."""
    import numpy as np
    import torch

    from tilewright.runtime import random_seed

    def numbers(result: Any) -> Any:
        tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        return torch.cat([t.detach().double().reshape(-1) for t in tensors]).numpy() if tensors else np.zeros(0)

    def ours(seed: int) -> Any:
        random_seed.set_seed(seed)
        return numbers(run(*map(_copy, inputs)))

    seeds, begin = itertools.count(1), torch.manual_seed

    def drawn_by_torch() -> Any:
        """With another seed each time, also where the table sets one."""
        with unittest.mock.patch.object(torch, "manual_seed", lambda _: begin(next(seeds))):
            torch.manual_seed(0)
            return numbers(module(*map(_copy, inputs)))

    first = drawn_by_torch()
    if not first.size:
        return
    runs = max(2, min(RUNS, DRAWS // first.size))
    theirs = [first, *(drawn_by_torch() for _ in range(runs - 1))]
    drawn = [ours(seed) for seed in range(runs)]
    np.testing.assert_array_equal(ours(0), drawn[0], "equal seeds, other numbers")
    varied = any(not np.array_equal(a, theirs[0], equal_nan=True) for a in theirs)
    if varied and runs >= 20 and all(np.array_equal(a, drawn[0], equal_nan=True) for a in drawn):
        raise AssertionError("other seeds, equal numbers")
    a, b = (np.sort(np.concatenate(v)) for v in (drawn, theirs))
    places = np.concatenate([a, b])
    apart = np.abs(np.searchsorted(a, places, "right") / a.size - np.searchsorted(b, places, "right") / b.size).max()
    limit = FAR * (2 / a.size) ** 0.5
    if apart > limit:
        raise AssertionError(f"the distributions are {apart:.3f} apart, {limit:.3f} at most")


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
