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

from .support import providers

__version__ = "0.1.0"

_PLACES = {
    "compile": "driver.service",
    "load": "runtime.load",
    "Dim": "support.dims",
    "Executable": "runtime.executable",
    "DynamicExecutable": "runtime.dynamic",
    "MultiExecutable": "runtime.entries",
    "Graph": "ir.graph",
    "Schedule": "schedule.schedule",
    "Options": "support.options",
    "TilewrightError": "support.errors",
    "set_seed": "runtime.random_seed",
    "offload": "targets.offload.api",
    "LLM": "llm.llm",
}
#: modules that are names of their own: ``tw.te.compute(...)``, and ``tw.tune(...)``, which can be called
_MODULES = {"errors": "support.errors", "te": "lang.te", "tune": "tune"}
#: who carries out what an upper room of the floor plan asks of a lower one (docs/layout.md)
for _name, _place in {
    "operators": "ops",
    "direct_operators": "schedule.rules:direct_operators",
    "writes_once": "schedule.rules:writes_once",
    "reuses": "schedule.rules:reuses",
    "target": "targets.base:of",
    "tensorize": "targets.accelerator.tensorize:tensorized",
    "chip_from_file": "targets.accelerator.target:from_file",
    "chip_from_package": "targets.accelerator.target:from_package",
    "multi_device_target": "targets.multi_device.target:MultiDeviceTarget",
    "build_kernel": "driver.kernels:build",
    "kernel_source": "driver.kernels:source",
    "load": "runtime.load:load",
    "specialization": "driver.specialization",
    "open_compiler": "driver.unbounded_shapes:opener",
    "background_compiler": "driver.background:resume",
    "explain": "report.explain:explain",
    "explain_facts": "report.explain:facts",
    "explain_page": "report.explain:page",
    "profile_text": "report.profile_text:text",
    "profile_table": "report.profile_text:table",
    "profile_page": "report.profile_html:page",
    "profile_trace": "report.trace:trace",
}.items():
    providers.provide(_name, f"{__name__}.{_place}")
__all__ = ["__version__", *_PLACES, *_MODULES]

if TYPE_CHECKING:
    from . import tune as tune
    from .driver.service import compile as compile
    from .ir.graph import Graph as Graph
    from .lang import te as te
    from .llm.llm import LLM as LLM
    from .runtime.dynamic import DynamicExecutable as DynamicExecutable
    from .runtime.entries import MultiExecutable as MultiExecutable
    from .runtime.executable import Executable as Executable
    from .runtime.load import load as load
    from .runtime.random_seed import set_seed as set_seed
    from .schedule.schedule import Schedule as Schedule
    from .support import errors as errors
    from .support.errors import TilewrightError as TilewrightError
    from .support.options import Options as Options
    from .targets.offload.api import offload as offload


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{_MODULES[name]}", __name__)
    if name in _PLACES:
        return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
