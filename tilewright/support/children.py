"""Child Python processes: they see the caller's installed packages but no files of the current folder, and they
end when the process that started them does, however it ended.

    child = start("from tilewright.codegen.llvm.worker import work; work()", stdin=PIPE, stdout=PIPE)
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import site
import subprocess
import sys
import sysconfig
import threading
import weakref
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]
#: where this process was when it began: `python -m` and `python -c` put that folder on the path
_BEGAN = os.path.realpath(os.curdir) if os.path.isdir(os.curdir) else None

# The path comes before any other import, and the package is the caller's, wherever that one found it.
_BOOT = """\
import sys
sys.path[:] = {path!a}
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location({package!r}, {init!a}, submodule_search_locations=[{folder!a}])
sys.modules[{package!r}] = module_from_spec(spec)
spec.loader.exec_module(sys.modules[{package!r}])
from {package}.support.children import enter
enter({lifeline}, {parent})
{call}
"""


class Child(subprocess.Popen[bytes]):
    """A process that `start` made."""

    lifeline: Lifeline


class Lifeline:
    """The writing end of a pipe whose reading end a child has: when its last copy is closed, the child ends."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _lifelines.add(self)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


_lifelines: weakref.WeakSet[Lifeline] = weakref.WeakSet()


def start(call: str, **options: Any) -> Child:
    """Run Python statements in a new process; `options` as for `subprocess.Popen`. OSError if it cannot be started.

    The interpreter is isolated (``-I``): neither the current folder nor variables of the environment add to its path.
    """
    reading = writing = -1
    if os.name == "posix":
        reading, writing = os.pipe()
        options["pass_fds"] = (*options.get("pass_fds", ()), reading)
        options["start_new_session"] = True  # Ctrl-C is meant for the caller, with whom this process ends
    line = Lifeline(writing)
    try:
        child = Child([sys.executable, *_flags(), "-c", _boot(call, reading)], **options)
    except BaseException:
        line.close()
        raise
    finally:
        if reading >= 0:
            os.close(reading)
    child.lifeline = line
    weakref.finalize(child, line.close)
    return child


def _flags() -> list[str]:
    flags = ["-I"]
    if sys.dont_write_bytecode:
        flags.append("-B")
    if sys.flags.utf8_mode:
        flags += ["-X", "utf8"]
    return flags


def _boot(call: str, lifeline: int) -> str:
    return _BOOT.format(
        path=import_path(),
        package=_PACKAGE.name,
        init=str(_PACKAGE / "__init__.py"),
        folder=str(_PACKAGE),
        lifeline=lifeline,
        parent=os.getpid(),
        call=call,
    )


def import_path() -> list[str]:
    """The path on which this process finds modules, without what is on it only because the interpreter was started in
    that folder: "", relative paths, and the current folder unless PYTHONPATH names it or packages are installed there.
    """
    here = {os.path.realpath(os.curdir) if os.path.isdir(os.curdir) else None, _BEGAN}
    meant = {os.path.realpath(p) for p in _named()}
    return [
        p for p in sys.path
        if isinstance(p, str) and os.path.isabs(p) and (os.path.realpath(p) in meant or os.path.realpath(p) not in here)
    ]  # fmt: skip


def _named() -> list[str]:
    """Folders that are on the path on purpose."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep) if not sys.flags.ignore_environment else []
    known = [*sysconfig.get_paths().values(), *getattr(site, "getsitepackages", list)()]
    with contextlib.suppress(Exception):  # users without a home have no such folder
        known.append(site.getusersitepackages())
    return [p for p in (*given, *known) if os.path.isabs(p)]


# ---- in the child --------------------------------------------------------------------------------------------------


def enter(lifeline: int, parent: int) -> None:
    """End this process as soon as the parent has ended (not only when it next reads from it)."""
    gc.set_threshold(50_000, 20, 50)  # a compilation makes many objects, few of them in circles: 5% of its time
    if lifeline < 0:
        return
    os.set_inheritable(lifeline, False)
    threading.Thread(target=_outlive, args=(lifeline,), daemon=True).start()
    with contextlib.suppress(ImportError, AttributeError, OSError):  # Linux: a signal, for code that keeps the GIL
        import fcntl
        import signal

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if os.getppid() != parent:  # it had ended before
        os._exit(1)


def _outlive(lifeline: int) -> None:
    with contextlib.suppress(OSError):
        os.read(lifeline, 1)
    os._exit(1)


def resident_bytes() -> int:
    """The memory of this process; 0 where that is not known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def _forget() -> None:
    """A forked process must not keep the children of its parent alive."""
    for line in list(_lifelines):
        with contextlib.suppress(OSError):
            line.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
