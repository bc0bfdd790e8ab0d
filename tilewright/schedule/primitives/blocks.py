"""Primitives on blocks: where a value is computed."""

from __future__ import annotations

from dataclasses import replace

from ...tensor.analysis import reindex as reindex_stage
from ...tensor.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Target,
    Var,
    const_value,
    loads,
    map_loads,
    simplify,
    substitute,
    walk,
)  # fmt: skip
from ...tensor.kernel import Stage
from ..nest import (
    For,
    Stmt,
    Store,
    exprs,
    reads,
    replace_loads,
    seq,
    stores,
    substitute_vars,
    transform,
    walk_stmts,
    writes,
)  # fmt: skip
from ..region import all_ranges, clipped_by_buffer, exact, inner_loops, region, same_region, unknown
from .state import ScheduleError, State, primitive, reads_of, stage_nest, touches


class BlockPrimitives(State):
    """Moving blocks."""

    @primitive
    def inline(self, block: str) -> None:
        """Compute a block's element where it is read, instead of storing it.

        Refused for reductions, for results of the kernel, and unless the block alone writes the buffer, at plain loop
        variables.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4], y: out(f32[4])):
        ...     t = local(f32[4])
        ...     for i in serial(4):
        ...         s0: t[i] = exp(x[i])
        ...     for j in serial(4):
        ...         s1: y[j] = addf(t[j], f32(1.0))'''))
        >>> s.inline("s0")
        >>> print(s)
        def k(x: f32[4], y: out(f32[4])):
            for j in serial(4):
                s1: y[j] = addf(exp(x[j]), f32(1.0))
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
            if t.buffer in reads(s) and not around <= set(self.loops(s.block)):
                raise ScheduleError(
                    f"{t.buffer} is read outside loop {', '.join(around - set(self.loops(s.block)))}", stage="schedule"
                )

        def read(x: Load) -> Expr:
            value = substitute(t.value, {n: i for n, i in zip(names, x.indices, strict=True) if n is not None})
            return simplify(value, ranges)

        ranges = all_ranges(self.body)
        self._replace(self._nest_root(block), None)
        self.body = replace_loads(self.body, t.buffer, read)
        del self.temporaries[t.buffer]

    @primitive
    def reindex(self, block: str, source: str) -> None:
        """Rewrite an elementwise block to loop over the elements of the buffer that block `source` writes.

        Refused for reductions, and unless the block reads that buffer element for element.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[8], y: out(f32[2, 4])):
        ...     t = local(f32[8])
        ...     for i in serial(8):
        ...         s0: t[i] = exp(x[i])
        ...     for h in serial(2):
        ...         for d in serial(4):
        ...             s1: y[h, d] = negf(t[h * 4 + d])'''))
        >>> s.reindex("s1", "s0")
        >>> print(s)
        def k(x: f32[8], y: out(f32[2, 4])):
            t = local(f32[8])
            for i in serial(8):
                s0: t[i] = exp(x[i])
            for m_s1 in serial(8):
                s1: y[m_s1 // 4, m_s1 % 4] = negf(t[m_s1])
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
    def compute_at(self, block: str, var: str) -> list[str]:
        """Move a producer into a loop of its reader: just the part that one iteration needs. Returns the new loops.

        Refused if others read or write the buffer outside the loop, if the block's loops are not its own and whole, or
        if it cannot be told which part an iteration reads.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[40], y: out(f32[40])):
        ...     t = local(f32[40])
        ...     for i in serial(40):
        ...         s0: t[i] = exp(x[i])
        ...     for j in serial(40):
        ...         s1: y[j] = addf(t[j], f32(1.0))'''))
        >>> outer, inner = s.split("j", 8)
        >>> s.compute_at("s0", outer)
        ['i_a']
        >>> print(s)
        def k(x: f32[40], y: out(f32[40])):
            for j_o in serial(5):
                t = local(f32[8])
                for i_a in serial(8):
                    s0: t[i_a] = exp(x[j_o * 8 + i_a])
                for j_i in serial(8):
                    s1: y[j_o * 8 + j_i] = addf(t[j_i], f32(1.0))
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
            missed = {x.buffer for x in store.targets} & reads_of(s)
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
        self._unconditional(at, t.buffer)
        odd = unknown(accesses, inner_loops(at), all_ranges(self.body))
        if odd is not None and at.trip != 1:
            raise ScheduleError(
                f"which part of {t.buffer} one iteration of {var} reads is not known: it reads at {odd}",
                stage="schedule",
            )
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

        Refused for reductions, unless the block reads one buffer at its own loop variables, of which each iteration
        makes a rectangle.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[40], y: out(f32[40])):
        ...     t = local(f32[40])
        ...     for i in serial(40):
        ...         s0: t[i] = exp(x[i])
        ...     for j in serial(40):
        ...         s1: y[j] = addf(t[j], f32(1.0))'''))
        >>> outer, inner = s.split("i", 8)
        >>> s.reverse_compute_at("s1", outer)
        ['j_a']
        >>> print(s)
        def k(x: f32[40], y: out(f32[40])):
            for i_o in serial(5):
                t = local(f32[8])
                for i_i in serial(8):
                    s0: t[i_i] = exp(x[i_o * 8 + i_i])
                for j_a in serial(8):
                    s1: y[i_o * 8 + j_a] = addf(t[j_a], f32(1.0))
        """
        at = self.loop(var)
        store = self.store(block)
        read = {x.buffer for t in store.targets for x in loads(t.value)}
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
        if not clipped_by_buffer(accesses[0], self.buffer(name), inner_loops(at), all_ranges(self.body)):
            raise ScheduleError(f"the tiles of {name} inside {var} end inside of other tiles", stage="schedule")
        for s in stores(at.body):
            if name in writes(s):
                self._only_writer(s)
        found = {x.indices for e in exprs(store) for x in loads(e) if x.buffer == name}
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
            fresh = self.fresh(f"{i.name}_a")
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
        everywhere = [s for s in walk_stmts(self.body) if isinstance(s, Store) and touches(s, name)]
        inside = [s for s in walk_stmts(at.body) if isinstance(s, Store) and touches(s, name)]
        if name not in self.temporaries or len(everywhere) != len(inside):
            return
        b = self.temporaries[name]
        ranges = all_ranges(self.body)
        bases, sizes, _ = region(accesses, b, inner_loops(at), ranges)
        places = [x.indices for s in inside for e in exprs(s) for x in loads(e) if x.buffer == name]
        places += [t.indices for s in inside for t in s.targets if t.buffer == name]
        # of other dimensions all is kept: nothing to show there
        part = [d for d, n in enumerate(b.shape) if sizes[d] != n]
        bases = [base if d in part else Const(0, "index") for d, base in enumerate(bases)]
        kept = [tuple(p[d] for d in part) for p in places]
        if not part or not same_region(
            kept, [bases[d] for d in part], [sizes[d] for d in part], ranges, inner_loops(at)
        ):
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
