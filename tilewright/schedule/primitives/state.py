"""What all primitives share: the loop nest of a kernel while it is being transformed, and the tools to look at it.

Every primitive checks that it is legal before it changes anything and raises ScheduleError with the reason if it is
not. What was applied is recorded in `State.trace`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar, cast

import numpy as np

from ...support import providers
from ...support.errors import CompileError, TilewrightError
from ...support.options import DEFAULT_TARGET
from ...support.sizes import Undecided, typically
from ...tensor.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Target,
    loads,
    map_loads,
)  # fmt: skip
from ...tensor.kernel import Kernel, Stage
from ..concurrency import illegal
from ..decisions import Decision
from ..legality import PRIVATE, check, covers
from ..machine import Machine
from ..nest import (
    Alloc,
    For,
    If,
    Nest,
    Pack,
    Seq,
    Stmt,
    Store,
    children,
    exprs,
    path_to,
    reads,
    seq,
    stores,
    transform,
    walk_stmts,
    with_children,
    writes,
)  # fmt: skip
from ..region import all_ranges
from ..trace import Step, Trace


class ScheduleError(TilewrightError):
    """A primitive that would change the meaning of the kernel, or that does not apply."""


#: what primitives made of the nests of the kernel at hand (see `steps_kept`), by nest, name and arguments
_STEPS: ContextVar[dict[object, Any] | None] = ContextVar("steps", default=None)


@contextmanager
def steps_kept() -> Iterator[None]:
    """Schedules of a kernel made in here begin with one nest, and steps that several of them take are taken once: rules
    that are tried one after the other often begin alike."""
    token = _STEPS.set({})
    try:
        yield
    finally:
        _STEPS.reset(token)


class Unchecked:
    """How many steps `legality` has not seen."""

    steps = 0


_UNCHECKED: ContextVar[Unchecked | None] = ContextVar("unchecked", default=None)


@contextmanager
def unchecked() -> Iterator[Unchecked]:
    """Steps taken in here are not checked each by itself, but as a whole by who asks for it (`State.legal`)."""
    found = Unchecked()
    token = _UNCHECKED.set(found)
    try:
        yield found
    finally:
        _UNCHECKED.reset(token)


_Choice = TypeVar("_Choice")
_Method = TypeVar("_Method", bound=Callable[..., Any])


def primitive(method: _Method) -> _Method:
    """Record a successful call in the trace. If it raises, or breaks a rule of `legality`, the schedule stays as it
    was. Numbers of NumPy become Python's; ScheduleError for an argument of another type than the method declares."""
    _, *declared = signature(method).parameters.values()

    @wraps(method)
    def call(self: State, *args: object, **kwargs: object) -> Any:
        if self._nested:
            return method(self, *args, **kwargs)
        args, kwargs = _plain(args), {k: _plain(v) for k, v in kwargs.items()}
        for i, p in enumerate(declared):
            if p.name in kwargs:
                _check_argument(self, method.__name__, p, kwargs[p.name])
            elif p.kind is Parameter.VAR_POSITIONAL:
                _check_argument(self, method.__name__, p, args[i:])
            elif p.kind is not Parameter.KEYWORD_ONLY and i < len(args):  # others are missing, or not needed
                _check_argument(self, method.__name__, p, args[i])
        saved, provable = self._now(), self._provable  # of the nest before this step
        later = _UNCHECKED.get()
        known = self._steps((method.__name__, args, tuple(kwargs.items()), later is None))
        self._nested = True
        try:
            with typically(False):
                if (step := next((x for x in known if x[0] == saved), None)) is not None:
                    self.body, *tables, result = step[1:]
                    result = copy(result)
                    self.temporaries, self.params, self.packs = map(dict, tables)
                else:
                    result = method(self, *args, **kwargs)
                    if later is None and provable and (reason := self._illegal()):
                        raise ScheduleError(f"{method.__name__}: {reason}", stage="schedule")
                    known.append((saved, *self._now(), copy(result)))
                if later is not None:
                    later.steps += provable
        except (ScheduleError, CompileError, Undecided) as e:
            self.body, self.temporaries, self.params, self.packs = saved
            if isinstance(e, ScheduleError):
                raise
            raise ScheduleError(f"{method.__name__}: {e.message}", stage="schedule") from None
        finally:
            self._nested = False
        made = tuple(n for n in self.temporaries if n not in saved[1])
        self.trace.append(Step(method.__name__, args, kwargs, result, made))
        return result

    call.is_primitive = True  # type: ignore[attr-defined]
    return cast(_Method, call)


