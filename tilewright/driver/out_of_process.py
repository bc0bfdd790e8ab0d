"""Compiling a model file in a process of its own: MLIR and LLVM, the memory they take and a crash of theirs stay out of
the caller's. What a program that compiles a model keeps is the compiled model.

The process stays for the next compilation (`support.kept_child`).
"""

from __future__ import annotations

import signal
import sys
import traceback
from typing import TYPE_CHECKING

from ..program.package import Package
from ..support import kept_child, providers
from ..support.errors import CompileError, TilewrightError, UsageError
from ..support.files import sweep
from ..support.options import Options, get

if TYPE_CHECKING:
    from .package_cache import CacheEntry

_CALL = "from tilewright.driver.out_of_process import serve; serve()"
#: what the process answers, and what `compile_apart` returns for it
ANSWERS = {"made": True, "here": False, "changed": None}
#: worker processes that stay with it
_WORKERS = 2
#: what a compilation leaves: it is let go of when the caller has the answer
_held: list[object] = []


def compile_apart(entry: CacheEntry, options: Options) -> bool | None:
    """Write the package of the entry's model file to its place; False if it has to be compiled here: its shapes are
    open, no process can be started, or the file cannot be written. None: other bytes than those were compiled.

    Raises what the compilation raises, and CompileError if the process dies.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        return False
    try:
        found = kept_child.ask(_CALL, (entry, options))
    except OSError:
        return False
    except kept_child.Ended as e:
        found = f"its process ended with {ending(e.code)}"
    except BaseException:  # interrupted, perhaps while the process writes
        sweep(get("TILEWRIGHT_CACHE"), below=True)
        raise
    if isinstance(found, TilewrightError):
        raise found
    if found in ANSWERS:
        return ANSWERS[found]
    hint = "set TILEWRIGHT_COMPILE=inprocess to compile in this process, and please report it"
    raise CompileError(f"the compiler failed: {found}", stage="compile", operator=str(entry.model), hint=hint)


def ending(code: int) -> str:
    """
    >>> ending(-11), ending(3)
    ('SIGSEGV', 'code 3')
    """
    return signal.Signals(-code).name if code < 0 else f"code {code}"


def serve() -> None:
    """In the process: compile, and answer with one of `ANSWERS`, an error, or what went wrong unexpectedly."""
    kept_child.serve(_answer, _tidy)


def _answer(request: tuple[CacheEntry, Options]) -> TilewrightError | str:
    try:
        return _compile(*request)
    except TilewrightError as e:
        return e
    except Exception as e:  # a fault of ours: the parent reports it, the details go to stderr
        traceback.print_exc()
        return f"{type(e).__name__}: {e}"


def _tidy(changed: bool) -> None:
    """Few workers stay, and none that began with another environment."""
    _held.clear()
    if (pool := providers.loaded("tilewright.codegen.llvm.pool")) is not None:
        pool.close_workers(0 if changed else _WORKERS)


def _compile(entry: CacheEntry, options: Options) -> str:
    from dataclasses import fields

    from ..targets.base import Warmable, find
    from .compiler import compile_state

    target = find(options.target)
    if isinstance(target, Warmable):  # with several jobs a process starts while this one reads the model
        target.start(1 if options.job_count > 1 else 0)
    state, made = compile_state(
        entry.model,
        keep=False,
        ahead=True,
        unloaded=True,
        **{f.name: getattr(options, f.name) for f in fields(options)},
    )
    _held.append(state)
    if not isinstance(made, Package):
        return "here"
    try:
        return "made" if entry.write(made, state.files) else "changed"
    except (OSError, UsageError):
        return "here"
