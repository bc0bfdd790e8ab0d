"""Registry of byte dot-product instructions (VNNI, SDOT and the like): what schedules know of them, and the LLVM IR of
each as an inlined function.

Kernels call them as functions (``@tw_dot_vnni512_us``). `with_definitions` puts their bodies, which LLVM inlines, in
place of the declarations. They stand in the file `instructions.py` of targets' folders, and belong to every processor
that has them, whichever target it is of.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..schedule.machine import DotProduct
from ..support.errors import CompileError
from . import byte_tables, emulated_dot_products

if TYPE_CHECKING:
    from .processor import Processor

_FILES = tuple(sorted(Path(__file__).parent.glob("*/instructions.py")))
#: the files that decide the bodies
SOURCES = (Path(__file__), *_FILES, Path(emulated_dot_products.__file__), Path(byte_tables.__file__))


@dataclass(frozen=True)
class InlineFunction:
    """A function that kernels call, inlined by LLVM: `definition` with ``@NAME`` for its name, the processors that have
    it, and the sum of products that it is, if it is one (then it is called ``tw_dot_`` and the name of that)."""

    name: str
    definition: str
    there: Callable[[Processor], bool]
    dot: DotProduct | None = None


def product(dot: DotProduct, definition: str, there: Callable[[Processor], bool]) -> InlineFunction:
    """One for a sum of products."""
    return InlineFunction(f"tw_dot_{dot.name}", definition, there, dot)


def dot_products(processor: Processor) -> tuple[DotProduct, ...]:
    """Those that a processor has, the best first."""
    return tuple(i.dot for i in _all().values() if i.dot is not None and i.there(processor))


@lru_cache(maxsize=1)
def _all() -> dict[str, InlineFunction]:
    """Those in the file `instructions.py` of all targets' folders, by name."""
    found: dict[str, InlineFunction] = {}
    for path in _FILES:
        module = importlib.import_module(f"tilewright.targets.{path.parent.name}.instructions")
        found.update((i.name, i) for i in module.INSTRUCTIONS)
    return found


def instruction(name: str) -> InlineFunction | None:
    """That of a function that kernels call."""
    return _all().get(name)


@lru_cache(maxsize=1)
def known_dot_products() -> dict[str, DotProduct]:
    """Those of all targets, by the name that a note ``dot`` has."""
    return {i.dot.name: i.dot for i in _all().values() if i.dot is not None}


def with_definitions(text: str, processor: Processor) -> str:
    """LLVM IR with the declarations of our functions replaced by their definitions for a processor."""
    if "@tw_" not in text:
        return text
    wanted = re.findall(r"^declare [^\n]*@(tw_(?:mulhsi|dot|table)_\w+)\([^\n]*$", text, flags=re.M)
    if not wanted:
        return text
    text = re.sub(r"^declare [^\n]*@tw_(?:mulhsi|dot|table)_\w+\([^\n]*\n", "", text, flags=re.M)
    made = "\n".join(_definition(name, processor) for name in wanted).splitlines()
    declared = dict.fromkeys(x for x in made if x.startswith("declare "))  # two functions may use one instruction
    return "\n".join([text, *declared, *(x for x in made if x not in declared)]) + "\n"


def _definition(name: str, processor: Processor) -> str:
    if name.startswith(emulated_dot_products.PREFIX):
        return emulated_dot_products.definition(name, processor.arch, processor.features)
    if name.startswith(byte_tables.PREFIX):
        return byte_tables.definition(name, processor.arch, processor.features)
    found = instruction(name)
    if found is not None and (found.dot is not None or found.there(processor)):
        return found.definition.replace("@NAME", f"@{name}")
    if not name.startswith("tw_mulhsi_"):
        raise CompileError(f"there is no function {name!r}", stage="assemble")
    return _upper_word(name, int(name.rpartition("_")[2]))  # in the way of all processors


def _upper_word(name: str, lanes: int) -> str:
    i32, i64 = (f"<{lanes} x i{n}>" if lanes else f"i{n}" for n in (32, 64))
    count = "splat (i64 32)" if lanes else "32"
    return f"""define internal {i32} @{name}({i32} %a, {i32} %b) alwaysinline nounwind {{
  %x = sext {i32} %a to {i64}
  %y = sext {i32} %b to {i64}
  %product = mul nsw {i64} %x, %y
  %upper = lshr {i64} %product, {count}
  %result = trunc {i64} %upper to {i32}
  ret {i32} %result
}}
"""
