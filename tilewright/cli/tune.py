"""The commands about tuning: `tune` and `db`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..support.errors import UsageError
from ..support.options import DEFAULT_TARGET
from .app import app
from .common import Debug, Shape, State, Target, Threads, check_writable, note, parsed, set_debug, table

if TYPE_CHECKING:
    from ..driver.tuning_database import Database, Row
    from ..tune.pretrained import Pretrained
    from ..tune.tuner import TuneReport

Path_ = Annotated[
    Path | None, typer.Option("--db", metavar="FILE", help="The database; default: TILEWRIGHT_DB.", show_default=False)
]

KeyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="File with the runners' key; default: TILEWRIGHT_RUNNER_KEY.", show_default=False
    ),
]


@app.command("tune")
def tune_command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model file, such as model.onnx or model.mlir.", show_default=False)
    ],
    trials: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N measured candidates.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.0, metavar="M", help="Stop after M minutes.")] = None,
    target: Target = DEFAULT_TARGET,
    threads: Threads = None,
    shape: Shape = None,
    state: State = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    db: Path_ = None,
    runners: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Measure there: HOST:PORT or ray://..., may be given again."),
    ] = None,
    key_file: KeyFile = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained/--no-pretrained", help="Begin with the cost model that is shipped.")
    ] = True,
    debug: Debug = False,
) -> None:
    """Search faster schedules for the kernels of a model.

    Every measurement is kept in the tuning database at once: stop with Ctrl-C at any time, run again to continue, and
    compile the model as always to use what was found. Results hold for this machine and this number of threads; those
    of a chip, whose simulator measures, for its description.

    \b
      tilewright tune model.onnx --minutes 15 --threads 2
      tilewright tune model.onnx --trials 500
      tilewright tune decoder.onnx --state past_key=present_key --trials 500
      tilewright tune model.onnx --trials 500 --runners board:7070
      tilewright tune model.onnx --trials 500 --target cpu+systolic32
      tilewright db list
    """
    from ..driver.tuning_database import Database
    from ..targets.base import find
    from ..tune.pretrained import load
    from ..tune.tuner import tune

    set_debug(debug)
    if (chip := find(target).coprocessor) is not None and chip.tuned_on():
        note("plans are timed by the chip's simulator: results hold for its description, on any machine")
    else:
        guide = load(target) if pretrained else None
        note(f"cost model: {_guided_by(guide, pretrained, target)}")
    inputs, states = parsed("inputs", shape), parsed("states", state)
    with _display() as watch:
        report = tune(
            model,
            trials=trials,
            minutes=minutes,
            threads=threads,
            target=target,
            inputs=inputs,
            states=states,
            database=Database(db),
            seed=seed,
            watch=watch,
            runners=[a for r in runners or () for a in r.split(",")],
            key=_key(key_file),
            pretrained=pretrained,
        )
    table(*_outcome(report))
    for way in report.algorithms:
        note(str(way))
    failed = ", ".join(f"{n} {s}" for s, n in sorted(report.outcomes.items()) if s != "ok")
    note(
        f"{report.trials} trials in {report.seconds:.0f} s{f' ({failed})' if failed else ''}; "
        f"all kernels together {report.speedup:.3f}x"
    )
    if report.recheck is not None:
        r = report.recheck
        back = f"; taken back: {', '.join(r.withdrawn)}" if r.withdrawn else ""
        note(f"the model: {r.untuned * 1e3:.3f} ms untuned, {r.tuned * 1e3:.3f} ms tuned, {r.speedup:.3f}x{back}")
    if report.noise:
        note(f"warning: {report.noise}", wanted=True)
    if report.interrupted:
        note("interrupted: what was measured is kept, run the command again to continue")
        raise typer.Exit(130)


def _outcome(report: TuneReport) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Headings and rows: a line a kernel."""
    simulated = any(t.cycles for t in report.tasks)
    rows: list[tuple[Any, ...]] = []
    for t in report.tasks:
        times = (f"{t.cycles:,}", f"{round(t.cycles * t.ratio):,}") if simulated else (f"{t.seconds * 1e3:.3f}",)
        gain = t.problem or (f"{1 / t.ratio:.2f}" if t.ratio < 1 else "-")
        rows.append((t.label, t.calls, *times, t.trials, _short(t.space), gain))
    return ("kernel", "calls", *(("cycles", "tuned") if simulated else ("ms",)), "trials", "space", "speedup"), rows


def _short(count: int) -> str:
    """
    >>> _short(96), _short(12345678901)
    ('96', '1.2e+10')
    """
    return str(count) if count < 10**6 else f"{count:.1e}"


