"""Folders of Hugging Face: config.json, and weights in safetensors files, mapped into memory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir.types import numpy_dtype
from ..support.errors import ModelError
from ..support.mapped_file import MappedFile, map_file

if TYPE_CHECKING:
    from .config import DecoderModel

#: element types of safetensors -> ours
DTYPES = {"F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16", "I64": "i64", "I32": "i32", "I8": "i8", "U8": "ui8"}
DTYPES |= {"U32": "ui32", "F8_E4M3": "f8E4M3FN", "F8_E5M2": "f8E5M2"}  # of models that are quantized
INDEX = "model.safetensors.index.json"


class Checkpoint:
    """A folder with config.json and ``model.safetensors``, or the files that ``model.safetensors.index.json`` names.

    config: the content of config.json. tensors: by name, views of the mapped files. ModelError for a folder that is
    none, or files that are damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config: Mapping[str, Any] = _json(self.path / "config.json")
        self.files = [map_file(p) for p in self._paths()]
        self.tensors: dict[str, np.ndarray] = {}
        for file in self.files:
            found = tensors_of(file)
            if twice := sorted(found.keys() & self.tensors.keys()):
                raise ModelError(f"tensor {twice[0]!r} is in {file.path.name} and in a file before it", stage="import")
            self.tensors.update(found)

    def _paths(self) -> list[Path]:
        if (self.path / INDEX).is_file():
            places = _json(self.path / INDEX).get("weight_map")
            if not isinstance(places, dict) or not all(isinstance(n, str) for n in places.values()):
                raise ModelError(f"{self.path / INDEX} has no weight_map of names of files", stage="import")
            names = sorted(set(places.values()))
            if any(os.path.basename(n) != n for n in names):
                raise ModelError(f"{self.path / INDEX} names files outside of its folder", stage="import")
            missing = [n for n in names if not (self.path / n).is_file()]
            if missing:
                raise ModelError(f"{self.path} lacks {', '.join(missing)}", stage="import", hint=f"{INDEX} names them")
            return [self.path / n for n in names]
        found = sorted(self.path.glob("*.safetensors"))
        if not found:
            other = sorted(p.name for p in self.path.glob("*.bin"))
            hint = (
                "save it again with safe_serialization=True" if other else "a folder has config.json and *.safetensors"
            )
            raise ModelError(f"there are no safetensors files in {self.path}", stage="import", hint=hint)
        return [self.path / "model.safetensors"] if self.path / "model.safetensors" in found else found


@dataclass(frozen=True)
class FolderSource:
    """A folder as what is compiled: `program.Source`."""

    path: Path

    def digest(self) -> str:
        checkpoint = self._checkpoint
        parts = [json.dumps(checkpoint.config, sort_keys=True), *(f.digest() for f in checkpoint.files)]
        return "\0".join(parts)

    def read(self) -> tuple[DecoderModel, dict[str, Any]]:
        from .architectures import find
        from .quantize.package import KEY, weights_of
        from .quantized_checkpoint import KEY as QUANTIZED
        from .quantized_checkpoint import read_quantized

        checkpoint = self._checkpoint
        config = {n: v for n, v in checkpoint.config.items() if n not in (KEY, QUANTIZED)}
        architecture = find(config)
        model = architecture.model(config)
        if KEY in checkpoint.config:
            return model, weights_of(checkpoint.config[KEY], checkpoint.tensors)
        tensors: Mapping[str, Any] = checkpoint.tensors
        if said := checkpoint.config.get(QUANTIZED):
            tensors = read_quantized(said, tensors)
        return model, architecture.weights(model, tensors)

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(self.path)


def _number(x: dict[str, Any]) -> Any:
    """A float that JSON has no word for, as it is written by transformers; other objects as they are.

    >>> _number({"__float__": "Infinity"})
    inf
    """
    return float(x["__float__"]) if list(x) == ["__float__"] else x


def _json(path: Path) -> Any:
    try:
        made = json.loads(path.read_text(encoding="utf-8"), object_hook=_number)
        if not isinstance(made, dict):
            raise ValueError("it holds no object")
        return made
    except OSError as e:
        raise ModelError(
            f"cannot read {path}: {e.strerror}", stage="import", hint="a model is a folder of Hugging Face"
        ) from e
    except (ValueError, RecursionError) as e:
        raise ModelError(f"{path} is not JSON: {e}", stage="import") from e


def tensors_of(file: MappedFile) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file by name: views of its bytes. ModelError if it is damaged."""
    try:
        length = int.from_bytes(file.data[:8].tobytes(), "little")
        if length > len(file.data) - 8:
            raise ValueError("its header is cut off")
        header = json.loads(file.data[8 : 8 + length].tobytes())
        header.pop("__metadata__", None)
        data = file.data[8 + length :]
        return {name: _tensor(name, data, **info) for name, info in header.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        raise ModelError(f"{file.path} is no safetensors file: {e}", stage="import") from e


def _tensor(name: str, data: np.ndarray, *, dtype: str, shape: list[int], data_offsets: list[int]) -> np.ndarray:
    if dtype not in DTYPES:
        raise ModelError(
            f"tensor {name!r} is of {dtype}", stage="import", hint=f"types that are read: {', '.join(DTYPES)}"
        )
    start, stop = data_offsets
    known = np.dtype(numpy_dtype(DTYPES[dtype]))
    if not 0 <= start <= stop <= len(data) or stop - start != int(np.prod(shape, dtype=np.int64)) * known.itemsize:
        raise ValueError(f"tensor {name!r} does not lie where the header says")
    if start % known.itemsize:  # headers are padded, but nothing says that they must
        return data[start:stop].copy().view(known).reshape(shape)
    return data[start:stop].view(known).reshape(shape)


__all__ = ["Checkpoint", "FolderSource", "tensors_of"]
