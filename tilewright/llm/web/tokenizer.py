"""A tokenizer as JSON data for a page: what `site/tokenizer.js` needs to make tokens of text, and text of tokens."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from ...support.errors import UnsupportedError
from ..tokenizer import Tokenizer

#: how GPT-2 cuts text into words; the pre-tokenizer ByteLevel does so by itself
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def tokenizer_data(tokenizer: Tokenizer) -> dict[str, Any]:
    """vocabulary: tokens by text. merges: pairs in their order. patterns: how text is cut into words, one after the
    other. bytes: of each token, in base64, "" for special ones. normalize: a form of Unicode, "" for none. whole: a
    word that is a token is not cut further. eos: tokens that end an answer.

    Byte pairs over bytes are understood, as most models of today have them; UnsupportedError for others.
    """
    data = json.loads(tokenizer.hf.to_str())
    model = data["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback") or model.get("continuing_subword_prefix"):
        raise _unsupported(f"the model {model.get('type')}")
    merges = [m.split(" ", 1) if isinstance(m, str) else list(m) for m in model["merges"]]
    count = tokenizer.vocabulary
    special = set(tokenizer.added)
    known = set(model["vocab"].values()) - special
    return {
        "vocabulary": model["vocab"],
        "merges": merges,
        "whole": bool(model.get("ignore_merges")),
        "patterns": _patterns(data.get("pre_tokenizer")),
        "normalize": _normalization(data.get("normalizer")),
        "bytes": [base64.b64encode(tokenizer.token_bytes(i)).decode() if i in known else "" for i in range(count)],
        "eos": sorted(tokenizer.eos),
    }


def _unsupported(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} of the tokenizer is not known to the page", stage="export", hint="serve the model instead"
    )


def _normalization(part: Mapping[str, Any] | None) -> str:
    if part is None:
        return ""
    if part["type"] in ("NFC", "NFD", "NFKC", "NFKD"):
        return str(part["type"])
    raise _unsupported(f"the normalizer {part['type']}")


def _patterns(part: Mapping[str, Any] | None) -> list[str]:
    """Regular expressions of JavaScript, whose matches and what is between them are words."""
    parts = part["pretokenizers"] if part and part["type"] == "Sequence" else [part] if part else []
    if not parts or parts[-1]["type"] != "ByteLevel" or parts[-1]["add_prefix_space"]:
        raise _unsupported("the pre-tokenizer")
    found = []
    for p in parts[:-1]:
        if p["type"] == "Digits":
            found.append(r"\p{N}" if p["individual_digits"] else r"\p{N}+")
        elif p["type"] == "Split" and p["behavior"] == "Isolated" and not p["invert"] and "Regex" in p["pattern"]:
            found.append(javascript(p["pattern"]["Regex"]))
        else:
            raise _unsupported(f"the pre-tokenizer {p['type']}")
    return [*found, javascript(GPT2)] if parts[-1].get("use_regex", True) else found


#: letters that Unicode takes for one beside upper and lower case
FOLDS = {"s": "ſ", "k": "\u212a"}


def javascript(pattern: str) -> str:
    """A regular expression in JavaScript's words, of its flag "u"; UnsupportedError for one that it has no words for.

    >>> javascript(r"(?i:'d|'t)| ?\\p{L}+|\\s+")
    "(?:'[dD]|'[tT])| ?\\\\p{L}+|\\\\p{White_Space}+"
    """
    # escapes and classes may hold the signs that are looked for
    bare = re.sub(r"\\.|\[\^?(?:\\.|[^\]\\])*\]", "x", pattern)
    if re.search(r"(?:[?*+]|\{\d*(?:,\d*)?\})\+|\(\?>", bare):
        raise _unsupported("a pattern that does not go back")

    def cases(letter: re.Match[str]) -> str:
        low = letter[0].lower()
        return f"[{low}{low.upper()}{FOLDS.get(low, '')}]"

    made = re.sub(r"\(\?i:([^()\\]*)\)", lambda m: f"(?:{re.sub('[A-Za-z]', cases, m[1])})", pattern)
    if "(?i" in made:
        raise _unsupported("a pattern without case")
    space = {"\\s": r"\p{White_Space}", "\\S": r"\P{White_Space}"}  # JavaScript's own \s knows fewer and one more
    return re.sub(r"\\.", lambda m: space.get(m[0], m[0]), made)
