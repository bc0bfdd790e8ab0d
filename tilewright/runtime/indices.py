"""Bounds checks of gather and scatter indices, in programs compiled with ``check_indices``.

Such a program has an output more for each of these operators: the smallest and the largest index of the run, i64[2,
columns]. Its name says the operator and the sizes of the dimensions. `Executable` looks at these outputs after every
run and keeps them to itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..support.errors import InputError

#: names of outputs that begin so are such
PREFIX = "tw.indices "


def output_name(number: int, operator: str, sizes: Sequence[int]) -> str:
    """
    >>> output_name(0, 'Gather "words"', [30522])
    'tw.indices [0, [30522], "Gather \\\\"words\\\\""]'
    """
    return PREFIX + json.dumps([number, list(sizes), operator])


def outside(index: int, size: int) -> str:
    """
    >>> outside(7, 5)
    'index 7 is out of range for a dimension of 5 (it takes -5 to 4)'
    """
    takes = f"-{size} to {size - 1}" if size else "none"
    return f"index {index} is out of range for a dimension of {size} (it takes {takes})"


def check(infos: Sequence[Any], ranges: Sequence[np.ndarray]) -> None:
    """InputError for the first operator that had an index out of range; `infos` name the outputs, `ranges` are they."""
    for info, found in zip(infos, ranges, strict=True):
        _, sizes, operator = json.loads(info.name[len(PREFIX) :])
        for size, low, high in zip(sizes, *found.tolist(), strict=True):
            if low < -size or high >= size:
                index = low if low < -size else high
                raise InputError(outside(index, size), stage="run", operator=operator, hint="look at the inputs")