def _plain(value: Any) -> Any:
    """The same with Python's integers in place of NumPy's."""
    if isinstance(value, np.integer):
        return int(value)
    return type(value)(map(_plain, value)) if type(value) in (tuple, list) else value


_TYPES = {"int": (int, "an integer"), "str": (str, "a name")}


def _check_argument(state: State, method: str, parameter: Parameter, value: Any) -> None:
    """ScheduleError if an argument has another type than declared, or names a buffer that there is not."""
    declared = parameter.annotation
    each = declared.removeprefix("Sequence[").removesuffix("]") if isinstance(declared, str) else ""
    several = parameter.kind is Parameter.VAR_POSITIONAL or each != declared
    if each not in _TYPES:
        return
    kind, words = _TYPES[each]
    if each != declared and (isinstance(value, str) or not isinstance(value, Sequence)):
        raise ScheduleError(f"{method}: {parameter.name} is a list, not {value!r}", stage="schedule")
    for x in value if several else (value,):
        if not isinstance(x, kind) or isinstance(x, bool):
            raise ScheduleError(f"{method}: {parameter.name} is {words}, not {x!r}", stage="schedule")
    if parameter.name == "buffer" and value not in state.params and value not in state.temporaries:
        known = ", ".join([*state.params, *state.temporaries])
        raise ScheduleError(f"there is no buffer {value}", stage="schedule", hint=f"buffers: {known}")


