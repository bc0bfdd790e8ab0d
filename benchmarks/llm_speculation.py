"""Speculative decoding by look-up on texts that repeat themselves, and on texts that do not: tokens per second of the
engine with drafts and without, in turns, on compiled models of the shape of SmolLM2-135M.

    python benchmarks/llm_speculation.py                # some four minutes, to results/llm_speculation.json and .md
    python benchmarks/llm_speculation.py --formats int4 --threads 1 --rounds 2 --name try

No file is needed: the model is made here. Its layers have random weights and are computed as those of any other model
of that shape, but what they add to a token's embedding is small; and the head has for each of 256 tokens, in the row
of the token that is to follow it, that embedding again. So the 256 tokens are 8 paragraphs of 32 tokens that the model
knows by heart: its greedy text says one of them again and again. With a temperature it leaves the paragraph at any
token for a random place in all of them, the more often the higher it is, and every draft is wrong from there on: that
is how often the next token can be foreseen (`TEXTS`), from always to never. Never is harder than a random text of the
whole vocabulary: any token was there before, so that there always is a draft.

With the packages of the tests (torch, transformers, tokenizers) there is one more model, the small one that
`tests/llm/glossary_model.py` trains on the glossary of the docs: its greedy text is the glossary, over and over. Its
steps take some hundred microseconds, of which the engine's own work is a large part.

Both engines use one compiled model and live as long as the benchmark, as in service: costs of steps are learned while
they run. They take turns text by text, with the same prompts and seeds, and must say the same; nothing of a text is in
the cache when the next one begins. Speeds are of the fastest turn; times of the processor are there, too, as they
depend less on who else uses the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bench import grid, machine, write  # noqa: E402

from tilewright import __version__  # noqa: E402
from tilewright.llm.architectures import find  # noqa: E402
from tilewright.llm.engine.engine import LLMEngine  # noqa: E402
from tilewright.llm.program import CompiledRunner, ModelPlan, compilations, compile_model, load_model  # noqa: E402
from tilewright.llm.quantize.rounding import Format  # noqa: E402
from tilewright.llm.request import GenerationRequest, Sampling  # noqa: E402
from tilewright.support.options import Options  # noqa: E402

#: the shape of SmolLM2-135M; the head has weights of its own, as it is how the text is made
SHAPE = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
KNOWN, PARAGRAPH = 256, 32  # tokens that are used, and those of a paragraph
#: temperature -> how much of the text can be foreseen
TEXTS = {0.0: "all", 3.5: "three of four", 4.3: "half", 50.0: "nothing"}
#: what the speculation of a text that repeats itself must gain, and no text may lose
GAIN, LEAST = 1.8, 0.97
PROMPT = 64


@dataclass(frozen=True)
class Case:
    """Texts by one runner: how many at a time, and their tokens."""

    text: str
    temperature: float
    sequences: int
    tokens: int
    repeats: bool = False


def follows(token: np.ndarray) -> np.ndarray:
    """The token that is next in its paragraph."""
    return token // PARAGRAPH * PARAGRAPH + (token + 1) % PARAGRAPH


def prompt(rng: np.random.Generator, temperature: float) -> list[int]:
    """A text as the model would say it, whose logits are 24 for what is next and about 0 for the other 255."""
    chance = 1 / (1 + (KNOWN - 1) * np.exp(-24 / temperature)) if temperature else 1.0
    tokens = rng.integers(0, KNOWN, PROMPT)
    for i in range(1, PROMPT):
        if rng.random() < chance:
            tokens[i] = follows(tokens[i - 1])
    return tokens.tolist()


# ---- the models ----


def paragraphs(form: str) -> tuple[Any, dict[str, Any]]:
    """The model of the shape with paragraphs; form: "bf16" or "int4" (embedding and head 8 bits)."""
    model, rng = find(SHAPE).model(SHAPE), np.random.default_rng(0)
    hidden, mlp, kv = model.hidden, SHAPE["intermediate_size"], 3 * 64

    def random(*shape: int, scale: float = 0.04) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) * np.float32(scale)

    embedding = random(model.vocabulary, hidden, scale=1)
    head, bias = random(model.vocabulary, hidden), np.full(model.vocabulary, -1000, np.float32)
    head[follows(np.arange(KNOWN))] = embedding[:KNOWN] / np.linalg.norm(embedding[:KNOWN], axis=1, keepdims=True)
    bias[:KNOWN] = 0
    weights: dict[str, Any] = {"embedding.weight": embedding, "head.weight": head, "norm.weight": np.ones(hidden)}
    for i in range(len(model.layers)):
        at = f"layers.{i}"
        weights |= {f"{at}.{n}.before.weight": np.ones(hidden) for n in ("attention", "mlp")}
        weights |= {f"{at}.attention.{n}.weight": random(hidden if n == "q" else kv, hidden) for n in "qkv"}
        weights |= {f"{at}.mlp.{n}.weight": random(mlp, hidden) for n in ("gate", "up")}
        weights[f"{at}.attention.o.weight"] = random(hidden, hidden, scale=1e-3)
        weights[f"{at}.mlp.down.weight"] = random(hidden, mlp, scale=1e-3)
    for name, w in weights.items():
        if w.ndim == 2 and form == "int4":
            weights[name] = Format(4 if name.startswith("layers") else 8).rounded(w)
        else:
            weights[name] = w.astype(ml_dtypes.bfloat16 if w.ndim == 2 else np.float32)
    return model, weights | {"head.bias": bias}


def compiled(form: str, threads: int) -> CompiledRunner:
    plan = ModelPlan(context=1024, sequences=4, tokens=512, page_length=16, pages=256)
    return compile_model(*paragraphs(form), plan, Options.of(threads=threads))


def glossary(threads: int) -> tuple[CompiledRunner, Any]:
    """The model that knows the glossary, and its tokenizer."""
    sys.path.append(str(HERE.parent / "tests" / "llm"))  # here, `llm` is a benchmark
    from glossary_model import train

    from tilewright.llm.tokenizer import load_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder))
        return load_model(folder, threads=threads, context=512, sequences=4), load_tokenizer(folder)


# ---- the race ----


class Race:
    """The engine with drafts and without, on one runner."""

    def __init__(self, runner: CompiledRunner) -> None:
        self.runner = runner
        self.engines = {"plain": LLMEngine(runner, draft_tokens=0), "drafts": LLMEngine(runner)}

    def turn(self, who: str, case: Case, number: int, prompts: list[list[int]]) -> tuple[dict[str, float], list[Any]]:
        """Seconds, seconds of the processor, steps; and what was said."""
        engine = self.engines[who]
        sampling = [Sampling(case.tokens, case.temperature, seed=number * 100 + b) for b in range(case.sequences)]
        before = engine.metrics()
        begin, cpu = time.perf_counter(), time.process_time()
        streams = [engine.submit(GenerationRequest(p, s)) for p, s in zip(prompts, sampling, strict=True)]
        said = [[t for piece in stream for t in piece.tokens] for stream in streams]
        found = {"s": time.perf_counter() - begin, "cpu_s": time.process_time() - cpu}
        after = engine.metrics()
        engine.call(engine.cache.clear)  # the other one writes there next
        counted = ("steps", "draft_tokens", "draft_tokens_accepted", "generated_tokens")
        return found | {n: after[n] - before[n] for n in counted}, said

    def case(self, case: Case, prompts: list[list[int]], rounds: int) -> dict[str, Any]:
        """The fastest turn of each, and how often texts were not the same (a sum is in another order in a step of more
        tokens)."""
        turns: dict[str, list[dict[str, float]]] = {who: [] for who in self.engines}
        differ = 0
        for number in range(rounds):
            said = {}
            for who in list(turns) if number % 2 else list(turns)[::-1]:
                found, said[who] = self.turn(who, case, number, prompts)
                turns[who].append(found)
            differ += said["plain"] != said["drafts"]
        best = {who: {n: min(t[n] for t in found) for n in ("s", "cpu_s")} for who, found in turns.items()}
        count = {n: sum(t[n] for t in turns["drafts"]) for n in turns["drafts"][0]}
        made = case.sequences * case.tokens
        return {
            "text": case.text, "temperature": case.temperature, "sequences": case.sequences, "tokens": case.tokens,
            "repeats": case.repeats, "rounds": rounds, "texts_that_differ": differ,
            **{f"{who}_tok_s": round(made / best[who]["s"], 1) for who in best},
            **{f"{who}_cpu_s": round(best[who]["cpu_s"], 3) for who in best},
            "gain": round(best["plain"]["s"] / best["drafts"]["s"], 3),
            "cpu_gain": round(best["plain"]["cpu_s"] / best["drafts"]["cpu_s"], 3),
            "tokens_a_step": round(count["generated_tokens"] / count["steps"] / case.sequences, 2),
            "drafts_right": round(count["draft_tokens_accepted"] / max(count["draft_tokens"], 1), 3),
            "draft_tokens": int(count["draft_tokens"]),
            "costs": self.costs(),
        }  # fmt: skip

    def costs(self) -> dict[int, float]:
        """Of steps by their tokens, in those of a step of one, as the engine has measured them."""
        cost = self.engines["drafts"]._speculator.cost
        return {n: round(cost(n) / cost(1), 2) for n in (2, 4, 8, 16)}

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()
        self.runner.close()


def races(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What runs, and what was measured of it."""
    for form in options.formats:
        for threads in options.threads:
            rng = np.random.default_rng(1)
            if form == "glossary":
                runner, tokenizer = glossary(threads)
                question = tokenizer.encode("<|user|>What is a", special=True)
                cases = [Case("the glossary", 0.0, n, 400, repeats=True) for n in (1, 4)]
                texts = {c: [question] * c.sequences for c in cases}
            else:
                runner = compiled(form, threads)
                cases = [Case(text, t, n, options.tokens, t == 0) for n in (1, 4) for t, text in TEXTS.items()]
                texts = {c: [prompt(rng, c.temperature) for _ in range(c.sequences)] for c in cases}
            about = {"format": form, "threads": threads}
            begun, race = compilations(), Race(runner)
            for case, prompts in texts.items():
                yield about, race.case(case, prompts, options.rounds)
            assert compilations() == begun
            race.close()


