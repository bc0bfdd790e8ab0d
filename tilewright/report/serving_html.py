"""A measurement of a server (`tilewright bench-serve`) as text, and as one HTML page that needs nothing else: latency
against throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .page_parts import colour, document, legend, plain_table, section, tiles
from .page_plot import Plot
from .page_style import PLAIN

_STYLE = "polyline { fill: none; stroke: var(--soft); stroke-width: 1.4; } polyline.p95 { stroke-dasharray: 5 3; }"
_TEXT = (
    "Each circle is a rate of arrivals (requests a second, beside it). Full lines: the median, dashed: 95 of 100 are "
    "below. Times count from when a request was due, so that a server that cannot keep up shows it."
)
_TTFT, _ITL = "milliseconds to the first token", "milliseconds a token after the first"


def headings(sla: Mapping[str, float]) -> list[str]:
    """The columns of the table."""
    times = ["ttft p50", "p95", "itl p50", "p95", "e2e p95"]
    return [
        "req/s asked",
        "done",
        "failed",
        "req/s",
        "tok/s out",
        "tok/s in",
        *times,
        *(["goodput", "good"] if sla else []),
    ]


def row(run: Mapping[str, Any], sla: Mapping[str, float]) -> list[str]:
    """The numbers of one rate; times in milliseconds."""

    def ms(name: str, part: str) -> str:
        return f"{1000 * run[name][part]:.1f}" if run[name] else "-"

    good = [f"{run['goodput']:.2f}", f"{100 * run['good_share']:.0f}%"] if sla else []
    return [
        f"{run['rate']:g}",
        str(run["completed"]),
        str(run["requests"] - run["completed"]),
        f"{run['requests_per_second']:.2f}",
        f"{run['output_tokens_per_second']:.1f}",
        f"{run['prompt_tokens_per_second']:.1f}",
        *(ms(name, part) for name in ("ttft", "itl") for part in ("p50", "p95")),
        ms("e2e", "p95"),
        *good,
    ]


def page(found: Mapping[str, Any]) -> str:
    """The whole document of what `llm.server.bench.sweep` gives."""
    runs, sla = found["runs"], found["sla"]
    bounds = ", ".join(f"{name} {1000 * most:g} ms" for name, most in sla.items())
    best = max(runs, key=lambda r: r["output_tokens_per_second"])
    good = max(runs, key=lambda r: r["goodput"])
    shown = [
        (f"{best['output_tokens_per_second']:.1f}", "tokens/s at most", f"at {best['rate']:g} requests/s"),
        (f"{good['goodput']:.2f}" if sla else "", f"requests/s within {bounds}", f"at {good['rate']:g} requests/s"),
        (f"{len(runs)}", "rates", f"{runs[0]['requests']} requests each"),
    ]
    body = [tiles(shown)]
    for name, what in (("ttft", _TTFT), ("itl", _ITL)):
        if any(r[name] for r in runs):
            body.append(section(what[0].upper() + what[1:], _TEXT, chart(runs, name, what)))
    body.append(section("Rates", "Times in milliseconds.", plain_table(headings(sla), [row(r, sla) for r in runs])))
    about = f"{found['model']} at {found['url']}, {found['endpoint']}, mix {found['mix']}, seed {found['seed']}"
    return document(f"Serving {found['model']}", about, body, style=PLAIN + _STYLE)


def chart(runs: Sequence[Mapping[str, Any]], name: str, what: str) -> str:
    """A time against the tokens a second, both logarithmic, at each rate."""
    shown = [r for r in runs if r[name] and r["output_tokens_per_second"] > 0]
    across = [r["output_tokens_per_second"] for r in shown]
    times = {p: [max(1000 * r[name][p], 1e-3) for r in shown] for p in ("p50", "p95")}
    plot = Plot(across, [*times["p50"], *times["p95"]], "tokens a second, of all answers together", what)
    for rank, (part, values) in enumerate(times.items()):
        points = " ".join(f"{plot.x(x):.1f},{plot.y(y):.1f}" for x, y in zip(across, values, strict=True))
        plot.parts.append(f"<polyline class='{part}' points='{points}'/>")
        for k, (run, x, y) in enumerate(zip(shown, across, values, strict=True)):
            tip = f"{run['rate']:g} requests/s: {x:.1f} tokens/s, {part} {y:.1f} ms"
            plot.circle(k, (x, y, 5.0), (colour(rank), f"{run['rate']:g}/s" if rank else "", tip))
    return plot.drawn(label=what) + legend([(colour(0), "median"), (colour(1), "95 of 100")])


__all__ = ["headings", "page", "row"]
