"""The application that commands register on, its help, its exit codes."""

from __future__ import annotations

import typer

from .common import Debug, Quiet, Verbose, set_debug, set_loudness

INTERRUPTED = 130
EXIT_CODES = {
    0: "success",
    1: "any other error; `doctor` found a problem",
    2: "wrong usage: unknown command, option, stage or pass; a path that cannot be read or written",
    3: "the model file is damaged, inconsistent, or of an unknown kind",
    4: "the model uses operators or features that are not supported (all are listed)",
    5: "the arrays do not fit the model: name, shape or dtype",
    6: "a stage of the compiler failed; a reproducer was saved where possible",
    7: "the .tw file is damaged, foreign, or made for another machine or version",
    8: "--check found a difference above the tolerance",
    70: "a bug in Tilewright (add --debug for the traceback)",
    INTERRUPTED: "interrupted",
}

# \\b keeps the lines as they are
EPILOG = "\b\nExit codes:\n" + "\n".join(f"{code:>5}  {meaning}" for code, meaning in EXIT_CODES.items())

HELP = """Compile machine-learning models to native code, look at every level on the way, and run them.

\b
  tilewright run model.onnx --time             compile, run on random data, show times
  tilewright compile model.onnx -o model.tw    compile once ...
  tilewright run model.tw --input in.npz --output out.npz     ... run anywhere on this kind of machine
  tilewright compile model.onnx --stop-after fuse             print the kernels
  tilewright profile model.onnx --html p.html  where the time goes, beside what the machine can do
  tilewright doctor                            check the installation

Every command has its own --help with examples.
"""

app = typer.Typer(
    name="tilewright",
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@app.callback(invoke_without_command=True)
def top(
    verbose: Verbose = False,
    quiet: Quiet = False,
    debug: Debug = False,
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    set_debug(debug)
    set_loudness(verbose, quiet)
    if version:
        from .. import __version__

        typer.echo(f"tilewright {__version__}")
        raise typer.Exit


__all__ = ["EXIT_CODES", "app"]
