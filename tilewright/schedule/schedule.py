"""`Schedule`: how a kernel runs, as a sequence of primitives applied to its loop nest.

Every primitive checks that it is legal before it changes anything and raises ScheduleError with the reason if it is
not. What was applied is recorded in `Schedule.trace`. Default rules, the tuner and users write the same traces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

from ..errors import CompileError, TilewrightError
from ..tensor.analysis import reindex as reindex_stage
from ..tensor.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    Target,
    Var,
    bounds,
    ceildiv,
    const_value,
    map_loads,
    minimum,
    neutral,
    simplify,
    substitute,
    variables,
    walk,
)  # fmt: skip
from ..tensor.kernel import Kernel, Stage
from .build import Buildable
from .decisions import Decision
from .legality import check, covers, is_update, self_dependent
from .nest import (
    Alloc,
    For,
    Nest,
    Pack,
    Seq,
    Stmt,
    Store,
    children,
    exprs,
    path_to,
    reads,
    rename_loads,
    seq,
    stores,
    substitute_vars,
    transform,
    walk_stmts,
    with_children,
    writes,
)  # fmt: skip
from .region import all_ranges, exact, inner_loops, region, same_region
from .trace import Step, Trace, replay


class ScheduleError(TilewrightError):
    """A primitive that would change the meaning of the kernel, or that does not apply."""


def primitive(method: Callable) -> Callable:
    """Record a successful call in the trace. If it raises, or breaks a rule of `legality`, the schedule stays as it
    was."""

    @wraps(method)
    def call(self: Schedule, *args: Any, **kwargs: Any) -> Any:
        if self._nested:
            return method(self, *args, **kwargs)
        saved = self.body, dict(self.temporaries), dict(self.params), dict(self.packs)
        self._nested = True
        try:
            result = method(self, *args, **kwargs)
            reason = check(self.body, self.params, self.temporaries) if self._provable else None
            if reason:
                raise ScheduleError(f"{method.__name__}: {reason}", stage="schedule")
        except (ScheduleError, CompileError) as e:
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
    return call


class Schedule(Buildable):
    """The loop nest of a kernel while it is being transformed.

    `body` is the current nest; `temporaries` are buffers whose place is still open: `nest()` allocates each as deep as
    its uses allow. Blocks are named after the kernel's stages.
    """

    def __init__(
        self,
        kernel: Kernel,
        target: Any = "cpu",
        *,
        body: Stmt | None = None,
        decisions: Mapping[str, Any] | None = None,
    ) -> None:
        self.kernel, self.target = kernel, target
        self.given = dict(decisions or {})
        self.decisions: dict[str, Decision] = {}
        self.params = {p.name: p for p in kernel.params}
        self.temporaries = {b.name: b for b in kernel.temporaries}
        self.stages = {s.name: s for s in kernel.stages}
        self.body = body if body is not None else seq(*[stage_nest(s) for s in kernel.stages])
        self.packs: dict[str, Pack] = {}
        self.trace = Trace(kernel)
        self._nested = False
        # operators with loop nests of their own may rely on what cannot be shown here
        self._provable = check(self.body, self.params, self.temporaries) is None

    @staticmethod
    def replay(kernel: Kernel, trace: str, target: Any = "cpu") -> Schedule:
        """The schedule of a kernel with a trace (the text of another's `trace`) applied; see `trace.replay`."""
        return replay(Schedule(kernel, target), trace)

    # ---- looking ----

    def buffer(self, name: str) -> Buffer:
        return self.params.get(name) or self.temporaries[name]

    def loop(self, var: str) -> For:
        found = path_to(self.body, lambda s: isinstance(s, For) and s.var == var)
        if found is None:
            raise ScheduleError(f"there is no loop {var}", stage="schedule", hint=f"loops: {', '.join(self.loops())}")
        return found[-1]  # type: ignore[return-value]

    def loops(self, block: str | None = None) -> list[str]:
        """Loop variables, outermost first: of the whole nest, or of those around a block."""
        if block is None:
            return [s.var for s in walk_stmts(self.body) if isinstance(s, For)]
        return [s.var for s in self._path(block) if isinstance(s, For)]

    def store(self, block: str) -> Store:
        return self._path(block)[-1]  # type: ignore[return-value]

    def _path(self, block: str) -> tuple[Stmt, ...]:
        found = path_to(self.body, lambda s: isinstance(s, Store) and s.block == block)
        if found is None:
            raise ScheduleError(f"there is no block {block}", stage="schedule")
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

    def _replace(self, old: Stmt, new: Stmt | None) -> None:
        def visit(s: Stmt) -> Stmt | None:
            if s is old:
                return new
            kept = [visit(c) for c in children(s)]
            if isinstance(s, Seq):
                return seq(*kept) if any(k is not None for k in kept) else None
            if any(k is None for k in kept):
                return None
            return with_children(s, tuple(kept))  # type: ignore[arg-type]

        self.body = visit(self.body) or Seq(())

    def _fresh(self, base: str) -> str:
        taken = set(self.loops()) | set(self.params) | set(self.temporaries) | {s.block for s in stores(self.body)}
        name, n = base, 1
        while name in taken:
            name, n = f"{base}{n}", n + 1
        return name

    # ---- decisions ----

    def sample_choice(self, name: str, candidates: Sequence[Any], default: Any) -> Any:
        """A decision of a rule that a tuner may take differently: one of `candidates` (values that JSON can hold).

        Without a decision from outside it is `default`. A decision that is no candidate (from another shape's tuning)
        counts as absent.
        """
        options = list(candidates)
        if default not in options:
            options.append(default)
        chosen = self.given.get(name, default)
        if isinstance(chosen, list):
            chosen = tuple(chosen)
        if chosen not in options:
            chosen = default
        self.decisions[name] = Decision(name, tuple(options), chosen, default)
        return chosen

    # ---- loops ----

    @primitive
    def split(self, var: str, factor: int) -> tuple[str, str]:
        """One loop becomes two; the inner one has `factor` iterations, fewer in the last round if it does not divide.

        before: for i in serial(100): ... after:  for i_o in serial(4): for i_i in serial(min(32, 100 - i_o * 32)): ...
        # split("i", 32), i -> i_o*32 + i_i
        """
        if factor < 1:
            raise ScheduleError(f"split factor {factor} of {var} is not positive", stage="schedule")
        f = self.loop(var)
        if f.kind == "vector":
            raise ScheduleError(f"{var} is vectorized already", stage="schedule", hint="split it before")
        outer, inner = self._fresh(f"{var}_o"), self._fresh(f"{var}_i")
        trip = f.trip
        rest: Expr = f.extent - Var(outer) * factor
        extent = Const(factor, "index") if trip is not None and trip % factor == 0 else minimum(factor, rest)
        body = substitute_vars(f.body, {var: Var(outer) * factor + Var(inner)})
        body = _rename_reduction(body, var, (outer, inner))
        self._replace(
            f,
            For(
                outer,
                ceildiv(f.extent, factor),
                For(inner, extent, body, "serial" if f.kind == "parallel" else f.kind),
                f.kind,
            ),
        )
        return outer, inner

    @primitive
    def fuse(self, outer: str, inner: str) -> str:
        """Two directly nested loops become one.

        before: for i in serial(4): for j in serial(8): ...
        after:  for i_j in serial(32): ...                       # i -> i_j // 8, j -> i_j % 8
        """
        a, b = self.loop(outer), self.loop(inner)
        if a.body is not b:
            raise ScheduleError(f"{inner} is not directly inside {outer}", stage="schedule")
        if not a.trip or not b.trip:
            raise ScheduleError(f"{outer} or {inner} has no constant extent", stage="schedule")
        if "vector" in (a.kind, b.kind):
            raise ScheduleError(f"{outer} or {inner} is vectorized already", stage="schedule")
        name = self._fresh(f"{outer}_{inner}" if len(outer) + len(inner) < 24 else "f")
        values = {outer: Var(name) // b.trip, inner: Var(name) % b.trip}
        body = _rename_reduction(_rename_reduction(substitute_vars(b.body, values), outer, (name,)), inner, (name,))
        self._replace(a, For(name, Const(a.trip * b.trip, "index"), body, a.kind))
        return name

    @primitive
    def reorder(self, *order: str) -> None:
        """Put perfectly nested loops into a new order, the first outermost; loops not named keep their places.

        before: for i: for j: for k: ...      after: for k: for i: for j: ...      # reorder("k", "i", "j")
        """
        if not order or len(set(order)) != len(order):
            raise ScheduleError(f"reorder wants different loops, not ({', '.join(order)})", stage="schedule")
        for v in order:
            self.loop(v)
        outermost = min(order, key=lambda v: self.loops().index(v))
        chain: list[For] = []
        s: Stmt = self.loop(outermost)
        while isinstance(s, For):
            chain.append(s)
            s = s.body
        missing = set(order) - {f.var for f in chain}
        if missing:
            raise ScheduleError(
                f"{', '.join(sorted(missing))} is not perfectly nested in {outermost}", stage="schedule"
            )
        by_name = {f.var: f for f in chain}
        queue = iter(order)
        new = [by_name[next(queue)] if f.var in order else f for f in chain]
        for i, f in enumerate(new):
            late = variables(f.extent) & {g.var for g in new[i:]}
            if late:
                raise ScheduleError(
                    f"the extent of {f.var} depends on {', '.join(late)}, which would be inside it", stage="schedule"
                )
        self._keeps_order(s, tuple(f.var for f in chain), tuple(f.var for f in new))
        for f in reversed(new):
            s = replace(f, body=s)
        self._replace(chain[0], s)

    def _keeps_order(self, body: Stmt, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        """Raise ScheduleError if a statement gives another result when its loops run in another order."""
        for s in stores(body):
            if before != after and self_dependent(s):
                raise ScheduleError(f"block {s.block} reads what earlier iterations write", stage="schedule")
            moved = [v for v in before if v in s.reduction] != [v for v in after if v in s.reduction]
            if moved and not all(is_update(t) for t in s.targets):
                raise ScheduleError(
                    f"the result of block {s.block} depends on the order of its iterations", stage="schedule"
                )

    def _kind(self, var: str, kind: str) -> None:
        f = self.loop(var)
        self._replace(f, replace(f, kind=kind, lanes=0))

    @primitive
    def parallel(self, var: str) -> None:
        """Divide the iterations among the threads. Refused if a reduction runs over the loop, or if it is not
        outermost."""
        f = self.loop(var)
        for s in stores(f.body):
            if var in s.reduction:
                raise ScheduleError(f"block {s.block} reduces over {var}", stage="schedule")
        path = path_to(self.body, lambda s: s is f) or ()
        if any(isinstance(s, For) for s in path[:-1]):
            raise ScheduleError(f"{var} is not an outermost loop", stage="schedule")
        self._kind(var, "parallel")

    @primitive
    def unroll(self, var: str) -> None:
        """Lay out the iterations one after another."""
        self._kind(var, "unroll")

    @primitive
    def vectorize(self, var: str) -> None:
        """Run the iterations in the lanes of vector registers; the loop must be innermost."""
        f = self.loop(var)
        if inner_loops(f):
            raise ScheduleError(f"{var} is not innermost", stage="schedule")
        self._replace(f, replace(f, kind="vector", lanes=1 << max(simplify_bound(f) - 1, 0).bit_length()))

    @primitive
    def prefetch(self, var: str, buffer: str, indices: Sequence[Expr]) -> None:
        """Let every iteration of a loop ask for elements of a parameter, given by flat index, ahead of their use. A
        hint without meaning.

        before: for k in serial(64): ... after:  for k in serial(64, prefetch=(b[k * 16 + 1024],)): ...                #
        prefetch("k", "b", [k*16 + 1024])
        """
        f = self.loop(var)
        if buffer not in self.params:
            raise ScheduleError(f"{buffer} is not a parameter", stage="schedule")
        if f.kind not in ("serial", "parallel"):
            raise ScheduleError(f"{var} is {f.kind}: only a loop that stays a loop can prefetch", stage="schedule")
        self._replace(f, replace(f, prefetch=(*f.prefetch, *((buffer, i) for i in indices))))

    # ---- blocks ----

    @primitive
    def inline(self, block: str) -> None:
        """Compute a block's element where it is read, instead of storing it.

        before: t[i] = exp(x[i]);  y[j] = t[j] + 1        after: y[j] = exp(x[j]) + 1        # inline of t's block
        """
        store = self.store(block)
        t = store.targets[0]
        if len(store.targets) != 1 or t.init is not None:
            raise ScheduleError(f"block {block} is a reduction", stage="schedule")
        if t.buffer in self.params:
            raise ScheduleError(f"{t.buffer} is a result of the kernel", stage="schedule")
        others = [s for s in stores(self.body) if s is not store and t.buffer in {x.buffer for x in s.targets}]
        if others:
            raise ScheduleError(f"{t.buffer} is also written by {others[0].block}", stage="schedule")
        names: list[str | None] = []
        for i in t.indices:
            if not isinstance(i, Var) and const_value(i) != 0:
                raise ScheduleError(f"{block} writes {t.buffer} at {i}, not at a plain loop variable", stage="schedule")
            if isinstance(i, Var) and i.name in names:
                raise ScheduleError(f"{block} writes only a diagonal of {t.buffer}", stage="schedule")
            names.append(i.name if isinstance(i, Var) else None)

        around = self._around(self._nest_root(block))
        for s in stores(self.body):
            if t.buffer in _reads_of(s) and not around <= set(self.loops(s.block)):
                raise ScheduleError(
                    f"{t.buffer} is read outside loop {', '.join(around - set(self.loops(s.block)))}", stage="schedule"
                )

        def read(x: Load) -> Expr:
            if x.buffer != t.buffer:
                return x
            return substitute(t.value, {n: i for n, i in zip(names, x.indices, strict=True) if n is not None})

        self._replace(self._nest_root(block), None)
        self.body = rename_loads(self.body, read)
        del self.temporaries[t.buffer]

    def _around(self, root: Stmt) -> set[str]:
        """The loops around a statement."""
        path = path_to(self.body, lambda s: s is root) or (root,)
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

    @primitive
    def reindex(self, block: str, source: str) -> None:
        """Rewrite an elementwise block to loop over the elements of the buffer that `source` writes.

        before: y[h, s, d] = f(x[s, h*64 + d])      after: y[n // 64, m, n % 64] = f(x[m, n])
        """
        buffer = self.buffer(self.store(source).targets[0].buffer)
        root = self._nest_root(block)
        store = self.store(block)
        if store.reduction or any(t.init is not None for t in store.targets):
            raise ScheduleError(f"block {block} is a reduction", stage="schedule")
        dims = tuple((s.var, self.extent(s.var)) for s in walk_stmts(root) if isinstance(s, For))
        new = reindex_stage(Stage(block, dims, store.targets, store.reduction), buffer)
        if new is None:
            raise ScheduleError(f"{block} does not read {buffer.name} element for element", stage="schedule")
        self._replace(root, stage_nest(new))

    @primitive
    def cache_write(self, block: str) -> str:
        """Let a block write a temporary, copied to the real result by a new block whose name is returned.

        before: y[i] += a[i, k]        after: y_c[i] += a[i, k];  y[i] = y_c[i]
        """
        store = self.store(block)
        t = store.targets[0]
        real = self.buffer(t.buffer)
        self._only_writer(store)
        self._covers(store, self.loops(block), t)
        name = self._fresh(f"{t.buffer}_c")
        self.temporaries[name] = Buffer(name, real.shape, real.dtype, "local")
        root = self._nest_root(block)
        if any(isinstance(s, For) and not any(x is s for x in walk_stmts(root)) for s in self._path(block)):
            raise ScheduleError(f"block {block} is inside a loop with other blocks", stage="schedule")
        redirected = transform(root, lambda s: _redirect(s, t.buffer, name))
        assert redirected is not None
        dims = [(f"{'mnpqrstu'[d % 8]}{d // 8 or ''}_{name}", n) for d, n in enumerate(real.shape)]
        index = tuple(Var(v) if n != 1 else Const(0, "index") for v, n in dims)
        copy = Stage(
            self._fresh(f"{block}_w"),
            tuple(d for d in dims if d[1] != 1),
            (Target(t.buffer, index, Load(name, index, real.dtype)),),
        )
        self._replace(root, seq(redirected, stage_nest(copy)))
        return copy.name

    @primitive
    def compute_at(self, block: str, var: str) -> list[str]:
        """Move a producer into a loop of its reader: just the part that one iteration needs. Returns the new loops.

        before: for i: t[i] = f(i)                          after: for j: for i1 in 4: t[i1] = f(j*4 + i1)
                for j: for k in 4: y[j*4+k] = t[j*4+k]                    for k in 4: y[j*4+k] = t[k]
        """
        store, at = self.store(block), self.loop(var)
        t = store.targets[0]
        if any(s is at for s in self._path(block)):
            raise ScheduleError(f"{block} is already inside {var}", stage="schedule")
        if any(s is at for s in walk_stmts(self._nest_root(block))):
            raise ScheduleError(f"{var} is a loop of {block} itself", stage="schedule")
        self._only_writer(store)
        self._whole_loops(store, t.indices, self.buffer(t.buffer))
        inside = list(walk_stmts(at.body))
        for s in walk_stmts(self.body):
            missed = {x.buffer for x in store.targets} & _reads_of(s)
            if s is not store and missed and not any(s is x for x in inside):
                raise ScheduleError(f"{', '.join(missed)} is also read outside {var}", stage="schedule")
        if any(x.buffer != t.buffer and x.buffer in reads(self.body) for x in store.targets):
            raise ScheduleError(f"block {block} makes several buffers that are read", stage="schedule")
        accesses = [
            x.indices
            for s in walk_stmts(at.body)
            for e in exprs(s)
            for x in walk(e)
            if isinstance(x, Load) and x.buffer == t.buffer
        ]
        if not accesses:
            raise ScheduleError(f"{t.buffer} is not read inside {var}", stage="schedule")
        root = self._nest_root(block)
        self._stays_inside(root, at)
        self._replace(root, None)
        at = self.loop(var)
        new, loops = self._place(store, root, at, accesses, reduction=True)
        self._replace(at, replace(at, body=seq(new, at.body)))
        moved = self.store(block)
        for x in moved.targets:
            if x.buffer in self.params:
                self._covers(moved, self.loops(block), x)
        self._shrink(t.buffer, var, accesses)
        return loops

    @primitive
    def reverse_compute_at(self, block: str, var: str) -> list[str]:
        """Move an elementwise reader into a loop of its producer, after the part it needs has been made. Returns the
        new loops.

        before: for i: for j in 8: c[i*8+j] = ...;  for k: y[k] = relu(c[k])
        after:  for i: { for j in 8: c[j] = ...;  for k1 in 8: y[i*8+k1] = relu(c[k1]) }
        """
        at = self.loop(var)
        store = self.store(block)
        read = {x.buffer for t in store.targets for x in walk(t.value) if isinstance(x, Load)}
        made = {
            t.buffer: t for s in stores(at.body) for t in s.targets if t.buffer in read and t.buffer in self.temporaries
        }
        if len(made) != 1:
            raise ScheduleError(f"{block} reads {len(made)} buffers written inside {var}, not one", stage="schedule")
        name = next(iter(made))
        accesses = [t.indices for s in stores(at.body) for t in s.targets if t.buffer == name]
        root = self._nest_root(block)
        if store.reduction or any(t.init is not None for t in store.targets):
            raise ScheduleError(f"block {block} is a reduction", stage="schedule")
        if any(s is at for s in self._path(block)):
            raise ScheduleError(f"{block} is already inside {var}", stage="schedule")
        if len(accesses) != 1 or not exact(accesses[0], inner_loops(at), all_ranges(self.body)):
            raise ScheduleError(f"one iteration of {var} does not write a rectangle of {name}", stage="schedule")
        for s in stores(at.body):
            if name in writes(s):
                self._only_writer(s)
        found = {x.indices for e in exprs(store) for x in walk(e) if isinstance(x, Load) and x.buffer == name}
        if len(found) != 1:
            raise ScheduleError(f"{block} reads {name} at {len(found)} places", stage="schedule")
        index = next(iter(found))
        if not all(isinstance(i, Var) or const_value(i) == 0 for i in index):
            raise ScheduleError(
                f"{block} does not read {name} at its own loop variables", stage="schedule", hint="reindex it first"
            )
        self._whole_loops(store, index, self.buffer(name))
        self._stays_inside(root, at)
        self._replace(root, None)
        at = self.loop(var)
        as_target = replace(store, targets=(replace(store.targets[0], indices=index), *store.targets[1:]))
        new, loops = self._place(store, root, at, accesses, buffer=name, index=as_target.targets[0].indices)
        self._replace(at, replace(at, body=seq(at.body, new)))
        self._shrink(name, var, accesses)
        return loops

    def _only_writer(self, store: Store) -> None:
        for t in store.targets:
            other = next((s for s in stores(self.body) if s is not store and t.buffer in writes(s)), None)
            if other is not None:
                raise ScheduleError(f"{t.buffer} is also written by {other.block}", stage="schedule")

    def _whole_loops(self, store: Store, index: tuple[Expr, ...], b: Buffer) -> None:
        """Raise ScheduleError unless the plain variables of an index are loops of the block alone, each over one whole
        dimension."""
        names = [i.name for i in index if isinstance(i, Var)]
        own = {s.var for s in walk_stmts(self._nest_root(store.block)) if isinstance(s, For)}
        for i, n in zip(index, b.shape, strict=True):
            if not isinstance(i, Var):
                continue
            if i.name not in own:
                raise ScheduleError(f"block {store.block} shares loop {i.name} with other blocks", stage="schedule")
            if names.count(i.name) > 1 or self.loop(i.name).trip != n:
                raise ScheduleError(
                    f"loop {i.name} of block {store.block} does not run over a dimension of {b.name}", stage="schedule"
                )

    def _covers(self, store: Store, loops: list[str], t: Target) -> None:
        """Raise ScheduleError unless a block provably writes every element of a target once (apart from reduction
        loops)."""
        b = self.buffer(t.buffer)
        around = [self.loop(v) for v in loops if v not in store.reduction]
        if not covers(t.indices, around, b.size, all_ranges(self.body)):
            raise ScheduleError(f"block {store.block} would not write every element of {b.name} once", stage="schedule")

    def _place(
        self, store: Store, root: Stmt, at: For, accesses: list[tuple[Expr, ...]], *, reduction: bool = False,
        buffer: str | None = None, index: tuple[Expr, ...] | None = None,
    ) -> tuple[Stmt, list[str]]:  # fmt: skip
        """The nest of a block for the region that `accesses` touch during one iteration of `at`."""
        name = buffer or store.targets[0].buffer
        ranges = all_ranges(seq(self.body, root))
        bases, _, extents = region(accesses, self.buffer(name), inner_loops(at), ranges)
        values: dict[str, Expr] = {}
        loops: list[tuple[str, Expr]] = []
        for i, base, extent in zip(index or store.targets[0].indices, bases, extents, strict=True):
            if not isinstance(i, Var):
                continue
            fresh = self._fresh(f"{i.name}_a")
            while fresh in [v for v, _ in loops]:
                fresh += "a"
            single = const_value(extent) == 1
            values[i.name] = base if single else base + Var(fresh)
            if not single:
                loops.append((fresh, extent))
        kept = [s for s in walk_stmts(root) if isinstance(s, For) and s.var not in values]
        body: Stmt = substitute_vars(store, values)
        for f in reversed(kept):
            body = replace(f, body=body)
        for fresh, extent in reversed(loops):
            body = For(fresh, extent, body)
        return body, [v for v, _ in loops]

    def _shrink(self, name: str, var: str, accesses: list[tuple[Expr, ...]]) -> None:
        """If a temporary is used only inside loop `var`, keep just the region of one iteration."""
        at = self.loop(var)
        everywhere = [s for s in walk_stmts(self.body) if isinstance(s, Store) and _touches(s, name)]
        inside = [s for s in walk_stmts(at.body) if isinstance(s, Store) and _touches(s, name)]
        if name not in self.temporaries or len(everywhere) != len(inside):
            return
        b = self.temporaries[name]
        ranges = all_ranges(self.body)
        bases, sizes, _ = region(accesses, b, inner_loops(at), ranges)
        places = [
            x.indices for s in inside for e in exprs(s) for x in walk(e) if isinstance(x, Load) and x.buffer == name
        ]
        places += [t.indices for s in inside for t in s.targets if t.buffer == name]
        if tuple(sizes) == b.shape or not same_region(places, bases, sizes, ranges):
            return

        def relative(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return tuple(simplify(i - base, ranges) for i, base in zip(index, bases, strict=True))

        def visit(s: Stmt) -> Stmt:
            if not isinstance(s, Store):
                return s
            targets = tuple(
                Target(
                    t.buffer,
                    relative(t.indices) if t.buffer == name else t.indices,
                    map_loads(t.value, lambda x: Load(name, relative(x.indices), x.dtype) if x.buffer == name else x),
                    t.init,
                )
                for t in s.targets
            )
            return replace(s, targets=targets)

        self._replace(at, transform(at, visit))
        self.temporaries[name] = replace(b, shape=tuple(sizes))

    @primitive
    def rfactor(self, block: str, *inner: str) -> str:
        """Give every iteration of the innermost reduction loops `inner` an accumulator of its own, combined at the end.

        before: for k: for l in 16: s += x[k*16+l]
        after:  for l in 16: r[l] = 0;  for k: for l in 16: r[l] += x[k*16+l];  s = 0;  for l in 16: s += r[l]

        Returns the name of the block that combines; sums are reassociated, in a fixed order.
        """
        path = self._path(block)
        store = self.store(block)
        t = store.targets[0]
        combiner = _combiner(t)
        if len(store.targets) != 1 or t.init is None or combiner is None:
            raise ScheduleError(f"{block} is not a reduction with a known combiner", stage="schedule")
        if not inner or not is_update(t):
            raise ScheduleError(f"{block} is not a reduction with a known combiner", stage="schedule")
        chain = [s for s in path if isinstance(s, For) and s.var in store.reduction]
        if [f.var for f in chain[-len(inner) :]] != list(inner):
            raise ScheduleError(
                f"{', '.join(inner)} are not the innermost reduction loops of {block}", stage="schedule"
            )
        between = [s for s in path[path.index(chain[0]) : -1] if not any(s is f for f in chain)]
        if between:
            raise ScheduleError(
                f"other loops or blocks stand between the reduction loops of {block}",
                stage="schedule",
                hint="reorder first",
            )
        op, value = combiner
        sizes = [(self._first_extent(f, set(store.reduction) - set(inner)), f) for f in chain[-len(inner) :]]
        dtype = self.buffer(t.buffer).dtype
        name, name_of_combine = self._fresh(f"{t.buffer}_r"), self._fresh(f"{block}_r")
        self.temporaries[name] = Buffer(name, tuple(n for n, _ in sizes), dtype, "local")
        lanes = tuple(Var(v) for v in inner)
        zero = neutral(op, dtype)
        partial = Target(name, lanes, Op(op, (Load(name, lanes, dtype), value), dtype), zero)
        outer = tuple(f.var for f in chain[: -len(inner)])
        update: Stmt = Store((partial,), block, outer)
        for f in reversed(chain):
            update = replace(f, body=update)
        if not outer:  # nothing left to run over: the partial results are the values
            update = (
                transform(update, lambda s: Store((Target(name, lanes, value),), block) if isinstance(s, Store) else s)
                or update
            )
        combine_lanes = tuple(Var(self._fresh(f"{v}_r")) for v in inner)
        combine: Stmt = Store(
            (
                Target(
                    t.buffer,
                    t.indices,
                    Op(op, (Load(t.buffer, t.indices, dtype), Load(name, combine_lanes, dtype)), dtype),
                    t.init,
                ),
            ),
            name_of_combine,
            tuple(v.name for v in combine_lanes),
        )
        for v, (n, _) in zip(reversed(combine_lanes), reversed(sizes), strict=True):
            combine = For(v.name, Const(n, "index"), combine)
        self._replace(chain[0], seq(update, combine))
        return name_of_combine

    def _first_extent(self, f: For, outer: set[str]) -> int:
        """Iterations of a loop in the first round of the `outer` reduction loops, which must also be the most it
        has."""
        ranges = all_ranges(self.body)
        first = const_value(simplify(substitute(f.extent, {v: Const(0, "index") for v in outer}), ranges))
        limit = bounds(f.extent, ranges)
        if not first or limit is None or min(limit[1], first) != first:
            raise ScheduleError(f"the extent of {f.var} varies", stage="schedule")
        return first

    # ---- memory ----

    @primitive
    def set_scope(self, buffer: str, scope: str) -> None:
        """Where a temporary lives: ``local`` (scratch memory of the thread) or ``register``."""
        if buffer not in self.temporaries or scope not in ("local", "register"):
            raise ScheduleError(f"cannot put {buffer} into {scope}", stage="schedule")
        self.temporaries[buffer] = replace(self.temporaries[buffer], scope=scope)

    @primitive
    def pack(self, buffer: str, splits: tuple[tuple[int, ...], ...], order: tuple[int, ...]) -> None:
        """Lay out a constant parameter anew at compile time; see `Pack`. Reads are rewritten.

        before: b[k, n] with shape (K, N)       after: b[n // 32, k, n % 32] with shape (N/32, K, 32)   # pack("b", ((),
        (32,)), (1, 0, 2))
        """
        b = self.params.get(buffer)
        if b is None or buffer not in self.kernel.constants:
            raise ScheduleError(f"{buffer} is not a constant parameter", stage="schedule")
        if buffer in self.packs:
            raise ScheduleError(f"{buffer} is packed already", stage="schedule")
        if len(splits) != len(b.shape) or any(f < 1 for s in splits for f in s):
            raise ScheduleError(
                f"splits {splits} do not fit {buffer}, which has shape {list(b.shape)}", stage="schedule"
            )
        if sorted(order) != list(range(len(splits) + sum(map(len, splits)))):
            raise ScheduleError(
                f"{order} is not an order of the {len(splits) + sum(map(len, splits))} dimensions after splitting",
                stage="schedule",
            )
        shape = packed_shape(b.shape, splits, order)

        def read(x: Load) -> Expr:
            if x.buffer != buffer:
                return x
            parts: list[Expr] = []
            for i, factors in zip(x.indices, splits, strict=True):
                pieces: list[Expr] = []
                for f in reversed(factors):
                    pieces.append(i % f)
                    i = i // f
                parts += [i, *reversed(pieces)]
            return Load(buffer, tuple(parts[o] for o in order), x.dtype)

        self.body = rename_loads(self.body, read)
        self.params[buffer] = replace(b, shape=shape)
        self.packs[buffer] = Pack(buffer, splits, order)

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


def stage_nest(stage: Stage) -> Stmt:
    """The plain loops of a stage."""
    body: Stmt = Store(stage.targets, stage.name, stage.reduction)
    for var, extent in reversed(stage.dims):
        body = For(var, Const(extent, "index"), body)
    return body


def packed_shape(
    shape: tuple[int, ...], splits: tuple[tuple[int, ...], ...], order: tuple[int, ...]
) -> tuple[int, ...]:
    """Shape of a parameter after `Pack`."""
    parts: list[int] = []
    for n, factors in zip(shape, splits, strict=True):
        whole = 1
        for f in factors:
            whole *= f
        parts += [-(-n // whole), *factors]
    return tuple(parts[o] for o in order)


def simplify_bound(f: For) -> int:
    """The largest number of iterations of a loop."""
    if f.trip is not None:
        return f.trip
    if isinstance(f.extent, Op) and f.extent.op == "minsi":
        bound = const_value(f.extent.args[0])
        if bound is not None:
            return bound
    raise ScheduleError(f"the extent of {f.var} cannot be bounded", stage="schedule")


def _combiner(t: Target) -> tuple[str, Expr] | None:
    """(operation, value) of ``acc = operation(acc, value)``."""
    v = t.value
    if isinstance(v, Op) and is_update(t):
        own = Load(t.buffer, t.indices, v.dtype)
        return v.op, v.args[1] if v.args[0] == own else v.args[0]
    return None


def _rename_reduction(s: Stmt, old: str, new: tuple[str, ...]) -> Stmt:
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


def _redirect(s: Stmt, old: str, new: str) -> Stmt:
    """Use buffer `new` wherever a Store uses `old`."""
    if not isinstance(s, Store):
        return s

    def read(x: Load) -> Expr:
        return Load(new, x.indices, x.dtype) if x.buffer == old else x

    return replace(
        s,
        targets=tuple(
            Target(new if t.buffer == old else t.buffer, t.indices, map_loads(t.value, read), t.init) for t in s.targets
        ),
    )


def _reads_of(s: Stmt) -> set[str]:
    """Buffers that one statement itself reads."""
    return {x.buffer for e in exprs(s) for x in walk(e) if isinstance(x, Load)}


def _touches(s: Store, name: str) -> bool:
    return name in writes(s) or any(isinstance(x, Load) and x.buffer == name for e in exprs(s) for x in walk(e))


def _allocate(root: Stmt, b: Buffer) -> Stmt:
    """Wrap the smallest statement that holds all uses of a buffer."""
    if b.name not in writes(root) | reads(root):
        return root
    s = root
    while True:
        using = [c for c in children(s) if b.name in writes(c) | reads(c)]
        # never inside a parallel or vectorized loop's body alone if the loop itself carries the value: a buffer is
        # fresh in each iteration
        sums = isinstance(s, For) and any(s.var in x.reduction and b.name in writes(x) for x in stores(s))
        if len(using) != 1 or isinstance(s, Store) or sums:
            break
        s = using[0]
    if isinstance(s, Seq):
        first = min(i for i, c in enumerate(s.stmts) if b.name in writes(c) | reads(c))
        last = max(i for i, c in enumerate(s.stmts) if b.name in writes(c) | reads(c))
        inner = Alloc(b, seq(*s.stmts[first : last + 1]))
        new: Stmt = seq(*s.stmts[:first], inner, *s.stmts[last + 1 :])
    else:
        new = Alloc(b, s)
    return _swap(root, s, new)


def _swap(root: Stmt, old: Stmt, new: Stmt) -> Stmt:
    if root is old:
        return new
    return with_children(root, tuple(_swap(c, old, new) for c in children(root)))
