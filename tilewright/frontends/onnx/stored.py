"""Serialization of ONNX models with dynamic shapes into packages, and their signature."""

from __future__ import annotations

import numpy as np
import onnx
from google.protobuf.message import Message

from ...runtime.parts import DynamicInfo, StoredSource
from ...support.errors import ModelError, UnsupportedError
from .reader import DTYPES, PACKED, Model

#: initializers of more bytes than this are stored apart from the model
SMALL = 1024


def signature(model: Model) -> tuple[list[DynamicInfo], list[DynamicInfo]]:
    """Inputs and outputs of an ONNX model as it declares them."""
    constants = {t.name for t in model.proto.graph.initializer}
    inputs = [_info(i, model.source) for i in model.proto.graph.input if i.name not in constants]
    if not model.proto.graph.output:
        raise ModelError(f"{model.source} has no outputs", stage="import")
    return inputs, [_info(o, model.source, output=True) for o in model.proto.graph.output]


def _info(value: onnx.ValueInfoProto, source: str, output: bool = False) -> DynamicInfo:
    kinds, t = [], value.type
    while (kind := t.WhichOneof("value")) in ("sequence_type", "optional_type"):
        kinds.append(kind.removesuffix("_type"))
        t = getattr(t, kind).elem_type
    if kind != "tensor_type" and not output:
        raise UnsupportedError(f"{source}: input {value.name!r} is a {kind or 'value without type'}", stage="import")
    element = t.tensor_type.elem_type
    if element not in DTYPES and not output:
        raise UnsupportedError(
            f"{source}: input {value.name!r} has element type {onnx.TensorProto.DataType.Name(element)}",
            stage="import",
        )
    dims = None
    if t.tensor_type.HasField("shape"):
        dims = tuple(_dim(d) for d in t.tensor_type.shape.dim)
    return DynamicInfo(value.name, dims, DTYPES.get(element, "f32"), kinds[0] if kinds else "tensor")


def _dim(d: onnx.TensorShapeProto.Dimension) -> int | str | None:
    return d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or None


def store(model: Model, recipes: list[list[str]]) -> StoredSource:
    """A model as a package keeps it, with the recipes of its bodies."""
    proto, arrays = onnx.ModelProto(), {}
    proto.CopyFrom(model.proto)
    for i, tensor in enumerate(proto.graph.initializer):
        given = model.proto.graph.initializer[i]
        data = model.data(given, i)
        if tensor.data_type in DTYPES and DTYPES[tensor.data_type] not in PACKED:
            array = model.array(given, i)  # equal to what the parts made of it, and so stored once
        elif data is not None:
            array = data
        else:
            continue  # its elements stand in the message
        bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        if array.nbytes > SMALL:
            arrays[str(i)] = array
            tensor.CopyFrom(bare)
        elif data is not None:  # the reader may have cut it out of the message
            tensor.CopyFrom(bare)
            tensor.raw_data = data.tobytes()
    _embed(proto, model)
    return StoredSource("onnx", proto.SerializeToString(), arrays, recipes)


def restore(stored: StoredSource) -> Model:
    """The inverse of `store`, but for the bodies."""
    raw = {int(i): a.reshape(-1).view(np.uint8) for i, a in stored.arrays.items()}
    return Model(onnx.ModelProto.FromString(stored.data), "the saved model", raw)


def _embed(message: Message, model: Model) -> None:
    """Data in external files of tensors of all kinds moves into the message."""
    for _, content in message.ListFields():
        several = (
            [content] if isinstance(content, Message) else content if not isinstance(content, (str, bytes)) else []
        )
        for item in several if not isinstance(several, (int, float, bool)) else []:
            if not isinstance(item, Message):
                break
            if isinstance(item, onnx.TensorProto) and item.data_location == onnx.TensorProto.EXTERNAL:
                array = model.array(item)
                item.CopyFrom(onnx.TensorProto(name=item.name, data_type=item.data_type, dims=item.dims))
                item.raw_data = array.tobytes()
            else:
                _embed(item, model)
