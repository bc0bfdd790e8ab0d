"""Compiling a model file in a process of its own: MLIR and LLVM, the memory they take and a crash of theirs stay out of
the caller's. What a program that compiles a model keeps is the compiled model.

The request comes pickled on stdin, the answer goes pickled to stdout.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from ..support import children
from ..support.errors import CompileError, TilewrightError, UsageError
from ..support.files import sweep
from ..support.options import Options, get

_CALL = "from tilewright.driver.out_of_process import serve; serve()"
#: what the process answers, and what `compile_apart` returns for it
ANSWERS = {"made": True, "here": False, "changed": None}


def compile_apart(source: Path, digest: str, options: Options, to: Path) -> bool | None:
    """Write the package of the model file with this digest to `to`; False if it has to be compiled here: its shapes are
    open, no process can be started, or the file cannot be written. None: other bytes than those were compiled.

    Raises what the compilation raises, and CompileError if the process dies.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        return False
    request = {"source": str(source), "digest": digest, "options": options, "to": str(to)}
    try:
        child = children.start(_CALL, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError:
        return False
    with child:
        try:
            answer, _ = child.communicate(pickle.dumps(request))
        except BaseException:  # interrupted, perhaps while the process writes
            child.kill()
            child.wait()
            sweep(get("TILEWRIGHT_CACHE"), below=True)
            raise
    found = pickle.loads(answer) if answer and child.returncode == 0 else None
    if isinstance(found, str) and found in ANSWERS:
        return ANSWERS[found]
    if isinstance(found, TilewrightError):
        raise found
    why = found or f"its process ended with {ending(child.returncode)}"
    hint = "set TILEWRIGHT_COMPILE=inprocess to compile in this process, and please report it"
    raise CompileError(f"the compiler failed: {why}", stage="compile", operator=str(source), hint=hint)


def ending(code: int) -> str:
    """
    >>> ending(-11), ending(3)
    ('SIGSEGV', 'code 3')
    """
    return signal.Signals(-code).name if code < 0 else f"code {code}"


def serve() -> None:
    """In the process: compile, and answer with one of `ANSWERS`, an error, or what went wrong unexpectedly."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print to stdout must not get into the answer
    request: dict[str, Any] = pickle.load(sys.stdin.buffer)
    found: TilewrightError | str
    try:
        found = _compile(Path(request["source"]), request["digest"], request["options"], Path(request["to"]))
    except TilewrightError as e:
        found = e
    except Exception as e:  # a fault of ours: the parent reports it, the details go to stderr
        traceback.print_exc()
        found = f"{type(e).__name__}: {e}"
    answers.write(pickle.dumps(found))
    answers.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to do, and taking apart what MLIR has made takes time


def _compile(source: Path, digest: str, options: Options, to: Path) -> str:
    from dataclasses import fields

    from ..runtime.executable import Executable
    from ..targets.base import Warmable, find
    from .compiler import compile_state
    from .package_cache import write

    target = find(options.target)
    if isinstance(target, Warmable) and options.job_count > 1:  # a process starts while this one reads the model
        target.start(1)
    state, made = compile_state(
        source, keep=False, ahead=True, **{f.name: getattr(options, f.name) for f in fields(options)}
    )
    if not isinstance(made, Executable):
        return "here"
    try:
        return "made" if write(made.package, to, digest, state.files) else "changed"
    except (OSError, UsageError):
        return "here"
