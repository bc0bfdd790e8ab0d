"""Expected-IR tests of the level-3 passes, in tensor_cases/*.mlir; the form is that of test_pass_cases.py.

``TILEWRIGHT_UPDATE_GOLDEN=1 pytest tests/ir/test_tensor_cases.py`` rewrites the AFTER parts. That the results stay
right is tested by running compiled models (tests/ops, tests/models).
"""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from tilewright.graph.passes import parse_pipeline, run_pipeline
from tilewright.ir.constants import ConstantTable
from tilewright.ir.context import parse, use
from tilewright.ir.graph import Graph

UPDATE = bool(os.environ.get("TILEWRIGHT_UPDATE_GOLDEN"))
CASES = []
for _path in sorted((Path(__file__).parent / "tensor_cases").glob("*.mlir")):
    for _part in re.split(r"^// CASE ", _path.read_text(), flags=re.M)[1:]:
        _head, _, _body = _part.partition("\n")
        _name, _, _pipeline = _head.partition(": ")
        CASES.append((_path, _name, _pipeline.strip(), *(_body.partition("// AFTER\n")[::2])))


@pytest.mark.parametrize("path, name, pipeline, before, after", CASES, ids=[f"{c[0].stem}-{c[1]}" for c in CASES])
def test_case(path, name, pipeline, before, after):
    table = ConstantTable()
    for symbol, dims in re.findall(r"^// CONSTANT (\S+) f32 (\S+)$", before, flags=re.M):
        table.add(np.ones([int(d) for d in dims.split("x")], np.float32), symbol)
    graph = Graph(parse(before), table)
    graph.verify()
    run_pipeline(graph, parse_pipeline(pipeline))
    with use():
        lines = graph.module.operation.get_asm(use_local_scope=True).splitlines()
    actual = "\n".join(line.removeprefix("  ") for line in lines[1:-1]) + "\n"
    if UPDATE:
        text = path.read_text()
        pattern = rf"(^// CASE {re.escape(name)}: .*?^// AFTER\n)(.*?)(?=^// CASE |\Z)"
        path.write_text(
            re.sub(pattern, lambda m: m.group(1) + actual + "\n", text, flags=re.M | re.S).rstrip("\n") + "\n"
        )
    else:
        assert actual.strip() == after.strip()
