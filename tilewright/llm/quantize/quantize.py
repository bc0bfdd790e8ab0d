"""Quantize a model: layer after layer, each with the activations that it gets from the quantized layers before it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.block_weights import BlockWeights
from ...support.errors import UsageError
from ..architectures import find
from ..batch import Batch
from ..checkpoint import Checkpoint
from ..config import DecoderModel
from .awq import scaled
from .calibrate import LayerProgram, embedded, step_inputs
from .gptq import gptq
from .package import KEY, Writer
from .rounding import Format

METHODS = ("rtn", "awq", "gptq")
#: positions of a sequence of calibration or evaluation, and the most tokens that run at a time
LENGTH, TOGETHER = 512, 2048
#: is called with what is done now, and which part of all is done
Hook = Callable[[str, float], None]


#: weights of layers that stay as they are: what other operators than products read, and what chooses experts
FLOAT = ("router", "shared_gate", "conv", "kv_b")


@dataclass
class _Flow:
    """Activations of sequences, in batches [T, hidden] of one size, on their way through the layers."""

    model: DecoderModel
    tokens: np.ndarray  # [sequences, length]
    inputs: dict[str, np.ndarray] = field(init=False)
    batches: list[np.ndarray] = field(default_factory=list)

    @staticmethod
    def of(model: DecoderModel, tokens: Sequence[int], most: int) -> _Flow:
        length = min(LENGTH, model.context, len(tokens))
        each = max(1, TOGETHER // length)
        sequences = min(len(tokens), most) // length
        sequences = max(1, sequences // each * each or sequences)
        each = min(each, sequences)
        made = _Flow(model, np.asarray(tokens[: sequences * length], np.int64).reshape(-1, length))
        made.inputs = step_inputs(each, length)
        return made

    def begin(self, weights: Mapping[str, Any]) -> None:
        each = len(self.inputs["starts"]) - 1
        parts = [self.tokens[i : i + each] for i in range(0, len(self.tokens), each)]
        self.batches = [embedded(self.model, weights, part) for part in parts]

    def through(self, number: int, weights: Mapping[str, Any], threads: int | None, keep: bool = True) -> Iterator[Any]:
        """Run a layer; the inputs of products, batch by batch. keep: what comes out goes into the next layer."""
        with LayerProgram(self.model, number, weights, self.inputs, threads) as program:
            for i, x in enumerate(self.batches):
                y, given = program(x)
                if keep:
                    self.batches[i] = y
                yield given


def quantize(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    method: str = "rtn",
    form: Format | None = None,
    *,
    calibration: Sequence[int] = (),
    most_tokens: int = 1 << 14,
    threads: int | None = None,
    progress: Hook | None = None,
) -> tuple[int, int]:
    """Write the model in a folder of Hugging Face to the folder `out`, with weights of products in a format; bytes of
    the weights before and after.

    method: "rtn" rounds to nearest; "awq" first scales columns by the size of the activations; "gptq" makes up for
    what is lost. The two run the model on the first `most_tokens` of the tokens `calibration`. Embedding and head get 8
    bits. Experts of mixtures are rounded to nearest by each method. What chooses them, and what is not multiplied with
    activations, stays as it is.

    UsageError for a method, a format or a folder that is not possible; ModelError, UnsupportedError as in `load_model`.
    """
    if method not in METHODS:
        raise UsageError(f"no method {method!r}", hint=f"there are {', '.join(METHODS)}")
    if method != "rtn" and len(calibration) < 16:
        hint = "some thousand tokens of what the model is used for"
        raise UsageError(f"{method} needs text for calibration", hint=hint)
    form, report = form or Format(), progress or (lambda stage, part: None)
    checkpoint = Checkpoint(path)
    if KEY in checkpoint.config:
        raise UsageError(f"the model in {str(path)!r} is quantized already")
    architecture = find(checkpoint.config)
    model = architecture.model(checkpoint.config)
    weights = _experts_apart(architecture.weights(model, checkpoint.tensors))
    made = {"method": method, "bits": form.bits, "block": form.block, "minimum": form.minimum}
    writer = Writer(Path(path), Path(out), checkpoint.config, made)
    flow = None if method == "rtn" else _Flow.of(model, calibration, most_tokens)
    if flow:
        flow.begin(weights)
    layers = [{n: w for n, w in weights.items() if n.startswith(f"layers.{i}.")} for i in range(len(model.layers))]
    for i, own in enumerate(layers):
        report(f"layer {i + 1} of {len(layers)}", i / (len(layers) + 1))
        if flow is None:
            names = [n for n in own if _is_product(n, own[n])]
            writer.add(own | {n: q for n in names if (q := _rounded(own[n], form)) is not None})
        else:
            writer.add(_calibrated(flow, i, own, method, form, threads))
    report("embedding and head", len(layers) / (len(layers) + 1))
    rest = {n: w for n, w in weights.items() if not n.startswith("layers.")}
    for name in {"embedding.weight", "head.weight"} & set(rest):
        if (q := _rounded(rest[name], replace(form, bits=8))) is not None:
            rest[name] = q
    writer.add(rest)
    writer.finish()
    return sum(w.nbytes for w in weights.values()), writer.bytes


def _calibrated(
    flow: _Flow, number: int, own: Mapping[str, Any], method: str, form: Format, threads: int | None
) -> dict[str, Any]:
    """The weights of a layer; the activations go through it as it is then."""
    made = dict(own)
    if method == "awq":
        rows: dict[tuple[str, ...], list[np.ndarray]] = {}
        for given in flow.through(number, own, threads, keep=False):
            for names, x in _products(given).items():
                rows.setdefault(names, []).append(x[:: len(flow.batches)])
        samples = {names: np.concatenate(x) for names, x in rows.items()}
        better, scales = scaled(flow.model.layers[number], number, own, samples, form)
        made |= better
        for names, x in samples.items():
            importance = ((x / scales.get(names, 1)) ** 2).mean(0)
            made |= {n: q for n in names if (q := _rounded(made[n], form, importance)) is not None}
    else:
        moments: dict[tuple[str, ...], Any] = {}
        for given in flow.through(number, own, threads, keep=False):
            for names, x in _products(given).items():
                moments[names] = moments.get(names, 0) + x.T @ x
        for names, h in moments.items():
            if fitting := form.fitting(len(h)):
                made |= {n: gptq(own[n], h, fitting) for n in names}
    for n in [n for n, w in made.items() if not isinstance(w, BlockWeights) and _is_product(n, w)]:
        if (q := _rounded(made[n], form)) is not None:  # of what was not seen, as experts that all tokens have
            made[n] = q
    floats = {n: w.dequantized() if isinstance(w, BlockWeights) else w for n, w in made.items()}
    for _ in flow.through(number, floats, threads):
        pass
    return made


def _experts_apart(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Weights with those of all experts, [experts, N, K], as those of each."""
    made: dict[str, Any] = {}
    for name, w in weights.items():
        at, _, last = name.rpartition(".")
        if not at.endswith(".experts") or w.ndim != 3:
            made[name] = w
            continue
        parts = ("gate", "up") if last == "gateup" else (last,)
        for i, own in enumerate(w):
            rows = len(own) // len(parts)
            made |= {f"{at}.{i}.{n}.weight": own[j * rows : (j + 1) * rows] for j, n in enumerate(parts)}
    return made


