"""Reading a model file without its weights.

An ONNX file is one protobuf message, and parsing it would copy every weight (and fail above 2 GB). So the wire format
is walked in a memory map: everything but the `raw_data` of the graph's initializers is copied into a small message
that onnx parses; the raw data become arrays that are views of the map. External data files are mapped in the same
way.
"""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto, numpy_helper

from ...support.budget import check_time
from ...support.dtypes import NUMPY, TABLE
from ...support.errors import ModelError, UnsupportedError
from ...support.mapped_file import MappedFile, map_file

_CODES = dict(TensorProto.DataType.items())
#: ONNX element types that have a Tilewright dtype; some are newer than the oldest onnx that is supported
DTYPES: dict[int, str] = {_CODES[t.onnx]: t.name for t in TABLE if t.onnx in _CODES}
#: how many elements of a type files pack into one byte
PACKED = {t.name: 8 // t.bits for t in TABLE if t.computed and t.bits < 8}
#: raw data up to this size stays in the message
KEEP = 64
#: a parsed skeleton beyond this is no model: protobuf's own limit
MAX_SKELETON = (1 << 31) - 1


@dataclass
class Model:
    """A parsed model: the message without big weights, and where those are."""

    proto: onnx.ModelProto
    source: str
    #: raw data cut out of the message, by position of the initializer in the graph
    raw: dict[int, np.ndarray] = field(default_factory=dict)
    #: folders in which external data files may lie
    folders: list[Path] = field(default_factory=list)
    #: the model's own file, where it comes from one
    file: MappedFile | None = None
    #: external data files, mapped once
    maps: dict[Path, MappedFile] = field(default_factory=dict)

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """All files that arrays are mapped from, the model's own first."""
        return (*([self.file] if self.file else []), *self.maps.values())

    def initializers(self) -> dict[str, tuple[TensorProto, int]]:
        """Name -> (tensor, position); ModelError for duplicates."""
        out: dict[str, tuple[TensorProto, int]] = {}
        for i, t in enumerate(self.proto.graph.initializer):
            if t.name in out:
                raise ModelError(f"{self.source}: two initializers are named {t.name!r}", stage="import")
            out[t.name] = (t, i)
        return out

    def array(self, tensor: TensorProto, position: int = -1) -> np.ndarray:
        """The array of a tensor of this model: a view of the file where possible. ModelError if it is damaged."""
        return tensor_array(tensor, position, self)

    def data(self, tensor: TensorProto, position: int = -1) -> np.ndarray | None:
        """The raw bytes of a tensor, wherever they lie; None if the message has its elements one by one."""
        if tensor.data_location == TensorProto.EXTERNAL:
            return _external(tensor, self)
        if position not in self.raw and tensor.HasField("raw_data"):
            return np.frombuffer(tensor.raw_data, np.uint8)
        return self.raw.get(position)


def read(source: str | os.PathLike | bytes | onnx.ModelProto | Model) -> Model:
    """Parse a path, the bytes of a file, or take a ModelProto as it is; ModelError if it is not an ONNX model. What was
    read before stays what it is."""
    if isinstance(source, Model):
        return source
    if isinstance(source, onnx.ModelProto):
        return _checked(Model(source, source.graph.name or "the model"))
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parse(np.frombuffer(source, np.uint8), "the model", [])
    if not isinstance(source, (str, os.PathLike)):
        raise ModelError(f"an ONNX model is a path, bytes or a ModelProto, not {type(source).__name__}", stage="import")
    path = Path(source)
    try:
        file = map_file(path)
    except OSError as e:
        raise ModelError(f"cannot read {path}: {e.strerror or e}", stage="import") from None
    folders = [path.parent.resolve(), path.resolve().parent]  # of the link, and of the file that it links to
    model = _parse(file.data, str(path), folders)
    model.file = file
    return model


def _parse(data: np.ndarray, source: str, folders: list[Path]) -> Model:
    hint = "the file may be truncated, or not be an ONNX model"
    try:
        if not data.size:
            raise WireError("it is empty")
        skeleton, spans = _skeleton(data.data)
        if len(skeleton) > MAX_SKELETON:
            raise WireError("its graph without weights exceeds 2 GB")
        proto = onnx.ModelProto.FromString(bytes(skeleton))
    except (WireError, DecodeError) as e:
        raise ModelError(f"{source} is not a valid ONNX file: {e}", stage="import", hint=hint) from None
    raw = {i: data[start:end] for i, (start, end) in spans.items()}
    return _checked(Model(proto, source, raw, folders))


def _checked(model: Model) -> Model:
    proto, hint = model.proto, "the file may be truncated, or not be an ONNX model"
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(f"{model.source} is not a valid ONNX file: it has no graph", stage="import", hint=hint)
    if not proto.opset_import:
        raise ModelError(f"{model.source} does not state its opset version", stage="import")
    garbled = _garbled(proto)
    if garbled is not None:
        raise ModelError(f"{model.source} is not a valid ONNX file: {garbled!r} is not text", stage="import", hint=hint)
    return model


def _garbled(message: Message) -> bytes | None:
    """A string field of a message that is not UTF-8 (protobuf hands it out as bytes), None if there is none."""
    for field_, content in message.ListFields():
        kind = field_.type
        if kind == FieldDescriptor.TYPE_STRING:
            if isinstance(content, bytes):
                return content
            if not isinstance(content, str):
                for v in content:
                    if isinstance(v, bytes):
                        return v
        elif kind == FieldDescriptor.TYPE_MESSAGE:
            check_time("import")
            for v in (content,) if isinstance(content, Message) else content:
                if (found := _garbled(v)) is not None:
                    return found
    return None


# ---- the wire format -----------------------------------------------------------------------------------------------


class WireError(ValueError):
    """The bytes are not a protobuf message."""


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= end or shift > 63:
            raise WireError("it ends in the middle of a number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(data: memoryview, at: int, end: int):
    """(field number, wire type, start, start of the content, end) of every field of a message."""
    while at < end:
        start = at
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        content = at
        if wire == 0:
            _, at = _varint(data, at, end)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        elif wire == 2:
            length, content = _varint(data, at, end)
            at = content + length
        else:
            raise WireError(f"unknown wire type {wire} at byte {start}")
        if at > end or number == 0:
            raise WireError(f"a field at byte {start} goes beyond the end")
        yield number, wire, start, content, at


GRAPH, INITIALIZER, RAW_DATA = (
    7,
    5,
    9,
)  # field numbers of ModelProto.graph, GraphProto.initializer, TensorProto.raw_data


def _skeleton(data: memoryview) -> tuple[bytearray, dict[int, tuple[int, int]]]:
    """The message without big raw data of initializers, and the spans that were left out, by initializer position."""
    spans: dict[int, tuple[int, int]] = {}
    count = 0
    out = bytearray()
    for number, wire, start, content, end in _fields(data, 0, len(data)):
        if number != GRAPH or wire != 2:
            out += data[start:end]
            continue
        graph = bytearray()
        for inner, inner_wire, s, c, e in _fields(data, content, end):
            if inner != INITIALIZER or inner_wire != 2:
                graph += data[s:e]
                continue
            tensor, span = _without_raw_data(data, c, e)
            if span is not None:
                spans[count] = span
            count += 1
            graph += _header(INITIALIZER, len(tensor)) + tensor
        out += _header(GRAPH, len(graph)) + graph
    return out, spans


def _without_raw_data(data: memoryview, at: int, end: int) -> tuple[bytearray, tuple[int, int] | None]:
    tensor, span = bytearray(), None
    for number, wire, start, content, stop in _fields(data, at, end):
        if number == RAW_DATA and wire == 2 and stop - content > KEEP:
            span = (content, stop)
        else:
            tensor += data[start:stop]
    return tensor, span


def _header(number: int, length: int) -> bytes:
    out = bytearray([number << 3 | 2])
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


# ---- tensors -------------------------------------------------------------------------------------------------------


def tensor_array(t: TensorProto, position: int, model: Model) -> np.ndarray:
    """The array of a TensorProto whose raw data may lie outside of it."""
    name = t.name or "a tensor"
    if t.data_type not in DTYPES:
        kind = TensorProto.DataType.Name(t.data_type) if t.data_type in TensorProto.DataType.values() else t.data_type
        raise UnsupportedError(f"tensor {name!r} has element type {kind}, which is not supported", stage="import")
    shape, dtype = tuple(t.dims), NUMPY[DTYPES[t.data_type]]
    if any(d < 0 for d in shape):
        raise ModelError(f"tensor {name!r} has a negative dimension: {shape}", stage="import")
    raw = model.data(t, position)
    try:
        if raw is None:
            array = numpy_helper.to_array(t)
            return array.view(dtype) if array.dtype.itemsize == dtype.itemsize else array.astype(dtype)
        if DTYPES[t.data_type] in PACKED:
            return unpack(raw, shape, DTYPES[t.data_type])
        expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if raw.nbytes != expected:
            raise ValueError(f"{raw.nbytes} bytes of data, its type and shape {shape} need {expected}")
        return raw.view(dtype).reshape(shape)
    except (ValueError, TypeError) as e:
        raise ModelError(f"{model.source}: tensor {name!r} is damaged: {e}", stage="import") from None


def unpack(raw: np.ndarray, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Elements of 4 or 2 bits out of their bytes, the first in the lowest bits.

    >>> unpack(np.array([0x21, 0x0F], np.uint8), (3,), "i4").astype(int).tolist()
    [1, 2, -1]
    """
    each, count = PACKED[dtype], math.prod(shape)
    if raw.nbytes != -(-count // each):
        raise ValueError(f"{raw.nbytes} bytes of data, its type and shape {shape} need {-(-count // each)}")
    bits = 8 // each
    codes = raw.view(np.uint8).reshape(-1, 1) >> (np.arange(each, dtype=np.uint8) * bits) & ((1 << bits) - 1)
    return codes.reshape(-1)[:count].astype(np.uint8).view(NUMPY[dtype]).reshape(shape)


def _external(t: TensorProto, model: Model) -> np.ndarray:
    """The bytes of a tensor in an external data file, memory-mapped."""
    where: dict[str, Any] = {e.key: e.value for e in t.external_data}
    location = where.get("location", "")

    def fail(why: str, hint: str | None = None) -> ModelError:
        return ModelError(f"{model.source}: data of tensor {t.name!r}: {why}", stage="import", hint=hint)

    if not model.folders:
        raise fail("is in an external file", "load the model from its path, or embed the data with onnx.load")
    parts = Path(location.replace("\\", "/"))
    if not location or parts.is_absolute() or ".." in parts.parts or Path(location).drive:
        raise fail(f"{location!r} is not a path inside of the model's folder")
    hint = "keep the data file beside the model"
    try:
        path = (model.folders[0] / parts).resolve()
        if not any(path.is_relative_to(folder) for folder in model.folders):
            raise fail(f"{location!r} links out of the model's folder")
        if path not in model.maps:
            info = path.stat()
            # any file of the disk may be behind such a name, as behind a symbolic link
            if stat.S_ISREG(info.st_mode) and info.st_nlink > 1:
                raise fail(f"{location!r} has other names (hard links)", "replace it by a copy of its own")
            model.maps[path] = map_file(path)
        data = model.maps[path].data
        offset = int(where.get("offset") or 0)
        length = int(where["length"]) if where.get("length") else len(data) - offset
    except OSError as e:
        raise fail(f"cannot read {location!r}: {e.strerror or e}", hint) from None
    except RuntimeError:  # from `resolve`
        raise fail(f"cannot read {location!r}: its links form a loop", hint) from None
    except ValueError as e:
        raise fail(f"bad location, offset or length: {e}") from None
    if offset < 0 or length < 0 or offset + length > len(data):
        raise fail(f"{path} has {len(data)} bytes, the model needs {offset + length}", "the data file may be truncated")
    return data[offset : offset + length]
