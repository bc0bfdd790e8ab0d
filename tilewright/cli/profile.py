"""The command `profile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..support.errors import UsageError
from . import data
from .app import app
from .common import check_writable, note, table, with_compile_options
from .compile import ChipFile, EntryName, ModelOrPackage, Sha256, chosen, obtain


@app.command()
@with_compile_options
def profile(
    model: ModelOrPackage,
    options: dict[str, Any],
    input: Annotated[
        Path | None, typer.Option("--input", "-i", metavar="x.npz", help="Inputs by name; default: random, seeded.")
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", "--repeat", min=1, metavar="N", help="Runs that are measured.")
    ] = 30,
    top: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Show the N most expensive kernels; the others in one row.")
    ] = None,
    calls: Annotated[bool, typer.Option("--calls", help="One row a call, not one a kernel.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers as JSON.")] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one page: roofline, timeline, kernels.")
    ] = None,
    trace_file: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write one run for ui.perfetto.dev, chrome://tracing."),
    ] = None,
    remeasure: Annotated[
        bool, typer.Option("--remeasure", help="Measure what this machine can do again (it was kept).")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")] = 0,
    entry: EntryName = None,
    sha256: Sha256 = None,
    chip: ChipFile = None,
) -> None:
    """Show where the time of a model goes, beside what the machine could do at best.

    The columns are explained in docs/profiling.md.

    \b
      tilewright profile model.onnx --threads 2
      tilewright profile model.tw --input in.npz --top 10
      tilewright profile model.onnx --html profile.html --json profile.json
      tilewright profile model.onnx --trace trace.json         open it in ui.perfetto.dev
    """
    from ..report.profile_text import headings, rows, summary

    check_writable(json_file, "the profile", [".json", ""], [model, input])
    check_writable(html_file, "the page", [".html", ".htm", ""], [model, input])
    check_writable(trace_file, "the trace", [".json", ""], [model, input])
    if options["stop_after"] is not None:
        raise UsageError("--stop-after leaves nothing to profile", stage="command line")
    given = data.read_npz(input) if input else None
    executable = chosen(obtain(model, options, sha256, chip), entry)
    if given is None:
        given = data.random_inputs(data.fixed_shapes(executable, model), seed)
    if remeasure:
        measure_again(executable)
    found = executable.profile(given, repeats=repeats)
    table(headings(found), rows(found, top, calls))
    for line in summary(found):
        typer.echo(line)
    if json_file:
        json_file.write_text(json.dumps(found.to_json(), indent=1) + "\n", encoding="utf-8")
        note(f"{json_file}: all numbers")
    if trace_file:
        trace_file.write_text(json.dumps(found.trace()) + "\n", encoding="utf-8")
        note(f"{trace_file}: one run, for ui.perfetto.dev or chrome://tracing")
    if html_file:
        html_file.write_text(found.html(), encoding="utf-8")
        note(f"{html_file}: roofline, timeline and kernels")


def measure_again(executable: Any) -> None:
    """Replace the ceilings that were kept for an executable's target and threads."""
    from ..schedule.ceilings import ceilings
    from ..targets import base

    package = getattr(executable, "package", None)
    ceilings(
        base.recorded(package.target) if package else base.find(executable.options["target"]),
        executable.threads,
        again=True,
    )
