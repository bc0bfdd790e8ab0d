"""``precision="auto"``: the fastest precision whose error is within a tolerance, both measured on this machine.

The model is compiled in every precision and run on the same inputs: the arrays given with ``inputs``, else seeded
random ones (normal numbers for floats, 0 or 1 for integers). The error is the largest difference from the f32 outputs,
relative to the largest value of the output; of outputs that are not floats, the share of elements that differ.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..runtime.executable import Executable
from ..support.errors import UsageError
from .compare import largest_error, random_inputs
from .compile_state import State
from .compiler import run
from .request import CompileRequest

#: what is tried beside f32
CANDIDATES = ("bf16", "f16")
#: seconds of timed runs for each precision
SECONDS = 0.4


@dataclass(frozen=True)
class Measured:
    """What one precision costs: seconds of a run, and the error against f32."""

    precision: str
    seconds: float
    error: float

    def __str__(self) -> str:
        error = "" if self.precision == "f32" else f", error {self.error:.1e}"
        return f"{self.precision} {self.seconds * 1e3:.3g} ms{error}"


def compile_auto(request: CompileRequest) -> tuple[State, Executable]:
    """Compile in every precision, measure, and keep the fastest within ``options.tolerance``.

    UsageError where there is nothing to measure: with ``stop_after`` or ``start_after``, and for models whose shapes
    are known at run time only.
    """
    options = request.options
    if options.stop_after is not None or request.start_after is not None:
        which = "stop_after" if options.stop_after is not None else "start_after"
        raise UsageError(f"precision 'auto' measures whole models, {which} has no meaning", hint="name a precision")
    if options.schedules:
        raise UsageError("precision 'auto' makes other kernels for each precision", hint="name one beside schedules")

    def compiled(precision: str, verify: bool = False) -> tuple[State, Any]:
        plain = replace(options, precision=precision, tolerance=None, verify=verify)
        return run(CompileRequest(request.source, plain, name=request.name))

    made: dict[str, tuple[State, Any]] = {}
    for precision in ("f32", *CANDIDATES):
        made[precision] = compiled(precision)
        if not isinstance(made[precision][1], Executable):
            raise UsageError(
                "precision 'auto' measures the model, whose shapes are known at run time only",
                hint="give the shapes with inputs, or name a precision",
            )
    measured = measure({p: executable for p, (_, executable) in made.items()}, options.inputs)
    assert options.tolerance is not None
    best = choose(measured, options.tolerance)
    state, executable = compiled(best.precision, verify=True) if options.verify else made[best.precision]
    tried = "; ".join(map(str, measured))
    executable.package.report["notes"].insert(
        0, f"precision auto chose {best.precision}: tolerance {options.tolerance:g}; {tried}"
    )
    return state, executable


def choose(measured: list[Measured], tolerance: float) -> Measured:
    """The fastest within the tolerance; f32 always is.

    >>> choose([Measured("f32", 2.0, 0.0), Measured("bf16", 1.0, 1e-2), Measured("f16", 1.9, 1e-4)], 1e-3).precision
    'f16'
    """
    allowed = [m for m in measured if m.precision == "f32" or m.error <= tolerance]
    return min(allowed, key=lambda m: m.seconds)


def measure(executables: Mapping[str, Executable], given: Mapping[str, np.ndarray] | None = None) -> list[Measured]:
    """Time and error of executables of one model by precision, on the same inputs, in turns; f32 is the reference."""
    first = executables["f32"]
    arrays = random_inputs([(i.name, i.shape, i.numpy_dtype) for i in first.arguments], 0)
    arrays |= {k: v for k, v in (given or {}).items() if isinstance(v, np.ndarray) and k in arrays}
    arguments = tuple(arrays[i.name] for i in first.arguments)
    outputs = {p: e.run_all(arguments)[: len(e.outputs)] for p, e in executables.items()}
    times: dict[str, list[float]] = {p: [] for p in executables}
    end = time.perf_counter() + SECONDS * len(executables)
    while time.perf_counter() < end or not all(times.values()):
        for p, e in executables.items():
            start = time.perf_counter()
            e.run_all(arguments)
            times[p].append(time.perf_counter() - start)
    return [Measured(p, statistics.median(times[p]), error_of(outputs[p], outputs["f32"])) for p in executables]


def error_of(outputs: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The largest error of any output; see the module docstring."""
    errors = []
    for got, want in zip(outputs, expected, strict=True):
        exact = want.dtype.kind in "iub"
        errors.append(float((got != want).mean()) if exact and want.size else largest_error(got, want))
    return max(errors, default=0.0)
