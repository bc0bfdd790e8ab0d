"""A small Llama that is trained on the glossary of the docs, as questions and answers, and saved as a Hugging Face
folder: weights that mean something, so that what it says can be read. About 15 seconds of one core."""

from __future__ import annotations

import json
import re
from pathlib import Path

SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% if m.role == 'assistant' %}{{ '<|end|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
STEPS, ROWS, LENGTH = 400, 8, 96


def pairs() -> list[tuple[str, str]]:
    """Questions and answers: the terms of the glossary and their meanings."""
    page = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", page, re.M)
    return [(f"What is a {term}?", meaning) for term, meaning in rows if term != "term" and "---" not in term][:24]


def train(folder: Path) -> list[tuple[str, str]]:
    """Write config.json, model.safetensors and the tokenizer's files into `folder`; returns `pairs`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    known = pairs()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([t for pair in known for t in pair], trainer)
    stream = [
        i for q, a in known for i in tokenizer.encode(f"{SPECIAL[1]}{q}{SPECIAL[2]}{a}{SPECIAL[0]}").ids
    ]  # one after the other: a window begins anywhere

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    ids = torch.tensor(stream + stream[:LENGTH])
    schedule = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.0)
    rate = torch.optim.lr_scheduler.OneCycleLR(schedule, 8e-3, total_steps=STEPS)
    for _ in range(STEPS):
        at = torch.randint(0, len(stream), (ROWS,))
        batch = torch.stack([ids[i : i + LENGTH] for i in at])
        model(input_ids=batch, labels=batch).loss.backward()
        schedule.step()
        rate.step()
        schedule.zero_grad()
    torch.set_num_threads(threads)
    model.generation_config.eos_token_id = 0
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"eos_token": SPECIAL[0], "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    return known
