"""Tokenizers: text to tokens and back, the bytes of a token, and the chat template, of a Hugging Face folder or a GGUF
file. The work is done by the package `tokenizers`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..support.errors import ModelError, UsageError

if TYPE_CHECKING:
    import tokenizers

    from .chat_template import ChatTemplate


#: sampling parameters that a model may come with, and what they may be
SAMPLING = {
    "temperature": (0.0, 5.0),
    "top_k": (0, 1 << 31),
    "top_p": (1e-3, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}


@dataclass(eq=False)
class Tokenizer:
    """The tokenizer of a model. Made by `load_tokenizer`.

    hf: the tokenizer of the package `tokenizers`.
    tokens: special tokens by the names that templates use, as ``bos_token``.
    eos: tokens that end a text.
    templates: chat templates by name; "default", and "tool_use" for requests with tools where there is one.
    add_bos, add_eos: whether a prompt begins, ends with such a token; None: as hf has it. (Of tokenizer_config.json
    they are not read where there is a tokenizer.json: `transformers` 5 goes by that alone.)
    sampling: how the model's makers would have tokens chosen, by the names of `Sampling`.

    >>> from tokenizers import Tokenizer as HF, models
    >>> t = Tokenizer(HF(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])), {}, frozenset())
    >>> t.encode("abb"), t.decode([2, 1]), t.token_bytes(2), t.vocabulary
    ([2, 1], 'ab b', b'ab', 3)
    """

    hf: tokenizers.Tokenizer
    tokens: Mapping[str, str]
    eos: frozenset[int]
    templates: Mapping[str, str] = field(default_factory=dict)
    add_bos: bool | None = None
    add_eos: bool | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def bos(self) -> int | None:
        """The token that begins a text."""
        return self._id("bos_token")

    @cached_property
    def vocabulary(self) -> int:
        """One more than the highest token; a model's logits may be wider."""
        return max(self.hf.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def added(self) -> dict[int, str]:
        """Tokens that are found in text before all others, special ones among them."""
        return {i: t.content for i, t in self.hf.get_added_tokens_decoder().items()}

    @cached_property
    def special(self) -> frozenset[int]:
        """Tokens that `decode` leaves out."""
        return frozenset(i for i, t in self.hf.get_added_tokens_decoder().items() if t.special)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Tokens of a text; special: with those that a prompt of this model begins (and ends) with, which the text of
        `chat` has already. Special tokens that are written in the text are taken as such."""
        text = text.encode("utf-8", "replace").decode()  # halves of surrogate pairs, which JSON can carry
        if self.add_bos is None and self.add_eos is None:
            return self.hf.encode(text, add_special_tokens=special).ids
        ids = self.hf.encode(text, add_special_tokens=False).ids
        before = [self.bos] if special and self.add_bos and self.bos is not None else []
        end = self._id("eos_token") if special and self.add_eos else None
        return [*before, *ids, *([] if end is None else [end])]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        return self.hf.decode(list(ids), skip_special_tokens=True)

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to a text: part of a character, too. Special tokens have their name; numbers that are no
        token have nothing."""
        made = self._bytes.get(token)
        if made is None:
            made = self._bytes[token] = self._token_bytes(token)
        return made

    @cached_property
    def strips_space(self) -> bool:
        """Whether a text loses the space that its first token begins with."""
        return any(
            step["type"] == "Strip" or (step["type"] == "Metaspace" and step.get("prepend_scheme") != "never")
            for step in self._decoders
        )

    @cached_property
    def has_template(self) -> bool:
        return "default" in self.templates

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        template: str | None = None,
        **extra: Any,
    ) -> str:
        """The text of a prompt that asks for the next message.

        messages, tools: as OpenAI's API has them. extra: variables of the template, as ``enable_thinking=False``.
        template: the name of one of `templates`. Raises UsageError for messages that the template does not take.
        """
        name = template or ("tool_use" if tools and "tool_use" in self.templates else "default")
        if name not in self.templates:
            known = ", ".join(sorted(self.templates))
            what = f"no chat template {name!r}" if known else "no chat template"
            raise UsageError(
                f"this model has {what}",
                hint=f"it has: {known}" if known else "ask for a completion of plain text, or give a chat template",
            )
        return self._template(name).render(
            messages=[_message(m) for m in messages],
            tools=[dict(t) for t in tools] if tools else None,
            documents=extra.pop("documents", None),
            add_generation_prompt=add_generation_prompt,
            **extra,
        )

    @cached_property
    def _made(self) -> dict[str, ChatTemplate]:
        return {}

    def _template(self, name: str) -> ChatTemplate:
        from .chat_template import ChatTemplate

        if name not in self._made:
            self._made[name] = ChatTemplate(self.templates[name], self.tokens)
        return self._made[name]

    def _id(self, name: str) -> int | None:
        text = self.tokens.get(name)
        return None if text is None else self.hf.token_to_id(text)

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        return {}

    @cached_property
    def _decoders(self) -> list[dict[str, Any]]:
        """What hf does to tokens that it decodes, as in tokenizer.json."""
        state = json.loads(self.hf.to_str()) if self.hf.decoder is None else {"decoder": _state(self.hf.decoder)}
        return list(_steps(state["decoder"] or state.get("pre_tokenizer")))

    def _token_bytes(self, token: int) -> bytes:
        added = token in self.added
        text = self.added[token] if added else self.hf.id_to_token(token)
        if text is None:
            return b""
        for step in self._decoders:
            kind = step["type"]
            if added and kind not in ("Replace", "Metaspace"):
                continue
            if kind == "ByteLevel":
                return b"".join(_BYTE_OF[c] if c in _BYTE_OF else c.encode() for c in text)
            if kind == "ByteFallback" and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                return bytes([int(text[3:5], 16)])
            if kind == "Replace" and "String" in step["pattern"]:
                text = text.replace(step["pattern"]["String"], step["content"])
            elif kind == "Metaspace":
                text = text.replace(step["replacement"], " ")
            elif kind == "WordPiece":
                prefix = step["prefix"]
                text = text[len(prefix) :] if text.startswith(prefix) else " " + text
            elif kind == "BPEDecoder":
                text = text.replace(step["suffix"], " ")
        return text.encode()


