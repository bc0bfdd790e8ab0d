"""The tokenizer in a GGUF file: byte pairs ("gpt2") and SentencePiece's pairs with scores ("llama"), as tokenizers of
the package `tokenizers` that give the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...support.errors import ModelError, UnsupportedError
from ..tokenizer import Tokenizer, sampling_of
from .reader import GgufFile, read_gguf

if TYPE_CHECKING:
    import tokenizers

# types of tokens
NORMAL, CONTROL, USER, BYTE = 1, 3, 4, 6
#: what SentencePiece writes for a space
SPACE = "▁"

_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = _SHORT + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_GPT4 = rf"(?i:{_SHORT})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_TAIL}"
_QWEN2 = _GPT4.replace("{1,3}", "")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = [rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}{a}{_LOWER}{b}" for a, b in ("*+", "+*")]
_TEKKEN = "|".join([*_CASES, r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"]) + _TAIL
_GPT4O = "|".join([*(f"{c}(?i:{_SHORT})?" for c in _CASES), r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"]) + _TAIL
_LIST = r" ?[^(\s|.,!?…。，、।۔،)]+"
_MARKS = [
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
]

#: names of ways to cut text into words, and patterns that cut one after the other
_WAYS: tuple[tuple[str, list[str]], ...] = (
    ("gpt-2 phi-2 mpt olmo jais trillion exaone4 roberta-bpe gigachat", [_GPT2]),
    ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe chatglm-bpe glm4", [_GPT4]),
    ("qwen2 stablelm2 deepseek-r1-qwen megrez hunyuan solar-open grok-2", [_QWEN2]),
    ("qwen35", [_QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")]),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b", [r"\p{N}", _GPT2]),
    ("poro-chat bloom gpt3-finnish", [_LIST]),
    ("viking", [_LIST, r"\p{N}"]),
    ("tekken", [_TEKKEN]),
    ("gpt-4o llama4 kanana2", [_GPT4O]),
    ("falcon", [r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"]),
    ("deepseek-llm", [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}+"]),
    ("deepseek-coder", [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"]),
    ("deepseek-v3", [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", "|".join(_MARKS) + _TAIL]),
    ("default", [r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"]),
)
PATTERNS = {name: patterns for names, patterns in _WAYS for name in names.split()}
#: those that begin a text with a token unless the file says otherwise, and take words whole that are tokens
BEGIN = {"llama-bpe", "llama3", "llama-v3", "tekken", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}
#: sampling parameters by our names -> GGUF's
SAMPLED = {
    "temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "repetition_penalty": "penalty_repeat",
}  # fmt: skip
#: those whose models compose characters first
COMPOSED = {"qwen2", "qwen35"}
#: texts of control tokens that end an answer, which files do not always say
END = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<EOT>",
    "<|return|>", "<turn|>", "<｜end▁of▁sentence｜>", "[EOT]", "[EOS]", "<|END_OF_TURN_TOKEN|>",
}  # fmt: skip


def gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file. ModelError if it has none; UnsupportedError for kinds that are not known."""
    return tokenizer_of(read_gguf(path, tensors=False))


