"""What ONNX itself says about operators: schemas, the checker, and operators that are defined as functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import onnx
from onnx import AttributeProto, TypeProto, defs, helper

from ...support.errors import ModelError, UnsupportedError
from .node import OnnxNode
from .reader import DTYPES
from .registry import find, oldest
from .values import OnnxValue

ELEMENT = {dtype: element for element, dtype in DTYPES.items()}


def by_name(model: onnx.ModelProto, source: str) -> dict[tuple[str, str], onnx.FunctionProto]:
    """A model's own functions by domain and name; ModelError for two that have one, UnsupportedError for overloads."""
    found: dict[tuple[str, str], onnx.FunctionProto] = {}
    for f in model.functions:
        key = "" if f.domain == "ai.onnx" else f.domain, f.name
        other = found.setdefault(key, f)
        if other is not f and getattr(other, "overload", "") != getattr(f, "overload", ""):
            raise UnsupportedError(f"{source}: function {f.name[:200]!r} has overloads", stage="import")
        if other is not f:
            raise ModelError(
                f"{source}: two functions are called {f.name[:200]!r} in domain {f.domain!r}", stage="import"
            )
    return found


def schema(op_type: str, opset: int, domain: str) -> Any:
    """ONNX's schema (`defs.OpSchema`) of an operator at an opset version, None if it has none."""
    try:
        return defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:
        return None


def checker(model: onnx.ModelProto) -> Callable[[OnnxNode], None]:
    """A function that checks one node against its schema: attributes, their types, number of inputs.

    Nodes with subgraphs are only checked for their inputs (the checker would not see the names around them).
    """
    context = onnx.checker.C.CheckerContext() if hasattr(onnx.checker, "C") else onnx.checker.DEFAULT_CONTEXT
    context.ir_version = model.ir_version
    schemas = lru_cache(maxsize=None)(schema)  # each of them is a copy

    def check(node: OnnxNode) -> None:
        found = schemas(node.proto.op_type, node.opset, node.proto.domain)
        if found is None or (found.deprecated and found.since_version == oldest(node.proto.domain, node.proto.op_type)):
            return  # GroupNormalization-18 was given up later, and is what models of those opsets have
        for i, formal in enumerate(found.inputs):
            absent = i >= len(node.proto.input) or not node.proto.input[i]
            if absent and formal.option == defs.OpSchema.FormalParameterOption.Single:
                raise node.error(f"input {formal.name!r} is missing")
        kinds = {a.type for a in node.proto.attribute}
        if kinds & {AttributeProto.GRAPH, AttributeProto.TENSOR} or any(a.ref_attr_name for a in node.proto.attribute):
            return
        context.opset_imports = {**node.scope.opsets}
        try:
            onnx.checker.check_node(node.proto, context)
        except onnx.checker.ValidationError as e:
            raise ModelError(f"is not valid: {str(e).splitlines()[0]}", stage="import", operator=node.label) from None

    return check


def definition(node: OnnxNode, arguments: Sequence[Any]) -> onnx.FunctionProto | None:
    """The function with which ONNX defines the node's operator, None if it does not."""
    found = schema(node.proto.op_type, node.opset, node.proto.domain)
    if found is None:
        return None
    if found.has_function:
        return _with_defaults(found.function_body, found)
    if not found.has_context_dependent_function:
        return None
    types = [_type(a).SerializeToString() for a in arguments]
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    del proto.attribute[:]
    for a in node.proto.attribute:  # in a function, attributes may stand for those of the call
        value = node.scope.attributes.get(a.ref_attr_name) if a.ref_attr_name else a
        if value is not None:
            proto.attribute.add().CopyFrom(value)
            proto.attribute[-1].name = a.name
    versions = [v for v in found.context_dependent_function_opset_versions if v <= node.opset]
    version = max(versions, default=found.since_version)
    body = onnx.FunctionProto()
    body.ParseFromString(
        found.get_context_dependent_function_with_opset_version(version, proto.SerializeToString(), types)
    )
    return _with_defaults(body, found) if body.node else None


def _with_defaults(body: onnx.FunctionProto, found: defs.OpSchema) -> onnx.FunctionProto:
    """The function with the schema's defaults for attributes that a call may leave out."""
    out = onnx.FunctionProto()
    out.CopyFrom(body)
    present = {a.name for a in out.attribute_proto}
    defaults = [a.default_value for name, a in found.attributes.items() if name not in present and a.default_value.name]
    out.attribute_proto.extend(defaults)
    return out


def _type(item: Any) -> TypeProto:
    if isinstance(item, OnnxValue):
        return helper.make_tensor_type_proto(ELEMENT[item.dtype], item.shape)
    if isinstance(item, list) and item:
        return helper.make_sequence_type_proto(_type(item[0]))
    return TypeProto()


def without_importer(model: onnx.ModelProto, local: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Name and operator of every node of the model, subgraphs and functions that has no way in."""
    opsets = {
        o.domain.replace("ai.onnx", "") if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import
    }

    def walk(nodes: Sequence[onnx.NodeProto], versions: dict[str, int]) -> Iterator[tuple[str, str]]:
        for n in nodes:
            domain = "" if n.domain == "ai.onnx" else n.domain
            version = versions.get(domain, 0)
            if (domain, n.op_type) not in local and find(domain, n.op_type, version) is None:
                found = schema(n.op_type, version, domain)
                if found is None or not (found.has_function or found.has_context_dependent_function):
                    label = f"{domain}.{n.op_type}" if domain else n.op_type
                    yield n.name or f"{n.op_type}_{next(iter(n.output), '')}", f"{label} (opset {version})"
            for a in n.attribute:
                for g in [a.g, *a.graphs] if a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) else []:
                    yield from walk(g.node, versions)

    yield from walk(model.graph.node, opsets)
    for f in model.functions:
        yield from walk(f.node, {**opsets, **{o.domain: o.version for o in f.opset_import}})
