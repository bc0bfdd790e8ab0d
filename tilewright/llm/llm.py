"""A language model in Python: text in, text out.

import tilewright as tw

with tw.LLM("SmolLM2-135M-Instruct") as llm:
    print(llm.chat([{"role": "user", "content": "Name a river."}]))
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast, overload

import numpy as np

from ..support import progress
from ..support.errors import TilewrightError, UsageError
from ..support.options import get
from .batch import Runner
from .engine.drafts import DraftModel
from .engine.engine import LLMEngine, QueueFull
from .engine.stream import Stream
from .request import FinishReason, GenerationRequest, Sampling, TextPiece, TokenLogprob

#: a text or its tokens
Prompt = str | Sequence[int]
Message = Mapping[str, Any]
#: of `LLM.generate` and `LLM.chat`, unless others are given
DEFAULT = Sampling(max_tokens=256)
T = TypeVar("T")


@dataclass(frozen=True)
class Completion:
    """The text of one prompt; `str` of it is the text. Fields as in `TextPiece`; prompt: how many tokens it had."""

    text: str
    tokens: Sequence[int]
    finish_reason: FinishReason
    prompt: int
    cached: int
    logprobs: Sequence[TokenLogprob] = ()
    prompt_logprobs: Sequence[TokenLogprob] = ()
    stop: str | int | None = None

    def __str__(self) -> str:
        return self.text


class LLM:
    """A model with its tokenizer and an engine that serves many requests at a time.

    path: a Hugging Face folder, a GGUF file, or a package of `tilewright quantize-llm`. context: most tokens of a
    prompt and its text. memory: bytes of the cache (GiB: ``memory=2 << 30``); without it four texts of full length.
    draft: path of a small model of the same vocabulary that proposes tokens. show: a progress bar on a terminal while
    the model is loaded and compiled. engine: options of `LLMEngine`. Others, as ``target``, ``threads``,
    ``cache_dtype``, ``sequences``, ``precision``, are those of `program.load_model`.

    Errors: those of `load_model`, and UsageError for a request that does not fit.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        context: int | None = None,
        memory: int | None = None,
        draft: str | os.PathLike[str] | None = None,
        chat_template: str | None = None,
        show: bool = True,
        engine: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        from .program import load_model
        from .tokenizer import load_tokenizer

        if context is not None:
            options["context"] = context
        tokenizer = load_tokenizer(os.fspath(path), chat_template)
        if memory is not None:
            options["cache_tokens"] = _tokens_of(path, memory, options)
        with loading_bar(os.path.basename(os.fspath(path)), show) as hook:
            runner = load_model(path, progress=hook, **options)
        extra: dict[str, Any] = dict(engine or {})
        if draft is not None:
            with loading_bar(os.path.basename(os.fspath(draft)), show) as hook:
                small = load_model(draft, progress=hook, **options)
            if small.limits.vocabulary != runner.limits.vocabulary:
                raise UsageError(f"the draft model {draft} has another vocabulary than {path}")
            extra["drafter"] = DraftModel(small)
        self._use(runner, tokenizer, extra)

    @classmethod
    def of(cls, runner: Runner, tokenizer: Any, **engine: Any) -> LLM:
        """From a model that is loaded. engine: options of `LLMEngine`."""
        made = cls.__new__(cls)
        made._use(runner, tokenizer, engine)
        return made

    def _use(self, runner: Runner, tokenizer: Any, options: Mapping[str, Any]) -> None:
        self.runner, self.tokenizer = runner, tokenizer
        self.engine = LLMEngine(runner, tokenizer, **options)
        #: of requests without one: what the model comes with (`Tokenizer.sampling`), and 256 tokens
        self.sampling = replace(DEFAULT, **getattr(tokenizer, "sampling", {}))

    @overload
    def generate(self, prompts: str, sampling: Sampling | Sequence[Sampling] | None = None) -> Completion: ...  # type: ignore[overload-overlap]
    @overload
    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling | Sequence[Sampling] | None = None
    ) -> list[Completion]: ...
    def generate(
        self, prompts: str | Sequence[Prompt], sampling: Sampling | Sequence[Sampling] | None = None
    ) -> Completion | list[Completion]:
        """Texts that go on from these prompts, which are served together; one for a text, a list for a list. sampling:
        of all, or one for each; None: the model's own (`sampling`). TilewrightError where one fails."""
        if isinstance(prompts, str):
            return self.generate([prompts], sampling)[0]
        sampling = self.sampling if sampling is None else sampling
        each = [sampling] * len(prompts) if isinstance(sampling, Sampling) else list(sampling)
        if len(each) != len(prompts):
            raise UsageError(f"{len(prompts)} prompts and {len(each)} sampling parameters")
        requests = [GenerationRequest(self._tokens(p), s) for p, s in zip(prompts, each, strict=True)]
        return self._served(requests, _completion)

    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template: Any,
    ) -> Completion:
        """The next message, by the model's chat template. template: variables of it, as ``enable_thinking=False``."""
        request = GenerationRequest(self._chat_tokens(messages, tools, template), sampling or self.sampling)
        return self._served([request], _completion)[0]

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling: Sampling | None = None,
        *,
        priority: int = 0,
        **template: Any,
    ) -> Stream:
        """Pieces of a text or, for messages, of the next message, as they come: ``for piece in ...`` or ``async for``.
        Letting go of the stream cancels it."""
        if not isinstance(prompt, str) and len(prompt) and isinstance(prompt[0], Mapping):
            messages = cast(Sequence[Message], prompt)
            tokens: Sequence[int] = self._chat_tokens(messages, template.pop("tools", None), template)
        else:
            tokens = self._tokens(cast(Prompt, prompt))
        return self.engine.submit(GenerationRequest(tokens, sampling or self.sampling, priority))

    def embed(self, texts: str | Sequence[Prompt]) -> np.ndarray:
        """The hidden state after the last token: f32 [hidden] of a text, [n, hidden] of a list."""
        each = [texts] if isinstance(texts, str) else texts
        found = self._served(
            [GenerationRequest(self._tokens(t), embed=True) for t in each], lambda r, pieces: pieces[-1].hidden
        )
        return np.asarray(found[0] if isinstance(texts, str) else np.stack(found))

    def save_prefix(self, prompt: Prompt, path: str | os.PathLike[str]) -> None:
        """Keep what the model has made of the beginning of a prompt, for `load_prefix`."""
        self.engine.save_prefix(self._tokens(prompt), path)

    def load_prefix(self, path: str | os.PathLike[str]) -> list[int]:
        """Prompts that begin like the one that was saved go on from there; its tokens."""
        return self.engine.load_prefix(path)

    def close(self) -> None:
        """End the engine and the model's threads; what runs is cancelled."""
        self.engine.close()
        drafter = self.engine.drafter
        for runner in (self.runner, getattr(drafter, "runner", None)):
            if (end := getattr(runner, "close", None)) is not None:
                end()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _tokens(self, prompt: Prompt) -> Sequence[int]:
        return self.tokenizer.encode(prompt, special=True) if isinstance(prompt, str) else prompt

    def _chat_tokens(self, messages: Sequence[Message], tools: Any, template: Mapping[str, Any]) -> list[int]:
        return self.tokenizer.encode(self.tokenizer.chat(messages, tools, **template))

    def _served(
        self, requests: Sequence[GenerationRequest], take: Callable[[GenerationRequest, list[TextPiece]], T]
    ) -> list[T]:
        """What comes of requests, more of them than the engine lets wait too."""
        streams: deque[tuple[GenerationRequest, Stream]] = deque()
        done: list[T] = []

        def finish() -> None:
            request, stream = streams.popleft()
            pieces = list(stream)
            if pieces[-1].finish_reason == "error":
                raise TilewrightError(pieces[-1].error, stage="generate")
            done.append(take(request, pieces))

        for request in requests:
            while True:
                try:
                    streams.append((request, self.engine.submit(request)))
                    break
                except QueueFull:
                    if not streams:
                        raise
                    finish()
        while streams:
            finish()
        return done


