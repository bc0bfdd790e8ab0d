"""What HTML report pages are made of: the document, tiles with numbers, legends, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from .page_style import SCRIPT, STYLE

#: colours of rules, bottlenecks or engines; what is rarer shares one
COLOURS = 9


def document(
    title: str, about: str, body: Sequence[str], *, heading: str = "", warning: str = "", style: str = ""
) -> str:
    """A page that needs nothing else; `heading` is the title if it is empty."""
    warned = f"<p class='warning'>{escape(warning)}</p>" if warning else ""
    head = [f"<h1>{escape(heading or title)}</h1>", f"<p class='sub'>{escape(about)}</p>", warned]
    content = "\n".join(x for x in (*head, *body) if x)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"/>\n<style>{STYLE}{style}</style>\n'
        f"</head>\n<body>\n{content}\n<script>//<![CDATA[\n{SCRIPT}\n//]]></script>\n</body>\n</html>\n"
    )


def tiles(found: Iterable[tuple[str, str, str]]) -> str:
    """Numbers in large letters: (value, what it is, more for who points there); those without a value are left out."""
    cells = (
        f"<div class='tile' title='{escape(more, quote=True)}'><b>{escape(value)}</b><span>{escape(label)}</span></div>"
        for value, label, more in found
        if value
    )
    return f"<div class='tiles'>{''.join(cells)}</div>"


def colour(index: int) -> str:
    """The class of the colour of what has this rank."""
    return f"f-{index}" if index < COLOURS else "f-rest"


def legend(found: Iterable[tuple[str, str]]) -> str:
    """Classes of colours and what they stand for."""
    items = (f"<span><i class='{c}'></i>{escape(name)}</span>" for c, name in found)
    return f"<div class='legend'>{''.join(items)}</div>"


def section(title: str, text: str, content: str) -> str:
    """A heading, a sentence, and what belongs there."""
    return f"<section><h2>{title}</h2><p class='sub'>{escape(text)}</p>{content}</section>"


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A small table of texts; its style is `page_style.PLAIN`."""
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in rows)
    return f"<table class='plain'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True)
class TableCell:
    """A cell of a table that opens: its text, what its column is sorted by, a bar behind it as long as a share, what
    stands in full for who points there, and marks (HTML) before the text."""

    text: str
    key: float | str
    bar: float | None = None
    full: str = ""
    marks: str = ""

    def __str__(self) -> str:
        title = f" title='{escape(self.full, quote=True)}'" if self.full else ""
        bar = f" style='--bar:{100 * min(max(self.bar, 0.0), 1.0):.1f}%' class='bar'" if self.bar is not None else ""
        key = escape(str(self.key), quote=True)
        return f"<span data-v='{key}'{title}{bar}>{self.marks}{escape(self.text)}</span>"


def opening_table(heads: Sequence[str], rows: Iterable[tuple[int, Sequence[TableCell], str]]) -> str:
    """A table that a click on a heading sorts and whose rows open: (number, as the drawings have it, cells, HTML
    inside)."""
    head = "".join(f"<span role='columnheader' data-sort='{i}'>{escape(h)}</span>" for i, h in enumerate(heads))
    body = "".join(
        f"<details data-k='{k}'><summary class='row'>{''.join(map(str, cells))}</summary>"
        f"<div class='more'>{more}</div></details>"
        for k, cells, more in rows
    )
    return f"<div class='table'><div class='row head'>{head}</div>{body}</div>"
