"""A folder with a quantized model: config.json, safetensors files, and the tokenizer's files as they were.

config.json has what it had, and under ``tilewright_quantization`` how the model was made and, by the names of weights
in `DecoderModel`, ``bits`` and ``offset`` of those that are quantized. The files have tensors by the same names; those
of a quantized weight NAME are ``NAME:words``, ``NAME:scale`` and, where it has one, ``NAME:minimum``: the arrays of
`BlockWeights`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ops.block_weights import BlockWeights
from ...support.errors import ModelError, UsageError

#: key of config.json
KEY = "tilewright_quantization"
FORM = 1
FIELDS = ("words", "scale", "minimum")
#: files that a tokenizer or a server reads
COPIED = ("tokenizer*", "special_tokens_map.json", "generation_config.json", "chat_template*", "vocab.json",
          "merges.txt", "additional_chat_templates", "LICENSE*", "README*")  # fmt: skip


class Writer:
    """Writes such a folder, one part of the weights at a time; it is there when all is written."""

    def __init__(self, source: Path, out: Path, config: Mapping[str, Any], made: Mapping[str, Any]) -> None:
        """source: the folder that the tokenizer comes from. made: says how the model is quantized."""
        if out.exists():
            raise UsageError(f"{str(out)!r} is there already", hint="give another folder, or remove it")
        self.source, self.out, self.config, self.made = source, out, dict(config), dict(made)
        self.folder = out.with_name(out.name + ".part")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.names: dict[str, str] = {}
        self.weights: dict[str, dict[str, int]] = {}
        self.bytes = 0

    def add(self, weights: Mapping[str, Any]) -> None:
        """Write arrays and `BlockWeights`, by name, to a file of their own."""
        from safetensors.numpy import save_file

        arrays: dict[str, Any] = {}
        for name, w in weights.items():
            if not isinstance(w, BlockWeights):
                arrays[name] = w
                continue
            self.weights[name] = {"bits": w.bits, "offset": w.offset}
            arrays |= {f"{name}:{f}": a for f in FIELDS if (a := getattr(w, f)) is not None}
        file = f"model-{len(set(self.names.values())):05d}.safetensors"
        save_file({n: a.copy(order="C") for n, a in arrays.items()}, self.folder / file)
        self.names.update(dict.fromkeys(arrays, file))
        self.bytes += sum(a.nbytes for a in arrays.values())

    def finish(self) -> None:
        """Write what is left, and give the folder its name."""
        index = {"metadata": {"total_size": self.bytes}, "weight_map": self.names}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))
        config = self.config | {KEY: {"form": FORM, **self.made, "weights": self.weights}}
        (self.folder / "config.json").write_text(json.dumps(config, indent=1))
        for pattern in COPIED:
            for found in self.source.glob(pattern):
                copy = shutil.copytree if found.is_dir() else shutil.copy2
                copy(found, self.folder / found.name)
        self.folder.rename(self.out)


def weights_of(said: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The weights in the tensors of such a folder; `said`: what config.json has under `KEY`."""
    if said.get("form") != FORM:
        form = said.get("form")
        raise ModelError(f"the model is quantized in the form {form!r}; form {FORM} is read", stage="import")
    made = {n: a for n, a in tensors.items() if ":" not in n}
    for name, fields in said["weights"].items():
        words, scale, minimum = (tensors.get(f"{name}:{f}") for f in FIELDS)
        if words is None or scale is None:
            raise ModelError(f"the quantized model lacks {name}", stage="import")
        block = words.shape[2] * 32 // fields["bits"]
        made[name] = BlockWeights(words, scale, None, fields["bits"], block, minimum=minimum, offset=fields["offset"])
    return made


__all__ = ["KEY", "Writer", "weights_of"]
