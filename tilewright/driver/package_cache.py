"""`tilewright.compile`, which keeps the package of a model file on disk: compiled again, the model is loaded.

A package kept is found by the bytes of the model file and of everything else that decides what is made of it: options,
machine, versions, the source of this package, the tuning database. Loading one imports neither MLIR nor what reads the
model, and its weights are mapped from the file, so a second process starts at once and shares their memory with the
first. The first time, another process compiles (`out_of_process`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ..frontends import protocol
from ..program.package import Package
from ..runtime.executable import Executable
from ..runtime.open_executable import make
from ..support import providers
from ..support.digests import source_digest
from ..support.discovery import entry_points
from ..support.errors import PackageError, UsageError
from ..support.files import own_folder, trusted
from ..support.lru_folder import trim, used
from ..support.mapped_file import MappedFile, map_file
from ..support.options import Options, get, with_options
from ..targets import base

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..ir.graph import Graph
    from ..runtime.dynamic import DynamicExecutable
    from ..runtime.entries import MultiExecutable
    from ..support.options import OptionsDict
    from .compiler import Snapshot

#: part of every key; another one for another form of the entries
FORM = "package 1"


@overload
def compile(source: Mapping[str, Any], **options: Unpack[OptionsDict]) -> MultiExecutable: ...


@overload
def compile(
    source: Any,
    example_inputs: None = None,
    *,
    start_after: str | None = None,
    stop_after: None = None,
    **options: Unpack[OptionsDict],
) -> Executable | DynamicExecutable: ...


@overload
def compile(
    source: Any,
    example_inputs: Any = None,
    *,
    dynamic_shapes: Any = None,
    start_after: str | None = None,
    stop_after: str,
    **options: Unpack[OptionsDict],
) -> Graph | Snapshot: ...


@overload
def compile(
    source: Any, example_inputs: Any, *, dynamic_shapes: Any = None, **options: Unpack[OptionsDict]
) -> Callable[..., Any]: ...


@with_options
def compile(
    source: Any,
    example_inputs: Any = None,
    *,
    dynamic_shapes: Any = None,
    start_after: str | None = None,
    **options: Any,
) -> Any:
    """Compile a model for a machine, or several that share weights and states.

    `source`: anything that a front end takes (`frontends.protocol`): a file, its bytes or text, an object; or a dict of
    such by the names of entries, which gives a `MultiExecutable`. The keyword arguments are the fields of
    `tilewright.support.options.Options`: target, inputs (shapes of dynamic inputs), precision, tolerance, threads,
    verify, cache, print_after, stop_after, dump, time. With `start_after` the source is what ``dump`` wrote after that
    stage, and the pipeline goes on from there.

    `example_inputs` are for modules of PyTorch: a tuple of positional arguments, or a dict of named ones; the result is
    then called as the module is, on tensors (docs/torch.md).

    Returns an `Executable`, or a `DynamicExecutable` that compiles for the shapes it is called with where the model
    leaves them open; with `stop_after` the IR of that stage (a `Graph` up to level 3, otherwise a `Snapshot`).
    A model file with fixed shapes that was compiled before is loaded from the cache, unless ``cache=False``.
    Raises TilewrightError subclasses that say stage, operator and what to do.

        model = tw.compile("model.onnx", threads=2)
        y, = model.run({"x": x})
    """
    chosen = Options.of(**options)
    if isinstance(source, Mapping):
        from .entries import compile_entries

        if start_after is not None:
            raise UsageError("start_after continues with one model: there are several entries")
        return compile_entries(source, chosen, compile)
    if start_after is None and isinstance(front_end := protocol.front_end_of(source), protocol.Tracing):
        traced = front_end.trace(source, example_inputs, dynamic_shapes)
        made = _compile(traced, None, chosen, options)
        return traced.wrap(made) if callable(made) else made
    if example_inputs is not None or dynamic_shapes is not None:
        what = "example_inputs" if example_inputs is not None else "dynamic_shapes"
        raise UsageError(f"{what} has no meaning for this source", stage="import", hint="inputs={name: shape}")
    return _compile(source, start_after, chosen, options)


def _compile(source: Any, start_after: str | None, chosen: Options, options: dict[str, Any]) -> Any:
    entry = CacheEntry.of(source, chosen) if start_after is None else None
    package = entry.load() or entry.make(chosen) if entry is not None else None
    if entry is not None and package is not None:
        made: Any = make(package, chosen.thread_count)
        files: Callable[[], ModelFiles | None] = partial(ModelFiles, entry.digest, package.report["files"])
    else:
        from .compiler import compile_state

        state, made = compile_state(source, start_after=start_after, keep=False, **options)
        if entry is not None and isinstance(made, Executable):
            entry.keep(made.package, state.files)
        files = partial(ModelFiles.of, state.files)
    if chosen.specialize in ("open", "background") and not isinstance(made, Executable) and not chosen.looks:
        from .unbounded_shapes import open_all

        open_all(made, source, chosen)
    if chosen.specialize == "background":
        from .background import in_background

        in_background(made, source, chosen, files)
    return made


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
    """The place of one compilation of a model file among the packages kept."""

    model: Path
    #: of the model's bytes
    digest: str
    path: Path

    @staticmethod
    def of(source: Any, options: Options) -> CacheEntry | None:
        """None where nothing is kept: no model file, stages that are wanted for themselves, rules of others."""
        if not keeps(options):
            return None
        try:
            front_end = protocol.find(source)
            if not isinstance(front_end, protocol.Digesting):
                return None
            digest = front_end.digest(source)
            if digest is None:
                return None
            parts = [FORM, digest, *deciding(options)]
        except (OSError, ValueError, UsageError):  # whatever is wrong with the file, the import says it better
            return None
        parts += [Path(source).stem, front_end.name, *front_end.versions()]
        key = hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()
        return CacheEntry(Path(source), digest, get("TILEWRIGHT_CACHE") / "packages" / f"{key}.tw")

    def load(self, written: bool = False) -> Package | None:
        """The package, None if there is none (a damaged one is deleted), or if the model's data files changed. With
        `written` it was made a moment ago: neither is looked at."""
        try:
            if not self.path.is_file() or not trusted(self.path, get("TILEWRIGHT_CACHE")):
                return None
            package = Package.load(self.path, base.check, written=written)
            known = package.report["files"]
            now = known if written else data_files(self.model, [map_file(name) for name in known["sha256"]])
        except PackageError:
            with contextlib.suppress(OSError):
                self.path.unlink()
            return None
        except OSError:
            return None
        if known["sha256"] and now != known:
            return None
        used(self.path)
        return package

    def make(self, options: Options) -> Package | None:
        """Compile in another process and load what it left; None if that is not wanted or not possible."""
        here = self.path.with_suffix(".here")  # for what was found to be compiled here: next time without asking
        if get("TILEWRIGHT_COMPILE") == "inprocess" or here.exists():
            return None
        from .out_of_process import compile_apart

        made = compile_apart(self, options)
        package = self.load(written=True) if made else None
        with contextlib.suppress(OSError):
            if made is False and own_folder(here.parent, get("TILEWRIGHT_CACHE")):
                here.touch()
        if package is not None:
            bound(self.path)
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
        model, *others = files
        package.report["files"] = data_files(model.path, others)
        if model.digest() != self.digest or any(f.changed for f in files):
            return False
        if not own_folder(self.path.parent, get("TILEWRIGHT_CACHE")):
            raise UsageError(f"{self.path.parent} is not a folder of this user's own", stage="package")
        package.save(self.path, private=True)
        return True


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
    return bool(get("TILEWRIGHT_PACKAGES_SIZE")) and isinstance(base.find(options.target), base.Cacheable)


def deciding(options: Options) -> list[str]:
    """What decides beside the model itself what is made of it; for options that `keeps` says True of.

    OSError if the source of this package or the tuning database cannot be read."""
    target = base.find(options.target)
    assert isinstance(target, base.Cacheable)
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
