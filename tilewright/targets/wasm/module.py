"""Links the kernels and the program of a package to one WebAssembly module, with `wasm-ld`.

The module imports its memory, which whoever runs it makes large enough, and the functions of mathematics that have no
instructions here. It exports ``run`` (`program.py`), ``__heap_base``, behind which the memory is free, and
``__stack_pointer``, as every thread needs a stack of its own.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ...codegen.llvm.assemble import assemble
from ...codegen.llvm.builtins import BUILTINS, builtins_llvm
from ...program.package import Package
from ...program.program import align_up
from ...support.errors import CompileError, UnsupportedError
from ..linker import linker
from .description import WasmDescription
from .program import program_llvm, scratch_stride, weight_offsets

#: bytes of a page of memory, of a thread's stack, of all memory that there can be
PAGE, STACK, MOST = 65536, 1 << 20, 1 << 32
#: a module for several threads says how much memory it has at most: enough for so many
MOST_THREADS = 32
#: functions of the C library that JavaScript has under the same name (`site/wasm.js`)
MATH = (
    *("exp", "expm1", "log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "cbrt"),
)
#: and those that it has by other names or as operators
OTHERS = ("exp2", "fmod")
IMPORTS = tuple(f"{name}{kind}" for name in (*MATH, *OTHERS) for kind in ("", "f"))


@dataclass(frozen=True)
class Module:
    """A linked module, and the pages of the memory that it wants at first and at most."""

    data: bytes
    pages: int
    most_pages: int


def link(package: Package, threads: bool) -> Module:
    """The module of a package, for several threads or for one.

    UsageError if there is no linker, UnsupportedError if the model does not fit, CompileError for a function that
    nobody has.
    """
    description = WasmDescription.from_json(package.description)
    objects = {f"kernel{i}.o": data for i, data in enumerate(package.objects.values())}
    objects["program.o"] = assemble(program_llvm(package.program, threads), description)
    if any(name.encode() in data for name in BUILTINS for data in objects.values()):
        objects["builtins.o"] = assemble(half_llvm(), description)
    own = align_up(STACK + sum(map(len, objects.values())), PAGE) + PAGE  # an object is larger than its constants
    most = memory_bytes(package, own, MOST_THREADS if threads else 1)
    if most > MOST - PAGE:
        raise UnsupportedError(
            f"the model needs {most} bytes of memory, and WebAssembly has {MOST} at most",
            stage="package",
            hint="a smaller batch, or a quantized model, needs less",
        )
    path = linker("wasm-ld", "code for WebAssembly", "package")
    with tempfile.TemporaryDirectory(prefix="tilewright-wasm-") as name:
        folder = Path(name)
        for file, data in objects.items():
            (folder / file).write_bytes(data)
        (folder / "imports.txt").write_text("\n".join(IMPORTS) + "\n")
        command = [path, "-o", "model.wasm", *_OPTIONS, f"--initial-memory={own}", *objects]
        command += ["--shared-memory", f"--max-memory={most}"] if threads else []
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise _failure(done.stderr)
        return Module((folder / "model.wasm").read_bytes(), own // PAGE, most // PAGE)


def half_llvm() -> str:
    """LLVM's support functions for f16, which it passes here as the lower bits of an integer."""
    functions = [f"define {text}" for text in builtins_llvm().split("define ") if "bfloat" not in text][1:]
    text = "".join(functions).replace("bitcast half %x to i16", "trunc i32 %x to i16")
    text = text.replace("bitcast i16 %signed to half", "zext i16 %signed to i32")
    return re.sub(r"\bhalf\b", "i32", text)


def memory_bytes(package: Package, own: int, threads: int) -> int:
    """Bytes of memory that some threads need, as `site/wasm.js` lays them out behind `own` bytes of the module."""
    p = package.program
    states = [s.tensor for s in p.states for _ in range(1 + s.swapped)]
    tables = 4 * (len(p.inputs) + len(p.outputs) + 2 * len(p.states))
    arrays = sum(align_up(t.nbytes) for t in (*p.inputs, *p.outputs, *states)) + tables
    shares = threads * (scratch_stride(p) + STACK)
    return align_up(own + weight_offsets(p)[-1] + align_up(p.arena_size) + arrays + shares + PAGE, PAGE)


#: a wrong stack traps at the beginning of the memory, instead of writing over constants
_OPTIONS = (
    *("--no-entry", "--export=run", "--export=__heap_base", "--export=__stack_pointer", "--import-memory"),
    *("--stack-first", "-z", f"stack-size={STACK}", "--gc-sections", "--strip-debug", "--fatal-warnings"),
    "--allow-undefined-file=imports.txt",
)


def _failure(words: str) -> CompileError:
    missing = sorted(set(re.findall(r"undefined symbol: (\S+)", words)))
    if missing:
        return CompileError(
            f"the kernels call functions that neither WebAssembly nor JavaScript has: {', '.join(missing)}",
            stage="package",
            hint="operators of f64 may need them: compute these in f32, or outside of the model",
        )
    return CompileError(f"the linker failed: {words.strip()[:1500]}", stage="package")
