"""The command `opt`: passes on MLIR files, and the pipeline from any level on."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..support.errors import ModelError, UsageError
from .app import app
from .common import check_writable, note, refuse_options, table, with_compile_options
from .compile import IR_SUFFIXES, check_result, emit_ir, report_verified

if TYPE_CHECKING:
    from ..graph.passes import Pass
    from ..ir.graph import Graph

#: the text comes from stdin
STDIN = Path("-")


@app.command()
@with_compile_options
def opt(
    options: dict[str, Any],
    file: Annotated[Path | None, typer.Argument(metavar="FILE.mlir", help="MLIR text of any level; -: stdin.")] = None,
    passes: Annotated[
        str, typer.Option("--pass", "-p", metavar="a,b{option=1}", help="Passes to run, in order; ours or MLIR's.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the result here, not to stdout.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="STAGE", help="FILE is what --dump wrote after this stage: continue from there."
        ),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List our passes with their options, and stop.")] = False,
) -> None:
    """Run passes on MLIR text, or continue from what --dump wrote.

    A name that is not one of our passes is one of MLIR's; `mlir:cse` is MLIR's in any case. Weights that are not in
    the file are read from FILE.constants beside it, and written beside -o. Without --from, --print-after names passes
    and --time shows the time of each; other options of a compilation need --from. `-`, or a pipe and no file: the text
    comes from stdin.

    \b
      tilewright opt graph.mlir --pass fold,cse
      tilewright compile model.onnx --stop-after lower | tilewright opt --pass mlir:cse
      tilewright opt graph.mlir --pass 'fold{max_elements=64},mlir:canonicalize' -o out.mlir
      tilewright opt levels/01-simplify.mlir --from simplify -o model.tw
      tilewright opt levels/05-schedule.txt --from schedule -o model.tw
      tilewright opt --list
    """
    if listing:
        list_passes()
        return
    if file is None:
        if not _piped():
            raise UsageError("no file was given", stage="command line", hint="tilewright opt FILE.mlir --pass a,b")
        file = STDIN
    if file == STDIN and start is not None:
        raise UsageError(
            "--from continues from a file, which has the weights beside it, not from stdin",
            stage="command line",
            hint="tilewright opt FILE.mlir --from STAGE, with a file that --dump wrote",
        )
    if file != STDIN and not file.is_file():
        raise UsageError(f"there is no file {str(file)!r}", stage="command line")
    if start is None:
        check_writable(output, "the IR", IR_SUFFIXES, [file] if file != STDIN else [])
        hint = "add --from STAGE to continue the pipeline from there"
        refuse_options(["print_after", "time"], "when passes run on a file", hint)
        transform(file, passes, output, options["print_after"], options["time"])
    else:
        check_result(output, [file], options)
        proceed(file, passes, start, output, options)


def _piped() -> bool:
    """Whether stdin is a pipe or a file, so that there is input to read."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # closed, or not a file of the system
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read(file: Path) -> Graph:
    """The graph in a file or on stdin, which has no weights beside it."""
    from ..ir.context import parse
    from ..ir.graph import Graph

    if file != STDIN:
        return Graph.load(file)
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise ModelError("stdin is not text, so it is not MLIR text", stage="parse") from None
    graph = Graph(parse(text, "stdin"))
    graph.check_symbols("stdin")
    return graph


def list_passes() -> None:
    from ..graph import passes

    rows = []
    for name, doc in passes.available().items():
        known = passes.options(name)
        rows.append((name, " ".join(f"{key}={default}" for key, (_, default) in known.items()), doc))
    table(("pass", "options", "what it does"), rows)


def transform(
    file: Path, pipeline: str, output: Path | None, print_after: Sequence[str] = (), timed: bool = False
) -> None:
    """Run passes on a file, like mlir-opt; print the IR after those in `print_after` and the time of each to stderr."""
    from ..graph.passes import name_of, parse_pipeline, run_pipeline

    chosen = parse_pipeline(pipeline)
    names = list(map(name_of, chosen))
    unknown = [n for n in print_after if n not in (*names, "all")]
    if unknown:
        hint = f"those that run are {', '.join(names) or 'none'}"
        raise UsageError(f"--print-after {unknown[0]!r} is no pass that runs", stage="command line", hint=hint)
    graph = _read(file)
    for p in chosen:
        for name, report in run_pipeline(graph, [p], after=_show_time if timed else None):
            if report:
                note(f"{name}: " + ", ".join(f"{count} {what}" for what, count in report.items()))
            if name in print_after or "all" in print_after:
                note(f"// ---- after {name} ----\n{graph.text()}", wanted=True)
    if output is None:
        typer.echo(graph.text())
    else:
        graph.save(output)


def _show_time(p: Pass, seconds: float) -> None:
    from ..graph.passes import name_of

    note(f"{name_of(p):20} {seconds:8.3f} s", wanted=True)


def proceed(file: Path, pipeline: str, start: str, output: Path | None, options: dict[str, Any]) -> None:
    """Continue the pipeline after stage `start`: to a package, or to the IR of a later stage."""
    import tilewright as tw

    if pipeline:
        raise UsageError("--pass and --from do not go together", hint="run the passes first, with -o")
    if output is None and options["stop_after"] is None:
        raise UsageError("where should the package go?", stage="command line", hint="add -o model.tw")
    result = tw.compile(file, **options, start_after=start)
    if options["stop_after"] is not None or output is None:
        emit_ir(result, output)
    else:
        report_verified(result, options)
        result.save(output)
