"""MLIR's linalg dialect without its named operations (`linalg.matmul`): Python makes them from descriptions, which took
as long as a seventh of all that a compilation imports. They are made when somebody asks for one."""

from __future__ import annotations

import sys
import typing
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import _linalg_ops_gen

_DIALECT = "torch_mlir.dialects.linalg"
_NAMED = f"{_DIALECT}.opdsl.ops.core_named_ops"


def _import() -> Any:
    if _DIALECT in sys.modules or _NAMED in sys.modules:
        return import_module(_DIALECT)
    place = ModuleType(_NAMED)
    # the dialect's module takes these from there too
    vars(place).update({name: getattr(typing, name) for name in typing.__all__}, ir=ir)
    sys.modules[_NAMED] = place
    try:
        found: Any = import_module(_DIALECT)
    except NameError:  # in another version it takes more
        del sys.modules[_NAMED]
        return import_module(_DIALECT)
    del sys.modules[_NAMED]
    for name, value in list(vars(found).items()):
        if isinstance(value, FunctionType) and value is getattr(_linalg_ops_gen, name, None):
            delattr(found, name)  # the named operations have most of these names
    found.__getattr__ = _named
    return found


def _named(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    named = import_module(_NAMED)
    return getattr(named if hasattr(named, name) else _linalg_ops_gen, name)


linalg = _import()
