"""Collects the operators that a front end cannot import, so that one error names all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..support.errors import UnsupportedError

#: a poison value in place of the results of nodes that could not be imported: the import continues and finds all
FAILED = object()


class NotImported(Exception):
    """Raised by an import function for a use of an operator that is not supported: collected, not fatal."""


@dataclass(frozen=True)
class ImportFailure:
    """A node that cannot be imported."""

    operator: str
    place: str
    reason: str = ""


def report(failures: Sequence[ImportFailure], hint: str) -> UnsupportedError:
    """All failures as one error: a line an operator and reason, with its count and its first places."""
    groups: dict[tuple[str, str], list[str]] = {}
    for f in failures:
        groups.setdefault((f.operator, f.reason), []).append(f.place)
    lines = []
    for (operator, reason), places in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        where = ", ".join(dict.fromkeys(p for p in places if p)) or "no place known"
        text = f"  {operator}: {len(places)} node{'s' * (len(places) > 1)} ({where})"
        lines.append(text + (f": {reason}" if reason else ""))
    return UnsupportedError(
        f"the program uses {len(groups)} operator{'s' * (len(groups) > 1)} that cannot be imported:\n"
        + "\n".join(lines),
        stage="import",
        hint=hint,
    )
