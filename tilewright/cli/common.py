"""What the commands share: the options of a compilation, error messages, tables."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ..support import progress
from ..support.errors import TilewrightError, UsageError, printable
from ..support.options import Options, parse_size

_debug = False
#: 1 with --verbose, -1 with --quiet
_loudness = 0
#: with --verbose: what shows the package's log on stderr
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
    if verbose and not _handler:
        _handler.append(logging.StreamHandler(sys.stderr))
        logger.addHandler(_handler[0])
        logger.setLevel(logging.INFO)


def begin() -> None:
    """Each run of `main` starts without --debug, -v and -q."""
    global _debug, _loudness
    _debug, _loudness, progress.allowed = False, 0, True
    if _handler:
        logger.removeHandler(_handler.pop())
        logger.setLevel(logging.NOTSET)


# ---- output ----


def fail(error: TilewrightError, code: int) -> int:
    """Print an error to stderr, coloured on a terminal; gives `code` back."""
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


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
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
    path: Path | None, what: str, suffixes: Sequence[str] = (), reads: Iterable[str | os.PathLike | None] = ()
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


def _same_file(a: str | os.PathLike, b: str | os.PathLike) -> bool:
    """Whether two names are one file: equal, linked, or the second name of the same content."""
    try:
        return os.path.samefile(a, b)
    except (OSError, ValueError):  # one of them is not there
        return False


# ---- the options of a compilation, the same on every command that compiles ----


def _help(name: str) -> str:
    doc = next(f.metadata["doc"] for f in fields(Options) if f.name == name)
    return doc[0].upper() + doc[1:] + "."


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """
    >>> _shape("image=1x3x8x8"), _shape("scale=")
    (('image', (1, 3, 8, 8)), ('scale', ()))
    """
    name, equals, dims = text.rpartition("=")
    sizes = dims.split("x") if dims else []
    if not (equals and name) or not all(d.isdecimal() for d in sizes):
        raise UsageError(
            f"--shape {text!r} is not NAME=1x3x224x224",
            stage="command line",
            hint="every dimension needs a size; without --shape, sizes that the model leaves open stay open",
        )
    return name, tuple(int(d) for d in sizes)


def shapes(given: list[str]) -> dict[str, tuple[int, ...]]:
    """Shapes by name; UsageError for an input that has two."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in map(_shape, given):
        if found.setdefault(name, shape) != shape:
            both = " and ".join("x".join(map(str, s)) for s in (found[name], shape))
            raise UsageError(
                f"--shape gives input {name!r} two shapes, {both}",
                stage="command line",
                hint="a program has one; without --shape the model is compiled for every size that it is called with",
            )
    return found


def _traces(given: list[str]) -> dict[str, str]:
    """Traces by kernel from ``KERNEL=FILE``."""
    found = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise UsageError(f"--schedule {text!r} is not KERNEL=FILE", stage="command line")
        try:
            found[name] = Path(file).read_text()
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"cannot read the trace {file!r}: {e}", stage="command line") from None
    return found


def _bytes(flag: str, text: str) -> int:
    """
    >>> _bytes("--arena-limit", "128K")
    131072
    """
    try:
        return parse_size(text)
    except ValueError as e:
        raise UsageError(f"{flag} {text!r} is not a number of bytes: {e}", stage="command line") from None


