"""What the commands for language models share."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from ..support.errors import UsageError

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A folder of Hugging Face, or a .gguf file.", show_default=False)
]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads; default: all usable cores.")]
Context = Annotated[int, typer.Option(min=16, metavar="N", help="Most tokens of a prompt and its answer together.")]
CacheDtype = Annotated[
    str, typer.Option("--cache-dtype", metavar="TYPE", help="Type of the cache: f32, bf16, int8, int4.")
]
Draft = Annotated[
    str | None,
    typer.Option("--draft", metavar="MODEL", help="A small model of the same vocabulary that proposes tokens."),
]
Template = Annotated[
    Path | None, typer.Option("--chat-template", metavar="FILE", help="A chat template in place of the model's own.")
]


def need(*packages: str) -> None:
    """UsageError if packages of the extra `llm` are not installed."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError:
            hint = "pip install tilewright[llm]"
            raise UsageError(f"this needs the package {package}", stage="command line", hint=hint) from None


def template_text(file: Path | None) -> str | None:
    """The text of a chat template's file; UsageError if it cannot be read."""
    try:
        return None if file is None else file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {str(file)!r}: {error}", stage="command line") from None