def tokenizer_of(file: GgufFile) -> Tokenizer:
    """As `gguf_tokenizer`, of a file that is read."""
    get, where = file.get, repr(str(file.path))
    kind, texts = get("tokenizer.ggml.model"), get("tokenizer.ggml.tokens")
    if not texts or kind in (None, "none", "no_vocab"):
        raise ModelError(
            f"{where} has no tokenizer", stage="import", hint="convert the model again, with its tokenizer"
        )
    types = np.asarray(get("tokenizer.ggml.token_type", [NORMAL] * len(texts)))
    if len(types) != len(texts):
        raise ModelError(f"{where} has {len(texts)} tokens and {len(types)} types of tokens", stage="import")
    pre = str(get("tokenizer.ggml.pre", "default"))
    if kind == "gpt2":
        hf = byte_pairs(texts, get("tokenizer.ggml.merges") or [], pre)
        begin = pre in BEGIN
    elif kind == "llama":
        scores = np.asarray(get("tokenizer.ggml.scores", np.zeros(0)), np.float64)
        if len(scores) != len(texts):
            raise ModelError(f"{where} has {len(texts)} tokens and {len(scores)} scores", stage="import")
        prefix = bool(get("tokenizer.ggml.add_space_prefix", True))
        hf, begin = pieces(texts, types, scores, get("tokenizer.ggml.unknown_token_id", 0), prefix), True
    else:
        raise UnsupportedError(
            f"{where} has a tokenizer of the kind {kind!r}", stage="import", hint="kinds that are read: gpt2, llama"
        )
    _add_tokens(file, hf, texts, types)
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator"}
    ids = {name: get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    tokens = {f"{name}_token": texts[i] for name, i in ids.items() if i is not None and i < len(texts)}
    ends = {get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")} - {None}
    ends |= {i for i in np.flatnonzero(types == CONTROL).tolist() if texts[i] in END}
    add_bos, add_eos = bool(get("tokenizer.ggml.add_bos_token", begin)), get("tokenizer.ggml.add_eos_token", False)
    said = sampling_of({name: get(f"general.sampling.{key}") for name, key in SAMPLED.items()})
    return Tokenizer(hf, tokens, frozenset(ends), _templates(file), add_bos, bool(add_eos), said)


def byte_pairs(texts: Sequence[str], merges: Sequence[str], pre: str) -> tokenizers.Tokenizer:
    """Byte pairs over words that are cut in a way of `PATTERNS`; merges: "left right" each."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    if pre not in PATTERNS:
        raise UnsupportedError(
            f"text is cut into words in a way that is not known: {pre!r} (tokenizer.ggml.pre)",
            stage="import",
            hint=f"known: {', '.join(sorted(PATTERNS))}; the Hugging Face folder of the model can be used instead",
        )
    vocabulary = {t: i for i, t in enumerate(texts)}
    pairs = [(left, right) for left, _, right in (m.partition(" ") for m in merges)]
    known = [p for p in pairs if p[0] in vocabulary and p[1] in vocabulary and p[0] + p[1] in vocabulary]
    hf = Tokenizer(models.BPE(vocabulary, known, ignore_merges=pre in BEGIN))
    if pre in COMPOSED:
        hf.normalizer = normalizers.NFC()
    cuts: list[Any] = [pre_tokenizers.Split(Regex(p), "isolated") for p in PATTERNS[pre]]
    hf.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    hf.decoder = decoders.ByteLevel()
    return hf


def pieces(
    texts: Sequence[str], types: np.ndarray, scores: np.ndarray, unknown: int, prefix: bool
) -> tokenizers.Tokenizer:
    """SentencePiece joins the pair whose joined piece has the highest score: as merges, in the order of scores. types:
    SentencePiece's own, of each text. prefix: whether a text begins with a space."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = {t: i for i, t in enumerate(texts)}
    plain = {texts[i] for i in np.flatnonzero(types == NORMAL).tolist()}
    order = np.lexsort((np.arange(len(texts)), -scores)).tolist()
    merges = [
        (text[:at], text[at:])
        for text in (texts[i] for i in order)
        if text in plain
        for at in range(1, len(text))
        if text[:at] in plain and text[at:] in plain
    ]
    fallback = bool((types == BYTE).any())
    hf = Tokenizer(models.BPE(vocabulary, merges, unk_token=texts[unknown], fuse_unk=True, byte_fallback=fallback))
    before = [normalizers.Prepend(SPACE)] if prefix else []
    hf.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", SPACE)])
    after = [decoders.Strip(" ", 1, 0)] if prefix else []
    hf.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after])
    return hf


def _add_tokens(file: GgufFile, hf: tokenizers.Tokenizer, texts: Sequence[str], types: np.ndarray) -> None:
    """Tokens that are found in text before all others."""
    from tokenizers import AddedToken

    # Phi 3 takes the white space behind its marks with them; the file does not say so
    strips = file.get("general.architecture") == "phi3" and file.get("tokenizer.ggml.model") == "llama"
    plain = {"<unk>", "<s>", "<|endoftext|>"}
    special = [texts[i] for i in np.flatnonzero(types == CONTROL).tolist()]
    hf.add_special_tokens(
        [AddedToken(t, special=True, normalized=False, rstrip=strips and t not in plain) for t in special]
    )
    users = [texts[i] for i in np.flatnonzero(types == USER).tolist()]
    hf.add_tokens([AddedToken(t, special=False, normalized=SPACE in t) for t in users])


def _templates(file: GgufFile) -> dict[str, str]:
    key = "tokenizer.chat_template"
    made = {"default": file.metadata[key]} if file.metadata.get(key) else {}
    return made | {k.removeprefix(key + "."): v for k, v in file.metadata.items() if k.startswith(key + ".")}


__all__ = ["PATTERNS", "byte_pairs", "gguf_tokenizer", "pieces", "tokenizer_of"]
