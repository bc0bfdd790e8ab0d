"""What is special about entries of PyTorch's table: those whose numbers cannot be compared.

Entries that are refused need no table: an UnsupportedError says why, and the page lists them. A wrong result, a crash
or a hang is never expected.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

#: entries whose numbers are arbitrary: uninitialized memory, or random
ARBITRARY = (
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "uniform", "bernoulli",
    "randn", "rand", "normal*", "multinomial*", "cauchy", "exponential", "geometric", "log_normal", "rand_like",
    "randn_like", "randint*", "nn.functional.*dropout*",
)  # fmt: skip


def arbitrary(name: str) -> bool:
    """Whether any number is right."""
    return any(fnmatchcase(name, pattern) for pattern in ARBITRARY)
