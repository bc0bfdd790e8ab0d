"""ONNX's own backend tests, compiled and run natively in worker processes: a crash or a hang costs one test."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[i]) for i in (0, 1, 2, 3)]

from conformance_table import not_comparable  # noqa: E402
from isolated import run_isolated  # noqa: E402
from support.onnx_cases import load_cases  # noqa: E402

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
#: seconds for one test
TIMEOUT = 120


@dataclass(frozen=True)
class Result:
    """One test: `outcome` is pass, unsupported (refused with a reason), incomparable (its expected numbers cannot be
    met), wrong, error, crash or hang."""

    kind: str
    name: str
    outcome: str
    detail: str = ""
    seconds: float = 0.0


def cases(kinds: Sequence[str] = KINDS) -> list[tuple[str, Any]]:
    """(kind, test case) of the installed onnx package."""
    return [(kind, case) for kind in kinds for case in load_cases(kind)]


def sample(all_cases: list[tuple[str, Any]], every: int = 10) -> list[tuple[str, Any]]:
    """A representative part: every tenth test of the alphabet, so that each family of operators is met."""
    return sorted(all_cases, key=lambda c: (c[0], c[1].name))[every // 2 :: every]


def select(all_cases: list[tuple[str, Any]], patterns: Sequence[str]) -> list[tuple[str, Any]]:
    return [c for c in all_cases if not patterns or any(fnmatchcase(c[1].name, p) for p in patterns)]


# ---- one test ------------------------------------------------------------------------------------------------------


def data_sets(case: Any, model: Any) -> Iterator[tuple[list, list]]:
    """Inputs and expected outputs of a case."""
    from onnx.backend.test.runner import Runner, _normalize_tensor

    if case.data_sets is not None:
        for ins, outs in case.data_sets:
            yield [_normalize_tensor(x) for x in ins], [_normalize_tensor(x) for x in outs]
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        inputs: list = []
        outputs: list = []
        for out, prefix, infos in ((inputs, "input", model.graph.input), (outputs, "output", model.graph.output)):
            for i in range(len(list(folder.glob(f"{prefix}_*.pb")))):
                Runner._load_proto(None, folder / f"{prefix}_{i}.pb", out, infos[i].type)
        yield inputs, outputs


def flatten(values: Sequence[Any]) -> Iterator[Any]:
    """The arrays of nested lists; lengths are kept as arrays, so that they are compared too."""
    import numpy as np

    for v in values:
        if isinstance(v, (list, tuple)):
            yield np.array(len(v))
            yield from flatten(v)
        else:
            yield v


def check(case: Any) -> None:
    """Raises AssertionError for a wrong result, otherwise what Tilewright raises."""
    import onnx
    from onnx.backend.test.runner import Runner

    import tilewright.compat.onnx_backend as backend

    model = case.model if case.model is not None else onnx.load(Path(case.model_dir) / "model.onnx")
    prepared = backend.prepare(model, target=os.environ.get("TILEWRIGHT_CONFORMANCE_TARGET", "cpu"))
    for inputs, expected in data_sets(case, model):
        outputs = list(flatten(prepared.run(inputs)))  # flat: the suite's comparison of lists fails on 0-d arrays
        wanted = list(flatten(expected))
        special = not_comparable(case.name)
        if special is None:
            Runner.assert_similar_outputs(wanted, outputs, rtol=case.rtol, atol=case.atol)
        elif special[1] is not None:
            Runner.assert_similar_outputs(wanted, outputs, rtol=case.rtol, atol=special[1])
        elif [(x.shape, x.dtype) for x in outputs] != [(x.shape, x.dtype) for x in wanted]:
            raise AssertionError("shapes or types differ")


def run(kind: str, case: Any) -> Result:
    """Run one test in this process."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(case)
        special = not_comparable(case.name)
        outcome, detail = ("pass", "") if special is None else ("incomparable", special[0])
    except AssertionError as e:
        outcome, detail = "wrong", str(e)
    except Exception as e:
        refused = any(t.__name__ == "UnsupportedError" for t in type(e).__mro__)
        outcome, detail = ("unsupported", str(e)) if refused else ("error", f"{type(e).__name__}: {e}")
    return Result(kind, case.name, outcome, detail[:2000], round(time.perf_counter() - start, 3))


def run_all(
    todo: list[tuple[str, Any]],
    *,
    workers: int = 2,
    timeout: float = TIMEOUT,
    progress: Callable[[Result], None] | None = None,
) -> list[Result]:
    """The results of all tests, in order; a dead worker is one crash."""

    def lost(item: tuple[str, Any], outcome: str, detail: str, seconds: float) -> Result:
        return Result(item[0], item[1].name, outcome, detail, seconds)

    return run_isolated(todo, _run, lost, workers=workers, timeout=timeout, progress=progress)


def _run(item: tuple[str, Any]) -> Result:
    return run(*item)
