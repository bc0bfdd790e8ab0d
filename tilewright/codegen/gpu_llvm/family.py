"""What differs between vendors in the LLVM IR of a plain kernel: names of intrinsics, pointers, and how it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .memory import OWN


@dataclass(frozen=True)
class Family:
    """GPUs that LLVM makes code for in one way.

    `name`: as errors call them. `numbers`: intrinsics that give the number of a block or a thread, by axis. `head` and
    `end`: the first line of a kernel and what stands behind it, with its `name` and `params`, and the `threads` of a
    block, `x` times `y` times `z`, and `more` attributes. `own`: what a pointer to a thread's own memory is.
    """

    name: str
    numbers: Mapping[str, str]
    head: str
    end: str = ""
    own: str = OWN
