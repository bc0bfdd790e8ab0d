"""The command `bisect`: the first part of the compiler that makes a number wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ..support.errors import CheckError, UsageError
from . import data
from .app import app
from .common import note, refuse_options, table, with_compile_options
from .compile import Model


@app.command()
@with_compile_options
def bisect(
    model: Model,
    options: dict[str, Any],
    input: Annotated[
        Path | None, typer.Option("--input", "-i", metavar="x.npz", help="Inputs by name; default: random, seeded.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for the reproducer; default: MODEL-bisect."),
    ] = None,
    rtol: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Largest difference of an output, relative to its largest value; default: by its precision.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")] = 0,
) -> None:
    """Find the first pass, kernel or schedule step that makes a number of a model wrong.

    The graph after each pass, each kernel, its loop nest after each step of its schedule and its native code are
    compared with reference interpreters. What is found is written with a script that shows it again; the exit code is
    then 8, as that of --check.

    \b
      tilewright bisect model.onnx
      tilewright bisect model.onnx --input in.npz --precision bf16 -o wrong/
    """
    from ..driver.bisect import bisect as search

    keep = [
        "target", "precision", "threads", "jobs", "shape", "arena_limit", "operators", "deadline", "no_tuned",
        "schedule", "fast_math", "no_winograd", "no_stream", "check_indices", "no_cache",
    ]  # fmt: skip
    refuse_options(keep, "for bisect, which looks at every stage itself")
    if model.endswith(".tw"):
        raise UsageError("bisect needs the model: a package holds compiled code only", stage="command line")
    folder = output or Path(f"{Path(model).stem}-bisect")
    _check_folder(folder)
    given = data.read_npz(input) if input else None
    chosen = {**options, "time": False}
    found = search(model, given, rtol=rtol, seed=seed, folder=folder, **chosen)
    rows = [(t.place, t.note or f"{t.error:.1e}") for t in found.tried]
    table(("compared with its reference", "error"), rows)
    culprit = found.culprit
    if culprit is not None:
        raise CheckError(
            str(culprit),
            stage=culprit.stage,
            operator=culprit.operator or None,
            hint=f"{culprit.allowed:g} is allowed",
            saved=str(culprit.folder / "reproduce.py") if culprit.folder is not None else None,
        )
    if found.error is not None and not found.error <= found.allowed:
        raise CheckError(
            f"an output differs by {found.error:.1e}, though no single part is wrong: rounding adds up",
            stage="check",
            hint=f"{found.allowed:g} is allowed (--rtol gives another); --precision f32 rounds least",
        )
    said = "" if found.error is None else f": the largest error of an output is {found.error:.1e}"
    note(f"nothing is wrong{said}")


def _check_folder(folder: Path) -> None:
    """UsageError if the reproducer cannot be written there: asked before minutes are spent on finding it."""
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"cannot write into {str(folder)!r}", stage="command line", hint="give a folder with --output")
