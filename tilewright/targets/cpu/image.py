"""Object files linked into memory that can run, without LLVM: a process that only loads models does not pay the 40 MB
and the time that LLVM's library takes.

Only what our own kernels need is here: relocatable ELF files for x86-64 with code and constants, which call each other
and functions of the C library (System V ABI, AMD64 supplement, sections 4.4 and 5.2). Whatever else there is in an
object raises `Unlinkable`, and is left to LLVM.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...program.program import align_up
from ...support.errors import PackageError

_HEADER = struct.Struct("<4sBBB9xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMTAB, _RELA_TYPE, _UNWIND = 1, 2, 4, 0x70000001
_WRITE, _ALLOC, _TLS = 1, 2, 1024
_UNDEFINED, _FIRST_RESERVED = 0, 0xFF00

# ---- relocations: S symbol, A addend, P place, G slot that holds S ----
_64, _PC32, _PLT32, _GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX = 1, 2, 4, 9, 41, 42
#: jmp through the slot at a distance, which fills eight bytes with the two that pad it
_STUB = struct.Struct("<2si2x")


class Unlinkable(Exception):
    """An object has something that is not linked here; the text says what."""


@dataclass(frozen=True)
class _Section:
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class _Object:
    """The parts of one file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        magic, bits, order, _, kind, machine, _, _, _, at, _, _, _, _, entry, count, _ = _HEADER.unpack_from(data)
        if (magic, bits, order, kind, machine, entry) != (b"\x7fELF", 2, 1, _RELOCATABLE, _X86_64, _SECTION.size):
            raise Unlinkable("it is no relocatable ELF file for x86-64")
        self.sections = [_Section(*_SECTION.unpack_from(data, at + i * entry)) for i in range(count)]
        self.symbols: list[tuple[str, int, int, bool]] = []  # name, section, value, whether others see it
        for table in (s for s in self.sections if s.kind == _SYMTAB):
            names = self.sections[table.link].offset
            for i in range(table.size // _SYMBOL.size):
                name, info, _, section, value, _ = _SYMBOL.unpack_from(data, table.offset + i * _SYMBOL.size)
                self.symbols.append((self.text(names + name), section, value, info >> 4 != 0))

    def text(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode()

    def loaded(self) -> Iterator[tuple[int, _Section]]:
        """The sections that are there when the code runs; nothing unwinds the stack."""
        for i, s in enumerate(self.sections):
            if s.flags & _ALLOC and s.size and s.kind != _UNWIND:
                if s.kind != _PROGBITS or s.flags & (_WRITE | _TLS):
                    raise Unlinkable(f"it has a section of kind {s.kind} with flags {s.flags}")
                if s.offset + s.size > len(self.data) or s.align > mmap.PAGESIZE:
                    raise ValueError("a section exceeds its object")
                yield i, s

    def relocations(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Section, offset in it, kind, symbol, addend."""
        for table in self.sections:
            changed = self.sections[table.info] if table.kind == _RELA_TYPE else None
            if changed is not None and changed.flags & _ALLOC and changed.kind != _UNWIND:
                for i in range(table.size // _RELA.size):
                    offset, info, addend = _RELA.unpack_from(self.data, table.offset + i * _RELA.size)
                    yield table.info, offset, info & 0xFFFFFFFF, info >> 32, addend


class Image(dict[str, int]):
    """Addresses of symbols by name; holds the memory that they point into."""

    def __init__(self, memory: mmap.mmap, symbols: Mapping[str, int]) -> None:
        super().__init__(symbols)
        self._memory = memory


def usable() -> bool:
    """Whether objects can be linked here on this system."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def link(objects: Mapping[str, bytes], wanted: Iterable[str]) -> Image:
    """Link object files with each other and with the C library; the addresses of the symbols `wanted`.

    `Unlinkable` leaves it to others; PackageError if an object is damaged or needs what is nowhere.
    """
    try:
        return _Linker([_Object(data) for data in objects.values()]).run(wanted)
    except (struct.error, IndexError, ValueError, KeyError) as e:
        raise PackageError(f"the compiled program does not link: {type(e).__name__}: {e}", stage="load") from None


class _Linker:
    """First a place for every section, then for a stub and a slot of every function from outside; then all is copied
    and the relocations are filled in."""

    def __init__(self, objects: list[_Object]) -> None:
        self.objects = objects
        self.places: dict[tuple[int, int], int] = {}  # object, section -> offset
        self.size = 0
        for n, o in enumerate(objects):
            for i, s in o.loaded():
                at = align_up(self.size, max(s.align, 16))
                self.places[n, i], self.size = at, at + s.size
        self.defined: dict[str, int] = {}  # symbol -> offset
        for n, o in enumerate(objects):
            for name, section, value, visible in o.symbols:
                if visible and section != _UNDEFINED:
                    if name in self.defined:
                        raise ValueError(f"symbol {name} is defined twice")
                    self.defined[name] = self.offset(n, section) + value
        outside = {s[0] for o in objects for s in o.symbols if s[3] and s[1] == _UNDEFINED} - set(self.defined)
        self.stubs = {name: align_up(self.size, 16) + 16 * i for i, name in enumerate(sorted(outside))}
        self.size = align_up(self.size, 16) + 16 * len(outside)

    def offset(self, n: int, section: int) -> int:
        if section >= _FIRST_RESERVED or (n, section) not in self.places:
            raise Unlinkable(f"it has a symbol in section {section}")
        return self.places[n, section]

    def run(self, wanted: Iterable[str]) -> Image:
        memory = mmap.mmap(
            -1,
            max(self.size, 1),
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for (n, i), at in self.places.items():
            s = self.objects[n].sections[i]
            memory[at : at + s.size] = self.objects[n].data[s.offset : s.offset + s.size]
        for name, at in self.stubs.items():
            _STUB.pack_into(memory, at, b"\xff\x25", 2)
            struct.pack_into("<Q", memory, at + 8, _process_symbol(name))
        for n, o in enumerate(self.objects):
            for section, offset, kind, symbol, addend in o.relocations():
                self.relocate(memory, base, self.places[n, section] + offset, kind, self.target(n, symbol), addend)
        _protect(base, len(memory))
        return Image(memory, {name: base + self.defined[name] for name in wanted})

    def target(self, n: int, symbol: int) -> tuple[int, str]:
        """The offset of a symbol (of the stub of one from outside), and its name."""
        name, section, value, _ = self.objects[n].symbols[symbol]
        if section != _UNDEFINED:
            return self.offset(n, section) + value, name
        return (self.defined[name] if name in self.defined else self.stubs[name]), name

    def relocate(self, memory: mmap.mmap, base: int, at: int, kind: int, target: tuple[int, str], addend: int) -> None:
        place, name = target
        if kind in (_PC32, _PLT32):
            struct.pack_into("<i", memory, at, place + addend - at)
        elif kind == _64 and name not in self.stubs:
            struct.pack_into("<Q", memory, at, base + place + addend)
        elif kind in (_GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX) and name in self.stubs:
            struct.pack_into("<i", memory, at, place + 8 + addend - at)  # the slot behind the stub
        else:
            raise Unlinkable(f"it has a relocation of kind {kind} for {name or 'a section'}")


def _process_symbol(name: str) -> int:
    """The address of a function of this process."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        try:
            function = getattr(ctypes.CDLL("libm.so.6"), name)
        except (AttributeError, OSError):
            raise ValueError(f"symbol {name} is nowhere") from None
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _protect(address: int, size: int) -> None:
    """From here on the memory can be run and not written."""
    libc = ctypes.CDLL(None, use_errno=True)
    protect = libc.mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(address, size, mmap.PROT_READ | mmap.PROT_EXEC):
        error = ctypes.get_errno()
        raise Unlinkable(f"the system does not let memory be run (error {error})")
