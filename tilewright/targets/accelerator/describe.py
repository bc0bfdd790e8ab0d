"""The vocabulary of a chip description: memories, copy engines (DMA), compute engines, instructions and their operands.

A chip is a frozen dataclass that inherits `Chip`; its fields are design parameters, and its methods say, by these, what
the chip consists of. Everything else follows from that: see docs/add_a_chip.md.

    @dataclass(frozen=True)
    class Adder(Chip):
        lanes: int = 8

        name: ClassVar[str] = "adder"

        def spaces(self):
            return (ChipMemory("rows", 4096, word=4 * self.lanes),)

        def copy_engines(self):
            return (CopyEngine("load", sources=(HOST,), targets=("rows",), bytes_per_cycle=16),
                    CopyEngine("store", sources=("rows",), targets=(HOST,), bytes_per_cycle=16))

        def compute_engines(self):
            return (ComputeEngine("alu"),)

        def instructions(self):
            dims = (Dim("m", 64, levels=1), Dim("n", self.lanes))
            row = [Operand(x, "rows", "f32", ("m", "n")) for x in "xy"]
            out = Operand("sum", "rows", "f32", ("m", "n"), access="write")
            return (Instruction("add", "alu", dims, (*row, out), body=lambda x, y: x + y, cycles=lambda f: f.m),)

An engine is what runs beside others: it takes the instructions of its own stream in order. Instructions of different
engines wait for each other by counts: "not before engine load has finished 17 instructions". The assembler finds these
counts from what the instructions read and write; nobody writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...schedule.machine import Machine, Memory
from ...support import providers
from ...support.dtypes import LOOP_TYPES

if TYPE_CHECKING:
    from ...schedule.nest import For
    from ...tensor.expr import Buffer

#: the memory of the machine that the chip belongs to, where the arguments of kernels lie
HOST = "host"
READ, WRITE, ACCUMULATE = "read", "write", "accumulate"


@dataclass(frozen=True)
class ChipMemory(Memory):
    """A memory on the chip: `bytes`, and the `word` in bytes that its addresses count.

    Rows of operands begin at words. `banks`: how many of its words can be read or written in a cycle. `at`: where it
    lies in the host's address map, if the host sees it. `energy`: picojoules for a byte read or written.

    >>> ChipMemory("weights", 1 << 17, word=32).words
    4096
    """

    word: int = 1
    banks: int = 1
    at: int | None = None
    energy: float = 0.0

    @property
    def words(self) -> int:
        return self.bytes // self.word


@dataclass(frozen=True)
class Engine:
    """What takes instructions from a stream of its own, one after the other.

    What one of them writes, the next ones of the same engine find: engines see to that themselves. `queue`: how many
    may be under way before the next one begins.
    """

    name: str
    queue: int = 4


@dataclass(frozen=True)
class ComputeEngine(Engine):
    """An engine that computes: a matrix unit, a vector unit, what is behind the accumulators."""


@dataclass(frozen=True)
class CopyEngine(Engine):
    """An engine that copies boxes from a memory of `sources` to one of `targets`.

    A copy is runs of bytes, walked by up to `levels` nested strides on either side. It takes `setup` cycles, then for
    every run as many as it has pieces of `bytes_per_cycle`; its last byte is there `latency` cycles later, while the
    next copy is under way. `fill`: it can also write a constant byte instead. `energy`: picojoules a byte of the host's
    memory.
    """

    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    bytes_per_cycle: int = 16
    latency: int = 32
    setup: int = 1
    levels: int = 3
    fill: bool = False
    energy: float = 0.0

    def cycles(self, runs: int, run_bytes: int) -> int:
        """Cycles until the next copy can begin.

        >>> CopyEngine("load", sources=("host",), targets=("rows",), setup=2).cycles(3, 20)
        8
        """
        return self.setup + runs * -(-run_bytes // self.bytes_per_cycle)


@dataclass(frozen=True)
class Dim:
    """A dimension of an instruction: up to `limit` steps. With `levels` it is walked by so many nested loops, whose
    counts and strides (one for each operand) are in the instruction; without, its elements are neighbours."""

    name: str
    limit: int
    levels: int = 0


@dataclass(frozen=True)
class Operand:
    """What an instruction reads or writes: a place in `memory`, the element type, the dimensions.

    The last dimension is a run of neighbours that begins at a word; those before have strides in words, in the
    instruction if the `Dim` has levels, unless the operand is `dense`: then, and where there are no levels, one run
    follows the other. `access`: "read", "write", or "accumulate", which adds to what is there unless the instruction
    starts anew.
    """

    name: str
    memory: str
    dtype: str
    dims: tuple[str, ...]
    access: str = READ
    dense: bool = False

    @property
    def numpy(self) -> np.dtype:
        return LOOP_TYPES[self.dtype].numpy


@dataclass(frozen=True)
class Field:
    """A number in the instruction that its body takes: `bits` wide, with a sign or without. One bit without a sign is a
    choice: kernels are matched with what the body does for 0, and for 1."""

    name: str
    bits: int
    signed: bool = True
    dtype: str = "i32"

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest number it holds."""
        return (-(1 << self.bits - 1), (1 << self.bits - 1) - 1) if self.signed else (0, (1 << self.bits) - 1)


Cycles = int | tuple[int, ...]


