"""What the commands for language models share: their options, and a bar while a model loads."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from ..support import progress
from ..support.errors import UsageError

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A folder of Hugging Face, or a .gguf file.", show_default=False)
]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads; default: all usable cores.")]
Context = Annotated[int, typer.Option(min=16, metavar="N", help="Most tokens of a prompt and its answer together.")]
CacheDtype = Annotated[
    str, typer.Option("--cache-dtype", metavar="TYPE", help="Type of the cache: f32, bf16, int8, int4.")
]


def need(*packages: str) -> None:
    """UsageError if packages of the extra `llm` are not installed."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError:
            hint = "pip install tilewright[llm]"
            raise UsageError(f"this needs the package {package}", stage="command line", hint=hint) from None


@contextlib.contextmanager
def loading(what: str) -> Iterator[Callable[[str, float], None]]:
    """A bar on the terminal while a model is loaded: gives what `load_model` reports to."""
    if not (progress.allowed and sys.stderr.isatty()):
        yield lambda stage, part: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda stage, part: bar.update(task, description=f"{what}: {stage}", completed=part)
