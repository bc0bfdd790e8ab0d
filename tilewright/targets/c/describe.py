"""Machine record of the target ``c``: what schedules may assume of a machine that runs portable C."""

from __future__ import annotations

from dataclasses import dataclass

from ...schedule.machine import Machine


@dataclass(frozen=True)
class CDescription(Machine):
    """A scalar machine: "vectors" have one element, `vector_registers` are the numbers a loop may keep in registers.

    `arena_align` is the alignment of buffers in the arena; `minimize_memory` asks for the order of kernels that needs
    the least, `stream_rows` for kernels that run row by row where that makes the arena smaller.
    """

    vector_bytes: int = 4
    vector_registers: int = 16
    l1_bytes: int = 16 << 10
    l2_bytes: int = 128 << 10
    cores: int = 1
    arena_align: int = 16
    minimize_memory: bool = True
    stream_rows: bool = True
