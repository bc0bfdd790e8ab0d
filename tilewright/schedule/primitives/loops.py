"""Primitives on loops: their number, order and kind. None changes which statements run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import isfinite

from ...tensor.expr import Const, Expr, Op, Var, bounds, ceildiv, const_value, minimum, substitute, variables
from ..legality import crosses_iterations, is_update, self_dependent
from ..nest import OLD_AXES, THREAD, For, Seq, Stmt, Store, children, path_to, seq, stores, substitute_vars, walk_stmts
from ..region import all_ranges
from .state import ScheduleError, State, primitive, rename_reduction

#: statements that laid-out loops may become: more take minutes to compile and run no faster
MAX_UNROLLED = 8192


class LoopPrimitives(State):
    """Transforming loops."""

    # ---- number and order ----

    @primitive
    def split(self, var: str, factor: int) -> tuple[str, str]:
        """One loop becomes two: (outer, inner). The inner one has `factor` iterations, fewer in the last round if it
        does not divide.

        Refused for a factor below 1 and for a vectorized loop.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[100], y: out(f32[100])):
        ...     for i in serial(100):
        ...         s0: y[i] = negf(x[i])'''))
        >>> s.split("i", 32)
        ('i_o', 'i_i')
        >>> print(s)
        def k(x: f32[100], y: out(f32[100])):
            for i_o in serial(4):
                for i_i in serial(min(32, i_o * -32 + 100)):
                    s0: y[i_o * 32 + i_i] = negf(x[i_o * 32 + i_i])
        """
        if factor < 1:
            raise ScheduleError(f"split factor {factor} of {var} is not positive", stage="schedule")
        f = self.loop(var)
        if f.kind == "vector":
            raise ScheduleError(f"{var} is vectorized already", stage="schedule", hint="split it before")
        outer, inner = self.fresh(f"{var}_o"), self.fresh(f"{var}_i")
        trip = f.trip
        rest: Expr = f.extent - Var(outer) * factor
        extent = Const(factor, "index") if trip is not None and trip % factor == 0 else minimum(factor, rest)
        body = substitute_vars(f.body, {var: Var(outer) * factor + Var(inner)})
        body = rename_reduction(body, var, (outer, inner))
        below = For(inner, extent, body, "serial" if f.bound else f.kind)
        self._replace(f, For(outer, ceildiv(f.extent, factor), below, f.kind, notes=f.notes))
        return outer, inner

    @primitive
    def fuse(self, outer: str, inner: str) -> str:
        """Two directly nested loops become one.

        Refused if other statements stand between them, for varying extents of the inner one, and where one of them is
        reduced over and the other selects the element.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4, 8], y: out(f32[4, 8])):
        ...     for i in serial(4):
        ...         for j in serial(8):
        ...             s0: y[i, j] = negf(x[i, j])'''))
        >>> s.fuse("i", "j")
        'i_j'
        >>> print(s)
        def k(x: f32[4, 8], y: out(f32[4, 8])):
            for i_j in serial(32):
                s0: y[i_j // 8, i_j % 8] = negf(x[i_j // 8, i_j % 8])
        """
        a, b = self.loop(outer), self.loop(inner)
        if a.body is not b:
            raise ScheduleError(f"{inner} is not directly inside {outer}", stage="schedule")
        if not b.trip or a.trip == 0:
            raise ScheduleError(f"{inner} has no constant extent, or {outer} no iterations", stage="schedule")
        if "vector" in (a.kind, b.kind):
            raise ScheduleError(f"{outer} or {inner} is vectorized already", stage="schedule")
        name = self.fresh(f"{outer}_{inner}" if len(outer) + len(inner) < 24 else "f")
        values = {outer: Var(name) // b.trip, inner: Var(name) % b.trip}
        body = rename_reduction(rename_reduction(substitute_vars(b.body, values), outer, (name,)), inner, (name,))
        self._replace(a, For(name, _times(a.extent, b.trip), body, a.kind, notes=a.notes))
        return name

    @primitive
    def merge(self, first: str, second: str) -> str:
        """Two loops that follow each other, with the same iterations, become one, which runs the bodies of both.

        Refused if an iteration touches what another iteration of the other loop writes.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[8], y: out(f32[8]), z: out(f32[8])):
        ...     for i in serial(8):
        ...         s0: y[i] = exp(x[i])
        ...     for j in serial(8):
        ...         s1: z[j] = negf(y[j])'''))
        >>> s.merge("i", "j")
        'i'
        >>> print(s)
        def k(x: f32[8], y: out(f32[8]), z: out(f32[8])):
            for i in serial(8):
                s0: y[i] = exp(x[i])
                s1: z[i] = negf(y[i])
        """
        a, b = self.loop(first), self.loop(second)
        if not any(isinstance(s, Seq) and _follows(s.stmts, a, b) for s in walk_stmts(self.body)):
            raise ScheduleError(f"{second} does not follow {first} directly", stage="schedule")
        if not a.trip or a.trip != b.trip or a.kind != b.kind or a.kind == "vector":
            raise ScheduleError(f"{first} and {second} do not have the same iterations", stage="schedule")
        body = rename_reduction(substitute_vars(b.body, {second: Var(first)}), second, (first,))
        buffers = {**self.temporaries, **self.params}
        crossing = crosses_iterations(first, a.body, body, buffers, all_ranges(self.body))
        if crossing:
            raise ScheduleError(
                f"an iteration of {second} would touch what another one of {first} does to {crossing}", stage="schedule"
            )
        self._replace(b, None)
        a = self.loop(first)
        prefetch = tuple((n, substitute(i, {second: Var(first)})) for n, i in b.prefetch)
        self._replace(a, replace(a, body=seq(a.body, body), prefetch=(*a.prefetch, *prefetch)))
        return first

    @primitive
    def reorder(self, *order: str) -> None:
        """Put perfectly nested loops into a new order, the first outermost; loops not named keep their places.

        Refused if the loops are not perfectly nested, if an extent would depend on a loop inside it, and if the result
        depends on the order of the iterations.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4, 8], y: out(f32[4, 8])):
        ...     for i in serial(4):
        ...         for j in serial(8):
        ...             s0: y[i, j] = negf(x[i, j])'''))
        >>> s.reorder("j", "i")
        >>> print(s)
        def k(x: f32[4, 8], y: out(f32[4, 8])):
            for j in serial(8):
                for i in serial(4):
                    s0: y[i, j] = negf(x[i, j])
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

    @primitive
    def tile(self, loops: Sequence[str], sizes: Sequence[int]) -> tuple[str, ...]:
        """Split perfectly nested loops and put the outer parts before the inner ones: (outer..., inner...).

        It is `split` of each and one `reorder`, and refused where they are.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[8, 8], y: out(f32[8, 8])):
        ...     for i in serial(8):
        ...         for j in serial(8):
        ...             s0: y[i, j] = negf(x[i, j])'''))
        >>> s.tile(("i", "j"), (2, 4))
        ('i_o', 'j_o', 'i_i', 'j_i')
        >>> print(s)
        def k(x: f32[8, 8], y: out(f32[8, 8])):
            for i_o in serial(4):
                for j_o in serial(2):
                    for i_i in serial(2):
                        for j_i in serial(4):
                            s0: y[i_o * 2 + i_i, j_o * 4 + j_i] = negf(x[i_o * 2 + i_i, j_o * 4 + j_i])
        """
        if not loops or len(loops) != len(sizes):
            raise ScheduleError(f"tile wants one size for each loop, not {len(sizes)} for {len(loops)}")
        pairs = [self.split(v, n) for v, n in zip(loops, sizes, strict=True)]
        order = (*(o for o, _ in pairs), *(i for _, i in pairs))
        self.reorder(*order)
        return order

    # ---- kinds ----

    def _kind(self, var: str, kind: str) -> None:
        f = self.loop(var)
        self._replace(f, replace(f, kind=kind, lanes=0))

    @primitive
    def parallel(self, var: str) -> None:
        """Divide the iterations among the threads; if one thread runs the kernel (`Kernel.one_thread`), leave them as
        they are.

        Refused if a reduction runs over the loop, if it is not outermost, and unless the iterations can be shown to
        write different elements and to read none that others write.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4], y: out(f32[4])):
        ...     for i in serial(4):
        ...         s0: y[i] = negf(x[i])'''))
        >>> s.parallel("i")
        >>> print(s)
        def k(x: f32[4], y: out(f32[4])):
            for i in thread(4):
                s0: y[i] = negf(x[i])
        """
        self._no_sum_over(var)
        f = self.loop(var)
        path = path_to(self.body, lambda s: s is f, {f.var}) or ()
        if any(isinstance(s, For) for s in path[:-1]):
            raise ScheduleError(f"{var} is not an outermost loop", stage="schedule")
        if not self.kernel.one_thread:
            self._kind(var, THREAD)

    def _no_sum_over(self, var: str) -> None:
        for s in stores(self.loop(var).body):
            if var in s.reduction:
                hint = f"rfactor({s.block!r}, {var!r}) first: every iteration then has a result of its own"
                raise ScheduleError(f"block {s.block} reduces over {var}", stage="schedule", hint=hint)

    @primitive
    def unroll(self, var: str) -> None:
        """Lay out the iterations one after another.

        Refused for a loop that would become more than 8192 statements, together with the laid-out loops in and around
        it.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4], y: out(f32[4])):
        ...     for i in serial(4):
        ...         s0: y[i] = negf(x[i])'''))
        >>> s.unroll("i")
        >>> print(s)
        def k(x: f32[4], y: out(f32[4])):
            for i in unroll(4):
                s0: y[i] = negf(x[i])
        """
        f = self.loop(var)
        inside, around = self._copies(f.body), path_to(self.body, lambda s: s is f, {f.var}) or ()
        for g in (f, *[g for g in around if isinstance(g, For) and g is not f and g.kind == "unroll"]):
            inside *= self._most(g)
        tiled = any(isinstance(g, For) and g.note("tiles") for g in around)  # these become instructions for whole tiles
        if inside > MAX_UNROLLED and not tiled:
            raise ScheduleError(
                f"unrolling {var} would make {inside} statements of one",
                stage="schedule",
                hint=f"split it and unroll the inner part; {MAX_UNROLLED} is the most",
            )
        self._kind(var, "unroll")

    def _copies(self, s: Stmt) -> int:
        """Statements that the laid-out loops in `s` make of its own."""
        if isinstance(s, Store):
            return 1
        below = sum(map(self._copies, children(s)))
        return below * self._most(s) if isinstance(s, For) and s.kind == "unroll" else below

    @primitive
    def vectorize(self, var: str) -> None:
        """Run the iterations in the lanes of vector registers.

        Refused unless the loop is innermost, its extent bounded, and lanes use different elements (or combine one with
        a known operation).

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[12], y: out(f32[12])):
        ...     for i in serial(12):
        ...         s0: y[i] = negf(x[i])'''))
        >>> s.vectorize("i")
        >>> print(s)
        def k(x: f32[12], y: out(f32[12])):
            for i in vector(12, lanes=16):
                s0: y[i] = negf(x[i])
        """
        f = self.loop(var)
        if any(isinstance(s, For) and s.note("dot") is None for s in walk_stmts(f.body)):
            raise ScheduleError(f"{var} is not innermost", stage="schedule")
        self._replace(f, replace(f, kind="vector", lanes=1 << max(self._most(f) - 1, 0).bit_length()))

    def _most(self, f: For) -> int:
        """The largest number of iterations of a loop, with what is known about those around it."""
        if f.trip is None and not (isinstance(f.extent, Op) and f.extent.op == "minsi"):
            limit = bounds(f.extent, all_ranges(self.body))
            if limit is not None:
                return limit[1]
        return simplify_bound(f)

    @primitive
    def bind(self, var: str, axis: str) -> None:
        """Run the iterations on an axis that the machine declares (`machine.Axis`): ``thread`` or ``lanes`` of a CPU,
        ``grid.x`` or ``block`` of a GPU.

        `parallel` binds to ``thread``, `vectorize` to ``lanes``. Refused if there is no such axis or it has fewer
        threads than the loop iterations, if a reduction runs over the loop, and unless the iterations can be shown to
        touch nothing that others write without a barrier between.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4, 8], y: out(f32[4, 8])):
        ...     for i in serial(4):
        ...         for j in serial(8):
        ...             s0: y[i, j] = negf(x[i, j])'''))
        >>> s.bind("i", "thread")
        >>> s.bind("j", "lanes")
        >>> print(s)
        def k(x: f32[4, 8], y: out(f32[4, 8])):
            for i in thread(4):
                for j in vector(8, lanes=8):
                    s0: y[i, j] = negf(x[i, j])
        """
        axis = OLD_AXES.get(axis, axis)
        axes = {n: a for a in self.machine().axes for n in a.names}
        if axis not in axes:
            known = ", ".join(axes) or "none"
            raise ScheduleError(f"the target has no axis {axis!r}", stage="schedule", hint=f"axes: {known}")
        if axes[axis].kind == "vector":
            self.vectorize(var)
        elif axis == THREAD:
            self.parallel(var)
        else:
            self._no_sum_over(var)
            self._kind(var, axes[axis].kind or axis)

    # ---- hints ----

    @primitive
    def prefetch(self, var: str, buffer: str, indices: Sequence[Expr]) -> None:
        """Let every iteration of a loop ask for elements of a parameter, given by flat index, ahead of their use. A
        hint without meaning.

        Refused for buffers that are no parameters and for loops that are laid out or vectorized.

        >>> from tilewright.tensor.expr import Var
        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[64], y: out(f32[64])):
        ...     for i in serial(64):
        ...         s0: y[i] = negf(x[i])'''))
        >>> s.prefetch("i", "x", [Var("i") + 16])
        >>> print(s)
        def k(x: f32[64], y: out(f32[64])):
            for i in serial(64, prefetch=(x[i + 16],)):
                s0: y[i] = negf(x[i])
        """
        f = self.loop(var)
        if buffer not in self.params:
            raise ScheduleError(f"{buffer} is not a parameter", stage="schedule")
        if f.kind in ("unroll", "vector"):
            raise ScheduleError(f"{var} is {f.kind}: only a loop that stays a loop can prefetch", stage="schedule")
        bound = {g.var for g in path_to(self.body, lambda s: s is f, {f.var}) or () if isinstance(g, For)}
        free = {v for i in indices for v in variables(i)} - bound
        if free:
            raise ScheduleError(f"{', '.join(sorted(free))} is no loop around what {var} prefetches", stage="schedule")
        self._replace(f, replace(f, prefetch=(*f.prefetch, *((buffer, i) for i in indices))))

    @primitive
    def annotate(self, var: str, key: str, value: object) -> None:
        """Write a note on a loop for the target; None removes it. A hint without meaning.

        Values are numbers, strings, truth values, and tuples of such. What targets know: ``unroll_count`` (the CPU's
        LLVM unrolls the loop so often), ``no_unroll``, ``near`` (what it prefetches is wanted in the nearest cache),
        ``uncached`` (its vectors are written past the caches where they are aligned), ``dot`` (a laid-out sum of
        products is the instruction of that name, see `machine.DotProduct`), ``tiles`` (a sum of products is in tile
        registers, see `machine.TileProduct`).
        A note stays with the outer loop of a `split` or `fuse`.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[64], y: out(f32[64])):
        ...     for i in serial(64):
        ...         s0: y[i] = negf(x[i])'''))
        >>> s.annotate("i", "unroll_count", 4)
        >>> print(s)
        def k(x: f32[64], y: out(f32[64])):
            for i in serial(64, notes={'unroll_count': 4}):
                s0: y[i] = negf(x[i])
        """
        f = self.loop(var)
        if not (isinstance(key, str) and key.isidentifier()):
            raise ScheduleError(f"the key of a note must be a name, not {key!r}", stage="schedule")
        if not _plain(value):
            raise ScheduleError(f"the value of note {key} must be plain, not {value!r}", stage="schedule")
        notes = {k: v for k, v in f.notes if k != key} | ({} if value is None else {key: value})
        self._replace(f, replace(f, notes=tuple(sorted(notes.items()))))


def _follows(stmts: tuple[Stmt, ...], a: Stmt, b: Stmt) -> bool:
    return any(x is a and y is b for x, y in pairwise(stmts))


def _times(extent: Expr, n: int) -> Expr:
    """So many iterations n times; of a partial tile the form stays what it is."""
    if isinstance(extent, Op) and extent.op == "minsi":
        return minimum(extent.args[0] * n, extent.args[1] * n)
    return extent * n


def _plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and isfinite(value))


def simplify_bound(f: For) -> int:
    """The largest number of iterations of a loop."""
    if f.trip is not None:
        return f.trip
    if isinstance(f.extent, Op) and f.extent.op == "minsi":
        bound = const_value(f.extent.args[0])
        if bound is not None:
            return bound
    raise ScheduleError(f"the extent of {f.var} cannot be bounded", stage="schedule")
