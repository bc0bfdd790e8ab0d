"""A small ELF reader: section sizes, and the symbols that a file defines and needs."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_WRITE, _ALLOC, _EXEC = 1, 2, 4
_NOBITS = 8


@dataclass(frozen=True)
class Elf:
    """Sections as (name, flags, type, size), and the names of global symbols."""

    sections: tuple[tuple[str, int, int, int], ...]
    defined: tuple[str, ...]
    undefined: tuple[str, ...]

    def sizes(self) -> dict[str, int]:
        """Bytes of code, read-only data, initialized data and zeroed data."""
        found = {"text": 0, "rodata": 0, "data": 0, "bss": 0}
        for name, flags, kind, size in self.sections:
            if not flags & _ALLOC or name.startswith((".ARM.", ".eh_frame")):
                continue
            where = "bss" if kind == _NOBITS else "text" if flags & _EXEC else "data" if flags & _WRITE else "rodata"
            found[where] += size
        return found


def read(data: bytes) -> Elf:
    """An object or an image, little-endian; ValueError for anything else."""
    if data[:4] != b"\x7fELF" or data[5] != 1:
        raise ValueError("not a little-endian ELF file")
    wide = data[4] == 2
    offset = struct.unpack_from("<Q" if wide else "<I", data, 40 if wide else 32)[0]
    entry, count, names_at = struct.unpack_from("<HHH", data, 58 if wide else 46)
    raw = []
    for i in range(count):
        at = offset + i * entry
        if wide:
            name, kind, flags, _, start, size, link = struct.unpack_from("<IIQQQQI", data, at)
        else:
            name, kind, flags, _, start, size, link = struct.unpack_from("<IIIIIII", data, at)
        raw.append((name, kind, flags, start, size, link))
    strings = raw[names_at][3]
    sections = tuple((_text(data, strings + n), flags, kind, size) for n, kind, flags, _, size, _ in raw)
    defined: list[str] = []
    undefined: list[str] = []
    for _, kind, _, start, size, link in raw:
        if kind != 2:
            continue
        step = 24 if wide else 16
        for at in range(start + step, start + size, step):
            if wide:
                name, info, _, section = struct.unpack_from("<IBBH", data, at)
            else:
                name, _, _, info, _, section = struct.unpack_from("<IIIBBH", data, at)
            if info >> 4 in (1, 2):
                (undefined if section == 0 else defined).append(_text(data, raw[link][3] + name))
    return Elf(sections, tuple(defined), tuple(undefined))


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def archive(members: dict[str, bytes]) -> bytes:
    """A static library with an index of its symbols, the same bytes for the same members."""
    bodies, symbols, offsets = [], [], []
    long_names = b"".join(f"{name}/\n".encode() for name in members)
    place = 0
    name_at = {}
    for name in members:
        name_at[name] = place
        place += len(name) + 2
    for name, data in members.items():
        symbols.append(read(data).defined)
        bodies.append((f"/{name_at[name]}", data))
    count = sum(map(len, symbols))
    index_size = 4 + 4 * count + sum(len(s) + 1 for group in symbols for s in group)
    at = 8 + 60 + index_size + index_size % 2 + 60 + len(long_names) + len(long_names) % 2
    for _, data in bodies:
        offsets.append(at)
        at += 60 + len(data) + len(data) % 2
    index = struct.pack(">I", count)
    index += b"".join(struct.pack(">I", o) for o, group in zip(offsets, symbols, strict=True) for _ in group)
    index += b"".join(s.encode() + b"\0" for group in symbols for s in group)
    parts = [b"!<arch>\n", _member("/", index), _member("//", long_names)]
    return b"".join([*parts, *(_member(name, data) for name, data in bodies)])


def _member(name: str, data: bytes) -> bytes:
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(data):<10}`\n".encode()
    return head + data + b"\n" * (len(data) % 2)
