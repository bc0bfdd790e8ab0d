"""Many requests at a time on one compiled model: continuous batching in one thread."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ...support.errors import TilewrightError, UsageError
from ..batch import Result, Runner
from ..request import FinishReason, Request, Sampling
from . import sampler
from .cache import Cache
from .metrics import Metrics
from .scheduler import Part, Scheduler
from .sequence import Sequence
from .stream import Stream

T = TypeVar("T")


class QueueFull(UsageError):
    """So many requests wait that this one was not taken: try again later."""


class Engine:
    """Serves requests on a `Runner`, several in each step.

    tokenizer: gives `token_bytes(id)` and `eos`; None: no text, only tokens, and no token ends a request but those of
    `stop_tokens`. queue: how many requests may wait. step_tokens: most tokens of a step; fewer make the time between
    two tokens of a text shorter while others' prompts are read. patience: seconds that a point of priority is worth.

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
    ) -> None:
        self.runner, self.tokenizer, self.limits, self.queue = runner, tokenizer, runner.limits, queue
        self.patience = patience
        self.cache = Cache(runner)
        self._metrics = Metrics()
        self._scheduler = Scheduler(self.cache, self.limits, step_tokens or self.limits.tokens, self._preempted)
        self._changed = threading.Condition()
        self._inbox: deque[Sequence] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._numbers = itertools.count()
        self._closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tilewright-engine", daemon=True)
        self._thread.start()

    # --- from any thread

    def submit(self, request: Request) -> Stream:
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
            if len(self._inbox) + len(self._scheduler.waiting) >= self.queue:
                self._metrics.add("requests_refused")
                raise QueueFull(f"{self.queue} requests wait already", hint="try again later")
            self._metrics.add("requests")
            self._inbox.append(sequence)
            self._changed.notify_all()
        return Stream(sequence.mailbox, lambda: self._cancel(sequence))

    def metrics(self) -> dict[str, Any]:
        """Counters (numbers that only grow), what is so now (numbers), and histograms: {"bounds", "counts" (one more:
        what is above), "sum", "count"}."""
        waiting = len(self._inbox) + len(self._scheduler.waiting)
        return {
            **self._metrics.value(),
            "running": len(self._scheduler.running),
            "waiting": waiting,
            "pages": self.cache.pages,
            "pages_used": self.cache.pages - self.cache.available,
            "pages_cached": self.cache.idle,
            "pages_evicted": self.cache.evicted,
            "compilations": getattr(self.runner, "compilations", 0),
        }

    def close(self, timeout: float = 10.0) -> None:
        """End: requests that are not done are cancelled, and the thread ends. Raises TilewrightError where a step takes
        longer than `timeout` seconds. May be called again."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TilewrightError(f"a step of the model did not end within {timeout} s", stage="serve")

    def __enter__(self) -> Engine:
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

    def _check(self, request: Request) -> int:
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

    def _cancel(self, sequence: Sequence) -> None:
        with self._changed:
            sequence.cancelled = True
            self._changed.notify_all()

    # --- in the engine's thread

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not (self._closing or self._inbox or self._calls or self._busy()):
                        self._changed.wait()
                    arrived = list(self._inbox)
                    self._inbox.clear()
                    calls = list(self._calls)
                    self._calls.clear()
                    for sequence in arrived:
                        self._scheduler.add(sequence)
                for call in calls:
                    call()
                if self._closing:
                    return
                self._sweep()
                self._step()
        except BaseException as error:  # a fault of the engine itself: nobody may wait for ever
            self._failure = error
            raise
        finally:
            with self._changed:
                self._closing = True
                everyone = [*self._inbox, *(s for _, s in self._scheduler.waiting), *self._scheduler.running]
                calls = list(self._calls)
            for sequence in everyone:
                reason: FinishReason = "cancelled" if self._failure is None else "error"
                self._finish(sequence, reason, error="" if self._failure is None else f"the engine: {self._failure}")
            for call in calls:
                call()

    def _busy(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting)

    def _sweep(self) -> None:
        """End what was cancelled."""
        for s in [*self._scheduler.running, *(s for _, s in self._scheduler.waiting)]:
            if s.cancelled:
                self._finish(s, "cancelled")

    def _preempted(self, sequence: Sequence) -> None:
        self._metrics.add("preemptions")

    def _step(self) -> None:
        parts = self._scheduler.plan()
        if not parts:
            return
        for part in parts:
            value = part.sequence.value
            assert value is not None
            self.cache.keep_chunk(value, part.count, self._scheduler.boundaries(part))
        began = time.monotonic()
        batch = self._scheduler.batch(parts)
        try:
            result = self.runner.step(batch)
        except Exception as error:
            for part in parts:
                self._finish(part.sequence, "error", error=f"the model: {error}", valid=False)
            return
        now = time.monotonic()
        self._metrics.add("steps")
        self._metrics.add("step_tokens", len(batch.tokens))
        self._metrics.histograms["step_seconds"].add(now - began)
        self._metrics.histograms["step_tokens_of_one"].add(len(batch.tokens))
        self._settle(parts, result, now)

    def _settle(self, parts: list[Part], result: Result, now: float) -> None:
        """What came out of a step goes to its requests."""
        rows, at = [], []
        for part in parts:
            if part.rows and not part.sequence.request.embed:
                first = part.first + part.rows - 1 - len(part.drafts)
                for i in range(1 + len(part.drafts)):
                    rows.append(sampler.Row(part.sequence, part.drafts[:i]))
                    at.append(first + i)
        choices = sampler.choose(result.logits[at], rows) if rows else []
        taken = 0
        for part in parts:
            s, value = part.sequence, part.sequence.value
            assert value is not None
            if not part.rows:
                self.cache.advance(value, s.tokens, value.length + part.count)
                continue
            if s.request.embed:
                self.cache.advance(value, s.tokens, value.length + part.count)
                self._finish(s, "stop", hidden=np.array(result.hidden[part.first + part.rows - 1]))
                continue
            mine = choices[taken : taken + 1 + len(part.drafts)]
            taken += len(mine)
            self._accept(part, mine, now)

    def _accept(self, part: Part, choices: list[sampler.Choice], now: float) -> None:
        """The tokens of a sequence: those of its draft that were chosen too, and one more."""
        s, value = part.sequence, part.sequence.value
        assert value is not None
        base = value.length + part.count
        same = next((i for i, d in enumerate(part.drafts) if d != choices[i].token), len(part.drafts))
        text, tokens, logprobs, ended = "", [], [], None
        for choice in choices[: same + 1]:
            s.tokens.append(choice.token)
            s.counts[choice.token] = s.counts.get(choice.token, 0) + 1
            tokens.append(choice.token)
            ended, more = self._read(s, choice.token)
            text += more
            if ended:
                break
        self.cache.advance(value, s.tokens, min(base + same, len(s.tokens)))
        self._count(s, len(tokens), now)
        if ended:
            reason, stop = ended
            self._finish(s, reason, text=text, tokens=tokens, logprobs=tuple(logprobs), stop=stop)
        else:
            s.send(text, tokens, logprobs=tuple(logprobs))

    def _read(self, s: Sequence, token: int) -> tuple[tuple[FinishReason, str | int | None] | None, str]:
        """Whether this token ends the text, and how; the text that it adds."""
        if token in s.stops:
            return ("stop", token), s.text.finish()
        text = s.text.push(self.tokenizer.token_bytes(token)) if self.tokenizer is not None else ""
        if s.text.stopped is not None:
            return ("stop", s.text.stopped), text
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
        name = {"cancelled": "requests_cancelled", "error": "requests_failed"}.get(reason, "requests_finished")
        self._metrics.add(name)
        self._metrics.histograms["request_seconds"].add(time.monotonic() - s.arrived)
        tokens = more.pop("tokens", ())
        s.send(text, tokens, finish_reason=reason, **more)


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


__all__ = ["Engine", "QueueFull"]
