"""Layers on a chip as one HTML page that needs nothing else: totals, roofline, timeline, what each layer waits for.

The numbers are those of `targets.accelerator.layers`, whose `table` prints them as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape

from .. import __version__
from ..targets.accelerator.binary import Formats, Issue
from ..targets.accelerator.describe import HOST, CopyEngine
from ..targets.accelerator.layers import EngineUse, LayerRun, Totals, peak
from ..targets.accelerator.timing import EngineTime
from .page_parts import COLOURS, TableCell, document, legend, opening_table, plain_table, section, tiles
from .page_plot import AXIS, Plot, TimeLanes, part, share_radius
from .page_style import PLAIN
from .profile_text import number, percent, seconds

#: boxes of all timelines of a page together, and of one engine in one layer
BOXES, ENGINE_BOXES = 30_000, 500
#: names beside circles
_NAMED = 8
_LANE, _GAP = 28, 6

_STYLE = """
.plain td.text, .plain th.text { text-align: left; }
.chart line { stroke: var(--line); } .chart rect.tail { fill-opacity: .35; }
"""


def page(runs: Sequence[LayerRun], formats: Formats, title: str) -> str:
    """The whole document; `title` is the model's name.

    >>> from tilewright.targets.chips.outer4 import CHIP
    >>> page([], Formats(CHIP()), "nothing").splitlines()[0]
    '<!DOCTYPE html>'
    """
    chip = formats.chip
    total = Totals.of(runs, formats.listing)
    parameters = ", ".join(f"{k} {v}" for k, v in asdict(chip).items())
    about = f"{chip.doc}; {parameters}; Tilewright {__version__}"
    body = [_tiles(runs, total, formats)]
    if runs:
        body += [
            section("Roofline", _ROOFLINE_TEXT, roofline(runs, formats)),
            section("Timeline", _TIMELINE_TEXT, timeline(runs, formats)),
            section("Layers", _LAYERS_TEXT, layers(runs, formats)),
            section("Memories", _MEMORIES_TEXT, _memories(runs)),
        ]
    return document(f"{title} on {chip.name}", about, body, style=PLAIN + _STYLE + _columns(formats))


_ROOFLINE_TEXT = (
    "Each circle is a layer, as large as its share of the cycles, in the colour of the busiest engine. The stem above "
    "it ends at what the engines could do with the same work and the same bytes. An operation is a multiply-add."
)
_TIMELINE_TEXT = (
    "Layers one after the other, the part of the time in which each engine worked as height. A click on a layer opens "
    "it below, with its instructions."
)
_LAYERS_TEXT = (
    "Use: the work over what the array could have done. Floors: cycles that the array needs for the work at its full "
    "size, and each copy engine for every byte of the host's memory once. A click on a heading sorts, a click on a "
    "layer shows what its engines wait for."
)
_MEMORIES_TEXT = "Bytes read and written, and picojoules, of all layers."


def _tiles(runs: Sequence[LayerRun], t: Totals, formats: Formats) -> str:
    time = t.cycles / formats.chip.clock
    joules = sum(t.energy.values())
    area = formats.chip.area()
    found = [
        (f"{t.cycles:,}", "cycles", f"{len(runs)} layers"),
        (seconds(time), f"at {formats.chip.clock / 1e6:g} MHz", ""),
        (percent(t.utilization), "array in use", "work over what the fastest engine could have done"),
        (percent(t.floor / t.cycles if t.cycles else 0.0), "of the floor", "the sum of the least cycles of each layer"),
        (f"{joules / 1e6:.3g} uJ", "energy", f"{joules / max(t.work, 1):.3g} pJ for an operation"),
        (f"{t.host / 1e6:.3g} MB", "of the host's memory", f"{t.host / max(t.cycles, 1):.3g} bytes a cycle"),
        (f"{area:.3g} mm²" if area else "", "area, estimated", ""),
    ]
    return tiles(found)


def _busiest(r: LayerRun) -> EngineUse:
    return max(r.engines, key=lambda e: e.busy)


def _colour(engine: int) -> str:
    return f"f-{engine % COLOURS}"


def _legend(formats: Formats) -> str:
    return legend((_colour(i), e) for i, e in enumerate(formats.engines))


def _engine_lanes(formats: Formats) -> TimeLanes:
    return TimeLanes(formats.engines, _LANE, _GAP)


# ---- the roofline --------------------------------------------------------------------------------------------------


def roofline(runs: Sequence[LayerRun], formats: Formats) -> str:
    """Operations for a byte of the host's memory against operations a cycle, log-log."""
    engine, most = peak(formats.listing)
    slopes = _bandwidths(formats)
    corner = most / slopes[-1][1]
    shown = sorted(enumerate(runs), key=lambda x: -x[1].cycles)  # the largest first, so that small ones stay on top
    shown = [(k, r) for k, r in shown if r.work and r.peak]
    across = [*[r.intensity for _, r in shown], corner / 10, 4 * corner]
    up = [*[r.speed for _, r in shown], most / 100, 1.3 * most]
    plot = Plot(across, up, "operations for a byte of the host's memory", "operations a cycle")
    plot.ceilings({engine: most}, slopes, "B/cycle")
    total = sum(r.cycles for r in runs)
    for k, r in shown:
        tip = f"{r.name}: {r.cycles:,} cycles, {percent(r.utilization)} of the array; {r.bound}"
        look = (_colour(formats.engines.index(_busiest(r).name)), r.name, tip)
        at = (r.intensity, r.speed, share_radius(r.cycles / total))
        plot.circle(k, at, look, top=r.work / _least(r, formats))
    return plot.drawn(_NAMED) + _legend(formats)


