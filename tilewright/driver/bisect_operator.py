"""Bisection by operator: which level-2 operator is lowered to something else than its reference computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import func

from ..graph.interpret import evaluate
from ..graph.rewrite import names
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import is_float, type_of
from ..schedule.rules import direct_operators
from ..support.errors import TilewrightError
from ..tensor.interpret import interpret_graph
from ..tensor.lower import lower
from .compare import largest_error


def alone(graph: Graph, op: ir.Operation) -> Graph:
    """A graph whose @main is one operation; its inputs are called ``a0``, ``a1``, its outputs ``r0``, ``r1``."""
    with use():
        module = ir.Module.create()
        operands, results = list(op.operands), list(op.results)
        with ir.InsertionPoint(module.body), ir.Location.unknown():
            main = func.FuncOp("main", ir.FunctionType.get([v.type for v in operands], [r.type for r in results]))
            main.attributes["arg_attrs"] = _names("a", len(operands))
            main.attributes["res_attrs"] = _names("r", len(results))
            block = main.add_entry_block()
        with ir.InsertionPoint(block), ir.Location.unknown():
            copy = op.clone()
            for i, argument in enumerate(block.arguments):
                copy.operation.operands[i] = argument
            func.ReturnOp(list(copy.operation.results))
        return Graph(module, graph.constants)


def _names(prefix: str, count: int) -> ir.Attribute:
    return ir.ArrayAttr.get([ir.DictAttr.get({"tw.name": ir.StringAttr.get(f"{prefix}{i}")}) for i in range(count)])


def first_wrong_lowering(graph: Graph, inputs: Mapping[str, np.ndarray], allowed: Callable[[str], float]) -> str:
    """The first operator of a level-2 graph whose lowering does not give what its reference does in float64, with its
    source nodes; "" if there is none. `allowed` is the largest error by dtype."""
    with use():
        values = {}
        for argument, (name, t) in zip(graph.block.arguments, graph.inputs(), strict=True):
            values[argument] = inputs[name].astype(np.float64) if is_float(t.dtype) else inputs[name]
        for op in list(graph.operations())[:-1]:
            operands = [values[v] for v in op.operands]
            expected = evaluate(graph, op, operands, float64=True)
            values.update(zip(op.results, expected, strict=True))
            if op.name != "tw.constant" and _wrong(graph, op, operands, expected, allowed):
                return f"{op.name} {', '.join(names(op))}".strip()
    return ""


def _wrong(
    graph: Graph,
    op: ir.Operation,
    operands: list[np.ndarray],
    expected: list[np.ndarray],
    allowed: Callable[[str], float],
) -> bool:
    given = {f"a{i}": x for i, x in enumerate(operands)}
    try:
        got = interpret_graph(lower(alone(graph, op), direct_operators()), given, float64=True)
    except TilewrightError:
        return True
    pairs = zip(got.values(), expected, op.results, strict=True)
    return any(not largest_error(have, want) <= allowed(type_of(r).dtype) for have, want, r in pairs)


__all__ = ["alone", "first_wrong_lowering"]
