"""Names for the things of a model, and text that is safe in a comment."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .c99 import KEYWORDS


def identifier(text: str) -> str:
    """A C identifier that looks like `text`.

    >>> identifier("my-model.v2"), identifier("3d"), identifier("float")
    ('my_model_v2', 'm3d', 'float_')
    """
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "model"
    if name[0].isdigit():
        name = f"m{name}"
    return f"{name}_" if name in KEYWORDS else name


def distinct(texts: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """An identifier for each text, all different."""
    used, names = set(taken), []
    for text in texts:
        base = name = identifier(text)
        number = 1
        while name in used:
            number += 1
            name = f"{base}_{number}"
        used.add(name)
        names.append(name)
    return names


def comment(text: str, limit: int = 100) -> str:
    """Text that neither ends a comment nor continues its line.

    >>> comment("a*/b")
    'a* /b'
    """
    text = "".join(c if " " <= c < "\x7f" else " " for c in text).replace("\\", "/")
    text = text.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")
    return text if len(text) <= limit else text[: limit - 4] + " ..."
