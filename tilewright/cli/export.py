"""The command `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..support.errors import UsageError
from .app import app
from .common import Debug, Quiet, Verbose, note, set_debug, set_loudness
from .language import Model, need


@app.command("export")
def export(
    model: Model,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="A new folder.", show_default=False)],
    target: Annotated[str, typer.Option(metavar="web", help="What to make: a page to chat with the model.")] = "web",
    context: Annotated[int, typer.Option(min=16, metavar="N", help="Most tokens of a conversation.")] = 1024,
    bits: Annotated[
        int, typer.Option(metavar="4|8|32", help="Bits of weights that are floats; quantized ones stay as they are.")
    ] = 8,
    verbose: Verbose = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a language model as a folder of static files: a page to chat with it.

    The page runs the model in the browser, by WebAssembly; nothing is sent anywhere. It is for small models: the
    weights are fetched when the page is opened, and prompts are read token by token.

    \b
      tilewright export SmolLM2-135M-Instruct --target web -o site
      python site/serve.py
    """
    set_debug(debug)
    set_loudness(verbose, quiet)
    if target != "web":
        raise UsageError(f"language models are exported for web, not for {target!r}", stage="command line")
    need("tokenizers", "safetensors", "jinja2")
    from ..llm.llm import loading_bar
    from ..llm.web.export import export_chat

    with loading_bar(str(out), True) as progress:
        written = export_chat(model, out, context=context, bits=bits, progress=progress)
    size = sum(p.stat().st_size for p in written) / 1e6
    note(f"wrote {out}, {size:.1f} MB; to look at it: python {out / 'serve.py'}")
