"""What schedule rules may ask about the machine they schedule for. Targets' descriptions have these attributes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, cast


@dataclass(frozen=True)
class DotProduct:
    """An instruction that adds products of bytes to i32 sums: ``acc[l] += sum of x[q] * w[l, q] for q < depth``.

    `lanes` sums at once, 0 for one in a scalar register; `signs` of x and w ("u" or "s"); `rows` and `columns` are the
    tile of sums that fits the registers, rows of x by (vectors of) columns of w.
    """

    name: str
    lanes: int
    depth: int
    signs: tuple[str, str]
    rows: int
    columns: int


@dataclass(frozen=True)
class TileProduct:
    """An instruction on registers that hold matrices: ``acc[m, n] += sum of x[m, k] * w[k, n]`` in f32 or i32.

    Each of the `registers` holds up to `rows` rows of `row_bytes` bytes. Factors are `dtype` (bf16 or i8), `signs`
    those of x and w ("u", "s"; "f" for floats). In w as many numbers of the reduction as make 4 bytes, its `group`, are
    neighbours: ``w[k // group, n, k % group]``.
    """

    name: str
    dtype: str
    signs: tuple[str, str]
    rows: int = 16
    row_bytes: int = 64
    registers: int = 8

    @property
    def size(self) -> int:
        """Bytes of a factor."""
        return {"bf16": 2, "i8": 1}[self.dtype]

    @property
    def group(self) -> int:
        return 4 // self.size

    @property
    def depth(self) -> int:
        """How much of the reduction a row holds."""
        return self.row_bytes // self.size

    @property
    def columns(self) -> int:
        """How many sums a row holds."""
        return self.row_bytes // 4


class Machine(Protocol):
    """Sizes in bytes; `cores` is the number of threads a program may use."""

    @property
    def vector_bytes(self) -> int: ...
    @property
    def vector_registers(self) -> int: ...
    @property
    def l1_bytes(self) -> int: ...
    @property
    def l2_bytes(self) -> int: ...
    @property
    def cores(self) -> int: ...


def one_thread(machine: Machine) -> Machine:
    """The machine as one of its threads sees it: for a kernel that a thread runs as a part of another one."""
    return cast(Machine, replace(cast(Any, machine), cores=1))


def lanes(machine: Machine, dtype: str = "f32") -> int:
    """Vector lanes of a dtype (at least 4 for narrow types on narrow machines)."""
    size = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "index": 8, "f16": 4, "bf16": 4, "i16": 4, "i8": 4, "i1": 4}[dtype]
    return max(machine.vector_bytes // size, 1)