def _bandwidths(formats: Formats) -> list[tuple[str, float]]:
    """What the engines that copy from and to the host move in a cycle: all at once, then each; the fastest first."""
    found = [
        e for e in formats.listing.engines.values() if isinstance(e, CopyEngine) and HOST in (*e.sources, *e.targets)
    ]
    names: dict[int, list[str]] = {}
    for e in found:
        names.setdefault(e.bytes_per_cycle, []).append(e.name)
    each = [(" or ".join(n), float(width)) for width, n in names.items()]
    together = [(" and ".join(e.name for e in found), float(sum(e.bytes_per_cycle for e in found)))]
    return sorted(each + (together if len(found) > 1 else []), key=lambda s: -s[1])


def _least(r: LayerRun, formats: Formats) -> float:
    """Cycles for the same work and the same bytes, without stalls."""
    widths = {n: e.bytes_per_cycle for n, e in formats.listing.engines.items() if isinstance(e, CopyEngine)}
    return max(r.work / r.peak, *(r.engine(n).moved / width for n, width in widths.items()))


# ---- the timelines -------------------------------------------------------------------------------------------------


def timeline(runs: Sequence[LayerRun], formats: Formats) -> str:
    """All layers in a row, engines as lanes."""
    total = sum(r.cycles for r in runs) or 1
    lanes = _engine_lanes(formats)
    parts, at = [], 0
    for k, r in enumerate(runs):
        boxes = []
        for i, e in enumerate(r.engines):
            tall = _LANE * e.busy / max(r.cycles, 1)
            place = f"y='{lanes.top(i) + _LANE - tall:.1f}' height='{tall:.1f}'"
            boxes.append(f"<rect class='{_colour(i)} shade{k % 3}' width='100%' {place}/>")
        tip = escape(f"{r.name}: {r.cycles:,} cycles; {r.bound}")
        # the whole height takes clicks
        parts.append(
            f"<svg data-k='{k}' x='{part(at, total)}' width='{part(r.cycles, total)}' height='{lanes.height}'>"
            f"<rect width='100%' y='{AXIS}' height='{lanes.height - AXIS}' fill-opacity='0'/>{''.join(boxes)}"
            f"<title>{tip}</title></svg>"
        )
        at += r.cycles
    return lanes.drawn("timeline", total, _cycles, parts) + _legend(formats)


def _cycles(at: float) -> str:
    return f"{at:,.0f}"


def instructions(r: LayerRun, formats: Formats, most: int) -> str:
    """The instructions of a layer as boxes, at most about `most` for an engine: neighbours share one where they are too
    small to be told apart. Lighter: the result is under way, nobody works on it."""
    total = max(r.cycles, 1)
    lanes, parts = _engine_lanes(formats), []
    for i, name in enumerate(formats.engines):
        stream, shape = r.program.streams.get(name, ()), f"y='{lanes.top(i)}' height='{_LANE}'"
        for first, last, begin, left, end in boxes(r.timing.engines[name], total, most):
            tip = escape(_said(stream, first, last, begin, left, formats))
            tail = ""
            if first == last and end > left:
                place = f"x='{part(left, total)}' width='{part(end - left, total)}'"
                tail = f"<rect class='{_colour(i)} tail' {place} {shape}/>"
            parts.append(
                f"{tail}<rect class='{_colour(i)} shade{first % 3}' x='{part(begin, total)}' "
                f"width='{part(max(left - begin, total / 4000), total)}' {shape}><title>{tip}</title></rect>"
            )
    return lanes.drawn("chart", total, _cycles, parts)


