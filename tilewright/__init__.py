"""Tilewright: a machine-learning compiler in Python, on real MLIR and LLVM.

    import tilewright as tw

    model = tw.compile("model.onnx", threads=2)
    outputs = model.run({"x": x})
    model.save("model.tw")
    again = tw.load("model.tw")

Names are loaded on first use, so that ``tw.load`` needs neither MLIR nor ONNX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PLACES = {
    "compile": "kept",
    "load": "runtime.executable",
    "Executable": "runtime.executable",
    "DynamicExecutable": "runtime.dynamic",
    "Graph": "ir.graph",
    "Schedule": "schedule.schedule",
    "Options": "options",
    "TilewrightError": "errors",
    "set_seed": "runtime.noise",
}
#: modules that are names of their own: ``tw.te.compute(...)``, and ``tw.tune(...)``, which can be called
_MODULES = ("errors", "te", "tune")
__all__ = ["__version__", *_PLACES, *_MODULES]

if TYPE_CHECKING:
    from . import errors as errors
    from . import te as te
    from . import tune as tune
    from .errors import TilewrightError as TilewrightError
    from .ir.graph import Graph as Graph
    from .kept import compile as compile
    from .options import Options as Options
    from .runtime.dynamic import DynamicExecutable as DynamicExecutable
    from .runtime.executable import Executable as Executable
    from .runtime.executable import load as load
    from .runtime.noise import set_seed as set_seed
    from .schedule.schedule import Schedule as Schedule


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _PLACES:
        return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
