"""Instructions for sums of products of bytes on x86-64 and aarch64: what schedules know of them, and their LLVM IR.

Kernels call them as functions (``@tw_dot_vnni512_us``). `with_definitions` puts their bodies, which LLVM inlines, in
place of the declarations; other targets have their own in a file of the same name.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ...schedule.machine import DotProduct
from ...support.errors import CompileError
from . import byte_words

if TYPE_CHECKING:
    from .description import CpuDescription

_FILES = tuple(sorted(Path(__file__).parents[1].glob("*/instructions.py")))
#: the files that decide the bodies
SOURCES = (*_FILES, Path(byte_words.__file__))


@dataclass(frozen=True)
class Instruction:
    """A function that kernels call, inlined by LLVM: `definition` with ``@NAME`` for its name, the processors that have
    it, and the sum of products that it is, if it is one (then it is called ``tw_dot_`` and the name of that)."""

    name: str
    definition: str
    there: Callable[[CpuDescription], bool]
    dot: DotProduct | None = None


def product(dot: DotProduct, definition: str, there: Callable[[CpuDescription], bool]) -> Instruction:
    """One for a sum of products."""
    return Instruction(f"tw_dot_{dot.name}", definition, there, dot)


def dot_products(description: CpuDescription) -> tuple[DotProduct, ...]:
    """Those that a processor has, the best first."""
    return tuple(i.dot for i in INSTRUCTIONS if i.dot is not None and i.there(description))


def _has_vnni512(d: CpuDescription) -> bool:
    return d.arch == "x86_64" and "avx512vnni" in d.features and d.vector_bytes == 64


def _has_vnni256(d: CpuDescription) -> bool:
    return d.arch == "x86_64" and bool({"avx512vnni", "avxvnni"} & {*d.features}) and d.vector_bytes == 32


def _has_sdot(d: CpuDescription) -> bool:
    return d.arch == "aarch64" and "dotprod" in d.features


def _vnni(lanes: int) -> str:
    v = f"<{lanes} x i32>"
    intrinsic = f"@llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    return f"""declare {v} {intrinsic}({v}, {v}, {v})
define internal {v} @NAME({v} %acc, {v} %a, {v} %b) alwaysinline nounwind {{
  %result = call {v} {intrinsic}({v} %acc, {v} %a, {v} %b)
  ret {v} %result
}}
"""


def _neon() -> str:
    intrinsic = "@llvm.aarch64.neon.sdot.v4i32.v16i8"
    return f"""declare <4 x i32> {intrinsic}(<4 x i32>, <16 x i8>, <16 x i8>)
define internal <4 x i32> @NAME(<4 x i32> %acc, <4 x i32> %a, <4 x i32> %b) alwaysinline nounwind {{
  %x = bitcast <4 x i32> %a to <16 x i8>
  %y = bitcast <4 x i32> %b to <16 x i8>
  %result = call <4 x i32> {intrinsic}(<4 x i32> %acc, <16 x i8> %x, <16 x i8> %y)
  ret <4 x i32> %result
}}
"""


#: with the tile of sums that fits the registers
INSTRUCTIONS = (
    product(DotProduct("vnni512_us", 16, 4, ("u", "s"), 13, 2), _vnni(16), _has_vnni512),
    product(DotProduct("vnni256_us", 8, 4, ("u", "s"), 6, 2), _vnni(8), _has_vnni256),
    product(DotProduct("neon_ss", 4, 4, ("s", "s"), 8, 3), _neon(), _has_sdot),
)


@lru_cache(maxsize=1)
def _all() -> dict[str, Instruction]:
    """Those in the file `instructions.py` of all targets' folders, by name."""
    found: dict[str, Instruction] = {}
    for path in _FILES:
        module = importlib.import_module(f"tilewright.targets.{path.parent.name}.instructions")
        found.update((i.name, i) for i in module.INSTRUCTIONS)
    return found


def instruction(name: str) -> Instruction | None:
    """That of a function that kernels call."""
    return _all().get(name)


@lru_cache(maxsize=1)
def known_dot_products() -> dict[str, DotProduct]:
    """Those of all targets, by the name that a note ``dot`` has."""
    return {i.dot.name: i.dot for i in _all().values() if i.dot is not None}


def with_definitions(text: str, description: CpuDescription) -> str:
    """LLVM IR with the declarations of our functions replaced by their definitions for a processor."""
    wanted = re.findall(r"^declare [^\n]*@(tw_(?:mulhsi|dot)_\w+)\([^\n]*$", text, flags=re.M)
    if not wanted:
        return text
    text = re.sub(r"^declare [^\n]*@tw_(?:mulhsi|dot)_\w+\([^\n]*\n", "", text, flags=re.M)
    return text + "\n" + "\n".join(_definition(name, description) for name in wanted)


def _definition(name: str, description: CpuDescription) -> str:
    if name.startswith(byte_words.PREFIX):
        return byte_words.definition(name, description.arch, description.features)
    found = instruction(name)
    if found is not None and (found.dot is not None or found.there(description)):
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
