"""Primitives on reductions."""

from __future__ import annotations

from dataclasses import replace

from ...support.sizes import highest, is_open, less
from ...tensor.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    Target,
    Var,
    bounds,
    const_value,
    linear,
    neutral,
    simplify,
    substitute,
    variables,
)  # fmt: skip
from ..legality import is_update
from ..nest import (
    For,
    If,
    Stmt,
    Store,
    reads,
    seq,
    stores,
    writes,
)  # fmt: skip
from ..region import all_ranges, inner_loops, region, settled
from .state import ScheduleError, State, primitive


class ReductionPrimitives(State):
    """Transforming reductions."""

    @primitive
    def rfactor(self, block: str, *inner: str) -> str:
        """Give every iteration of the innermost reduction loops `inner` an accumulator of its own, combined at the end.
        Returns the block that combines.

        Sums are reassociated, in a fixed order. Other loops of the block may stand between the reduction loops (those
        of a tile of results): each of their iterations has accumulators too. Refused unless the reduction has a known
        combiner, the loops between select what it writes, and the extents of `inner` do not vary.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[64], y: out(f32[1])):
        ...     for k in serial(64):
        ...         s0: y[0] = reduce(addf(y[0], x[k]), init=f32(0.0), over=(k,))'''))
        >>> outer, inner = s.split("k", 16)
        >>> s.rfactor("s0", inner)
        's0_r'
        >>> print(s)
        def k(x: f32[64], y: out(f32[1])):
            y_r = local(f32[16])
            for k_o in serial(4):
                for k_i in serial(16):
                    s0: y_r[k_i] = reduce(addf(y_r[k_i], x[k_o * 16 + k_i]), init=f32(0.0), over=(k_o,))
            for k_i_r in serial(16):
                s0_r: y[0] = reduce(addf(y[0], y_r[k_i_r]), init=f32(0.0), over=(k_i_r,))
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
        op, value = combiner
        tile = self._tile_between(store, chain, path[path.index(chain[0]) : -1])
        sizes = [self._first_extent(f, set(store.reduction) - set(inner)) for f in chain[-len(inner) :]]
        dtype = self.buffer(t.buffer).dtype
        name, name_of_combine = self.fresh(f"{t.buffer}_r"), self.fresh(f"{block}_r")
        self.temporaries[name] = Buffer(name, (*tile.values(), *map(highest, sizes)), dtype, "local")
        own = (*map(Var, tile), *map(Var, inner))
        partial = Target(name, own, Op(op, (Load(name, own, dtype), value), dtype), neutral(op, dtype))
        outer = tuple(f.var for f in chain[: -len(inner)])
        if not outer:  # nothing left to run over: the partial results are the values
            partial = Target(name, own, value)
        update: Stmt = Store((partial,), block, outer)
        loops = [s for s in path[path.index(chain[0]) : -1] if isinstance(s, For)]
        for f in reversed(loops):
            update = replace(f, body=update)
        fresh: dict[str, Expr] = {v: Var(self.fresh(f"{v}_r")) for v in (*tile, *inner)}
        place = tuple(substitute(i, fresh) for i in own)
        where = tuple(substitute(i, fresh) for i in t.indices)
        total = Op(op, (Load(t.buffer, where, dtype), Load(name, place, dtype)), dtype)
        combine: Stmt = Store(
            (Target(t.buffer, where, total, t.init),), name_of_combine, tuple(map(str, place[len(tile) :]))
        )
        for v, n in reversed([*tile.items(), *zip(inner, sizes, strict=True)]):
            extent = self.loop(v).extent if v in tile else Const(n, "index")
            combine = For(str(fresh[v]), substitute(extent, fresh), combine)
        self._replace(chain[0], seq(update, combine))
        return name_of_combine

    def _tile_between(self, store: Store, chain: list[For], path: tuple[Stmt, ...]) -> dict[str, int]:
        """The loops between the reduction loops of a block, with their largest extents; ScheduleError unless they are
        loops over elements that it writes."""
        between = [s for s in path if not any(s is f for f in chain)]
        used = {v for i in store.targets[0].indices for v in variables(i)}
        ranges, found = all_ranges(self.body), {}
        for s in between:
            if not isinstance(s, For) or s.kind != "serial" or s.var not in used:
                why = f"other loops or blocks stand between the reduction loops of {store.block}"
                raise ScheduleError(why, stage="schedule", hint="reorder first")
            limit = bounds(s.extent, ranges)
            if limit is None or variables(s.extent) & set(store.reduction):
                raise ScheduleError(f"the extent of {s.var} varies", stage="schedule")
            found[s.var] = limit[1]
        buffer = store.targets[0].buffer
        others = [s for s in stores(chain[0]) if s is not store and buffer in writes(s) | reads(s)]
        if others:
            raise ScheduleError(f"block {others[0].block} uses {buffer} inside {chain[0].var} too", stage="schedule")
        return found

    @primitive
    def partial_sums(self, block: str, var: str, *, scope: str = "local") -> str:
        """Let a reduction sum up what one iteration of loop `var` adds in a buffer of its own, which a new block adds
        to the results at the end of the iteration. Returns that block.

        The buffer lives in `scope`. So the results of a tile stay in registers while a part of a long sum runs, and in
        memory in between. Sums are reassociated, in a fixed order. Refused unless the reduction has a known combiner
        and loops inside `var`, and one iteration of `var` touches a rectangle of the results, each loop of the block
        one dimension.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[6, 64], y: out(f32[6])):
        ...     for i in serial(6):
        ...         for k in serial(64):
        ...             s0: y[i] = reduce(addf(y[i], x[i, k]), init=f32(0.0), over=(k,))'''))
        >>> (outer, inner), (tile, row) = s.split("k", 16), s.split("i", 2)
        >>> s.reorder(outer, tile, inner, row)
        >>> s.partial_sums("s0", tile)
        's0_p'
        >>> print(s)
        def k(x: f32[6, 64], y: out(f32[6])):
            for k_o in serial(4):
                for i_o in serial(3):
                    y_p = local(f32[2])
                    for k_i in serial(16):
                        for i_i in serial(2):
                            s0: y_p[i_i] = reduce(addf(y_p[i_i], x[i_o * 2 + i_i, k_o * 16 + k_i]), init=f32(0.0), over=(k_i,))
                    for m_y_p in serial(2):
                        s0_p: y[i_o * 2 + m_y_p] = reduce(addf(y[i_o * 2 + m_y_p], y_p[m_y_p]), init=f32(0.0), over=(k_o,))
        """  # noqa: E501 (a nest)
        at, store = self.loop(var), self.store(block)
        t, combiner = store.targets[0], _combiner(store.targets[0])
        if len(store.targets) != 1 or t.init is None or combiner is None:
            raise ScheduleError(f"{block} is not a reduction with a known combiner", stage="schedule")
        scope = self._scope(scope)
        inner = self._loops_of_part(at, store)
        bases, sizes, extents = self._part(at, t, inner)
        dtype, ranges = self.buffer(t.buffer).dtype, all_ranges(self.body)
        name, name_of_sum = self.fresh(f"{t.buffer}_p"), self.fresh(f"{block}_p")
        self.temporaries[name] = Buffer(name, tuple(sizes), dtype, scope)
        op, value = combiner
        own = tuple(simplify(i - base, ranges) for i, base in zip(t.indices, bases, strict=True))
        part = Target(name, own, Op(op, (Load(name, own, dtype), value), dtype), neutral(op, dtype))
        self._replace(store, Store((part,), block, tuple(v for v in store.reduction if v in inner)))
        dims = [(f"{'mnpqrstu'[d % 8]}{d // 8 or ''}_{name}", n) for d, n in enumerate(extents)]
        place = tuple(Const(0, "index") if const_value(n) == 1 else Var(v) for v, n in dims)
        where = tuple(simplify(base + i, ranges) for base, i in zip(bases, place, strict=True))
        total = Op(op, (Load(t.buffer, where, dtype), Load(name, place, dtype)), dtype)
        outside = tuple(v for v in store.reduction if v not in inner)
        add: Stmt = Store((Target(t.buffer, where, total, t.init),), name_of_sum, outside)
        for v, n in reversed([d for d, i in zip(dims, place, strict=True) if isinstance(i, Var)]):
            add = For(v, n, add)
        at = self.loop(var)
        self._replace(at, replace(at, body=seq(at.body, add)))
        return name_of_sum

    def _loops_of_part(self, at: For, store: Store) -> set[str]:
        """The loops inside `at` around a reduction; ScheduleError unless they all select its element or are summed
        over, some of the latter, and nothing else there has to do with it."""
        path = self._path(store.block)
        if not any(s is at for s in path):
            raise ScheduleError(f"block {store.block} is not inside {at.var}", stage="schedule")
        below = path[next(i for i, s in enumerate(path) if s is at) + 1 :]
        inner = {s.var for s in below if isinstance(s, For)}
        used = {v for i in store.targets[0].indices for v in variables(i)}
        if at.var in store.reduction or not inner & set(store.reduction):
            raise ScheduleError(f"{store.block} does not sum over loops inside {at.var} alone", stage="schedule")
        odd = inner - set(store.reduction) - used
        if odd or any(isinstance(s, If) for s in below):
            why = f"each iteration of {', '.join(sorted(odd))} sums anew" if odd else "it runs under a condition"
            raise ScheduleError(f"no part of {store.block} can be summed in {at.var}: {why}", stage="schedule")
        if any(s.bound or s.kind == "vector" for s in below if isinstance(s, For)):
            raise ScheduleError(f"loops of {store.block} in {at.var} are bound or vectorized", stage="schedule")
        buffer = store.targets[0].buffer
        others = [s for s in stores(at) if s is not store and buffer in writes(s) | reads(s)]
        if others:
            raise ScheduleError(f"block {others[0].block} uses {buffer} inside {at.var} too", stage="schedule")
        return inner

    def _part(self, at: For, t: Target, inner: set[str]) -> tuple[list[Expr], list[int], list[Expr]]:
        """Bases, sizes and extents of the rectangle that a target writes in one iteration of `at`; ScheduleError if it
        is none."""
        loops, ranges = inner_loops(at), all_ranges(self.body)
        bases, sizes, extents = region([t.indices], self.buffer(t.buffer), loops, ranges)
        seen: set[str] = set()
        for d, index in enumerate(t.indices):
            moving = {x: c for x, c in linear(simplify(index, ranges))[0].items() if variables(x) & inner}
            for x, c in moving.items():
                plain = len(moving) == 1 and c == 1 and isinstance(x, Var) and x.name not in seen
                if not plain or variables(loops[str(x)]) & inner:
                    why = f"one iteration of {at.var} does not write a rectangle of {t.buffer}"
                    raise ScheduleError(why, stage="schedule")
                seen.add(str(x))
                extents[d] = settled(loops[str(x)], ranges)
            if not moving:
                extents[d] = Const(1, "index")
        return bases, sizes, extents

    @primitive
    def decompose_reduction(self, block: str, var: str | None = None) -> str:
        """Let a block of its own set the results of a reduction to their initial values, just before loop `var`
        (default: the outermost reduction loop). Returns that block.

        What is not decomposed so is decomposed when the schedule is finished. Refused if a reduction loop is outside
        `var`, and unless the loops from there on select the element or are reduced over.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[5, 32], y: out(f32[5])):
        ...     for i in serial(5):
        ...         for k in serial(32):
        ...             s0: y[i] = reduce(addf(y[i], x[i, k]), init=f32(0.0), over=(k,))'''))
        >>> s.decompose_reduction("s0", "i")
        's0_init'
        >>> print(s)
        def k(x: f32[5, 32], y: out(f32[5])):
            for i_n in serial(5):
                s0_init: y[i_n] = f32(0.0)
            for i in serial(5):
                for k in serial(32):
                    s0: y[i] = reduce(addf(y[i], x[i, k]), init=None, over=(k,))
        """
        store, path = self.store(block), self._path(block)
        if any(t.init is None for t in store.targets):
            raise ScheduleError(f"block {block} is no reduction, or decomposed already", stage="schedule")
        around = [s for s in path if isinstance(s, For)]
        first = next((i for i, f in enumerate(around) if f.var in store.reduction), len(around))
        at = next((i for i, f in enumerate(around) if f.var == var), None) if var is not None else first
        if at is None:
            raise ScheduleError(f"block {block} is not inside {var}", stage="schedule")
        if at > first:
            raise ScheduleError(f"{around[first].var}, which is reduced over, is outside {var}", stage="schedule")
        inside = around[at:]
        for t in store.targets:
            used = {v for i in t.indices for v in variables(i)}
            odd = [f.var for f in inside if f.var not in store.reduction and f.var not in used]
            if odd:
                raise ScheduleError(f"each iteration of {', '.join(odd)} would need {t.buffer} anew", stage="schedule")
        if any(f.bound or f.kind == "vector" for f in inside if f.var in store.reduction):
            raise ScheduleError(f"block {block} combines lanes: vectorize it after", stage="schedule")
        if inside:
            self._alone_in(inside[0], store, path)
        start: dict[str, Expr] = {f.var: Const(0, "index") for f in inside if f.var in store.reduction}
        own = {f.var: self.fresh(f"{f.var}_n") for f in inside if f.var not in store.reduction}
        values = {**start, **{old: Var(new) for old, new in own.items()}}
        name = self.fresh(f"{block}_init")
        targets = tuple(
            Target(t.buffer, tuple(substitute(i, values) for i in t.indices), substitute(t.init, values))
            for t in store.targets
            if t.init is not None
        )
        init: Stmt = Store(targets, name)
        for f in reversed([f for f in inside if f.var in own]):
            init = For(own[f.var], substitute(f.extent, values), init)
        update = replace(store, targets=tuple(replace(t, init=None) for t in store.targets))
        self._replace(store, update)
        anchor: Stmt = self.loop(inside[0].var) if inside else update
        self._replace(anchor, seq(init, anchor))
        return name

    def _alone_in(self, f: For, store: Store, path: tuple[Stmt, ...]) -> None:
        """ScheduleError if the values that a block has before loop `f` are not those that it starts from inside."""
        if any(isinstance(x, If) for x in path[path.index(f) :]):
            raise ScheduleError(f"block {store.block} runs under a condition inside {f.var}", stage="schedule")
        buffers = {t.buffer for t in store.targets}
        turns = [t for t in store.targets for i in t.indices for x in linear(i)[0] if not isinstance(x, Var)]
        others = [x for x in stores(f) if x is not store and buffers & (writes(x) | reads(x))]
        if turns and others:  # the elements may be used again, as those of a double buffer are
            raise ScheduleError(
                f"block {others[0].block} uses {', '.join(sorted(buffers))} inside {f.var} too", stage="schedule"
            )

    def _first_extent(self, f: For, outer: set[str]) -> int:
        """Iterations of a loop in the first round of the `outer` reduction loops, which must also be the most it
        has."""
        ranges = all_ranges(self.body)
        first = const_value(simplify(substitute(f.extent, {v: Const(0, "index") for v in outer}), ranges))
        limit = bounds(f.extent, ranges)
        if first and is_open(first) and _shrinks(f.extent, outer):
            return first
        if not first or limit is None or min(limit[1], first) != first:
            raise ScheduleError(f"the extent of {f.var} varies", stage="schedule")
        return first


def _shrinks(extent: Expr, outer: set[str]) -> bool:
    """Whether an extent is that of tiles of one loop, of which only the last has fewer iterations: those of the first
    are the most, however many that are."""
    if not isinstance(extent, Op) or extent.op != "minsi" or const_value(extent.args[0]) is None:
        return False
    return all(isinstance(t, Var) and t.name in outer and less(c, 0) for t, c in linear(extent.args[1])[0].items())


def _combiner(t: Target) -> tuple[str, Expr] | None:
    """(operation, value) of ``acc = operation(acc, value)``."""
    v = t.value
    if isinstance(v, Op) and is_update(t):
        own = Load(t.buffer, t.indices, v.dtype)
        return v.op, v.args[1] if v.args[0] == own else v.args[0]
    return None
