"""What the commands share: the options of a compilation, error messages, tables."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ..support import progress
from ..support.errors import TilewrightError, UsageError, printable
from ..support.option_info import KINDS, OptionInfo
from ..support.options import Options, get

_debug = False
#: 1 with --verbose, -1 with --quiet
_loudness = 0
#: with --verbose or TILEWRIGHT_LOG: what shows the package's log on stderr
_handler: list[logging.Handler] = []
logger = logging.getLogger("tilewright")
#: options of a compilation that the command line has, in the order of `_compile_options`
_given: list[str] = []


def debug_wanted() -> bool:
    """True if --debug was given."""
    return _debug


def set_debug(value: bool) -> None:
    """Remember that --debug was given, before the command or after it."""
    global _debug
    _debug = _debug or value


def set_loudness(verbose: bool, quiet: bool) -> None:
    """Remember that -v or -q was given, before the command or after it; UsageError for both."""
    global _loudness
    if (verbose and (quiet or _loudness < 0)) or (quiet and _loudness > 0):
        raise UsageError("--verbose and --quiet do not go together", stage="command line")
    _loudness = 1 if verbose else -1 if quiet else _loudness
    progress.allowed = _loudness >= 0
    _show_log()


def _show_log() -> None:
    """The package's log on stderr: from TILEWRIGHT_LOG on, from INFO on with -v, and no more than warnings with -q."""
    asked = get("TILEWRIGHT_LOG")
    if _loudness > 0:
        level = min(asked or logging.INFO, logging.INFO)
    elif asked is not None:
        level = max(asked, logging.WARNING) if _loudness < 0 else asked
    else:
        return
    if not _handler:
        _handler.append(logging.StreamHandler(sys.stderr))
        logger.addHandler(_handler[0])
    logger.setLevel(level)


def begin() -> None:
    """Each run of `main` starts without --debug, -v and -q."""
    global _debug, _loudness
    _debug, _loudness, progress.allowed = False, 0, True
    if _handler:
        logger.removeHandler(_handler.pop())
        logger.setLevel(logging.NOTSET)


# ---- output ----


def fail(error: TilewrightError, code: int) -> int:
    """Print an error to stderr, with flags for options, coloured on a terminal; gives `code` back."""
    from .hints import in_flags

    error.message, error.hint = in_flags(error.message), in_flags(error.hint or "") or None
    if not sys.stderr.isatty() or "NO_COLOR" in os.environ:
        print(f"error: {error}", file=sys.stderr)
        return code
    from rich.console import Console
    from rich.text import Text

    first, *rest = str(error).split("\n")
    text = Text.assemble(("error: ", "bold red"), (first, "bold"))
    for line in rest:
        key, colon, value = line.partition(": ")
        known = colon and key.startswith("  ") and key.strip() in ("stage", "operator", "hint", "saved")
        text.append(f"\n{key}{colon}", "cyan" if known else "")
        text.append(value)
    Console(stderr=True).print(text, soft_wrap=True)
    return code


def note(text: str, wanted: bool = False) -> None:
    """A line for people on stderr, so that stdout stays what the user asked for. With --quiet there is none, unless
    another option has asked for it (`wanted`)."""
    if _loudness < 0 and not wanted:
        return
    print(printable(text), file=sys.stderr, flush=True)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table on stdout: ruled on a terminal, plain aligned columns in a pipe. Columns of numbers align right."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    numeric = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(headings))]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        drawn = Table(title=title or None, title_justify="left")
        for heading, right in zip(headings, numeric, strict=True):
            drawn.add_column(heading, justify="right" if right else "left", overflow="fold")
        for row in cells:
            drawn.add_row(*[Text(cell) for cell in row])
        Console().print(drawn)
        return
    widths = [max(len(row[i]) for row in [list(headings), *cells]) for i in range(len(headings))]
    if title:
        print(title)
    for row in [list(headings), *cells]:
        aligned = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, numeric, strict=True)]
        print("  ".join(aligned).rstrip())


def _is_number(text: str) -> bool:
    return text.replace(".", "").replace(",", "").replace("-", "").replace("%", "").replace("e", "").isdigit()


def check_writable(
    path: Path | None, what: str, suffixes: Sequence[str] = (), reads: Iterable[str | os.PathLike[str] | None] = ()
) -> None:
    """UsageError if a file cannot be written to `path`: asked before minutes are spent on making its content.

    Its name must end with one of `suffixes`, if there are any, and it must be none of the files that the command
    reads, under whatever name.
    """
    if path is None:
        return
    folder = path.parent
    source = next((s for s in reads if s is not None and _same_file(path, s)), None)
    if source is not None:
        raise UsageError(
            f"{what} would overwrite {str(source)!r}, which the command reads",
            stage="command line",
            hint="give another file name",
        )
    if suffixes and path.suffix not in suffixes and not path.is_dir():
        raise UsageError(
            f"cannot write {what} to {str(path)!r}: its name ends with {path.suffix or 'no suffix'!r}",
            stage="command line",
            hint=f"give a name that ends with {' or '.join(s for s in suffixes if s)}",
        )
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"the folder {str(folder)!r} does not exist"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        reason = "no permission"
    else:
        return
    raise UsageError(f"cannot write {what} to {str(path)!r}: {reason}", stage="command line")


