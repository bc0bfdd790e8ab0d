"""Primitives on memory: copies, places and layouts of buffers, and copies made ahead of their use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from ...tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, bounds, loads, simplify, variables
from ...tensor.kernel import Stage
from ..legality import covers
from ..nest import (
    AsyncCopy,
    Barrier,
    For,
    If,
    Pack,
    Seq,
    Stmt,
    Store,
    Wait,
    exprs,
    reads,
    rename_loads,
    replace_loads,
    seq,
    stores,
    substitute_vars,
    transform,
    walk_stmts,
    writes,
)  # fmt: skip
from ..region import all_ranges, inner_loops, region, same_region
from .state import ScheduleError, State, home, primitive, redirect, rename_reduction, stage_nest, touches

Index = tuple[Expr, ...]


class MemoryPrimitives(State):
    """Where data lives."""

    # ---- copies ----

    @primitive
    def cache_read(
        self,
        block: str | tuple[str, ...],
        buffer: str,
        var: str | None = None,
        *,
        scope: str = "local",
        order: tuple[int, ...] | None = None,
        moving: str | None = None,
        asynchronous: bool = False,
    ) -> str:
        """Let a block read a copy of what one iteration of loop `var` needs of a buffer. Returns the block that copies,
        at the start of the iteration; without `var` the whole buffer is copied before the block.

        Several blocks inside `var` can share a copy. The copy lives in `scope`, with its dimensions in `order`. With
        `moving`, a loop, only what that loop selects is read from the copy: one of the factors of a matrix times its
        own transpose. An `asynchronous` copy is begun and waited for (`pipeline` then lets it run ahead). Refused if
        the buffer is written in the loop, if a block does not read it (so), or if it is a block's own result.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4, 8], y: out(f32[8, 4])):
        ...     for i in serial(8):
        ...         for j in serial(4):
        ...             s0: y[i, j] = negf(x[j, i])'''))
        >>> s.cache_read("s0", "x", "i")
        's0_x'
        >>> print(s)
        def k(x: f32[4, 8], y: out(f32[8, 4])):
            for i in serial(8):
                x_c = local(f32[4, 1])
                for m_x_c in serial(4):
                    s0_x: x_c[m_x_c, 0] = x[m_x_c, i]
                for j in serial(4):
                    s0: y[i, j] = negf(x_c[j, 0])
        """
        blocks = (block,) if isinstance(block, str) else tuple(block)
        if not blocks or (var is None and len(blocks) > 1):
            raise ScheduleError(f"a copy for {len(blocks)} blocks wants a loop around them", stage="schedule")
        block, source = blocks[0], self._buffer(buffer)
        at: Stmt = self.loop(var) if var is not None else self._nest_root(block)
        accesses: list[Index] = []
        for b in blocks:
            store = self.store(b)
            found = [x.indices for x in _loads(store, buffer) if _selects(moving, x)]
            if not found:
                so = f" along {moving}" if moving else ""
                raise ScheduleError(f"block {b} does not read {buffer}{so}", stage="schedule")
            if not any(s is store for s in walk_stmts(at)):
                raise ScheduleError(f"block {b} is not inside {var}", stage="schedule")
            accesses += found
        if buffer in writes(at):
            raise ScheduleError(f"{buffer} is written {f'inside {var}' if var else f'by {block}'}", stage="schedule")
        self._filled(buffer, self._around(at) | ({var} if var is not None else set()))
        self._unconditional(at, buffer)
        bases, sizes, extents = self._reach(source, accesses, at) if var is not None else _whole(source)
        permute = _order(order, source)
        name = self.fresh(f"{buffer}_c")
        self.temporaries[name] = Buffer(name, permute(tuple(sizes)), source.dtype, self._scope(scope))
        ranges = all_ranges(self.body)

        def moved(i: Index) -> Index:
            return permute(tuple(simplify(e - base, ranges) for e, base in zip(i, bases, strict=True)))

        dims = [(f"{'mnpqrstu'[d % 8]}{d // 8 or ''}_{name}", n) for d, n in enumerate(extents)]
        single = [n == 1 for n in sizes]
        own: Index = tuple(Const(0, "index") if one else Var(v) for (v, _), one in zip(dims, single, strict=True))
        place = tuple(simplify(base + o, ranges) for base, o in zip(bases, own, strict=True))
        copy_name = self.fresh(f"{block}_{buffer}")
        copy: Stmt = Store((Target(name, permute(own), Load(buffer, place, source.dtype)),), copy_name)
        for (v, extent), one in reversed(list(zip(dims, single, strict=True))):
            copy = copy if one else For(v, extent, copy)
        if asynchronous:
            token = self.fresh(f"{name}_t")
            copy = Seq((AsyncCopy(token, copy), Wait(token)))

        def read(x: Load) -> Expr:
            return Load(name, moved(x.indices), x.dtype) if x.buffer == buffer and _selects(moving, x) else x

        for b in blocks:
            self._replace(self.store(b), rename_loads(self.store(b), read))
        if var is not None:
            f = self.loop(var)
            self._replace(f, replace(f, body=seq(copy, f.body)))
        else:
            root = self._nest_root(block)
            self._replace(root, seq(copy, root))
        return copy_name

    def _filled(self, name: str, outside: set[str]) -> None:
        """Raise ScheduleError unless all of a buffer is shown to be written before it is read: a copy reads all.

        `outside` are the loops around the copy: of what they write there is only one iteration yet."""
        if name in self.params and name not in self.kernel.outputs:
            return
        root = home(self.body, name)
        writers = [s for s in stores(root) if name in writes(s)]
        known = self._around(root) | outside
        for s in writers:
            (t,) = [t for t in s.targets if t.buffer == name]
            around = [self.loop(v) for v in self.loops(s.block) if v not in known | set(s.reduction)]
            if covers(t.indices, around, self.buffer(name).size, all_ranges(self.body)):
                return
        raise ScheduleError(f"it cannot be shown that all of {name} has been written", stage="schedule")

    def _reach(self, b: Buffer, accesses: list[Index], at: Stmt) -> tuple[list[Expr], list[int], list[Expr]]:
        """Bases, sizes and extents of what the accesses touch while the loops inside `at` run; a dimension whose part
        cannot be shown to be right is taken whole."""
        ranges = all_ranges(self.body)
        bases, sizes, extents = region(accesses, b, inner_loops(at), ranges)
        for d, whole in enumerate(b.shape):
            low = bounds(simplify(bases[d], ranges), ranges)
            inside = same_region([(a[d],) for a in accesses], [bases[d]], [sizes[d]], ranges)
            if low is None or low[0] < 0 or not inside:
                bases[d], sizes[d], extents[d] = Const(0, "index"), whole, Const(whole, "index")
        return bases, sizes, extents

    @primitive
    def cache_write(self, block: str, *, scope: str = "local", order: tuple[int, ...] | None = None) -> str:
        """Let a block write a temporary, copied to the real result by a new block whose name is returned.

        The temporary lives in `scope`, with its dimensions in `order`. Refused if others write the result too, if the
        block does not write all of it, or if it shares a loop with other blocks.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[5, 9], y: out(f32[5])):
        ...     for i in serial(5):
        ...         for k in serial(9):
        ...             s0: y[i] = reduce(addf(y[i], x[i, k]), init=f32(0.0), over=(k,))'''))
        >>> s.cache_write("s0")
        's0_w'
        >>> print(s)
        def k(x: f32[5, 9], y: out(f32[5])):
            y_c = local(f32[5])
            for i in serial(5):
                for k in serial(9):
                    s0: y_c[i] = reduce(addf(y_c[i], x[i, k]), init=f32(0.0), over=(k,))
            for m_y_c in serial(5):
                s0_w: y[m_y_c] = y_c[m_y_c]
        """
        store = self.store(block)
        t = store.targets[0]
        real = self.buffer(t.buffer)
        self._only_writer(store)
        self._covers(store, self.loops(block), t)
        permute = _order(order, real)
        name = self.fresh(f"{t.buffer}_c")
        self.temporaries[name] = Buffer(name, permute(real.shape), real.dtype, self._scope(scope))
        root = self._nest_root(block)
        if any(isinstance(s, For) and not any(x is s for x in walk_stmts(root)) for s in self._path(block)):
            raise ScheduleError(f"block {block} is inside a loop with other blocks", stage="schedule")
        redirected = transform(root, lambda s: redirect(s, t.buffer, name, permute))
        assert redirected is not None
        dims = [(f"{'mnpqrstu'[d % 8]}{d // 8 or ''}_{name}", n) for d, n in enumerate(real.shape)]
        index = tuple(Var(v) if n != 1 else Const(0, "index") for v, n in dims)
        copy = Stage(
            self.fresh(f"{block}_w"),
            tuple(d for d in dims if d[1] != 1),
            (Target(t.buffer, index, Load(name, permute(index), real.dtype)),),
        )
        self._replace(root, seq(redirected, stage_nest(copy)))
        return copy.name

    @primitive
    def pipeline(self, var: str, *blocks: str, stages: int = 2) -> list[str]:
        """Let blocks that fill buffers for an iteration of loop `var` run `stages` - 1 iterations ahead of those that
        use them (double buffering). Returns the blocks that fill the buffers for the first iterations.

        Each buffer gets `stages` copies in turns; asynchronous copies are begun in one iteration and waited for in a
        later one. Refused unless the loop is serial with a constant extent, and each
        block alone fills a temporary that only later blocks of the same iteration read, from what the loop does not
        write.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4, 8], y: out(f32[8, 4])):
        ...     for i in serial(8):
        ...         for j in serial(4):
        ...             s0: y[i, j] = negf(x[j, i])'''))
        >>> copy = s.cache_read("s0", "x", "i")
        >>> s.pipeline("i", copy)
        ['s0_x_p']
        >>> print(s)
        def k(x: f32[4, 8], y: out(f32[8, 4])):
            x_c = local(f32[2, 4, 1])
            for m_x_c_p in serial(4):
                s0_x_p: x_c[0, m_x_c_p, 0] = x[m_x_c_p, 0]
            for i in serial(8):
                if i + 1 < 8:
                    for m_x_c in serial(4):
                        s0_x: x_c[(i + 1) % 2, m_x_c, 0] = x[m_x_c, i + 1]
                for j in serial(4):
                    s0: y[i, j] = negf(x_c[i % 2, j, 0])
        """
        f = self.loop(var)
        if stages < 2 or not blocks:
            raise ScheduleError(f"pipeline wants at least two stages and one block, not {stages} and {len(blocks)}")
        if f.kind != "serial" or not f.trip:
            raise ScheduleError(f"{var} is no serial loop with a constant extent", stage="schedule")
        roots, buffers = self._ahead(f, blocks)
        ahead = min(stages - 1, f.trip)
        here, start = Var(var), Var(self.fresh(f"{var}_p")) if ahead > 1 else Const(0, "index")

        def turn(s: Stmt, at: Expr) -> Stmt:
            """The statement with the buffers' copies number `at`."""

            def own(i: Index) -> Index:
                return (at % stages, *i)

            for b in buffers:
                s = transform(s, partial(redirect, old=b, new=b, index=own)) or s
            return s

        first: list[Stmt] = []
        body: list[Stmt] = []
        tokens: set[str] = set()
        for s in f.body.stmts if isinstance(f.body, Seq) else (f.body,):
            if any(s is r for r in roots):
                later = turn(substitute_vars(s, {var: here + ahead}), here + ahead)
                runs = Op("cmpi.slt", (here + ahead, f.extent), "i1")
                if isinstance(later, AsyncCopy):  # begun in any case: a wait counts the groups
                    tokens.add(later.token)
                    body.append(replace(later, body=If(runs, later.body)))
                else:
                    body.append(If(runs, later))
                first.append(self._renamed(turn(substitute_vars(s, {var: start}), start)))
            elif isinstance(s, Wait) and s.token in tokens:
                body.append(replace(s, pending=s.pending + ahead))
            else:
                body.append(turn(s, here))
        for b in buffers:
            self.temporaries[b] = replace(self.temporaries[b], shape=(stages, *self.temporaries[b].shape))
        begin = seq(*first)
        if isinstance(start, Var):
            begin = For(start.name, Const(ahead, "index"), begin)
        self._replace(f, seq(begin, replace(f, body=seq(*body))))
        return [s.block for s in stores(begin)]

    def _ahead(self, f: For, blocks: tuple[str, ...]) -> tuple[list[Stmt], list[str]]:
        """The statements of `f` that make up the blocks, and the buffers that they fill; ScheduleError if they cannot
        run ahead."""
        inside = f.body.stmts if isinstance(f.body, Seq) else (f.body,)
        roots, buffers = [self._nest_root(b) for b in blocks], []
        for block, root in zip(blocks, roots, strict=True):
            store = self.store(block)
            at = next((i for i, s in enumerate(inside) if s is root), None)
            if at is None:
                raise ScheduleError(f"block {block} does not stand alone directly inside {f.var}", stage="schedule")
            self._only_writer(store)
            if set(store.reduction) - {s.var for s in walk_stmts(root) if isinstance(s, For)}:
                raise ScheduleError(f"block {block} reduces over a loop around it", stage="schedule")
            if reads(root) & writes(f.body):
                shared = ", ".join(sorted(reads(root) & writes(f.body)))
                raise ScheduleError(f"block {block} reads {shared}, which {f.var} writes", stage="schedule")
            for name in writes(root):
                users = [s for s in stores(self.body) if touches(s, name)]
                if name not in self.temporaries or self.temporaries[name].scope == "register":
                    raise ScheduleError(f"{name} is no buffer in memory of its own", stage="schedule")
                if not all(any(s is x for y in inside[at:] for x in walk_stmts(y)) for s in users):
                    raise ScheduleError(f"{name} is used outside {f.var} or before block {block}", stage="schedule")
                buffers.append(name)
        return roots, buffers

    def _renamed(self, s: Stmt) -> Stmt:
        """A copy of a statement with loops and blocks of its own."""
        loops = {f.var: self.fresh(f"{f.var}_p") for f in walk_stmts(s) if isinstance(f, For)}

        def visit(x: Stmt) -> Stmt:
            if isinstance(x, For):
                return replace(x, var=loops[x.var])
            return replace(x, block=self.fresh(f"{x.block}_p")) if isinstance(x, Store) else x

        s = substitute_vars(s, {old: Var(new) for old, new in loops.items()})
        for old, new in loops.items():
            s = rename_reduction(s, old, (new,))
        return transform(s, visit) or s

    @primitive
    def barrier(self, block: str, scope: str) -> None:
        """Let the threads that a barrier of the machine synchronizes (`machine.Axis.barriers`) wait for each other
        before a block begins.

        Refused if the machine has no such barrier, and where not all threads would come to it.

        >>> from tilewright import Schedule, te
        >>> from tilewright.schedule.machine import Axis, Machine, Memory
        >>> class Gpu(Machine):
        ...     axes = (Axis("block", 256, barriers=("block",)),)
        ...     memories = (Memory("shared", 48 << 10, shared_by=("block",)),)
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[64], y: out(f32[64])):
        ...     for i in serial(64):
        ...         s0: y[i] = negf(x[63 - i])'''), Gpu())
        >>> copy = s.cache_read("s0", "x", scope="shared")
        >>> s.barrier("s0", "block")
        >>> s.bind("m_x_c", "block")
        >>> s.bind("i", "block")
        >>> print(s)
        def k(x: f32[64], y: out(f32[64])):
            x_c = shared(f32[64])
            for m_x_c in block(64):
                s0_x: x_c[m_x_c] = x[m_x_c]
            barrier(block)
            for i in block(64):
                s0: y[i] = negf(x_c[i * -1 + 63])
        """
        root = self._nest_root(block)
        self._replace(root, seq(Barrier(scope), root))

    # ---- places and layouts ----

    def _buffer(self, name: str) -> Buffer:
        if name not in self.params and name not in self.temporaries:
            known = ", ".join([*self.params, *self.temporaries])
            raise ScheduleError(f"there is no buffer {name}", stage="schedule", hint=f"buffers: {known}")
        return self.buffer(name)

    @primitive
    def set_scope(self, buffer: str, scope: str) -> None:
        """Where a temporary lives: in a memory of the machine, on a CPU ``local`` (scratch memory of the thread) or
        ``register``.

        Refused if there is no such memory, or if it is too small.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4], y: out(f32[4])):
        ...     t = local(f32[4])
        ...     for i in serial(4):
        ...         s0: t[i] = exp(x[i])
        ...     for j in serial(4):
        ...         s1: y[j] = negf(t[j])'''))
        >>> s.set_scope("t", "register")
        >>> print(str(s).splitlines()[1])
            t = register(f32[4])
        """
        if buffer not in self.temporaries:
            raise ScheduleError(f"cannot put {buffer} into {scope}: it is no temporary", stage="schedule")
        self.temporaries[buffer] = replace(self.temporaries[buffer], scope=self._scope(scope))

    @primitive
    def set_order(self, buffer: str, order: tuple[int, ...]) -> None:
        """Lay out a temporary with its dimensions in another order: dimension ``order[0]`` comes first.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4, 8], y: out(f32[8, 4])):
        ...     t = local(f32[4, 8])
        ...     for i in serial(4):
        ...         for j in serial(8):
        ...             s0: t[i, j] = exp(x[i, j])
        ...     for m in serial(8):
        ...         for n in serial(4):
        ...             s1: y[m, n] = negf(t[n, m])'''))
        >>> s.set_order("t", (1, 0))
        >>> print(s)
        def k(x: f32[4, 8], y: out(f32[8, 4])):
            t = local(f32[8, 4])
            for i in serial(4):
                for j in serial(8):
                    s0: t[j, i] = exp(x[i, j])
            for m in serial(8):
                for n in serial(4):
                    s1: y[m, n] = negf(t[m, n])
        """
        if buffer not in self.temporaries:
            raise ScheduleError(f"{buffer} is no temporary", stage="schedule")
        b = self.temporaries[buffer]
        permute = _order(order, b)
        self.body = transform(self.body, partial(redirect, old=buffer, new=buffer, index=permute)) or self.body
        self.temporaries[buffer] = replace(b, shape=permute(b.shape))

    @primitive
    def pack(self, buffer: str, splits: tuple[tuple[int, ...], ...], order: tuple[int, ...]) -> None:
        """Lay out a constant parameter anew at compile time; see `Pack`. Reads are rewritten.

        Refused for buffers that are no constants, or packed already.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(b: f32[3, 64], y: out(f32[3, 64])):
        ...     for k in serial(3):
        ...         for n in serial(64):
        ...             s0: y[k, n] = negf(b[k, n])''', constants=["b"]))
        >>> s.pack("b", ((), (32,)), (1, 0, 2))
        >>> print(s)
        def k(b: packed(f32[2, 3, 32], splits=((), (32,)), order=(1, 0, 2)), y: out(f32[3, 64])):
            for k in serial(3):
                for n in serial(64):
                    s0: y[k, n] = negf(b[n // 32, k, n % 32])
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
            parts: list[Expr] = []
            for i, factors in zip(x.indices, splits, strict=True):
                pieces: list[Expr] = []
                for f in reversed(factors):
                    pieces.append(i % f)
                    i = i // f
                parts += [i, *reversed(pieces)]
            return Load(buffer, tuple(parts[o] for o in order), x.dtype)

        self.body = replace_loads(self.body, buffer, read)
        self.params[buffer] = replace(b, shape=shape)
        self.packs[buffer] = Pack(buffer, splits, order)


# ---- helpers -------------------------------------------------------------------------------------------------------


def _loads(store: Store, buffer: str) -> list[Load]:
    """Where a block reads a buffer; ScheduleError if it writes it too."""
    if buffer in {t.buffer for t in store.targets}:
        raise ScheduleError(f"{buffer} is what block {store.block} writes", stage="schedule", hint="use cache_write")
    return [x for e in exprs(store) for x in loads(e) if x.buffer == buffer]


def _selects(var: str | None, x: Load) -> bool:
    """Whether a loop (None: any) selects what is read."""
    return var is None or any(var in variables(i) for i in x.indices)


def _whole(b: Buffer) -> tuple[list[Expr], list[int], list[Expr]]:
    return [Const(0, "index")] * len(b.shape), list(b.shape), [Const(n, "index") for n in b.shape]


def _order(order: tuple[int, ...] | None, b: Buffer) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """The function that puts a buffer's dimensions into an order."""
    if order is None:
        return lambda dims: dims
    if sorted(order) != list(range(len(b.shape))):
        raise ScheduleError(f"{order} is not an order of the {len(b.shape)} dimensions of {b.name}", stage="schedule")
    return lambda dims: tuple(dims[d] for d in order)


def keeps_order(shape: tuple[int, ...], splits: tuple[tuple[int, ...], ...], order: tuple[int, ...]) -> bool:
    """Whether `Pack` leaves the elements of a parameter where they are.

    >>> keeps_order((4, 3, 64), ((), (), (64,)), (0, 2, 1, 3)), keeps_order((4, 3, 128), ((), (), (64,)), (0, 2, 1, 3))
    (True, False)
    """
    packed = packed_shape(shape, splits, order)
    long = [axis for axis, n in zip(order, packed, strict=True) if n > 1]
    return prod(packed) == prod(shape) and long == sorted(long)


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


__all__ = ["MemoryPrimitives", "keeps_order", "packed_shape"]
