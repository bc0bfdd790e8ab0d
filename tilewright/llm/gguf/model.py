"""A GGUF file as a model: its configuration, and its weights by the names of `config.DecoderModel`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.block_weights import BlockWeights
from ...support.errors import ModelError, UnsupportedError
from ...support.lazy_array import LazyArray
from ..architectures import find as find_architecture
from ..config import DecoderModel
from .architectures import GgufArchitecture, find
from .blocks import block_weights_of
from .reader import GgufFile, GgufTensor, read_gguf

#: a factor of all of a tensor
SCALE = ".scale"
#: weights that are not multiplied with activations as they are
FLOAT = ("router", "shared_gate", "conv", "kv_b", "k_b", "v_b")
#: weights that files have in another form: ends of names -> what makes them as they are in `DecoderModel`
SHAPED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    ".shared_gate.weight": lambda a: a.reshape(1, -1),
    ".conv.weight": lambda a: a[:, None],
    ".mixer.norm.weight": np.ravel,
    ".A_log": lambda a: np.log(-a).ravel(),
    ".D": np.ravel,
}


@dataclass(frozen=True)
class GgufSource:
    """What `load_model` compiles of a GGUF file."""

    path: Path

    def digest(self) -> str:
        """Says what the files hold."""
        return "\0".join(f.digest() for f in self._file.files)

    def read(self) -> tuple[DecoderModel, dict[str, Any]]:
        """The model and its weights. ModelError, UnsupportedError: see `read_gguf` and `architectures.find`."""
        file = self._file
        if "token_embd.weight" not in file.tensors:
            raise ModelError(
                f"{self.path.name} has no tensor token_embd.weight: it is no language model", stage="import"
            )
        architecture = find(file)
        try:
            config = architecture.config(file)
        except KeyError as error:
            raise ModelError(f"{self.path.name} does not say {error} of its model", stage="import") from error
        model = find_architecture(config).model(config)
        return model, weights_of(file, architecture, config)

    @cached_property
    def _file(self) -> GgufFile:
        return read_gguf(self.path)


def weights_of(file: GgufFile, architecture: GgufArchitecture, config: dict[str, Any]) -> dict[str, Any]:
    """All weights by the names of `DecoderModel`: arrays, views of the file where they can be, and `BlockWeights`.

    UnsupportedError that lists the tensors that have no place.
    """
    made: dict[str, Any] = {}
    unknown = []
    for name, tensor in file.tensors.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) + ".weight" in file.tensors:
            continue
        try:
            to = architecture.name(name)
        except (KeyError, ValueError):
            unknown.append(name)
            continue
        if to is None:
            continue
        scale = file.tensors.get(name.removesuffix(".weight") + SCALE)
        parts = architecture.rows(to, config)
        taken = {to: tensor} if parts is None else {part: _rows(tensor, rows) for part, rows in parts.items()}
        factor = None if scale is None else scale.array()
        for part, its in taken.items():
            if ".experts." not in part:
                made[part] = _weight(architecture, part, its, factor)
                continue
            name, last = part.removesuffix(".weight").rsplit(".", 1)
            for i, (own, by) in enumerate(_experts(its, factor)):
                made[f"{name}.{i}.{last}.weight"] = _weight(architecture, part, own, by)
    if unknown:
        more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
        raise UnsupportedError(
            f"the file has tensors that a {architecture.model_type} model does not: {', '.join(unknown[:8])}{more}",
            stage="import",
        )
    for name in [n for n in made if n.endswith(".k_b.weight")]:  # of latent attention, with the values' behind
        keys, values = made.pop(name), made.pop(name.replace(".k_b.", ".v_b."))
        both = np.concatenate([keys.swapaxes(1, 2), values], 1)
        made[name.replace(".k_b.", ".kv_b.")] = both.reshape(-1, both.shape[2])
    return made


def _rows(tensor: GgufTensor, rows: np.ndarray) -> GgufTensor:
    """Some rows of a tensor, in this order."""
    if rows.max(initial=-1) >= tensor.shape[0]:
        raise ModelError(f"tensor {tensor.name!r} has {tensor.shape[0]} rows, not {len(rows)}", stage="import")
    if len(tensor.shape) > 1:
        return replace(tensor, shape=(len(rows), *tensor.shape[1:]), order=rows)
    data = tensor.data.reshape(tensor.shape[0], -1)[rows].reshape(-1)
    return replace(tensor, shape=(len(rows),), data=data)


def _experts(tensor: GgufTensor, scale: np.ndarray | None) -> Iterator[tuple[GgufTensor, np.ndarray | None]]:
    """The tensor of each expert, of those of all, and its part of the scale."""
    for i in range(tensor.shape[0]):
        own = replace(tensor, shape=tensor.shape[1:], data=tensor.data[i])
        yield own, None if scale is None else np.resize(scale, tensor.shape[0])[i : i + 1]


def _weight(architecture: GgufArchitecture, to: str, tensor: GgufTensor, scale: np.ndarray | None) -> Any:
    parts = to.split(".")
    weight: Any = None
    if len(tensor.shape) > 1 and parts[-2] not in FLOAT:
        weight = block_weights_of(tensor)
    weight = tensor.array() if weight is None else weight
    if scale is not None:
        weight = _scaled(weight, scale.astype(np.float32))
    norm = parts[-2] in ("before", "after", "norm") or parts[-2].endswith("_norm")
    if architecture.norm_offset and norm and not re.fullmatch(architecture.own_norms, to):
        weight = weight - np.float32(architecture.norm_offset)
    for suffix, shaped in SHAPED.items():
        if to.endswith(suffix):
            weight = shaped(weight)
    return weight


def _scaled(weight: Any, scale: np.ndarray) -> Any:
    """Times one number."""
    if not isinstance(weight, BlockWeights):
        return weight * scale

    def make() -> BlockWeights:
        read = weight.read()
        minimum = None if read.minimum is None else read.minimum.astype(np.float32) * scale
        return replace(read, scale=read.scale.astype(np.float32) * scale, minimum=minimum)

    floats = {n: LazyArray(a.shape, np.dtype(np.float32), a.make) for n, a in weight.arrays.items()}
    like: dict[str, Any] = {n: a for n, a in floats.items() if n in ("scale", "minimum")}
    return BlockWeights.lazy(replace(weight, **like), weight.shape[0], make)


__all__ = ["GgufSource", "weights_of"]
