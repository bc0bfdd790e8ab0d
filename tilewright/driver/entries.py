"""Compiling several models to one executable: their entries share constants, code and states.

Each model is compiled as it would be alone; then equal constants become one array, whatever they are called. Kernels
are called by what they compute, so equal ones come from the cache of kernels, and are in a package once. Products of
open sizes that have one name pack their weights as the first entry with them does, so that these are there once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..frontends import protocol
from ..program.package import Package
from ..runtime.constant_pool import ConstantPool
from ..runtime.entries import MultiExecutable, check_target
from ..runtime.executable import Executable
from ..support.errors import UnsupportedError, UsageError
from ..support.lazy_array import LazyArray
from ..support.options import Options
from ..targets.base import find
from .request import CompileRequest, PackedBefore
from .service import obtain, serve


def compile_entries(sources: Mapping[str, Any], options: Options) -> MultiExecutable:
    """The executable of several models by the names of their entries; errors as of `entry_packages`."""
    return MultiExecutable(entry_packages(sources, options), options.thread_count)


def entry_packages(sources: Mapping[str, Any], options: Options, *, unloaded: bool = False) -> dict[str, Package]:
    """The packages of several models by the names of their entries, which share constants. unloaded: they are only
    written (`save_entries`), and their constants are computed as they are (`CompileRequest.unloaded`).

    UsageError for names that are none and states that do not fit; UnsupportedError for shapes that are left open
    without ranges, and for targets whose packages have one entry.
    """
    check_target(find(options.target))
    for name in sources:
        if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z_][\w.-]*", name)):
            raise UsageError(f"{name!r} cannot be the name of an entry", hint="letters, digits and _ . - can")
    if not sources or options.stop_after is not None:
        why = "stop_after shows one model" if sources else "there is no model to compile"
        raise UsageError(f"{why}: entries are {{'prefill': 'prefill.onnx', 'decode': 'decode.onnx'}}")
    pool, packages, before = ConstantPool(), dict[str, Package](), PackedBefore()
    for name, source in sources.items():
        own = _options_of(name, options, list(sources))
        if isinstance(front_end := protocol.front_end_of(source), protocol.Tracing):
            source = front_end.trace(source, None, None)  # called with arrays, not as a program of JAX is
        request = CompileRequest(source, own, keep=False, packed=before, unloaded=unloaded)
        made = obtain(request, None)[0] if unloaded else serve(request)
        package = made.package if isinstance(made, Executable) else made
        if not isinstance(package, Package):
            raise UnsupportedError(
                f"entry {name!r} leaves shapes open: {'; '.join(map(str, made.inputs))}",
                stage="import",
                hint=f"give them: inputs={{'{name}:{made.inputs[0].name}': shape}}",
            )
        packages[name] = package
        package.constants[:] = [c if isinstance(c, LazyArray) else pool.share("", c) for c in package.constants]
    _check_states(packages, options.states or {})
    return packages


def _options_of(entry: str, options: Options, entries: list[str]) -> Options:
    """The options of one entry."""
    named = ("inputs", "schedules", "place")
    changed: dict[str, Any] = {n: _own(entry, getattr(options, n) or {}, entries) for n in named}
    if options.states:
        changed["states"] = {name: (output,) for name, output in options.states.items()}
    if options.dump:
        changed["dump"] = str(Path(options.dump) / entry)
    return dataclasses.replace(options, **changed)


def _own(entry: str, given: Mapping[str, object], entries: list[str]) -> dict[str, object] | None:
    """What is given for all entries, by the name of an input or a kernel, or as ``entry:name`` for this one.

    >>> _own("decode", {"decode:x": (1, 4), "prefill:x": (8, 4), "mask": (4,)}, ["prefill", "decode"])
    {'x': (1, 4), 'mask': (4,)}
    """
    mine = {k: v for k, v in given.items() if str(k).partition(":")[0] not in {*entries} - {entry}}
    return {str(k).removeprefix(f"{entry}:"): v for k, v in mine.items()} or None


def _check_states(packages: Mapping[str, Package], states: Mapping[str, str]) -> None:
    """UsageError for a state that no entry reads or none writes, or that is not the same in all."""
    for name, output in states.items():
        found = {e: s for e, p in packages.items() for s in p.program.states if s.name == name}
        if not any(s.read for s in found.values()):
            raise UsageError(f"states: no entry has an input {name!r}", stage="import")
        if not any(s.output for s in found.values()):
            raise UsageError(f"states: no entry has an output {output!r}", stage="import")
        if len({(s.tensor.shape, s.tensor.dtype, s.growth and s.growth.axis) for s in found.values()}) > 1:
            raise UsageError(
                f"state {name!r} is not the same in all: {', '.join(f'{s.tensor} in {e}' for e, s in found.items())}",
                stage="import",
                hint="all entries use one buffer: a prompt is written to the cache of full length",
            )
