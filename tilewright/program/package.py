"""A compiled model: program, object code, weights and the IR of every level; in memory and as one ``.tw`` file.

The file:

    magic (8 bytes) | format version u32 | CRC-32 of the manifest u32 | offset u64 and length u64 of the manifest
    sections, each at a multiple of 4096: "objects", "weights", "levels"
    manifest (JSON)

A file holds one program, or several that share constants: its entries (docs/programs.md). Equal constants and equal
code are in it once. The manifest has the versions, the target and its description, the program, code and weights of
each entry, and a table of the sections with offset, size and one CRC-32 for each 16 MiB; of one entry alone, these lie
in the manifest itself. Weights are used where they lie in the file, through a memory map.
Nothing here imports MLIR.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from .. import __version__
from ..support.errors import PackageError, UsageError
from ..support.files import replacing, written
from ..support.huge_pages import release_pages
from ..support.limits import usable_cores
from ..support.mapped_file import MappedFile, map_file
from ..support.mapped_file import check as check_files
from .program import ALIGN, Program, TensorInfo, align_up

MAGIC = b"\x93TILEWR\n"
#: raised whenever a package of the older kind can no longer be read
FORMAT = 3
#: of programs with states, which versions that know only FORMAT refuse by this number; of files with several entries
FORMAT_WITH_STATES, FORMAT_WITH_ENTRIES = 4, 5
#: of programs with open dimensions, which formulas call by number
FORMAT_WITH_DIMENSIONS = 8
#: the name of the entry where there is one
MAIN = "main"
#: of the file's format, for all machines: bytes to whose multiples sections are moved, so that they can be mapped, and
#: bytes that have a checksum of their own
PAGE, CHUNK = 4096, 16 << 20
_HEAD = struct.Struct("<8sIIQQ")
_INCONSISTENT = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError, AssertionError),
    *(zlib.error, struct.error, ctypes.ArgumentError),
)


@dataclass
class Package:
    """All that an `Executable` needs. `description` is the target's own, as JSON data; `objects` are named pieces of
    binary code; `constants` follow ``program.constants`` (of a package that is only written, some may be a
    `support.lazy_array.LazyArray`); `levels` maps the name of a stage to its text; `report` is
    what ``Executable.explain`` prints.
    """

    target: str
    description: dict[str, Any]
    program: Program
    objects: dict[str, bytes]
    constants: list[np.ndarray]
    levels: dict[str, str] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    #: the file that the constants are mapped from
    file: MappedFile | None = None

    def __post_init__(self) -> None:
        for info, array in zip(self.program.constants, self.constants, strict=True):
            if array.dtype != info.numpy_dtype or array.shape != info.shape:
                raise ValueError(f"constant {info} is an array {array.dtype}{array.shape}")

    def save(self, path: str | os.PathLike[str], *, private: bool = False) -> None:
        """Write the package to a file, atomically; UsageError if the place cannot be written. See `files.replacing`."""
        save_entries({MAIN: self}, path, private=private)

    @staticmethod
    def load(
        source: str | os.PathLike[str] | MappedFile,
        check: Callable[[str, dict[str, Any]], None] | None = None,
        *,
        written: bool = False,
    ) -> Package:
        """Read a package of one entry; `check` is called with target and description before anything else is read.
        With `written`, which says that the file was written a moment ago, its weights are not read to be checked.

        PackageError: not a package, another version, truncated, or damaged anywhere; several entries.
        """
        file = source if isinstance(source, MappedFile) else open_package(source)
        entries = load_entries(file, check, written)
        if list(entries) != [MAIN]:
            raise PackageError(f"{file.path} holds the entries {', '.join(entries)}", stage="load")
        return entries[MAIN]


def save_entries(entries: Mapping[str, Package], path: str | os.PathLike[str], *, private: bool = False) -> None:
    """Write packages of one target to one file, as `Package.save`. A constant that is the same array in several of them
    is written once, and so is equal code."""
    check_files([p.file for p in entries.values() if p.file], "package", PackageError)
    with written(path, "package"), replacing(path, private=private) as f:
        _write(entries, f)


def write_package(package: Package, f: IO[bytes]) -> None:
    """Write a package of one entry to a file that is open and empty. OSError if that fails."""
    check_files([package.file] if package.file else [], "package", PackageError)
    _write({MAIN: package}, f)


# ---- writing ----


def _write(entries: Mapping[str, Package], f: IO[bytes]) -> None:
    """The sections, then the manifest that says where they are, then the head."""
    codes, arrays, size, place = dict[bytes, int](), dict[int, np.ndarray](), 0, 0
    weights: dict[int, int] = {}  # id of a constant -> where it is
    told, levels = {}, {}
    for name, package in entries.items():
        for data in package.objects.values():
            if data not in codes:
                codes[data] = size
                size += align_up(len(data))
        for array in package.constants:
            if id(array) not in weights:
                weights[id(array)], arrays[id(array)] = place, array
                place += align_up(array.nbytes)
        told[name] = {
            "program": package.program.to_json(),
            "objects": {symbol: [codes[data], len(data)] for symbol, data in package.objects.items()},
            "weights": [weights[id(array)] for array in package.constants],
            "report": package.report,
        }
        levels[name] = package.levels
    alone = list(entries) == [MAIN]
    manifest = {
        "target": package.target,
        "description": package.description,
        **(told[MAIN] if alone else {"entries": told}),
    }
    version = FORMAT_WITH_STATES if package.program.states else FORMAT
    version = FORMAT_WITH_DIMENSIONS if package.program.open else version
    version = version if alone else FORMAT_WITH_ENTRIES
    write_file(f, manifest, codes, list(arrays.values()), levels[MAIN] if alone else levels, version)


def write_file(
    f: IO[bytes],
    manifest: Mapping[str, object],
    codes: Iterable[bytes],
    arrays: Sequence[np.ndarray],
    levels: object,
    version: int = FORMAT,
) -> None:
    """The sections one after the other, each piece of them at a multiple of `ALIGN`; then the manifest with their
    places, and the head."""
    f.write(b"\0" * PAGE)
    sections = {
        "objects": _write_section(f, (data + b"\0" * (-len(data) % ALIGN) for data in codes)),
        "weights": _write_section(f, _weight_bytes(arrays)),
        "levels": _write_section(f, [zlib.compress(json.dumps(levels).encode(), 1)]),
    }
    text = json.dumps({"tilewright": __version__, **manifest, "sections": sections}).encode()
    offset = f.tell()
    f.write(text)
    f.seek(0)
    f.write(_HEAD.pack(MAGIC, version, zlib.crc32(text), offset, len(text)))


def _weight_bytes(constants: Sequence[np.ndarray]) -> Iterator[memoryview | bytes]:
    for array in constants:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        yield flat.data
        yield b"\0" * (-flat.nbytes % ALIGN)
        release_pages(flat)


def _write_section(f: IO[bytes], pieces: Iterable[memoryview | bytes]) -> dict[str, object]:
    """Write pieces one after the other, from the next page on, with a checksum for each CHUNK of the whole."""
    f.write(b"\0" * (-f.tell() % PAGE))
    offset, size, crc, crcs = f.tell(), 0, 0, []
    for piece in pieces:
        rest = memoryview(piece)
        while len(rest):
            take = rest[: CHUNK - size % CHUNK]
            f.write(take)
            crc = zlib.crc32(take, crc)
            size += len(take)
            rest = rest[len(take) :]
            if size % CHUNK == 0:
                crcs.append(crc)
                crc = 0
    if size % CHUNK:
        crcs.append(crc)
    return {"offset": offset, "size": size, "crc32": crcs}


# ---- reading ----


def open_package(path: str | os.PathLike[str], *, copy: bool = False, sha256: str | None = None) -> MappedFile:
    """The bytes of a file, mapped, or copied into memory; PackageError if it cannot be read.

    With `sha256` (64 hexadecimal digits) the bytes are copied, and PackageError says that they are others.
    """
    if sha256 is not None and not (isinstance(sha256, str) and re.fullmatch("[0-9a-fA-F]{64}", sha256)):
        raise UsageError(f"sha256 must be 64 hexadecimal digits, not {sha256!r}", stage="load")
    try:
        file = map_file(path, copy=copy or sha256 is not None)
    except OSError as e:
        raise PackageError(f"cannot read {path}: {e.strerror or e}", stage="load") from None
    if sha256 is not None and (found := hashlib.sha256(file.view).hexdigest()) != sha256.lower():
        raise PackageError(
            f"{path} is not the file that is expected: its SHA-256 is {found}",
            stage="load",
            hint="do not load it unless you know where it comes from: a package is code that runs as yours",
        )
    return file


def load_entries(
    file: MappedFile, check: Callable[[str, dict[str, Any]], None] | None = None, written: bool = False
) -> dict[str, Package]:
    """The packages in a file by the names of their entries, `MAIN` where there is one; see `Package.load`. What they
    share in the file is one array in memory."""
    with readable(file.path):
        return _entries(file, check, written)


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Whatever a damaged or forged manifest ends in is a PackageError that names the file."""
    try:
        yield
    except PackageError as e:
        e.message = e.message if str(path) in e.message else f"{path}: {e.message}"
        raise
    except _INCONSISTENT as e:
        raise _damaged(path, f"its manifest is inconsistent ({type(e).__name__}: {str(e)[:200]})") from None


