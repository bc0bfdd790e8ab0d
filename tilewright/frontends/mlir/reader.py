"""MLIR of other projects: StableHLO (text and portable bytes) becomes level 2, TOSA and linalg on tensors enter at
level 3; text of the `tw` dialect is level 2 already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch_mlir import ir
from torch_mlir.dialects import arith

from ...ir.constants import ConstantTable
from ...ir.context import BYTECODE, parse, run_passes, use
from ...ir.graph import INLINE_ELEMENTS, Graph, from_dense
from ...ir.types import check_shape, type_of
from ...support.canonical import CANONICALIZE
from ...support.dtypes import TYPES
from ...support.errors import ModelError, OpError, TilewrightError, UnsupportedError
from .stablehlo.program import StableHloProgram
from .text import checked, from_bytecode

#: passes that bring each dialect to linalg
TO_LINALG = {
    "tosa": "func.func(tosa-make-broadcastable,tosa-to-linalg-named,tosa-to-linalg,tosa-to-arith,tosa-to-tensor)",
}
Shapes = Mapping[str, tuple[int, ...]]
NO_SHAPES: Shapes = {}
#: what a level-3 function may contain besides arith and math
ALLOWED = {
    "linalg.generic", "linalg.fill", "linalg.index", "linalg.yield", "tensor.empty", "tensor.pad", "tensor.yield",
    "tensor.concat", "tensor.expand_shape", "tensor.collapse_shape", "tensor.extract", "tensor.extract_slice",
    "tensor.insert_slice", "func.func", "func.return", "func.call", "builtin.module",
}  # fmt: skip


def load_mlir_file(path: Path, shapes: Shapes = NO_SHAPES) -> Graph:
    """A file of any level, with the constants beside it if `Graph.save` wrote it."""
    side = path.with_suffix(".constants")
    table = ConstantTable.load(side) if side.exists() else None
    graph = load_mlir(file_text(path), str(path), table, shapes)
    graph.check_symbols(str(path))
    return graph


def file_text(path: Path) -> str | bytes:
    """What is in a file: text, or bytecode; ModelError if it is neither."""
    data = path.read_bytes()
    if data.startswith(BYTECODE):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise ModelError(f"{path} is neither MLIR text nor bytecode: {e}", stage="parse") from None


def load_mlir(
    text: str | bytes, source: str, constants: ConstantTable | None = None, shapes: Shapes = NO_SHAPES
) -> Graph:
    """Parse MLIR and bring it to the form the pipeline takes; ModelError or UnsupportedError says what is wrong.

    `shapes`: those of inputs of StableHLO programs whose sizes are open."""
    with _readable(source):
        module = _module(text, source)
        with use():
            if (program := _program(module, source)) is not None:
                return program.fixed(shapes).graph()
            return _load(module, source, constants)


def read_program(text: str | bytes, source: str) -> StableHloProgram | None:
    """MLIR as a StableHLO program, None if it is of another dialect."""
    with _readable(source):
        module = _module(text, source)
        with use():
            return _program(module, source)


@contextmanager
def _readable(source: str) -> Iterator[None]:
    """Whatever is wrong with the text of others is an error of ours."""
    try:
        yield
    except TilewrightError:
        raise
    except Exception as e:  # valid for MLIR, but nothing that the passes above and below know
        raise ModelError(f"{source} cannot be read: {type(e).__name__}: {e}", stage="import") from e


def _module(text: str | bytes, source: str) -> ir.Module:
    text = from_bytecode(text, source) if isinstance(text, bytes) else checked(text, source)
    try:
        module = parse(text, source)
    except ModelError as e:
        if "Dialect `chlo'" in e.message:
            e.hint = "jax.export.export(...).mlir_module() is StableHLO alone; what jax.jit(f).lower() gives is not"
        raise
    with use():
        _entry(module, source)
        _sizes(module, source)
    return module


def _program(module: ir.Module, source: str) -> StableHloProgram | None:
    return StableHloProgram(module, source) if "stablehlo" in _dialects(module) else None


def _load(module: ir.Module, source: str, constants: ConstantTable | None) -> Graph:
    graph = Graph(module, constants or ConstantTable())
    _signature(graph, source)
    used = _dialects(module)
    for name, pipeline in TO_LINALG.items():
        if name in used:
            run_passes(module, f"builtin.module({pipeline})", stage="import")
    if graph.level == 3 and not any(op.operation.name == "func.call" for op in graph.block.operations):
        simpler = f"builtin.module(func.func(linalg-generalize-named-ops),{CANONICALIZE},cse)"
        run_passes(module, simpler, stage="import")
        _constants_out(graph)
        bound_indices(graph)
    _check(graph, source)
    graph.verify("import")
    return graph


def _entry(module: ir.Module, source: str) -> None:
    """The entry function is called @main; a single function of another name is renamed."""
    functions = [op for op in module.body.operations if op.operation.name == "func.func"]
    if not functions:
        raise ModelError(f"{source} has no function", stage="import")
    names = [ir.StringAttr(f.attributes["sym_name"]).value for f in functions]
    if "main" not in names:
        if len(functions) > 1:
            raise ModelError(f"{source} has no function @main but {', '.join(names)}", stage="import")
        functions[0].attributes["sym_name"] = ir.StringAttr.get("main")
    main = functions[0] if "main" not in names else functions[names.index("main")]
    if not main.regions[0].blocks:
        raise ModelError(f"{source}: @main is declared and has no body", stage="import")


def _sizes(module: ir.Module, source: str) -> None:
    """ModelError for tensors that no array can hold: their sizes would overflow later."""
    types: dict[str, list[int]] = {}

    def visit(op: ir.Operation) -> ir.WalkResult:
        arguments = [a for region in op.regions for block in region.blocks for a in block.arguments]
        for t in {v.type for v in (*op.results, *arguments)}:
            if isinstance(t, ir.ShapedType) and t.has_rank:
                types[str(t)] = list(ir.ShapedType(t).shape)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    try:
        for called, shape in types.items():
            check_shape([None if d < 0 else d for d in shape], 1, called)
    except OpError as e:
        raise ModelError(f"{source}: {e}", stage="import") from None


def _signature(graph: Graph, source: str) -> None:
    """UnsupportedError for inputs and outputs that are no tensors of elements that there are."""
    ends = graph.block.operations[len(graph.block.operations) - 1].operands
    for kind, values in (("takes", graph.block.arguments), ("returns", ends)):
        for t in (v.type for v in values):
            if not isinstance(t, ir.RankedTensorType) or str(t.element_type) not in TYPES:
                raise UnsupportedError(
                    f"{source}: @main {kind} {t}, and a model has tensors of known rank",
                    stage="import",
                    hint=f"their elements are {', '.join(TYPES)}",
                )


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


def bound_indices(graph: Graph) -> None:
    """Clamp the indices of every ``tensor.extract`` to the tensor: MLIR leaves open what is read outside of it.

        %v = tensor.extract %x[%i] : tensor<8xf32>
    ->  %v = tensor.extract %x[min(max(%i, 0), 7)] : tensor<8xf32>
    """
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "tensor.extract":
            found.append(op)
        return ir.WalkResult.ADVANCE

    graph.module.operation.walk(visit)
    for op in found:
        shape = ir.RankedTensorType(op.operands[0].type).shape
        with ir.InsertionPoint(op), op.location:
            for axis, size in enumerate(shape):
                index = op.operands[axis + 1]
                if not _is_inside(index, size):
                    op.operands[axis + 1] = _clamped(index, size)


def _is_inside(index: ir.Value, size: int) -> bool:
    """Whether an index is the counter of a loop of that size, a number, or clamped already."""
    op = None if isinstance(index.owner, ir.Block) else index.owner
    number = _number(index)
    if number is not None:
        return 0 <= number < size
    if op is not None and op.name == "linalg.index":
        extents = _loop_extents(op.parent)
        return extents is not None and extents[ir.IntegerAttr(op.attributes["dim"]).value] <= size
    if op is not None and op.name in ("arith.minsi", "arith.maxsi"):  # both, in any order
        other = "arith.maxsi" if op.name == "arith.minsi" else "arith.minsi"
        inner = next(
            (v.owner for v in op.operands if not isinstance(v.owner, ir.Block) and v.owner.name == other), None
        )
        limits = [n for o in (op, inner) if o is not None for v in o.operands if (n := _number(v)) is not None]
        return len(limits) == 2 and all(0 <= n < size for n in limits)
    return False


def _number(value: ir.Value) -> int | None:
    if isinstance(value.owner, ir.Block) or value.owner.name != "arith.constant":
        return None
    attribute = value.owner.attributes["value"]
    return ir.IntegerAttr(attribute).value if isinstance(attribute, ir.IntegerAttr) else None


def _loop_extents(op: ir.Operation) -> list[int] | None:
    """Of a linalg.generic whose last result is indexed by its loops in order; None if it is not so."""
    if op.name != "linalg.generic":
        return None
    last = [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])][-1]
    if str(ir.AffineMap.get_identity(last.n_dims)) != str(last):
        return None
    return list(ir.RankedTensorType(op.operands[len(op.operands) - 1].type).shape)


def _clamped(index: ir.Value, size: int) -> ir.Value:
    low, high = (arith.ConstantOp(ir.IndexType.get(), n).result for n in (0, max(size - 1, 0)))
    return arith.MinSIOp(arith.MaxSIOp(index, low).result, high).result


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
