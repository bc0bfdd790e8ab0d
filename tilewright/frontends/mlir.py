"""MLIR of other projects: StableHLO (text and portable bytes), TOSA and linalg on tensors enter at level 3; text of the
`tw` dialect is level 2 already."""

from __future__ import annotations

from pathlib import Path

from torch_mlir import ir

from ..errors import ModelError, UnsupportedError
from ..ir.constants import ConstantTable
from ..ir.context import parse, run_passes, use
from ..ir.graph import INLINE_ELEMENTS, Graph, from_dense
from ..ir.types import type_of
from . import stablehlo

#: passes that bring each dialect to linalg
TO_LINALG = {
    "stablehlo": "inline,func.func(stablehlo-legalize-to-linalg)",
    "tosa": "func.func(tosa-make-broadcastable,tosa-to-linalg-named,tosa-to-linalg,tosa-to-arith,tosa-to-tensor)",
}
#: what a level-3 function may contain besides arith and math
ALLOWED = {
    "linalg.generic", "linalg.fill", "linalg.index", "linalg.yield", "tensor.empty", "tensor.pad", "tensor.yield",
    "tensor.concat", "tensor.expand_shape", "tensor.collapse_shape", "tensor.extract", "tensor.extract_slice",
    "tensor.insert_slice", "func.func", "func.return", "func.call", "builtin.module",
}  # fmt: skip


def load_mlir_file(path: Path) -> Graph:
    """A file of any level, with the constants beside it if `Graph.save` wrote it."""
    side = path.with_suffix(".constants")
    table = ConstantTable.load(side) if side.exists() else None
    graph = load_mlir(path.read_bytes() if path.suffix == ".mlirbc" else path.read_text(), str(path), table)
    graph.check_symbols(str(path))
    return graph


def load_mlir(text: str | bytes, source: str, constants: ConstantTable | None = None) -> Graph:
    """Parse MLIR and bring it to the form the pipeline takes; ModelError or UnsupportedError says what is wrong."""
    module = parse(text, source)
    with use():
        stablehlo.prepare(module)
        graph = Graph(module, constants or ConstantTable())
        _entry(graph, source)
        used = _dialects(module)
        for name, pipeline in TO_LINALG.items():
            if name in used:
                run_passes(module, f"builtin.module({pipeline})", stage="import")
        if graph.level == 3 and not any(op.operation.name == "func.call" for op in graph.block.operations):
            run_passes(
                module, "builtin.module(func.func(linalg-generalize-named-ops),canonicalize,cse)", stage="import"
            )
            _constants_out(graph)
        _check(graph, source)
        graph.verify("import")
        return graph


def _entry(graph: Graph, source: str) -> None:
    """The entry function is called @main; a single function of another name is renamed."""
    functions = [op for op in graph.module.body.operations if op.operation.name == "func.func"]
    if not functions:
        raise ModelError(f"{source} has no function", stage="import")
    names = [ir.StringAttr(f.attributes["sym_name"]).value for f in functions]
    if "main" not in names:
        if len(functions) > 1:
            raise ModelError(f"{source} has no function @main but {', '.join(names)}", stage="import")
        functions[0].attributes["sym_name"] = ir.StringAttr.get("main")


def _dialects(module: ir.Module) -> set[str]:
    found: set[str] = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.add(op.name.partition(".")[0])
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _constants_out(graph: Graph) -> None:
    """Arrays written in the IR move to the constant table."""
    for op in graph.operations():
        if op.name == "arith.constant" and isinstance(op.results[0].type, ir.RankedTensorType):
            t = type_of(op.results[0])
            returned = any(use.owner.operation.name == "func.return" for use in op.results[0].uses)
            if ir.DenseElementsAttr(op.attributes["value"]).is_splat and not returned:
                continue  # kernels have the number in their code
            array = from_dense(op.attributes["value"], t)
            with ir.InsertionPoint(op):
                symbol = None if array.size <= INLINE_ELEMENTS else graph.constants.add(array, "c")
                new = graph.constant_like(array, symbol, op.location, signless_ints=True)
            op.results[0].replace_all_uses_with(new)
            op.erase()


def _check(graph: Graph, source: str) -> None:
    """UnsupportedError listing every kind of operation that level 3 does not have."""
    unknown: dict[str, int] = {}
    main = graph.main.operation

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name not in ALLOWED and op.name.partition(".")[0] not in ("arith", "math", "tw"):
            unknown[op.name] = unknown.get(op.name, 0) + 1
        if op.name == "tensor.extract" and op.parent == main:
            unknown["tensor.extract outside of linalg.generic"] = 1
        return ir.WalkResult.ADVANCE

    graph.module.operation.walk(visit)
    if unknown:
        names = ", ".join(f"{n} ({c}x)" for n, c in sorted(unknown.items()))
        raise UnsupportedError(f"{source} uses operations without a lowering: {names}", stage="import")
