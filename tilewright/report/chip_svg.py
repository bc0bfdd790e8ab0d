"""What the engines of a chip do when, as one SVG file that needs nothing else: for pages that show a picture.

Layers follow one another, an engine is a lane, an instruction a box; lighter is what is under way behind it. Boxes that
are too small to be told apart are one, so that the file stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import accumulate

from ..targets.accelerator.binary import Formats
from ..targets.accelerator.layers import LayerRun
from .chip_html import boxes

#: the drawing in pixels: its width, what is left of the lanes, their height, the gap between them, what is above them
WIDTH, LEFT, LANE, GAP, TOP = 1000, 74, 22, 6, 40
#: boxes of an engine, all layers together
BOXES = 160
COLOURS = ("#2a78b5", "#7a5ea8", "#c1571f", "#2b8a5b", "#a8456b", "#7f7a1c")
_STYLE = (
    "text{font:11px sans-serif;fill:#444}.lane{fill:#eee}.layer{stroke:#444;stroke-dasharray:3 3}.tail{fill-opacity:.3}"
    ".name{text-anchor:end}.tick{text-anchor:middle}.what{font-weight:bold}"
)


def timeline(runs: Sequence[LayerRun], formats: Formats) -> str:
    """The document; layers in the order of `runs`.

    >>> from tilewright.targets.chips.outer4 import CHIP
    >>> timeline([], Formats(CHIP())).splitlines()[0][:43]
    '<svg xmlns="http://www.w3.org/2000/svg" vie'
    """
    engines = formats.engines
    total = sum(r.cycles for r in runs) or 1
    height = TOP + len(engines) * (LANE + GAP) + 20
    starts = [0, *accumulate(r.cycles for r in runs)]
    parts = [f"<style>{_STYLE}</style>", *_lanes(engines)]
    for r, start in zip(runs, starts, strict=False):
        for i, engine in enumerate(engines):
            parts += _boxes(r, engine, i, start, total)
    parts += [*_layers(runs, starts, total, height), *_ticks(total, height)]
    name = f"{len(runs)} layers on {formats.chip.name}, {total:,} cycles"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    return "\n".join([head, f"<title>{escape(name)}</title>", *parts, "</svg>", ""])


def _x(cycle: float, total: int) -> float:
    return LEFT + (WIDTH - LEFT - 10) * cycle / total


def _top(lane: int) -> int:
    return TOP + lane * (LANE + GAP)


def _lanes(engines: Sequence[str]) -> Iterable[str]:
    for i, e in enumerate(engines):
        yield f'<rect class="lane" x="{LEFT}" y="{_top(i)}" width="{WIDTH - LEFT - 10}" height="{LANE}"/>'
        yield f'<text class="name" x="{LEFT - 6}" y="{_top(i) + 15}">{escape(e)}</text>'


def _boxes(r: LayerRun, engine: str, lane: int, start: int, total: int) -> Iterable[str]:
    colour = COLOURS[lane % len(COLOURS)]
    shape = f'y="{_top(lane)}" height="{LANE}" fill="{colour}"'
    most = max(BOXES * r.cycles // total, 1)
    for first, last, begin, left, end in boxes(r.timing.engines[engine], max(r.cycles, 1), most):
        x, middle, right = (_x(start + t, total) for t in (begin, left, end))
        if first == last and right - middle >= 0.5:
            yield f'<rect class="tail" x="{middle:.1f}" width="{right - middle:.1f}" {shape}/>'
        yield f'<rect x="{x:.1f}" width="{max(middle - x - 0.3, 0.5):.1f}" {shape}/>'


def _layers(runs: Sequence[LayerRun], starts: Sequence[int], total: int, height: int) -> Iterable[str]:
    """Where each begins, with its name where there is room for it."""
    for r, start in zip(runs, starts, strict=False):
        x, room = _x(start, total), _x(r.cycles, total) - LEFT
        yield f'<line class="layer" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 18}" y2="{height - 18}"/>'
        name = (r.sources or (r.name,))[0]
        if 7 * len(name) < room:
            yield f'<text class="what" x="{x + 4:.1f}" y="{TOP - 24}">{escape(name)}</text>'
        cycles = f"{r.cycles:,} cycles, {r.utilization:.0%} of {r.array}" if r.array else f"{r.cycles:,} cycles"
        if 6 * len(cycles) < room:
            yield f'<text x="{x + 4:.1f}" y="{TOP - 10}">{escape(cycles)}</text>'


def _ticks(total: int, height: int) -> Iterable[str]:
    step = 10 ** (len(str(total)) - 1)
    step = next(s for s in (step // 10, step // 5, step // 2, step) if s and total / s <= 12)
    for at in range(0, total + 1, step):
        yield f'<text class="tick" x="{_x(at, total):.1f}" y="{height - 5}">{at:,}</text>'


__all__ = ["timeline"]
