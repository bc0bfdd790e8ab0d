"""Model inputs: their types, with dynamic dimensions resolved by the shapes or ranges of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from ...ir.types import Type, addressable, dtype_of
from ...support.errors import InputError, ModelError, OpError, UnsupportedError
from ...support.sizes import Undecided, decode, is_open
from .reader import DTYPES
from .values import OnnxFailure

#: a dimension: a size, the name of a symbolic one, or "?"
Dim = int | str


def resolve(
    graph: onnx.GraphProto, initializers: set[str], given: Mapping[str, Any], source: str
) -> tuple[list[tuple[str, Type]], dict[str, np.ndarray]]:
    """Name and static type of every input, and the inputs that the caller fixed to an array.

    Initializers that are also listed as inputs (before IR version 4 all were) are constants, not inputs. Raises
    InputError for names or shapes that do not fit, ModelError if dimensions stay open.
    """
    declared: dict[str, tuple[str, list[Dim] | None]] = {}
    for info in graph.input:
        if info.name in declared:
            raise ModelError(f"{source}: two inputs are named {info.name!r}", stage="import")
        if info.name not in initializers:
            declared[info.name] = _declared(info, source)
    unknown = sorted(set(given) - set(declared))
    if unknown:
        raise InputError(
            f"the model has no input named {', '.join(map(repr, unknown))}",
            stage="import",
            hint=f"its inputs are {', '.join(declared) or '(none)'}",
        )
    frozen = {
        name: _frozen(name, value, declared[name][0]) for name, value in given.items() if isinstance(value, np.ndarray)
    }
    symbols: dict[str, int] = {}
    shapes = {name: dims for name, (_, dims) in declared.items()}
    for name, value in given.items():
        size = value.shape if isinstance(value, np.ndarray) else value
        shapes[name] = list(_bind(name, declared[name][1], size, symbols))
    arguments = []
    open_inputs = []
    for name, dims in shapes.items():
        if dims is not None:
            dims = [symbols.get(d, d) if isinstance(d, str) else d for d in dims]
        if dims is None or any(isinstance(d, str) for d in dims):
            open_inputs.append(
                f"{name}: [{', '.join(map(str, dims))}]" if dims is not None else f"{name}: unknown rank"
            )
        elif name not in frozen:
            arguments.append((name, _type(name, dims, declared[name][0])))
    if open_inputs:
        first = open_inputs[0].split(":")[0]
        error = ModelError(
            f"{source} leaves the shape of {len(open_inputs)} input{'s' * (len(open_inputs) > 1)} open: "
            + "; ".join(open_inputs),
            stage="import",
            hint=f"give shapes: inputs={{{first!r}: (1, ...)}}",
        )
        error.run_time = True
        raise error
    return arguments, frozen


def _type(name: str, dims: list[Dim], dtype: str) -> Type:
    if any(type(d) is int and is_open(decode(d)) for d in dims):
        raise Undecided(f"input {name!r} has a dimension that stands for an open one in this compilation")
    try:
        return addressable(Type(tuple(decode(int(d)) for d in dims), dtype))
    except OpError as e:
        raise ModelError(f"input {name!r}: {e}", stage="import") from None


def of_other_types(graph: onnx.GraphProto, initializers: set[str]) -> list[OnnxFailure]:
    """The inputs whose elements are of a type that there is not."""
    known, found = onnx.TensorProto.DataType, []
    for info in graph.input:
        kind = info.type.tensor_type.elem_type
        if info.name not in initializers and info.type.HasField("tensor_type") and kind not in DTYPES:
            name = known.Name(kind) if kind in known.values() else str(kind)
            found.append(OnnxFailure("input", info.name, f"it has element type {name}"))
    return found


def _declared(info: onnx.ValueInfoProto, source: str) -> tuple[str, list[Dim] | None]:
    """dtype and dimensions (None: rank unknown) of a graph input."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        error = UnsupportedError(
            f"{source}: input {info.name!r} is a {kind or 'value without type'}, not a tensor", stage="import"
        )
        error.run_time = True
        raise error
    t = info.type.tensor_type
    if not t.HasField("shape"):
        return DTYPES[t.elem_type], None
    dims: list[Dim] = []
    for d in t.shape.dim:
        if d.HasField("dim_value") and d.dim_value >= 0:
            dims.append(d.dim_value)
        else:
            dims.append(d.dim_param or "?")
    return DTYPES[t.elem_type], dims


def _bind(name: str, dims: list[Dim] | None, given: Any, symbols: dict[str, int]) -> tuple[int, ...]:
    """The shape given for an input, checked against the declared one; binds its symbolic dimensions."""
    try:
        shape = tuple(decode(int(d)) for d in given)
    except (TypeError, ValueError):
        raise InputError(f"the shape for input {name!r} is a tuple of ints, not {given!r}", stage="import") from None
    if any(d < 0 for d in shape):
        raise InputError(f"the shape for input {name!r} has a negative dimension: {shape}", stage="import")
    if dims is None:
        return shape
    text = f"[{', '.join(map(str, dims))}]"
    if len(dims) != len(shape):
        raise InputError(
            f"input {name!r} has {len(dims)} dimensions {text}, the given shape is {shape}", stage="import"
        )
    for i, (d, size) in enumerate(zip(dims, shape, strict=True)):
        expected = symbols.get(d) if isinstance(d, str) else d
        if expected is not None and expected != size:
            raise InputError(
                f"dimension {i} of input {name!r} {text} is {expected}, the given shape is {shape}", stage="import"
            )
        if isinstance(d, str) and d != "?":
            symbols[d] = size
    return shape


def _frozen(name: str, value: np.ndarray, dtype: str) -> np.ndarray:
    if dtype_of(value) != dtype:
        raise InputError(f"input {name!r} has dtype {dtype}, the given array {dtype_of(value)}", stage="import")
    return value
