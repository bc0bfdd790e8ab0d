"""A model for tests of the engine: NumPy, deterministic, no weights. Its cache holds token ids, and its logits are made
from a hash of the sequence that it finds there, so that a wrong page, slot, length or snapshot gives other tokens."""

from __future__ import annotations

import numpy as np

from tilewright.llm.batch import Batch, ModelLimits, StepResult

_MASK = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15


def _mixed(x: np.ndarray) -> np.ndarray:
    """splitmix64's last steps."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class FakeRunner:
    """A `Runner`. hybrid: half of the hash comes from snapshots, which are running hashes. habit: how strongly the next
    token follows from the last one alone, which makes text repeat itself (0: never, 1: nearly always).
    raises: steps, counted from 0, that fail."""

    def __init__(
        self,
        *,
        vocabulary: int = 258,
        page_length: int = 4,
        pages: int = 64,
        snapshots: int = 0,
        tokens: int = 32,
        sequences: int = 8,
        context: int = 128,
        habit: float = 0.9,
        scale: float = 10.0,
        seed: int = 0,
    ) -> None:
        self.limits = ModelLimits(vocabulary, page_length, pages, snapshots, tokens, sequences, context)
        self.habit, self.scale, self.seed = habit, scale, seed
        self.hybrid = snapshots > 0
        rng = np.random.default_rng(seed)  # memory that nobody wrote is never zero
        self.pages = rng.integers(1 << 32, 1 << 60, (pages, page_length)).astype(np.uint64)
        self.states = rng.integers(1 << 32, 1 << 60, (snapshots, 1)).astype(np.uint64)
        self.weights = np.array([pow(_FACTOR, i + 1, 1 << 64) for i in range(context)], np.uint64)
        self.fingerprint = f"fake {self.limits} {seed}"
        self.steps = self.compilations = 0
        self.batches: list[Batch] = []
        self.raises: set[int] = set()
        self._last: StepResult | None = None

    def step(self, batch: Batch) -> StepResult:
        self.check(batch)
        self.steps += 1
        self.batches.append(batch)
        if self._last is not None:  # views of the step before are not valid any more
            self._last.logits[:] = np.nan
            self._last.hidden[:] = np.nan
        if self.steps - 1 in self.raises:
            self.states[batch.keep[batch.keep >= 0] if batch.keep is not None else []] ^= np.uint64(12345)
            raise RuntimeError("the fake model fails in this step")
        length = self.limits.page_length
        written = batch.slots >= 0
        at = batch.slots[written]
        self.pages[at // length, at % length] = batch.tokens[written].astype(np.uint64) + np.uint64(1)
        hashes = np.zeros(len(batch.tokens), np.uint64)
        before = self.states.copy()
        for b in range(len(batch.lengths)):
            n, span = int(batch.lengths[b]), slice(int(batch.starts[b]), int(batch.starts[b + 1]))
            found = self.pages[batch.table[b]].reshape(-1)[:n]
            hashes[span] = np.cumsum(found * self.weights[:n], dtype=np.uint64)[batch.positions[span]]
            if batch.initial is not None and batch.keep is not None:
                state = 0 if batch.initial[b] < 0 else int(before[batch.initial[b], 0])
                for t in range(span.start, span.stop):
                    state = (state * _FACTOR + int(batch.tokens[t]) + 1) & _MASK
                    hashes[t] ^= np.uint64((state * _FACTOR) & _MASK)
                    if batch.keep[t] >= 0:
                        self.states[batch.keep[t], 0] = state
        self._last = StepResult(*self.outputs(hashes[batch.rows], batch.tokens[batch.rows]))
        return self._last

    def outputs(self, hashes: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits and hidden states from hashes of sequences and their last tokens."""
        seeded = _mixed(hashes + np.uint64(self.seed))[:, None]
        ids = np.arange(1, self.limits.vocabulary + 1, dtype=np.uint64) * np.uint64(_FACTOR)
        logits = (_mixed(seeded ^ ids) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
        logits[np.arange(len(last)), self.usual(last)] += self.habit
        hidden = (_mixed(seeded ^ ids[:4]) >> np.uint64(40)).astype(np.float32)
        return logits * np.float32(self.scale), hidden

    def usual(self, last: np.ndarray) -> np.ndarray:
        """The token that mostly follows: a lower-case letter where the vocabulary is of bytes."""
        if self.limits.vocabulary > 122:
            return 97 + (last.astype(np.int64) * 7 + 3) % 26
        return (last.astype(np.int64) * 7 + 3) % self.limits.vocabulary

    def logits(self, tokens: list[int]) -> np.ndarray:
        """What should come after these tokens, without any cache: [vocabulary]."""
        ids = np.array(tokens, np.uint64) + np.uint64(1)
        value = int(np.sum(ids * self.weights[: len(ids)], dtype=np.uint64))
        if self.hybrid:
            state = 0
            for t in tokens:
                state = (state * _FACTOR + int(t) + 1) & _MASK
            value ^= (state * _FACTOR) & _MASK
        return self.outputs(np.array([value], np.uint64), np.array(tokens[-1:]))[0][0]

    def greedy(self, prompt: list[int], count: int, stop: frozenset[int] = frozenset()) -> list[int]:
        """Plain decoding, without any cache; ends with a token of `stop`."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(np.argmax(self.logits(tokens))))
            if tokens[-1] in stop:
                break
        return tokens[len(prompt) :]

    def copy(self, pages, snapshots=()) -> None:
        for source, target in pages:
            self.pages[target] = self.pages[source]
        for source, target in snapshots:
            self.states[target] = self.states[source]

    def read(self, pages, snapshots=()) -> dict[str, np.ndarray]:
        return {"pages": self.pages[list(pages)], "states": self.states[list(snapshots)]}

    def write(self, values, pages, snapshots=()) -> None:
        self.pages[list(pages)] = values["pages"]
        self.states[list(snapshots)] = values["states"]

    def check(self, batch: Batch) -> None:
        """Every sentence of `Batch`'s docstring."""
        limits, length = self.limits, self.limits.page_length
        arrays = (batch.tokens, batch.positions, batch.slots, batch.starts, batch.lengths, batch.table, batch.rows)
        assert all(a.dtype == np.int32 for a in arrays)
        count, sequences = len(batch.tokens), len(batch.lengths)
        assert 1 <= count <= limits.tokens and 1 <= sequences <= limits.sequences
        assert batch.positions.shape == batch.slots.shape == (count,)
        assert batch.starts.shape == (sequences + 1,) and batch.starts[0] == 0 and batch.starts[-1] == count
        assert np.all(np.diff(batch.starts) > 0) and np.all(batch.lengths <= limits.context)
        assert batch.table.ndim == 2 and len(batch.table) == sequences
        assert np.all((batch.table >= 0) & (batch.table < limits.pages))
        assert np.all((batch.tokens >= 0) & (batch.tokens < limits.vocabulary))
        assert len(batch.rows) >= 1 and np.all((batch.rows >= 0) & (batch.rows < count))
        assert len(np.unique(batch.rows)) == len(batch.rows)
        written = batch.slots[batch.slots >= 0]
        assert len(np.unique(written)) == len(written), "a slot is written twice"
        owners: dict[int, int] = {}
        for b in range(sequences):
            span = slice(int(batch.starts[b]), int(batch.starts[b + 1]))
            n = int(batch.lengths[b])
            assert batch.positions[span].tolist() == list(range(n - (span.stop - span.start), n))
            used = batch.table[b][: -(-n // length)]
            assert len(used) * length >= n and len(set(used.tolist())) == len(used)
            for position, slot in zip(batch.positions[span], batch.slots[span], strict=True):
                if slot >= 0:
                    assert slot == used[position // length] * length + position % length, "a slot outside of the table"
                    owners[int(slot) // length] = b
        for b in range(sequences):
            used = batch.table[b][: -(-int(batch.lengths[b]) // length)]
            assert all(owners.get(int(p), b) == b for p in used), "a page of one sequence is written by another"
        assert (batch.initial is None) == (batch.keep is None) == (not self.hybrid)
        if batch.initial is not None and batch.keep is not None:
            assert batch.initial.dtype == batch.keep.dtype == np.int32
            assert batch.initial.shape == (sequences,) and batch.keep.shape == (count,)
            assert np.all(batch.initial < limits.snapshots) and np.all(batch.keep < limits.snapshots)
            kept = batch.keep[batch.keep >= 0]
            assert len(np.unique(kept)) == len(kept), "a snapshot is written twice"
            for b in range(sequences):
                others = np.r_[batch.keep[: batch.starts[b]], batch.keep[batch.starts[b + 1] :]]
                assert batch.initial[b] < 0 or batch.initial[b] not in others, "a snapshot in use is overwritten"


class ByteTokenizer:
    """A token a byte; 256 begins a text and 257 ends one."""

    eos = frozenset({257})
    bos = 256
    vocabulary = 258
    hf = None

    def encode(self, text: str, special: bool = False) -> list[int]:
        return [256] * special + list(text.encode())

    def decode(self, ids) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def chat(self, messages, tools=None, **extra) -> str:
        return "".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant: "
