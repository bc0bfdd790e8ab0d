"""What the next step does: who has a part in it, with how many tokens.

First each sequence that makes text gets its one token, then prompts get chunks of what is left of the step's tokens,
then drafts. Sequences go by their key: when they came, plus `patience` seconds for each point of priority, so that
nobody waits for ever. Who needs a page and finds none takes it from those that come after; the oldest always finds one,
since a request that alone would not fit is refused (`Engine.submit`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..batch import Batch
from .cache import Cache, CacheValue
from .sequence import Sequence
from .speculation import AcceptanceRate

#: a step that returns the logits of a whole chunk has at most so many tokens of it
LOGPROB_CHUNK = 32


@dataclass
class StepPart:
    """The next `count` tokens of a sequence, then drafts; the first `skip` of both have been run before. first: the
    first row of the logits that belong to it; rows: how many there are, for its last tokens. proposal: the draft that
    there was, of which `drafts` is the beginning; rate: how often such drafts are right."""

    sequence: Sequence
    count: int
    drafts: list[int] = field(default_factory=list)
    skip: int = 0
    first: int = -1
    rows: int = 0
    proposal: list[int] = field(default_factory=list)
    rate: AcceptanceRate | None = None

    @property
    def value(self) -> CacheValue:
        """That of the sequence, which runs."""
        assert self.sequence.value is not None
        return self.sequence.value

    @property
    def complete(self) -> bool:
        """Whether the sequence's last token is in it."""
        return self.value.length + self.count == len(self.sequence.tokens)


