"""What happens during a compilation: the times and texts of its stages, the line on the terminal, and a look at passes.

A pass is called STAGE/PASS (``simplify/fold``), and its second run in that stage ``simplify/fold#2``. With neither
``print_after`` of such a name, nor ``time``, nor an observer nobody looks at passes.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ..ir.graph import Graph
from ..support.errors import UsageError
from ..support.options import Options
from ..support.progress import Progress

#: sees the name of what ran (a stage or ``stage/pass#n``), the graph that it left, which later passes change, and the
#: pass as `parse_pipeline` reads it ("" for a stage)
Observer = Callable[[str, Graph, str], None]


@dataclass
class Journal:
    """What is wanted of a compilation's passes, and what happened so far."""

    printed: frozenset[str] = frozenset()
    timed: bool = False
    observe: Observer | None = None
    progress: Progress = field(default_factory=lambda: Progress("model", quiet=True))
    #: the stage that runs, when it began, and how often and for how many seconds each of its passes ran
    stage: str = ""
    began: float = 0.0
    runs: Counter[str] = field(default_factory=Counter)
    pass_seconds: dict[str, float] = field(default_factory=dict)
    #: of each stage; and what of an earlier stage's belongs to these, because workers did all of them at once
    seconds: dict[str, float] = field(default_factory=dict)
    ahead: dict[str, float] = field(default_factory=dict)
    #: the IR of each level's last stage
    texts: dict[str, str] = field(default_factory=dict)
    #: what `explain` tells of fusion
    notes: list[str] = field(default_factory=list)
    #: with `verify`: the first and the last level-2 graph
    references: list[Graph] = field(default_factory=list)

    @staticmethod
    def of(options: Options, observe: Observer | None, progress: Progress) -> Journal:
        return Journal(frozenset(n for n in options.print_after if "/" in n), options.time, observe, progress)

    @property
    def looking(self) -> bool:
        """Whether somebody looks at passes."""
        return bool(self.printed or self.timed or self.observe)

    def begin(self, stage: str) -> None:
        """A stage begins."""
        self.progress.stage(stage)
        self.stage = stage
        self.runs.clear()
        self.pass_seconds.clear()
        self.began = time.perf_counter() - sum(self.ahead.values())

    def worked_ahead(self, taken: float, spent: dict[str, float]) -> None:
        """In `taken` seconds of this stage workers were at these stages for so long: of the time that passed, each has
        the part that it has of all that workers did."""
        total = sum(spent.values())
        for stage, seconds in spent.items():
            self.ahead[stage] = self.ahead.get(stage, 0.0) + (taken * seconds / total if total else 0.0)

    def after(self, name: str, seconds: float, graph: Graph, text: str = "") -> None:
        """A pass has run; `text` is it with its options, if it has any."""
        self.runs[name] += 1
        self.pass_seconds[name] = self.pass_seconds.get(name, 0.0) + seconds
        place = f"{self.stage}/{name}"
        run = f"{place}#{self.runs[name]}"
        if place in self.printed or run in self.printed:
            print(f"// ---- after {run} ----\n{graph.text()}", file=sys.stderr)
        if self.observe is not None:
            self.observe(run, graph, text or name)

    def end(self) -> None:
        """A stage is done. UsageError if one of its passes was to be printed that has not run."""
        own = time.perf_counter() - self.began - sum(self.ahead.values())
        self.seconds[self.stage] = own + self.ahead.pop(self.stage, 0.0)
        if self.timed:
            print(f"{self.stage:10} {self.seconds[self.stage]:8.3f} s", file=sys.stderr)
            for name, seconds in self.pass_seconds.items():
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


__all__ = ["Journal", "Observer"]
