"""The loop nest: statements as immutable trees, and the tools to walk and rewrite them.

Semantics are those of the printed form read as a program. A `Store` evaluates all its values, then writes them. A
Store with `init` is a reduction: before the first iteration of its `reduction` loops the target is set to `init`. The
kinds ``serial``, ``unroll`` (iterations laid out one after another) and ``vector`` (in lanes) do not change meaning.
Iterations of a loop that is bound to an axis of the machine run at the same time, on threads of that axis; they wait
for each other at barriers only. docs/nests.md describes what then is a race.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, replace
from operator import is_
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from ..tensor.expr import Buffer, Const, Expr, Load, const_value, loads, map_loads, substitute, variables
from ..tensor.expr import Target as Target

#: what a loop may be besides bound to an axis
KINDS = ("serial", "unroll", "vector")
#: the axis of a processor's threads
THREAD = "thread"
#: names that axes had before, in texts and traces
OLD_AXES = {"parallel": THREAD, "threads": THREAD}


_Found = TypeVar("_Found")


class cached(Generic[_Found]):
    """A property that is found once for each object: `functools.cached_property` without the lock that it has in Python
    3.11."""

    def __init__(self, find: Callable[[Any], _Found]) -> None:
        self.find, self.name, self.__doc__ = find, find.__name__, find.__doc__

    def __get__(self, owner: object, kind: type | None = None) -> _Found:
        if owner is None:
            return self  # type: ignore[return-value]
        found: _Found = self.find(owner)
        owner.__dict__[self.name] = found
        return found


class Facts(NamedTuple):
    """What is known of a statement and all below it. Loops and stores: outer before inner, without itself."""

    #: names of buffers; an accumulator counts as written only
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    #: all that is read, by sums of themselves and by prefetch hints too
    loaded: frozenset[str] = frozenset()
    #: the loops, blocks and tokens of copies
    names: frozenset[str] = frozenset()
    #: the variables in all expressions and prefetch hints
    mentioned: frozenset[str] = frozenset()
    #: the variables whose loops are around it, those that it sums over too
    free: frozenset[str] = frozenset()
    #: the axes that loops are bound to; "" for barriers, copies that are not waited for, and producers
    axes: frozenset[str] = frozenset()
    loops: tuple[For, ...] = ()
    stores: tuple[Store, ...] = ()


@dataclass(frozen=True)
class Stmt:
    """Base of the statements. Frequent queries are cached: trees share what a primitive leaves unchanged."""

    #: the statements right below
    parts: ClassVar[Any] = ()

    @cached
    def facts(self) -> Facts:
        return _facts(self)

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops in and below this statement, outer before inner."""
        return self.facts.loops

    @property
    def stores(self) -> tuple[Store, ...]:
        return self.facts.stores

    @cached
    def used(self) -> tuple[str, ...]:
        """The buffers that are read or written."""
        return tuple(sorted(self.facts.reads | self.facts.writes))

    @cached
    def known(self) -> dict[object, Any]:
        """A cache for analyses of this statement, by everything that their results depend on."""
        return {}

    @cached
    def variables(self) -> frozenset[str]:
        """Loop variables in the expressions of this statement itself (prefetch hints left out)."""
        return frozenset().union(*[variables(e) for e in exprs(self)])


@dataclass(frozen=True)
class For(Stmt):
    """``for var in kind(extent): body``, from 0 in steps of 1. `kind` is one of `KINDS` or the name of an axis.

    A vector loop has `lanes` (a power of two); where its extent is smaller, the last lanes are masked off. `prefetch`
    is a hint without meaning: (parameter, flat index) of memory that each iteration asks for ahead of time. `notes`
    are (key, value) pairs without meaning that a target may know, in the order of their keys.
    """

    var: str
    extent: Expr
    body: Stmt
    kind: str = "serial"
    lanes: int = 0
    prefetch: tuple[tuple[str, Expr], ...] = ()
    notes: tuple[tuple[str, Any], ...] = ()

    @cached
    def parts(self) -> tuple[Stmt]:
        return (self.body,)

    @property
    def loops(self) -> tuple[For, ...]:
        return (self, *self.facts.loops)

    def note(self, key: str) -> Any:
        """The value of a note, None if there is none."""
        return next((v for k, v in self.notes if k == key), None)

    @property
    def bound(self) -> bool:
        """Whether it is bound to an axis of the machine."""
        return self.kind not in KINDS

    @property
    def trip(self) -> int | None:
        """The number of iterations if it is a constant."""
        return const_value(self.extent)


