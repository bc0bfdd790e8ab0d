"""Generic back end for custom accelerators: compiler, assembler and simulator are derived from a chip's description, as
a `Chip` subclass gives it.

`describe` has the words of a description, `check` judges one, `meaning` reads the NumPy bodies of instructions.
`binary` assembles and disassembles, `places` says what waits for what, `functional` and `timing` run programs. `match`
finds instructions for kernels (`unify` compares the two), `plan` chooses tiles, `layouts` says how they lie, `tiles`
writes loop nests, `emit` turns those into programs. `dialect` has programs as MLIR, `verilog` their formats for RTL,
`order` judges their waits, `tensorize` and `by_hand` take schedules that a user writes, `layers` says how far runs are
from what the chip could do. `target`, `partition`, `stages` and `system` make a target of it, alone or beside a host.
"""

from .describe import (
    Chip,
    ChipMemory,
    ComputeEngine,
    CopyEngine,
    Dim,
    Field,
    Instruction,
    Operand,
)

__all__ = ["Chip", "ChipMemory", "ComputeEngine", "CopyEngine", "Dim", "Field", "Instruction", "Operand"]
