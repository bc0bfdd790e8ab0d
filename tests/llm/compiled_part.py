"""Tiny compiled models for tests of the engine, and what plain decoding says of the tokens that it gave."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace
from functools import cache

import numpy as np
from llm import tiny_models

from tilewright.llm.batch import Batch, ModelLimits, StepResult
from tilewright.llm.engine.sampler import LogitsRow, choose
from tilewright.llm.engine.sequence import Sequence
from tilewright.llm.program import CompiledRunner, ModelPlan, compilations, compile_model
from tilewright.llm.request import GenerationRequest
from tilewright.support.options import Options

PAGE, CONTEXT = 4, 64
#: logits that differ by so much are the same but for the order of sums
ROUNDING = 1e-5


class RunnerPart:
    """A `Runner` that has some of the pages and snapshots of another, and lower limits. raises: steps, counted from 0,
    that fail, and leave something else in the snapshots that they should have written."""

    def __init__(self, runner: CompiledRunner, limits: ModelLimits, page: int = 0, snapshot: int = 0) -> None:
        self.runner, self.limits, self.page, self.snapshot = runner, limits, page, snapshot
        self.steps, self.raises = 0, set[int]()
        self._begun = compilations()

    @property
    def compilations(self) -> int:
        return compilations() - self._begun

    def step(self, batch: Batch) -> StepResult:
        limits = self.limits
        assert len(batch.tokens) <= limits.tokens and len(batch.lengths) <= limits.sequences
        assert batch.lengths.max() <= limits.context
        assert batch.table.max() < limits.pages and batch.slots.max() < limits.pages * PAGE
        moved = {"table": batch.table + np.int32(self.page), "slots": _moved(batch.slots, self.page * PAGE)}
        if batch.initial is not None and batch.keep is not None:
            assert max(batch.initial.max(), batch.keep.max()) < limits.snapshots
            moved |= {n: _moved(getattr(batch, n), self.snapshot) for n in ("initial", "keep")}
        batch = replace(batch, **moved)
        self.steps += 1
        if self.steps - 1 in self.raises:
            if batch.keep is not None and (kept := batch.keep[batch.keep >= 0]).size:
                values = self.runner.read([], kept)
                self.runner.write({n: 2 - 3 * v for n, v in values.items()}, [], kept)
            raise RuntimeError("the fake model fails in this step")
        return self.runner.step(batch)

    def copy(self, pages: Items[tuple[int, int]], snapshots: Items[tuple[int, int]] = ()) -> None:
        p, s = self.page, self.snapshot
        self.runner.copy([(a + p, b + p) for a, b in pages], [(a + s, b + s) for a, b in snapshots])


def _moved(places: np.ndarray, by: int) -> np.ndarray:
    return np.where(places >= 0, places + np.int32(by), places)


class PlainDecoding:
    """Texts one after the other, each in the same pages: its prompt in one step, then token by token."""

    def __init__(self, part: RunnerPart) -> None:
        self.part, self.tokens, self.ties = part, 0, 0
        self.table = np.arange(CONTEXT // PAGE, dtype=np.int32)[None]

    def logits(self, tokens: list[int], first: int) -> np.ndarray:
        """Of the last one of these tokens, of which the first ones have been run."""
        at = np.arange(first, len(tokens), dtype=np.int32)
        count, recurrent = len(at), self.part.limits.snapshots > 0
        keep = np.full(count, -1, np.int32)
        keep[-1] = 0
        batch = Batch(
            np.array(tokens[first:], np.int32), at, at, np.array([0, count], np.int32),
            np.array([len(tokens)], np.int32), self.table[:, : -(-len(tokens) // PAGE)],
            np.array([count - 1], np.int32), np.array([0 if first else -1], np.int32) if recurrent else None,
            keep if recurrent else None,
        )  # fmt: skip
        return self.part.step(batch).logits

    def says(self, request: GenerationRequest, got: list[int], eos: frozenset[int], ended: bool) -> bool:
        """Whether these tokens are those of plain decoding; all of them, unless it `ended` before. Of two tokens that
        are as good but for rounding, either is right."""
        s = Sequence(request, (0.0, 0), request.sampling.max_tokens or 1, eos, request.sampling.seed or 0, 0.0)
        done, row = 0, LogitsRow(s, [])
        for token in got:
            logits = self.logits(s.tokens, done).copy()
            done = len(s.tokens)
            chosen = choose(logits, [row], [0])[0].token
            self.tokens += 1
            if chosen != token:
                logits[0, token] += ROUNDING
                logits[0, chosen] -= ROUNDING
                self.ties += 1
                if choose(logits, [row], [0])[0].token != token:
                    return False
            s.tokens.append(token)
            s.counts[token] = s.counts.get(token, 0) + 1
        return ended or s.generated == s.limit or got[-1] in eos


class TinyModel:
    """A compiled model, its pages and snapshots divided among an engine, a draft model and plain decoding."""

    ENGINE, DRAFTS = 32, 64  # pages

    def __init__(self, kind: str) -> None:
        hybrid = kind == "hybrid"
        plan = ModelPlan(
            CONTEXT, 6, 64, PAGE, pages=self.ENGINE + self.DRAFTS + CONTEXT // PAGE, snapshots=25, dtype="f32",
            precision="f32",
        )  # fmt: skip
        model, weights = tiny_models.hybrid(experts=False) if hybrid else tiny_models.dense()
        self.runner = compile_model(model, weights, plan, Options.of(threads=1))
        self.drafts = tiny_model("dense") if hybrid else self
        one = ModelLimits(model.vocabulary, PAGE, CONTEXT // PAGE, int(hybrid), 64, 1, CONTEXT)
        self.plain = PlainDecoding(RunnerPart(self.runner, one, self.ENGINE + self.DRAFTS, 24))

    def part(self, **limits: int) -> RunnerPart:
        return RunnerPart(self.runner, ModelLimits(tiny_models.VOCABULARY, PAGE, **limits))

    def draft_part(self, pages: int) -> RunnerPart:
        limits = ModelLimits(tiny_models.VOCABULARY, PAGE, pages, 0, 32, 6, CONTEXT)
        return RunnerPart(self.drafts.runner, limits, self.ENGINE)


@cache
def tiny_model(kind: str) -> TinyModel:
    """The dense or the hybrid one; compiled once, as it takes some seconds."""
    return TinyModel(kind)
