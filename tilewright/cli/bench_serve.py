"""The command `bench-serve`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..support.errors import UsageError
from ..support.options import get
from .app import app
from .common import Debug, Quiet, Verbose, check_writable, note, set_debug, set_loudness, table
from .language import need


@app.command("bench-serve")
def bench_serve(
    url: Annotated[str, typer.Argument(metavar="URL", help="A server with OpenAI's interface.")] = (
        "http://127.0.0.1:8000/v1"
    ),
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model; default: the first it lists.")] = None,
    rates: Annotated[
        str, typer.Option("--rates", "--rate", metavar="R,R...", help="Requests a second, one run each.")
    ] = "1",
    requests: Annotated[int, typer.Option(min=1, metavar="N", help="Requests of each run.")] = 50,
    mix: Annotated[
        str,
        typer.Option(metavar="MIX", help="Lengths: turns, chat, summary, code, or 512:128, tokens of each."),
    ] = "chat",
    sla: Annotated[
        str | None, typer.Option(metavar="ttft=MS,itl=MS", help="Bounds that good requests keep, milliseconds.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Ask /v1/chat/completions, not /v1/completions.")] = False,
    api_key: Annotated[
        str | None, typer.Option("--api-key", metavar="KEY", help="Default: TILEWRIGHT_API_KEY.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of arrivals, lengths and texts.")] = 0,
    limit: Annotated[float, typer.Option(min=1, metavar="S", help="Seconds that a server may be silent.")] = 600.0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers as JSON.")] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one page with the latency-throughput curve.")
    ] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure a server under an open-loop load: requests arrive whether the ones before are done or not.

    The columns are explained in docs/serving.md.

    \b
      tilewright bench-serve --rates 0.5,1,2,4 --sla ttft=500,itl=50
      tilewright bench-serve http://127.0.0.1:8080/v1 --mix 512:128 --html curve.html --json curve.json
    """
    set_debug(debug)
    set_loudness(verbose, quiet)
    need("httpx")
    from ..llm.server.bench import parse_sla, sweep
    from ..report.serving_html import headings, page, row

    check_writable(json_file, "the measurement", [".json", ""])
    check_writable(html_file, "the page", [".html", ".htm", ""])
    bounds = parse_sla(sla) if sla else {}

    def report(run: dict[str, Any]) -> None:
        note(f"{run['rate']:g} requests/s: {run['completed']} of {run['requests']} done in {run['seconds']:.1f} s")

    found = asyncio.run(
        sweep(
            url,
            model=model,
            chat=chat,
            api_key=api_key or get("TILEWRIGHT_API_KEY"),
            mix=mix,
            rates=parse_rates(rates),
            count=requests,
            seed=seed,
            sla=bounds,
            limit=limit,
            report=report,
        )
    )
    table(headings(bounds), [row(r, bounds) for r in found["runs"]])
    if not found["ignore_eos"]:
        note("the server does not know ignore_eos: answers may be shorter than the mix says")
    late = max(r["sent_late"].get("p95", 0.0) for r in found["runs"])
    if late > 0.02:
        note(f"warning: requests were sent up to {1000 * late:.0f} ms late: this client was the limit", wanted=True)
    if json_file:
        json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        note(f"{json_file}: all numbers")
    if html_file:
        html_file.write_text(page(found), encoding="utf-8")
        note(f"{html_file}: latency and throughput")


def parse_rates(text: str) -> list[float]:
    """Rates from a list with commas; UsageError for another text."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [0.0]
    if not all(0.001 <= rate <= 10_000 for rate in found):
        raise UsageError(f"--rates {text} must be numbers of requests a second, as 0.5,1,2", stage="command line")
    return found
