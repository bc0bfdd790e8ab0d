"""Compiles and runs what was scheduled: `Schedule.build` and `Schedule.source`."""

from __future__ import annotations

from typing import Any

from ..support import providers
from ..support.options import DEFAULT_TARGET


class Buildable:
    """What a finished schedule can do; a base of `Schedule`."""

    #: a target, or its name
    target: Any = DEFAULT_TARGET

    def build(self, threads: int | None = None) -> Any:
        """Native code of the schedule as it is now: a function of NumPy arrays (`driver.kernels.BuiltKernel`).

        `threads` is the number of threads it runs with (None: TILEWRIGHT_THREADS, else all usable cores). CompileError
        if the nest cannot be emitted.

        >>> import numpy as np
        >>> import tilewright as tw
        >>> from tilewright import te
        >>> x = te.placeholder((8,), "x")
        >>> s = tw.Schedule(te.kernel(te.compute((8,), lambda i: x[i] * 2.0, "y")))
        >>> s.build(threads=1)(np.arange(8, dtype=np.float32))
        array([ 0.,  2.,  4.,  6.,  8., 10., 12., 14.], dtype=float32)
        """
        return providers.ask("build_kernel")(self, threads)

    def source(self, form: str = "mlir") -> str:
        """The code of the schedule as text: ``nest`` (finished), ``mlir``, ``ll`` (LLVM IR, optimized), ``asm`` or
        ``c``.

        UsageError for a form that the target does not have.
        """
        text: str = providers.ask("kernel_source")(self, form)
        return text


__all__ = ["Buildable"]
