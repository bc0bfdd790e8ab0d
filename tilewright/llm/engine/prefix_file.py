"""Prompt states in files: the pages and the snapshot that a sequence of tokens has left behind, to begin from later."""

from __future__ import annotations

import json
import os
import zipfile
from typing import Any

import numpy as np

from ...support.errors import PackageError, UsageError
from ...support.files import replacing, written
from .cache import Cache, CacheValue

_FORM = "tilewright prompt state 1"


def save(cache: Cache, tokens: list[int], fingerprint: str, path: str | os.PathLike[str]) -> bool:
    """Write what the tree has of these tokens. False: it does not have all of them."""
    nodes, leaf, common = cache.match(tokens, len(tokens))
    if len(nodes) * cache.page_length + common != len(tokens):
        return False
    nodes += [leaf] if leaf is not None else []
    values = cache.runner.read([n.page for n in nodes], [nodes[-1].snapshot] if cache.hybrid else [])
    head = {
        "form": _FORM,
        "model": fingerprint,
        "page_length": cache.page_length,
        "states": {k: [str(v.dtype), list(v.shape)] for k, v in values.items()},
    }
    arrays: dict[str, Any] = {
        f"state {k}": np.ascontiguousarray(v).reshape(-1).view(np.uint8) for k, v in values.items()
    }
    with written(path, "save"), replacing(path) as file:
        np.savez(file, head=np.array(json.dumps(head)), tokens=np.asarray(tokens, np.int32), **arrays)
    return True


def load(cache: Cache, fingerprint: str, path: str | os.PathLike[str]) -> list[int]:
    """Put what a file has into the tree; its tokens. PackageError for a damaged file and for one of another model,
    UsageError where there is no room."""
    head, tokens, values = _read(path)
    if head["model"] != fingerprint or head["page_length"] != cache.page_length:
        raise PackageError(f"{path} is of another model, or of one with another cache", stage="load")
    value = CacheValue()
    state = cache.snapshot() if cache.hybrid else -1
    value.state = -1 if state is None else state
    if state is None or not cache.reserve(value, len(tokens)):
        cache.close(value)
        raise UsageError(f"there is no room for the {len(tokens)} tokens of {path}", stage="load")
    own = cache.runner.read(value.table[:1], [value.state] if cache.hybrid else [])
    try:
        found = {
            k: values[k].view(own[k].dtype).reshape(shape)
            for k, (dtype, shape) in head["states"].items()
            if dtype == str(own[k].dtype) and shape[1:] == list(own[k].shape[1:])
        }
        if found.keys() != own.keys() or any(len(v) not in (0, 1, len(value.table)) for v in found.values()):
            raise ValueError("states that are not those of the model")
        cache.runner.write(found, value.table, [value.state] if cache.hybrid else [])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        cache.close(value)
        raise PackageError(f"{path} is damaged: {error}", stage="load") from error
    cache.advance(value, tokens, len(tokens))
    cache.close(value, tokens)
    return tokens


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[int], dict[str, np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            head = json.loads(str(file["head"]))
            if head["form"] != _FORM:
                raise ValueError("another form")
            tokens = [int(t) for t in file["tokens"]]
            if not tokens:
                raise ValueError("no tokens")
            return head, tokens, {k: file[f"state {k}"] for k in head["states"]}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", stage="load") from error
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise PackageError(f"{path} is no prompt state, or damaged: {error}", stage="load") from error


__all__ = ["load", "save"]
