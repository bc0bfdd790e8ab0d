"""The primitive for nests that no sequence of loop transformations makes: online softmax, radix select, a software
pipeline. One step writes the whole nest, and its decisions are the arguments of the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ...support.sizes import typically
from ..decisions import freeze
from ..trace import Step, Trace
from .state import ScheduleError, State

if TYPE_CHECKING:
    from ..schedule import Schedule


class TacticPrimitives(State):
    """Whole nests."""

    def tactic(self, name: str, **decisions: object) -> None:
        """Let the tactic of a rule write the nest anew, from the nest as it is now, for the machine of the target.

        What `decisions` (tile sizes, threads, stages ...) do not say is chosen by the rule, and recorded with them.
        Refused for a kernel or a machine that the rule is not for, and for a decision that is none of its candidates.
        What it writes is not checked as other steps are: the rule answers for it.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[999], y: out(f32[999])):
        ...     for i in serial(999):
        ...         s0: y[i] = negf(x[i])'''), "cuda")
        >>> s.tactic("block_elementwise", vector=1)
        >>> print(s)
        def k(x: f32[999], y: out(f32[999])):
            for elements_0_x in grid.x(4):
                for elements_0_unit in block.x(256):
                    if elements_0_x * 256 + elements_0_unit < 999:
                        s0: y[elements_0_x * 256 + elements_0_unit] = negf(x[elements_0_x * 256 + elements_0_unit])
        >>> print(s.trace[0])
        s.tactic('block_elementwise', threads=256, vector=1)
        """
        from ..rules import by_typical_sizes, tactics

        if (write := (known := tactics(self.machine())).get(name)) is None:
            raise ScheduleError(
                f"there is no tactic {name!r}", stage="schedule", hint=f"tactics: {', '.join(sorted(known))}"
            )
        saved, outside = self._now(), (self.fixed_decisions, self.decisions, self.trace)
        self.fixed_decisions, self.decisions, self.trace = {**self.fixed_decisions, **decisions}, {}, Trace(self.kernel)
        try:
            with typically(by_typical_sizes(self.kernel)):
                made = write(cast("Schedule", self), self.machine())
            if isinstance(made, str):
                raise ScheduleError(made, stage="schedule")
            chosen = {n: d.chosen for n, d in self.decisions.items()}
            for n in decisions:
                if n not in chosen or freeze(chosen[n]) != freeze(decisions[n]):
                    raise ScheduleError(
                        f"{name} cannot have {n}={decisions[n]!r}",
                        stage="schedule",
                        hint=f"candidates: {self.decisions[n].candidates}" if n in chosen else f"it has {list(chosen)}",
                    )
        except BaseException:
            self.body, self.temporaries, self.params, self.packs = saved
            self.fixed_decisions, self.decisions, self.trace = outside
            raise
        self.body, self._proved, mine = made, None, self.decisions
        self.fixed_decisions, self.decisions, self.trace = outside
        self.decisions.update(mine)
        self.trace.append(
            Step("tactic", (name,), chosen, None, tuple(n for n in self.temporaries if n not in saved[1]))
        )

    tactic.is_primitive = True  # type: ignore[attr-defined]


__all__ = ["TacticPrimitives"]
