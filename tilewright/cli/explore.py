"""The command `explore`: which design of a chip is good for some models."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app import app
from .common import Debug, Shape, check_writable, note, parsed, set_debug, table

if TYPE_CHECKING:
    from ..tune.explore import Watch

#: seconds between lines where there is no terminal
_EVERY = 10.0


@app.command("explore")
def explore_command(
    chip: Annotated[
        str, typer.Argument(metavar="CHIP", help="A chip's file, as chip.py, or name.", show_default=False)
    ],
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Model files.", show_default=False)],
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUES", help="A parameter and its values; may be given again.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="Write one page: fronts, all designs.")
    ] = None,
    shape: Shape = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes that measure; default: TILEWRIGHT_JOBS.")
    ] = None,
    front: Annotated[bool, typer.Option("--front", help="List only the designs on the Pareto front.")] = False,
    database: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where results are kept; default: designs.sqlite beside TILEWRIGHT_DB."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Compare designs of a chip: time, energy and area of models on each, and what bounds them.

    The parameters are the fields of the chip's class. A range is doubled from its first number to its last, a list is
    taken as it is; K and M stand for 1024 and 1024 * 1024. Every combination is one design. What the chip cannot run,
    or not faster, is left to the processor, at the speed that the chip's description says.

    Every design is kept as soon as it is measured: stop with Ctrl-C at any time, run again to continue. Designs that
    the description refuses are listed with the reason.

    \b
      tilewright explore chip.py model.onnx --vary array=8..64 --vary bus=8,16,32 -o designs.html
      tilewright explore systolic32 a.onnx b.onnx --vary array=16,32 --vary weight_kb=32..256 --jobs 2
      tilewright explore systolic32:bus=16 model.onnx --vary array=8..64 --front
    """
    from ..report.explore_html import page
    from ..report.explore_text import headings, rows, summary
    from ..tune.explore import explore
    from ..tune.explore import vary as varied

    set_debug(debug)
    check_writable(output, "the page", [".html", ".htm", ""], [chip, database, *models])
    given, inputs = varied(vary or []), parsed("inputs", shape)
    with _display() as watch:
        found = explore(chip, models, given, inputs=inputs, jobs=jobs, database=database, watch=watch)
    if found.measured:
        table(headings(found), rows(found, every=not front))
    for line in summary(found):
        note(line)
    if output is not None:
        output.write_text(page(found), encoding="utf-8")
        note(f"{output}: fronts and all designs")
    if found.interrupted:
        note("interrupted: what was measured is kept, run the command again to continue")
        raise typer.Exit(130)


@contextlib.contextmanager
def _display() -> Iterator[Watch]:
    """A bar on a terminal, otherwise a line now and then."""
    if not sys.stderr.isatty():
        last = [time.monotonic()]

        def line(done: int, count: int, what: str) -> None:
            if time.monotonic() - last[0] > _EVERY:
                last[0] = time.monotonic()
                note(f"{done}/{count}  {what}")

        yield line
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, count: int, what: str) -> None:
            bar.update(task, completed=done, total=count, description=escape(what))

        yield show
