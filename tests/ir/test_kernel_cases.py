"""Expected IR of whole kernels at the levels 3, 4 and 5, on described machines: kernel_cases/*.mlir, one case a file.

A file begins with a sentence on what it shows and these lines, as far as they are needed::

    // MACHINES zen4 neon       those it is made for; without the line all of `MACHINES`
    // CODE zen4                those whose level 5 is kept too; keep it where the case is about code
    // OPTIONS precision=bf16   of the compilation
    // CONSTANT w f32 8x40      an array in the table of constants, of small integers

Then stands a graph of level 2 (``func.func @main``) or a loop nest of level 4 (``def``; only level 5 is made of it).
Below is what the stages of the pipeline make of it::

    // LEVEL 3: zen4 avx2 neon  the kernels after fusion, and after the division of those that are too large for one
    // LEVEL 4: zen4            of each kernel the rule, the trace of primitives and the loop nest
    // LEVEL 5: zen4            the emitted text

Machines that get the same text share a part. Nothing is compiled or run: that results are right is tested elsewhere.

After a change that is meant, and for a new case, of which only the beginning is written by hand:
``TILEWRIGHT_UPDATE_GOLDEN=1 pytest tests/ir/test_kernel_cases.py`` writes the parts. Read the difference.
"""

from __future__ import annotations

import difflib
import os
import re
from math import prod
from pathlib import Path

import numpy as np
import pytest
from support import machines

from tilewright.driver.compile_state import State
from tilewright.driver.request import CompileRequest
from tilewright.driver.stages import stages
from tilewright.ir.constants import ConstantTable
from tilewright.ir.context import parse, use
from tilewright.ir.graph import Graph
from tilewright.ir.types import NUMPY
from tilewright.schedule.text import parse_nest
from tilewright.targets.base import find
from tilewright.targets.cpu.emit import emit
from tilewright.tensor.divide import symbol_of

FOLDER = Path(__file__).parent / "kernel_cases"
UPDATE = bool(os.environ.get("TILEWRIGHT_UPDATE_GOLDEN"))
MACHINES = {"zen4": machines.MACHINES["zen4"], "avx2": machines.MACHINES["avx2"], "neon": machines.NEON}
_HEAD = re.compile(r"^// LEVEL (\d): (.*)\n", re.M)

Parts = dict[tuple[int, str], str]


def read(path: Path) -> tuple[str, Parts]:
    """The part written by hand, and the expected text by level and machine."""
    before, *rest = _HEAD.split(path.read_text())
    parts = zip(rest[::3], rest[1::3], rest[2::3], strict=True)
    return before, {(int(level), m): text.strip() for level, names, text in parts for m in names.split()}


def written(before: str, parts: Parts) -> str:
    """A case file; equal parts of a level stand once."""
    found: dict[tuple[int, str], list[str]] = {}
    for level, machine in sorted(parts, key=lambda p: (p[0], list(MACHINES).index(p[1]))):
        found.setdefault((level, parts[level, machine]), []).append(machine)
    made = [f"// LEVEL {level}: {' '.join(names)}\n{text}\n" for (level, text), names in found.items()]
    return "\n".join([before.rstrip() + "\n", *made])


def words(before: str, key: str, default: str = "") -> list[str]:
    """What stands on the line of a key."""
    line = re.search(rf"^// {key} (.*)$", before, flags=re.M)
    return (line[1] if line else default).split()


def targets(before: str) -> list[str]:
    return words(before, "MACHINES", " ".join(MACHINES))


def made(before: str, machine: str) -> Parts:
    """What a case is on a machine, by level."""
    text = re.sub(r"^//.*\n", "", before, flags=re.M).strip() + "\n"
    if text.startswith("def "):
        return {(5, machine): emit(parse_nest(text), MACHINES[machine]).text.strip()}
    state = compiled(before, text, machine)
    with use():
        kernels = [f for f in state.module.functions() if symbol_of(f) in state.nests]
        tensors = [f.operation.get_asm(use_local_scope=True) for f in kernels]
    parts = {(3, machine): "\n\n".join(tensors), (4, machine): "\n\n".join(map(loops, state.schedules.values()))}
    if machine in words(before, "CODE"):
        parts[5, machine] = "\n\n".join(text.strip() for text in state.emitted.values())
    return parts


def compiled(before: str, text: str, machine: str) -> State:
    """The graph after the stage `emit`, by the default rules: no tuning database, nothing from a cache."""
    table = ConstantTable()
    for name, dtype, dims in re.findall(r"^// CONSTANT (\S+) (\S+) (\S+)$", before, flags=re.M):
        shape = tuple(map(int, dims.split("x")))
        table.add((np.arange(prod(shape)) % 7 - 3).astype(NUMPY[dtype]).reshape(shape), name)
    options = dict(word.split("=") for word in words(before, "OPTIONS"))
    request = CompileRequest.of(Graph(parse(text), table), threads=1, tuned=False, **options)
    state = State(request, find("cpu"), MACHINES[machine])
    for stage in stages(state.target):
        stage.run(state)
        if stage.name == "emit":
            return state
    raise AssertionError("the pipeline has no stage 'emit'")


def loops(scheduled) -> str:
    """Level 4 of a kernel."""
    lines = f"# rule: {scheduled.rule}\n{scheduled.schedule.trace}\n{scheduled.nest}".splitlines()
    return "\n".join(line.rstrip() for line in lines)


CASES = [(path, m) for path in sorted(FOLDER.glob("*.mlir")) for m in targets(read(path)[0])]


@pytest.mark.parametrize("path, machine", CASES, ids=[f"{path.stem}-{machine}" for path, machine in CASES])
def test_case(path, machine):
    before, expected = read(path)
    actual = made(before, machine)
    if UPDATE:
        others = {p: text for p, text in expected.items() if p[1] != machine and p[1] in targets(before)}
        path.write_text(written(before, {**others, **actual}))
        return
    mine = {p: text for p, text in expected.items() if p[1] == machine}
    if actual != mine:
        pytest.fail(difference(path, mine, actual), pytrace=False)


def difference(path: Path, expected: Parts, actual: Parts) -> str:
    """What is not as expected, and what to do if it is meant."""
    lines = []
    for level, machine in sorted({*expected, *actual}):
        old, new = (p.get((level, machine), "").splitlines() for p in (expected, actual))
        name = f"{path.stem}, level {level} on {machine}"
        lines += difflib.unified_diff(old, new, f"{name}: expected", f"{name}: made", lineterm="")
    hint = "if this is meant: TILEWRIGHT_UPDATE_GOLDEN=1 pytest tests/ir/test_kernel_cases.py, and read the difference"
    return "\n".join([*lines, hint])


def test_files_are_as_an_update_writes_them():
    for path in sorted(FOLDER.glob("*.mlir")):
        assert path.read_text() == written(*read(path)), path.name
