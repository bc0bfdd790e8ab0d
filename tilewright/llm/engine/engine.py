"""Many requests at a time on one compiled model: continuous batching in one thread."""

from __future__ import annotations

import itertools
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from ...support.errors import TilewrightError, UsageError
from ..batch import Runner, StepResult
from ..request import FinishReason, GenerationRequest, Grammar, Sampling
from . import prefix_file, sampler
from .cache import Cache
from .drafts import Drafter
from .grammar import GrammarError, Grammars
from .metrics import Metrics
from .scheduler import Scheduler, StepPart, batch_of
from .sequence import Sequence
from .speculator import Speculator
from .stream import Stream

T = TypeVar("T")


class QueueFull(UsageError):
    """So many requests wait that this one was not taken: try again later."""


class LLMEngine:
    """Serves requests on a `Runner`, several in each step.

    tokenizer: gives `token_bytes(id)` and `eos`; None: no text, only tokens, and no token ends a request but those of
    `stop_tokens`. queue: how many requests may wait. step_tokens: most tokens of a step; fewer make the time between
    two tokens of a text shorter while others' prompts are read. patience: seconds that a point of priority is worth.
    lookup: drafts from a request's own text; shared_lookup: also from texts of other requests; drafter: another source
    (`drafts.DraftModel`); draft_tokens: most tokens of a draft, 0 for none. Drafts never change what is chosen, and are
    as long as pays by what steps have cost so far. start: False leaves the steps to the caller, by `_iterate`.

        with Engine(runner, tokenizer) as engine:
            for piece in engine.submit(Request(tokenizer.encode("Once upon"), Sampling(max_tokens=20))):
                print(piece.text, end="")
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Any = None,
        *,
        queue: int = 256,
        step_tokens: int | None = None,
        patience: float = 10.0,
        lookup: bool = True,
        shared_lookup: bool = False,
        drafter: Drafter | None = None,
        draft_tokens: int = 15,
        start: bool = True,
    ) -> None:
        self.runner, self.tokenizer, self.limits, self.queue = runner, tokenizer, runner.limits, queue
        self.patience = patience
        self.cache = Cache(runner)
        self._metrics = Metrics()
        self._scheduler = Scheduler(self.cache, step_tokens or self.limits.tokens, self._moved)
        self._speculator = Speculator(lookup, shared_lookup, drafter, draft_tokens)
        self._grammars = Grammars(tokenizer, self.limits.vocabulary) if tokenizer is not None else None
        self._special: frozenset[int] = getattr(tokenizer, "special", frozenset())
        self._compilers = ThreadPoolExecutor(1, "tilewright-grammar")
        self._compiling = 0
        self._changed = threading.Condition()
        self._inbox: deque[Sequence] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._numbers = itertools.count()
        self._closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tilewright-engine", daemon=True)
        if start:
            self._thread.start()

    # --- from any thread

    def submit(self, request: GenerationRequest) -> Stream:
        """Take a request. Raises `QueueFull`, and UsageError for one that cannot be served whatever else runs."""
        try:
            limit = self._check(request)
        except UsageError:
            self._metrics.add("requests_refused")
            raise
        sampling, now = request.sampling, time.monotonic()
        eos = frozenset() if self.tokenizer is None or sampling.ignore_eos else frozenset(self.tokenizer.eos)
        sequence = Sequence(
            request,
            key=(now + request.priority * self.patience, next(self._numbers)),
            limit=limit,
            stops=eos | frozenset(sampling.stop_tokens),
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            arrived=now,
        )
        with self._changed:
            if self._closing:
                raise UsageError("the engine is closed")
            if len(self._inbox) + len(self._scheduler.waiting) + self._compiling >= self.queue:
                self._metrics.add("requests_refused")
                raise QueueFull(f"{self.queue} requests wait already", hint="try again later")
            self._metrics.add("requests")
            if sampling.grammar is None:
                self._inbox.append(sequence)
                self._changed.notify_all()
            else:
                self._compiling += 1
                self._compilers.submit(self._compile, sequence, sampling.grammar)
        return Stream(sequence.mailbox, lambda: self._cancel(sequence))

    def _compile(self, sequence: Sequence, grammar: Grammar) -> None:
        """In a thread of its own, as it may take long; a grammar that fails ends its request."""
        error: dict[str, Any] = {}
        try:
            if self._grammars is None:
                raise UsageError("a grammar needs a tokenizer")
            sequence.matcher = self._grammars.compile(grammar)
        except Exception as failed:
            kind = "grammar" if isinstance(failed, GrammarError) else ""
            error = {"error": str(failed), "error_kind": kind}
        with self._changed:
            self._compiling -= 1
            if error:
                self._metrics.add("requests_failed")
            elif not self._closing:
                self._inbox.append(sequence)
                self._changed.notify_all()
                return
        sequence.send("", finish_reason="error" if error else "cancelled", **error)

    def metrics(self) -> dict[str, Any]:
        """Counters (numbers that only grow), what is so now (numbers), and histograms: {"bounds", "counts" (one more:
        what is above), "sum", "count"}."""
        waiting = len(self._inbox) + len(self._scheduler.waiting) + self._compiling
        return {
            **self._metrics.value(),
            "running": len(self._scheduler.running),
            "waiting": waiting,
            "pages": self.cache.pages,
            "pages_used": self.cache.pages - self.cache.available,
            "pages_cached": self.cache.idle,
            "pages_evicted": self.cache.evicted,
            "compilations": _compilations(self.runner),
        }

    def close(self, timeout: float = 10.0) -> None:
        """End: requests that are not done are cancelled, and the thread ends. Raises TilewrightError where a step takes
        longer than `timeout` seconds. May be called again."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is None:  # was never started
            self._end()
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TilewrightError(f"a step of the model did not end within {timeout} s", stage="serve")

    def __enter__(self) -> LLMEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def call(self, function: Callable[[], T], timeout: float | None = None) -> T:
        """Run a function between two steps, in the engine's thread, where cache and runner may be touched."""
        box: list[Any] = []
        done = threading.Event()

        def run() -> None:
            try:
                box.append((function(), None))
            except Exception as error:
                box.append((None, error))
            done.set()

        with self._changed:
            if self._closing:
                raise UsageError("the engine is closed")
            self._calls.append(run)
            self._changed.notify_all()
        while not done.wait(timeout if timeout is not None else 1.0):
            if timeout is not None or not self._thread.is_alive():
                raise TilewrightError("the engine did not answer", stage="serve")
        value, error = box[0]
        if error is not None:
            raise error
        return value

    def save_prefix(self, tokens: Items[int], path: str | os.PathLike[str]) -> None:
        """Write what the model has made of these tokens (their part of the cache), computing it if need be. UsageError
        where the path cannot be written, or the cache is too full to keep them for a moment."""
        tokens, fingerprint = [int(t) for t in tokens], self._fingerprint()
        for _ in range(3):
            if self.call(lambda: prefix_file.save(self.cache, tokens, fingerprint, path)):
                return
            for piece in self.submit(GenerationRequest(tokens, embed=True)):
                if piece.error:
                    raise TilewrightError(piece.error, stage="save")
        raise UsageError(f"the cache is too full to keep {len(tokens)} tokens", stage="save", hint="try again later")

    def load_prefix(self, path: str | os.PathLike[str]) -> list[int]:
        """Read what `save_prefix` wrote; requests that begin with its tokens, which are returned, go on from there.
        PackageError for a damaged file, or one of another model."""
        fingerprint = self._fingerprint()
        return self.call(lambda: prefix_file.load(self.cache, fingerprint, path))

    def _fingerprint(self) -> str:
        found = getattr(self.runner, "fingerprint", None)
        if found is None:
            raise UsageError("this model has no fingerprint, by which a saved prompt would be known as its own")
        return str(found)

    @property
    def drafter(self) -> Drafter | None:
        """The source of drafts beside look-up."""
        return self._speculator.drafter

    def _check(self, request: GenerationRequest) -> int:
        """Whether the request can be served; most tokens of its text."""
        prompt, limits, sampling = request.prompt, self.limits, request.sampling
        if not len(prompt):
            raise UsageError("the prompt is empty", hint="give at least one token")
        ids = np.asarray(prompt)
        if ids.dtype.kind not in "iu" or ids.ndim != 1 or ids.min() < 0 or ids.max() >= limits.vocabulary:
            raise UsageError(f"the prompt's tokens must be whole numbers from 0 to {limits.vocabulary - 1}")
        _check_sampling(sampling, limits.vocabulary)
        room = min(limits.context, limits.pages * limits.page_length)
        wanted = 0 if request.embed else max(1, sampling.max_tokens or 1)
        if len(ids) + wanted > room:
            raise UsageError(
                f"{len(ids)} tokens of prompt and {wanted} of text do not fit: the model is set up for {room} tokens",
                hint="a shorter prompt, a smaller max_tokens, or a model loaded with more context and cache",
            )
        if request.embed:
            return 0
        return room - len(ids) if sampling.max_tokens is None else sampling.max_tokens

    def _moved(self, sequence: Sequence, admitted: bool) -> None:
        """A sequence has got its room, or lost it."""
        if not admitted:
            self._metrics.add("preemptions")
        elif not sequence.generated:
            self._metrics.histograms["queue_seconds"].add(time.monotonic() - sequence.arrived)

    def _cancel(self, sequence: Sequence) -> None:
        with self._changed:
            sequence.cancelled = True
            self._changed.notify_all()

    # --- in the engine's thread

    def _run(self) -> None:
        try:
            while self._iterate():
                pass
        except BaseException as error:  # a fault of the engine itself: nobody may wait for ever
            self._failure = error
            raise
        finally:
            self._end()

    def _iterate(self, wait: bool = True) -> bool:
        """Take what has come, and run a step. False: the engine is to end."""
        with self._changed:
            while wait and not (self._closing or self._inbox or self._calls or self._busy()):
                self._changed.wait()
            arrived, calls = list(self._inbox), list(self._calls)
            self._inbox.clear()
            self._calls.clear()
            for sequence in arrived:
                self._scheduler.add(sequence)
        for call in calls:
            call()
        if self._closing:
            return False
        for s in [*self._scheduler.running, *(s for _, s in self._scheduler.waiting)]:
            if s.cancelled:
                self._finish(s, "cancelled")
        self._step()
        return True

    def _busy(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting)

    def _end(self) -> None:
        with self._changed:
            self._closing = True
            everyone = [*self._inbox, *(s for _, s in self._scheduler.waiting), *self._scheduler.running]
            self._inbox.clear()
            calls = list(self._calls)
        for s in everyone:
            if self._failure is None:
                self._finish(s, "cancelled")
            else:
                s.send("", finish_reason="error", error=f"the engine failed: {self._failure}")
        for call in calls:
            call()
        self._compilers.shutdown(wait=False, cancel_futures=True)

    def _step(self) -> None:
        began = time.monotonic()
        parts = self._scheduler.plan()
        if not parts:
            return
        self._speculator.draft(parts, self._scheduler.step_tokens - sum(p.count for p in parts))
        drafted = time.monotonic()
        for part in parts:
            self._room_for_drafts(part)
        batch = batch_of(parts, self.cache)
        try:
            result = self.runner.step(batch)
        except Exception as error:
            for part in parts:
                self._finish(part.sequence, "error", error=f"the model failed: {error}", valid=False)
            return
        now = time.monotonic()
        self._metrics.add("steps")
        self._metrics.add("step_tokens", len(batch.tokens))
        self._metrics.histograms["step_seconds"].add(now - drafted)
        self._metrics.histograms["tokens_of_a_step"].add(len(batch.tokens))
        self._settle(parts, result, now)
        self._speculator.cost.add(len(batch.tokens), (time.monotonic() - drafted) * 1e3)
        self._metrics.histograms["overhead_seconds"].add(time.monotonic() - now + drafted - began)

    def _room_for_drafts(self, part: StepPart) -> None:
        """Pages and snapshots for the drafts of a part, as many as there are; and snapshots for the rest."""
        value = part.value
        if not part.drafts:
            self.cache.keep_chunk(value, part.count, self._scheduler.boundaries(part))
            return
        length = value.length + part.count
        if not self.cache.reserve(value, length + len(part.drafts)):
            part.drafts = part.drafts[: len(value.table) * self.cache.page_length - length]
        if part.count > 1 and self.cache.hybrid:  # a chunk of a prompt wants its snapshots elsewhere
            part.drafts = []
            self._room_for_drafts(part)
            return
        part.drafts = part.drafts[: max(self.cache.keep_each(value, part.count + len(part.drafts)) - part.count, 0)]

    def _settle(self, parts: list[StepPart], result: StepResult, now: float) -> None:
        """What came out of a step goes to its requests."""
        rows: list[sampler.LogitsRow] = []
        at: list[int] = []
        mine: list[tuple[StepPart, int, int]] = []
        for part in parts:
            s, base = part.sequence, part.value.length + part.count
            begun = len(rows)
            if s.request.sampling.prompt_logprobs is not None and not s.generated:
                self._prompt_logprobs(part, result.logits)
            if part.complete and not s.request.embed:
                try:
                    masks = [None] * (1 + len(part.drafts)) if s.matcher is None else s.matcher.masks(part.drafts)
                except GrammarError as error:
                    self.cache.advance(part.value, s.tokens, base)
                    self._finish(s, "error", error=str(error), error_kind="grammar")
                    continue
                first = part.first + part.rows - 1 - len(part.drafts)
                for i, mask in enumerate(masks):
                    rows.append(sampler.LogitsRow(s, part.drafts[:i], mask))
                    at.append(first + i)
            mine.append((part, begun, len(rows)))
        choices = sampler.choose(result.logits, rows, at)
        for part, first, last in mine:
            if part.complete and part.sequence.request.embed:
                self.cache.advance(part.value, part.sequence.tokens, part.value.length + part.count)
                self._finish(part.sequence, "stop", hidden=np.array(result.hidden[part.first + part.rows - 1]))
            elif part.complete:
                hidden = result.hidden[part.first + part.rows - 1 - len(part.drafts) :]
                self._accept(part, choices[first:last], hidden, now)
            else:
                self._speculator.read(part)
                self.cache.advance(part.value, part.sequence.tokens, part.value.length + part.count)

    def _prompt_logprobs(self, part: StepPart, logits: np.ndarray) -> None:
        s, begin = part.sequence, part.value.length + 1
        for i, token in enumerate(s.tokens[begin : begin + part.count]):
            row = logits[part.first + i]
            s.prompt_logprobs.append(sampler.token_logprob(row, token, s.request.sampling.prompt_logprobs or 0))

    def _accept(self, part: StepPart, choices: list[sampler.Choice], hidden: np.ndarray, now: float) -> None:
        """The tokens of a sequence: those of its draft that were chosen too, and one more."""
        s, base = part.sequence, part.value.length + part.count
        same = next((i for i, (d, c) in enumerate(zip(part.drafts, choices, strict=False)) if d != c.token), None)
        same = min(len(part.drafts), len(choices) - 1) if same is None else same
        self._speculator.verified(part, same, choices[0].token)
        self._metrics.add("draft_tokens", len(part.drafts))
        self._metrics.add("draft_tokens_accepted", same)
        self._speculator.note_hidden(s, hidden[: same + 1])
        text, tokens, logprobs = "", [], []
        error: dict[str, Any] = {}
        ended: tuple[FinishReason, str | int | None] | None = None
        for choice in choices[: same + 1]:
            if choice.error:
                error = {"error": choice.error}
                break
            s.tokens.append(choice.token)
            s.counts[choice.token] = s.counts.get(choice.token, 0) + 1
            tokens.append(choice.token)
            logprobs += [choice.logprob] if choice.logprob else []
            try:
                ended, more = self._read(s, choice.token)
            except GrammarError as failed:
                error = {"error": str(failed), "error_kind": "grammar"}
                break
            text += more
            if ended:
                break
        self.cache.advance(part.value, s.tokens, min(base + same, len(s.tokens)))
        if tokens:
            self._count(s, len(tokens), now)
        if error:
            ended = "error", None
        if ended:
            reason, stop = ended
            self._finish(s, reason, text=text, tokens=tokens, logprobs=tuple(logprobs), stop=stop, **error)
        else:
            s.send(text, tokens, logprobs=tuple(logprobs))

    def _read(self, s: Sequence, token: int) -> tuple[tuple[FinishReason, str | int | None] | None, str]:
        """Whether this token ends the text, and how; the text that it adds. Raises GrammarError."""
        done = s.matcher is not None and s.matcher.take(token)
        if token in s.stops:
            return ("stop", token), s.text.finish()
        text = ""
        silent = token in self._special and s.request.sampling.skip_special_tokens
        if self.tokenizer is not None and token < self.tokenizer.vocabulary and not silent:
            text = s.text.push(self.tokenizer.token_bytes(token))
        if s.text.stopped is not None:
            return ("stop", s.text.stopped), text
        if done:
            return ("stop", None), text + s.text.finish()
        if s.generated >= s.limit:
            return ("length", None), text + s.text.finish()
        return None, text

    def _count(self, s: Sequence, tokens: int, now: float) -> None:
        histograms = self._metrics.histograms
        self._metrics.add("generated_tokens", tokens)
        if not s.first:
            s.first = now
            histograms["time_to_first_token_seconds"].add(now - s.arrived)
            tokens -= 1
        if tokens and s.latest:
            histograms["inter_token_seconds"].add((now - s.latest) / tokens, tokens)
        s.latest = now

    def _finish(self, s: Sequence, reason: FinishReason, text: str = "", valid: bool = True, **more: Any) -> None:
        self._scheduler.remove(s)
        if s.value is not None:
            self.cache.close(s.value, s.tokens if valid else False)
            s.value = None
        self._speculator.finished(s)
        name = {"cancelled": "requests_cancelled", "error": "requests_failed"}.get(reason, "requests_finished")
        self._metrics.add(name)
        self._metrics.add("prompt_tokens", s.prompt)
        self._metrics.add("prompt_tokens_cached", max(s.cached, 0))
        self._metrics.histograms["request_seconds"].add(time.monotonic() - s.arrived)
        if reason == "cancelled":
            text += s.text.finish()
        s.send(text, more.pop("tokens", ()), finish_reason=reason, **more)


