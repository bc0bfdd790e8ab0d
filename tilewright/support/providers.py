"""Dependency injection: functions of packages that may not be imported here (floor plan), by name, loaded lazily.

The package root knows all rooms and says who provides what; another program may provide something else. Used where an
object of an upper room has a method that a lower room carries out: ``Schedule.build``, ``Executable.explain``.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_PROVIDERS: dict[str, str] = {}


def provide(name: str, place: str) -> None:
    """Say who provides `name`, an identifier: ``module:attribute``, or a module alone.

    >>> provide("square_root", "math:sqrt")
    >>> ask("square_root")(9.0)
    3.0
    """
    _PROVIDERS[name] = place


def ask(name: str) -> Any:
    """What is provided under that name; KeyError if nothing is."""
    module, _, attribute = _PROVIDERS[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def loaded(module: str) -> ModuleType | None:
    """A module if anybody has imported it, None else; one that another thread is importing is waited for.

    >>> loaded("math").floor(1.5), loaded("no.such.module")
    (1, None)
    """
    return importlib.import_module(module) if module in sys.modules else None


__all__ = ["ask", "loaded", "provide"]
