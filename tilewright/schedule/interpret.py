"""The reference interpreter of loop nests: `interpret_nest` runs one over NumPy arrays, and decides what is right.

Iterations run in order. What a machine may do differently is checked instead (`interpret_threads`): iterations of a
loop bound to an axis must not touch what others write unless there is a barrier between, and an asynchronous copy ends
when it is waited for. Memory that the axis's threads do not share belongs to each of them alone.

Accesses outside a buffer, reads of elements never written, and results left unwritten are errors with the buffer, the
index and the statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NoReturn

import numpy as np

from ..support.errors import TilewrightError
from ..tensor.evaluate import NUMPY, evaluate
from ..tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, bounds, children, variables, walk
from .concurrency import is_plain, verify
from .machine import Machine
from .nest import Alloc, For, If, Nest, Seq, Stmt, Store, stores, writes

#: at most this many iterations are computed at once
POINTS = 1 << 18
# who wrote an element: nobody, all threads; then single ones
UNSET, EVERY = -1, 0

Env = dict[str, np.ndarray]


class NestError(TilewrightError):
    """A loop nest that does something undefined: an access out of bounds, a read of an unwritten element, a race."""


def interpret_nest(nest: Nest, arrays: dict[str, np.ndarray], machine: Machine | None = None) -> dict[str, np.ndarray]:
    """Run a nest: input parameters by name -> output parameters by name.

    Args:
        nest: any nest, with or without decomposed reductions.
        arrays: for each input parameter an array of its shape and of the NumPy type of its dtype
            (`tensor.evaluate.NUMPY`); packed parameters in their packed layout (`driver.build_program.pack_array`).
        machine: whose axes, memories and barriers the nest has (None: a processor with threads).

    Raises NestError for arrays that do not fit, accesses out of bounds, reads of elements that were never written,
    elements of results left unwritten, what the machine does not have, and races: elements that several iterations of
    bound loops use, one of them writing, without a barrier or wait between.

    >>> from tilewright.schedule.text import parse_nest
    >>> text = "def scale(p0: f32[3], p1: out(f32[3])):\\n  for i in serial(3):\\n    p1[i] = mulf(p0[i], f32(2.0))"
    >>> interpret_nest(parse_nest(text), {"p0": np.array([1, 2, 3], np.float32)})
    {'p1': array([2., 4., 6.], dtype=float32)}
    """
    from .interpret_threads import ThreadInterpreter

    kind = Interpreter if is_plain(nest.body) else ThreadInterpreter
    return kind(nest, machine or Machine()).run(arrays)


@dataclass
class Memory:
    """A buffer's elements, flat, and who wrote each."""

    buffer: Buffer
    data: np.ndarray
    writer: np.ndarray
    shared: bool  # seen by several threads
    own: tuple[bool, ...] = ()  # of which axes every thread has a part of its own
    parts: dict[tuple[int | None, ...], Memory] = field(default_factory=dict)
    # since before it was allocated: who wrote an element last, when, and who read it when
    readers: dict[int, np.ndarray] = field(default_factory=dict)

    @cached_property
    def wrote(self) -> np.ndarray:
        return self.writer.copy()

    @cached_property
    def times(self) -> np.ndarray:
        return np.zeros(self.buffer.size, np.int64)

    @cached_property
    def busy(self) -> np.ndarray:
        """The group of copies that is writing an element, 0 for none."""
        return np.zeros(self.buffer.size, np.int64)

    @cached_property
    def lent(self) -> np.ndarray:
        """How many copies are reading an element."""
        return np.zeros(self.buffer.size, np.int64)

    @staticmethod
    def fresh(b: Buffer, shared: bool) -> Memory:
        return Memory(b, np.zeros(b.size, NUMPY[b.dtype]), np.full(b.size, UNSET, np.int64), shared)


