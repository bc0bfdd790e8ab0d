"""systolic32 as RTL: builds rtl/systolic32 with Verilator for a chip's sizes, and runs assembled programs on it."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewright.targets.accelerator.binary import ChipProgram, Formats
from tilewright.targets.accelerator.verilog import package
from tilewright.targets.chips.systolic32 import Systolic32

SOURCES = Path(__file__).resolve().parents[2] / "rtl" / "systolic32"
#: why tests of the RTL cannot run here, or ""
MISSING = ", ".join(f"apt install {p}" for c, p in (("verilator", "verilator"), ("g++", "g++")) if not shutil.which(c))


def write_package(chip: Systolic32, folder: Path) -> list[Path]:
    """The package of a chip's formats, written into `folder`, and the RTL's files behind it."""
    if chip.array % chip.bus or chip.array & (chip.array - 1) or chip.bus & (chip.bus - 1):
        raise ValueError(f"the RTL wants powers of two and a bus not wider than a word: {chip.array}, {chip.bus}")
    folder.mkdir(parents=True, exist_ok=True)
    formats = folder / "formats.svh"
    formats.write_text(package(chip))
    return [formats, *sorted(SOURCES.glob("*.sv"))]


def build(chip: Systolic32, folder: Path) -> Rtl:
    """The RTL of a chip, compiled into `folder`; what is there of the same sources is taken as it is."""
    files = write_package(chip, folder)
    text = b"".join(f.read_bytes() for f in (*files, SOURCES / "harness.cpp"))
    library = folder / f"rtl-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not library.exists():
        flags = "--cc --top-module top -O3 --x-assign fast --x-initial fast --noassert -Wall -Wno-UNUSED"
        style = "-Wno-DECLFILENAME -Wno-PINCONNECTEMPTY --output-split 40000"
        _call(["verilator", *flags.split(), *style.split(), "--Mdir", str(folder), *map(str, files)])
        root = Path(_call(["verilator", "--getenv", "VERILATOR_ROOT"]).strip())
        includes = [f"-I{folder}", f"-I{root}/include", f"-I{root}/include/vltstd"]
        made = [SOURCES / "harness.cpp", *folder.glob("Vtop*.cpp")]
        made += [root / "include" / f"verilated{part}.cpp" for part in ("", "_threads")]
        options = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-DVM_COVERAGE=0", "-DVM_TRACE=0", "-w"]
        partial = library.with_suffix(".partial")
        _call(["g++", *options, *includes, *map(str, made), "-o", str(partial)])
        partial.rename(library)
    return Rtl(chip, library)


def _call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


class Rtl:
    """A chip under Verilator."""

    def __init__(self, chip: Systolic32, library: Path) -> None:
        self.chip, self.formats = chip, Formats(chip)
        self.library = ctypes.CDLL(str(library))
        self.library.chip_new.restype = self.library.chip_error.restype = ctypes.c_void_p
        self.library.chip_run.restype = ctypes.c_int64
        self.handle = ctypes.c_void_p(self.library.chip_new(chip.bus, chip.bus_latency))

    def run(
        self, program: ChipProgram | bytes, arguments: Sequence[np.ndarray], limit: int = 10**7
    ) -> tuple[int, dict[str, int]]:
        """Runs a program on arrays, which it changes: cycles, and how many instructions each engine finished.
        RuntimeError if it is not done after `limit` cycles, or writes outside of an array."""
        if isinstance(program, bytes):
            program = self.formats.disassemble(program)
        engines = self.formats.engines
        streams = [b"".join(map(self.formats.encode, program.streams.get(e, ()))) for e in engines]
        counts = [len(program.streams.get(e, ())) for e in engines]
        widths = [4 * self.formats.words(e) for e in engines]
        finished = (ctypes.c_uint32 * len(engines))()
        cycles = self.library.chip_run(
            self.handle,
            (ctypes.c_char_p * len(engines))(*streams),
            (ctypes.c_uint32 * len(engines))(*counts),
            (ctypes.c_uint32 * len(engines))(*widths),
            (ctypes.c_void_p * len(arguments))(*(a.ctypes.data for a in arguments)),
            (ctypes.c_uint64 * len(arguments))(*(a.nbytes for a in arguments)),
            len(arguments),
            ctypes.c_int64(limit),
            finished,
            self.chip.count_bits,
        )
        if cycles < 0:
            text = ctypes.cast(self.library.chip_error(self.handle), ctypes.c_char_p).value or b""
            raise RuntimeError(f"{program.name} on the RTL: {text.decode()}; finished {list(finished)} of {counts}")
        return cycles, dict(zip(engines, finished, strict=True))
