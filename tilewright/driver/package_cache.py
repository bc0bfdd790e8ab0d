"""The cache of packages on disk: compiled again, a model is loaded.

A package is found by the bytes of the model file, or by the text of a graph and the content of its constants, and by
everything else that decides what is made of it: options, machine, versions, the source of this package, the tuning
database. Loading one imports neither MLIR nor what reads the model, and its weights are mapped from the file, so a
second process starts at once and shares their memory with the first.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..frontends import protocol
from ..program.package import Package
from ..support import providers
from ..support.digests import source_digest
from ..support.discovery import entry_points
from ..support.errors import PackageError, UsageError
from ..support.files import own_folder, trusted
from ..support.lru_folder import trim, used
from ..support.mapped_file import MappedFile, map_file
from ..support.options import Options, get
from ..support.sizes import current
from ..targets import base

if TYPE_CHECKING:
    from ..ir.graph import Graph

#: part of every key; another one for another form of the entries
FORM = "package 2"


@dataclass(frozen=True)
class ModelFiles:
    """What a model file and the data files beside it were when they were compiled."""

    digest: str
    files: dict[str, Any]

    @staticmethod
    def of(files: Sequence[MappedFile]) -> ModelFiles | None:
        """Of mapped files, the model's own first; None if one was written to since."""
        model, *others = files
        found = ModelFiles(model.digest(), data_files(model.path, others))
        return None if any(f.changed for f in files) else found


@dataclass(frozen=True)
class CacheEntry:
    """The place of one compilation among the packages kept."""

    #: the model's file, and the digest of its bytes; None: a graph in memory
    model: Path | None
    digest: str
    path: Path

    @staticmethod
    def of(source: Any, options: Options) -> CacheEntry | None:
        """Of a model file. None where nothing is kept: no model file, stages that are wanted for themselves, rules of
        others."""
        if not keeps(options):
            return None
        try:
            front_end = protocol.find(source)
            if not isinstance(front_end, protocol.Digesting):
                return None
            digest = front_end.digest(source)
            if digest is None:
                return None
            parts = ["file", digest, *deciding(options)]
        except (OSError, ValueError, UsageError):  # whatever is wrong with the file, the import says it better
            return None
        parts += [Path(source).stem, front_end.name, *front_end.versions()]
        return CacheEntry(Path(source), digest, _place(parts))

    @staticmethod
    def of_graph(graph: Graph, options: Options) -> CacheEntry | None:
        """Of a graph in memory; None where nothing is kept."""
        if not keeps(options):
            return None
        symbols = (f"{s} {graph.constants.digest(s)}" for s in graph.constants)
        parts = ["graph", *deciding(options), graph.text(), *symbols]
        if (known := current()) is not None:  # the text has the numbers that stand for sizes
            parts += [*map(str, known.dims), *(f"{name} {number}" for name, number in known.numbers.all())]
        return CacheEntry(None, "", _place(parts))

    def load(self, written: bool = False) -> Package | None:
        """The package, None if there is none (a damaged one is deleted), or if the model's data files changed. With
        `written` it was made a moment ago: neither is looked at."""
        try:
            if not self.path.is_file() or not trusted(self.path, get("TILEWRIGHT_CACHE")):
                return None
            package = Package.load(self.path, base.check, written=written)
            known = package.report["files"]
            if known.get("sha256") and not written and self.model is not None:
                now = data_files(self.model, [map_file(name) for name in known["sha256"]])
                if now != known:
                    return None
        except PackageError:
            with contextlib.suppress(OSError):
                self.path.unlink()
            return None
        except OSError:
            return None
        used(self.path)
        return package

    def keep(self, package: Package, files: Sequence[MappedFile]) -> None:
        """Write the package. A cache that cannot be written is no error: the result exists."""
        with contextlib.suppress(OSError, UsageError):
            self.write(package, files)
            bound(self.path)

    def write(self, package: Package, files: Sequence[MappedFile]) -> bool:
        """Save the package, with what the model's data files were. `files` are those that were compiled, the model's
        own first. False if that has other bytes than the entry's, or one was written to meanwhile.

        OSError or UsageError if the place cannot be written."""
        package.report["files"] = {} if self.model is None else data_files(files[0].path, files[1:])
        if self.model is not None and (files[0].digest() != self.digest or any(f.changed for f in files)):
            return False
        if not own_folder(self.path.parent, get("TILEWRIGHT_CACHE")):
            raise UsageError(f"{self.path.parent} is not a folder of this user's own", stage="package")
        package.save(self.path, private=True)
        return True


def _place(parts: Iterable[str]) -> Path:
    key = hashlib.sha256("\0".join([FORM, *parts]).encode(errors="surrogateescape")).hexdigest()
    folder: Path = get("TILEWRIGHT_CACHE")
    return folder / "packages" / f"{key}.tw"


def bound(path: Path) -> None:
    """Let go of what is too much: of this package, which stays mapped where it is used, or of older ones."""
    limit = get("TILEWRIGHT_PACKAGES_SIZE")
    with contextlib.suppress(OSError):
        if path.stat().st_size > limit // 2:
            path.unlink()
        trim(path.parent, 1, limit)  # with what a killed process left half-written


def data_files(model: Path, files: Iterable[MappedFile]) -> dict[str, Any]:
    """What to compare of files beside a model. In another folder, the same model has files of its own."""
    return {"folder": str(model.parent.resolve()), "sha256": {str(f.path): f.digest() for f in files}}


def keeps(options: Options) -> bool:
    """Whether packages made with these options are kept: not where stages are wanted for themselves, where the tuner's
    or others' rules are at work, or where the target's packages cannot be loaded again."""
    if options.looks or not options.cache or options.precision == "auto" or not _ours():
        return False
    return bool(get("TILEWRIGHT_PACKAGES_SIZE")) and bool(base.find(options.target).toolchain())


def deciding(options: Options) -> list[str]:
    """What decides beside the model itself what is made of it; for options that `keeps` says True of.

    OSError if the source of this package or the tuning database cannot be read."""
    target = base.find(options.target)
    chosen = json.dumps(options.key(), sort_keys=True, default=int)
    machine = json.dumps(target.describe().to_json(), sort_keys=True)
    return [chosen, source_digest(), target.toolchain(), machine, _tuning_stamp(options), *_versions()]


def _tuning_stamp(options: Options) -> str:
    """Changes whenever the tuning database does."""
    path = get("TILEWRIGHT_DB")
    stamps = []
    for file in (path, path.with_name(f"{path.name}-wal")) if options.tuned else ():
        with contextlib.suppress(OSError):
            info = file.stat()
            if info.st_size:
                stamps.append(f"{file.name} {info.st_size} {info.st_mtime_ns}")
    return f"{path} {stamps}" if stamps else ""


@lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    return (f"python {sys.version_info[:2]}", f"numpy {np.__version__}")


def _ours() -> bool:
    """Whether what compiles is of this package: only then does its source say what is made of a model.

    What has not been imported yet has nothing added to it, but for the entry points of installed packages."""
    if entry_points("tilewright.rules"):
        return False
    rules = providers.loaded("tilewright.schedule.rules")
    return rules is None or bool(rules.all_ours())
