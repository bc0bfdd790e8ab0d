"""Calls user-supplied functions in place of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...program.program import Call
from ...support.errors import UsageError
from ..base import Target
from ..multi_device.runner import MultiDeviceRunner
from .api import Code, Offload
from .operation import MAGIC, Operation, OperationArguments, view

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.states import StateBuffers


class OffloadRunner(MultiDeviceRunner):
    """A program loaded into this process (`targets.base.ProgramRunner`): code is made for each call that was taken,
    because equal kernels have constants of their own."""

    def __init__(
        self, package: Package, threads: int, offload: Offload, host: Target, states: StateBuffers | None
    ) -> None:
        self.offload = offload
        self.places = {s: OperationArguments.from_bytes(d) for s, d in package.objects.items() if d.startswith(MAGIC)}
        super().__init__(package, threads, [host], package.description, states, self.places.keys())
        calls = {n: c for n, c in enumerate(self.program.calls) if c.symbol in self.places}
        self.operations = {n: self.operation(c) for n, c in calls.items()}
        self.codes = {n: self.built(o) for n, o in self.operations.items()}

    def operation(self, call: Call) -> Operation:
        """The operation of a call, with its constants."""
        found = {}
        for n, r in enumerate(call.args):
            if r.space == "constant":
                found[n] = _read_only(
                    self.package.constants[r.index].reshape(-1).view(np.uint8)[r.offset :][: r.nbytes]
                )
        return self.places[call.symbol].with_values(found, call.names)

    def built(self, operation: Operation) -> Code:
        try:
            code = self.offload.build(operation)
        except Exception as e:
            raise self.failed("`build`", operation, e, "load") from e
        if not callable(code):
            raise UsageError(
                f"`build` of {self.offload.name} returned {type(code).__name__}, which cannot be called",
                stage="load",
                operator=_label(operation),
                hint="return a function of the operands and the results",
            )
        return code

    def failed(self, what: str, operation: Operation, e: Exception, stage: str) -> UsageError:
        message = f"{what} of {self.offload.name} failed: {type(e).__name__}: {e}"
        return UsageError(message, stage=stage, operator=_label(operation))

    def other(self) -> OffloadRunner:
        """One for all contexts: what a run changes belongs to the functions."""
        return self

    def run_call(self, number: int, call: Call, memory: Sequence[np.ndarray]) -> None:
        """See `multi_device.runner.Other`."""
        places, operation = self.places[call.symbol], self.operations[number]
        pairs = zip(operation.operands, places.operands, strict=True)
        given = [None if o is None or n is None else _read_only(view(memory[n], o)) for o, n in pairs]
        made = [view(memory[n], r) for r, n in zip(operation.results, places.results, strict=True)]
        try:
            returned = self.codes[number](*given, *made)
        except Exception as e:
            raise self.failed("the code", operation, e, "run") from e
        if returned is not None and not any(returned is m for m in made):
            raise UsageError(
                f"the code of {self.offload.name} returned {type(returned).__name__}, and should write its results",
                stage="run",
                operator=_label(operation),
                hint="y[...] = ... for the last argument y",
            )


def _read_only(a: np.ndarray) -> np.ndarray:
    a = a.view()
    a.flags.writeable = False
    return a


def _label(operation: Operation) -> str:
    return f"{operation} {', '.join(operation.nodes)}".strip()
