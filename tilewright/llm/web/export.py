"""Exports a language model as a page to chat with it.

index.html, page.js, style.css    the page
language.js                       answers of the model, token by token
tokenizer.js, tokenizer.json      text to tokens and back
language.json                     the chat template in pieces, sizes
and the files of `targets/wasm`: the model, its weights and what runs it
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...driver.service import compile
from ...ops.block_weights import BlockWeights
from ...support.errors import UnsupportedError, UsageError
from ...support.files import replacing
from ..config import CachePool, DecoderModel
from ..decoder import input_sizes, step_graph
from ..plan import Hook
from ..program import source_of
from ..quantize.rounding import Format
from ..tokenizer import Tokenizer, load_tokenizer
from .tokenizer import tokenizer_data

SITE = Path(__file__).with_name("site")
PAGE = 16
#: what stands for messages while the template's own text is looked for
MARKS = ("QUESTIONONE", "ANSWERONE", "QUESTIONTWO", "ANSWERTWO", "QUESTIONTHREE")
#: bits of a weight that are kept as they are
KEEP = 32


def export_chat(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    context: int = 1024,
    bits: int = 8,
    progress: Hook | None = None,
) -> list[Path]:
    """Write a page for the model at a path (as in `program.load_model`) into a folder; the paths of its files.

    context: most tokens of a conversation. bits: 4 or 8, which floats of products are rounded to; 32: f32.
    Weights that are quantized already stay as they are.

    UnsupportedError for models with recurrent layers, tokenizers and templates that a page does not understand.
    UsageError for a model that is compiled already, or has no chat template.
    """
    report = progress or (lambda stage, part: None)
    report("reading the model", 0.0)
    if bits not in (4, 8, KEEP):
        raise UsageError(f"weights have 4, 8 or {KEEP} bits, not {bits}", stage="export")
    source = source_of(path)
    if source is None:
        raise UsageError(f"{path} is compiled already", stage="export", hint="give the folder or file of the model")
    tokenizer = load_tokenizer(Path(path))
    pieces = template_pieces(tokenizer)
    files = {"tokenizer.json": json.dumps(tokenizer_data(tokenizer), ensure_ascii=False).encode()}
    model, weights = source.read()
    if model.recurrent:
        raise UnsupportedError("models with recurrent layers have no page yet", stage="export")
    length = -(-context // PAGE) * PAGE
    about: dict[str, Any] = {"name": _name(path), "context": length}
    about |= {"pages": length // PAGE, "pageLength": PAGE, **pieces}
    files["language.json"] = json.dumps(about).encode()
    report("compiling", 0.3)
    executable = _compiled(model, _portable(weights, bits), length)
    report("writing", 0.8)
    files |= {f.name: f.read_bytes() for f in SITE.iterdir()}
    target = Path(folder)
    written = [p for p in executable.export(target) if p.name not in files]
    for name, data in files.items():
        with replacing(target / name) as file:
            file.write(data)
    report("ready", 1.0)
    return [*written, *(target / n for n in files)]


def _name(path: str | os.PathLike[str]) -> str:
    where = Path(path).resolve()
    return where.stem if where.is_file() else where.name


def _compiled(model: DecoderModel, weights: Mapping[str, Any], length: int) -> Any:
    """The step of one token, for WebAssembly."""
    pool = CachePool(length // PAGE, PAGE, 1, "f32")
    graph = step_graph(model, weights, pool, length)
    sizes = {"T": 1, "B": 1, "B+1": 2, "N": length // PAGE, "R": 1}
    inputs = {name: tuple(sizes[s] for s in each) for name, each in input_sizes(model, {}).items()}
    states = {n: f"next:{n}" for n in model.states(pool)}
    return compile(graph, inputs=inputs, states=states, target="wasm")


def _portable(weights: Mapping[str, Any], bits: int) -> dict[str, Any]:
    """Weights in types that WebAssembly computes with: floats are rounded to `bits`, or f32."""

    def portable(w: Any) -> Any:
        if isinstance(w, BlockWeights):
            return w
        form = Format(bits).fitting(w.shape[1]) if bits != KEEP and w.ndim == 2 else None
        made = np.asarray(w, np.float32)
        return made if form is None else form.rounded(made)

    return {name: portable(w) for name, w in weights.items()}


def template_pieces(tokenizer: Tokenizer) -> dict[str, list[int]]:
    """The tokens of a chat template before the first question, between a question and its answer, and between an answer
    and the next question; UnsupportedError if conversations are not made of these alone.

    A page puts conversations together by them. What is cut off of an answer's end, as its last token, belongs to
    `between`.
    """
    if not tokenizer.has_template:
        raise UsageError("the model has no chat template", stage="export", hint="a page is for chat models")

    def rendered(count: int) -> str:
        roles = ("user", "assistant")
        return tokenizer.chat([{"role": roles[i % 2], "content": MARKS[i]} for i in range(count)])

    first, second, third = rendered(1), rendered(3), rendered(5)
    begin, found, answer = first.partition(MARKS[0])
    middle = second[second.find(MARKS[1]) + len(MARKS[1]) : second.find(MARKS[2])]
    whole = begin + MARKS[0] + answer
    for i in (1, 3):
        whole += MARKS[i] + middle + MARKS[i + 1] + answer
    if not found or MARKS[1] not in second or whole != third:
        raise UnsupportedError("the chat template is not a plain row of messages", stage="export")
    encode = tokenizer.encode
    made = {"begin": encode(begin), "answer": encode(answer), "between": encode(middle)}
    text = "Is it so, my friend?"
    joined = [*made["begin"], *encode(text), *made["answer"]]
    if joined != encode(begin + text + answer):
        raise UnsupportedError("tokens of the chat template run into those of messages", stage="export")
    return made
