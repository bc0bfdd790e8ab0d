"""Expected-IR tests of the passes: before and after side by side in cases/*.mlir.

A file holds cases, each introduced by ``// CASE name: pipeline``, then the module before, ``// AFTER``, the module
after. ``// CONSTANT w f32 4x3`` puts seeded random numbers (positive ones with ``f32+``) into the constant table.
Every case is also run through the interpreter before and after: the results must agree.

After a change that is meant: ``TILEWRIGHT_UPDATE_GOLDEN=1 pytest tests/ir/test_pass_cases.py`` rewrites the AFTER
parts.

The numbers before and after agree to 1e-6 of the largest, or as ``// TOLERANCE 1e-2`` says.
"""

import os
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from tilewright.graph.interpret import interpret
from tilewright.graph.passes import parse_pipeline, run_pipeline
from tilewright.ir.constants import ConstantTable
from tilewright.ir.context import parse, use
from tilewright.ir.graph import Graph
from tilewright.ir.types import NUMPY, is_float

FOLDER = Path(__file__).parent / "cases"
UPDATE = bool(os.environ.get("TILEWRIGHT_UPDATE_GOLDEN"))


def split(path):
    """[(name, pipeline, before, after)] of a case file."""
    cases = []
    for part in re.split(r"^// CASE ", path.read_text(), flags=re.M)[1:]:
        head, _, body = part.partition("\n")
        name, _, pipeline = head.partition(": ")
        before, _, after = body.partition("// AFTER\n")
        cases.append((name, pipeline.strip(), before, after))
    return cases


CASES = [(path, *case) for path in sorted(FOLDER.glob("*.mlir")) for case in split(path)]


def values(dtype, shape, seed):
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    kind = dtype.rstrip("+")
    if kind == "i1":
        return rng.random(shape) < 0.5
    if is_float(kind):
        array = rng.standard_normal(shape)
        return (np.abs(array) + 0.5 if dtype.endswith("+") else array).astype(NUMPY[kind])
    return rng.integers(0, 4, shape).astype(NUMPY[kind])


def load(text):
    table = ConstantTable()
    for name, dtype, dims in re.findall(r"^// CONSTANT (\S+) (\S+) (\S+)$", text, flags=re.M):
        table.add(values(dtype, tuple(map(int, dims.split("x"))), name), name)
    return Graph(parse(text), table)


def text_of(graph):
    """The functions of the module, printed without locations, one statement a line."""
    with use():
        lines = str(graph.module).splitlines()
    return "\n".join(line.removeprefix("  ") for line in lines[1:-1]) + "\n"


def normalized(text):
    return text_of(Graph(parse(re.sub(r"^//.*$", "", text, flags=re.M))))


@pytest.mark.parametrize("path, name, pipeline, before, after", CASES, ids=[f"{c[0].stem}-{c[1]}" for c in CASES])
def test_case(path, name, pipeline, before, after):
    graph = load(before)
    graph.verify()
    original = graph.clone()
    run_pipeline(graph, parse_pipeline(pipeline))
    actual = text_of(graph)
    tolerance = re.search(r"^// TOLERANCE (\S+)$", before, flags=re.M)
    check_numbers(original, graph, float(tolerance[1]) if tolerance else 1e-6)
    if UPDATE:
        update(path, name, actual)
    else:
        assert actual == normalized(after)


def check_numbers(original, graph, tolerance=1e-6):
    dims = {n: tuple(2 if d is None else d for d in t.shape) for n, t in graph.inputs()}
    inputs = {n: values(t.dtype, dims[n], n) for n, t in original.inputs()}
    expected = interpret(original, inputs, float64=True)
    actual = interpret(graph, inputs, float64=True)
    assert list(expected) == list(actual)
    for key, e in expected.items():
        a = actual[key]
        assert a.dtype == e.dtype and a.shape == e.shape
        if e.dtype.kind == "f" and e.size:
            np.testing.assert_array_equal(np.isfinite(a), np.isfinite(e))
            finite = np.isfinite(e)
            assert np.abs(a[finite] - e[finite]).max(initial=0) <= tolerance * max(
                np.abs(e[finite]).max(initial=0), 1e-30
            )
        else:
            np.testing.assert_array_equal(a, e)


def update(path, name, actual):
    text = path.read_text()
    pattern = rf"(^// CASE {re.escape(name)}: .*?^// AFTER\n)(.*?)(?=^// CASE |\Z)"
    replacement = lambda m: m.group(1) + actual + "\n"  # noqa: E731
    new, count = re.subn(pattern, replacement, text, flags=re.M | re.S)
    assert count == 1, f"no case {name} with an AFTER line in {path}"
    path.write_text(new.rstrip("\n") + "\n")


def test_names_are_unique():
    assert len({(c[0], c[1]) for c in CASES}) == len(CASES) > 0