def _entries(
    file: MappedFile, check: Callable[[str, dict[str, Any]], None] | None, written: bool
) -> dict[str, Package]:
    path, data = file.path, file.view
    if len(data) < _HEAD.size:
        raise _damaged(path, "it is too short")
    manifest = _manifest(path, data)
    if "dynamic" in manifest:
        raise PackageError(
            f"{path} holds a model with open shapes, a package has fixed ones",
            stage="load",
            hint="tilewright.load runs it; compile the model with inputs={name: shape} for a static package",
        )
    if check is not None:
        check(manifest["target"], manifest["description"])
    objects, weights, levels = _sections(path, data, manifest["sections"], {"weights"} if written else set())
    texts = json.loads(zlib.decompress(levels))
    if "entries" not in manifest:
        manifest, texts = {**manifest, "entries": {MAIN: manifest}}, {MAIN: texts}
    made: dict[tuple[object, ...], np.ndarray] = {}  # what entries share is one array

    def array(info: TensorInfo, at: int) -> np.ndarray:
        raw = np.frombuffer(weights, np.uint8, info.nbytes, at) if info.nbytes else np.empty(0, np.uint8)
        return made.setdefault((at, info.shape, info.dtype), raw.view(info.numpy_dtype).reshape(info.shape))

    found = {}
    for name, told in manifest["entries"].items():
        program = Program.from_json(told["program"])
        constants = [array(t, at) for t, at in zip(program.constants, told["weights"], strict=True)]
        code = {symbol: bytes(objects[at : at + size]) for symbol, (at, size) in told["objects"].items()}
        target, description = manifest["target"], manifest["description"]
        found[name] = Package(target, description, program, code, constants, texts[name], told["report"], file)
    if not found:
        raise ValueError("it has no entries")
    return found