def failures(lines: list[dict[str, Any]]) -> list[str]:
    """Lines outside of the bounds."""
    return [
        f"{line['format']}, {line['threads']} threads, {line['sequences']} sequences, {line['text']}: {line['gain']}"
        for line in lines
        if line["gain"] < (GAIN if line["repeats"] else LEAST)
    ]


def markdown(report: dict[str, Any]) -> str:
    m, lines = report["machine"], report["lines"]
    rows = [["model", "threads", "sequences", "what can be foreseen", "plain, tok/s", "drafts, tok/s", "gain",
             "gain in processor time", "tokens a step", "drafts right"]]  # fmt: skip
    for x in lines:
        rows.append([
            x["format"], str(x["threads"]), str(x["sequences"]), x["text"], f"{x['plain_tok_s']:.1f}",
            f"{x['drafts_tok_s']:.1f}", f"{x['gain']:.2f}", f"{x['cpu_gain']:.2f}", f"{x['tokens_a_step']:.2f}",
            f"{x['drafts_right']:.0%}" if x["draft_tokens"] else "–",
        ])  # fmt: skip
    missed = failures(lines)
    return "\n".join([
        "# Speculative decoding by look-up", "",
        f"{m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB, {m['system']}, {m['date']}; Tilewright "
        f"{report['version']}. Made by `benchmarks/llm_speculation.py`, which says what the texts are.", "",
        f"Bounds: at least {GAIN} times where all can be foreseen, at least {LEAST} everywhere. "
        + (f"Outside: {'; '.join(missed)}." if missed else "All are met."), "",
        *grid(rows), "",
        "What steps of more tokens cost, in steps of one, as the engine had measured it at the end:", "",
        *grid([["model", "threads", "2", "4", "8", "16"], *(
            [x["format"], str(x["threads"]), *(f"{v:.2f}" for v in x["costs"].values())]
            for x, y in zip(lines, [*lines[1:], {}], strict=True)
            if (x["format"], x["threads"]) != (y.get("format"), y.get("threads"))
        )]), "",
        f"{sum(x['texts_that_differ'] for x in lines)} of {sum(x['rounds'] for x in lines)} texts were not the same "
        "with drafts: sums are in another order in steps of other sizes.",
    ]) + "\n"  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    trained = all(map(find_spec, ("torch", "transformers", "tokenizers")))
    formats = ["bf16", "int4", *(["glossary"] if trained else [])]
    parser.add_argument("--formats", type=lambda t: t.split(","), default=formats, help=f"default: {','.join(formats)}")
    parser.add_argument("--threads", type=lambda t: [int(n) for n in t.split(",")], default=[1, 2])
    parser.add_argument("--tokens", type=int, default=128, help="of a text (default: 128)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each (default: 2)")
    parser.add_argument("--name", default="llm_speculation", help="name of the result files")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where they go")
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "version": __version__, "lines": []}
    for about, found in races(options):
        report["lines"].append({**about, **found})
        print({n: v for n, v in report["lines"][-1].items() if n not in ("rounds", "repeats", "tokens")}, flush=True)
        options.results.mkdir(parents=True, exist_ok=True)
        write(options.results / f"{options.name}.json", json.dumps(report, indent=1) + "\n")
        write(options.results / f"{options.name}.md", markdown(report))
    return int(bool(failures(report["lines"])))


if __name__ == "__main__":
    sys.exit(main())
