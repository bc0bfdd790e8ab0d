"""Reductions with one thread for each element of the result: pooling, depthwise convolutions, small products, sums with
many results. Loops stay loops, so that kernels are small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from ....tensor.analysis import reindex
from ....tensor.expr import Buffer, Const, Expr, Load, Target, Var, map_loads, substitute
from ....tensor.kernel import Stage
from ...machine import Machine
from ...nest import Alloc, For, Stmt, Store, seq, store, stores
from ...schedule import Schedule
from .tactics import loops_rule, not_loops
from .thread_binding import block_sizes, digits, on, only_if, spread_out, within

NAME = "thread_elements"
PRIORITY = 7
#: fewer results than this leave most threads without work
FEW = 64


def write(s: Schedule, machine: Machine) -> Stmt | str:
    blocks = stores(s.body)
    sums = [b for b in blocks if b.reduction]
    if len(sums) != 1 or blocks[0] is not sums[0]:
        return "it is not one reduction with element-wise stages after it"
    total = sums[0]
    dims = [(v, s.extent_or_zero(v)) for v in s.loops(total.block)]
    free = [d for d in dims if d[0] not in total.reduction]
    if any(n == 0 for _, n in dims):
        return "its extents vary"
    if prod(n for _, n in free) < FEW:
        return "it has few results"
    rest = [b for b in blocks[1:] if b.loads or b.targets[0].buffer not in s.kernel.outputs]
    after = after_stages(s, total, rest)
    if isinstance(after, str):
        return after
    borders = [b for b in blocks[1:] if b not in rest]
    threads = s.sample_choice("threads", *block_sizes(machine))

    def spread(dims: list[tuple[str, int]], name: str, each: Callable[[Expr], Stmt]) -> Stmt:
        return spread_out(prod(n for _, n in dims), threads, name, machine, each)

    elements = spread(free, "element", lambda at: _element(s, total, dims, after, at))
    around = []
    for i, b in enumerate(borders):
        its = [(v, s.extent_or_zero(v)) for v in s.loops(b.block)]
        around.append(spread(its, f"border_{i}", partial(_border, b, its)))
    return seq(elements, *around)


apply = loops_rule(NAME, write, not_loops)


def after_stages(s: Schedule, total: Store, blocks: Sequence[Store]) -> tuple[Stage, ...] | str:
    """The stages after a reduction, each over the elements of what it reads of it; or why they are none such."""
    made = {t.buffer: s.buffer(t.buffer) for t in total.targets}
    found = []
    for b in blocks:
        stage = Stage(b.block, tuple((v, s.extent_or_zero(v)) for v in s.loops(b.block)), b.targets)
        sources = sorted(stage.reads & set(made))
        if len(sources) != 1:
            return f"stage {b.block} does not read one result"
        over = reindex(stage, made[sources[0]])
        if over is None:
            return f"stage {b.block} does not read {sources[0]} element for element"
        made[stage.buffer] = s.buffer(stage.buffer)
        found.append(over)
    return tuple(found)


def applied(
    s: Schedule, stages: Sequence[Stage], known: dict[str, Expr], at: dict[str, tuple[Expr, ...]]
) -> list[Store]:
    """What the stages after a reduction write of one element, whose values are `known` and stand `at` these places."""
    writes: list[Store] = []
    for stage in stages:
        source = next(b for b in stage.reads if b in known)
        names = iter(v for v, _ in stage.dims)
        shape = s.buffer(source).shape
        values = {next(names): i for i, n in zip(at[source], shape, strict=True) if n != 1}

        def read(x: Load, source: str = source) -> Expr:
            return known[x.buffer] if x.buffer == source else x

        t = stage.targets[0]
        known[t.buffer] = map_loads(substitute(t.value, values), read)
        at[t.buffer] = tuple(substitute(i, values) for i in t.indices)
        if t.buffer in s.kernel.outputs:
            writes.append(store(t.buffer, at[t.buffer], known[t.buffer], stage.name))
    return writes


def _element(s: Schedule, total: Store, dims: list[tuple[str, int]], after: Sequence[Stage], number: Expr) -> Stmt:
    """The element of a number: what is summed up for it, and what is made of that."""
    values = digits(number, [d for d in dims if d[0] not in total.reduction])
    zero = (Const(0, "index"),)
    kept = {
        t.buffer: Buffer(s.fresh(f"{t.buffer}_e"), (1,), s.buffer(t.buffer).dtype, "register") for t in total.targets
    }

    def own(e: Expr) -> Expr:
        def read(x: Load) -> Expr:
            return Load(kept[x.buffer].name, zero, x.dtype) if x.buffer in kept else x

        return map_loads(substitute(e, dict(values)), read)

    first = tuple(Target(kept[t.buffer].name, zero, own(t.init or t.value)) for t in total.targets)
    step = tuple(Target(kept[t.buffer].name, zero, own(t.value)) for t in total.targets)
    update: Stmt = Store(step, total.block)
    for v, n in reversed([d for d in dims if d[0] in total.reduction]):
        update = on("serial", v, n, update)
    known: dict[str, Expr] = {b: Load(x.name, zero, x.dtype) for b, x in kept.items()}
    at = {t.buffer: tuple(substitute(i, dict(values)) for i in t.indices) for t in total.targets}
    results = [store(b, at[b], known[b], f"{total.block}_{b}") for b in kept if b in s.kernel.outputs]
    body: Stmt = seq(Store(first, f"{total.block}_0"), update, *results, *applied(s, after, known, at))
    for b in kept.values():
        body = Alloc(b, body)
    return body


def shared_out(
    b: Store,
    dims: Sequence[tuple[str, int]],
    number: int,
    wide: int,
    block: tuple[Expr, int],
    threads: int,
    thread: Callable[[str, Stmt], Stmt],
) -> Stmt:
    """The elements of a store, `wide` neighbours at once, on the threads of blocks that have other work too: it has no
    blocks of its own, so that none has to leave that work, and the barriers in it, out. `block`: the number of one, and
    how many there are; `thread`: a loop over the threads of one by its variable."""
    whole = prod(n for _, n in dims) // wide
    turn, name, lane = f"border_{number}", f"border_unit_{number}", Var("lane")
    together = block[1] * threads
    at = Var(turn) * together + block[0] * threads + Var(name)
    values = digits(at if wide == 1 else at * wide + lane, dims)
    targets = [
        Target(t.buffer, tuple(substitute(i, values) for i in t.indices), substitute(t.value, values))
        for t in b.targets
    ]
    put: Stmt = Store(tuple(targets), b.block)
    put = put if wide == 1 else For(lane.name, Const(wide, "index"), put, "vector", wide)
    return thread(name, on("serial", turn, -(-whole // together), only_if(within(at, whole, together), put)))


def _border(b: Store, dims: list[tuple[str, int]], number: Expr) -> Stmt:
    """An element of what is written around a padded result."""
    values = digits(number, dims)
    t = b.targets[0]
    place = tuple(substitute(i, dict(values)) for i in t.indices)
    return replace(b, targets=(Target(t.buffer, place, substitute(t.value, dict(values))),))
