"""Tokenizers against `transformers` and `tokenizers` on random text: byte-level pairs, SentencePiece, added tokens;
those of GGUF files against those that they were made of."""

import json
import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
gguf = pytest.importorskip("gguf", reason="gguf is not installed")

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

from tilewright.llm.gguf.reader import GgufFile  # noqa: E402
from tilewright.llm.gguf.tokenizer import CONTROL, PATTERNS, USER, tokenizer_of  # noqa: E402
from tilewright.llm.tokenizer import load_tokenizer  # noqa: E402
from tilewright.llm.web import tokenizer as tokenizer_module  # noqa: E402
from tilewright.llm.web.tokenizer import tokenizer_data  # noqa: E402
from tilewright.support.errors import ModelError, UnsupportedError, UsageError  # noqa: E402

CORPUS = [
    "The quick brown fox doesn't jump over 1234 lazy dogs.\n\n  It's theirs; we'll see: they've 42 of them!",
    "def f(x):\n\treturn {'a': [1, 22, 333], \"b\": x ** 2}  # comment\r\n",
    "Grüße aus Köln, naïve café — «déjà vu»… 日本語のテキスト、中文字符。한국어 조금 🙂🚀 e\u0301 नमस्ते",
] * 4
SPECIAL = ["<s>", "</s>", "<|im_end|>"]


def random_texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    kinds = ["abcXYZ", " \t\n\r ", "0123456789", "'s're'LL'd.,!?#$%-_/\\", "äßé日本語한\u0301\u200b🙂", "▁Ġ<0x41>"]
    words = [" ".join(CORPUS)[i : i + 9] for i in range(0, 300, 7)]
    made = []
    for _ in range(count):
        parts = [rng.choice(words) if rng.random() < 0.4 else rng.choice(rng.choice(kinds)) for _ in range(20)]
        made.append("".join(parts + ([rng.choice(SPECIAL), " x"] if rng.random() < 0.2 else [])))
    return ["", " ", "\n", *made]


def byte_level(patterns, normalizer=None):
    """Trained byte pairs with these cuts, as a Hugging Face folder would have it."""
    hf = Tokenizer(models.BPE())
    if normalizer:
        hf.normalizer = normalizer
    cuts = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    hf.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    hf.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    hf.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, special_tokens=SPECIAL)
    )
    hf.add_tokens([AddedToken("<tool>", normalized=False)])
    return hf


