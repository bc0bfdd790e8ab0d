"""Models with dynamic shapes but no ranges: the program for all sizes is compiled ahead, with default ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..frontends import protocol
from ..runtime.dynamic import DynamicExecutable
from ..runtime.open_versions import OpenVersions
from ..runtime.parts import StoredSource
from ..support.errors import PackageError
from ..support.mapped_file import MappedFile, map_file
from ..support.options import Options
from .package_cache import CacheEntry
from .request import CompileRequest
from .service import serve
from .specialization import can_open


def open_all(run: object, source: object, options: Options) -> None:
    """Give an executable its program for all sizes, where target and options have such programs and the model can be
    one. What cannot is compiled for each size in its call; the logger says so."""
    if isinstance(run, DynamicExecutable) and can_open(options) and not options.buckets:
        run.open_versions = OpenVersions(run, opener(source, options, run.staged.files))
        run.open_versions.prepare()


def opener(
    source: object, options: Options, files: Callable[[], Sequence[MappedFile]] = tuple
) -> Callable[[Mapping[str, object]], Any]:
    """A function from the option `inputs`, with open dimensions, to an executable. `files` are those of the model, as
    it was read: PackageError if others are there now."""
    source = protocol.compilable(source) if isinstance(source, StoredSource) else source

    def make(inputs: Mapping[str, object]) -> Any:
        request = CompileRequest(source, replace(options, inputs={**inputs, **(options.inputs or {})}), keep=False)
        entry = CacheEntry.of(source, request.options)
        if entry is not None and not entry.path.exists():
            # What cannot be one program is mostly found here, where all that is needed has been imported.
            serve(replace(request, options=replace(request.options, stop_after="import")))
        made = serve(request)
        for file in files():
            try:
                same = map_file(file.path).digest() == file.digest()
            except OSError:
                same = False
            if not same:
                raise changed(file.path)
        return made

    return make


def changed(source: object) -> PackageError:
    """What is raised where a model file is another one than was compiled."""
    return PackageError(
        f"{source} is not the model any more that was compiled", stage="specialize", hint="compile it again"
    )


__all__ = ["changed", "open_all", "opener"]
