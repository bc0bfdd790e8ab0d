"""Shape specialization: unknown input dimensions become known ones, and all types follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch_mlir import ir

from ..ir import dialect
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import Type, type_of
from ..support.errors import CompileError, InputError, OpError
from .passes import PassReport, register
from .rewrite import names


@register("specialize")
@dataclass(frozen=True)
class Specialize:
    """Fix the shapes of inputs and infer all types again.

    ``shapes`` maps an input name to its dimensions (all of them); inputs that are left out keep their type.

        specialize{shapes=x:2x8}
        func.func @main(%x: tensor<?x8xf32> {tw.name = "x"}) -> tensor<?x8xf32> {
          %0 = "tw.softmax"(%x) : (tensor<?x8xf32>) -> tensor<?x8xf32>
    ->  func.func @main(%x: tensor<2x8xf32> {tw.name = "x"}) -> tensor<2x8xf32> {
          %0 = "tw.softmax"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>

    Raises InputError if an input is not there or its known dimensions differ, CompileError (naming the operator) if the
    shapes do not go together.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def run(self, graph: Graph) -> PassReport:
        inputs = graph.inputs()
        types = self._arguments(inputs)
        with use():
            for argument, t in zip(graph.block.arguments, types, strict=True):
                argument.set_type(t.mlir())
            changed = sum(infer_again(op) for op in list(graph.operations())[:-1])
            update_signature(graph)
        return {"inputs": sum(t != old for t, (_, old) in zip(types, inputs, strict=True)), "operations": changed}

    def _arguments(self, inputs: list[tuple[str, Type]]) -> list[Type]:
        known = [n for n, _ in inputs]
        for name in self.shapes:
            if name not in known:
                raise InputError(
                    f"cannot give a shape to {name!r}: the model has no such input",
                    stage="specialize",
                    hint=f"its inputs: {', '.join(known)}",
                )
        out = []
        for name, t in inputs:
            dims = tuple(self.shapes.get(name, t.shape))
            fits = len(dims) == t.rank and all(o is None or o == n for o, n in zip(t.shape, dims, strict=True))
            if not fits or any(d is not None and d < 0 for d in dims):
                raise InputError(f"shape {dims} does not fit input {name!r} of type {t}", stage="specialize")
            out.append(t.with_shape(dims))
        return out


def infer_again(op: ir.Operation) -> bool:
    """Set the result types of a `tw` operation from its operands' types; True if they changed."""
    name = dialect.mnemonic(op)
    if name is None or name == "constant":
        return False
    cls = dialect.operator(op)
    operands = [None if v is None else type_of(v) for v in dialect.arguments(op)]
    try:
        if cls.regions:
            return _infer_regions(op, operands)
        new = dialect.infer(cls, operands, dialect.attributes(op))
    except OpError as e:
        where = f'tw.{name} "{", ".join(names(op))}"'
        error = CompileError(f"these shapes do not go together: {e}", stage="specialize", operator=where)
        error.size_condition = e.size_condition
        raise error from None
    changed = [type_of(r) for r in op.results] != new
    if cls.multiple or any(o.variadic for o in cls.operands):
        _make_again(op, new)  # how the operands are grouped depends on their types
    elif changed:
        op.results[0].set_type(new[0].mlir())
    return changed


def _infer_regions(op: ir.Operation, operands: list[Type | None]) -> bool:
    """`infer_again` for control flow: what its regions take keeps the sizes that they leave open."""
    blocks = [region.blocks[0] for region in op.regions]
    changed = 0
    for block in blocks:
        for argument, t in zip(block.arguments, operands[1:], strict=True):
            if t is not None and type_of(argument).static:
                argument.set_type(t.mlir())
        changed += sum(infer_again(inner.operation) for inner in list(block.operations)[:-1])
    new = dialect.region_results(dialect.operator(op), operands, blocks)
    for r, t in zip(op.results, new, strict=True):
        changed += type_of(r) != t
        r.set_type(t.mlir())
    return bool(changed)


def _make_again(op: ir.Operation, types: list[Type]) -> None:
    cls = dialect.operator(op)
    with ir.InsertionPoint(op):
        results = dialect.create_typed(cls, dialect.arguments(op), dialect.attributes(op), types, op.location)
    for old, value in zip(op.results, results, strict=True):
        old.replace_all_uses_with(value)
    op.erase()


def update_signature(graph: Graph) -> None:
    """Make the function type of @main agree with its arguments and returned values."""
    operations = graph.block.operations
    results = [v.type for v in operations[len(operations) - 1].operands]
    kind = ir.FunctionType.get([a.type for a in graph.block.arguments], results)
    graph.main.attributes["function_type"] = ir.TypeAttr.get(kind)
