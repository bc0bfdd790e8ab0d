"""Drawings of report pages, as SVG within HTML: circles on logarithmic axes, lanes over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from .profile_text import number

#: the drawing of a plot in pixels, and its margins
WIDTH, HEIGHT = 860, 470
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 16, 46
#: where the lanes of a timeline begin, below its numbers
AXIS = 26


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


class Plot:
    """Circles on logarithmic axes; both axes show the values that they are given."""

    def __init__(self, across: Sequence[float], up: Sequence[float], across_is: str, up_is: str) -> None:
        self.x, self.y = LogAxis(across, LEFT, WIDTH - RIGHT), LogAxis(up, HEIGHT - BOTTOM, TOP)
        self.parts = [*grid(self.x, self.y, across_is, up_is)]
        self.named: list[Circle] = []

    def ceilings(self, peaks: dict[str, float], slopes: Sequence[tuple[str, float]], unit: str) -> None:
        """Peaks as horizontal lines from where the fastest memory reaches them; memories (the fastest first, with their
        unit) as slopes up to the highest."""
        self.parts += _ceilings(peaks, slopes, self.x, self.y, unit)

    def circle(
        self, k: int, at: tuple[float, float, float], look: tuple[str, str, str], *, top: float = 0.0, kind: str = ""
    ) -> None:
        """The circle of the row `k` of the page's table, `at` (across, up, radius). Its `look` is (class of the colour,
        name, tip for who points there); an empty name is not written. `top`: where a stem from it ends, on the axis up;
        0 for none. `kind`: a class of its own."""
        (across, up, r), (colour, name, tip) = at, look
        c = Circle(self.x(across), self.y(up), r, name)
        at_x = f"x1='{c.x:.1f}' x2='{c.x:.1f}'"
        stem = f"<line class='stem' {at_x} y1='{c.y:.1f}' y2='{self.y(top):.1f}'/>" if top else ""
        circle = f"<circle class='{colour}' cx='{c.x:.1f}' cy='{c.y:.1f}' r='{r:.1f}'/>"
        group = f" class='{kind}'" if kind else ""
        self.parts.append(f"<g data-k='{k}'{group}>{stem}{circle}<title>{escape(tip)}</title></g>")
        if name:
            self.named.append(c)

    def drawn(self, most: int | None = None, label: str = "roofline") -> str:
        """The whole drawing, with names beside the first `most` circles that have one."""
        shown = self.named[:most]
        parts = "".join((*self.parts, *circle_names(shown, self.named[len(shown) :])))
        size = f"viewBox='0 0 {WIDTH} {HEIGHT}'"
        return f"<svg {size} role='img' aria-label='{escape(label)}' class='roofline'>{parts}</svg>"


def share_radius(share: float) -> float:
    """The radius of a circle for what takes so much of the time."""
    return 3.5 + 20 * math.sqrt(min(max(share, 0), 1))


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


def _ceilings(
    peaks: dict[str, float], slopes: Sequence[tuple[str, float]], x: LogAxis, y: LogAxis, unit: str
) -> Iterable[str]:
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


# ---- over time -----------------------------------------------------------------------------------------------------


def part(value: float, total: float) -> str:
    """A length in a drawing that is as wide as `total`."""
    return f"{100 * value / total:.4f}%"


@dataclass(frozen=True)
class TimeLanes:
    """Lanes of a drawing over time, one below the other, so tall and so far apart."""

    names: Sequence[str]
    tall: int
    gap: int

    @property
    def height(self) -> int:
        return self.top(len(self.names))

    def top(self, lane: int) -> int:
        return AXIS + lane * (self.tall + self.gap)

    def drawn(self, kind: str, total: float, label: Callable[[float], str], parts: Iterable[str]) -> str:
        """The parts on their lanes, names on the left, ticks above; a ``timeline`` has buttons that widen it. Positions
        are percents of `total` (`part`), so that a wider drawing is a closer look."""
        tops = [self.top(i) for i in range(len(self.names))]
        shift = (self.tall - 34) // 2  # a line of names is 34 pixels high
        names = "".join(
            f"<div style='top:{y + shift}px'>{escape(n)}</div>" for y, n in zip(tops, self.names, strict=True)
        )
        lanes = (f"<rect class='lane' x='0' width='100%' y='{y}' height='{self.tall}'/>" for y in tops)
        content = "".join((*time_axis(total, self.height, label), *lanes, *parts))
        buttons = "".join(f"<button type='button' data-zoom='{z}'>{z}x</button>" for z in (1, 4, 16, 64))
        zoom = f"<div class='zoom'>{buttons}</div>" if kind == "timeline" else ""
        size = f"width='100%' height='{self.height}'"
        return (
            f"{zoom}<div class='lanes'><div class='threads'>{names}</div><div class='scroll'>"
            f"<svg class='{kind}' {size} role='img' aria-label='{kind}'>{content}</svg></div></div>"
        )


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
