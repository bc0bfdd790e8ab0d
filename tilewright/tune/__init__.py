"""The auto-tuner: searches the decisions that schedule rules leave free, and stores the best in a database.

    space -> search (cost model on features) -> measure -> database -> compile picks the results up

The module can be called: ``tw.tune("model.onnx", minutes=5)`` is `tuner.tune`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_PLACES = {
    "TuneReport": ".tuner",
    "Tuner": ".tuner",
    "Space": ".space",
    "Database": "..driver.tuning_database",
    "Task": ".tasks",
    "extract_tasks": ".tasks",
    "task_of": ".tasks",
}
__all__ = [*_PLACES]


class _Module(ModuleType):
    """A module that is also the function `tuner.tune`."""

    def __call__(self, source: object, **options: Any) -> Any:
        from .tuner import tune

        return tune(source, **options)

    def __getattr__(self, name: str) -> object:
        if name in _PLACES:
            return getattr(importlib.import_module(_PLACES[name], __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _Module