def load_tokenizer(path: str | Path, chat_template: str | None = None) -> Tokenizer:
    """The tokenizer of a Hugging Face folder, of a folder that `quantize-llm` wrote, or of a GGUF file.

    chat_template: a template's text, in place of the model's own. Raises ModelError for missing or damaged files.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        from .gguf.tokenizer import gguf_tokenizer

        made = gguf_tokenizer(path)
    else:
        made = _from_folder(path)
    if chat_template is not None:
        made.templates = {"default": chat_template}
    return made


def _from_folder(folder: Path) -> Tokenizer:
    if not folder.is_dir():
        raise UsageError(f"no folder {str(folder)!r}", hint="give the folder of a Hugging Face model, or a .gguf file")
    config = _json(folder / "tokenizer_config.json")
    hf = _hf_tokenizer(folder, config)
    hf.no_truncation()
    hf.no_padding()
    named = {**_json(folder / "special_tokens_map.json"), **config}
    if isinstance(config.get("extra_special_tokens"), dict):
        named |= config["extra_special_tokens"]
    tokens = {k: text for k, v in named.items() if k.endswith("_token") and (text := _content(v)) is not None}
    said = sampling_of(_json(folder / "generation_config.json"))
    return Tokenizer(hf, tokens, _eos(folder, hf, tokens), _templates(folder, config), sampling=said)


def sampling_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters that a generation_config.json gives; those without a meaning are left out.

    >>> sampling_of({"temperature": 0.6, "top_k": 20, "top_p": 7, "do_sample": True})
    {'temperature': 0.6, 'top_k': 20}
    """
    numbers = {n: v for n, v in said.items() if n in SAMPLING and type(v) in (int, float)}
    good = {n: v for n, v in numbers.items() if SAMPLING[n][0] <= v <= SAMPLING[n][1]}
    return {n: int(v) if n == "top_k" else float(v) for n, v in good.items()}


