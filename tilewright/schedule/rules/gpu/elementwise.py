"""Elementwise operations and data movement with coalesced accesses: neighbouring threads take neighbouring elements of
the result, each a vector of them where the machine has vector accesses."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....tensor.expr import Const, Expr, Target, Var, substitute
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import For, Stmt, Store, seq, stores
from ...schedule import Schedule
from ..common import inline_producers, load_strides, merge_loops, store_stride
from .tactics import loops_rule, not_whole
from .thread_binding import block_sizes, digits, on, processors, spread_out

NAME = "block_elementwise"
PRIORITY = 9
#: iterations of a loop that a thread takes whole, at most, and threads that each processor keeps at least
SHORT, LEAST = 8, 128


def write(s: Schedule, machine: Machine) -> Stmt | str:
    stores_of = read(s)
    if isinstance(stores_of, str):
        return stores_of
    threads = s.sample_choice("threads", *block_sizes(machine))
    wide = lanes(machine)
    vector = s.sample_choice("vector", (wide, 1), wide) if wide > 1 else 1
    parts = []
    for i, (name, dims) in enumerate(stores_of.items()):
        short = _short(s, name, dims, machine)
        parts.append(_elements(s.store(name), dims, threads, vector if short is None else 1, i, machine, short))
    s.plan = f"blocks of {threads} threads" + (f", {vector} neighbours each" if vector > 1 else "")
    return seq(*parts)


def unfit(kernel: Kernel, machine: Machine) -> str:
    """Why a kernel is not elementwise; empty if it is."""
    reduces = any(t.init is not None for x in kernel.stages for t in x.targets)
    return not_whole(kernel, machine) or ("it contains a reduction" if reduces else "")


def prepare(s: Schedule) -> None:
    """Inline producers; of what is left, loops that walk as one become one, with that along the rows of a result
    inside."""
    inline_producers(s)
    if not isinstance(read(s), str):
        for b in stores(s.body):
            _order(s, b)


def read(s: Schedule) -> dict[str, list[tuple[str, int]]] | str:
    """The stores of an elementwise kernel by name, with their loops; or why it is none."""
    blocks = stores(s.body)
    if s.temporaries or any(x.buffer in s.kernel.outputs for b in blocks for x in b.loads):
        return "not all of it can be computed where it is read"
    found = {b.block: [(v, s.extent_or_zero(v)) for v in s.loops(b.block)] for b in blocks}
    return "its extents vary" if any(n == 0 for dims in found.values() for _, n in dims) else found


def _order(s: Schedule, b: Store) -> None:
    loops = s.loops(b.block)
    last = next((v for v in reversed(loops) if store_stride(s, b, v) == 1), None)
    order = [v for v in loops if v != last] + ([last] if last is not None else [])
    if order != loops:
        s.reorder(*order)
    if order:
        merge_loops(s, b.block, order)


def _short(s: Schedule, name: str, dims: list[tuple[str, int]], machine: Machine) -> str | None:
    """A short loop along which neighbours in memory are read that results do not keep beside each other: a thread that
    takes all of it reads lines that it has loaded already. None where threads would be too few."""
    if not dims:
        return None
    steps = {v: dict(load_strides(s, s.store(name), v)) for v, _ in dims}
    last, count = steps[dims[-1][0]], prod(n for _, n in dims)
    for v, n in dims[:-1]:
        apart = any(c == 1 and last[x] not in (0, 1, None) for x, c in steps[v].items())
        if apart and 1 < n <= SHORT and count // n >= processors(machine) * LEAST:
            return v
    return None


def _elements(
    b: Store,
    dims: list[tuple[str, int]],
    threads: int,
    vector: int,
    number: int,
    machine: Machine,
    short: str | None,
) -> Stmt:
    """The elements of a store, `vector` neighbours by each thread, and all of a `short` loop."""
    extent = dict(dims).get(short, 1) if short is not None else 1
    dims = [d for d in dims if d[0] != short]
    if not dims or dims[-1][1] % vector:
        vector = 1
    inner = [*dims[:-1], (dims[-1][0], dims[-1][1] // vector)] if dims else []
    lane = Var(f"lane_{number}")

    def each(at: Expr) -> Stmt:
        values: dict[str, Expr] = dict(digits(at, inner))
        if vector > 1:
            values[dims[-1][0]] = values[dims[-1][0]] * vector + lane
        places = [tuple(substitute(i, values) for i in t.indices) for t in b.targets]
        made = [substitute(t.value, values) for t in b.targets]
        found = zip(b.targets, places, made, strict=True)
        body = replace(b, targets=tuple(Target(t.buffer, place, value) for t, place, value in found))
        if short is not None:
            return on("unroll", short, extent, body)
        return body if vector == 1 else For(lane.name, Const(vector, "index"), body, "vector", vector)

    return spread_out(prod(n for _, n in inner), threads, f"elements_{number}", machine, each)


apply = loops_rule(NAME, write, unfit, prepare)