@dataclass(frozen=True)
class Instruction:
    """An instruction of a compute engine.

    `body` takes the operands that it reads or accumulates as NumPy arrays of their dims, then its fields by name, and
    gives what it writes (a tuple of several): this is its meaning, its simulator, and what kernels are matched with.
    `cycles` says how long it keeps the engine busy, or each part of the engine's pipeline in a tuple; `latency`, how
    many cycles after that its result is there; `energy`, picojoules beside those of memories. All three are asked with
    the counts of its dimensions and its fields: ``lambda f: f.m + 2``.
    """

    name: str
    engine: str
    dims: tuple[Dim, ...]
    operands: tuple[Operand, ...]
    body: Callable[..., Any]
    cycles: Callable[[Any], Cycles]
    fields: tuple[Field, ...] = ()
    latency: Callable[[Any], int] = lambda f: 1
    energy: Callable[[Any], float] = lambda f: 0.0

    def dim(self, name: str) -> Dim:
        return next(d for d in self.dims if d.name == name)

    def operand(self, name: str) -> Operand:
        return next(o for o in self.operands if o.name == name)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """What the body takes."""
        return tuple(o for o in self.operands if o.access != WRITE)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.access != READ)

    @property
    def accumulates(self) -> bool:
        return any(o.access == ACCUMULATE for o in self.operands)

    def busy(self, counts: Mapping[str, int]) -> tuple[int, ...]:
        """The cycles of each part of the pipeline."""
        found = self.cycles(SimpleNamespace(**counts))
        return found if isinstance(found, tuple) else (found,)

    def delay(self, counts: Mapping[str, int]) -> int:
        return self.latency(SimpleNamespace(**counts))

    def joules(self, counts: Mapping[str, int]) -> float:
        """Picojoules of the computation alone."""
        return self.energy(SimpleNamespace(**counts))


@dataclass(frozen=True)
class Chip(Machine):
    """A chip: inherit it, as a frozen dataclass whose fields are the design's parameters.

    `name` and `doc` are what users call it, `clock` is its frequency in hertz; `area`, a method, gives an estimate in
    square millimetres, which `explore` shows beside cycles and energy.
    """

    name: ClassVar[str] = ""
    doc: ClassVar[str] = ""
    clock: ClassVar[float] = 1e9
    #: multiply-adds that the host does in a second, if it must: what is slower on the chip stays there
    host_rate: ClassVar[float] = 2e9
    #: bits of the counts that instructions wait for
    count_bits: ClassVar[int] = 20
    #: kernel arguments that an instruction can name
    arguments: ClassVar[int] = 16

    def spaces(self) -> Sequence[ChipMemory]:
        """The memories on the chip."""
        raise NotImplementedError

    def copy_engines(self) -> Sequence[CopyEngine]:
        raise NotImplementedError

    def compute_engines(self) -> Sequence[ComputeEngine]:
        raise NotImplementedError

    def instructions(self) -> Sequence[Instruction]:
        raise NotImplementedError

    def area(self) -> float:
        """Square millimetres, estimated; 0 if nobody said."""
        return 0.0

    @property
    def halves(self) -> str:
        """Both words of a product are at hand: an instruction needs no operands to see that it ends in a half."""
        return "product"

    @property
    def byte_factors(self) -> str:
        """A chip that multiplies bytes takes them from anywhere: neither factor need be constant."""
        products = (i for i in self.instructions() if i.accumulates)
        return "any" if any(sum(o.dtype == "i8" for o in i.inputs) > 1 for i in products) else "constant"

    @property
    def row_piece(self) -> int:
        """A copy engine takes runs of any length: no host is there to move what is not stored where it belongs."""
        return 1

    @property
    def engines(self) -> tuple[Engine, ...]:
        """All engines, those that copy first: the order of streams in a program."""
        return (*self.copy_engines(), *self.compute_engines())

    @property
    def memories(self) -> tuple[Memory, ...]:
        """Those on the chip, and "register": what an instruction holds while it runs."""
        return (*self.spaces(), Memory("register"))

    @property
    def instruction_names(self) -> tuple[str, ...]:
        """See `schedule.primitives.tensorize.Tensorizing`, as for `tensorized`."""
        return tuple(i.name for i in self.instructions())

    def tensorized(
        self, loop: For, instruction: str, buffers: Mapping[str, Buffer], ranges: Mapping[str, tuple[int, int]]
    ) -> For | str:
        made: For | str = providers.ask("tensorize")(self.instruction(instruction), loop, buffers, ranges)
        return made

    def space(self, name: str) -> ChipMemory:
        return next(m for m in self.spaces() if m.name == name)

    def instruction(self, name: str) -> Instruction:
        return next(i for i in self.instructions() if i.name == name)


@dataclass(frozen=True)
class Listing:
    """What a chip consists of, by name; made once, as descriptions are functions of their parameters."""

    chip: Chip
    memories: dict[str, ChipMemory] = field(default_factory=dict)
    engines: dict[str, Engine] = field(default_factory=dict)
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @staticmethod
    def of(chip: Chip) -> Listing:
        return Listing(
            chip,
            {m.name: m for m in chip.spaces()},
            {e.name: e for e in chip.engines},
            {i.name: i for i in chip.instructions()},
        )

    def copy_engine(self, source: str, target: str) -> CopyEngine | None:
        """The engine that copies from one memory to another."""
        for e in self.engines.values():
            if isinstance(e, CopyEngine) and source in e.sources and target in e.targets:
                return e
        return None
