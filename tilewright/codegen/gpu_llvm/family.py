"""What differs between GPU vendors in a plain kernel's LLVM IR: intrinsics, address spaces, and the function's
attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...tensor.mathlib.build import V
from .memory import OWN


@dataclass(frozen=True)
class Family:
    """GPUs that LLVM makes code for in one way.

    `name`: as errors call them. `numbers`: intrinsics that give the number of a block or a thread, by axis. `head` and
    `end`: the first line of a kernel and what stands behind it, with its `name` and `params`, and the `threads` of a
    block, `x` times `y` times `z`, and `more` attributes. `own`: what a pointer to a thread's own memory is.
    `functions`: those of f32 that have a shorter form than `tensor.mathlib` gives them, with operations that are
    `instructions` of these GPUs: intrinsics by the operation's name.
    """

    name: str
    numbers: Mapping[str, str]
    head: str
    end: str = ""
    own: str = OWN
    functions: Mapping[str, Callable[[V], V]] = field(default_factory=dict)
    instructions: Mapping[str, str] = field(default_factory=dict)
