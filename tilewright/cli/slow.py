"""The command `report-slow`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..support.errors import UsageError
from .app import app
from .common import note, with_compile_options
from .compile import ChipFile, EntryName, ModelOrPackage, Sha256, chosen, obtain


@app.command("report-slow")
@with_compile_options
def report_slow(
    model: ModelOrPackage,
    options: dict[str, Any],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder for the files; it is made if need be.")
    ] = Path("slow-kernels"),
    kernel: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Kernels to write whether they are marked or not (or how they begin)."),
    ] = None,
    entry: EntryName = None,
    sha256: Sha256 = None,
    chip: ChipFile = None,
) -> None:
    """Write small reproducers of the kernels that stay far from their bound.

    One file a kernel that `explain` marks with (!): its operations and shapes, the rule and what other rules said, the
    machine, and how to run it. No weights, and no names of the model.

    \b
      tilewright report-slow model.onnx
      tilewright report-slow model.onnx -o slow --kernel softmax
    """
    from ..report.slow_kernels import reproducers

    if options["stop_after"] is not None:
        raise UsageError("--stop-after leaves no kernels to report", stage="command line")
    executable = chosen(obtain(model, options, sha256, chip), entry)
    package = getattr(executable, "package", None)
    if package is None:
        raise UsageError(
            "a model with open shapes has kernels for each size that it is called with",
            stage="command line",
            hint="give one with --shape",
        )
    found = reproducers(package, kernel or ())
    if not found:
        note("no kernel is marked: every one has a schedule that is made for its kind and does what it must")
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            (output / name).write_text(text, encoding="utf-8")
            typer.echo(str(output / name))
    except OSError as e:
        raise UsageError(f"cannot write to {str(output)!r}: {e.strerror or e}", stage="command line") from None