def _guided_by(guide: Pretrained | None, wanted: bool, target: str) -> str:
    """Whether the pretrained model is in use, and where it comes from."""
    if guide is not None:
        return f"pretrained on {guide}"
    return f"not pretrained ({f'there is none for target {target}' if wanted else '--no-pretrained'})"


def _key(path: Path | None) -> str | None:
    """The key in a file; UsageError if it cannot be read."""
    try:
        return path.read_text().strip() if path is not None else None
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read the key in {path}: {e}", stage="tune") from None


@app.command("runner")
def runner_command(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")],
    target: Target = DEFAULT_TARGET,
    key_file: KeyFile = None,
    debug: Debug = False,
) -> None:
    """Build and measure kernels on this machine for a tuner on another one.

    Both sides need the same key, in a file or in TILEWRIGHT_RUNNER_KEY. Who has it can run any kernel here; what is
    sent can be read on the network, but not changed.

    \b
      tilewright runner --listen 0.0.0.0:7070 --key-file key
      tilewright tune model.onnx --trials 500 --runners board:7070 --key-file key      (on the other machine)
    """
    from ..tune.remote_runners import RunnerHost
    from ..tune.wire import Server, address_of, key_from

    set_debug(debug)
    host, port = address_of(listen)
    server = Server(RunnerHost(target), host, port, key_from(_key(key_file)), note)
    note(f"listening on {server.address[0]}:{server.address[1]}", wanted=True)
    try:
        server.serve()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()


@contextlib.contextmanager
def _display() -> Iterator[Any]:
    """A live table on a terminal, otherwise a line now and then."""
    if not sys.stderr.isatty():
        last = [0.0]

        def line(report: TuneReport, at: int | None, used: float) -> None:
            if time.monotonic() - last[0] > 10 or at is None:
                last[0] = time.monotonic()
                work = report.tasks[at].label if at is not None else report.doing or "done"
                note(f"{used:4.0%}  {report.trials} trials  kernels {report.speedup:.3f}x  {work}")

        yield line
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, begin = Console(stderr=True), time.monotonic()

    def show(report: TuneReport, at: int | None, used: float) -> None:
        live.update(_live_table(report, at, used, time.monotonic() - begin, *console.size))

    first = Text("compiling and running the model, to see where its time goes ...")
    with Live(first, console=console, refresh_per_second=4, transient=True) as live:
        yield show


def _time_left(elapsed: float, used: float) -> str:
    """What is left of the budget, by what its first part took.

    >>> _time_left(100, 0.5), _time_left(600, 0.25), _time_left(10, 0.001)
    (', about 100 s left', ', about 30 min left', '')
    """
    if used < 0.01:
        return ""
    left = elapsed * (1 - used) / used
    return f", about {left:.0f} s left" if left < 120 else f", about {left / 60:.0f} min left"


