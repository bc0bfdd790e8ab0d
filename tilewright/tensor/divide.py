"""Splits a fused kernel in two: the operations that lead to one result, and the rest, with that result as a tensor
between them.

    func @matmul_transpose_add(x, w, r)     ->     func @matmul(x, w), func @transpose_add(t, r)
                                                   func @main(x, w, r):  t = matmul(x, w); transpose_add(t, r)
"""

from __future__ import annotations

from collections.abc import Iterator

from torch_mlir import ir

from ..ir.context import parse, use
from ..ir.graph import Graph
from .analysis import Analysis
from .devices import devices_of, name_on, place_on
from .fuse import Group
from .outline import outline


def divisions(function: ir.OpView) -> Iterator[Graph]:
    """Every way to cut a kernel's function in two where a single tensor passes between the parts: graphs whose @main
    has the function's arguments and results and calls the parts."""
    with use():
        module = ir.Module.create()
        copy = function.operation.clone(ir.InsertionPoint(module.body))
        copy.operation.attributes["sym_name"] = ir.StringAttr.get("main")
        if "sym_visibility" in copy.operation.attributes:
            del copy.operation.attributes["sym_visibility"]
        graph = Graph(module)
        analysis = Analysis(graph.main)
        for first in _cuts(analysis):
            second = sorted({n.index for n in analysis.nodes} - first)
            parts = [Group(sorted(first), "cut", max(first)), Group(second, "cut", max(second))]
            yield outline(graph, analysis, parts)


def _cuts(analysis: Analysis) -> Iterator[set[int]]:
    """Sets of nodes with all that they read, of which the others read one result."""
    nodes = analysis.nodes
    needs: list[set[int]] = []  # of each node, itself included
    for node in nodes:
        needs.append({node.index}.union(*[needs[p] for p in node.producers]))
    for node in nodes:
        first = needs[node.index]
        read = {p for n in nodes if n.index not in first for p in n.producers & first}
        if len(first) < len(nodes) and read <= {node.index} and len(node.op.results) == 1:
            yield first


def apply_division(graph: Graph, symbol: str, text: str) -> None:
    """Replace kernel `symbol` of a fused graph and its calls by the kernels and calls of a division (its text)."""
    division = Graph(parse(text, f"the parts of {symbol}"))
    with use():
        placed = devices_of(graph)
        if placed[symbol]:
            _place(division, placed[symbol], placed)
        known = set(placed)
        for f in division.functions():
            if symbol_of(f) not in known:
                f.operation.clone(ir.InsertionPoint(graph.main.operation))
        for op in graph.operations():
            if op.name == "func.call" and ir.FlatSymbolRefAttr(op.attributes["callee"]).value == symbol:
                _inline(op, division)
        next(f for f in graph.functions() if symbol_of(f) == symbol).operation.erase()


def _place(division: Graph, device: str, placed: dict[str, str]) -> None:
    """Let all parts run on a device, under names that are no other device's."""
    names = {symbol_of(f): name_on(symbol_of(f), device, placed) for f in division.functions()}
    for f in division.functions():
        place_on(f, device)
        f.operation.attributes["sym_name"] = ir.StringAttr.get(names[symbol_of(f)])
    for op in division.operations():
        if op.name == "func.call":
            callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            op.attributes["callee"] = ir.FlatSymbolRefAttr.get(names[callee])


def _inline(call: ir.Operation, division: Graph) -> None:
    """The operations of a division's @main in place of a call."""
    values = dict(zip(division.block.arguments, call.operands, strict=True))
    for op in division.operations():
        if op.name == "func.return":
            for old, new in zip(call.results, op.operands, strict=True):
                old.replace_all_uses_with(values[new])
            continue
        copy = ir.Operation.create(
            op.name,
            results=[r.type for r in op.results],
            operands=[values[o] for o in op.operands],
            attributes={n: op.attributes[n] for n in op.attributes},
            loc=call.location,  # what was one kernel has its operators' names in common
            ip=ir.InsertionPoint(call),
        )
        values.update(zip(op.results, copy.results, strict=True))
    call.erase()


def symbol_of(function: ir.OpView) -> str:
    """The name of a function."""
    return ir.StringAttr(function.attributes["sym_name"]).value


__all__ = ["apply_division", "divisions", "symbol_of"]
