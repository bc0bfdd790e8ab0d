"""A profile as one HTML page that needs nothing else: roofline, timeline of every thread, kernels with their schedules.

The drawings are inline SVG; the few lines of script only sort, zoom and highlight what is already there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..support.numbers import count
from .explain import why_slow
from .page_parts import (
    AXIS,
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Circle,
    LogAxis,
    ceilings,
    circle_names,
    document,
    grid,
    part,
    section,
    time_axis,
)
from .profile_text import above, above_text, disturbance, names, number, percent, seconds, summary

if TYPE_CHECKING:
    from ..runtime.profile import Profile, ProfileEntry

#: rules with a colour of their own, those that take most of the time; the others share one
COLOURS = 9
#: circles of the roofline with a name beside them
_NAMED = 6
_LANE, _GAP = 34, 8


def page(profile: Profile) -> str:
    """The whole document."""
    title = f"{profile.model}: profile"
    body = [
        f"<h1>{escape(profile.model)}</h1>",
        f"<p class='sub'>{escape(_about(profile))}</p>",
        f"<p class='warning'>{escape(warning)}</p>" if (warning := disturbance(profile)) else "",
        _tiles(profile),
        section("Roofline", _ROOFLINE_TEXT, roofline(profile)) if profile.ceilings else "",
        section("Timeline", _TIMELINE_TEXT, timeline(profile)) if profile.timeline is not None else "",
        section("Kernels", _KERNELS_TEXT + above_text(profile.kernels, " *: "), kernels(profile)),
        "<footer>" + "".join(f"<p>{escape(line)}</p>" for line in summary(profile)) + "</footer>",
    ]
    return document(title, body)


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
    threads = count(p.threads, "thread")
    machine = p.ceilings.machine.split("|")[0] if p.ceilings else ""
    return ", ".join(x for x in (f"target {p.target}", machine, threads, f"{p.repeats} runs") if x) + (
        f"; Tilewright {__version__}"
    )


def _tiles(p: Profile) -> str:
    total = p.total
    inside = 1 - p.between / p.seconds if p.seconds else 0.0
    tiles = [
        (seconds(p.seconds), "a run", f"middle half: {seconds(p.low)} to {seconds(p.high)}"),
        (percent(inside), "in kernels", f"{seconds(p.between)} between them: barriers and waking threads"),
        (number(total.gflops), "10⁹ operations/s", "arithmetic of all kernels over their time"),
        (percent(total.efficiency), "of the roofline", "least time by the ceilings over the real one"),
        (str(total.calls), "kernel calls", count(len(p.kernels), "kernel")),
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


def _legend(p: Profile, entries: Iterable[ProfileEntry]) -> str:
    """The rules of these entries with their colours."""
    used = {e.rule for e in entries}
    items = (
        f"<span><i class='{c}'></i>{escape(rule or 'operator with a loop nest of its own')}</span>"
        for rule, c in _colours(p).items()
        if rule in used
    )
    return f"<div class='legend'>{''.join(items)}</div>"


def _tooltip(entry: ProfileEntry) -> str:
    lines = [
        entry.symbol,
        f"{seconds(entry.seconds)}, {percent(entry.share)} of the run, {count(entry.calls, 'call')}",
        f"{number(entry.gflops)} GFLOP/s, {number(entry.gbytes)} GB/s, {number(entry.intensity)} FLOP/B",
        f"{percent(entry.efficiency)} of the roofline ({entry.limit})" if entry.efficiency is not None else "",
        ", ".join(entry.names[:4]) + (f" and {len(entry.names) - 4} more" if len(entry.names) > 4 else ""),
    ]
    return f"<title>{escape(chr(10).join(x for x in lines if x))}</title>"


# ---- the roofline --------------------------------------------------------------------------------------------------


def roofline(p: Profile) -> str:
    """The plot, log-log, with the ceilings as lines and the kernels as circles."""
    assert p.ceilings is not None
    shown = [e for e in p.kernels if e.gflops and e.intensity]
    peaks = {k: v / 1e9 for k, v in p.ceilings.compute.items() if k == "f32" or any(e.precision == k for e in shown)}
    slopes = [(v.name, v.read / 1e9) for v in p.ceilings.levels]
    corner = min(peaks.values()) / slopes[-1][1]
    x = LogAxis([*[e.intensity or 1 for e in shown], 0.1, 4 * corner], LEFT, WIDTH - RIGHT)
    low = max(min([e.gflops or 1 for e in shown] + [min(peaks.values()) / 20]), 1e-3 * max(peaks.values()) / 30)
    y = LogAxis([low, 1.3 * max(peaks.values())], HEIGHT - BOTTOM, TOP)
    parts = [*grid(x, y, "operations a byte", "10⁹ operations a second"), *ceilings(peaks, slopes, x, y, "GB/s")]
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
        labels.append(Circle(cx, cy, r, names(e, 24) or e.symbol))
    parts += circle_names(labels[:_NAMED], labels[_NAMED:])
    rest = [e for e in p.kernels if not (e.gflops and e.intensity)]
    note = ""
    if rest:
        note = (
            f"<p class='sub'>Not shown, as they only move data: {count(len(rest), 'kernel')} "
            f"({percent(sum(e.share for e in rest))} of the time).</p>"
        )
    head = f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='roofline' class='roofline'>"
    return f"{head}{''.join(parts)}</svg>{_legend(p, shown)}{note}"


# ---- the timeline --------------------------------------------------------------------------------------------------


def timeline(p: Profile) -> str:
    """Lanes of rectangles with positions in percent, so that a wider drawing is a closer look."""
    line = p.timeline
    assert line is not None
    order = {e.symbol: i for i, e in enumerate(p.kernels)}
    colours = _colours(p)
    total = line.total or 1.0
    height = AXIS + line.threads * (_LANE + _GAP)
    parts = [_HATCH, *time_axis(total, height, lambda at: seconds(at) if at else "0")]
    leave = line.arrive + line.waiting()
    for t in range(line.threads):
        top = AXIS + t * (_LANE + _GAP)
        parts.append(f"<rect class='lane' x='0' width='100%' y='{top}' height='{_LANE}'/>")
        for c, call in enumerate(p.calls):
            begin, end, arrive = line.begin[t, c], line.end[t, c], line.arrive[t, c]
            if not np.isnan(arrive) and leave[t, c] - arrive > total * 2e-4:
                wait = leave[t, c] - arrive
                parts.append(
                    f"<rect class='wait' x='{part(arrive, total)}' width='{part(wait, total)}' y='{top + 8}' "
                    f"height='{_LANE - 16}'><title>waiting {seconds(wait)} before {escape(call.symbol)}</title></rect>"
                )
            if np.isnan(begin):
                continue
            size = "tick" if end - begin > total / 26 else "fine"
            label = f"<text class='{size}' x='3' y='{_LANE / 2 + 4}'>{escape(names(call) or call.symbol)}</text>"
            parts.append(
                f"<svg data-k='{order[call.symbol]}' x='{part(begin, total)}' width='{part(end - begin, total)}' "
                f"y='{top}' height='{_LANE}'><rect class='{colours[call.rule]} shade{order[call.symbol] % 3}' "
                f"width='100%' height='100%'/>{label if end - begin > total / 800 else ''}"
                f"<title>{escape(f'{call.symbol} on thread {t}: {seconds(end - begin)}')}\n"
                f"{escape(', '.join(call.names[:4]))}</title></svg>"
            )
    lanes = "".join(f"<div style='top:{AXIS + t * (_LANE + _GAP)}px'>thread {t}</div>" for t in range(line.threads))
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


def _kernel(index: int, e: ProfileEntry, facts: Any, colour: str) -> str:
    slow = why_slow(facts)
    cells: list[tuple[str, float | str, float | None]] = [
        (e.symbol, e.symbol, None),
        (str(e.calls), e.calls, None),
        (seconds(e.seconds), e.seconds, None),
        (percent(e.share), e.share, e.share),
        (number(e.gflops), e.gflops or 0.0, None),
        (number(e.gbytes), e.gbytes or 0.0, None),
        (number(e.intensity), e.intensity or 0.0, None),
        (percent(e.efficiency) + ("*" if above(e) else ""), e.efficiency or 0.0, e.efficiency),
        (e.limit, e.limit, None),
        (percent(e.balance), e.balance, None),
        (e.rule, e.rule, None),
        (names(e), ", ".join(e.names), None),
    ]
    spans = []
    full = {0: e.symbol, len(cells) - 1: ", ".join(e.names)}
    for position, (text, key, bar) in enumerate(cells):
        style = f" style='--bar:{100 * min(max(bar, 0.0), 1.0):.1f}%' class='bar'" if bar is not None else ""
        mark = f"<i class='{colour}'></i>" if position == 0 else ""
        warn = "<em title='it may be slow: open it'>!</em> " if position == 10 and slow else ""
        title = f" title='{escape(full[position], quote=True)}'" if position in full else ""
        spans.append(f"<span data-v='{escape(str(key), quote=True)}'{title}{style}>{mark}{warn}{escape(text)}</span>")
    return (
        f"<details data-k='{index}'><summary class='row'>{''.join(spans)}</summary>"
        f"<div class='more'>{_details(e, facts, slow)}</div></details>"
    )


def _details(e: ProfileEntry, facts: Any, slow: str) -> str:
    decisions = ", ".join(f"{k} = {v}" for k, v in dict(facts.get("decisions") or {}).items())
    refused = "\n".join(f"{rule}: {reason}" for rule, reason in facts.get("refused") or ())
    entries = [
        ("from", ", ".join(e.names)),
        ("device", e.device),
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
