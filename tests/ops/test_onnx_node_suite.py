"""ONNX's own operator tests (`onnx.backend.test`, kinds node and simple): import, references, and lowering to
linalg."""

from __future__ import annotations

import runpy
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.onnx_cases import load_cases

from tilewright.frontends.onnx import load
from tilewright.graph.interpret import interpret
from tilewright.ir.context import use
from tilewright.ir.types import type_of
from tilewright.support.errors import ModelError, UnsupportedError
from tilewright.support.sub_byte import NUMPY as NARROW
from tilewright.tensor.lower import lower

HERE = Path(__file__).parent
_TABLE = runpy.run_path(str(HERE / "onnx_known_failures.py"))
KNOWN_FAILURES, COMPARED_ELSEWHERE = _TABLE["KNOWN_FAILURES"], _TABLE["COMPARED_ELSEWHERE"]
run_linalg = runpy.run_path(str(HERE / "linalg_reference.py"))["run_linalg"]


def cases():
    every = [case for kind in ("node", "simple") for case in load_cases(kind)]
    return [case for case in every if case.name not in COMPARED_ELSEWHERE]


CASES = cases()
#: the linalg check walks reductions point by point: only where that is quick
MAX_WORK = 200_000


def read(path: Path, info: onnx.ValueInfoProto):
    """A tensor from a test's data file; None for sequences and optionals (their models are refused before)."""
    if info.type.WhichOneof("value") != "tensor_type":
        return None
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def array(x):
    if isinstance(x, onnx.TensorProto):
        return numpy_helper.to_array(x)
    return None if x is None or isinstance(x, list) else np.asarray(x)


def open_case(case):
    """The model of a case and its data sets: (arrays by input name, expected arrays)."""
    folder = Path(case.model_dir) if case.model_dir else None
    model = case.model or onnx.load(folder / "model.onnx")
    constants = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in constants]
    sets = case.data_sets
    if sets is None:
        sets = []
        for data in sorted(folder.glob("test_data_set_*")):
            ins = [read(data / f"input_{i}.pb", info) for i, info in enumerate(inputs)]
            sets.append((ins, [read(data / f"output_{i}.pb", info) for i, info in enumerate(model.graph.output)]))
    names = [i.name for i in inputs]
    return model, [(dict(zip(names, map(array, ins), strict=False)), list(map(array, outs))) for ins, outs in sets]


def import_case(model, feed):
    """Import; open shapes come from the data, and inputs that have to be constants are fixed to theirs."""
    given: dict = {}
    for _ in range(4):
        try:
            return load(model, inputs=given)
        except ModelError as e:
            if "leaves the shape" not in str(e):
                raise
            given |= {k: v.shape for k, v in feed.items() if v is not None}
        except UnsupportedError as e:
            small = {
                k: v
                for k, v in feed.items()
                if v is not None and v.size <= 64 and not isinstance(given.get(k), np.ndarray)
                if v.dtype.kind in "iub" or v.size <= 8 or "data" in str(e)
            }
            if not small or not ("has to be constant" in str(e) or "depends on the data" in str(e)):
                raise
            given |= small
    return load(model, inputs=given)


def close(actual, expected, rtol, atol):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)


def check(case):
    model, sets = open_case(case)
    for feed, expected in sets:
        graph = import_case(model, feed)
        inputs = {name: feed[name] for name, _ in graph.inputs()}
        outputs = interpret(graph, inputs)
        for (name, value), want in zip(outputs.items(), expected, strict=True):
            half = want.dtype.itemsize == 2 and want.dtype.kind not in "iu"  # the suite rounds every step, we do not
            close(value, want, 2e-2 if half else case.rtol, 5e-3 if half else max(case.atol, 1e-6))
            assert value.dtype == want.dtype, name
        lowered = lower(graph)
        lowered.verify()
        with use():
            small = work(lowered) <= MAX_WORK
        if small:
            for name, value in run_linalg(lowered, inputs).items():
                if outputs[name].dtype in NARROW.values():  # level 3 holds their codes
                    value = value.view(np.uint8)
                    np.testing.assert_array_equal(value, outputs[name].view(np.uint8))
                    continue
                half = value.dtype.itemsize == 2
                close(value, outputs[name], 2e-2 if half else 1e-4, 1e-2 if half else 1e-5)


def work(graph) -> int:
    """Elements that pass through the graph, as an estimate of the time to evaluate it."""
    results = [op.results[0] for op in graph.operations() if op.results]
    return sum(type_of(r).size for r in results if "tensor<" in str(r.type))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_onnx(case):
    reason = next((r for pattern, r in KNOWN_FAILURES.items() if fnmatchcase(case.name, pattern)), None)
    if reason is None:
        check(case)
        return
    try:
        check(case)
    except UnsupportedError:
        return
    pytest.fail(f"{case.name} passes now, but is listed as a known failure ({reason}): remove it from the table")


def test_every_pattern_is_used():
    unused = [p for p in KNOWN_FAILURES if not any(fnmatchcase(c.name, p) for c in CASES)]
    assert not unused
