"""An exploration of designs as one HTML page that needs nothing else: time against area and energy with the Pareto
fronts, and all designs in a table that can be sorted.

The numbers are those of `targets.accelerator.designs`; `explore_text` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .. import __version__
from ..targets.accelerator.designs import Design, DesignMeasurement, Exploration, shown
from .explore_text import area, bottleneck, energy
from .page_parts import COLOURS, TableCell, colour, document, legend, opening_table, plain_table, section, tiles
from .page_plot import Plot
from .page_style import PLAIN
from .profile_text import percent, seconds

_RADIUS = 6.0

_STYLE = """
.plain td:last-child, .plain th:last-child { text-align: left; }
polyline { fill: none; stroke: var(--ink); stroke-width: 1.4; stroke-dasharray: 5 3; }
circle { cursor: pointer; } .off circle { fill-opacity: .22; } .on circle { stroke: var(--ink); stroke-width: 1.5; }
"""

_CHART_TEXT = (
    "Each circle is a design, in the colour of what bounds most of its time. The line joins the designs that no other "
    "one beats in both numbers; circles with an edge are beaten by none in time, energy and area together. A click "
    "opens a design below."
)
_TABLE_TEXT = (
    "Times are those of the simulated chip at its clock, with an estimate of what stays on the host at the chip's "
    "host_rate. Relative: the geometric mean over the models, beside the fastest design. Energy is the chip's alone, "
    "of one run of each model. Use: the work over what the array could have done. Bottleneck: what bounds most of the "
    "time. A click on a heading sorts, one on a design shows its models."
)


def page(e: Exploration) -> str:
    """The whole document.

    >>> m = DesignMeasurement(1e-3, 1000, 0.0, 5e6, 100, 0.5, 3, 1, {"array": 1e-3})
    >>> found = Exploration("chip", "", ("array",), ("net",), (Design({"array": 8}, 1.0, (m,)),))
    >>> page(found).splitlines()[0]
    '<!DOCTYPE html>'
    """
    body: list[str] = []
    if e.measured:
        body += [_tiles(e), *_charts(e), section("Designs", _TABLE_TEXT, _table(e))]
    if e.refused:
        body.append(section("Refused", "Designs that cannot be, and why.", _refused(e)))
    warning = "The exploration was interrupted: designs are missing." if e.interrupted else ""
    return document(f"Designs of {e.chip}", _subtitle(e), body, warning=warning, style=PLAIN + _STYLE + _columns(e))


def _subtitle(e: Exploration) -> str:
    parts = [e.doc, f"varied: {', '.join(e.varied) or 'nothing'}", f"models: {', '.join(e.models)}"]
    return "; ".join([*(p for p in parts if p), f"Tilewright {__version__}"])


def _tiles(e: Exploration) -> str:
    fast = min(e.measured, key=lambda d: d.seconds)
    frugal = min(e.measured, key=lambda d: d.energy)
    small = min(e.measured, key=lambda d: d.area)
    found = [
        (str(len(e.measured)), "designs", f"{len(e.refused)} refused"),
        (str(sum(e.front)), "on the front", "none is better in time, energy and area together"),
        (seconds(fast.seconds), "the fastest", fast.text),
        (energy(frugal.energy), "the least energy", frugal.text),
        *([(area(small.area), "the smallest", small.text)] if small.area else []),
    ]
    return tiles(found)


# ---- the charts ----------------------------------------------------------------------------------------------------


def _charts(e: Exploration) -> Iterable[str]:
    if all(d.area > 0 for d in e.measured):
        yield section("Time and area", _CHART_TEXT, chart(e, lambda d: d.area, "square millimetres, estimated"))
    if all(d.energy > 0 for d in e.measured):
        text = "The same designs." if all(d.area > 0 for d in e.measured) else _CHART_TEXT
        drawn = chart(e, lambda d: d.energy / 1e6, "microjoules of one run of each model")
        yield section("Time and energy", text, drawn)


def chart(e: Exploration, across: Callable[[Design], float], across_is: str) -> str:
    """A number of each design, which must be positive, against its time, log-log."""
    mean = "milliseconds" if len(e.models) == 1 else "milliseconds, geometric mean of the models"
    plot = Plot([across(d) for d in e.measured], [1e3 * d.seconds for d in e.measured], across_is, mean)
    order = _bottlenecks(e)
    line = e.front_of(across, lambda d: d.seconds)
    plot.parts.append(_steps([(plot.x(across(d)), plot.y(1e3 * d.seconds)) for d in line]))
    for k, (d, on_front) in enumerate(zip(e.measured, e.front, strict=True)):
        tip = f"{d.text}: {seconds(d.seconds)}, {energy(d.energy)}, {area(d.area)}; {bottleneck(d)}"
        look = (colour(order.index(d.bottleneck[0])), d.text if d in line else "", tip)
        plot.circle(k, (across(d), 1e3 * d.seconds, _RADIUS), look, kind="on" if on_front else "off")
    return plot.drawn(label=across_is) + _legend(order)


def _steps(corners: Sequence[tuple[float, float]]) -> str:
    """What the points dominate lies above a line that goes to the right, then down to the next one."""
    places: list[tuple[float, float]] = []
    for cx, cy in corners:
        if places:
            places.append((cx, places[-1][1]))
        places.append((cx, cy))
    return f"<polyline points='{' '.join(f'{cx:.1f},{cy:.1f}' for cx, cy in places)}'/>"


def _bottlenecks(e: Exploration) -> list[str]:
    """The most frequent first."""
    names = [d.bottleneck[0] for d in e.measured]
    return sorted(dict.fromkeys(names), key=lambda n: -names.count(n))


def _legend(order: Sequence[str]) -> str:
    shown = [(colour(i), name) for i, name in enumerate(order[:COLOURS])]
    return legend(shown + ([("f-rest", "others")] if len(order) > COLOURS else []))


# ---- the table -----------------------------------------------------------------------------------------------------


def _columns(e: Exploration) -> str:
    """The widths of the table's columns; how many there are hangs on parameters and models."""
    numbers = len(e.varied) + len(e.models) + 5
    sizes = f"repeat({numbers}, minmax(72px, 1fr)) minmax(170px, 2fr)"
    return (
        f".row {{ grid-template-columns: {sizes}; min-width: {82 * numbers + 190}px; }}\n"
        f".row span:nth-child(n) {{ text-align: right; }} .row span:nth-child({numbers + 1}) {{ text-align: left; }}\n"
    )