def _is_product(name: str, w: Any) -> bool:
    """Whether a weight of a layer is multiplied with activations by `linear`, and is quantized."""
    return w.ndim == 2 and _quantized(name)


def _quantized(name: str) -> bool:
    return name.endswith(".weight") and not any(f".{p}." in name for p in FLOAT)


def _products(given: Mapping[tuple[str, ...], np.ndarray]) -> dict[tuple[str, ...], np.ndarray]:
    return {names: x for names, x in given.items() if all(map(_quantized, names))}


def _rounded(w: np.ndarray, form: Format, importance: np.ndarray | None = None) -> BlockWeights | None:
    fitting = form.fitting(w.shape[1])
    return None if fitting is None else fitting.rounded(np.asarray(w, np.float32), importance)


def perplexity(runner: Any, tokens: Sequence[int], progress: Hook | None = None) -> float:
    """exp of the mean negative log-likelihood of tokens, in sequences of the runner's context, but for the first of
    each. runner: a `batch.Runner`."""
    limits, total, count = runner.limits, 0.0, 0
    length = min(limits.context, limits.tokens, limits.pages * limits.page_length, len(tokens))
    inputs = step_inputs(1, length, limits.page_length)
    starts = range(0, len(tokens) - length + 1, length)
    for i in starts:
        text = np.asarray(tokens[i : i + length], np.int32)
        fields = {**inputs, "tokens": text}
        logits = runner.step(Batch(**fields)).logits[:-1]
        top = logits.max(-1)
        logs = np.log(np.exp(logits - top[:, None]).sum(-1, dtype=np.float64)) + top
        total += float((logs - logits[np.arange(length - 1), text[1:]]).sum())
        count += length - 1
        if progress:
            progress("perplexity", (i + length) / len(tokens))
    return float(np.exp(total / count))


__all__ = ["METHODS", "perplexity", "quantize"]
