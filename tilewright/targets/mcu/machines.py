"""Machine records of microcontrollers: LLVM's triple and features, costs for schedules, and the simulated board.

To add a machine, add an entry to `MACHINES`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...schedule.machine import DotProduct, Machine
from ...support.errors import PackageError
from ..processor import Processor

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class MemoryRegion:
    """A piece of a board's memory."""

    origin: int
    size: int


@dataclass(frozen=True)
class Board:
    """A machine of QEMU and where an image for it lies: `code` begins with the vector table or the first instruction.

    `command` is the program and its arguments up to the image. `tick` is the number of instructions of one tick of the
    counter that `clock` names ("systick": 24 bits, counting down; "cycles": the cycle counter; "" for none).
    """

    command: tuple[str, ...]
    code: MemoryRegion
    data: MemoryRegion
    clock: str = ""
    tick: float = 1.0
    note: str = ""
    start: str = (
        "arm-m"  # how execution begins: "arm-m" vector table, "riscv" bare metal, "process" of an operating system
    )
    vectors: MemoryRegion | None = None  # where the vector table lies, if not at the beginning of `code`


@dataclass(frozen=True)
class McuDescription(Machine):
    """A processor: `code` for the code generator, `fpu` whether it has one, `board` to simulate it; what is to be done
    about memory as in `tilewright.targets.c.describe`."""

    name: str
    doc: str
    code: Processor
    fpu: bool
    board: Board
    semihosting: str
    arena_align: int = 8
    minimize_memory: bool = True
    stream_rows: bool = True

    @property
    def vector_bytes(self) -> int:
        return self.code.vector_bytes

    @property
    def vector_registers(self) -> int:
        return self.code.vector_registers

    @property
    def l1_bytes(self) -> int:
        return self.code.l1_bytes

    @property
    def l2_bytes(self) -> int:
        return self.code.l2_bytes

    @property
    def dot_products(self) -> tuple[DotProduct, ...]:
        return self.code.dot_products

    @property
    def bits(self) -> int:
        return self.code.index_bits

    def to_json(self) -> dict[str, object]:
        return {"name": self.name, "arena_align": self.arena_align, "code": self.code.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> McuDescription:
        """That of this name; PackageError if there is none, or it is described otherwise now."""
        found = next((m for m in MACHINES if m.name == data.get("name")), None)
        if found is None or found.to_json() != data:
            hint = "compile the model again with this version"
            raise PackageError(f"there is no machine {data.get('name')!r} of this description", stage="load", hint=hint)
        return found


def _arm(triple: str, cpu: str, registers: int, vector: int = 4) -> Processor:
    own = f"{triple}-unknown-none-eabi"
    return Processor(own, cpu, (), vector, registers, 16 * KIB, 64 * KIB, 256 * KIB, index_bits=32, reloc="static")


def _hard(d: Processor) -> Processor:
    """The calling convention that passes floats in the registers of the FPU."""
    return replace(d, triple=d.triple + "hf")


def _riscv(
    arch: str, cpu: str, features: tuple[str, ...], bits: int, abi: str, vector: int = 4, registers: int = 20
) -> Processor:
    triple = f"{arch}-unknown-none-elf"
    return Processor(
        triple,
        cpu,
        features,
        vector,
        registers,
        32 * KIB,
        128 * KIB,
        512 * KIB,
        index_bits=bits,
        abi=abi,
        reloc="static",
    )


#: no screen, no console; every instruction takes 1 ns; files of the host by semihosting
QUIET = (
    *("-display", "none", "-monitor", "none", "-serial", "none", "-icount", "shift=0"),
    *("-semihosting-config", "enable=on,target=native", "-kernel"),
)


def _mps(
    machine: str,
    code: MemoryRegion,
    data: MemoryRegion,
    tick: float,
    note: str = "",
    vectors: MemoryRegion | None = None,
) -> Board:
    return Board(("qemu-system-arm", "-machine", machine, *QUIET), code, data, "systick", tick, note, vectors=vectors)


# 25 MHz boards: one tick is 40 ns, and with `-icount shift=0` an instruction takes 1 ns
_MPS2 = (MemoryRegion(0x0000_0000, 4 * MIB), MemoryRegion(0x2000_0000, 4 * MIB))

MACHINES = (
    McuDescription(
        "cortex-m0plus",
        "Arm Cortex-M0+: no FPU, no DSP instructions; object files",
        _arm("thumbv6m", "cortex-m0plus", 8),
        False,
        _mps("mps2-an385", *_MPS2, 40.0, note="on a Cortex-M3, whose instruction set contains that of the M0+"),
        "arm-m",
    ),
    McuDescription(
        "cortex-m3",
        "Arm Cortex-M3: no FPU; object files",
        _arm("thumbv7m", "cortex-m3", 10),
        False,
        _mps("mps2-an385", *_MPS2, 40.0),
        "arm-m",
    ),
    McuDescription(
        "cortex-m4",
        "Arm Cortex-M4 with single-precision FPU and DSP instructions; object files",
        _hard(_arm("thumbv7em", "cortex-m4", 20)),
        True,
        _mps("mps2-an386", *_MPS2, 40.0),
        "arm-m",
    ),
    McuDescription(
        "cortex-m7",
        "Arm Cortex-M7 with FPU and DSP instructions; object files",
        _hard(_arm("thumbv7em", "cortex-m7", 20)),
        True,
        _mps("mps2-an500", *_MPS2, 40.0),
        "arm-m",
    ),
    McuDescription(
        "cortex-m33",
        "Arm Cortex-M33 with single-precision FPU and DSP instructions; object files",
        _hard(_arm("thumbv8m.main", "cortex-m33", 20)),
        True,
        _mps("mps2-an505", MemoryRegion(0x1000_0000, 4 * MIB), MemoryRegion(0x8000_0000, 16 * MIB), 50.0),
        "arm-m",
    ),
    McuDescription(
        "cortex-m55",
        "Arm Cortex-M55 with Helium vectors (MVE); object files",
        _hard(_arm("thumbv8.1m.main", "cortex-m55", 8, vector=16)),
        True,
        _mps(
            "mps3-an547",
            MemoryRegion(0x0100_0000, 2 * MIB),
            MemoryRegion(0x6000_0000, 64 * MIB),
            31.25,
            vectors=MemoryRegion(0, 512 * KIB),
        ),
        "arm-m",
        arena_align=16,
    ),
    McuDescription(
        "riscv32imc",
        "32-bit RISC-V without FPU (RV32IMC); object files",
        _riscv("riscv32", "generic-rv32", ("m", "c"), 32, "ilp32"),
        False,
        Board(
            ("qemu-system-riscv32", "-machine", "virt", "-bios", "none", *QUIET),
            MemoryRegion(0x8000_0000, 16 * MIB),
            MemoryRegion(0x8100_0000, 16 * MIB),
            "cycles",
            start="riscv",
        ),
        "riscv",
    ),
    McuDescription(
        "riscv64gcv",
        "64-bit RISC-V with vectors (RV64GCV, 128 bits or more); object files",
        _riscv(
            "riscv64", "generic-rv64", ("m", "a", "f", "d", "c", "v", "zvl128b"), 64, "lp64d", vector=16, registers=32
        ),
        True,
        Board(
            ("qemu-riscv64", "-cpu", "rv64,v=true,vlen=256,vext_spec=v1.0"),
            MemoryRegion(0x1000_0000, 256 * MIB),
            MemoryRegion(0x4000_0000, 256 * MIB),
            start="process",
        ),
        "riscv",
        arena_align=16,
    ),
    McuDescription(
        "aarch64",
        "64-bit Arm with NEON and dot products (Cortex-A76); object files",
        Processor(
            "aarch64-unknown-none-elf", "cortex-a76", ("neon", "dotprod"), 16, 32, 64 * KIB, 512 * KIB, reloc="static"
        ),
        True,
        Board(
            ("qemu-aarch64", "-cpu", "max"),
            MemoryRegion(0x1000_0000, 256 * MIB),
            MemoryRegion(0x4000_0000, 256 * MIB),
            start="process",
        ),
        "aarch64",
        arena_align=16,
    ),
)