@dataclass
class Interpreter:
    """Runs what one thread does."""

    nest: Nest
    machine: Machine
    memory: dict[str, Memory] = field(default_factory=dict)
    thread: int = EVERY  # who runs now, as in Memory.writer
    known: dict[int, tuple[Expr, set[str], bool]] = field(default_factory=dict)  # see `facts`
    at: str = ""  # the statement that runs, for messages

    def run(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [p.name for p in self.nest.params if p.name not in self.nest.outputs]
        if set(arrays) != set(names):
            raise NestError(
                f"{self.nest.name} takes arrays {', '.join(names)}, not {', '.join(arrays)}", stage="interpret"
            )
        for p in self.nest.params:
            self.memory[p.name] = m = Memory.fresh(p, shared=True)
            if p.name in arrays:
                a = np.asarray(arrays[p.name])
                if a.shape != p.shape or a.dtype != NUMPY[p.dtype]:
                    wanted = f"{p.dtype}{list(p.shape)}"
                    raise NestError(
                        f"{p.name} of {self.nest.name} is {wanted}, the array is {a.dtype}{list(a.shape)}",
                        stage="interpret",
                    )
                m.data[:] = a.reshape(-1)
                m.writer[:] = EVERY
        if reason := verify(self.nest.body, self.nest.buffers(), self.machine):
            self.fail(reason, "")
        self.start()
        for name in self.nest.outputs:
            m = self.memory[name]
            if (m.writer == UNSET).any():
                self.fail(f"{name}[{place(m, np.argmin(m.writer))}] is a result that no statement writes", "")
        return {name: self.memory[name].data.reshape(self.memory[name].buffer.shape) for name in self.nest.outputs}

    def start(self) -> None:
        """Run the body."""
        self.stmt(self.nest.body, {})

    def fail(self, message: str, at: str | None = None) -> NoReturn:
        at = self.at if at is None else at
        raise NestError(message + (f", in {at}" if at else ""), stage="interpret", operator=self.nest.name)

    def restore(self, name: str, old: Memory | None) -> None:
        if old is None:
            del self.memory[name]
        else:
            self.memory[name] = old

    # ---- statements ----

    def stmt(self, s: Stmt, env: Env) -> None:
        if isinstance(s, Seq):
            for x in s.stmts:
                self.stmt(x, env)
        elif isinstance(s, For):
            self.loop(s, env)
        elif isinstance(s, Store):
            self.points(s, (), env)
        elif isinstance(s, If):
            chosen = s.then if self.scalar(s.cond, env) else s.otherwise
            if chosen is not None:
                self.stmt(chosen, env)
        else:
            assert isinstance(s, Alloc)
            outer = self.memory.get(s.buffer.name)
            self.memory[s.buffer.name] = Memory.fresh(s.buffer, shared=False)
            self.stmt(s.body, env)
            self.restore(s.buffer.name, outer)

    def loop(self, s: For, env: Env) -> None:
        chain: list[For] = []
        inner: Stmt = s
        while isinstance(inner, For):
            chain.append(inner)
            inner = inner.body
        if isinstance(inner, Store) and self.most(chain, env) <= POINTS:
            self.points(inner, tuple(chain), env)
            return
        trip = self.scalar(s.extent, env)
        for i in range(trip):
            self.stmt(s.body, {**env, s.var: np.asarray(i)})
        if trip <= 0:
            self.initialize_empty(s)

    def most(self, chain: list[For], env: Env) -> int:
        """An upper bound of the iterations of nested loops."""
        ranges = {v: (int(a.min()), int(a.max())) for v, a in env.items()}
        total = 1
        for f in chain:
            limit = bounds(f.extent, ranges)
            if limit is None:
                return POINTS + 1
            total *= max(limit[1], 1)
            ranges[f.var] = (0, max(limit[1] - 1, 0))
        return total

    def initialize_empty(self, s: For) -> None:
        """A reduction over no iterations leaves the initial value."""
        for x in stores(s.body):
            if s.var in x.reduction:
                self.fail(f"a reduction loop {s.var} without iterations around other statements")

    def scalar(self, e: Expr, env: Env) -> int:
        return int(self.value(e, env, 1)[0])

    # ---- one store, many iterations ----

    def points(self, s: Store, chain: tuple[For, ...], env: Env) -> None:
        """Run a store for every iteration of perfectly nested loops.

        Iterations are numbered in order. Those that write the same element stay in order: the first one of every
        element are computed together, then the second ones, and so on. Where elements depend on each other, one
        iteration is computed at a time.
        """
        self.at = f"block {s.block or '?'}" + (
            f" (loops {', '.join([*env, *(f.var for f in chain)])})" if env or chain else ""
        )
        full, count, only_init = self.iterations(s, chain, env)
        if count == 0:
            return
        first = np.ones(count, bool)
        for v in s.reduction:
            if v in full:
                first &= _spread(full[v], count) == 0
        positions = [_spread(self.position(t.buffer, self.indices(t.indices, full, count)), count) for t in s.targets]
        values = [] if only_init else [self.hoisted(t.value, s, full, count) for t in s.targets]
        for part in self.rounds(s, positions, count):
            inner = {v: a[part] if a.ndim else a for v, a in full.items()} if len(part) != count else full
            self.execute(s, values, inner, [p[part] for p in positions], first[part])

    def hoisted(self, e: Expr, s: Store, env: Env, count: int) -> Expr:
        """`e` with the parts that read nothing the store writes computed at once, as variables added to `env`."""
        own = writes(s)

        def visit(x: Expr) -> Expr:
            if isinstance(x, (Const, Var)):
                return x
            if not any(isinstance(y, Load) and y.buffer in own for y in walk(x)):
                name = f"part {len(env)}"
                env[name] = self.value(x, env, count)
                return Var(name, x.dtype)
            if isinstance(x, Op) and x.op == "guard":
                return x  # its branches are not for all iterations
            return _rebuild(x, tuple(visit(c) for c in children(x)))

        return visit(e)

    def iterations(self, s: Store, chain: tuple[For, ...], env: Env) -> tuple[Env, int, bool]:
        """The loop variables of all iterations, in order; a reduction without any runs once, to initialize (true)."""
        full: Env = dict(env)
        count = 1
        only_init = False
        for f in chain:
            trips = np.maximum(self.value(f.extent, full, count), 0)
            if f.var in s.reduction and not trips.any() and any(t.init is not None for t in s.targets):
                only_init = True
                full[f.var] = np.zeros(count, np.int64)
                continue
            which = np.repeat(np.arange(count), trips)
            starts = np.cumsum(trips) - trips
            full = {v: a[which] if a.ndim else a for v, a in full.items()}
            full[f.var] = np.arange(len(which)) - starts[which]
            count = len(which)
        return full, count, only_init

    def rounds(self, s: Store, positions: list[np.ndarray], count: int) -> Iterator[np.ndarray]:
        """Groups of iterations that may be computed together, in order."""
        key = positions[0]
        own = {t.buffer: t.indices for t in s.targets}
        carried = len(own) != len(s.targets) or any(
            isinstance(x, Load) and x.buffer in own and (x.indices != own[x.buffer] or e is not t.value)
            for t in s.targets
            for e in (t.value, t.init, *t.indices)
            if e is not None
            for x in walk(e)
        )
        for other in positions[1:]:
            _, a = np.unique(key, return_inverse=True)
            _, b = np.unique(other, return_inverse=True)
            carried = carried or len(set(zip(a.tolist(), b.tolist(), strict=True))) != min(a.max(), b.max()) + 1
        if carried:
            yield from (np.array([i]) for i in range(count))
            return
        order = np.argsort(key, kind="stable")
        new = np.r_[True, key[order][1:] != key[order][:-1]]
        start = np.maximum.accumulate(np.where(new, np.arange(count), 0))
        rank = np.empty(count, np.int64)
        rank[order] = np.arange(count) - start
        by_rank = np.argsort(rank, kind="stable")
        edges = np.flatnonzero(np.r_[True, np.diff(rank[by_rank]) > 0, True])
        for start_at, end in pairwise(edges):
            yield by_rank[start_at:end]

    def execute(self, s: Store, exprs: list[Expr], env: Env, positions: list[np.ndarray], first: np.ndarray) -> None:
        """Compute all values of some iterations, then write them."""
        count = len(positions[0])
        if first.any():
            part = {v: a[first] if a.ndim else a for v, a in env.items()}
            for t, p in zip(s.targets, positions, strict=True):
                if t.init is not None:
                    self.write(t, p[first], self.value(t.init, part, int(first.sum())))
        values = [self.value(e, env, count) for e in exprs]
        for t, p, v in zip(s.targets, positions, values, strict=bool(exprs)):
            self.write(t, p, v)

    # ---- memory ----

    def indices(self, indices: tuple[Expr, ...], env: Env, count: int) -> tuple[np.ndarray, ...]:
        return tuple(self.value(i, env, count) for i in indices)

    def position(self, name: str, indices: tuple[np.ndarray, ...]) -> np.ndarray:
        """Flat positions in a buffer; an index outside is an error, however it falls."""
        if name not in self.memory:
            self.fail(f"there is no buffer {name} here")
        b = self.memory[name].buffer
        if len(indices) != len(b.shape):
            self.fail(f"{name} has {len(b.shape)} dimensions and is used with {len(indices)} indices")
        flat = np.zeros((), np.int64)
        for d, (i, n, step) in enumerate(zip(indices, b.shape, b.strides, strict=True)):
            outside = (i < 0) | (i >= n)
            if outside.any():
                k = int(np.argmax(outside))
                index = ", ".join(str(int(np.broadcast_to(j, outside.shape).reshape(-1)[k])) for j in indices)
                self.fail(f"{name}[{index}] is outside its shape {list(b.shape)} in dimension {d}")
            flat = flat + i * step
        return np.asarray(flat)

    def read(self, name: str, indices: tuple[np.ndarray, ...], dtype: str, count: int) -> np.ndarray:
        p = _spread(self.position(name, indices), count)
        m = self.memory[name]
        if m.buffer.dtype != dtype:
            self.fail(f"{name} holds {m.buffer.dtype} and is read as {dtype}")
        return self.load(name, p)

    def load(self, name: str, p: np.ndarray) -> np.ndarray:
        """The values of some elements."""
        m = self.memory[name]
        if (bad := m.writer[p] == UNSET).any():
            self.fail(f"{name}[{place(m, p[int(np.argmax(bad))])}] is read before it is written")
        found: np.ndarray = m.data[p]
        return found

    def write(self, t: Target, p: np.ndarray, values: np.ndarray) -> None:
        m = self.memory[t.buffer]
        if values.dtype != m.data.dtype:
            self.fail(f"{t.buffer} holds {m.buffer.dtype} and gets {values.dtype}")
        if m.buffer.scope == "param" and t.buffer not in self.nest.outputs:
            self.fail(f"{t.buffer} is an input and is written")
        self.save(t, p, values)

    def save(self, t: Target, p: np.ndarray, values: np.ndarray) -> None:
        """Write some elements."""
        m = self.memory[t.buffer]
        m.data[p] = values
        m.writer[p] = self.thread

    # ---- expressions ----

    def value(self, e: Expr, env: Env, count: int) -> np.ndarray:
        """`e` for `count` iterations. The branches of `guard` are computed only for the iterations that take them."""
        guards: dict[str, np.ndarray] = {}
        if isinstance(e, Const):
            return np.broadcast_to(evaluate(e, {}), count)
        if isinstance(e, Var) and e.name in env:
            return _spread(env[e.name], count)
        names, guarded = self.facts(e)

        def cut(x: Expr) -> Expr:
            """Replace the outermost guards by variables that hold their values."""
            if isinstance(x, Op) and x.op == "guard":
                name = f"guard {id(x)}"
                if name not in guards:
                    guards[name] = self.guarded(x, env, count)
                return Var(name, x.dtype)
            if x not in done:
                done[x] = _rebuild(x, tuple(cut(c) for c in children(x)))
            return done[x]

        done: dict[Expr, Expr] = {}
        if guarded:
            e = cut(e)
            names = set(variables(e))
        bound = {v: env[v] for v in names if v in env} | guards
        missing = names - set(bound)
        if missing:
            self.fail(f"loop variable {', '.join(sorted(missing))} is used outside its loop")
        result = evaluate(e, bound, lambda name, at, dtype: self.read(name, at, dtype, count))
        return _spread(result, count)

    def facts(self, e: Expr) -> tuple[set[str], bool]:
        """The variables of an expression, and whether it holds a guard."""
        if id(e) not in self.known:
            nodes = list(walk(e))
            names = {x.name for x in nodes if isinstance(x, Var)}
            self.known[id(e)] = e, names, any(isinstance(x, Op) and x.op == "guard" for x in nodes)
        return self.known[id(e)][1:]

    def guarded(self, e: Op, env: Env, count: int) -> np.ndarray:
        holds = self.value(e.args[0], env, count)
        result = np.zeros(count, NUMPY[e.dtype])
        for take, branch in ((holds, e.args[1]), (~holds, e.args[2])):
            if take.any():
                part = {v: a[take] if a.ndim else a for v, a in env.items()}
                result[take] = self.value(branch, part, int(take.sum()))
        return result


def _spread(a: np.ndarray, count: int) -> np.ndarray:
    """One element for each of `count` iterations; nobody writes to them."""
    return a if a.shape == (count,) else np.broadcast_to(a, count)


def _rebuild(e: Expr, args: tuple[Expr, ...]) -> Expr:
    """`e` with other children, without folding anything."""
    if isinstance(e, Op):
        return Op(e.op, args, e.dtype)
    return Load(e.buffer, args, e.dtype) if isinstance(e, Load) else e


def place(m: Memory, flat: np.integer | int) -> str:
    return ", ".join(str(int(i)) for i in np.unravel_index(int(flat), m.buffer.shape))


__all__ = ["Interpreter", "Memory", "NestError", "interpret_nest", "place"]