class Scheduler:
    """Waiting and running sequences. on_move: called when one has got its room (True) or lost it."""

    def __init__(self, cache: Cache, step_tokens: int, on_move: Callable[[Sequence, bool], None]) -> None:
        limits = cache.runner.limits
        self.cache, self.limits, self.on_move = cache, limits, on_move
        self.step_tokens = min(step_tokens, limits.tokens)
        self.waiting: list[tuple[tuple[float, int], Sequence]] = []  # a heap
        self.running: list[Sequence] = []  # by key
        self.steps = 0
        self._refused: tuple[object, int] | None = None

    def add(self, sequence: Sequence) -> None:
        heapq.heappush(self.waiting, (sequence.key, sequence))

    def remove(self, sequence: Sequence) -> None:
        """It is over; its value is closed by the caller."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting = [w for w in self.waiting if w[1] is not sequence]
            heapq.heapify(self.waiting)

    def plan(self) -> list[StepPart]:
        """The parts of the next step, in the order of keys; drafts are chosen later."""
        self.steps += 1
        self._admit()
        chosen: dict[Sequence, StepPart] = {}
        budget = self.step_tokens
        decoding = [s for s in self.running if s.missing == 1]
        prefill = len(decoding) < len(self.running)
        # where not all have room, prompts get a part of it, and the texts take turns
        turn = sorted(decoding, key=lambda s: s.last_step)[: max(1, budget - (budget // 4 if prefill else 0))]
        for s in sorted(turn, key=lambda s: s.key):
            if s.value is not None and self._room(s, s.value.length + 1, chosen):
                chosen[s] = StepPart(s, 1)
                budget -= 1
            elif s.value is not None:
                self.preempt(s, chosen)
        for s in [s for s in self.running if s.missing > 1]:
            count = min(s.missing, budget)
            if s.request.sampling.prompt_logprobs is not None:
                count = min(count, LOGPROB_CHUNK)
            if s.value is None or count < 1:
                continue
            if not self._room(s, s.value.length + count, chosen):
                count = min(count, len(s.value.table) * self.cache.page_length - s.value.length)
            if count > 0:
                chosen[s] = StepPart(s, count)
                budget -= count
        for s in chosen:
            s.last_step = self.steps
        return sorted(chosen.values(), key=lambda p: p.sequence.key)

    def _room(self, sequence: Sequence, length: int, chosen: dict[Sequence, StepPart]) -> bool:
        """Pages for so many positions, if need be from sequences that come later."""
        assert sequence.value is not None
        while not self.cache.reserve(sequence.value, length):
            last = self.running[-1]
            if last is sequence:
                return False
            self.preempt(last, chosen)
        return True

    def preempt(self, sequence: Sequence, chosen: dict[Sequence, StepPart]) -> None:
        """It gives up its room and waits again; what it had computed stays in the tree as long as there is room."""
        assert sequence.value is not None
        chosen.pop(sequence, None)
        self.cache.close(sequence.value, sequence.tokens)
        sequence.value = None
        self.running.remove(sequence)
        self.add(sequence)
        self.on_move(sequence, False)

    def _admit(self) -> None:
        """Waiting sequences begin, in their order, as long as there is room for all their tokens and a page for each
        that runs. One that shares a prompt with another whose prompt is being read waits for that."""
        later: list[tuple[tuple[float, int], Sequence]] = []
        while self.waiting and max(len(self.running), len(later)) < self.limits.sequences:
            s = self.waiting[0][1]
            pages = -(-(len(s.tokens) + 1) // self.cache.page_length)
            if self._refused == (s, self.cache.available) and self.running:
                break
            if self._soon(s):
                later.append(heapq.heappop(self.waiting))
                continue
            value = self.cache.open(s.tokens, s.request.sampling.prompt_logprobs is None or s.generated > 0)
            need = pages - len(value.table) if value else 0
            if value is None or (self.running and need + len(self.running) > self.cache.available):
                if value is not None:
                    self.cache.close(value, False)
                self._refused = (s, self.cache.available)
                break
            heapq.heappop(self.waiting)
            s.value = value
            if not s.generated:
                s.prompt_logprobs = []
            if s.cached < 0:
                s.cached = value.reused
            self.running.append(s)
            self.on_move(s, True)
            self.running.sort(key=lambda r: r.key)
        for entry in later:
            heapq.heappush(self.waiting, entry)

    def _soon(self, sequence: Sequence) -> bool:
        """Whether a sequence whose prompt is being read will leave in the tree what this one needs."""
        length = self.cache.page_length
        if sequence.request.sampling.prompt_logprobs is not None:
            return False
        for other in self.running:
            if other.missing > 1 and other.value is not None:
                same = _common(sequence.tokens, other.tokens[:-1])
                if same // length > other.value.length // length:
                    other.value.branch = max(other.value.branch, same // length * length)
                    return True
        return False

    def boundaries(self, part: StepPart) -> list[int]:
        """Lengths within a chunk after which the tree should have a snapshot: the last whole page of the prompt, where
        another sequence parted from this one's beginning, and the last whole page of the chunk."""
        value, length = part.value, self.cache.page_length
        end = value.length + part.count
        prompt = (part.sequence.prompt - 1) // length * length
        return sorted({at for at in (prompt, value.branch, end // length * length) if value.length < at <= end})


def batch_of(parts: list[StepPart], cache: Cache) -> Batch:
    """The arrays of a step; sets `first` and `rows` of each part."""
    length = cache.page_length
    tokens: list[int] = []
    rows: list[int] = []
    starts, lengths, positions, slots, keep, initial = [0], [], [], [], [], []
    for part in parts:
        s, value = part.sequence, part.value
        begin, end = value.length + part.skip, value.length + part.count + len(part.drafts)
        tokens += [*s.tokens[value.length : value.length + part.count], *part.drafts][part.skip :]
        at = np.arange(begin, end)
        positions.append(at)
        slots.append(np.asarray(value.table)[at // length] * length + at % length)
        lengths.append(end)
        starts.append(len(tokens))
        initial.append(value.initial())
        keep += [value.pending.get(n, -1) for n in range(begin + 1, end + 1)]
        part.first = len(rows)
        if s.request.sampling.prompt_logprobs is not None and not s.generated and not part.skip:
            part.rows = part.count + len(part.drafts)
        else:
            part.rows = min(1 + len(part.drafts), end - begin) if part.complete else 0
        rows += range(len(tokens) - part.rows, len(tokens))
    table = np.zeros((len(parts), max(-(-n // length) for n in lengths)), np.int32)
    for b, part in enumerate(parts):
        pages = part.value.table[: -(-lengths[b] // length)]
        table[b, : len(pages)] = pages
    return Batch(
        np.array(tokens, np.int32),
        np.concatenate(positions).astype(np.int32),
        np.concatenate(slots).astype(np.int32),
        np.array(starts, np.int32),
        np.array(lengths, np.int32),
        table,
        np.array(rows or [len(tokens) - 1], np.int32),
        np.array(initial, np.int32) if cache.hybrid else None,
        np.array(keep, np.int32) if cache.hybrid else None,
    )


def _common(a: list[int], b: list[int]) -> int:
    """How many tokens two lists begin with together."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    x, y = np.asarray(a[:n]), np.asarray(b[:n])
    return int(np.argmax(x != y))


__all__ = ["StepPart", "Scheduler", "batch_of"]
