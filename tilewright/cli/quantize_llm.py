"""The command `quantize-llm`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..support.errors import UsageError
from .app import app
from .common import Debug, Quiet, Verbose, note, set_debug, set_loudness, table
from .language import Threads, need

#: positions of a sequence whose perplexity is taken
CONTEXT = 512


@app.command("quantize-llm")
def quantize_llm(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder of Hugging Face.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="A new folder.", show_default=False)],
    method: Annotated[str, typer.Option(metavar="rtn|awq|gptq", help="How numbers are rounded; see above.")] = "rtn",
    bits: Annotated[int, typer.Option(metavar="4|8", help="Bits of a weight.")] = 4,
    block: Annotated[int, typer.Option(metavar="N", help="Weights that share a scale: 16, 32, 64 or 128.")] = 32,
    minimum: Annotated[
        bool, typer.Option("--minimum/--symmetric", help="A minimum for each block, or numbers around zero.")
    ] = False,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Text like that of the model's use, for awq and gptq.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another text, whose perplexity is taken before and after.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=64, metavar="N", help="Most tokens of each text.")] = 1 << 14,
    threads: Threads = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Quantize a language model to 4 or 8 bits.

    What comes out is a folder that `serve`, `chat` and load_model read. Three methods:

    \b
      rtn   rounds each weight to the nearest number; takes seconds, needs no text
      awq   makes columns that meet large activations larger first, and divides the activations
      gptq  rounds column after column, and changes those that follow so that the layer's result stays; slow, best

    With 4 bits a block of 32 and awq or gptq lose little; a larger block saves memory (0.5 bits a weight at 32, 0.125
    at 128) and loses more, and --minimum gains some of it back. 8 bits lose next to nothing by rtn. The two texts
    should not be the same: a perplexity on the text of the calibration says too much good.

    \b
      tilewright quantize-llm SmolLM2-135M -o smol-4bit --method gptq --calibration train.txt --text valid.txt
      tilewright quantize-llm Qwen3-0.6B -o qwen-8bit --bits 8 --block 128
    """
    set_debug(debug)
    set_loudness(verbose, quiet)
    need("tokenizers", "safetensors")
    from ..llm.llm import loading_bar
    from ..llm.quantize.quantize import quantize
    from ..llm.quantize.rounding import Format

    form = Format(bits, block, minimum)
    if method != "rtn" and calibration is None:
        raise UsageError(f"{method} needs --calibration FILE", stage="command line", hint="or --method rtn")
    given = _tokens(model, calibration, tokens)
    measured = _tokens(model, text, tokens)
    if text is not None and len(measured) < 64:
        raise UsageError(f"{str(text)!r} has {len(measured)} tokens, at least 64 are needed", stage="command line")
    rows: list[tuple[object, ...]] = []
    before = _perplexity(model, measured, threads, "before") if measured else None
    with loading_bar("quantizing", True) as progress:
        old, new = quantize(
            model, out, method, form, calibration=given, most_tokens=tokens, threads=threads, progress=progress
        )
    after = _perplexity(str(out), measured, threads, "after") if measured else None
    for name, size, found in (("before", old, before), ("after", new, after)):
        rows.append((name, f"{size / 1e6:.1f}", *([] if found is None else [f"{found:.4f}"])))
    table(("", "MB", "perplexity") if measured else ("", "MB"), rows)
    note(f"wrote {out}")


def _tokens(model: str, path: Path | None, most: int) -> list[int]:
    """The first tokens of a text; none without one."""
    from ..llm.tokenizer import load_tokenizer

    if path is None:
        return []
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {str(path)!r}: {error}", stage="command line") from error
    return load_tokenizer(model).encode(content, special=True)[:most]


def _perplexity(model: str, tokens: list[int], threads: int | None, when: str) -> float:
    from ..llm.llm import loading_bar
    from ..llm.program import load_model
    from ..llm.quantize.quantize import perplexity

    def halves(first: bool, report: Any) -> Any:
        return lambda stage, part: report(stage, part / 2 if first else 0.5 + part / 2)

    with loading_bar(f"perplexity {when}", True) as progress:
        options: dict[str, Any] = {"context": CONTEXT, "sequences": 1, "cache_tokens": CONTEXT, "cache": False}
        runner = load_model(model, threads=threads, progress=halves(True, progress), **options)
        try:
            return perplexity(runner, tokens, halves(False, progress))
        finally:
            runner.close()
