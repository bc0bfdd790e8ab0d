"""Tokenizers of folders without a tokenizer.json: SentencePiece's tokenizer.model, and vocab.json with merges.txt."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..support.errors import ModelError, UnsupportedError
from .gguf.tokenizer import CONTROL, USER, byte_pairs, pieces

if TYPE_CHECKING:
    import tokenizers

#: kinds of SentencePiece's models by number
KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
#: how classes of `transformers` cut text into words, by a name of `gguf.tokenizer.PATTERNS`; others as GPT-2
CUTS = {"Qwen2Tokenizer": "qwen2", "Qwen2TokenizerFast": "qwen2"}


def tokenizer_of_files(folder: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer | None:
    """The tokenizer in other files than tokenizer.json; None if there are none. config: tokenizer_config.json.

    ModelError for damaged files, UnsupportedError for kinds that are not read.
    """
    if (folder / "tokenizer.model").exists():
        return _sentencepiece(folder / "tokenizer.model", config)
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return _byte_pairs(folder, config)
    return None


def _byte_pairs(folder: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    try:
        vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        texts = sorted(vocabulary, key=vocabulary.__getitem__)
        whole = sorted(vocabulary.values()) == list(range(len(texts)))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ModelError(f"vocab.json or merges.txt in {str(folder)!r} cannot be read: {error}") from error
    if not whole:
        raise ModelError(f"the tokens in {str(folder / 'vocab.json')!r} are not numbered from 0 on")
    merges = [line for line in lines if line and not line.startswith("#version")]
    hf = byte_pairs(texts, merges, CUTS.get(str(config.get("tokenizer_class")), "gpt-2"))
    known = [t for n in ("bos", "eos", "unk", "pad") if (t := _text(config.get(f"{n}_token"))) in vocabulary]
    hf.add_special_tokens(list(dict.fromkeys(known)))
    return hf


def _text(token: Any) -> str:
    return str(token.get("content", "") if isinstance(token, dict) else token or "")


# ---- SentencePiece -------------------------------------------------------------------------------------------------


@dataclass
class _Model:
    """What a tokenizer.model says."""

    texts: list[str]
    scores: list[float]
    types: list[int]
    kind: int = 1
    unknown: int = 0
    prefix: bool = True
    bos: int = 1
    charsmap: bytes = b""
    joins_spaces: bool = True


def _sentencepiece(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    from tokenizers import AddedToken, normalizers, processors

    try:
        model = _read(path.read_bytes())
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise ModelError(f"{str(path)!r} is no model of SentencePiece: {error}") from error
    if KINDS.get(model.kind) != "bpe" or not model.texts:
        raise UnsupportedError(
            f"{str(path)!r} is a model of SentencePiece of the kind {KINDS.get(model.kind, model.kind)}",
            stage="import",
            hint="bpe is read; `transformers` writes a tokenizer.json of others: save_pretrained",
        )
    types = np.asarray(model.types)
    hf = pieces(model.texts, types, np.asarray(model.scores), model.unknown, model.prefix)
    before: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.joins_spaces:
        before += [normalizers.Strip(), normalizers.Replace(_regex(" {2,}"), " ")]
    if before:
        hf.normalizer = normalizers.Sequence([*before, hf.normalizer])
    special = [model.texts[i] for i in np.flatnonzero((types == CONTROL) | (types == 2)).tolist()]
    hf.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    users = [model.texts[i] for i in np.flatnonzero(types == USER).tolist()]
    hf.add_tokens([AddedToken(t, special=False, normalized=False) for t in users])
    begin = _text(config.get("bos_token")) or (model.texts[model.bos] if model.bos >= 0 else "")
    if config.get("add_bos_token", True) and (token := hf.token_to_id(begin)) is not None:
        hf.post_processor = processors.TemplateProcessing(f"{begin} $A", special_tokens=[(begin, token)])
    return hf


def _regex(pattern: str) -> Any:
    from tokenizers import Regex

    return Regex(pattern)


def _read(data: bytes) -> _Model:
    """The fields of SentencePiece's `ModelProto` (sentencepiece_model.proto) that say how text is cut."""
    model = _Model([], [], [])
    for field, value in _fields(data):
        if field == 1:
            piece = dict(_fields(value))
            model.texts.append(piece[1].decode("utf-8"))
            model.scores.append(struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0)
            model.types.append(piece.get(3, 1))
        elif field == 2:
            trainer = dict(_fields(value))
            model.kind, model.unknown, model.bos = (trainer.get(n, d) for n, d in ((3, 1), (40, 0), (41, 1)))
            model.bos -= (1 << 64) if model.bos >> 63 else 0
        elif field == 3:
            normalizer = dict(_fields(value))
            model.charsmap = normalizer.get(2, b"")
            model.prefix, model.joins_spaces = bool(normalizer.get(3, 1)), bool(normalizer.get(4, 1))
    if not 0 <= model.unknown < max(len(model.texts), 1) or model.bos >= len(model.texts):
        raise ValueError("tokens that it names are not there")
    return model


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message of Protocol Buffers: ints, or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError(f"a field of kind {kind} at byte {at} does not fit")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError(f"a number at byte {at} is too long")


__all__ = ["tokenizer_of_files"]