def _compilations(runner: Runner) -> int:
    """How many compilations have begun: none while it serves."""
    program = sys.modules.get(f"{__package__.rpartition('.')[0]}.program")
    return getattr(runner, "compilations", program.compilations() if program is not None else 0)


def _check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Raises UsageError for a parameter outside of its range."""
    s = sampling
    ranges = (
        ("max_tokens", s.max_tokens is None or s.max_tokens >= 1, "at least 1"),
        ("temperature", s.temperature >= 0, "at least 0"),
        ("top_k", s.top_k >= 0, "at least 0"),
        ("top_p", 0 < s.top_p <= 1, "above 0, at most 1"),
        ("min_p", 0 <= s.min_p <= 1, "from 0 to 1"),
        ("repetition_penalty", s.repetition_penalty > 0, "above 0"),
        ("seed", s.seed is None or -(2**63) <= s.seed < 2**64, "64 bits"),
        ("logprobs", s.logprobs is None or 0 <= s.logprobs <= vocabulary, "at least 0"),
        ("prompt_logprobs", s.prompt_logprobs is None or 0 <= s.prompt_logprobs <= vocabulary, "at least 0"),
        ("logit_bias", all(0 <= t < vocabulary for t in s.logit_bias), f"for tokens from 0 to {vocabulary - 1}"),
    )
    for name, right, what in ranges:
        if not right:
            raise UsageError(f"{name} is {getattr(s, name)!r}; it must be {what}")


__all__ = ["LLMEngine", "QueueFull"]
