"""Default schedules: rules are tried in order, the first that applies and is well wins, and the last always applies.

A rule is a module with ``NAME``, ``PRIORITY`` (lower is tried first) and ``apply(kernel, machine, decisions) ->
Schedule | str`` where a string is the reason why it does not apply. What a tuner may change, a rule asks with
`Schedule.sample_choice`. Operators with loop nests of their own register them with `direct`. Adding a rule is adding a
file; a rule from outside the package is added with `register` or as an entry point (docs/add_a_rule.md). A folder of
rules with a function ``serves(machine)`` is for such machines alone, and its rules are not imported for others.

What a schedule would execute is counted (`schedule.executed`): one that computes things again and again, or works
without vectors where it could have them, is refused like one that does not apply. If none is well, that with the least
to do is taken, and says so (`Scheduled.problems`); then `schedule.split` looks whether the kernel is better cut in two.
"""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from ...support.discovery import entry_points
from ...support.errors import CompileError, TilewrightError, UsageError
from ...support.sizes import Undecided, current, typically
from ...tensor.kernel import Kernel
from ..bulk import of_open_size
from ..decisions import Decisions
from ..executed import Executed, executed
from ..finish import finish
from ..machine import Machine
from ..nest import AsyncCopy, For, Nest, Pack, Stmt, walk_stmts
from ..open_nest import kernel_at, nest_at, typical_sizes

if TYPE_CHECKING:
    from ..schedule import Schedule

ENTRY_POINTS = "tilewright.rules"
_PACKAGE = __name__.partition(".")[0] + "."
#: rules from outside the package, by name
_ADDED: dict[str, Any] = {}
#: how a loop nest that is built directly asks for a decision: name, candidates, default (`Schedule.sample_choice`)
Choose = Callable[[str, Sequence[Any], Any], Any]
Tactic = Callable[["Schedule", Machine], Stmt | str]
#: opaque operator -> function that builds the body of its kernel; see `direct`
DIRECT: dict[str, Callable[..., Any]] = {}
#: what writes the nest of a tactic, by name; see `tactic`
TACTICS: dict[str, Tactic] = {}
#: those whose nest writes each element of the (single) result once and never reads it
WRITES_ONCE: set[str] = set()
#: those whose builders compare sizes for their speed only
BY_TYPICAL_SIZES: set[str] = set()
#: those whose nest reads each element of its operands many times
REUSES: set[str] = set()


@dataclass(frozen=True)
class Direct:
    """What a `direct` function may return instead of the statements alone: with constant operands to lay out anew.

    The statements read those operands as they are; see `Pack` and `Schedule.pack`.
    """

    body: Stmt
    packs: tuple[Pack, ...] = ()


def direct(
    *mnemonics: str, writes_once: bool = False, reuses: bool = False, typical_sizes: bool = False
) -> Callable[..., Any]:
    """Register ``build(kernel, machine) -> Stmt | Direct`` as the loop nest of opaque operators.

    With a third parameter called `choose` the function may leave decisions to a tuner: ``choose("rows", (2, 4, 8),
    4)``.

    The function reads `kernel.opaque` (attributes, operand and result buffer names) and returns the statements that
    compute the results; inlined operand reads are handled by the `opaque` rule. With `writes_once` the nest promises to
    write each element of its single result once and never to read it, so that elementwise readers of the result can be
    applied as it is written. One that `reuses` its operands many times reads them from memory: what makes them is never
    computed inside it. With `typical_sizes` the function compares sizes for the speed of its nest only, and
    typical ones decide; else a comparison of sizes that are not known raises `Undecided`.
    """

    def register(build: Callable[..., Any]) -> Callable[..., Any]:
        for m in mnemonics:
            DIRECT[m] = build
        if writes_once:
            WRITES_ONCE.update(mnemonics)
        if reuses:
            REUSES.update(mnemonics)
        if typical_sizes:
            BY_TYPICAL_SIZES.update(mnemonics)
        return build

    return register


def tactic(name: str, write: Tactic) -> None:
    """Register the step ``s.tactic(name)`` (`Schedule.tactic`): `write` makes the nest that takes the place of the
    schedule's, from that and the machine, or says why there is none. What it asks with `Schedule.sample_choice` becomes
    the arguments of the step. UsageError if there is another one of that name."""
    if TACTICS.setdefault(name, write) is not write:
        raise UsageError(f"there is a tactic called {name!r}", stage="schedule", hint="choose another name")


def tactics(machine: Machine) -> dict[str, Tactic]:
    """What writes the nest of a tactic, by name."""
    rules(machine)
    return TACTICS


def by_typical_sizes(kernel: Kernel) -> bool:
    """Whether a rule compares sizes of a kernel for its speed only: then typical ones decide. What a rule decides makes
    a kernel fast or slow, and whether a step is right, the step says; but a loop nest that is built directly has no
    steps, and says itself whether its comparisons change no results."""
    return kernel.opaque is None or kernel.opaque.mnemonic in BY_TYPICAL_SIZES


