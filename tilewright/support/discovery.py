"""Plugin discovery of targets and front ends: of the package, of entry points, and those registered at run time."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_T = TypeVar("_T")


@lru_cache(maxsize=1)
def _infos() -> list[str] | None:
    """The folders that tell of installed packages (``NAME-VERSION.dist-info``), in the order of the path. None where
    they are not all: archives on the path, finders of others. Then `importlib.metadata` is asked, which takes longer to
    import than all that loads a package here."""
    found: list[str] = []
    others = [f for f in sys.meta_path if f is not PathFinder]
    if any(hasattr(f, "find_distributions") for f in others):
        return None
    for folder in sys.path:
        try:
            with os.scandir(folder or os.curdir) as entries:
                found += [e.path for e in entries if e.name.endswith((".dist-info", ".egg-info", ".egg"))]
        except NotADirectoryError:
            return None
        except OSError:
            continue
    return None if any(path.endswith(".egg") for path in found) else found


@lru_cache(maxsize=1)
def _groups() -> frozenset[str] | None:
    """The groups of which there are entry points; None if that is not known."""
    if (infos := _infos()) is None:
        return None
    found: set[str] = set()
    for path in infos:
        with contextlib.suppress(OSError), open(os.path.join(path, "entry_points.txt"), encoding="utf-8") as f:
            found.update(re.findall(r"^\s*\[(.*)\]\s*$", f.read(), flags=re.M))
    return frozenset(found)


def entry_points(group: str) -> Sequence[EntryPoint]:
    """Those of a group that installed packages have."""
    if (groups := _groups()) is not None and group not in groups:
        return ()
    from importlib import metadata

    return tuple(metadata.entry_points(group=group))


def installed_version(name: str) -> str:
    """The version of an installed package. PackageNotFoundError (of `importlib.metadata`) if it is not there.

    >>> installed_version("numpy").count(".")
    2
    """
    wanted = re.sub(r"[-_.]+", "_", name).lower()
    for path in _infos() or ():
        called, _, version = os.path.basename(path).removesuffix(".dist-info").partition("-")
        if path.endswith(".dist-info") and re.sub(r"[-_.]+", "_", called).lower() == wanted:
            return version
    from importlib import metadata

    return metadata.version(name)


class Registry(Generic[_T]):
    """Objects with a `name` that can be added without a change to the package.

    They are the attribute `attribute` (or the list of that name with an S) of each folder in `package` (each file, if
    they are not `folders`), the entry points of the group that is called like `package`, and what a program adds.
    `fits` says whether an object is one, `members` what it must have; `kind` is the word of errors.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        attribute: str,
        fits: Callable[[object], bool],
        members: Sequence[str],
        *,
        folders: bool = True,
    ) -> None:
        self.kind, self.package, self.attribute, self.fits, self.members = kind, package, attribute, fits, members
        self.folders = folders
        self._added: dict[str, _T] = {}
        self._found: dict[str, _T] | None = None

    def add(self, item: Any) -> None:
        """Add one for this process; UsageError if it is none, or another one has its name."""
        if not self.fits(item):
            missing = ", ".join(n for n in self.members if n not in dir(item))
            hint = f"it has no {missing}" if missing else f"its class must inherit the base class of a {self.kind}"
            raise UsageError(f"{item!r} is no {self.kind}", hint=hint)
        if self.all().get(item.name, item) is not item:
            raise UsageError(f"there is a {self.kind} {item.name!r} already", hint="choose another name")
        self._added[item.name] = item

    def remove(self, name: str) -> None:
        """Forget what `add` was given."""
        del self._added[name]

    def all(self) -> dict[str, _T]:
        """All by name: those added, installed ones, ours; none takes a name of ours."""
        if self._found is None:  # several threads may look at once: they find the same
            self._found = {x.name: x for found in (self._installed(), self._ours()) for x in found}
        return {**self._added, **self._found}

    def get(self, name: str) -> _T | None:
        """The one of that name. One of ours whose folder is called like it is found without importing the others."""
        if self._found is None and name.isidentifier() and importlib.util.find_spec(f"{self.package}.{name}"):
            found: dict[str, _T] = {x.name: x for x in self._offered(name)}
            if name in found:
                return found[name]
        return self.all().get(name)

    def _installed(self) -> Iterator[Any]:
        for entry in entry_points(self.package):
            item = entry.load()
            if isinstance(item, ModuleType):
                item = vars(item).get(self.attribute)
            if not self.fits(item):
                raise UsageError(f"entry point {entry.name!r} of {self.package} is no {self.kind}", hint=entry.value)
            yield item

    def _ours(self) -> Iterator[Any]:
        for info in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            if info.ispkg == self.folders:
                yield from self._offered(info.name)

    def _offered(self, folder: str) -> Iterator[Any]:
        offered = vars(importlib.import_module(f"{self.package}.{folder}"))
        yield from [offered[self.attribute]] if self.attribute in offered else []
        yield from offered.get(f"{self.attribute}S", ())