Target = Annotated[str, typer.Option(help=_help("target"))]
Precision = Annotated[str, typer.Option(help=_help("precision"))]
Tolerance = Annotated[float | None, typer.Option(metavar="1e-2", help=_help("tolerance"), show_default=False)]
Threads = Annotated[int | None, typer.Option(min=1, help=_help("threads"), show_default=False)]
ArenaLimit = Annotated[
    str | None,
    typer.Option(metavar="128K", help=_help("arena_limit") + " K, M and G are understood.", show_default=False),
]
Operators = Annotated[int | None, typer.Option(min=1, help=_help("operators"), show_default=False)]
Deadline = Annotated[float | None, typer.Option(metavar="SECONDS", help=_help("deadline"), show_default=False)]
Shape = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=1x3x8x8", help="Shape of an input with dynamic dimensions; repeat for more."),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Compile every kernel anew.")]
NoTuned = Annotated[bool, typer.Option("--no-tuned", help="Use default schedules, not those that `tune` found.")]
Schedules = Annotated[
    list[str] | None,
    typer.Option(
        "--schedule", metavar="KERNEL=FILE", help="Schedule a kernel, or all whose names begin so, by this trace."
    ),
]
NoWinograd = Annotated[bool, typer.Option("--no-winograd", help="3x3 convolutions by the direct method only.")]
NoStream = Annotated[
    bool, typer.Option("--no-stream", help="Small targets: run no layers row by row, whatever memory that would save.")
]
Verify = Annotated[bool, typer.Option("--verify", help=_help("verify"))]
CheckIndices = Annotated[bool, typer.Option("--check-indices", help=_help("check_indices"))]
PrintAfter = Annotated[
    list[str] | None, typer.Option(metavar="STAGE|STAGE/PASS|all", help=_help("print_after") + " May be repeated.")
]
StopAfter = Annotated[
    str | None, typer.Option(metavar="STAGE", help="Stop after this stage and print its IR instead of going on.")
]
Dump = Annotated[Path | None, typer.Option(metavar="DIR", help=_help("dump"))]
Time = Annotated[bool, typer.Option("--time", help=_help("time"))]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say more on stderr: the seconds of every stage, what is logged.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notes and no progress on stderr; errors and warnings.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an internal error.")]


def _compile_options(
    target: Target = "cpu",
    precision: Precision = "f32",
    tolerance: Tolerance = None,
    threads: Threads = None,
    shape: Shape = None,
    arena_limit: ArenaLimit = None,
    operators: Operators = None,
    deadline: Deadline = None,
    no_cache: NoCache = False,
    no_tuned: NoTuned = False,
    schedule: Schedules = None,
    no_winograd: NoWinograd = False,
    no_stream: NoStream = False,
    verify: Verify = False,
    check_indices: CheckIndices = False,
    print_after: PrintAfter = None,
    stop_after: StopAfter = None,
    dump: Dump = None,
    time: Time = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> dict[str, Any]:
    """Keyword arguments for `tilewright.compile` from the command line."""
    set_debug(debug)
    set_loudness(verbose, quiet)
    return {
        "target": target,
        "precision": precision,
        "tolerance": tolerance,
        "threads": threads,
        "inputs": shapes(shape) if shape else None,
        "arena_limit": _bytes("--arena-limit", arena_limit) if arena_limit else None,
        "operators": operators,
        "deadline": deadline,
        "cache": not no_cache,
        "tuned": not no_tuned,
        "schedules": _traces(schedule) if schedule else None,
        "winograd": not no_winograd,
        "stream": not no_stream,
        "verify": verify,
        "check_indices": check_indices,
        "print_after": tuple(print_after or ()),
        "stop_after": stop_after,
        "dump": str(dump) if dump else None,
        "time": time or _loudness > 0,
    }


def refuse_options(keep: Iterable[str], why: str, hint: str | None = None) -> None:
    """UsageError if an option of a compilation was given that is not in `keep`: none is ignored in silence."""
    for name in _given:
        if name not in (*keep, "debug", "verbose", "quiet"):
            raise UsageError(f"--{name.replace('_', '-')} has no meaning {why}", stage="command line", hint=hint)


def with_compile_options(command: Callable) -> Callable:
    """Replace the parameter `options` of a command by one command-line option for each option of a compilation."""
    shared = inspect.signature(_compile_options, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True).parameters

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        context = given.pop("context")
        _given[:] = [n for n in shared if getattr(context.get_parameter_source(n), "name", "") == "COMMANDLINE"]
        options = _compile_options(**{name: given.pop(name) for name in shared})
        return command(**given, options=options)

    keep = [p.replace(kind=p.KEYWORD_ONLY) for n, p in own.items() if n != "options"]
    extra = [p.replace(kind=p.KEYWORD_ONLY) for p in shared.values()]
    extra.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    wrapped.__signature__ = inspect.Signature([*keep, *extra])  # type: ignore[attr-defined]
    del wrapped.__wrapped__  # typer reads the annotations of what is wrapped
    wrapped.__annotations__ = {p.name: p.annotation for p in (*keep, *extra)}
    return wrapped
