"""Child Python processes: they see the caller's installed packages but no files of the current folder, and they
end when the process that started them does, however it ended.

    child = start("from tilewright.codegen.llvm.worker import work; work()", stdin=PIPE, stdout=PIPE)
"""

from __future__ import annotations

import contextlib
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

from .garbage import collect_rarely

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
from {package}.support.child_processes import enter
enter({lifeline})
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


_TEST = "PYTEST_CURRENT_TEST"
#: whether this process is one that `start` made
_entered = False
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


def enter(lifeline: int) -> None:
    """End this process as soon as the parent has ended (not only when it next reads from it)."""
    global _entered
    _entered = True
    collect_rarely()
    if lifeline < 0:
        return
    os.set_inheritable(lifeline, False)
    try:  # Linux: a signal, which needs no thread, and reaches code that keeps the GIL
        import fcntl
        import select
        import signal

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([lifeline], [], [], 0)[0]:  # it had ended before
            os._exit(1)
    except (ImportError, AttributeError, OSError):
        threading.Thread(target=_outlive, args=(lifeline,), daemon=True).start()


def _outlive(lifeline: int) -> None:
    with contextlib.suppress(OSError):
        os.read(lifeline, 1)
    os._exit(1)


def can_fork() -> bool:
    """Whether a fork of this process works: one of ours that has no other thread, which may hold a lock, on Linux."""
    return sys.platform == "linux" and _entered and threading.active_count() == 1


def leave_files(*kept: int) -> None:
    """In a forked process: have none of the parent's files and pipes open but for these and stderr."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            with contextlib.suppress(OSError):
                os.close(fd)


def surroundings() -> tuple[dict[str, str], str]:
    """The environment and the current folder of this process, for `surround` in another one."""
    folder = os.curdir
    with contextlib.suppress(OSError):  # it was deleted
        folder = os.getcwd()
    return dict(os.environ), folder


def surround(environment: dict[str, str], folder: str) -> bool:
    """Take over an environment and a folder; whether the environment was another one (for more than pytest, which
    writes the name of each test there)."""
    changed = any(environment.get(n) != os.environ.get(n) for n in {*environment, *os.environ} - {_TEST})
    if changed:
        os.environ.clear()
        os.environ.update(environment)
    with contextlib.suppress(OSError):
        os.chdir(folder)
    return changed


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
