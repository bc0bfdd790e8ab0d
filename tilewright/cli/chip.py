"""The command `chip`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..support.errors import UsageError
from .app import app
from .common import check_writable, note, with_compile_options


@app.command()
@with_compile_options
def chip(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model.")],
    options: dict[str, Any],
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one page: roofline, timelines, every layer.")
    ] = None,
    svg_file: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write a picture: what the engines do when.")
    ] = None,
    placed: Annotated[bool, typer.Option("--placed", help="Say of every kernel where it runs, and why.")] = False,
) -> None:
    """Show what a chip does of a model: cycles of each layer, beside the least that the chip could take.

    The model is compiled, not run: the chip's timing simulator knows the cycles. Chips are described in
    docs/add_a_chip.md.

    \b
      tilewright chip model.onnx --target cpu+systolic32
      tilewright chip model.onnx --target cpu+systolic32:array=16,bus=8 --html page.html
      tilewright chip model.onnx --target cpu+my_chip.py --placed --svg timeline.svg
    """
    from ..driver.chip_layers import chip_layers
    from ..report.chip_html import page
    from ..report.chip_svg import timeline
    from ..targets.accelerator.layers import table

    check_writable(html_file, "the page", [".html", ".htm", ""], [model])
    check_writable(svg_file, "the picture", [".svg"], [model])
    if options["stop_after"] is not None:
        raise UsageError("--stop-after leaves nothing to show", stage="command line")
    found = chip_layers(model, options.pop("target"), **options)
    typer.echo(table(found.runs, found.formats))
    for line in found.notes if placed else ():
        typer.echo(line)
    if html_file:
        html_file.write_text(page(found.runs, found.formats, model.name), encoding="utf-8")
        note(f"{html_file}: roofline, timelines and layers")
    if svg_file:
        svg_file.write_text(timeline(found.runs, found.formats), encoding="utf-8")
        note(f"{svg_file}: the engines over time")
