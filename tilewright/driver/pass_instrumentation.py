"""Pass instrumentation: prints, times or observes the graph after each pass of a stage.

A pass is called STAGE/PASS (``simplify/fold``), and its second run in that stage ``simplify/fold#2``. With neither
``print_after`` of such a name, nor ``time``, nor an observer there is no `PassInstrumentation`, and passes run without
a look at them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ..ir.graph import Graph
from ..support.errors import UsageError
from ..support.options import Options

#: sees the name of what ran (a stage or ``stage/pass#n``), the graph that it left, which later passes change, and the
#: pass as `parse_pipeline` reads it ("" for a stage)
Observer = Callable[[str, Graph, str], None]


@dataclass
class PassInstrumentation:
    """What is wanted of the passes of a compilation, and what ran so far in the stage that is going on."""

    printed: frozenset[str] = frozenset()
    timed: bool = False
    observe: Observer | None = None
    stage: str = ""
    #: pass -> how often it has run in this stage, and for how many seconds
    runs: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of(options: Options, observe: Observer | None = None) -> PassInstrumentation | None:
        """None if nobody looks."""
        printed = frozenset(name for name in options.print_after if "/" in name)
        return PassInstrumentation(printed, options.time, observe) if printed or options.time or observe else None

    def begin(self, stage: str) -> None:
        self.stage = stage
        self.runs.clear()
        self.seconds.clear()

    def after(self, name: str, seconds: float, graph: Graph, text: str = "") -> None:
        """A pass has run; `text` is it with its options, if it has any."""
        self.runs[name] += 1
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        place = f"{self.stage}/{name}"
        run = f"{place}#{self.runs[name]}"
        if place in self.printed or run in self.printed:
            print(f"// ---- after {run} ----\n{graph.text()}", file=sys.stderr)
        if self.observe is not None:
            self.observe(run, graph, text or name)

    def end(self) -> None:
        """A stage is done. UsageError if one of its passes was to be printed that has not run."""
        if self.timed:
            for name, seconds in self.seconds.items():
                several = f"  {self.runs[name]} runs" if self.runs[name] > 1 else ""
                print(f"  {name:20} {seconds:8.3f} s{several}", file=sys.stderr)
        ran = {f"{self.stage}/{n}" for n in self.runs}
        ran |= {f"{self.stage}/{n}#{i + 1}" for n, count in self.runs.items() for i in range(count)}
        missing = sorted(p for p in self.printed - ran if p.partition("/")[0] == self.stage)
        if missing:
            known = ", ".join(f"{n} ({count} times)" if count > 1 else n for n, count in self.runs.items())
            raise UsageError(
                f"no pass {missing[0]!r} ran, so it cannot be printed after it",
                hint=f"passes of {self.stage} that ran: {known or 'none'}",
            )


__all__ = ["PassInstrumentation", "Observer"]