@dataclass(frozen=True)
class Store(Stmt):
    """Writes one element of one or more buffers; `block` names it for the schedule.

    For a reduction (`Target.init` given) `reduction` are the loop variables it runs over.
    """

    targets: tuple[Target, ...]
    block: str = ""
    reduction: tuple[str, ...] = ()

    @property
    def stores(self) -> tuple[Store, ...]:
        return (self,)

    @cached
    def loads(self) -> tuple[Load, ...]:
        """What is read for values and places, initial values too."""
        return tuple([x for e in exprs(self) for x in loads(e)])


@dataclass(frozen=True)
class Seq(Stmt):
    stmts: tuple[Stmt, ...]

    @property
    def parts(self) -> tuple[Stmt, ...]:
        return self.stmts


@dataclass(frozen=True)
class If(Stmt):
    cond: Expr
    then: Stmt
    otherwise: Stmt | None = None

    @cached
    def parts(self) -> tuple[Stmt, ...]:
        return (self.then,) if self.otherwise is None else (self.then, self.otherwise)


@dataclass(frozen=True)
class Alloc(Stmt):
    """A buffer in one of the machine's memories that lives during `body`."""

    buffer: Buffer
    body: Stmt

    @cached
    def parts(self) -> tuple[Stmt]:
        return (self.body,)


@dataclass(frozen=True)
class Barrier(Stmt):
    """The threads that `scope` synchronizes wait here until all of them have come (`machine.Axis.barriers`)."""

    scope: str


@dataclass(frozen=True)
class AsyncCopy(Stmt):
    """Begins the plain copies in `body`, loops around stores, and does not wait for them.

    Each execution forms a group, an empty one too. Until a `Wait` for `token` the source must not change, and the
    destination must not be accessed.

    With `bulk` an engine of the machine does it (`machine.BulkCopy`): one thread begins it for all that share the
    memory, all of them wait, and what is copied may be zero beyond a parameter (``guard``). The body may be under a
    condition.
    """

    token: str
    body: Stmt
    bulk: bool = False

    @cached
    def parts(self) -> tuple[Stmt]:
        return (self.body,)


@dataclass(frozen=True)
class Wait(Stmt):
    """Waits for the groups that a thread began with `token`, except the `pending` last ones."""

    token: str
    pending: int = 0


@dataclass(frozen=True)
class Pack:
    """A constant parameter in another layout, made at compile time.

    Each dimension d of the source is padded with zeros to a multiple of its `splits[d]` (innermost factors last, as for
    ``reshape``), split, and the resulting dimensions permuted by `order`:
    ``np.pad(w).reshape(k, n // 32, 32).transpose(1, 0, 2)`` is ``splits=((), (32,)), order=(1, 0, 2)``. Before that,
    the first `repeats[d]` elements of dimension d follow it once more, round and round. A scalar counts as one element
    of each dimension that is split.
    """

    source: str
    splits: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    repeats: tuple[int, ...] = ()


@dataclass(frozen=True)
class Nest:
    """A kernel at level 4: parameters in order (inputs, then outputs), and the body."""

    name: str
    params: tuple[Buffer, ...]
    outputs: tuple[str, ...]
    body: Stmt
    packs: dict[str, Pack] = field(default_factory=dict)

    def buffers(self) -> dict[str, Buffer]:
        """All buffers by name: parameters and allocations."""
        return dict(self._buffers)

    @cached
    def _buffers(self) -> dict[str, Buffer]:
        found = {b.name: b for b in self.params}
        found.update({s.buffer.name: s.buffer for s in walk_stmts(self.body) if isinstance(s, Alloc)})
        return found

    def __str__(self) -> str:
        return self._text

    @cached
    def _text(self) -> str:
        from .text import format_nest

        return format_nest(self)


# ---- facts ---------------------------------------------------------------------------------------------------------


def _facts(s: Stmt) -> Facts:
    if isinstance(s, Store):
        return _facts_of_store(s)
    if isinstance(s, For):
        return _facts_of_loop(s, s.body.facts)
    parts: tuple[Stmt, ...] = s.parts
    below: list[tuple[frozenset[str], ...]] = [c.facts[:7] for c in parts] or [(frozenset(),) * 7]  # but loops, stores
    sets = below[0] if len(below) == 1 else [frozenset().union(*x) for x in zip(*below, strict=True)]
    reads, writes, loaded, names, mentioned, free, axes = sets
    if isinstance(s, If):
        own, read = variables(s.cond), {x.buffer for x in loads(s.cond)}
        reads, loaded, mentioned, free = reads | read, loaded | read, mentioned | own, free | own
    elif isinstance(s, AsyncCopy):
        names = names | {s.token}
    if isinstance(s, (Barrier, AsyncCopy, Wait)):
        axes = axes | {""}
    loops = parts[0].loops if len(parts) == 1 else tuple([f for c in parts for f in c.loops])
    stores = parts[0].stores if len(parts) == 1 else tuple([x for c in parts for x in c.stores])
    return Facts(reads, writes, loaded, names, mentioned, free, axes, loops, stores)


