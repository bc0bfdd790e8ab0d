"""A model for tests of the server that answers what its prompt asks for, and a tokenizer of bytes for it."""

from __future__ import annotations

import json
import time

import numpy as np
from llm.fake_runner import ByteTokenizer, FakeRunner

from tilewright.llm.batch import Batch, StepResult


class ScriptRunner(FakeRunner):
    """Goes on after the last ``assistant: `` with what `answers` has for a text of the prompt, and ends; other prompts
    get letters without end. seconds: of a step."""

    def __init__(self, answers: dict[str, str] | None = None, seconds: float = 0.0, **more) -> None:
        super().__init__(**{"context": 512, "pages": 1024, "tokens": 256, "habit": 1.0, **more})
        self.answers, self.seconds = answers or {}, seconds

    def step(self, batch: Batch) -> StepResult:
        time.sleep(self.seconds)
        result = super().step(batch)
        for row, token in enumerate(batch.rows):
            b = int(np.searchsorted(batch.starts, token, "right")) - 1
            ids = self.pages[batch.table[b]].reshape(-1)[: batch.positions[token] + 1] - np.uint64(1)
            text = bytes(int(i) for i in ids if i < 256)
            prompt, mark, said = text.rpartition(b"assistant: ")
            answer = next((a for q, a in self.answers.items() if mark and q.encode() in prompt), None)
            if answer is not None:
                rest = answer.encode()[len(said) :]
                result.logits[row, rest[0] if rest else 257] += 100
        return result


class ChatTokenizer(ByteTokenizer):
    """The template of `ByteTokenizer` with tools and calls in it."""

    templates = {"default": "<tool_call>"}

    def chat(self, messages, tools=None, **extra) -> str:
        head = f"tools: {json.dumps([t['function']['name'] for t in tools])}\n" if tools else ""
        lines = [f"{m['role']}: {m['content']}{json.dumps(m.get('tool_calls', ''))}\n" for m in messages]
        return head + "".join(lines) + "assistant: " + extra.get("begin", "")
