"""A compiled model: program, object code, weights and the IR of every level; in memory and as one ``.tw`` file.

The file:

    magic (8 bytes) | format version u32 | CRC-32 of the manifest u32 | offset u64 and length u64 of the manifest
    sections, each at a multiple of 4096: "objects", "weights", "levels"
    manifest (JSON)

The manifest has the versions, the target and its description, the program, and a table of the sections with offset,
size and one CRC-32 for each 16 MiB. Weights are used where they lie in the file, through a memory map. Nothing here
imports MLIR.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from .. import __version__
from ..support.errors import PackageError, UsageError
from ..support.files import replacing
from ..support.limits import usable_cores
from ..support.mapped_file import MappedFile, map_file
from ..support.mapped_file import check as check_files
from .program import ALIGN, Program, align_up

MAGIC = b"\x93TILEWR\n"
#: raised whenever a package of the older kind can no longer be read
FORMAT = 3
#: of programs with states, which versions that know only FORMAT refuse by this number
FORMAT_WITH_STATES = 4
PAGE = 4096
CHUNK = 16 << 20
_HEAD = struct.Struct("<8sIIQQ")


@dataclass
class Package:
    """All that an `Executable` needs. `description` is the target's own, as JSON data; `objects` are named pieces of
    binary code; `constants` follow ``program.constants``; `levels` maps the name of a stage to its text; `report` is
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

    def save(self, path: str | os.PathLike, *, private: bool = False) -> None:
        """Write the package to a file, atomically; UsageError if the place cannot be written. See `files.replacing`."""
        check_files([self.file] if self.file else [], "package", PackageError)
        try:
            with replacing(path, private=private) as f:
                _write(self, f)
        except OSError as e:
            raise UsageError(f"cannot write {path}: {e.strerror or e}", stage="package") from None

    @staticmethod
    def load(
        source: str | os.PathLike | MappedFile, check: Callable[[str, dict[str, Any]], None] | None = None
    ) -> Package:
        """Read a package; `check` is called with target and description before anything else is read.

        PackageError: not a package, another version, truncated, or damaged anywhere.
        """
        return _read(source if isinstance(source, MappedFile) else open_package(source), check)


# ---- writing ----


def _write(package: Package, f: IO[bytes]) -> None:
    """The sections, then the manifest that says where they are, then the head."""
    objects, blobs, size = {}, [], 0
    for name, data in package.objects.items():
        objects[name] = [size, len(data)]
        blobs.append(data + b"\0" * (-len(data) % ALIGN))
        size += len(blobs[-1])
    weights, place = [], 0
    for info in package.program.constants:
        weights.append(place)
        place += align_up(info.nbytes)
    f.write(b"\0" * PAGE)
    manifest = {
        "tilewright": __version__,
        "target": package.target,
        "description": package.description,
        "program": package.program.to_json(),
        "objects": objects,
        "weights": weights,
        "report": package.report,
        "sections": {
            "objects": _write_section(f, blobs),
            "weights": _write_section(f, _weight_bytes(package.constants)),
            "levels": _write_section(f, [zlib.compress(json.dumps(package.levels).encode(), 6)]),
        },
    }
    text = json.dumps(manifest).encode()
    offset = f.tell()
    f.write(text)
    f.seek(0)
    version = FORMAT_WITH_STATES if package.program.states else FORMAT
    f.write(_HEAD.pack(MAGIC, version, zlib.crc32(text), offset, len(text)))


def _weight_bytes(constants: Sequence[np.ndarray]) -> Iterator[memoryview | bytes]:
    for array in constants:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        yield flat.data
        yield b"\0" * (-flat.nbytes % ALIGN)


def _write_section(f: IO[bytes], pieces: Iterable[memoryview | bytes]) -> dict[str, Any]:
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


def open_package(path: str | os.PathLike, *, copy: bool = False, sha256: str | None = None) -> MappedFile:
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


def _read(file: MappedFile, check: Callable[[str, dict[str, Any]], None] | None) -> Package:
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
    try:
        if check is not None:
            check(manifest["target"], manifest["description"])
        objects, weights, levels = _sections(path, data, manifest["sections"])
        program = Program.from_json(manifest["program"])
        constants = []
        for info, at in zip(program.constants, manifest["weights"], strict=True):
            raw = np.frombuffer(weights, np.uint8, info.nbytes, at) if info.nbytes else np.empty(0, np.uint8)
            constants.append(raw.view(info.numpy_dtype).reshape(info.shape))
        code = {name: bytes(objects[at : at + size]) for name, (at, size) in manifest["objects"].items()}
        texts = json.loads(zlib.decompress(levels))
        return Package(
            manifest["target"], manifest["description"], program, code, constants, texts, manifest["report"], file
        )
    except PackageError as e:
        e.message = e.message if str(path) in e.message else f"{path}: {e.message}"
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, zlib.error) as e:
        raise _damaged(path, f"its manifest is inconsistent ({type(e).__name__}: {e})") from None


def _manifest(path: Path, data: memoryview) -> dict[str, Any]:
    magic, version, crc, offset, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise PackageError(f"{path} is not a Tilewright package", stage="load", hint="make one with tilewright compile")
    if version not in (FORMAT, FORMAT_WITH_STATES):
        raise PackageError(
            f"{path} has package format {version}, this Tilewright ({__version__}) reads format {FORMAT}, "
            f"and {FORMAT_WITH_STATES} with states",
            stage="load",
            hint="compile the model again with this version",
        )
    text = data[offset : offset + length]
    if len(text) < length:
        raise _damaged(path, f"it is truncated: {len(data)} of {offset + length} bytes are there")
    if zlib.crc32(text) != crc:
        raise _damaged(path, "the checksum of its manifest is wrong")
    return json.loads(bytes(text))


def _sections(path: Path, data: memoryview, table: dict[str, Any]) -> list[memoryview]:
    """The checked bytes of the three sections. The checksums run on all cores: zlib releases the GIL."""
    found, work = [], []
    for name in ("objects", "weights", "levels"):
        entry = table[name]
        offset, size = entry["offset"], entry["size"]
        if offset + size > len(data):
            raise _damaged(path, f"it is truncated: {len(data)} of {offset + size} bytes are there")
        section = data[offset : offset + size]
        found.append(section)
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
