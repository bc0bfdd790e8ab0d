"""The commands about the installation: `targets` and `doctor`."""

from __future__ import annotations

import sys

import typer

from . import app
from .common import Debug, set_debug, table


@app.command()
def targets(debug: Debug = False) -> None:
    """List the targets that --target can name.

    Targets are the folders of tilewright/targets, and those that other installed packages bring.
    """
    from ..targets import base

    set_debug(debug)
    rows = [(name, target.doc) for name, target in sorted(base.targets().items())]
    table(("target", "what it is"), rows)


@app.command()
def doctor(debug: Debug = False) -> None:
    """Check the installation.

    Packages, processor, memory, environment, cache folder, and a small function compiled and run, one line a check.
    The exit code is 1 if something that is needed does not work.
    """
    from ..report.doctor import examine

    set_debug(debug)
    colours = {"ok": "green", "note": "yellow", "problem": "red"}
    broken = False
    for check in examine():
        broken |= check.status == "problem"
        status = typer.style(f"{check.status:8}", fg=colours[check.status])
        typer.echo(f"{status}{check.name}: {check.detail}", color=None if sys.stdout.isatty() else False)
        if check.hint:
            typer.echo(f"        {check.hint}")
    if broken:
        raise typer.Exit(1)
