"""A profile as one HTML page that needs nothing else: roofline, timeline of every thread, kernels with their schedules.

The drawings are inline SVG; the few lines of script only sort, zoom and highlight what is already there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..support.numbers import count
from .explain import why_slow
from .page_parts import TableCell, colour, document, legend, opening_table, section, tiles
from .page_plot import Plot, TimeLanes, part, share_radius
from .profile_text import above, above_text, disturbance, names, number, percent, seconds, summary

if TYPE_CHECKING:
    from ..runtime.profile import Profile, ProfileEntry

#: circles of the roofline with a name beside them
_NAMED = 6
_LANE, _GAP = 34, 8


def page(profile: Profile) -> str:
    """The whole document."""
    body = [
        _tiles(profile),
        section("Roofline", _ROOFLINE_TEXT, roofline(profile)) if profile.ceilings else "",
        section("Timeline", _TIMELINE_TEXT, timeline(profile)) if profile.timeline is not None else "",
        section("Kernels", _KERNELS_TEXT + above_text(profile.kernels, " *: "), kernels(profile)),
        "<footer>" + "".join(f"<p>{escape(line)}</p>" for line in summary(profile)) + "</footer>",
    ]
    title, warning = f"{profile.model}: profile", disturbance(profile)
    return document(title, _about(profile), body, heading=profile.model, warning=warning)


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
    found = [
        (seconds(p.seconds), "a run", f"middle half: {seconds(p.low)} to {seconds(p.high)}"),
        (percent(inside), "in kernels", f"{seconds(p.between)} between them: barriers and waking threads"),
        (number(total.gflops), "10⁹ operations/s", "arithmetic of all kernels over their time"),
        (percent(total.efficiency), "of the roofline", "least time by the ceilings over the real one"),
        (str(total.calls), "kernel calls", count(len(p.kernels), "kernel")),
    ]
    if p.threads > 1 and p.seconds:
        waits = ", ".join(percent(t.waiting / p.seconds) for t in p.per_thread)
        found.append((percent(float(np.mean([t.waiting for t in p.per_thread])) / p.seconds), "at barriers", waits))
    return tiles(found)


def _colours(p: Profile) -> dict[str, str]:
    """The class of the colour of each rule, by the time that its kernels take."""
    taken: dict[str, float] = {}
    for e in p.kernels:
        taken[e.rule] = taken.get(e.rule, 0.0) + e.seconds
    order = sorted(taken, key=lambda rule: -taken[rule])
    return {rule: colour(i) for i, rule in enumerate(order)}


def _legend(p: Profile, entries: Iterable[ProfileEntry]) -> str:
    """The rules of these entries with their colours."""
    used = {e.rule for e in entries}
    named = ((c, rule or "operator with a loop nest of its own") for rule, c in _colours(p).items() if rule in used)
    return legend(named)


def _tooltip(entry: ProfileEntry) -> str:
    lines = [
        entry.symbol,
        f"{seconds(entry.seconds)}, {percent(entry.share)} of the run, {count(entry.calls, 'call')}",
        f"{number(entry.gflops)} GFLOP/s, {number(entry.gbytes)} GB/s, {number(entry.intensity)} FLOP/B",
        f"{percent(entry.efficiency)} of the roofline ({entry.limit})" if entry.efficiency is not None else "",
        ", ".join(entry.names[:4]) + (f" and {len(entry.names) - 4} more" if len(entry.names) > 4 else ""),
    ]
    return "\n".join(x for x in lines if x)


# ---- the roofline --------------------------------------------------------------------------------------------------


def roofline(p: Profile) -> str:
    """The plot, log-log, with the ceilings as lines and the kernels as circles."""
    assert p.ceilings is not None
    shown = [e for e in p.kernels if e.gflops and e.intensity]
    peaks = {k: v / 1e9 for k, v in p.ceilings.compute.items() if k == "f32" or any(e.precision == k for e in shown)}
    slopes = [(v.name, v.read / 1e9) for v in p.ceilings.levels]
    corner = min(peaks.values()) / slopes[-1][1]
    across = [*[e.intensity or 1 for e in shown], 0.1, 4 * corner]
    low = max(min([e.gflops or 1 for e in shown] + [min(peaks.values()) / 20]), 1e-3 * max(peaks.values()) / 30)
    plot = Plot(across, [low, 1.3 * max(peaks.values())], "operations a byte", "10⁹ operations a second")
    plot.ceilings(peaks, slopes, "GB/s")
    order = {e.symbol: i for i, e in enumerate(p.kernels)}
    colours = _colours(p)
    for e in shown:  # the largest first, so that small ones stay on top
        assert e.intensity and e.gflops
        speed = max(e.gflops, 10.0**plot.y.low)
        top = min((e.operations or 0) / e.ideal / 1e9, 10.0**plot.y.high) if e.ideal else 0.0
        look = (colours[e.rule], names(e, 24) or e.symbol, _tooltip(e))
        plot.circle(order[e.symbol], (e.intensity, speed, share_radius(e.share)), look, top=top)
    rest = [e for e in p.kernels if not (e.gflops and e.intensity)]
    note = ""
    if rest:
        note = (
            f"<p class='sub'>Not shown, as they only move data: {count(len(rest), 'kernel')} "
            f"({percent(sum(e.share for e in rest))} of the time).</p>"
        )
    return f"{plot.drawn(_NAMED)}{_legend(p, shown)}{note}"


# ---- the timeline --------------------------------------------------------------------------------------------------


def timeline(p: Profile) -> str:
    """Every thread as a lane, the calls on it as rectangles."""
    line = p.timeline
    assert line is not None
    order = {e.symbol: i for i, e in enumerate(p.kernels)}
    colours = _colours(p)
    total = line.total or 1.0
    lanes = TimeLanes([f"thread {t}" for t in range(line.threads)], _LANE, _GAP)
    parts = [_HATCH]
    leave = line.arrive + line.waiting()
    for t in range(line.threads):
        top = lanes.top(t)
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
    drawing = lanes.drawn("timeline", total, lambda at: seconds(at) if at else "0", parts)
    return f"{drawing}{_legend(p, p.calls)}"


_HATCH = (
    "<defs><pattern id='hatch' width='6' height='6' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
    "<rect class='hatch' width='2.5' height='6'/></pattern></defs>"
)


# ---- the kernels ---------------------------------------------------------------------------------------------------

_COLUMNS = (
    "kernel", "calls", "time", "share", "GFLOP/s", "GB/s", "FLOP/B", "roofline", "limit", "balance", "rule", "from"
)  # fmt: skip


def kernels(p: Profile) -> str:
    """A table whose rows open."""
    colours = _colours(p)
    rows = (_kernel(i, e, p.facts.get(e.symbol, {}), colours[e.rule]) for i, e in enumerate(p.kernels))
    return opening_table(_COLUMNS, rows)


def _kernel(index: int, e: ProfileEntry, facts: Mapping[str, Any], colour: str) -> tuple[int, list[TableCell], str]:
    slow = why_slow(facts)
    cells = [
        TableCell(e.symbol, e.symbol, full=e.symbol, marks=f"<i class='{colour}'></i>"),
        TableCell(str(e.calls), e.calls),
        TableCell(seconds(e.seconds), e.seconds),
        TableCell(percent(e.share), e.share, e.share),
        TableCell(number(e.gflops), e.gflops or 0.0),
        TableCell(number(e.gbytes), e.gbytes or 0.0),
        TableCell(number(e.intensity), e.intensity or 0.0),
        TableCell(percent(e.efficiency) + ("*" if above(e) else ""), e.efficiency or 0.0, e.efficiency),
        TableCell(e.limit, e.limit),
        TableCell(percent(e.balance), e.balance),
        TableCell(e.rule, e.rule, marks="<em title='it may be slow: open it'>!</em> " if slow else ""),
        TableCell(names(e), ", ".join(e.names), full=", ".join(e.names)),
    ]
    return index, cells, _details(e, facts, slow)


def _details(e: ProfileEntry, facts: Mapping[str, Any], slow: str) -> str:
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