def sentencepiece(prefix=True):
    """Pairs with scores and bytes for what is unknown, as Llama 2 has them."""
    hf = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    before = [normalizers.Prepend("▁")] if prefix else []
    hf.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
    after = [decoders.Strip(" ", 1, 0)] if prefix else []
    hf.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *after])
    special = ["<unk>", *SPECIAL, *(f"<0x{i:02X}>" for i in range(256))]
    hf.train_from_iterator(CORPUS[:2], trainers.BpeTrainer(vocab_size=500, special_tokens=special))
    state = json.loads(hf.to_str())  # what was trained has the bytes as special tokens
    state["added_tokens"] = [t for t in state["added_tokens"] if not t["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(state))


def folder_of(path, hf, config=None):
    hf.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast", **(config or {})}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def gguf_of(hf, kind, pre):
    """What llama.cpp's conversion writes of a tokenizer."""
    state = json.loads(hf.to_str())
    texts = [hf.id_to_token(i) for i in range(hf.get_vocab_size())]
    types = [1] * len(texts)
    for t in state["added_tokens"]:
        types[t["id"]] = CONTROL if t["special"] else USER
    meta = {"tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": types}
    meta |= {
        "tokenizer.ggml.bos_token_id": hf.token_to_id("<s>"),
        "tokenizer.ggml.eos_token_id": hf.token_to_id("</s>"),
    }
    merges = [tuple(m) for m in state["model"]["merges"]]
    if kind == "gpt2":
        meta |= {"tokenizer.ggml.pre": pre, "tokenizer.ggml.merges": [" ".join(m) for m in merges]}
        return meta
    types[0] = 2
    for i, t in enumerate(texts):
        types[i] = 6 if t.startswith("<0x") else types[i]
    ranks = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    meta["tokenizer.ggml.scores"] = [-float(ranks.get(t, len(merges) + i)) for i, t in enumerate(texts)]
    return meta | {
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": "t",
        "tokenizer.chat_template.tool_use": "u",
    }


def check_bytes(tokenizer, texts):
    """The bytes of tokens are the text, whole characters or not."""
    for text in texts:
        ids = tokenizer.encode(text)
        joined = b"".join(tokenizer.token_bytes(i) for i in ids if i not in tokenizer.special).decode(
            "utf-8", "replace"
        )
        joined = joined.removeprefix(" ") if tokenizer.strips_space else joined
        assert joined == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["bytes", "pieces", "pieces without a prefix"])
def test_a_folder_is_read_as_transformers_reads_it(tmp_path, kind):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    hf = byte_level(PATTERNS["llama3"]) if kind == "bytes" else sentencepiece(kind == "pieces")
    if kind == "pieces":
        hf.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    folder = folder_of(tmp_path, hf)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 2], "top_k": 20, "min_p": 9}')
    tokenizer, want = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    texts = random_texts(60)
    for text in texts:
        assert tokenizer.encode(text, special=True) == want(text)["input_ids"]
        assert tokenizer.encode(text) == want(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(tokenizer.encode(text)) == want.decode(tokenizer.encode(text), skip_special_tokens=True)
    check_bytes(tokenizer, texts)
    assert (tokenizer.bos, tokenizer.vocabulary) == (want.bos_token_id, len(want))
    assert tokenizer.eos == {2, 3, want.eos_token_id}
    assert tokenizer.sampling == {"top_k": 20}  # what has no meaning is left out
    assert tokenizer.token_bytes(10**6) == b""
    assert tokenizer.encode("\ud800") == tokenizer.encode("?")


@pytest.mark.parametrize(
    "pre", ["llama3", "qwen2", "gpt-2", "smollm", "tekken", "gpt-4o", "deepseek-v3", "deepseek-llm"]
)
def test_byte_pairs_of_gguf(pre):
    hf = byte_level(PATTERNS[pre], normalizers.NFC() if pre == "qwen2" else None)
    if pre in ("llama3", "tekken"):
        hf.model.ignore_merges = True
    tokenizer = tokenizer_of(GgufFile("x", gguf_of(hf, "gpt2", pre)))
    for text in random_texts(60, seed=1):
        assert tokenizer.encode(text) == hf.encode(text, add_special_tokens=False).ids
    check_bytes(tokenizer, random_texts(20, seed=2))
    begins = pre in ("llama3", "tekken")
    assert tokenizer.encode("a", special=True) == [0] * begins + tokenizer.encode("a")
    assert tokenizer.eos == {hf.token_to_id("</s>"), hf.token_to_id("<|im_end|>")}


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_of_gguf(prefix):
    hf = sentencepiece(prefix)
    meta = gguf_of(hf, "llama", "") | {"tokenizer.ggml.add_space_prefix": prefix}
    tokenizer = tokenizer_of(GgufFile("x", meta))
    for text in random_texts(60, seed=3):
        assert tokenizer.encode(text) == hf.encode(text, add_special_tokens=False).ids
    check_bytes(tokenizer, random_texts(20, seed=4))
    assert tokenizer.encode("a", special=True)[0] == tokenizer.bos
    assert set(tokenizer.templates) == {"default", "tool_use"}


def message(*fields):
    """Protocol Buffers: (number, int, float, bytes or str) one after the other."""

    def varint(n):
        return bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])

    made = b""
    for number, value in fields:
        if isinstance(value, int):
            made += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            made += varint(number << 3 | 5) + struct.pack("<f", value)
        else:
            data = value.encode() if isinstance(value, str) else value
            made += varint(number << 3 | 2) + varint(len(data)) + data
    return made


def sentencepiece_model(meta, kind=2, prefix=True):
    names = ("tokens", "scores", "token_type")
    rows = zip(*(meta[f"tokenizer.ggml.{n}"] for n in names), strict=True)
    parts = [(1, message((1, t), (2, float(score)), (3, int(code)))) for t, score, code in rows]
    return message(*parts, (2, message((3, kind), (35, 1))), (3, message((1, "identity"), (3, int(prefix)), (4, 0))))


@pytest.mark.parametrize("prefix", [True, False])
def test_a_model_of_sentencepiece(tmp_path, prefix):
    hf = sentencepiece(prefix)
    data = sentencepiece_model(gguf_of(hf, "llama", ""), prefix=prefix)
    (tmp_path / "tokenizer.model").write_bytes(data)
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": {"content": "</s>"}}')
    tokenizer = load_tokenizer(tmp_path)
    for text in random_texts(60, seed=7):
        assert tokenizer.encode(text) == hf.encode(text, add_special_tokens=False).ids
    check_bytes(tokenizer, random_texts(20, seed=8))
    assert tokenizer.encode("a", special=True)[0] == tokenizer.bos == hf.token_to_id("<s>")
    assert tokenizer.eos == {hf.token_to_id("</s>")}
    for wrong in (data[:100], b"\xff" * 30, b""):
        (tmp_path / "tokenizer.model").write_bytes(wrong)
        with pytest.raises((ModelError, UnsupportedError)):
            load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model(gguf_of(hf, "llama", ""), kind=1))
    with pytest.raises(UnsupportedError, match="unigram"):
        load_tokenizer(tmp_path)