def _same_file(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> bool:
    """Whether two names are one file: equal, linked, or the second name of the same content."""
    try:
        return os.path.samefile(a, b)
    except (OSError, ValueError):  # one of them is not there
        return False


# ---- the options of a compilation, the same on every command that compiles ----


def _flag_name(f: Field[object]) -> str:
    """Without dashes in front: ``arena-limit``, ``shape``, ``no-winograd``."""
    return OptionInfo.of(f).flag.name or ("no-" if f.default is True else "") + f.name.replace("_", "-")


def _typer_option(f: Field[object]) -> Any:
    """The typer declaration of an option, from its field."""
    info = OptionInfo.of(f)
    counts = info.flag.parse is None and KINDS[str(f.type)].text is int
    return typer.Option(
        f"--{_flag_name(f)}",
        help=info.flag.help or info.doc[0].upper() + info.doc[1:] + ".",
        metavar=info.flag.metavar,
        min=1 if counts else None,
        show_default=isinstance(f.default, str),
    )


def _parameter(f: Field[object]) -> inspect.Parameter:
    """The parameter of a command for an option; its value is what `_value` reads."""
    flag = OptionInfo.of(f).flag
    text: Any = str if flag.parse is not None else KINDS[str(f.type)].text
    default: object = f.default if isinstance(f.default, str) else None
    if text is bool:
        default = False
    elif flag.repeat:
        text = list[str] | None
    elif default is None:
        text = text | None
    annotation: Any = Annotated[text, _typer_option(f)]
    name = _flag_name(f).replace("-", "_")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _value(f: Field[object], given: Any) -> Any:
    """The value of an option from what typer read: None or an empty list if it was not given."""
    flag = OptionInfo.of(f).flag
    if f.type == "bool":
        return not f.default if given else f.default
    if given is None or given == []:
        return f.default
    if flag.parse is not None:
        return flag.parse(f"--{_flag_name(f)}", given)
    return tuple(given) if flag.repeat else given


_FIELDS = {f.name: f for f in fields(Options)}
#: for commands that take some of the options
Target = Annotated[str, _typer_option(_FIELDS["target"])]
Threads = Annotated[int | None, _typer_option(_FIELDS["threads"])]
Shape = Annotated[list[str] | None, _typer_option(_FIELDS["inputs"])]
State = Annotated[list[str] | None, _typer_option(_FIELDS["states"])]


def parsed(option: str, given: list[str] | None) -> Any:
    """The option `inputs` from the texts of ``--shape``, `states` from those of ``--state``; UsageError for a text that
    does not fit, or one input given twice."""
    return _value(_FIELDS[option], given)


Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say more on stderr: the seconds of every stage, what is logged.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notes and no progress on stderr; errors and warnings.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an internal error.")]


#: the parameters that `with_compile_options` gives a command
_PARAMETERS = [
    *map(_parameter, _FIELDS.values()),
    *(
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in (("verbose", Verbose), ("quiet", Quiet), ("debug", Debug))
    ),
]


def _compile_options(
    *, verbose: bool = False, quiet: bool = False, debug: bool = False, **given: Any
) -> dict[str, Any]:
    """Keyword arguments for `tilewright.compile` from the command line."""
    set_debug(debug)
    set_loudness(verbose, quiet)
    chosen = {n: _value(f, given.get(_flag_name(f).replace("-", "_"))) for n, f in _FIELDS.items()}
    return {**chosen, "time": chosen["time"] or _loudness > 0}


def refuse_options(keep: Iterable[str], why: str, hint: str | None = None) -> None:
    """UsageError if an option of a compilation was given that is not in `keep`: none is ignored in silence."""
    for name in _given:
        if name not in (*keep, "debug", "verbose", "quiet"):
            raise UsageError(f"--{name.replace('_', '-')} has no meaning {why}", stage="command line", hint=hint)


def with_compile_options(command: Callable[..., object]) -> Callable[..., object]:
    """Replace the parameter `options` of a command by one command-line option for each option of a compilation."""
    shared = {p.name: p for p in _PARAMETERS}
    own = inspect.signature(command, eval_str=True).parameters

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        context = given.pop("context")
        _given[:] = [n for n in shared if getattr(context.get_parameter_source(n), "name", "") == "COMMANDLINE"]
        options = _compile_options(**{name: given.pop(name) for name in shared})
        return command(**given, options=options)

    keep = [p.replace(kind=p.KEYWORD_ONLY) for n, p in own.items() if n != "options"]
    extra = [*_PARAMETERS, inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    wrapped.__signature__ = inspect.Signature([*keep, *extra])  # type: ignore[attr-defined]
    del wrapped.__wrapped__  # typer reads the annotations of what is wrapped
    wrapped.__annotations__ = {p.name: p.annotation for p in (*keep, *extra)}
    return wrapped
