"""Shared parts of HTML report pages: the document, roofline plots, axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from .page_style import SCRIPT, STYLE
from .profile_text import number

#: the drawing of a roofline in pixels, and its margins
WIDTH, HEIGHT = 860, 470
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 16, 46
#: where the lanes of a timeline begin, below its numbers
AXIS = 26


def document(title: str, body: Sequence[str], style: str = "") -> str:
    """A page that needs nothing else."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"/>\n<style>{STYLE}{style}</style>\n'
        "</head>\n"
        f"<body>\n{chr(10).join(body)}\n<script>//<![CDATA[\n{SCRIPT}\n//]]></script>\n</body>\n</html>\n"
    )


def section(title: str, text: str, content: str) -> str:
    """A heading, a sentence, and what belongs there."""
    return f"<section><h2>{title}</h2><p class='sub'>{escape(text)}</p>{content}</section>"


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A small table of texts; its style is `page_style.PLAIN`."""
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in rows)
    return f"<table class='plain'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True)
class Circle:
    """A circle of a drawing, with a name."""

    x: float
    y: float
    r: float
    name: str = ""


class LogAxis:
    """A logarithmic axis from decade to decade."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)) - 0.1)
        self.high = math.ceil(math.log10(max(values)) + 0.05)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        at = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + at * (self.end - self.start)

    def decades(self) -> list[float]:
        return [10.0**d for d in range(self.low, self.high + 1)]

    def minor(self) -> list[float]:
        return [m * 10.0**d for d in range(self.low, self.high) for m in range(2, 10)]


#: of a letter, as the names are written
_LETTER, _LINE = 6.4, 12.0
#: left, right, top, bottom
Box = tuple[float, float, float, float]


def circle_names(labels: Sequence[Circle], others: Sequence[Circle] = ()) -> Iterable[str]:
    """Names beside, above or below circles, where they lie on no circle, on no other name and not outside; none where
    there is no such place. `others` are circles without a name."""
    taken: list[Box] = [(c.x - c.r, c.x + c.r, c.y - c.r, c.y + c.r) for c in (*labels, *others)]
    for c in labels:
        width, half = _LETTER * len(c.name), _LINE / 2
        left, right = c.x - c.r - 4, c.x + c.r + 4
        above, below = c.y - c.r - half - 2, c.y + c.r + half + 2
        sides = [(left - width, c.y), (right, c.y)]
        sides = sides if c.x > (LEFT + WIDTH) / 2 else sides[::-1]
        for start, y in (*sides, (c.x - width / 2, below), (c.x - width / 2, above)):
            box = (start, start + width, y - half, y + half)
            inside = box[0] > LEFT and box[1] < WIDTH - RIGHT and box[2] > TOP and box[3] < HEIGHT - BOTTOM
            if inside and not any(_meet(box, b) for b in taken):
                taken.append(box)
                at, anchor = (start + width, "end") if start + width < c.x else (start, "start")
                yield f"<text class='name' x='{at:.1f}' y='{y + 4:.1f}' text-anchor='{anchor}'>{escape(c.name)}</text>"
                break


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


def grid(x: LogAxis, y: LogAxis, across_is: str, up_is: str) -> Iterable[str]:
    """The lines of both axes with their numbers and what they are."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for v in x.minor():
        yield f"<line class='minor' x1='{x(v):.1f}' x2='{x(v):.1f}' y1='{TOP}' y2='{bottom}'/>"
    for v in y.minor():
        yield f"<line class='minor' x1='{LEFT}' x2='{right}' y1='{y(v):.1f}' y2='{y(v):.1f}'/>"
    for v in x.decades():
        yield f"<line class='major' x1='{x(v):.1f}' x2='{x(v):.1f}' y1='{TOP}' y2='{bottom}'/>"
        yield f"<text class='tick' x='{x(v):.1f}' y='{bottom + 16}' text-anchor='middle'>{v:g}</text>"
    for v in y.decades():
        yield f"<line class='major' x1='{LEFT}' x2='{right}' y1='{y(v):.1f}' y2='{y(v):.1f}'/>"
        yield f"<text class='tick' x='{LEFT - 7}' y='{y(v) + 4:.1f}' text-anchor='end'>{v:g}</text>"
    middle, across = (TOP + bottom) / 2, (LEFT + right) / 2
    yield f"<text class='label' x='{across}' y='{HEIGHT - 8}' text-anchor='middle'>{across_is}</text>"
    yield (f"<text class='label' text-anchor='middle' transform='translate(14 {middle}) rotate(-90)'>{up_is}</text>")


def part(value: float, total: float) -> str:
    """A length in a drawing that is as wide as `total`."""
    return f"{100 * value / total:.4f}%"


def time_axis(total: float, height: int, label: Callable[[float], str]) -> Iterable[str]:
    """Ticks at a round step; those between them are for a closer look."""
    step = 10.0 ** math.floor(math.log10(total))
    step = next(s for s in (step / 5, step / 2, step) if total / s <= 12)
    for i in range(int(total / (step / 10)) + 1):
        at, coarse = i * step / 10, i % 10 == 0
        kind = "tick" if coarse else "fine"
        yield (
            f"<g class='{kind}'><line x1='{part(at, total)}' x2='{part(at, total)}' y1='{AXIS - 6}' y2='{height}'/>"
            f"<text x='{part(at, total)}' dx='3' y='12'>{label(at)}</text></g>"
        )


def ceilings(
    peaks: dict[str, float], slopes: Sequence[tuple[str, float]], x: LogAxis, y: LogAxis, unit: str
) -> Iterable[str]:
    """Peaks as horizontal lines from where the fastest memory reaches them; memories (the fastest
    first, with their unit) as slopes up to the highest."""
    highest = max(peaks.values())
    left, right = 10.0**x.low, 10.0**x.high
    for name, peak in peaks.items():
        start = max(peak / slopes[0][1], left)
        yield (
            f"<line class='ceiling' x1='{x(start):.1f}' x2='{x(right):.1f}' y1='{y(peak):.1f}' y2='{y(peak):.1f}'/>"
            f"<text class='name' x='{x(start) + 8:.1f}' y='{y(peak) - 6:.1f}'>{escape(name)} {number(peak)}</text>"
        )
    angle = -math.degrees(math.atan2(y(1) - y(10), x(10) - x(1)))
    last = -math.inf
    for name, speed in slopes:
        from_x = max(left, 10.0**y.low / speed)
        to_x = min(highest / speed, right)
        if to_x <= from_x:
            continue
        at = from_x * 1.15  # the name stands where the slope enters the picture
        yield (
            f"<line class='slope' x1='{x(from_x):.1f}' x2='{x(to_x):.1f}' y1='{y(from_x * speed):.1f}' "
            f"y2='{y(to_x * speed):.1f}'/>"
        )
        apart = (y(at * speed) + (y(1) - y(10)) / (x(10) - x(1)) * x(at)) * math.cos(math.radians(angle))
        if apart - last > 11:  # else it would lie on the name of the slope before
            last = apart
            yield (
                f"<text class='name' transform='translate({x(at):.1f} {y(at * speed) - 4:.1f}) rotate({angle:.1f})'>"
                f"{escape(name)} {number(speed)} {unit}</text>"
            )