class State:
    """The loop nest of a kernel, what is known about its buffers, and the trace of what was done to it."""

    def __init__(
        self,
        kernel: Kernel,
        target: Any = DEFAULT_TARGET,
        *,
        body: Stmt | None = None,
        decisions: Mapping[str, Any] | None = None,
    ) -> None:
        self.kernel, self.target = kernel, target
        self.fixed_decisions = dict(decisions or {})
        self.decisions: dict[str, Decision] = {}
        self.params = {p.name: p for p in kernel.params}
        self.temporaries = {b.name: b for b in kernel.temporaries}
        self.stages = {s.name: s for s in kernel.stages}
        self.body = body if body is not None else _start(kernel)
        self.packs: dict[str, Pack] = {}
        #: how a sum of products runs, in words (`planner.Plan`)
        self.plan = ""
        self.trace = Trace(kernel)
        self._nested = False
        self._machine: Machine | None = None
        self._proved: bool | None = None

    @property
    def _provable(self) -> bool:
        """Whether the nest is one of which `check` can show what is legal: one that a tactic wrote may rely on more."""
        if self._proved is None:
            self._proved = check(self.body, self.params, self.temporaries) is None
        return self._proved

    def _now(self) -> tuple[Stmt, dict[str, Buffer], dict[str, Buffer], dict[str, Pack]]:
        return self.body, dict(self.temporaries), dict(self.params), dict(self.packs)

    def _steps(self, step: tuple[object, ...]) -> list[Any]:
        """What is known of a step from the nest as it is now: states before it and after it, with what it returned."""
        known, key = _STEPS.get(), (id(self.body), self._provable, id(self.target), *step)
        try:
            return [] if known is None else known.setdefault(key, [])
        except TypeError:  # an argument has no hash
            return []

    # ---- looking ----

    def buffer(self, name: str) -> Buffer:
        return self.params.get(name) or self.temporaries[name]

    def loop(self, var: str) -> For:
        found = path_to(self.body, lambda s: isinstance(s, For) and s.var == var, {var})
        if found is None:
            raise ScheduleError(f"there is no loop {var}", stage="schedule", hint=f"loops: {', '.join(self.loops())}")
        return found[-1]  # type: ignore[return-value]

    def loops(self, block: str | None = None) -> list[str]:
        """Loop variables, outermost first: of the whole nest, or of those around a block."""
        if block is None:
            return [f.var for f in self.body.loops]
        return [s.var for s in self._path(block) if isinstance(s, For)]

    def store(self, block: str) -> Store:
        return self._path(block)[-1]  # type: ignore[return-value]

    def _path(self, block: str) -> tuple[Stmt, ...]:
        found = path_to(self.body, lambda s: isinstance(s, Store) and s.block == block, {block})
        if found is None:
            known = ", ".join(s.block for s in stores(self.body))
            raise ScheduleError(f"there is no block {block}", stage="schedule", hint=f"blocks: {known}")
        return found

    def extent(self, var: str) -> int:
        """Iterations of a loop; ScheduleError if they are not constant."""
        trip = self.loop(var).trip
        if trip is None:
            raise ScheduleError(f"the extent of {var} is not constant", stage="schedule")
        return trip

    def extent_or_zero(self, var: str) -> int:
        """Iterations of a loop, 0 if they are not constant."""
        return self.loop(var).trip or 0

    def machine(self) -> Machine:
        """What the target describes; UsageError if there is none of that name."""
        if self._machine is None:
            found = providers.ask("target")(self.target) if isinstance(self.target, str) else self.target
            self._machine = found if isinstance(found, Machine) else found.describe()
        return self._machine

    @property
    def legal(self) -> bool:
        """Whether the nest breaks no rule, of one that can be shown to; False where sizes leave that open."""
        try:
            with typically(False):
                return not self._provable or self._illegal() is None
        except Undecided:
            return False

    def _illegal(self) -> str | None:
        """The first rule that the nest breaks, in words."""
        return check(self.body, self.params, self.temporaries) or illegal(
            self.body, {**self.params, **self.temporaries}, self.machine
        )

    def _scope(self, scope: str) -> str:
        """The name of a memory; ScheduleError if the machine has none of that name."""
        if scope not in PRIVATE:
            known = ", ".join(m.name for m in self.machine().memories)
            if scope not in known.split(", "):
                raise ScheduleError(f"there is no scope {scope}", stage="schedule", hint=f"scopes: {known}")
        return scope

    def _replace(self, old: Stmt, new: Stmt | None) -> None:
        self.body = _without(self.body, old, new) or Seq(())

    def fresh(self, base: str) -> str:
        """`base`, with a number if a loop, buffer, block or token has that name."""
        taken = self.body.facts.names | self.params.keys() | self.temporaries.keys()
        name, n = base, 1
        while name in taken:
            name, n = f"{base}{n}", n + 1
        return name

    # ---- decisions ----

    def sample_choice(self, name: str, candidates: Sequence[_Choice], default: _Choice) -> _Choice:
        """A decision of a rule that a tuner may take differently: one of `candidates` (values that JSON can hold).

        Without a decision from outside it is `default`. A decision that is no candidate (from another shape's tuning)
        counts as absent.
        """
        options = list(candidates)
        if default not in options:
            options.append(default)
        chosen: Any = self.fixed_decisions.get(name, default)
        if isinstance(chosen, list):
            chosen = tuple(chosen)
        if chosen not in options:
            chosen = default
        self.decisions[name] = Decision(name, tuple(options), chosen, default)
        return cast(_Choice, chosen)

    def _around(self, root: Stmt) -> set[str]:
        """The loops around a statement."""
        path = path_to(self.body, lambda s: s is root, root.facts.names) or (root,)
        return {s.var for s in path[:-1] if isinstance(s, For)}

    def _stays_inside(self, root: Stmt, at: For) -> None:
        """Raise ScheduleError if moving a statement into a loop takes it out of others: buffers may live just inside
        those."""
        left = self._around(root) - self._around(at) - {at.var}
        if left:
            raise ScheduleError(
                f"{at.var} is outside loop {', '.join(left)}, which the block belongs to", stage="schedule"
            )

    def _nest_root(self, block: str) -> Stmt:
        """The outermost statement that holds only this block."""
        path = self._path(block)
        root: Stmt = path[-1]
        for s in reversed(path):
            if isinstance(s, Seq) or len(stores(s)) > 1:
                break
            root = s
        return root

    def _unconditional(self, at: Stmt, name: str) -> None:
        """Raise ScheduleError if a buffer is read below a statement only under a condition."""
        for s in walk_stmts(at):
            if isinstance(s, If) and any(touches(x, name) for x in stores(s)):
                raise ScheduleError(f"{name} is read in some iterations only", stage="schedule")

    def _only_writer(self, store: Store) -> None:
        for t in store.targets:
            other = next((s for s in stores(self.body) if s is not store and t.buffer in writes(s)), None)
            if other is not None:
                raise ScheduleError(f"{t.buffer} is also written by {other.block}", stage="schedule")

    def _covers(self, store: Store, loops: list[str], t: Target) -> None:
        """Raise ScheduleError unless a block provably writes every element of a target once (apart from reduction
        loops)."""
        b = self.buffer(t.buffer)
        around = [self.loop(v) for v in loops if v not in store.reduction]
        if not covers(t.indices, around, b.size, all_ranges(self.body)):
            raise ScheduleError(f"block {store.block} would not write every element of {b.name} once", stage="schedule")

    # ---- result ----

    def nest(self) -> Nest:
        """The nest with every temporary allocated around its uses."""
        body = self.body
        for b in self.temporaries.values():
            body = _allocate(body, b)
        params = tuple(self.params[p.name] for p in self.kernel.params)
        return Nest(self.kernel.name, params, self.kernel.outputs, body, dict(self.packs))

    def __str__(self) -> str:
        return str(self.nest())


