"""Programs for all sizes of a graph of `torch.compile` whose dimensions are dynamic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..frontends.torch.fx_graph import FxGraph
from ..frontends.torch.fx_sizes import ranges_of
from ..runtime.open_executable import OpenExecutable
from ..support.errors import TilewrightError, UnsupportedError
from ..support.sizes import Dim, open_sizes
from .torch_calls import Call, call_of

#: calls kept of the sizes that programs for all sizes are called with
MOST_CALLS = 1024
#: a graph and its program, of the sizes that symbols stand for; the program is None where it computes nothing
Make = Callable[[Mapping[Any, Any]], tuple[FxGraph, Any]]


@dataclass
class Program:
    """A program for all sizes of its dimensions, which stand for these symbols."""

    dims: Mapping[Any, Dim]
    graph: FxGraph
    executable: OpenExecutable | None

    def takes(self, sizes: Mapping[Any, int]) -> bool:
        """Whether sizes are in its ranges."""
        return all(d.low <= sizes[s] <= d.high and sizes[s] % d.divisor == 0 for s, d in self.dims.items())

    def call(self, sizes: Mapping[Any, Any]) -> Call:
        """The call for some sizes."""
        layout, executable = self.graph.at(sizes), self.executable
        if executable is None:
            return call_of(layout, None)
        run = executable.at_sizes({d.name: int(sizes[s]) for s, d in self.dims.items()})
        return call_of(layout, run, len(executable.arguments) > len(executable.inputs))


class OpenPrograms:
    """The programs of a graph, each for all sizes of its ranges; a call with sizes beyond them makes one with wider
    ranges. What can be compiled for known sizes only is served `otherwise`, and `refused` is told why."""

    def __init__(self, module: Any, make: Make, otherwise: Call, refused: Callable[[Exception], None]) -> None:
        self._module, self._make, self._otherwise, self._refused = module, make, otherwise, refused
        self._ranges: Mapping[Any, Any] | None = None
        self._programs: list[Program] = []
        self._gone = False

    def call(self, sizes: Mapping[Any, Any]) -> Call:
        """The call for some sizes, by the latest program that takes them."""
        program = next((p for p in reversed(self._programs) if p.takes(sizes)), None)
        if program is None and not self._gone:
            program = self._wider(sizes)
        return self._otherwise if program is None else program.call(sizes)

    def _wider(self, sizes: Mapping[Any, Any]) -> Program | None:
        """A program for these sizes and all that were served before; None if there can be none."""
        try:
            dims = self._dims(sizes)
            if dims is None:
                self._refused(UnsupportedError("numbers that are no sizes stand among those that it computes with"))
                return None
            with open_sizes(list(dims.values())) as space:
                assert space is not None
                graph, made = self._make(dict(zip(dims, space.symbols, strict=True)))
        except Exception as e:  # what nobody thought of is no reason for a call to fail
            self._gone = True
            self._refused(e)
            return None
        assert made is None or isinstance(made, OpenExecutable)
        self._programs.append(Program(dims, graph, made))
        return self._programs[-1]

    def _dims(self, sizes: Mapping[Any, Any]) -> dict[Any, Dim] | None:
        """Ranges that hold these sizes; None where one is none, such as a negative number."""
        if self._ranges is None:
            self._ranges = ranges_of(self._module)
        before = self._programs[-1].dims if self._programs else {}
        dims = {}
        for i, (symbol, r) in enumerate(self._ranges.items()):
            dim = r.dim(f"d{i}", int(sizes[symbol]), before[symbol].high if symbol in before else 0)
            if dim is None:
                return None
            dims[symbol] = dim
        return dims


def reason(e: Exception) -> tuple[str, str]:
    """What cannot be compiled for all sizes (an operator, or the graph), and why."""
    if not isinstance(e, TilewrightError):
        return "a graph", f"{type(e).__name__}: {e}"
    return e.operator or "a graph", e.message


__all__ = ["MOST_CALLS", "OpenPrograms", "Program", "reason"]