def writes_once() -> frozenset[str]:
    """Opaque operators whose results elementwise operations may join."""
    rules()
    return frozenset(WRITES_ONCE)


def reuses() -> frozenset[str]:
    """Opaque operators whose operands are read from memory."""
    rules()
    return frozenset(REUSES)


@dataclass(frozen=True)
class Scheduled:
    """A schedule, the rule that made it, why other rules did not apply, and what goes too far in this one, which was
    then the best there was."""

    schedule: Schedule
    rule: str
    refused: tuple[tuple[str, str], ...]
    executed: Executed | None = None
    problems: tuple[str, ...] = ()

    @cached_property
    def nest(self) -> Nest:
        """The finished loop nest."""
        return finish(self.schedule.nest())


class Rule(Protocol):
    """A module or any object with these three; see the head of this file."""

    NAME: str
    PRIORITY: int

    def apply(self, kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str: ...


def register(rule: Rule) -> None:
    """Try a rule from outside the package too, in the place that its PRIORITY says.

    One registered before under the same name is replaced; UsageError if a rule here has that name, or if `rule` is
    none. Installed packages name theirs as entry points of the group ``tilewright.rules`` instead.
    """
    missing = [a for a in ("NAME", "PRIORITY", "apply") if not hasattr(rule, a)]
    if missing:
        raise UsageError(f"{rule!r} is no rule: it has no {', '.join(missing)}", stage="schedule")
    if rule.NAME in {m.NAME for m in _own(_folders())}:
        raise UsageError(f"there is a rule called {rule.NAME!r}", stage="schedule", hint="choose another name")
    _ADDED[rule.NAME] = rule
    _rules.cache_clear()


@lru_cache(maxsize=1)
def _folders() -> tuple[ModuleType, ...]:
    return tuple(importlib.import_module(f"{__name__}.{i.name}") for i in pkgutil.iter_modules(__path__) if i.ispkg)


def _for(machine: Machine | None) -> tuple[ModuleType, ...]:
    """The folders of rules for all machines, and of those for this one."""
    return tuple(f for f in _folders() if not hasattr(f, "serves") or (machine is not None and f.serves(machine)))


@lru_cache(maxsize=4)
def _own(folders: tuple[ModuleType, ...]) -> list[ModuleType]:
    names = [f"{f.__name__}.{m.name}" for f in folders for m in pkgutil.iter_modules(f.__path__)]
    return [m for m in map(importlib.import_module, names) if hasattr(m, "apply")]


def rules(machine: Machine | None = None) -> list[Rule]:
    """The rules for a machine, without one those for all machines, in the order they are tried: the modules here, entry
    points, what was registered."""
    return _rules(_for(machine))


@lru_cache(maxsize=4)
def _rules(folders: tuple[ModuleType, ...]) -> list[Rule]:
    found = {rule.NAME: rule for rule in _own(folders)}
    for entry in entry_points(ENTRY_POINTS):
        try:
            rule = entry.load()
        except Exception as e:
            raise UsageError(
                f"entry point {entry.name!r} of {ENTRY_POINTS} cannot be loaded: {type(e).__name__}: {e}",
                stage="schedule",
                hint=f"it is {entry.value}; mend or uninstall the package that has it",
            ) from e
        if not all(hasattr(rule, a) for a in ("NAME", "PRIORITY", "apply")) or rule.NAME in found:
            raise UsageError(
                f"entry point {entry.name!r} of {ENTRY_POINTS} is no new rule", hint=f"it is {entry.value}"
            )
        found[rule.NAME] = rule
    return sorted({**found, **_ADDED}.values(), key=lambda rule: rule.PRIORITY)


class _Itself:
    """A rule that is compared by identity."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.rule is other.rule

    def __hash__(self) -> int:
        return id(self.rule)


def known() -> tuple[object, ...]:
    """What rules there are, as a part of a key: an object that is one need not have a hash."""
    return tuple(map(_Itself, rules()))


def all_ours() -> bool:
    """Whether all rules and loop nests are of this package: only then does its source say what they do."""
    return len(rules()) == len(_own(_for(None))) and all(f.__module__.startswith(_PACKAGE) for f in DIRECT.values())


def _outsider(rule: Rule, kernel: Kernel) -> str | None:
    """What of a rule is from outside the package, in words; None if nothing is."""
    if kernel.opaque is not None and rule.NAME == "opaque":
        build = DIRECT.get(kernel.opaque.mnemonic)
        if build is not None and not build.__module__.startswith(_PACKAGE):
            return f"the loop nest of tw.{kernel.opaque.mnemonic} from {build.__module__}"
    return None if getattr(rule, "__name__", "").startswith(_PACKAGE) else f"rule {rule.NAME!r}"


def _failed(culprit: str, kernel: Kernel, why: str) -> CompileError:
    return CompileError(
        f"{culprit} fails on kernel {kernel.name}: {why}",
        stage="schedule",
        hint="it is not part of Tilewright: mend it, or let it return why it does not apply (docs/add_a_rule.md)",
    )


def _place(e: BaseException) -> str:
    """File and line where an exception was raised."""
    frames = traceback.extract_tb(e.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}"


def direct_operators() -> frozenset[str]:
    """Opaque operators that have a loop nest."""
    rules()
    return frozenset(DIRECT)


def schedule(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Scheduled:
    """The default schedule of a kernel, or the one with other `decisions` (name -> value) of the rule that applies."""
    from ..primitives.state import steps_kept

    with steps_kept():
        return _schedule(kernel, machine, decisions)


def _schedule(kernel: Kernel, machine: Machine, decisions: Decisions) -> Scheduled:
    from ..schedule import Schedule, ScheduleError

    refused: list[tuple[str, str]] = []
    too_much: list[Scheduled] = []
    for module in (found := rules(machine)):
        try:
            with typically(by_typical_sizes(kernel)):
                result = _applied(module, kernel, machine, decisions)
        except (ScheduleError, Undecided) as e:  # a step that is not legal here
            result = e.message
        except Exception as e:
            culprit = _outsider(module, kernel)
            if culprit is None or isinstance(e, TilewrightError):
                raise
            raise _failed(culprit, kernel, f"{type(e).__name__}: {e} ({_place(e)})") from e
        if not isinstance(result, (str, Schedule)):
            raise _failed(f"rule {module.NAME!r}", kernel, f"it gave {result!r}, not a Schedule or a reason")
        scheduled = None if isinstance(result, str) else Scheduled(result, module.NAME, tuple(refused))
        if scheduled is not None and (why := _unfinished(scheduled)) is not None:
            result, scheduled = why, None
        if scheduled is not None:
            made = _judged(scheduled, kernel, machine)
            well = not made.problems and not (too_much and _idles(made.nest, machine))
            well = well and not (module is found[-1] and _takes_longer(made, too_much))
            if well or (decisions and schedule(kernel, machine).rule == module.NAME):
                return made
            too_much.append(made)
            result = "; ".join(made.problems) or "one thread of many does all of it"
        refused.append((module.NAME, str(result)))
    if too_much:
        best = min(too_much, key=lambda x: (_idles(x.nest, machine), x.executed.cycles if x.executed else 0.0))
        return replace(best, refused=tuple(r for r in refused if r[0] != best.rule))
    reasons = "; ".join(f"{n}: {r}" for n, r in refused)
    if current() is not None:  # rules that would take it at any size that is known may be among them
        raise Undecided(f"no schedule takes kernel {kernel.name} for all sizes: {reasons}", stage="schedule")
    raise CompileError(f"no schedule rule applies to kernel {kernel.name}: {reasons}", stage="schedule")


def _applied(rule: Rule, kernel: Kernel, machine: Machine, decisions: Decisions) -> Schedule | str:
    """What a rule makes of a kernel. Its steps are checked together where it ends, which costs as much as one of them;
    unless that is legal they are taken again, each checked by itself: a rule may go on otherwise where one is not."""
    from ..primitives.state import unchecked

    with unchecked() as left:
        try:
            result = rule.apply(kernel, machine, decisions)
        except Exception:
            if not left.steps:
                raise
        else:
            if not left.steps or (not isinstance(result, str) and result.legal):
                return result
    return rule.apply(kernel, machine, decisions)


def _idles(nest: Nest, machine: Machine) -> bool:
    """Whether one thread does all of the work on a machine of many, which cycles do not tell."""
    return any(a.inside for a in machine.axes) and not any(
        isinstance(s, For) and s.bound for s in walk_stmts(nest.body)
    )


def _takes_longer(made: Scheduled, others: list[Scheduled]) -> bool:
    """Whether plain loops take longer than a schedule that goes too far: that then says so, and can be cut in two."""
    cycles = made.executed.cycles if made.executed else 0.0
    return any(x.executed is not None and x.executed.cycles < cycles for x in others)


def _unfinished(made: Scheduled) -> str | None:
    """Why a schedule of a kernel with sizes that are not known cannot be finished; None where it can."""
    if current() is None:
        return None
    try:
        made.nest  # noqa: B018 (kept)
    except Undecided as e:
        return e.message
    nest = made.schedule.nest()
    bulk = [s for s in walk_stmts(nest.body) if isinstance(s, AsyncCopy) and s.bulk]
    return next((why for s in bulk if (why := of_open_size(s, nest.buffers()))), None)


def _judged(made: Scheduled, kernel: Kernel, machine: Machine) -> Scheduled:
    """A schedule with what it executes, and what goes too far. An operator's own loop nest is what it is."""
    if kernel.opaque is not None:
        return made
    sizes = typical_sizes()
    nest, kernel = (nest_at(made.nest, sizes), kernel_at(kernel, sizes)) if sizes else (made.nest, kernel)
    found = executed(nest, kernel, machine)
    judged = replace(made, executed=found, problems=tuple(found.reasons(machine)))
    judged.__dict__["nest"] = made.nest  # finished once
    return judged
