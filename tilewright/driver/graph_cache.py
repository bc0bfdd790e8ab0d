"""Compiles graphs in memory, with a disk cache of their packages.

A package is found by the text of the graph and the content of its constants, and by everything else that decides what
is made of it; see `package_cache`.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from ..ir.graph import Graph
from ..program.package import Package
from ..runtime.executable import Executable
from ..runtime.open_executable import make
from ..support.errors import PackageError, TilewrightError, UsageError
from ..support.files import own_folder, trusted
from ..support.lru_folder import trim, used
from ..support.options import Options, get
from ..support.sizes import current
from ..targets import base
from .compiler import compile_state
from .open_program import check_open
from .package_cache import deciding, keeps

#: part of every key; another one for another form of the entries
FORM = "graph 1"


def compile_graph(graph: Graph, options: Options) -> Executable:
    """The executable of a level-2 graph whose sizes are known, or those of the open dimensions of this compilation
    (`support.sizes.open_sizes`). TilewrightError as `tilewright.compile`.

    The graph stays as it is.
    """
    if (known := current()) is not None:
        check_open(options, known.dims, base.find(options.target))
    path = _place(graph, options)
    if path is not None and (package := _load(path)) is not None:
        made = make(package, options.thread_count)
        assert isinstance(made, Executable)
        return made
    _, made = compile_state(graph, keep=False, **vars(options))
    if not isinstance(made, Executable):
        raise UsageError("a graph is compiled whole here", stage="compile", hint="leave out stop_after")
    if path is not None:
        _keep(made.package, path)
    return made


def _place(graph: Graph, options: Options) -> Path | None:
    """Where the package is, or will be; None if nothing is kept."""
    if not keeps(options):
        return None
    digest = hashlib.sha256()
    parts = [FORM, *deciding(options), graph.text(), *(f"{s} {graph.constants.digest(s)}" for s in graph.constants)]
    if (known := current()) is not None:  # the text has the numbers that stand for sizes
        parts += [*map(str, known.dims), *(f"{name} {number}" for name, number in known.numbers.all())]
    for part in parts:
        digest.update(part.encode(errors="surrogateescape") + b"\0")
    folder: Path = get("TILEWRIGHT_CACHE")
    return folder / "packages" / f"{digest.hexdigest()}.tw"


def _load(path: Path) -> Package | None:
    try:
        if not path.is_file() or not trusted(path, get("TILEWRIGHT_CACHE")):
            return None
        package = Package.load(path, base.check)
    except PackageError:
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    except (OSError, TilewrightError):
        return None
    used(path)
    return package


def _keep(package: Package, path: Path) -> None:
    """Write the package. A cache that cannot be written is no error: the result exists."""
    with contextlib.suppress(OSError, UsageError):
        if own_folder(path.parent, get("TILEWRIGHT_CACHE")):
            package.save(path, private=True)
            trim(path.parent, 1, get("TILEWRIGHT_PACKAGES_SIZE"))
