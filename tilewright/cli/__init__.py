"""The command line `tilewright`: one file a group of commands; a new command is a function registered on `app`.

`main` turns every error into one message on stderr and an exit code (the table `EXIT_CODES`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..support.errors import TilewrightError
from . import (  # noqa: F401 (they register on `app`)
    bench_serve,
    bisect,
    chat,
    chip,
    compile,
    explore,
    export,
    info,
    opt,
    profile,
    quantize_llm,
    serve,
    slow,
    tune,
)
from .app import EXIT_CODES as EXIT_CODES
from .app import INTERRUPTED, app
from .common import begin, debug_wanted, fail, note


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. Never raises for an error of a user, a model or the compiler."""
    begin()
    try:
        app(args=arguments, prog_name="tilewright", standalone_mode=True)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:  # typer has caught Ctrl-C, and says nothing
            note("interrupted", wanted=True)
        return int(stop.code or 0)
    except KeyboardInterrupt:
        note("interrupted", wanted=True)
        return INTERRUPTED
    except TilewrightError as error:
        if debug_wanted() and error.__cause__ is not None and not isinstance(error.__cause__, TilewrightError):
            raise  # a bug of ours in other words, as of a pass
        return fail(error, error.exit_code)
    except Exception as error:
        if debug_wanted():
            raise
        text = " ".join(str(error).split())
        return fail(
            TilewrightError(
                f"internal error: {type(error).__name__}: {text}"[:500],
                hint="this is a bug in Tilewright: add --debug for the traceback, and please report it",
            ),
            70,
        )
    return 0
