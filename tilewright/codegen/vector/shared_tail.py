"""Remainder columns of several rows packed into one vector: each row has the same number of its lanes.

    for j in vector(16):
        acc[j // 8, j % 8] += x[j // 8 * 100] * w[j % 8]     # two rows of eight columns
        y[j // 8 * 40 + j % 8] = acc[j // 8, j % 8]

What is the same along a row (x) is loaded once for each and repeated in its lanes, what is the same in all rows (w) is
a short vector, loaded once and repeated. A result is written row by row. Elements kept in registers are one value, as
long as they are always used in these lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from ...tensor.expr import Buffer, Expr
from .strided import Strided
from .values import Value, element, power_of_two

#: rows that may share a vector
ROWS = 4


class SharedTail:
    """Emits such accesses."""

    def __init__(self, strided: Strided, mask_lanes: Sequence[int]) -> None:
        self.strided, self.at, self.text, self.mask_lanes = strided, strided.at, strided.text, mask_lanes

    def load(self, buffer: Buffer, indices: tuple[Expr, ...], shape: Value) -> Value | None:
        """The active lanes of a load; None if it is of another form."""
        found = self.strided.lane_offsets(self.at.flat(buffer, indices))
        if found is not None and shape.width >= ROWS:
            base, offsets = found
            runs = [(o, len(list(lanes))) for o, lanes in groupby(offsets)]
            if 2 <= len(runs) <= ROWS and runs[0][1] > 1 and max(offsets) - min(offsets) >= ROWS:
                return self._rows(buffer, base, runs, shape)
            period = next((i for i in range(1, len(offsets)) if offsets[i] == 0), 0)
            if 2 <= period <= shape.width // 2 and offsets == tuple(i % period for i in range(len(offsets))):
                return self._repeated(buffer, base, period, len(offsets), shape)
        return None

    def _rows(self, buffer: Buffer, base: Expr, runs: list[tuple[int, int]], shape: Value) -> Value:
        """A number for each row, repeated in so many lanes."""
        one, ends = Value("", element(buffer.dtype)), [sum(n for _, n in runs[: i + 1]) for i in range(len(runs))]
        places = [self.at.index(base + o).ssa for o, _ in runs]
        rows = [self.text.as_vector(self.text.read(buffer, at, one), shape.width) for at in places]
        result = rows[-1]
        for row, end in zip(rows[-2::-1], ends[-2::-1], strict=True):
            result = self.text.select(self._first(end, shape.width), row, result.ssa)
        return result

    def _first(self, count: int, width: int) -> str:
        """The mask of the first lanes. Where masks are registers LLVM is not told what it is: it would make shuffles,
        which fewer units do than blends."""
        if width not in self.mask_lanes:
            return self.text.first_lanes(count, width)
        bits = self.text.const((1 << count) - 1, f"i{width}")
        hidden = self.text.at_first(f'llvm.inline_asm "", "=r,0" {bits} : (i{width}) -> i{width}')
        return self.text.at_first(f"llvm.bitcast {hidden} : i{width} to vector<{width}xi1>")

    def _repeated(self, buffer: Buffer, base: Expr, count: int, active: int, shape: Value) -> Value:
        """`count` neighbouring elements, and the same again until all active lanes are filled."""
        short = self.strided.elements(buffer, base, count, Value("", shape.dtype, power_of_two(count)))
        places = [i % count if i < active else 0 for i in range(shape.width)]
        return self.text.shuffle(short, short, places)

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], value: Value) -> bool:
        """Store the active lanes of a vector where they are a few runs of neighbours; False if they are not."""
        found = self.strided.lane_offsets(self.at.flat(buffer, indices))
        if found is None:
            return False
        base, offsets = found
        runs = _runs(offsets)
        if len(runs) > ROWS:
            return False
        for start, count in runs:
            where = self.at.index(base + offsets[start]).ssa
            places = [start + min(i, count - 1) for i in range(power_of_two(count))]
            part = value if places == list(range(value.width)) else self.text.shuffle(value, value, places)
            self.text.write_first(buffer, where, part, count)
        return True


def _runs(offsets: tuple[int, ...]) -> list[tuple[int, int]]:
    """(first lane, lanes) of neighbours.

    >>> _runs((0, 1, 2, 40, 41, 42))
    [(0, 3), (3, 3)]
    """
    found = [0, *(i for i in range(1, len(offsets)) if offsets[i] != offsets[i - 1] + 1), len(offsets)]
    return [(a, b - a) for a, b in pairwise(found)]