def _facts_of_store(s: Store) -> Facts:
    written = frozenset([t.buffer for t in s.targets])
    loaded = frozenset([x.buffer for x in s.loads])
    sums = [t.buffer for t in s.targets if t.init is not None]
    mentioned = s.variables
    free = mentioned.union(s.reduction) if s.reduction else mentioned
    return Facts(loaded.difference(sums) if sums else loaded, written, loaded, frozenset([s.block]), mentioned, free)


def _facts_of_loop(s: For, b: Facts) -> Facts:
    reads, loaded, own, axes = b.reads, b.loaded, variables(s.extent), b.axes
    ahead = own
    if s.prefetch:
        ahead = own.union(*[variables(i) for _, i in s.prefetch])
        loaded = loaded.union([x.buffer for _, i in s.prefetch for x in loads(i)])
    if read := loads(s.extent):
        reads, loaded = reads.union([x.buffer for x in read]), loaded.union([x.buffer for x in read])
    if s.bound:
        axes = axes | {s.kind}
    if s.note("producer") is not None:
        axes = axes | {""}
    mentioned, free = b.mentioned, b.free
    if ahead:
        mentioned, free = mentioned | ahead, free | ahead
    free = own | (free - {s.var}) if s.var in free else free
    return Facts(reads, b.writes, loaded, b.names | {s.var}, mentioned, free, axes, s.body.loops, s.body.stores)


# ---- building ------------------------------------------------------------------------------------------------------


def seq(*stmts: Stmt | None) -> Stmt:
    """A sequence without nesting and without a wrapper around a single statement."""
    flat: list[Stmt] = []
    for s in stmts:
        if isinstance(s, Seq):
            flat += s.stmts
        elif s is not None:
            flat.append(s)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def store(buffer: str, indices: tuple[Expr, ...] | list[Expr], value: Expr, block: str = "") -> Store:
    return Store((Target(buffer, tuple(indices), value),), block)


def loop(var: str, extent: Expr | int, body: Stmt, kind: str = "serial") -> For:
    return For(var, Const(extent, "index") if isinstance(extent, int) else extent, body, kind)


# ---- walking -------------------------------------------------------------------------------------------------------


def children(s: Stmt) -> tuple[Stmt, ...]:
    found: tuple[Stmt, ...] = s.parts
    return found


def with_children(s: Stmt, new: tuple[Stmt, ...]) -> Stmt:
    old = s.parts
    if not old or (len(new) == len(old) and all(map(is_, new, old))):
        return s
    if isinstance(s, For):
        return For(s.var, s.extent, new[0], s.kind, s.lanes, s.prefetch, s.notes)
    if isinstance(s, Seq):
        return seq(*new)
    if isinstance(s, Alloc):
        return Alloc(s.buffer, new[0])
    if isinstance(s, AsyncCopy):
        return AsyncCopy(s.token, new[0], s.bulk)
    assert isinstance(s, If)
    return If(s.cond, new[0], new[1] if len(new) > 1 else None)


def in_parts(s: Stmt, params: Set[str]) -> bool:
    """Whether a buffer lives during statements that different threads run: those that write results, which the first
    thread runs alone, and those that write what every thread has for itself and needs afterwards."""
    if not isinstance(s, Alloc) or not s.facts.writes & params:
        return False
    return bool(s.facts.writes - params - {x.buffer.name for x in walk_stmts(s) if isinstance(x, Alloc)})


def walk_stmts(s: Stmt) -> Iterator[Stmt]:
    """`s` and every statement below it, outer before inner."""
    rest = [s]
    while rest:
        x = rest.pop()
        yield x
        rest += x.parts[::-1]


def stores(s: Stmt) -> list[Store]:
    return list(s.stores)


