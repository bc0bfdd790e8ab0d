"""Optimal offset assignment for small devices: packs live ranges into the arena by a search with backtracking.

Buffers are placed in the order in which they begin to live, each at the lowest or the highest place of a gap. Where a
capacity proves impossible (or the search is given up), a larger one is tried, up to what the greedy planner needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: placements tried for one capacity
TRIES = 4000


@dataclass(frozen=True)
class LiveRange:
    """`size` bytes that live from step `first` to step `last`, both included."""

    first: int
    last: int
    size: int


def place(blocks: Sequence[LiveRange], bound: int, known: int) -> tuple[int, list[int]] | None:
    """(capacity, offset of each block) with a capacity from `bound` to below `known`; None if none was found.

    >>> place([LiveRange(i, i + 1, size) for i, size in enumerate((48, 32, 32, 48, 32, 32, 48))], 80, 112)
    (80, [0, 48, 0, 32, 0, 48, 0])
    """
    order = sorted(range(len(blocks)), key=lambda i: (blocks[i].first, -blocks[i].size))
    for step in range(9):
        capacity = bound + (known - bound) * step // 10
        found = _Search(blocks, order, capacity).run()
        if found is not None:
            size = max((o + b.size for o, b in zip(found, blocks, strict=True)), default=0)
            return size, found
    return None


class _Search:
    def __init__(self, blocks: Sequence[LiveRange], order: list[int], capacity: int) -> None:
        self.blocks, self.order, self.capacity = blocks, order, capacity
        self.offsets = [0] * len(blocks)
        self.tries = 0

    def run(self) -> list[int] | None:
        """Depth first, without recursion: programs may have more buffers than Python has stack."""
        stack = [iter(self.places(0))] if self.order else []
        while stack:
            at = len(stack) - 1
            offset = next(stack[-1], None)
            if offset is None or self.tries > TRIES:
                if self.tries > TRIES:
                    return None
                stack.pop()
                continue
            self.tries += 1
            self.offsets[self.order[at]] = offset
            if at + 1 == len(self.order):
                return self.offsets
            stack.append(iter(self.places(at + 1)))
        return None if self.order else []

    def places(self, at: int) -> list[int]:
        """The ends of the gaps that hold a block, given where those before it lie."""
        block = self.blocks[self.order[at]]
        busy = sorted(
            (self.offsets[j], self.offsets[j] + self.blocks[j].size)
            for j in self.order[:at]
            if self.blocks[j].first <= block.last and block.first <= self.blocks[j].last
        )
        found: list[int] = []
        end = 0
        for begin, stop in [*busy, (self.capacity, self.capacity)]:
            if begin - end >= block.size:
                found += [end, begin - block.size]
            end = max(end, stop)
        return list(dict.fromkeys(found))
