"""The parts of `codegen.vector`: what a target plugs in is asked first, through the interface that the others have."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tilewright.codegen import vector
from tilewright.codegen.vector.emitter import emit
from tilewright.codegen.vector.part import Part, VectorMachine
from tilewright.schedule.nest import For, Stmt, Store
from tilewright.schedule.parse import parse_nest
from tilewright.support.errors import CompileError

NEST = """
def k(x: f32[8, 16], y: out(f32[8, 16])):
    for i in serial(8):
        for j in vector(16, notes={'engine': 'negate'}):
            y[i, j] = negf(x[i, j])
"""


class Engine(Part):
    """Takes loops with the note ``engine``, and emits a call for each."""

    takes = (For,)

    def begin(self) -> None:
        self.text.line("// the engine starts")

    def end(self) -> None:
        self.text.line("// the engine stops")

    def emit(self, s: Stmt) -> bool:
        name = s.note("engine") if isinstance(s, For) else None
        if name == "negate":
            self.text.line(f"engine.{name}")
        elif name is not None:
            assert isinstance(s, For)
            self.core.refuse(s, "engine", f"there is no {name}")
        return name == "negate"


def test_a_plugged_part_takes_its_loop():
    plain, plugged = emit(parse_nest(NEST), VectorMachine(16)), emit(parse_nest(NEST), VectorMachine(16), (Engine,))
    assert "arith.negf" in plain.text and "engine.negate" not in plain.text
    assert "arith.negf" not in plugged.text and plugged.text.count("engine.negate") == 1
    assert [plugged.text.count(f"the engine {x}") for x in ("starts", "stops")] == [1, 1] and not plugged.refused


def test_what_it_refuses_is_emitted_otherwise():
    made = emit(parse_nest(NEST.replace("negate", "double")), VectorMachine(16), (Engine,))
    assert "arith.negf" in made.text
    assert made.refused == ("loop j asks for engine, which it does not get: there is no double",)


def test_what_a_part_wants_is_asked_once_for_each_statement():
    """However often unrolled loops repeat it; what it does not want it is not offered."""
    asked: list[Stmt] = []

    class Asked(Part):
        takes = (For, Store)

        def wants(self, s: Stmt) -> bool:
            asked.append(s)
            return False

        def emit(self, s: Stmt) -> bool:
            raise AssertionError("it did not want it")

    nest = parse_nest(NEST.replace("serial(8)", "unroll(8)").replace(", notes={'engine': 'negate'}", ""))
    assert emit(nest, VectorMachine(16), (Asked,)).text.count("arith.negf") == 8
    assert [type(s) for s in asked] == [For, For, Store]


def test_no_part_for_an_instruction_that_nobody_has():
    nest = NEST.replace("vector(16, notes={'engine': 'negate'})", "unroll(16, notes={'dot': 'none'})")
    with pytest.raises(CompileError, match="no instruction 'none'"):
        emit(parse_nest(nest), VectorMachine(16))


def test_a_class_of_a_part_has_one_base():
    """What a part needs of another it asks for; it inherits nothing from it."""
    for path in Path(vector.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(b) for b in node.bases]
                assert bases in ([], ["NamedTuple"], ["Part"], ["Protocol"], ["Var"]), f"{path.name}: {node.name}"
