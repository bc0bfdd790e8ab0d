"""Free names of nodes and subgraphs, and backward reachability from the outputs of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
from onnx import AttributeProto


def node_reads(node: onnx.NodeProto) -> list[str]:
    """The inputs of a node, and what its subgraphs take from around them."""
    names = [i for i in node.input if i]
    for a in node.attribute:
        for g in [a.g, *a.graphs] if a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) else []:
            names += free_names(g)
    return names


def free_names(graph: onnx.GraphProto) -> list[str]:
    """Names that a subgraph takes from around it."""
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    own |= {o for node in graph.node for o in node.output}
    read = [n for node in graph.node for n in node_reads(node)] + [o.name for o in graph.output]
    return [n for n in read if n not in own]


def needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> set[str]:
    """The names that these outputs are computed from, themselves included."""
    found = set(outputs)
    for node in reversed(nodes):
        if not found.isdisjoint(node.output):
            found.update(node_reads(node))
    return found
