"""A profile as one HTML page that needs nothing else: roofline, timeline of every thread, kernels with their schedules.

The drawings are inline SVG; the few lines of script only sort, zoom and highlight what is already there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from .explain import why_slow
from .page_style import SCRIPT, STYLE
from .profile_text import disturbance, names, number, percent, seconds, summary

if TYPE_CHECKING:
    from ..runtime.profile import Entry, Profile

#: rules with a colour of their own, those that take most of the time; the others share one
COLOURS = 9
#: circles of the roofline with a name beside them
_NAMED = 6
_WIDTH, _HEIGHT = 860, 470
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 16, 46
_LANE, _GAP, _AXIS = 34, 8, 26


def page(profile: Profile) -> str:
    """The whole document."""
    title = f"{profile.model}: profile"
    body = [
        f"<h1>{escape(profile.model)}</h1>",
        f"<p class='sub'>{escape(_about(profile))}</p>",
        f"<p class='warning'>{escape(warning)}</p>" if (warning := disturbance(profile)) else "",
        _tiles(profile),
        _section("Roofline", _ROOFLINE_TEXT, roofline(profile)) if profile.ceilings else "",
        _section("Timeline", _TIMELINE_TEXT, timeline(profile)) if profile.timeline is not None else "",
        _section("Kernels", _KERNELS_TEXT, kernels(profile)),
        "<footer>" + "".join(f"<p>{escape(line)}</p>" for line in summary(profile)) + "</footer>",
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"/>\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n{chr(10).join(body)}\n<script>//<![CDATA[\n{SCRIPT}\n//]]></script>\n</body>\n</html>\n"
    )


_ROOFLINE_TEXT = (
    "Each circle is a kernel, as large as its share of the time, in the colour of its rule. The stem above it "
    "ends at what this machine could do with the same arithmetic and the same bytes; the lines are the measured "
    "ceilings."
)
_TIMELINE_TEXT = (
    "The run in the middle of all that were measured, on every thread. Hatched: waiting at a barrier for the others."
)
_KERNELS_TEXT = "The most expensive first; a click on a heading sorts, a click on a kernel shows its schedule."


def _about(p: Profile) -> str:
    threads = f"{p.threads} thread{'s' if p.threads > 1 else ''}"
    machine = p.ceilings.machine.split("|")[0] if p.ceilings else ""
    return ", ".join(x for x in (f"target {p.target}", machine, threads, f"{p.repeats} runs") if x) + (
        f"; Tilewright {__version__}"
    )


def _section(title: str, text: str, content: str) -> str:
    return f"<section><h2>{title}</h2><p class='sub'>{escape(text)}</p>{content}</section>"


def _tiles(p: Profile) -> str:
    total = p.total
    inside = 1 - p.between / p.seconds if p.seconds else 0.0
    tiles = [
        (seconds(p.seconds), "a run", f"middle half: {seconds(p.low)} to {seconds(p.high)}"),
        (percent(inside), "in kernels", f"{seconds(p.between)} between them: barriers and waking threads"),
        (number(total.gflops), "10⁹ operations/s", "arithmetic of all kernels over their time"),
        (percent(total.efficiency), "of the roofline", "least time by the ceilings over the real one"),
        (str(total.calls), "kernel calls", f"{len(p.kernels)} kernels"),
    ]
    if p.threads > 1 and p.seconds:
        waits = ", ".join(percent(t.waiting / p.seconds) for t in p.per_thread)
        tiles.append((percent(float(np.mean([t.waiting for t in p.per_thread])) / p.seconds), "at barriers", waits))
    cells = (
        f"<div class='tile' title='{escape(more, quote=True)}'><b>{escape(value)}</b><span>{escape(label)}</span></div>"
        for value, label, more in tiles
        if value
    )
    return f"<div class='tiles'>{''.join(cells)}</div>"


def _colours(p: Profile) -> dict[str, str]:
    """The class of the colour of each rule, by the time that its kernels take."""
    taken: dict[str, float] = {}
    for e in p.kernels:
        taken[e.rule] = taken.get(e.rule, 0.0) + e.seconds
    order = sorted(taken, key=lambda rule: -taken[rule])
    return {rule: f"f-{i if i < COLOURS else 'rest'}" for i, rule in enumerate(order)}


def _legend(p: Profile, entries: Iterable[Entry]) -> str:
    """The rules of these entries with their colours."""
    used = {e.rule for e in entries}
    items = (
        f"<span><i class='{c}'></i>{escape(rule or 'operator with a loop nest of its own')}</span>"
        for rule, c in _colours(p).items()
        if rule in used
    )
    return f"<div class='legend'>{''.join(items)}</div>"


def _tooltip(entry: Entry) -> str:
    lines = [
        entry.symbol,
        f"{seconds(entry.seconds)}, {percent(entry.share)} of the run, {entry.calls} calls",
        f"{number(entry.gflops)} GFLOP/s, {number(entry.gbytes)} GB/s, {number(entry.intensity)} FLOP/B",
        f"{percent(entry.efficiency)} of the roofline ({entry.limit})" if entry.efficiency is not None else "",
        ", ".join(entry.names[:4]) + (f" and {len(entry.names) - 4} more" if len(entry.names) > 4 else ""),
    ]
    return f"<title>{escape(chr(10).join(x for x in lines if x))}</title>"


# ---- the roofline --------------------------------------------------------------------------------------------------


class _Log:
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


def roofline(p: Profile) -> str:
    """The plot, log-log, with the ceilings as lines and the kernels as circles."""
    assert p.ceilings is not None
    shown = [e for e in p.kernels if e.gflops and e.intensity]
    peaks = {k: v / 1e9 for k, v in p.ceilings.compute.items() if k == "f32" or any(e.precision == k for e in shown)}
    slopes = [(v.name, v.read / 1e9) for v in p.ceilings.levels]
    corner = min(peaks.values()) / slopes[-1][1]
    x = _Log([*[e.intensity or 1 for e in shown], 0.1, 4 * corner], _LEFT, _WIDTH - _RIGHT)
    low = max(min([e.gflops or 1 for e in shown] + [min(peaks.values()) / 20]), 1e-3 * max(peaks.values()) / 30)
    y = _Log([low, 1.3 * max(peaks.values())], _HEIGHT - _BOTTOM, _TOP)
    parts = [*_grid(x, y), *_ceilings(peaks, slopes, x, y)]
    order = {e.symbol: i for i, e in enumerate(p.kernels)}
    colours, labels = _colours(p), []
    for e in shown:  # the largest first, so that small ones stay on top
        assert e.intensity and e.gflops
        bottom = 10.0**y.low
        cx, cy = x(e.intensity), y(max(e.gflops, bottom))
        r = 3.5 + 20 * math.sqrt(min(max(e.share, 0), 1))
        stem = ""
        if e.ideal:
            top = y(min((e.operations or 0) / e.ideal / 1e9, 10.0**y.high))
            stem = f"<line class='stem' x1='{cx:.1f}' x2='{cx:.1f}' y1='{cy:.1f}' y2='{top:.1f}'/>"
        parts.append(
            f"<g data-k='{order[e.symbol]}'>{stem}<circle class='{colours[e.rule]}' cx='{cx:.1f}' cy='{cy:.1f}' "
            f"r='{r:.1f}'/>{_tooltip(e)}</g>"
        )
        labels.append((cx, cy, r, names(e, 24) or e.symbol))
    parts += _circle_names(labels[:_NAMED])
    rest = [e for e in p.kernels if not (e.gflops and e.intensity)]
    note = ""
    if rest:
        note = (
            f"<p class='sub'>Not shown: {len(rest)} kernels that only move data "
            f"({percent(sum(e.share for e in rest))} of the time).</p>"
        )
    head = f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='roofline' class='roofline'>"
    return f"{head}{''.join(parts)}</svg>{_legend(p, shown)}{note}"


def _circle_names(labels: Sequence[tuple[float, float, float, str]]) -> Iterable[str]:
    """Names beside circles (x, y, radius, name), on the side where there is room; none that would lie on another."""
    taken: list[tuple[float, float, float]] = []
    for cx, cy, r, name in labels:
        width, left = 5.8 * len(name), cx > (_LEFT + _WIDTH) / 2
        start = cx - r - 4 - width if left else cx + r + 4
        if any(abs(y - cy) < 12 and start < end and begin < start + width for begin, end, y in taken):
            continue
        taken.append((start, start + width, cy))
        at, anchor = (cx - r - 4, "end") if left else (cx + r + 4, "start")
        yield f"<text class='name' x='{at:.1f}' y='{cy + 4:.1f}' text-anchor='{anchor}'>{escape(name)}</text>"


def _grid(x: _Log, y: _Log) -> Iterable[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for v in x.minor():
        yield f"<line class='minor' x1='{x(v):.1f}' x2='{x(v):.1f}' y1='{_TOP}' y2='{bottom}'/>"
    for v in y.minor():
        yield f"<line class='minor' x1='{_LEFT}' x2='{right}' y1='{y(v):.1f}' y2='{y(v):.1f}'/>"
    for v in x.decades():
        yield f"<line class='major' x1='{x(v):.1f}' x2='{x(v):.1f}' y1='{_TOP}' y2='{bottom}'/>"
        yield f"<text class='tick' x='{x(v):.1f}' y='{bottom + 16}' text-anchor='middle'>{v:g}</text>"
    for v in y.decades():
        yield f"<line class='major' x1='{_LEFT}' x2='{right}' y1='{y(v):.1f}' y2='{y(v):.1f}'/>"
        yield f"<text class='tick' x='{_LEFT - 7}' y='{y(v) + 4:.1f}' text-anchor='end'>{v:g}</text>"
    middle, across = (_TOP + bottom) / 2, (_LEFT + right) / 2
    yield f"<text class='label' x='{across}' y='{_HEIGHT - 8}' text-anchor='middle'>operations a byte</text>"
    yield (
        f"<text class='label' text-anchor='middle' transform='translate(14 {middle}) rotate(-90)'>"
        "10⁹ operations a second</text>"
    )


def _ceilings(peaks: dict[str, float], slopes: Sequence[tuple[str, float]], x: _Log, y: _Log) -> Iterable[str]:
    """Peaks as horizontal lines from where the fastest memory reaches them; memories as slopes up to the highest."""
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
                f"{escape(name)} {number(speed)} GB/s</text>"
            )


# ---- the timeline --------------------------------------------------------------------------------------------------


def timeline(p: Profile) -> str:
    """Lanes of rectangles with positions in percent, so that a wider drawing is a closer look."""
    line = p.timeline
    assert line is not None
    order = {e.symbol: i for i, e in enumerate(p.kernels)}
    colours = _colours(p)
    total = line.total or 1.0
    height = _AXIS + line.threads * (_LANE + _GAP)
    parts = [_HATCH, *_time_axis(total, height)]
    leave = line.arrive + line.waiting()
    for t in range(line.threads):
        top = _AXIS + t * (_LANE + _GAP)
        parts.append(f"<rect class='lane' x='0' width='100%' y='{top}' height='{_LANE}'/>")
        for c, call in enumerate(p.calls):
            begin, end, arrive = line.begin[t, c], line.end[t, c], line.arrive[t, c]
            if not np.isnan(arrive) and leave[t, c] - arrive > total * 2e-4:
                wait = leave[t, c] - arrive
                parts.append(
                    f"<rect class='wait' x='{_part(arrive, total)}' width='{_part(wait, total)}' y='{top + 8}' "
                    f"height='{_LANE - 16}'><title>waiting {seconds(wait)} before {escape(call.symbol)}</title></rect>"
                )
            if np.isnan(begin):
                continue
            size = "tick" if end - begin > total / 26 else "fine"
            label = f"<text class='{size}' x='3' y='{_LANE / 2 + 4}'>{escape(names(call) or call.symbol)}</text>"
            parts.append(
                f"<svg data-k='{order[call.symbol]}' x='{_part(begin, total)}' width='{_part(end - begin, total)}' "
                f"y='{top}' height='{_LANE}'><rect class='{colours[call.rule]} shade{order[call.symbol] % 3}' "
                f"width='100%' height='100%'/>{label if end - begin > total / 800 else ''}"
                f"<title>{escape(f'{call.symbol} on thread {t}: {seconds(end - begin)}')}\n"
                f"{escape(', '.join(call.names[:4]))}</title></svg>"
            )
    lanes = "".join(f"<div style='top:{_AXIS + t * (_LANE + _GAP)}px'>thread {t}</div>" for t in range(line.threads))
    buttons = "".join(f"<button type='button' data-zoom='{z}'>{z}x</button>" for z in (1, 4, 16, 64))
    return (
        f"<div class='zoom'>{buttons}</div><div class='lanes'><div class='threads'>{lanes}</div><div class='scroll'>"
        f"<svg class='timeline' width='100%' height='{height}' role='img' aria-label='timeline'>{''.join(parts)}</svg>"
        f"</div></div>{_legend(p, p.calls)}"
    )


_HATCH = (
    "<defs><pattern id='hatch' width='6' height='6' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
    "<rect class='hatch' width='2.5' height='6'/></pattern></defs>"
)


def _part(value: float, total: float) -> str:
    return f"{100 * value / total:.4f}%"


def _time_axis(total: float, height: int) -> Iterable[str]:
    """Ticks at a round step; those between them are for a closer look."""
    step = 10.0 ** math.floor(math.log10(total))
    step = next(s for s in (step / 5, step / 2, step) if total / s <= 12)
    for i in range(int(total / (step / 10)) + 1):
        at, coarse = i * step / 10, i % 10 == 0
        kind = "tick" if coarse else "fine"
        yield (
            f"<g class='{kind}'><line x1='{_part(at, total)}' x2='{_part(at, total)}' y1='{_AXIS - 6}' y2='{height}'/>"
            f"<text x='{_part(at, total)}' dx='3' y='12'>{seconds(at) if at else '0'}</text></g>"
        )


# ---- the kernels ---------------------------------------------------------------------------------------------------

_COLUMNS: tuple[tuple[str, str], ...] = (
    ("kernel", "name"), ("calls", ""), ("time", ""), ("share", ""), ("GFLOP/s", ""), ("GB/s", ""), ("FLOP/B", ""),
    ("roofline", ""), ("limit", "text"), ("balance", ""), ("rule", "text"),
    ("from", "name"),
)  # fmt: skip


def kernels(p: Profile) -> str:
    """A table whose rows open."""
    head = "".join(f"<span role='columnheader' data-sort='{i}'>{escape(c)}</span>" for i, (c, _) in enumerate(_COLUMNS))
    colours = _colours(p)
    rows = [_kernel(i, e, p.facts.get(e.symbol, {}), colours[e.rule]) for i, e in enumerate(p.kernels)]
    return f"<div class='table'><div class='row head'>{head}</div>{''.join(rows)}</div>"


def _kernel(index: int, e: Entry, facts: Any, colour: str) -> str:
    slow = why_slow(facts)
    cells: list[tuple[str, float | str, float | None]] = [
        (e.symbol, e.symbol, None),
        (str(e.calls), e.calls, None),
        (seconds(e.seconds), e.seconds, None),
        (percent(e.share), e.share, e.share),
        (number(e.gflops), e.gflops or 0.0, None),
        (number(e.gbytes), e.gbytes or 0.0, None),
        (number(e.intensity), e.intensity or 0.0, None),
        (percent(e.efficiency), e.efficiency or 0.0, e.efficiency),
        (e.limit, e.limit, None),
        (percent(e.balance), e.balance, None),
        (e.rule, e.rule, None),
        (names(e), ", ".join(e.names), None),
    ]
    spans = []
    for position, (text, key, bar) in enumerate(cells):
        style = f" style='--bar:{100 * min(max(bar, 0.0), 1.0):.1f}%' class='bar'" if bar is not None else ""
        mark = f"<i class='{colour}'></i>" if position == 0 else ""
        warn = "<em title='it may be slow: open it'>!</em> " if position == 10 and slow else ""
        spans.append(f"<span data-v='{escape(str(key), quote=True)}'{style}>{mark}{warn}{escape(text)}</span>")
    return (
        f"<details data-k='{index}'><summary class='row'>{''.join(spans)}</summary>"
        f"<div class='more'>{_details(e, facts, slow)}</div></details>"
    )


def _details(e: Entry, facts: Any, slow: str) -> str:
    decisions = ", ".join(f"{k} = {v}" for k, v in dict(facts.get("decisions") or {}).items())
    refused = "\n".join(f"{rule}: {reason}" for rule, reason in facts.get("refused") or ())
    entries = [
        ("from", ", ".join(e.names)),
        ("time", f"{seconds(e.seconds)}, middle half {seconds(e.low)} to {seconds(e.high)}"),
        ("least time", f"{seconds(e.ideal)} ({e.limit})" if e.ideal else ""),
        ("work", f"{e.operations:,} operations in {e.precision}" if e.operations else ""),
        ("bytes", f"{e.read:,} read, {e.written:,} written"),
        ("slow", slow),
        ("plan", str(facts.get("plan") or "")),
        ("decisions", decisions),
        ("schedule", str(facts.get("schedule") or "")),
        ("other rules", refused),
        ("trace", "\n".join(map(str, facts.get("trace") or ()))),
    ]
    items = (f"<dt>{k}</dt><dd><pre>{escape(v)}</pre></dd>" for k, v in entries if v)
    return f"<dl>{''.join(items)}</dl>"


__all__ = ["page"]
