"""The one MLIR context, and the only place where dialects are loaded.

MLIR objects are tied to a context. Tilewright uses one context a process: modules of different compilations can then
be compared and mixed, and the `tw` dialect is defined once. (A chip's dialect is made from its description, and another
one for other parameters: each has a context of its own, see targets/accelerator/dialect.py.)
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo

from ..support import providers
from ..support.forks import wait_for
from . import linalg  # noqa: F401 (before the bindings look for that dialect)

#: how MLIR's bytecode begins
BYTECODE = b"ML\xefR"
_lock = threading.Lock()
wait_for(_lock)
_context: ir.Context | None = None


def context() -> ir.Context:
    """The shared context, with the `tw` dialect and all operators of `tilewright.ops` loaded."""
    global _context
    if _context is None:
        from . import dialect

        providers.ask("operators")  # registers every operator class

        with _lock:
            if _context is None:
                # The bindings look for a Python module of each dialect: without one, again for every operation.
                sys.modules.setdefault("torch_mlir.dialects.tw", ModuleType("torch_mlir.dialects.tw"))
                ctx = ir.Context()
                # Threads of MLIR's own pool gain nothing on small modules and would outlive a fork.
                ctx.enable_multithreading(False)
                _stablehlo.register_dialect(ctx)
                _stablehlo.register_stablehlo_passes()
                with ctx:
                    dialect.load()
                _context = ctx
    return _context


@contextmanager
def use(location: ir.Location | None = None) -> Iterator[None]:
    """Enter the shared context with a location, so that IR can be built.

    >>> with use():
    ...     print(ir.Type.parse("tensor<2xf32>"))
    tensor<2xf32>
    """
    with context(), location or ir.Location.unknown(context()):
        yield


def parse(text: str | bytes, source: str = "<text>") -> ir.Module:
    """Parse and verify MLIR text (or bytecode); ModelError with MLIR's own diagnostics if it is not valid."""
    from ..support.errors import ModelError

    ctx = context()
    with ctx:
        try:
            if is_portable(text):
                return _stablehlo.deserialize_portable_artifact(ctx, text)
            return ir.Module.parse(text)
        except ir.MLIRError as e:
            diagnostics = "; ".join(f"{place(d.location)}: {d.message}" for d in e.error_diagnostics) or str(e)
            raise ModelError(f"{source} is not valid MLIR: {diagnostics}", stage="parse") from None


def is_portable(data: str | bytes) -> bool:
    """Whether these are the bytes of StableHLO's versioned form, which other versions can read, too."""
    return isinstance(data, bytes) and data.startswith(BYTECODE) and b"StableHLO_v" in data[:64]


def place(location: ir.Location) -> str:
    """``line 4, column 10`` for a place in the parsed text."""
    return re.sub(r'^loc\("-":(\d+):(\d+)\)$', r"line \1, column \2", str(location))


def run_passes(module: ir.Module, pipeline: str, *, stage: str = "mlir") -> None:
    """Run a textual MLIR pass pipeline on a module in place; CompileError carries MLIR's diagnostics."""
    from torch_mlir.passmanager import PassManager

    from ..support.errors import CompileError, UsageError

    with context():
        try:
            manager = PassManager.parse(pipeline)
        except ValueError as e:
            raise UsageError(f"invalid pass pipeline {pipeline!r}: {e}", stage=stage) from None
        try:
            manager.run(module.operation)
        except ir.MLIRError as e:
            diagnostics = "; ".join(f"{d.location}: {d.message}" for d in e.error_diagnostics) or str(e)
            raise CompileError(f"MLIR pass failed: {diagnostics}", stage=stage) from None