def test_a_vocabulary_and_its_merges(tmp_path):
    hf = byte_level(PATTERNS["gpt-2"])
    state = json.loads(hf.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(state["vocab"]))
    pairs = [m if isinstance(m, str) else " ".join(m) for m in state["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs, ""]))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>"}')
    tokenizer = load_tokenizer(tmp_path)
    for text in random_texts(60, seed=9):
        if not any(s in text for s in SPECIAL):
            assert tokenizer.encode(text) == hf.encode(text, add_special_tokens=False).ids
    assert tokenizer.eos == {hf.token_to_id("</s>")} == set(tokenizer.encode("</s>"))
    (tmp_path / "vocab.json").write_text('{"a": 7}')
    with pytest.raises(ModelError, match="not numbered"):
        load_tokenizer(tmp_path)


def test_every_pattern_compiles_and_loses_nothing():
    for name, patterns in PATTERNS.items():
        cuts = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])
        for text in random_texts(5, seed=5):
            assert "".join(word for word, _ in cuts.pre_tokenize_str(text)) == text, name


NODE = """
import fs from "node:fs";
const { Tokenizer } = await import(process.argv[1]);
const { texts, all } = JSON.parse(fs.readFileSync(0, "utf8"));
console.log(JSON.stringify(all.map((data) => texts.map((text) => new Tokenizer(data).encode(text)))));
"""


def test_a_page_cuts_texts_as_tokenizers_does(tmp_path):
    if not shutil.which("node"):
        pytest.skip("node is not installed: apt install nodejs")
    made = {str(patterns): byte_level(patterns) for patterns in PATTERNS.values()}
    texts = [t for t in random_texts(40, seed=6) if not any(s in t for s in SPECIAL)]
    texts += ["a\x85b \ufeffc\x1cd", "it\u017f it'\u017fx IT'S", "[?+]++ }+ (x)+"]
    all_data = []
    for number, hf in enumerate(made.values()):
        (tmp_path / str(number)).mkdir()
        all_data.append(tokenizer_data(load_tokenizer(folder_of(tmp_path / str(number), hf))))
    script = Path(tokenizer_module.__file__).parent / "site" / "tokenizer.js"
    command = ["node", "--input-type=module", "-e", NODE, script.as_uri()]
    given = json.dumps({"texts": texts, "all": all_data})
    run = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    for (name, hf), found in zip(made.items(), json.loads(run.stdout), strict=True):
        for text, ids in zip(texts, found, strict=True):
            assert ids == hf.encode(text, add_special_tokens=False).ids, (name, text)


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="no folder"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(ModelError, match=r"no tokenizer in"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match="has no tokenizer"):
        tokenizer_of(GgufFile("x", {}))
    with pytest.raises(UnsupportedError, match="kind 't5'"):
        tokenizer_of(GgufFile("x", {"tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": ["a"]}))
    with pytest.raises(UnsupportedError, match="'fancy'"):
        tokenizer_of(GgufFile("x", gguf_of(byte_level([]), "gpt2", "fancy")))


def test_a_request_says_less_than_the_model():
    pytest.importorskip("starlette", reason="starlette is not installed")
    from tests.llm.fake_runner import ByteTokenizer, FakeRunner
    from tilewright.llm.llm import LLM
    from tilewright.llm.server.body import Fields
    from tilewright.llm.server.sampling import ServerLimits, sampling_of

    own = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}
    found = sampling_of(Fields({"temperature": 0.2, "top_p": 0.9}), ServerLimits(), 258, own)
    assert [found[n] for n in ("temperature", "top_k", "top_p", "repetition_penalty")] == [0.2, 20, 0.9, 1.1]
    tokenizer = ByteTokenizer()
    tokenizer.sampling = own
    with LLM.of(FakeRunner(), tokenizer) as llm:
        assert (llm.sampling.temperature, llm.sampling.top_k, llm.sampling.max_tokens) == (0.6, 20, 256)
