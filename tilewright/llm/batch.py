"""One step of a language model, tokens of several sequences in and logits out: what the engine asks of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Batch:
    """T tokens of B sequences, one sequence after the other; all arrays are i32.

    A sequence brings a chunk of its prompt, its last token, or a draft that is to be checked: the model makes no
    difference. What a step writes into the cache is where the batch says, so that a step may be run again.

    tokens: [T].
    positions: [T], from 0 on in each sequence.
    slots: [T], where the keys and values of a token go: page * page_length + row. -1: nowhere.
    starts: [B + 1], the first token of each sequence, and T.
    lengths: [B], positions of each sequence after this step; its tokens here are the last of them.
    table: [B, N], the pages of each sequence; 0 where it has fewer than N.
    rows: [R], the tokens (0 <= row < T) whose logits are wanted.
    initial: [B], the snapshot that recurrent layers begin from; -1: from zeros. None for models without such layers.
    keep: [T], the snapshot that the recurrent state after a token is written to; -1: none. A snapshot that a sequence
        begins from may be written in the same step by that sequence only. None as above.
    """

    tokens: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    table: np.ndarray
    rows: np.ndarray
    initial: np.ndarray | None = None
    keep: np.ndarray | None = None


@dataclass(frozen=True)
class ModelLimits:
    """What a compiled model takes.

    vocabulary: width of the logits.
    page_length: positions of a page.
    pages: pages of the cache; all are there from the start, memory is taken when they are written.
    snapshots: recurrent states that are kept; 0 for models without recurrent layers.
    tokens: most tokens of a step; sequences: most sequences of a step; context: most positions of a sequence.
    """

    vocabulary: int
    page_length: int
    pages: int
    snapshots: int
    tokens: int
    sequences: int
    context: int


@dataclass(frozen=True)
class StepResult:
    """logits: f32 [R, vocabulary]; hidden: f32 [R, hidden], what the output layer was given. Views that the next step
    may overwrite."""

    logits: np.ndarray
    hidden: np.ndarray


class Runner(Protocol):
    """A compiled model with its cache. One step at a time."""

    limits: ModelLimits

    def step(self, batch: Batch) -> StepResult:
        """Run the model."""

    def copy(self, pages: Sequence[tuple[int, int]], snapshots: Sequence[tuple[int, int]] = ()) -> None:
        """Copy pages, and snapshots, of all layers: pairs of from and to."""

    def read(self, pages: Sequence[int], snapshots: Sequence[int] = ()) -> dict[str, np.ndarray]:
        """Copies of pages and snapshots, by the name of the state."""

    def write(self, values: dict[str, np.ndarray], pages: Sequence[int], snapshots: Sequence[int] = ()) -> None:
        """The inverse of `read`, to other pages and snapshots."""


__all__ = ["Batch", "ModelLimits", "StepResult", "Runner"]