def _manifest(path: Path, data: memoryview) -> dict[str, Any]:
    magic, version, crc, offset, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise PackageError(f"{path} is not a Tilewright package", stage="load", hint="make one with tilewright compile")
    if version not in (FORMAT, FORMAT_WITH_STATES, FORMAT_WITH_ENTRIES, FORMAT_WITH_DIMENSIONS):
        raise PackageError(
            f"{path} has package format {version}, this Tilewright ({__version__}) reads format {FORMAT}, "
            f"{FORMAT_WITH_STATES} with states, {FORMAT_WITH_ENTRIES} with several entries, and "
            f"{FORMAT_WITH_DIMENSIONS} with open dimensions",
            stage="load",
            hint="compile the model again with this version",
        )
    text = data[offset : offset + length]
    if len(text) < length:
        raise _damaged(path, f"it is truncated: {len(data)} of {offset + length} bytes are there")
    if zlib.crc32(text) != crc:
        raise _damaged(path, "the checksum of its manifest is wrong")
    header: dict[str, Any] = json.loads(bytes(text))
    if not isinstance(header, dict):
        raise _damaged(path, "its manifest is no table")
    return header


def _sections(path: Path, data: memoryview, table: dict[str, Any], trusted: Set[str] = frozenset()) -> list[memoryview]:
    """The bytes of the three sections, checked but for the `trusted` ones. The checksums run on all cores: zlib
    releases the GIL."""
    found, work = [], []
    for name in ("objects", "weights", "levels"):
        entry = table[name]
        offset, size = entry["offset"], entry["size"]
        if offset + size > len(data):
            raise _damaged(path, f"it is truncated: {len(data)} of {offset + size} bytes are there")
        section = data[offset : offset + size]
        found.append(section)
        if name not in trusted:
            work += [(name, section[i * CHUNK : (i + 1) * CHUNK], crc) for i, crc in enumerate(entry["crc32"])]
        if len(entry["crc32"]) != -(-size // CHUNK):
            raise _damaged(path, f"section {name!r} has the wrong number of checksums")
    with ThreadPoolExecutor(usable_cores()) as pool:
        for name, right in pool.map(lambda w: (w[0], zlib.crc32(w[1]) == w[2]), work):
            if not right:
                raise _damaged(path, f"the checksum of section {name!r} is wrong")
    return found


def _damaged(path: Path, why: str) -> PackageError:
    return PackageError(f"{path} is damaged: {why}", stage="load", hint="copy or compile it again")
