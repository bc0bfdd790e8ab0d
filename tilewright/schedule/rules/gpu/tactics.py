"""Rules for GPUs as tactics: what such a rule looks at first, and the one step of its trace, which writes the nest."""

from __future__ import annotations

from collections.abc import Callable

from ....tensor.kernel import Kernel
from ...decisions import Decisions
from ...machine import Machine
from ...nest import Stmt
from ...schedule import Schedule, ScheduleError
from .. import Tactic, tactic
from ..common import inline_producers
from ..custom.custom_kernel import joined
from .thread_binding import has_blocks

#: ``apply`` of a rule
Apply = Callable[..., Schedule | str]


def loops_rule(
    name: str,
    write: Tactic,
    unfit: Callable[[Kernel, Machine], str],
    prepare: Callable[[Schedule], None] = inline_producers,
) -> Apply:
    """``apply`` of a rule that is `unfit`, in words, for some kernels or machines. Other kernels it prepares by
    primitives, and then `write` makes the nest."""

    def written(s: Schedule, machine: Machine) -> Stmt | str:
        made = unfit(s.kernel, machine) or write(s, machine)
        if not isinstance(made, str):
            s.temporaries.clear()
        return made

    def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
        if why := unfit(kernel, machine):
            return why
        s = Schedule(kernel, machine, decisions=decisions)
        prepare(s)
        try:
            s.tactic(name)
        except ScheduleError as e:
            return e.message
        return s

    tactic(name, written)
    return apply


def operator_rule(name: str, write: Tactic, mnemonics: tuple[str, ...], otherwise: str, join: bool = True) -> Apply:
    """The same for operators with a loop nest of their own. `write` makes that, with the other stages of the kernel in
    it unless they are to `join` it here."""

    def unfit(kernel: Kernel, machine: Machine) -> str:
        own = kernel.opaque is not None and kernel.opaque.mnemonic in mnemonics
        return no_grid(machine) or ("" if own else otherwise)

    def whole(s: Schedule, machine: Machine) -> Stmt | str:
        made = write(s, machine)
        return joined(s.kernel, made) if join and not isinstance(made, str) else made

    return loops_rule(name, whole, unfit, lambda s: None)


def no_grid(machine: Machine) -> str:
    return "" if has_blocks(machine) else "the machine has no grid of blocks"


def in_turn(machine: Machine) -> str:
    return "the threads of a block run in turn: loops of their own are faster" if machine.threads_in_turn else ""


def not_loops(kernel: Kernel, machine: Machine) -> str:
    """Why a rule for loops does not take a kernel: the machine has no blocks, or it is an operator's own nest."""
    return no_grid(machine) or ("an operator with a loop nest of its own" if kernel.opaque else "")


def not_whole(kernel: Kernel, machine: Machine) -> str:
    """The same, for a rule that writes whole kernels only."""
    part = kernel.opaque or kernel.one_thread
    return no_grid(machine) or ("an operator with a loop nest of its own, or a part of a kernel" if part else "")


__all__ = ["in_turn", "loops_rule", "no_grid", "not_loops", "not_whole", "operator_rule"]
