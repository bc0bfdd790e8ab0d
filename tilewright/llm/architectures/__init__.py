"""Architectures of language models, one a file: how config.json becomes a `DecoderModel`, what weights are called."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...support.discovery import Registry
from ...support.errors import UnsupportedError
from ..config import DecoderModel
from ..settings import ModelSettings


@dataclass(frozen=True)
class Architecture:
    """How models of one ``model_type`` are read.

    read: config.json -> `DecoderModel`. tensors: names in checkpoints -> ours, without ``.weight`` or ``.bias``;
    ``{}`` stands for a number. prefixes: what names may begin with, and is left out. transposed: those of `tensors`
    that lie as [inputs, outputs]. unused: patterns of names that say nothing. convert: changes all weights at last, by
    the model's names.
    """

    name: str
    read: Callable[[ModelSettings], DecoderModel]
    tensors: Mapping[str, str]
    prefixes: tuple[str, ...] = ("model.",)
    transposed: frozenset[str] = frozenset()
    unused: tuple[str, ...] = (r".*rotary_emb\.inv_freq",)
    convert: Callable[[DecoderModel, dict[str, Any]], dict[str, Any]] | None = None

    def model(self, config: Mapping[str, Any]) -> DecoderModel:
        """What config.json says; UnsupportedError for what is not known of it."""
        settings = ModelSettings(config)
        model = self.read(settings)
        settings.finish()
        return model

    def weights(self, model: DecoderModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of a checkpoint by our names; UnsupportedError lists those that have no place."""
        found: dict[str, Any] = {}
        unknown = []
        for name, array in tensors.items():
            if (known := self._place(name)) is None:
                unknown += [] if any(re.fullmatch(p, name) for p in self.unused) else [name]
            else:
                found[known[0]] = _transposed(name, array) if known[1] else array
        if unknown:
            more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
            raise UnsupportedError(
                f"the checkpoint has weights that a {self.name} model does not: {', '.join(unknown[:8])}{more}",
                stage="import",
            )
        if model.tied:
            found.pop("head.weight", None)
        return self.convert(model, found) if self.convert else found

    def _place(self, name: str) -> tuple[str, bool] | None:
        """The name in `DecoderModel`, and whether it is transposed."""
        for prefix in sorted(self.prefixes, key=len, reverse=True):
            if name.startswith(prefix):
                name = name[len(prefix) :]
                break
        whole, _, last = name.rpartition(".")
        stem, suffix = (whole, f".{last}") if last in ("weight", "bias") else (name, "")
        key = re.sub(r"(?<=\.)\d+(?=\.|$)", "{}", stem)
        if key not in self.tensors:
            return None
        numbers = re.findall(r"(?<=\.)\d+(?=\.|$)", stem)
        return self.tensors[key].format(*numbers) + suffix, suffix == ".weight" and key in self.transposed


def _transposed(name: str, array: Any) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        raise UnsupportedError(f"{name} is quantized along its outputs, which is not read", stage="import")
    return array.T


_ALL: Registry[Architecture] = Registry(
    "architecture",
    "tilewright.llm.architectures",
    "ARCHITECTURE",
    lambda x: isinstance(x, Architecture),
    ("name", "read", "tensors"),
    folders=False,
)


def register(architecture: Architecture) -> None:
    """Add one for this process; an installed package gives an entry point of the group
    ``tilewright.llm.architectures`` instead."""
    _ALL.add(architecture)


def find(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a config.json; UnsupportedError that lists those that there are."""
    name = str(config.get("model_type"))
    if (found := _ALL.get(name)) is None:
        raise UnsupportedError(
            f"there is no architecture {name!r} (model_type of config.json)",
            stage="import",
            hint=f"there are {', '.join(sorted(_ALL.all()))}; a file in llm/architectures adds one",
        )
    return found


__all__ = ["Architecture", "find", "register"]
