"""Default schedules: rules are tried in order, the first that applies wins, and the last always applies.

A rule is a module with ``NAME``, ``PRIORITY`` (lower is tried first) and ``apply(kernel, machine, decisions) ->
Schedule | str`` where a string is the reason why it does not apply. What a tuner may change, a rule asks with
`Schedule.sample_choice`. Operators with loop nests of their own register them with `direct`. Adding a rule is adding a
file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...errors import CompileError
from ...tensor.kernel import Kernel
from ..decisions import Decisions
from ..machine import Machine
from ..nest import Pack, Stmt

if TYPE_CHECKING:
    from ..schedule import Schedule

#: how a loop nest that is built directly asks for a decision: name, candidates, default (`Schedule.sample_choice`)
Choose = Callable[[str, Sequence[Any], Any], Any]
#: opaque operator -> function that builds the body of its kernel; see `direct`
DIRECT: dict[str, Callable] = {}
#: those whose nest writes each element of the (single) result once and never reads it
WRITES_ONCE: set[str] = set()


@dataclass(frozen=True)
class Direct:
    """What a `direct` function may return instead of the statements alone: with constant operands to lay out anew.

    The statements read those operands as they are; see `Pack` and `Schedule.pack`.
    """

    body: Stmt
    packs: tuple[Pack, ...] = ()


def direct(*mnemonics: str, writes_once: bool = False) -> Callable:
    """Register ``build(kernel, machine) -> Stmt | Direct`` as the loop nest of opaque operators.

    With a third parameter called `choose` the function may leave decisions to a tuner: ``choose("rows", (2, 4, 8),
    4)``.

    The function reads `kernel.opaque` (attributes, operand and result buffer names) and returns the statements that
    compute the results; inlined operand reads are handled by the `opaque` rule. With `writes_once` the nest promises to
    write each element of its single result once and never to read it, so that elementwise readers of the result can be
    applied as it is written.
    """

    def register(build: Callable) -> Callable:
        for m in mnemonics:
            DIRECT[m] = build
        if writes_once:
            WRITES_ONCE.update(mnemonics)
        return build

    return register


def writes_once() -> frozenset[str]:
    """Opaque operators whose results elementwise operations may join."""
    rules()
    return frozenset(WRITES_ONCE)


@dataclass(frozen=True)
class Scheduled:
    """A schedule, the rule that made it, and why earlier rules did not apply."""

    schedule: Schedule
    rule: str
    refused: tuple[tuple[str, str], ...]


@lru_cache(maxsize=1)
def rules() -> list[ModuleType]:
    """All rule modules in the order they are tried."""
    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    return sorted((m for m in modules if hasattr(m, "apply")), key=lambda m: m.PRIORITY)


def direct_operators() -> frozenset[str]:
    """Opaque operators that have a loop nest."""
    rules()
    return frozenset(DIRECT)


def schedule(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Scheduled:
    """The default schedule of a kernel, or the one with other `decisions` (name -> value) of the rule that applies."""
    from ..schedule import ScheduleError

    refused: list[tuple[str, str]] = []
    for module in rules():
        try:
            result = module.apply(kernel, machine, decisions)
        except ScheduleError as e:  # a step that is not legal here
            result = e.message
        if not isinstance(result, str):
            return Scheduled(result, module.NAME, tuple(refused))
        refused.append((module.NAME, result))
    reasons = "; ".join(f"{n}: {r}" for n, r in refused)
    raise CompileError(f"no schedule rule applies to kernel {kernel.name}: {reasons}", stage="schedule")