# ---- helpers -------------------------------------------------------------------------------------------------------


def _start(kernel: Kernel) -> Stmt:
    """The nest of a kernel before the first step."""
    known = _STEPS.get()
    if known is None or id(kernel) not in known:
        body = seq(*[stage_nest(s) for s in kernel.stages])
        if known is None:
            return body
        known[id(kernel)] = kernel, body
    found: Stmt = known[id(kernel)][1]
    return found


def stage_nest(stage: Stage) -> Stmt:
    """The plain loops of a stage."""
    body: Stmt = Store(stage.targets, stage.name, stage.reduction)
    for var, extent in reversed(stage.dims):
        body = For(var, Const(extent, "index"), body)
    return body


def redirect(s: Stmt, old: str, new: str, index: Callable[[tuple[Expr, ...]], tuple[Expr, ...]]) -> Stmt:
    """Use ``new[index(i)]`` wherever a Store uses ``old[i]``."""
    if not isinstance(s, Store):
        return s

    def read(x: Load) -> Expr:
        return Load(new, index(x.indices), x.dtype) if x.buffer == old else x

    def write(t: Target) -> Target:
        value, init = map_loads(t.value, read), None if t.init is None else map_loads(t.init, read)
        return Target(new, index(t.indices), value, init) if t.buffer == old else replace(t, value=value, init=init)

    return replace(s, targets=tuple(map(write, s.targets)))


def rename_reduction(s: Stmt, old: str, new: tuple[str, ...]) -> Stmt:
    """Let reductions run over the loops `new` instead of `old`."""

    def visit(x: Stmt) -> Stmt:
        if isinstance(x, Store) and old in x.reduction:
            names: list[str] = []
            for v in x.reduction:
                names += [n for n in (new if v == old else (v,)) if n not in names]
            return replace(x, reduction=tuple(names))
        return x

    out = transform(s, visit)
    assert out is not None
    return out


def reads_of(s: Stmt) -> set[str]:
    """Buffers that one statement itself reads."""
    return {x.buffer for e in exprs(s) for x in loads(e)}


def touches(s: Store, name: str) -> bool:
    return name in writes(s) or any(x.buffer == name for e in exprs(s) for x in loads(e))


def home(root: Stmt, name: str) -> Stmt:
    """The smallest statement that holds all uses of a buffer."""
    s = root
    while True:
        using = [c for c in children(s) if name in writes(c) | reads(c)]
        # never inside a parallel or vectorized loop's body alone if the loop itself carries the value: a buffer is
        # fresh in each iteration
        sums = isinstance(s, For) and any(s.var in x.reduction and name in writes(x) for x in stores(s))
        if len(using) != 1 or isinstance(s, Store) or sums:
            return s
        s = using[0]


def _allocate(root: Stmt, b: Buffer) -> Stmt:
    """Wrap the smallest statement that holds all uses of a buffer."""
    if b.name not in writes(root) | reads(root):
        return root
    s = home(root, b.name)
    if isinstance(s, Seq):
        first = min(i for i, c in enumerate(s.stmts) if b.name in writes(c) | reads(c))
        last = max(i for i, c in enumerate(s.stmts) if b.name in writes(c) | reads(c))
        inner = Alloc(b, seq(*s.stmts[first : last + 1]))
        new: Stmt = seq(*s.stmts[:first], inner, *s.stmts[last + 1 :])
    else:
        new = Alloc(b, s)
    return _swap(root, s, new)


def _without(s: Stmt, old: Stmt, new: Stmt | None) -> Stmt | None:
    """`s` with `new` in place of `old`; None if nothing is left."""
    if s is old:
        return new
    if not old.facts.names <= s.facts.names:
        return s
    kept = [_without(c, old, new) for c in children(s)]
    if isinstance(s, Seq):
        return seq(*kept) if any(k is not None for k in kept) else None
    if any(k is None for k in kept):
        return None
    return with_children(s, tuple(kept))  # type: ignore[arg-type]


def _swap(root: Stmt, old: Stmt, new: Stmt) -> Stmt:
    if root is old:
        return new
    if not old.facts.names <= root.facts.names:
        return root
    return with_children(root, tuple([_swap(c, old, new) for c in children(root)]))
