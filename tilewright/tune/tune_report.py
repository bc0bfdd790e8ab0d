"""The report of a tuning run: the gain of each kernel and of the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..support.notebook import Printed

if TYPE_CHECKING:
    from .algorithm_choice import AlgorithmReport
    from .pretrained import Pretrained
    from .recheck import Recheck


@dataclass
class TaskReport:
    """What tuning did for one kernel; `ratio` is its time over the default's, 1.0 if nothing better was found."""

    label: str
    calls: int
    seconds: float
    space: int
    trials: int = 0
    ratio: float = 1.0
    decisions: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    #: the model's layers that it computes
    layers: tuple[str, ...] = ()
    #: of one call with the default plan, where a simulator counts them
    cycles: int = 0

    @property
    def saved(self) -> float:
        """Seconds of one run of the model that the result saves."""
        return self.seconds * (1.0 - self.ratio)


@dataclass
class TuneReport(Printed):
    """The outcome of `tune`: one entry a kernel, trials made now, and how they ended (status -> count).

    `algorithms` has the convolutions that are computed another way than estimated, `doing` what is at work before there
    are tasks, `guide` the pretrained cost model in use, None if there is none."""

    tasks: list[TaskReport]
    trials: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    interrupted: bool = False
    #: what else was running on this machine when the search began, in words
    noise: str = ""
    recheck: Recheck | None = None
    algorithms: list[AlgorithmReport] = field(default_factory=list)
    doing: str = ""
    guide: Pretrained | None = None

    @property
    def before(self) -> float:
        return sum(t.seconds for t in self.tasks)

    @property
    def speedup(self) -> float:
        """How much faster all kernels together are than with default schedules, by their measured shares."""
        after = self.before - sum(t.saved for t in self.tasks)
        return self.before / after if after > 0 else 1.0

    def __str__(self) -> str:
        bad = ", ".join(f"{n} {s}" for s, n in sorted(self.outcomes.items()) if s != "ok")
        head = f"{self.trials} trials in {self.seconds:.0f} s{f' ({bad})' if bad else ''}"
        lines = [f"{head}, kernels {self.speedup:.2f}x", *(f"  {w}" for w in self.algorithms)]
        for t in self.tasks:
            note = t.problem or (f"{1 / t.ratio:.2f}x" if t.ratio < 1 else "default")
            lines.append(f"  {t.seconds * 1e3:9.3f} ms  {t.trials:5} of {t.space:6}  {note:8}  {t.label}")
        return "\n".join(lines)
