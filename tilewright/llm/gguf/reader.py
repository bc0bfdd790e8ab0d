"""GGUF files: metadata as Python values, tensors as views of the mapped file. Files in parts are read as one.

The package `gguf` has a reader too; it makes several arrays of each string, and takes ten seconds for a vocabulary of
128,000. What a type is comes from the package.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...support.errors import ModelError, UnsupportedError
from ...support.mapped_file import MappedFile, map_file

#: versions whose layout is this one
VERSIONS = (2, 3)
MOST_DIMENSIONS = 4
#: numbers of metadata, by the number of their type; 8 is text, 9 an array
NUMBERS = dict(zip([0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12], "B b H h I i f ? Q q d".split(), strict=True))  # noqa: SIM905
TEXT, ARRAY = 8, 9
#: types of arrays of plain numbers, by name
PLAIN = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, eq=False)
class GgufTensor:
    """kind: name of the type, as "Q4_K". shape: the slowest dimension first. data: bytes [..., bytes of a row], a view
    of the file. order: the rows of the first dimension that it is made of; None: all as they lie."""

    name: str
    kind: str
    shape: tuple[int, ...]
    data: np.ndarray
    order: np.ndarray | None = None

    def rows(self, first: int, last: int) -> np.ndarray:
        """The bytes of some rows of the first dimension."""
        return np.asarray(self.data[first:last] if self.order is None else self.data[self.order[first:last]])

    def array(self) -> np.ndarray:
        """The tensor as it lies in the file, of a plain type or bf16; as f32 what is quantized."""
        data = self.data if self.order is None else self.rows(0, len(self.order))
        if self.kind in PLAIN:
            return data.view(PLAIN[self.kind])
        if self.kind == "BF16":
            from ml_dtypes import bfloat16

            return data.view(bfloat16)
        from gguf import GGMLQuantizationType, dequantize

        with np.errstate(over="ignore", invalid="ignore"):
            return dequantize(np.asarray(data), GGMLQuantizationType[self.kind])


@dataclass(eq=False)
class GgufFile:
    """metadata: by key; arrays of numbers are NumPy arrays, those of texts lists. tensors: by name. files: what is
    mapped."""

    path: Path
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, GgufTensor] = field(default_factory=dict)
    files: list[MappedFile] = field(default_factory=list)

    def get(self, key: str, default: Any = None) -> Any:
        """Of metadata; ``{}`` in the key stands for the architecture."""
        return self.metadata.get(key.format(self.metadata.get("general.architecture", "")), default)


def read_gguf(path: str | os.PathLike[str], tensors: bool = True) -> GgufFile:
    """Read a file, and its other parts if it is one of several. Nothing of the tensors is read yet.

    tensors: False: metadata alone. ModelError for files that are cut off, damaged, none of GGUF, or incomplete;
    UnsupportedError for types and versions that are not known.
    """
    path = Path(path)
    made = GgufFile(path)
    first, *others = _parts(path)
    _read_into(made, first, tensors)
    count = int(made.metadata.get("split.count", 1) or 1)
    if count > 1 and count != 1 + len(others):
        raise ModelError(
            f"{first.name} is one of {count} parts, and its name does not say so",
            stage="import",
            hint="parts are called NAME-00001-of-00003.gguf, and lie in one folder",
        )
    for part in others if tensors else ():
        _read_into(GgufFile(part, {}, made.tensors, made.files), part, True)
    wanted = made.metadata.get("split.tensors.count")
    if tensors and wanted is not None and int(wanted) != len(made.tensors):
        raise ModelError(f"{path.name} has {len(made.tensors)} tensors in its parts, not {wanted}", stage="import")
    return made


def _parts(path: Path) -> list[Path]:
    named = PART.fullmatch(path.name)
    if not named:
        return [path]
    stem, _, count = named.groups()
    parts = [path.with_name(f"{stem}-{i + 1:05d}-of-{count}.gguf") for i in range(int(count))]
    missing = [p.name for p in parts if not p.is_file()]
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise ModelError(f"parts of the model are missing: {', '.join(missing[:4])}{more}", stage="import")
    return parts


def _read_into(made: GgufFile, path: Path, tensors: bool) -> None:
    try:
        file = map_file(path)
    except OSError as error:
        raise ModelError(f"{str(path)!r} cannot be read: {error.strerror}", stage="import") from error
    made.files.append(file)
    at = _Cursor(file.view)
    try:
        _header(at, path)
        count, keys = at.numbers("QQ")
        for _ in range(keys):
            key = at.text()
            made.metadata[key] = at.value(at.number("I"))
        if tensors:
            infos = [_info(at) for _ in range(count)]
            start = _aligned(at.place, int(made.metadata.get("general.alignment", 32)))
            for tensor in _tensors(file.data[start:], infos):
                if tensor.name in made.tensors:
                    raise ValueError(f"tensor {tensor.name!r} is there twice")
                made.tensors[tensor.name] = tensor
    except (struct.error, IndexError, OverflowError, MemoryError):
        raise ModelError(f"{str(path)!r} is cut off, or damaged", stage="import", hint="load it again") from None
    except ValueError as error:
        raise ModelError(f"{str(path)!r} is damaged: {error}", stage="import", hint="load it again") from error


def _header(at: _Cursor, path: Path) -> None:
    magic = bytes(at.data[:4])
    if magic != b"GGUF":
        old = magic in (b"lmgg", b"fmgg", b"tjgg", b"algg")
        hint = "it is of a kind before GGUF: convert it with a newer llama.cpp" if old else "a GGUF file begins so"
        raise ModelError(f"{str(path)!r} does not begin with 'GGUF'", stage="import", hint=hint)
    at.place = 4
    version = at.number("I")
    if version not in VERSIONS:
        big = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        what = "is of a big-endian machine" if big else f"has version {version} of GGUF"
        raise UnsupportedError(
            f"{str(path)!r} {what}", stage="import", hint="version 2 or 3, little-endian, is read: convert it again"
        )


def _aligned(place: int, alignment: int) -> int:
    if alignment <= 0 or alignment & (alignment - 1):
        raise ValueError(f"an alignment of {alignment}")
    return -(-place // alignment) * alignment


def _info(at: _Cursor) -> tuple[str, Sequence[int], int, int]:
    """Name, dimensions with the fastest first, number of the type, place."""
    name, rank = at.text(), at.number("I")
    if rank > MOST_DIMENSIONS:
        raise ValueError(f"tensor {name!r} has {rank} dimensions")
    return name, at.numbers("Q" * rank), at.number("I"), at.number("Q")


def _tensors(data: np.ndarray, infos: Sequence[tuple[str, Sequence[int], int, int]]) -> Iterator[GgufTensor]:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    for name, dims, number, place in infos:
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise UnsupportedError(
                f"tensor {name!r} is of type {number} of GGUF, which is not known",
                stage="import",
                hint="it is an old type that llama.cpp removed, or a newer one: quantize the model again",
            ) from None
        block, size = GGML_QUANT_SIZES[kind]
        shape = tuple(int(d) for d in reversed(dims)) or (1,)
        if shape[-1] % block:
            raise ValueError(f"rows of tensor {name!r} have {shape[-1]} numbers, which are no blocks of {block}")
        in_bytes = (*shape[:-1], shape[-1] // block * size)
        end = place + int(np.prod(in_bytes, dtype=object))
        if end > len(data):
            raise ValueError(f"tensor {name!r} ends {end - len(data):,} bytes behind the end of the file")
        yield GgufTensor(name, kind.name, shape, data[place:end].reshape(in_bytes))


class _Cursor:
    """Reads numbers and texts one after the other."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.place = data, 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        form = "<" + form
        made = struct.unpack_from(form, self.data, self.place)
        self.place += struct.calcsize(form)
        return made

    def number(self, form: str) -> Any:
        return self.numbers(form)[0]

    def text(self) -> str:
        return self._texts(1)[0]

    def _texts(self, count: int) -> list[str]:
        data, place, made = self.data, self.place, []
        length = struct.Struct("<Q").unpack_from
        for _ in range(count):
            start = place + 8
            place = start + length(data, place)[0]
            if place > len(data):
                raise IndexError
            made.append(str(data[start:place], "utf-8", "replace"))
        self.place = place
        return made

    def value(self, kind: int) -> Any:
        if kind in NUMBERS:
            number = self.number(NUMBERS[kind])
            return float(str(np.float32(number))) if NUMBERS[kind] == "f" else number  # 1e-05 as it was written
        if kind == TEXT:
            return self.text()
        if kind != ARRAY:
            raise ValueError(f"metadata of type {kind}")
        kind, count = self.numbers("IQ")
        if kind in NUMBERS:
            dtype = np.dtype("<" + NUMBERS[kind])
            if count * dtype.itemsize > len(self.data) - self.place:
                raise IndexError
            made = np.frombuffer(self.data, dtype, count, self.place)
            self.place += made.nbytes
            return made
        if count * 8 > len(self.data) - self.place:  # each has its length at least
            raise IndexError
        return self._texts(count) if kind == TEXT else [self.value(kind) for _ in range(count)]


__all__ = ["GgufFile", "GgufTensor", "read_gguf"]