def _table(e: Exploration) -> str:
    heads = [*e.varied, *e.models, "relative", "energy", "area", "use", "front", "bottleneck"]
    order = sorted(range(len(e.measured)), key=lambda k: e.measured[k].seconds)
    return opening_table(heads, ((k, _cells(e, k), _details(e, e.measured[k])) for k in order))


def _cells(e: Exploration, k: int) -> list[TableCell]:
    d, relative = e.measured[k], e.measured[k].seconds / e.best
    return [
        *(TableCell(shown(d.parameters[name]), d.parameters[name]) for name in e.varied),
        *(TableCell(seconds(m.seconds), m.seconds) for m in d.models),
        TableCell(f"{relative:.2f}", relative),
        TableCell(energy(d.energy), d.energy),
        TableCell(area(d.area), d.area),
        TableCell(percent(d.use), d.use),
        TableCell("yes" if e.front[k] else "", int(e.front[k])),
        TableCell(bottleneck(d), d.bottleneck[0]),
    ]


def _details(e: Exploration, d: Design) -> str:
    heads = ["model", "time", "cycles", "on the host", "energy", "use", "calls", "of the host", "bounded by"]
    rows = [
        [
            name, seconds(m.seconds), f"{m.cycles:,}", seconds(m.host), energy(m.energy), percent(m.use), str(m.calls),
            str(m.left), _bounds(m),
        ]
        for name, m in zip(e.models, d.models, strict=True)
    ]  # fmt: skip
    return plain_table(heads, rows)


def _bounds(m: DesignMeasurement) -> str:
    shares = [(name, took / m.seconds) for name, took in m.bounds.items()]
    return ", ".join(f"{name} {percent(share)}" for name, share in shares if share >= 0.001)


def _refused(e: Exploration) -> str:
    return plain_table(
        [*e.varied, "why"], [[*(shown(d.parameters[n]) for n in e.varied), d.refused] for d in e.refused]
    )


__all__ = ["chart", "page"]