def transform(s: Stmt, f: Callable[[Stmt], Stmt | None]) -> Stmt | None:
    """Rewrite bottom-up with f(statement with rewritten children); None deletes a statement."""
    new = [transform(c, f) for c in s.parts]
    if new and all(map(is_, new, s.parts)):
        return f(s)
    if isinstance(s, Seq):
        kept = [n for n in new if n is not None]
        return f(with_children(s, tuple(kept)) if len(kept) == len(s.stmts) else seq(*kept)) if kept else None
    if isinstance(s, If):
        if new[0] is None and (len(new) == 1 or new[1] is None):
            return None
        return f(with_children(s, (new[0] or Seq(()), *[n for n in new[1:] if n is not None])))
    if isinstance(s, AsyncCopy):  # a group that copies nothing is one too: waits count it
        return f(with_children(s, (new[0] or Seq(()),)))
    whole = [n for n in new if n is not None]
    return f(with_children(s, tuple(whole))) if len(whole) == len(new) else None


def map_exprs(s: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    """Rewrite every expression of one statement (not of its children); the same object where they are unchanged, with
    what is known of it."""
    if isinstance(s, For):
        extent, prefetch = f(s.extent), tuple([(b, f(i)) for b, i in s.prefetch])
        same = extent is s.extent and prefetch == s.prefetch
        return s if same else replace(s, extent=extent, prefetch=prefetch)
    if isinstance(s, If):
        cond = f(s.cond)
        return s if cond is s.cond else replace(s, cond=cond)
    if isinstance(s, Store):
        targets = tuple([_map_target(t, f) for t in s.targets])
        return s if all(map(is_, targets, s.targets)) else Store(targets, s.block, s.reduction)
    return s


def _map_target(t: Target, f: Callable[[Expr], Expr]) -> Target:
    init, value = None if t.init is None else f(t.init), f(t.value)
    indices = tuple([f(i) for i in t.indices])
    if value is t.value and init is t.init and all(map(is_, indices, t.indices)):
        return t
    return Target(t.buffer, indices, value, init)


def transform_exprs(s: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    """Rewrite every expression of a tree."""
    out = transform(s, lambda x: map_exprs(x, f))
    assert out is not None
    return out


def substitute_vars(s: Stmt, values: dict[str, Expr]) -> Stmt:
    """Replace loop variables by expressions everywhere below `s`."""
    if values.keys().isdisjoint(s.facts.mentioned):
        return s
    new = with_children(s, tuple([substitute_vars(c, values) for c in s.parts]))
    ahead = isinstance(s, For) and s.prefetch
    if not ahead and values.keys().isdisjoint(s.variables):
        return new
    return map_exprs(new, lambda e: substitute(e, values))


def exprs(s: Stmt) -> Iterator[Expr]:
    """The expressions of one statement that have a meaning (prefetch hints have none)."""
    if isinstance(s, For):
        yield s.extent
    elif isinstance(s, If):
        yield s.cond
    elif isinstance(s, Store):
        for t in s.targets:
            yield from t.indices
            yield t.value
            if t.init is not None:
                yield t.init


def reads(s: Stmt) -> frozenset[str]:
    """Names of the buffers read in and below `s` (an accumulator counts as written only)."""
    return s.facts.reads


def writes(s: Stmt) -> frozenset[str]:
    """Names of the buffers written in and below `s`."""
    return s.facts.writes


def rename_loads(s: Stmt, f: Callable[[Load], Expr]) -> Stmt:
    """Rewrite every Load of a tree."""
    return transform_exprs(s, lambda e: map_loads(e, f))


def replace_loads(s: Stmt, buffer: str, f: Callable[[Load], Expr]) -> Stmt:
    """Rewrite every Load of one buffer in a tree; statements without any stay what they are, with what is known of
    them."""

    if buffer not in s.facts.loaded:
        return s
    new = with_children(s, tuple([replace_loads(c, buffer, f) for c in children(s)]))
    if not _reads_itself(new, buffer):
        return new
    return map_exprs(new, lambda e: map_loads(e, lambda x: f(x) if x.buffer == buffer else x))


def _reads_itself(s: Stmt, buffer: str) -> bool:
    """Whether a statement reads a buffer, apart from those below it."""
    if isinstance(s, Store):
        return buffer in s.facts.reads
    own = [*exprs(s), *(i for _, i in s.prefetch)] if isinstance(s, For) else [*exprs(s)]
    return any(e.buffer == buffer for o in own for e in loads(o))


def path_to(root: Stmt, match: Callable[[Stmt], bool], names: Set[str] = frozenset()) -> tuple[Stmt, ...] | None:
    """The statements from `root` down to the first one that matches, both included; only where there are loops and
    blocks of these `names`."""
    if match(root):
        return (root,)
    for c in children(root):
        below = path_to(c, match, names) if names <= c.facts.names else None
        if below:
            return (root, *below)
    return None