def _live_table(report: TuneReport, at: int | None, used: float, elapsed: float, width: int, height: int) -> Any:
    """Best so far a task with its layers, the task at work marked; what is being done, and the time left."""
    from rich.markup import escape
    from rich.table import Table

    phase = report.doing or (f"searching, {report.trials} trials" if at is not None else "racing the tuned model")
    title = f"{phase}; all kernels {report.speedup:.3f}x; {used:.0%} of the budget{_time_left(elapsed, used)}"
    drawn = Table(title=title, title_justify="left")
    drawn.add_column("", min_width=1)
    rest = max(width - 48, 30)  # of a line, without the numbers and the rules between columns
    for heading in ("kernel", "layers"):
        drawn.add_column(heading, no_wrap=True, overflow="ellipsis", max_width=rest // 3)
    for heading, least in (("ms", 9), ("trials", 6), ("best", 6)):
        drawn.add_column(heading, justify="right", no_wrap=True, min_width=least)
    drawn.add_column("schedule", no_wrap=True, overflow="ellipsis", max_width=rest // 3)
    order = sorted(range(len(report.tasks)), key=lambda i: (i != at, -report.tasks[i].seconds))
    for i in order[: max(4, height - 8)]:
        t = report.tasks[i]
        best = f"{1 / t.ratio:.2f}x" if t.ratio < 1 else "-"
        choices = " ".join(f"{k}={v}" for k, v in t.decisions.items())
        cells = [t.label, ", ".join(t.layers), f"{t.seconds * 1e3:.3f}", str(t.trials), best, choices or t.problem]
        drawn.add_row(">" if i == at else "", *map(escape, cells))
    return drawn


# ---- the database --------------------------------------------------------------------------------------------------

db_app = typer.Typer(
    name="db", help="Look at the tuning database, and move results between machines.", no_args_is_help=True
)
app.add_typer(db_app)


def _existing(path: Path | None) -> Database:
    from ..driver.tuning_database import Database

    db = Database(path)
    if not db.path.is_file():
        raise UsageError(
            f"there is no tuning database {str(db.path)!r}",
            stage="command line",
            hint="tilewright tune MODEL makes one",
        )
    return db


@db_app.command("list")
def db_list(db: Path_ = None) -> None:
    """List the kernels in the database with their trials and speedups."""
    rows = []
    for r in _existing(db).rows():
        if not r.trials and r.result is None:
            continue
        best = f"{r.result.speedup:.2f}" if r.result else "-"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(r.at))
        rows.append(
            (
                r.id,
                r.label,
                "x".join(map(str, r.extents))[:40],
                f"{r.machine.target}:{r.machine.threads}",
                r.trials,
                r.failed,
                best,
                when,
            )
        )
    table(("id", "kernel", "sizes", "target", "trials", "failed", "speedup", "last"), rows)


@db_app.command("show")
def db_show(
    number: Annotated[int, typer.Argument(metavar="ID", help="The number that `db list` shows.", show_default=False)],
    db: Path_ = None,
) -> None:
    """Show one kernel: its best schedule with times, and the trace that makes it."""
    row = _row(_existing(db), number)
    m = row.machine
    for key, value in (
        ("kernel", f"{row.label} ({row.kernel})"), ("sizes", " ".join(map(str, row.extents))),
        ("target", f"{m.target}, {m.threads} threads"),
        ("features", m.features), ("toolchain", m.toolchain), ("trials", f"{row.trials}, {row.failed} failed"),
    ):  # fmt: skip
        typer.echo(f"{key:10} {value}")
    if row.result is None:
        typer.echo("result     none: nothing better than the default schedule was confirmed")
        return
    r = row.result
    typer.echo(f"result     {r.seconds * 1e6:.2f} us, default {r.baseline * 1e6:.2f} us, {r.speedup:.3f}x")
    typer.echo(f"decisions  {json.dumps(r.decisions)}\n\n{r.trace}")


def _row(db: Database, number: int) -> Row:
    found = [r for r in db.rows() if r.id == number]
    if not found:
        raise UsageError(
            f"the database has no entry {number}", stage="command line", hint="tilewright db list shows them"
        )
    return found[0]


@db_app.command("export")
def db_export(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.json", help="The file to write.")],
    db: Path_ = None,
) -> None:
    """Write all results to a JSON file."""
    check_writable(output, "the results", [".json", ""], [db])
    data = _existing(db).export()
    output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    note(f"{output}: {len(data['tasks'])} results")


@db_app.command("import")
def db_import(
    file: Annotated[Path, typer.Argument(metavar="FILE.json", help="What `db export` wrote.", show_default=False)],
    db: Path_ = None,
) -> None:
    """Take over results from a JSON file; better ones that are here already stay."""
    from ..driver.tuning_database import Database

    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UsageError(
            f"cannot read results from {str(file)!r}: {e}", stage="command line", hint="make the file with: db export"
        ) from None
    taken, read = Database(db).import_(data)
    note(f"{taken} of {read} results taken over")


@db_app.command("prune")
def db_prune(
    old: Annotated[
        bool, typer.Option("--other-versions", help="Delete what other versions of the toolchain measured.")
    ] = False,
    days: Annotated[
        float | None, typer.Option("--days", min=0.0, metavar="N", help="Delete what was not touched for N days.")
    ] = None,
    measurements: Annotated[
        bool, typer.Option("--measurements", help="Delete the single measurements, keep the results.")
    ] = False,
    target: Target = DEFAULT_TARGET,
    db: Path_ = None,
) -> None:
    """Delete what is not needed any more."""
    if not (old or days is not None or measurements):
        raise UsageError(
            "what should be deleted?", stage="command line", hint="--other-versions, --days N, or --measurements"
        )
    toolchain = None
    if old:
        from ..targets.base import find
        from ..tune.measure import tuning_of

        chosen = find(target)
        toolchain = tuning_of(chosen).measured_on(chosen.describe())[1]
    data = _existing(db)
    deleted = data.prune(
        toolchain=toolchain, keep_measurements=not measurements, older_than=None if days is None else days * 86400
    )
    note(f"{deleted} entries deleted")
