"""The commands about the installation: `targets`, `doctor` and `cache`."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from ..support.errors import TilewrightError
from .app import app
from .common import Debug, note, set_debug, table


@app.command()
def targets(debug: Debug = False) -> None:
    """List the targets that --target can name.

    Targets are the folders of tilewright/targets, and those that other installed packages bring. Below those that run
    on a device stand the devices of this machine. Several may run one program together: opencl+cpu.
    """
    from ..targets import base

    set_debug(debug)
    rows = []
    for name, target in sorted(base.targets().items()):
        rows.append((name, target.doc))
        with contextlib.suppress(TilewrightError):  # `doctor` says why there is none
            rows += [(f"{name}:device={i}", d) for i, d in enumerate(target.device_list())]
    able = base.able(lambda t: t.shares)
    rows.append(("A+B", f"several of {able} in one program (docs/programs.md), or cpu+CHIP"))
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


@app.command()
def cache(
    part: Annotated[
        list[str] | None, typer.Argument(metavar="[PART]...", help="kernels, packages, ceilings, repro, tuning.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Delete these parts, or all but `tuning`.")] = False,
    debug: Debug = False,
) -> None:
    """Show what is kept on disk for this user, or delete it.

    Everything but the results of tuning is made again when it is needed. Kernels and packages used longest ago go by
    themselves when they take more than TILEWRIGHT_CACHE_SIZE and TILEWRIGHT_PACKAGES_SIZE.

    \b
      tilewright cache                       where it is and what it takes
      tilewright cache --clear               delete all but the results of tuning
      tilewright cache packages --clear
    """
    from ..report import caches
    from ..support.numbers import size

    set_debug(debug)
    chosen = caches.named(part) if part else [p for p in caches.PARTS if not (clear and p.precious)]
    if clear:
        note(f"freed {size(caches.clear(chosen))}")
        return
    rows = [(p.name, size(caches.size(p)), len(caches.files(p)), p.path, p.doc) for p in chosen]
    table(("part", "size", "files", "place", "what it is"), rows)
