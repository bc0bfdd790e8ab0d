"""What every chip gets from its description: nothing here knows a chip, and no chip edits anything here.

`describe` has the words of a description, `check` judges one, `meaning` reads the NumPy bodies of instructions.
`binary` assembles and disassembles, `places` says what waits for what, `functional` and `timing` run programs. `match`
finds instructions for kernels, `plan` chooses tiles, `tiles` writes loop nests, `emit` turns those into programs.
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
