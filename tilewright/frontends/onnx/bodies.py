"""Nodes of an ONNX model that run as a unit: its graph, a branch, the body of a loop, a function (`staging`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx
from onnx import AttributeProto, TensorProto

from .importer import OnnxImporter, Scope, _domain
from .names import node_reads
from .node import OnnxNode
from .reader import DTYPES


@dataclass(eq=False)
class OnnxBody:
    """Nodes that run as a unit, in the scope of `parent` (functions have none)."""

    id: str
    nodes: Sequence[onnx.NodeProto]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: dict[str, tuple[TensorProto, int]]
    opsets: dict[str, int]
    parent: OnnxBody | None = None
    attributes: dict[str, AttributeProto] = field(default_factory=dict)
    prefix: str = ""
    depth: int = 0
    types: tuple[tuple[str, tuple[int, ...] | None], ...] = ()

    def initializer(self, name: str) -> tuple[TensorProto, int] | None:
        body: OnnxBody | None = self
        while body is not None:
            if name in body.tensors:
                return body.tensors[name]
            if name in body.inputs or name in body.produced:
                return None
            body = body.parent
        return None

    @cached_property
    def produced(self) -> dict[str, int]:
        """Names that nodes define -> the node."""
        return {o: i for i, node in enumerate(self.nodes) for o in node.output if o}

    @cached_property
    def defined(self) -> set[str]:
        """Names of inputs and of what nodes make."""
        return {*self.inputs, *self.produced}

    @cached_property
    def node_reads(self) -> list[tuple[str, ...]]:
        """For every node the names it reads, its subgraphs included."""
        return [tuple(dict.fromkeys(node_reads(node))) for node in self.nodes]

    def reads(self, todo: Sequence[int]) -> list[str]:
        """Names that these nodes read and that none of them makes."""
        made = {o for i in todo for o in self.nodes[i].output if o}
        names = dict.fromkeys(n for i in todo for n in self.node_reads[i])
        return [n for n in names if n not in made]


def declared(info: onnx.ValueInfoProto) -> tuple[str, tuple[int, ...] | None]:
    """dtype and dimensions (0: open) that a subgraph states for an output."""
    t = info.type.tensor_type
    dims = tuple(d.dim_value for d in t.shape.dim) if t.HasField("shape") else None
    return DTYPES.get(t.elem_type, ""), dims


def node_of(importer: OnnxImporter, body: OnnxBody, proto: onnx.NodeProto) -> OnnxNode:
    scope = Scope(opsets=body.opsets, attributes=body.attributes, prefix=body.prefix, depth=body.depth)
    name = proto.name or f"{proto.op_type}_{next((o for o in proto.output if o), '')}"
    return OnnxNode(importer, proto, scope, scope.prefix + name, scope.opsets.get(_domain(proto.domain), 0))
