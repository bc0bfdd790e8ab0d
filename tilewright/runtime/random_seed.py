"""The seed of random operators: an input of the program, with another value in every run.

Operators that draw random numbers without a seed of their own read it from a program input of this name, which
`Executable` gives itself unless the caller does. Runs are numbered in the order in which they begin in this process, so
that a program that does the same again gets the same numbers; `set_seed` chooses others.
"""

from __future__ import annotations

import itertools

import numpy as np

#: the input, i32[]
KEY = "tw.random_key"

_keys = itertools.count()


def set_seed(seed: int) -> None:
    """Begin anew with the random numbers of this process; equal seeds give equal numbers.

    >>> set_seed(7)
    >>> first = next_key()
    >>> set_seed(7)
    >>> bool(next_key() == first), bool(next_key() == first)
    (True, False)
    """
    global _keys
    _keys = itertools.count(seed * 0x9E3779B1)


def next_key() -> np.ndarray:
    """The key of the next run."""
    return np.array(next(_keys) & 0xFFFFFFFF, np.uint32).view(np.int32)
