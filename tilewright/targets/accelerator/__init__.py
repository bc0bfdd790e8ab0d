"""Generic back end for custom accelerators: compiler, assembler and simulator are derived from a chip's description, as
a `Chip` subclass gives it.

`describe` has the classes of a description, `check` validates one, `semantics` traces the NumPy bodies of instructions.
`binary` assembles and disassembles, `dependences` finds which instruction waits for which, `functional` and `timing`
simulate programs. `match` selects instructions for kernels (`unify` compares the two), `plan` chooses tile sizes,
`layouts` their layouts, `tiles` writes loop nests, `emit` lowers those to programs. `dialect` has programs as MLIR,
`verilog` their formats for RTL, `race_check` checks their waits, `tensorize` and `manual_schedule` take schedules that
a user writes, `layers` reports how far runs are from the chip's roofline. `target`, `partition`, `stages` and `system`
make a target of it, alone or with a host.
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