def _completion(request: GenerationRequest, pieces: list[TextPiece]) -> Completion:
    last = pieces[-1]
    assert last.finish_reason is not None
    return Completion(
        "".join(p.text for p in pieces),
        tuple(t for p in pieces for t in p.tokens),
        last.finish_reason,
        len(request.prompt),
        last.cached,
        tuple(e for p in pieces for e in p.logprobs),
        pieces[0].prompt_logprobs,
        last.stop,
    )


def _tokens_of(path: str | os.PathLike[str], memory: int, options: Mapping[str, Any]) -> int:
    """Positions of the cache that so many bytes hold, beside the snapshots."""
    from .program import ModelPlan, source_of

    source = source_of(path)
    if source is None:
        raise UsageError("a package's cache has the size that it was made with", hint="leave out memory")
    known = {k: options[k] for k in ("context", "sequences", "page_length", "snapshots") if k in options}
    plan = replace(ModelPlan(**known, dtype=options.get("cache_dtype", "bf16")), pages=1)
    model = source.read()[0]
    snapshots = set(model.snapshots(plan.pool))
    sizes = {name: t.nbytes for name, t in model.states(plan.pool).items()}
    left = memory - sum(n for name, n in sizes.items() if name in snapshots)
    page = sum(n for name, n in sizes.items() if name not in snapshots)
    if left < page:
        raise UsageError(f"{memory} bytes of cache are less than one page of {page} and the snapshots")
    return left // max(page, 1) * plan.page_length


@contextmanager
def loading_bar(name: str, show: bool) -> Iterator[Callable[[str, float], None]]:
    """A progress bar of loading on the terminal, where there is one."""

    if not (
        show and progress.allowed and get("TILEWRIGHT_PROGRESS") and sys.stderr is not None and sys.stderr.isatty()
    ):
        yield lambda stage, part: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=1.0)
        progress.allowed = False  # the compilation's own line
        try:
            yield lambda stage, part: bar.update(task, completed=part, description=f"{name}: {stage}")
        finally:
            progress.allowed = True


__all__ = ["LLM", "Completion", "loading_bar"]
