"""Compiling a model file in a process of its own: MLIR and LLVM, the memory they take and a crash of theirs stay out of
the caller's. What a program that compiles a model keeps is the compiled model.

The process stays for the next compilation (`support.persistent_process`).
"""

from __future__ import annotations

import contextlib
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from ..support import persistent_process, providers
from ..support.errors import CompileError, TilewrightError, UsageError
from ..support.files import own_folder, sweep
from ..support.options import get
from .package_cache import bound
from .request import CompileRequest

if TYPE_CHECKING:
    from ..program.package import Package
    from .compile_state import State
    from .package_cache import CacheEntry

_CALL = "from tilewright.driver.out_of_process import serve; serve()"
#: worker processes that stay with it
_WORKERS = 2
#: what a compilation leaves: it is let go of when the caller has the answer
_held: list[object] = []


def compile_apart(entry: CacheEntry, request: CompileRequest) -> Package | None:
    """The package of the entry's model file, which another process has left in its place. None if the model has to be
    compiled here: that is wanted, its shapes are open, no process can be started, the file cannot be written, or has
    other bytes now.

    Raises what the compilation raises, and CompileError if the process dies.
    """
    here = entry.path.with_suffix(".here")  # for what was found to be compiled here: next time without asking
    if get("TILEWRIGHT_COMPILE") == "inprocess" or here.exists():
        return None
    written = _ask(entry, request)
    package = entry.load(written=True) if written else None
    with contextlib.suppress(OSError):
        if written is False and own_folder(here.parent, get("TILEWRIGHT_CACHE")):
            here.touch()
    if package is not None:
        bound(entry.path)
    return package


def _ask(entry: CacheEntry, request: CompileRequest) -> bool | None:
    """Whether another process has written the package; None: other bytes than the entry's were compiled."""
    if not sys.executable or getattr(sys, "frozen", False):
        return False
    try:
        found = persistent_process.ask(_CALL, (entry, replace(request, source=entry.model, ahead=True)))
    except OSError:
        return False
    except persistent_process.Ended as e:
        found = f"its process ended with {ending(e.code)}"
    except BaseException:  # interrupted, perhaps while the process writes
        sweep(get("TILEWRIGHT_CACHE"), below=True)
        raise
    if found is None or isinstance(found, bool):
        return found
    if isinstance(found, TilewrightError):
        raise found
    hint = "set TILEWRIGHT_COMPILE=inprocess to compile in this process, and please report it"
    raise CompileError(f"the compiler failed: {found}", stage="compile", operator=str(entry.model), hint=hint)


def ending(code: int) -> str:
    """
    >>> ending(-11), ending(3)
    ('SIGSEGV', 'code 3')
    """
    return signal.Signals(-code).name if code < 0 else f"code {code}"


# ---- in the process ------------------------------------------------------------------------------------------------


def serve() -> None:
    """Compile, and answer with what `_written` returns or raises (`persistent_process.answer`)."""
    persistent_process.serve(lambda request: persistent_process.answer(_written, *request), _tidy)


def _tidy(changed: bool) -> None:
    """Few workers stay, and none that began with another environment."""
    _held.clear()
    if (pool := providers.loaded("tilewright.codegen.llvm.pool")) is not None:
        pool.close_workers(0 if changed else _WORKERS)


def _written(entry: CacheEntry, request: CompileRequest) -> bool | None:
    """See `_ask`."""
    from ..targets.base import find

    # with several jobs a process starts while this one reads the model
    find(request.options.target).start(1 if request.options.job_count > 1 else 0)
    state, package, written = produce(request, entry)
    _held.append(state)
    return written if package is not None else False


def produce(request: CompileRequest, entry: CacheEntry | None) -> tuple[State, Package | None, bool | None]:
    """Compile for another process: what was made on the way, the package (None: the model is no single program), and
    whether it is in its place now; None if that is not of the bytes that were compiled."""
    from .compiler import run

    state, _ = run(replace(request, keep=False, unloaded=True))
    package = state.package
    if package is None:
        return state, None, False
    with contextlib.suppress(OSError, UsageError):
        if entry is not None:
            return state, package, entry.write(package, state.files) or None
    return state, package, False
