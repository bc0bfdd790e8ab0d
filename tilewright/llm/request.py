"""What is asked of a language model, and what comes back: requests, sampling parameters, pieces of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. Names and meanings are those of OpenAI's API and of vLLM.

    temperature: 0 is greedy. top_k: 0 is all. top_p, min_p: parts of the probability. repetition_penalty: divides
    positive logits of tokens of prompt and text, multiplies negative ones. presence_penalty, frequency_penalty: are
    subtracted from logits of tokens of the text. logit_bias: is added, by token. seed: of this request alone; its
    tokens then do not depend on other requests.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True  # False: their names are in the text
    logprobs: int | None = None  # how many alternatives; 0: of the chosen token alone
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True)
class Grammar:
    """What the text must be. kind: "json_schema" (text of a schema), "json_object" (any), "regex", "lark" or
    "choice" (a JSON list of texts)."""

    kind: Literal["json_schema", "json_object", "regex", "lark", "choice"]
    text: str = ""


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt as token ids, and how to go on. priority: a lower one goes first. n is by several requests, whose
    prompts share their cache."""

    prompt: Sequence[int]
    sampling: Sampling = Sampling()
    priority: int = 0
    embed: bool = False  # no text: the hidden state of the last token
    name: str = ""


@dataclass(frozen=True)
class TokenLogprob:
    """The logarithm of a token's probability before temperature and penalties, and the most probable alternatives."""

    token: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True)
class TextPiece:
    """What a request has got since the piece before. text is whole characters; what may be part of a stop string is
    held back. The last piece has a finish_reason."""

    text: str
    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprob] = ()
    finish_reason: FinishReason | None = None
    stop: str | int | None = None  # the string or token that ended it
    error: str = ""
    error_kind: Literal["", "grammar"] = ""  # grammar: it is in what was asked, not in the model
    hidden: Any = None  # f32 [hidden] for `Request.embed`
    cached: int = 0  # tokens of the prompt that were in the cache
    prompt_logprobs: Sequence[TokenLogprob] = ()  # of the prompt's tokens from the second on, in the first piece


__all__ = ["FinishReason", "Grammar", "TextPiece", "GenerationRequest", "Sampling", "TokenLogprob"]