def _hf_tokenizer(folder: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    from tokenizers import AddedToken, Tokenizer

    path = folder / "tokenizer.json"
    if path.exists():
        try:
            hf = Tokenizer.from_file(str(path))
        except Exception as error:  # the package has no type of its own
            raise ModelError(f"{str(path)!r} cannot be read: {error}") from error
    else:
        from .tokenizer_files import tokenizer_of_files

        found = tokenizer_of_files(folder, config)
        if found is None:
            raise ModelError(
                f"no tokenizer in {str(folder)!r}",
                hint="tokenizer.json, tokenizer.model, or vocab.json with merges.txt: `transformers` writes the first",
            )
        hf = found
    known = hf.get_vocab(with_added_tokens=True)
    for _, token in sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        if token["content"] not in known:
            hf.add_tokens([AddedToken(**{k: v for k, v in token.items() if k != "__type"})])
    return hf


def _eos(folder: Path, hf: tokenizers.Tokenizer, tokens: Mapping[str, str]) -> frozenset[int]:
    """The tokens that end a text: what generation_config.json says (config.json where there is none), and the
    tokenizer's own."""
    said = _json(folder / "generation_config.json").get("eos_token_id")
    if said is None:
        said = _json(folder / "config.json").get("eos_token_id")
    ids = set(said) if isinstance(said, list) else {said}
    if "eos_token" in tokens:
        ids.add(hf.token_to_id(tokens["eos_token"]))
    return frozenset(i for i in ids if i is not None)


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    said = config.get("chat_template")
    made = {t["name"]: t["template"] for t in said} if isinstance(said, list) else {"default": said} if said else {}
    old = _json(folder / "chat_template.json").get("chat_template")
    if isinstance(old, str):
        made["default"] = old
    files = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    made |= {f.stem: f.read_text(encoding="utf-8") for f in files}
    if (folder / "chat_template.jinja").exists():
        made["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return made


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no file."""
    if not path.exists():
        return {}
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{str(path)!r} is no JSON: {error}") from error
    if not isinstance(made, dict):
        raise ModelError(f"{str(path)!r} holds no JSON object")
    return made


def _content(token: Any) -> str | None:
    """The text of a token, which files give alone or with its properties."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: content as one text, arguments of tool calls as objects."""
    made = dict(message)
    content = made.get("content")
    if isinstance(content, list | tuple):
        made["content"] = "\n".join(_part(p) for p in content)
    if made.get("tool_calls"):
        made["tool_calls"] = [_tool_call(dict(call)) for call in made["tool_calls"]]
    return made


def _part(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise UsageError(f"a message holds a part of type {kind!r}", hint="this model reads text only")
    return text


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            return call
        if isinstance(arguments, dict):
            call["function"] = {**function, "arguments": arguments}
    return call


def _state(decoder: tokenizers.decoders.Decoder) -> Any:
    return json.loads(decoder.__getstate__())


def _steps(decoder: dict[str, Any] | None) -> Iterable[dict[str, Any]]:
    if decoder is not None and decoder["type"] == "Sequence":
        for step in decoder.get("decoders") or decoder.get("pretokenizers") or ():
            yield from _steps(step)
    elif decoder is not None:
        yield decoder


def _byte_characters() -> dict[str, bytes]:
    """Of the printable characters that byte-level tokenizers write bytes as, the bytes: those of Latin 1 stand for
    themselves, the others are numbered from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): bytes([b]) for b in plain} | {chr(256 + i): bytes([b]) for i, b in enumerate(others)}


_BYTE_OF = _byte_characters()

__all__ = ["SAMPLING", "Tokenizer", "load_tokenizer", "sampling_of"]
