"""systolic32 as RTL: builds rtl/systolic32 with Verilator for a chip's sizes, and runs assembled programs on it."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewright.targets.accelerator.binary import ChipProgram, Formats
from tilewright.targets.accelerator.verilog import package
from tilewright.targets.chips.systolic32 import Systolic32

SOURCES = Path(__file__).resolve().parents[2] / "rtl" / "systolic32"
#: why tests of the RTL cannot run here, or ""
MISSING = ", ".join(f"apt install {p}" for c, p in (("verilator", "verilator"), ("g++", "g++")) if not shutil.which(c))


def build(chip: Systolic32, folder: Path) -> Rtl:
    """The RTL of a chip, compiled into `folder`; what is there of the same sources is taken as it is."""
    if chip.array % chip.bus or chip.array & (chip.array - 1) or chip.bus & (chip.bus - 1):
        raise ValueError(f"the RTL wants powers of two and a bus not wider than a word: {chip.array}, {chip.bus}")
    sources = [*sorted(SOURCES.glob("*.sv")), SOURCES / "harness.cpp"]
    text = package(chip)
    mark = hashlib.sha256(text.encode() + b"".join(f.read_bytes() for f in sources)).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"rtl-{mark}.so"
    with open(folder / "lock", "w") as lock:  # processes of one test run build it once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=folder) as made:
                _compile(text, sources, Path(made)).rename(library)
    return Rtl(chip, library)


def _compile(formats: str, sources: Sequence[Path], folder: Path) -> Path:
    """The shared library, made in an empty folder."""
    (folder / "formats.svh").write_text(formats)
    flags = "--cc --top-module top -O3 --x-assign fast --x-initial fast --noassert"
    split = "--output-split 20000 --output-split-cfuncs 1000"  # of long functions, g++ takes minutes
    lint = "-Wall -Wno-UNUSED -Wno-DECLFILENAME -Wno-PINCONNECTEMPTY"
    files = [folder / "formats.svh", *(f for f in sources if f.suffix == ".sv")]
    _call(["verilator", *flags.split(), *split.split(), *lint.split(), "--Mdir", str(folder), *map(str, files)])
    root = Path(_call(["verilator", "--getenv", "VERILATOR_ROOT"]).strip())
    includes = [f"-I{folder}", f"-I{root}/include", f"-I{root}/include/vltstd"]
    code = [*(f for f in sources if f.suffix == ".cpp"), *folder.glob("Vtop*.cpp")]
    code += [root / "include" / f"verilated{part}.cpp" for part in ("", "_threads")]
    options = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-DVM_COVERAGE=0", "-DVM_TRACE=0", "-w"]
    _call(["g++", *options, *includes, *map(str, code), "-o", str(folder / "rtl.so")])
    return folder / "rtl.so"


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
