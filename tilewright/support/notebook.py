"""Notebook display (`_repr_html_`): one template for all objects."""

from __future__ import annotations

from collections.abc import Sequence


class NotebookText(str):
    """Text of several lines, which notebooks and the prompt show as it is.

    >>> NotebookText("levels\\n  import")
    levels
      import
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return fragment(text=self)


class Printed:
    """An object whose ``str`` is what a notebook shows."""

    def _repr_html_(self) -> str:
        return fragment(text=str(self))


def fragment(head: str = "", rows: Sequence[Sequence[object]] = (), text: str = "", folded: str = "") -> str:
    """A piece of HTML: a line in bold, a table, and text as it is, which unfolds where `folded` names it.

    >>> fragment("add", [("input", "x")])
    '<div><b>add</b><table><tr><td>input</td><td>x</td></tr></table></div>'
    """
    from html import escape

    parts = [f"<b>{escape(head)}</b>" if head else ""]
    if rows:
        lines = ("".join(f"<td>{escape(str(c))}</td>" for c in row) for row in rows)
        parts.append(f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>")
    if text:
        shown = f"<pre>{escape(text)}</pre>"
        parts.append(f"<details><summary>{escape(folded)}</summary>{shown}</details>" if folded else shown)
    return f"<div>{''.join(parts)}</div>"


__all__ = ["Printed", "NotebookText", "fragment"]
