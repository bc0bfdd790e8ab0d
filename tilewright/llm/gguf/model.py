"""A GGUF file as a model: its configuration, and its weights by the names of `config.Model`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.block_weights import BlockWeights
from ...support.errors import ModelError, UnsupportedError
from ..architectures import find as find_architecture
from ..config import Model
from .architectures import GgufArchitecture, find
from .blocks import FIELDS, block_weights_of
from .reader import GgufFile, GgufTensor, read_gguf

#: a factor of all of a tensor
SCALE = ".scale"


@dataclass(frozen=True)
class GgufSource:
    """What `load_model` compiles of a GGUF file."""

    path: Path

    def digest(self) -> str:
        """Says what the files hold."""
        return "\0".join(f.digest() for f in self._file.files)

    def read(self) -> tuple[Model, dict[str, Any]]:
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
    """All weights by the names of `Model`: arrays, views of the file where they can be, and `BlockWeights`.

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
        if to is not None:
            made |= _weight(file, architecture, config, to, tensor)
    if unknown:
        more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
        raise UnsupportedError(
            f"the file has tensors that a {architecture.model_type} model does not: {', '.join(unknown[:8])}{more}",
            stage="import",
        )
    return made


def _weight(
    file: GgufFile, architecture: GgufArchitecture, config: dict[str, Any], to: str, tensor: GgufTensor
) -> dict[str, Any]:
    part = to.split(".")[-2]
    if architecture.turned and part in ("q", "k") and ".attention." in to:
        heads = config["num_attention_heads" if part == "q" else "num_key_value_heads"]
        rows = tensor.data.reshape(tensor.shape[0], -1)
        tensor = replace(tensor, data=_straight(rows, heads).reshape(tensor.data.shape))
    weight: Any = block_weights_of(tensor) if len(tensor.shape) > 1 else None
    if weight is None:
        weight = tensor.array()
    scale = file.tensors.get(tensor.name.removesuffix(".weight") + SCALE)
    if scale is not None:
        weight = _scaled(weight, scale.array().astype(np.float32))
    if architecture.norm_offset and (part in ("before", "after", "norm") or part.endswith("_norm")):
        weight = weight - np.float32(architecture.norm_offset)
    if part == "shared_gate":
        weight = weight.reshape(1, -1)
    if ".experts." in to:
        return _experts(to, weight, tensor.shape[0])
    return {to: weight}


def _straight(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of heads in which halves are rotated together, of those where neighbours are.

    >>> _straight(np.arange(4), 1).tolist()
    [0, 2, 1, 3]
    """
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _scaled(weight: Any, scale: np.ndarray) -> Any:
    """Times one number, or one a row of the first dimension."""
    rows = weight.words.shape[0] if isinstance(weight, BlockWeights) else weight.shape[0]
    each = np.repeat(scale.reshape(-1, 1), rows // scale.size, 0)
    if not isinstance(weight, BlockWeights):
        return weight * each.reshape(-1, *[1] * (weight.ndim - 1))
    minimum = None if weight.minimum is None else weight.minimum.astype(np.float32) * each
    return replace(weight, scale=weight.scale.astype(np.float32) * each, minimum=minimum)


def _experts(to: str, weight: Any, count: int) -> dict[str, Any]:
    """The weights of each expert, of those of all."""
    name, part = to.removesuffix(".weight").rsplit(".", 1)
    return {f"{name}.{i}.{part}.weight": _expert(weight, i, count) for i in range(count)}


def _expert(weight: Any, i: int, count: int) -> Any:
    if not isinstance(weight, BlockWeights):
        return weight[i]
    rows = weight.words.shape[0] // count
    arrays = {f: a[i * rows : (i + 1) * rows] for f in FIELDS if (a := getattr(weight, f)) is not None}
    return replace(weight, **arrays)


__all__ = ["GgufSource", "weights_of"]