def boxes(time: EngineTime, total: int, most: int) -> Iterable[tuple[int, int, int, int, int]]:
    """(first instruction, last, when the first began, when the last left, when it was finished) of an engine's boxes.

    Two neighbours share a box where one is, and the gap between them is, shorter than two `most`-ths of all cycles.

    >>> time = EngineTime(began=[0, 2, 4, 90], left=[1, 3, 5, 100], finished=[1, 3, 5, 100])
    >>> list(boxes(time, 100, 20)), len(list(boxes(time, 100, 1000)))
    ([(0, 2, 0, 5, 5), (3, 3, 90, 100, 100)], 4)
    """
    least = 2 * total / most
    box: tuple[int, int, int, int, int] | None = None
    for n, (begin, left, end) in enumerate(zip(time.began, time.left, time.finished, strict=True)):
        if box is not None and begin - box[3] < least and (left - begin < least or box[3] - box[2] < least):
            box = (box[0], n, box[2], left, end)
            continue
        if box is not None:
            yield box
        box = (n, n, begin, left, end)
    if box is not None:
        yield box


def _said(stream: Sequence[Issue], first: int, last: int, begin: int, left: int, formats: Formats) -> str:
    if first == last:
        return f"cycles {begin:,} to {left:,}\n{formats.line(stream[first])}"
    return f"cycles {begin:,} to {left:,}: {last - first + 1} instructions, {first + 1} to {last + 1}"


# ---- the layers ------------------------------------------------------------------------------------------------------


def _copies(formats: Formats) -> list[str]:
    return [n for n, e in formats.listing.engines.items() if isinstance(e, CopyEngine)]


def _columns(formats: Formats) -> str:
    """The widths of the table's columns; how many there are hangs on the chip."""
    floors = " ".join(["86px"] * (1 + len(_copies(formats))))
    last = 7 + len(_copies(formats))
    return (
        f".row {{ grid-template-columns: minmax(190px, 1.5fr) 96px 84px 84px {floors} 90px minmax(160px, 1fr); }}\n"
        f".row span:nth-child(n) {{ text-align: right; }}\n"
        f".row span:nth-child(1), .row span:nth-child({last}) {{ text-align: left; }}\n"
    )


def layers(runs: Sequence[LayerRun], formats: Formats) -> str:
    """A table whose rows open."""
    copies = _copies(formats)
    heads = ["layer", "cycles", "share", "use", "floor: array", *(f"floor: {c}" for c in copies), "energy", "bound"]
    total = sum(r.cycles for r in runs) or 1
    most = max(min(ENGINE_BOXES, BOXES // (len(runs) * len(formats.engines))), 20)
    rows = []
    for k, r in enumerate(runs):
        floors = [r.engine(r.array).floor if r.array else 0, *(r.engine(c).floor for c in copies)]
        cells = [
            TableCell(r.name, r.name),
            TableCell(f"{r.cycles:,}", r.cycles),
            TableCell(percent(r.cycles / total), r.cycles, r.cycles / total),
            TableCell(percent(r.utilization), r.utilization, r.utilization),
            *(TableCell(f"{f:,}", f) for f in floors),
            TableCell(f"{r.energy / 1e3:,.1f} nJ", r.energy),
            TableCell(r.bound, r.bound),
        ]
        rows.append((k, cells, _details(r, formats, most)))
    return opening_table(heads, rows)


def _details(r: LayerRun, formats: Formats, most: int) -> str:
    causes = list(dict.fromkeys(c for e in r.engines for c in e.stalls))
    waits = [
        [
            e.name,
            f"{e.instructions:,}",
            f"{e.busy:,}",
            percent(e.busy / max(r.cycles, 1)),
            f"{e.floor:,}" if e.floor else "",
        ]
        + [f"{e.stalls[c]:,}" if c in e.stalls else "" for c in causes]
        + [f"{e.moved:,}" if e.copies else "", f"{e.needed:,}" if e.copies else ""]
        for e in r.engines
    ]
    heads = ["engine", "instructions", "at work", "", "floor", *(f"waits for {c}" for c in causes), "bytes", "once"]
    facts = f"{r.work:,} operations, {number(r.speed)} a cycle of {number(r.peak)}; {r.plan}"
    sources = ", ".join(r.sources)
    return (
        f"<p class='sub'>{escape(sources)}{'<br/>' if sources else ''}{escape(facts)}</p>"
        f"{instructions(r, formats, most)}{plain_table(heads, waits)}{_memories([r])}"
    )


def _memories(runs: Sequence[LayerRun]) -> str:
    """Bytes and picojoules by memory."""
    moved: dict[str, int] = {}
    joules: dict[str, float] = {}
    for r in runs:
        for m, n in r.timing.moved.items():
            moved[m] = moved.get(m, 0) + n
        for m, e in r.timing.energy.items():
            joules[m] = joules.get(m, 0.0) + e
    total = sum(joules.values()) or 1.0
    rows = [
        [m, f"{moved[m]:,}" if m in moved else "", f"{e / 1e3:,.1f} nJ", percent(e / total)] for m, e in joules.items()
    ]
    return plain_table(["memory", "bytes", "energy", ""], rows)


__all__ = ["page"]
