"""Reductions over rows with the elementwise work around them (softmax, layer norm, mean): each thread takes rows, each
row stays in cache.

Sums along a row run in several vector accumulators that are combined at the end in a fixed order.
"""

from __future__ import annotations

import contextlib
from math import prod

from ....support.sizes import is_open, lowest, typical
from ....tensor.analysis import flat, looked_up
from ....tensor.expr import COMBINERS, Const, Expr, Op, Var, loads, simplify, substitute, variables, walk
from ....tensor.kernel import Kernel, Stage
from ...decisions import Decisions
from ...machine import Machine, lanes
from ...nest import Store
from ...region import all_ranges, span
from ...schedule import Schedule, ScheduleError
from ..common import coefficient, fuse_outer, inline_producers, load_strides, merge_loops, store_stride
from . import transposed_rows as turned_rows
from . import tree_reduction as added_rows
from .memory_hints import FarRows, has_function, keeps_functions, past_caches

NAME = "rows"
PRIORITY = 30
#: rows that go through the stages together, of those that are short (in cache lines), and of those whose stages run
#: beside those of other rows: beyond, nothing more is gained. What must fit a cache is asked of the machine
MAX_ROWS, MAX_SHORT_ROWS, SHORT_LINES, MAX_STAGGERED_ROWS = 8, 16, 4, 32


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if kernel.opaque:
        return "an operator with a loop nest of its own"
    reductions = [s for s in kernel.stages if s.targets[0].init is not None]
    if not reductions:
        return "it has no reduction"
    s = Schedule(kernel, decisions=decisions)
    inline_cheap(s, kernel)
    alive = [b for b in (x.name for x in kernel.stages) if exists(s, b)]
    root = alive[-1]
    rows = row_loops(s, kernel, root)
    if rows is None:
        return "the last stage does not work row by row"
    if added_rows.possible(s, alive, rows, machine):
        default = added_rows.worthwhile(s, alive, rows, machine)
        if s.sample_choice("together", (False, True), default):
            try:
                return added_rows.schedule(s, alive, rows, machine)
            except ScheduleError:  # a sum that does not run along rows
                return apply(kernel, machine, {**(decisions or {}), "together": False})
    if turned_rows.possible(s, alive, rows, machine):
        default = turned_rows.worthwhile(s, alive, rows, machine)
        if s.sample_choice("turned", (False, True), default):
            try:
                return turned_rows.schedule(s, alive, rows, machine)
            except ScheduleError:  # an access of another form: along the rows
                return apply(kernel, machine, {**(decisions or {}), "turned": False})
    try:
        return _schedule(s, alive, rows, machine)
    except ScheduleError as e:
        return e.message


def _schedule(s: Schedule, alive: list[str], rows: list[str], machine: Machine) -> Schedule:
    root = alive[-1]
    order = [v for v in s.loops(root) if v in rows] + [v for v in s.loops(root) if v not in rows]
    if s.loops(root) and order != s.loops(root):
        s.reorder(*order)
    lag = _lag(s, alive, rows, machine)
    together = _together(s, alive, rows, machine, lag)
    if together > 1:
        rows = [*rows[:-1], s.split(rows[-1], together)[0]]
    at = fuse_outer(s, rows) if rows else None
    if at is not None:  # the stages of a task's rows run one after another, on one thread
        for b in reversed(alive[:-1]):
            s.compute_at(b, at)
    for b in alive:
        _merge_inside(s, b, [v for v in s.loops(b) if v != at], together > 1)
    far = FarRows.of(s, alive, at) if at is not None else None
    side_by_side = together > 1 and _reads_beside_rows(s, root)
    for b in alive:
        inner = [v for v in s.loops(b) if v != at]
        if together > 1 and lag and len(inner) == 1:
            continue  # one number a row is made along with the row
        if together > 1 and len(inner) == 1 and b != root and has_function(s, b):
            _numbers(s, b, inner[0])
        else:
            _vectorize(s, b, inner, machine, 1 if b == root and side_by_side else machine.chains)
    if side_by_side:
        _rows_inside(s, root)
    for b in alive:
        _merge(s, b, _reader(s, alive, b))
    _pad(s, alive, lanes(machine))
    if at is not None:
        if far is not None:
            far.prefetch(s, alive, machine)
        past_caches(s, root, at, machine)
        if together > 1 and lag:
            with contextlib.suppress(ScheduleError):  # then stage after stage
                _stagger(s, alive, at, lag)
        s.parallel(at)
    return s


def _pad(s: Schedule, alive: list[str], width: int) -> None:
    """Let rows that are kept between stages begin and end with whole vectors: the next stage reads them at once."""
    for b in alive[:-1]:
        for t in s.store(b).targets:
            kept = s.temporaries.get(t.buffer)
            if kept is not None and kept.scope == "local" and kept.shape and kept.shape[-1] > width:
                s.pad(t.buffer, width)


def _lag(s: Schedule, alive: list[str], rows: list[str], machine: Machine) -> int:
    """How many rows a stage is behind the one before, in one loop over the rows of a task; 0 for stage after stage.

    Exponentials keep the multipliers busy, the stages around them wait: for loads, and for the sum across the lanes of
    a row. Of short rows the processor sees several at once, so these stages can take place beside each other."""
    inner = [v for v in s.loops(alive[-1]) if v not in rows]
    if not rows or not keeps_functions(s, alive, rows) or _contiguous(s, s.store(alive[-1]), inner) not in inner:
        return 0
    short = lanes(machine) < prod(map(s.extent_or_zero, inner)) <= machine.seen_vectors * lanes(machine)
    return s.sample_choice("lag", (0, 2, 3), 2 if short and machine.many_registers else 0)


def _stagger(s: Schedule, alive: list[str], at: str, lag: int) -> None:
    """Run the stages in one loop over rows."""
    loops: list[str] = []
    lags: list[int] = []
    for b in alive:
        row, *rest = s.loops(b)[s.loops(b).index(at) + 1 :]
        if row not in loops:
            lags.append(lags[-1] + (lag if rest else 0) if loops else 0)
            loops.append(row)
    s.stagger(loops, lags)


def _merge_inside(s: Schedule, block: str, inner: list[str], together: bool) -> None:
    """Make one loop of those that walk along a row, but keep the loop over the rows of a task."""
    own = inner[1:] if together else inner
    reduction = set(s.store(block).reduction)
    if len(own) > 1 and (not reduction or reduction.issuperset(own)):
        merge_loops(s, block, own)


def _together(s: Schedule, alive: list[str], rows: list[str], machine: Machine, lag: int) -> int:
    """How many rows a task takes through its stages together: what ends the stage of one row, a sum across lanes, then
    runs beside the next one's. They, the next task's and the results must fit the nearest cache (with a `lag`, what is
    read, now and next, is in use for a short time only), and there must be tasks enough."""
    root = alive[-1]
    inner = [v for v in s.loops(root) if v not in rows]
    if not rows or len(alive) == 1 or _contiguous(s, s.store(root), s.loops(root)) not in inner:
        return 1
    size = 4 * prod(map(s.extent_or_zero, inner))
    tasks = prod(map(s.extent_or_zero, rows))
    held = 3 + keeps_functions(s, alive, rows)  # what is read, now and next, exponentials, results
    held = 2 if lag else held
    fits = [
        n
        for n in (1, 2, 4, 8, 16, 32)
        if n == 1
        or (n <= s.extent_or_zero(rows[-1]) and held * n * size < machine.l1_bytes and tasks >= 4 * n * machine.cores)
    ]
    fits = [n for n in fits if n == 1 or _rows_alone(s, root, rows[-1], n)]
    most = MAX_STAGGERED_ROWS if lag else MAX_SHORT_ROWS if size <= SHORT_LINES * machine.line_bytes else MAX_ROWS
    return s.sample_choice("rows", fits, min(max(fits), most))


def _rows_alone(s: Schedule, root: str, row: str, n: int) -> bool:
    """Whether the rectangle around what n neighbouring iterations of `row` read of other stages has n rows: a window
    of every other row has more, and all of them would be made."""
    ranges = {**all_ranges(s.body), "task": (0, -(-s.extent(row) // n) - 1), "part": (0, n - 1)}
    inner: dict[str, Expr] = {"part": Const(n, "index")}
    of = {row: Var("task") * n + Var("part")}
    for x in {x for t in s.store(root).targets for x in loads(t.value)}:
        if x.buffer in s.temporaries:
            spans = [span(simplify(substitute(i, of), ranges), inner, ranges) for i in x.indices]
            if None in spans or prod(found[1] for found in spans if found) > n:
                return False
    return True


def _numbers(s: Schedule, block: str, row: str) -> None:
    """Compute what is one number a row for all rows of a task at once."""
    if store_stride(s, s.store(block), row) == 1 and all(
        c in (0, 1) or (c is None and looked_up(x)) for x, c in load_strides(s, s.store(block), row)
    ):
        s.vectorize(row)


def _reads_beside_rows(s: Schedule, root: str) -> bool:
    """Whether the last stage reads vectors that are the same for all rows of a task (a scale, a bias)."""
    _, row, *rest = s.loops(root)
    strides = [dict(load_strides(s, s.store(root), v)) for v in (row, rest[-1])]
    return any(c == 0 and strides[1][x] == 1 for x, c in strides[0].items())


def _rows_inside(s: Schedule, root: str) -> None:
    """Let what is the same for all rows of a task be read once for them."""
    _, row, *rest = s.loops(root)
    serial = [v for v in rest if s.loop(v).kind == "serial"]
    if len(serial) == 1:
        s.reorder(serial[0], row)
        s.unroll(row)


def _reader(s: Schedule, alive: list[str], block: str) -> str | None:
    """The sum that takes in what the elementwise `block`, just before it, makes."""
    i = alive.index(block)
    if i + 1 >= len(alive) or s.stages[block].targets[0].init is not None:
        return None
    after = s.stages[alive[i + 1]]
    return after.name if after.targets[0].init is not None and s.stages[block].buffer in after.reads else None


def _merge(s: Schedule, block: str, reader: str | None) -> None:
    """Let a sum take in elements as they are made."""
    for _ in range(len(s.loops(block)) if reader else 0):
        own, other = s.loops(block), s.loops(reader)
        apart = next((i for i, (v, w) in enumerate(zip(own, other, strict=False)) if v != w), None)
        if apart is None or s.loop(own[apart]).kind != "serial":
            return
        try:
            s.merge(own[apart], other[apart])
        except ScheduleError:
            return


def exists(s: Schedule, block: str) -> bool:
    try:
        s.store(block)
    except ScheduleError:
        return False
    return True


def inline_cheap(s: Schedule, kernel: Kernel) -> None:
    """Inline elementwise stages, but for those that cost more than a few arithmetic operations and are read more than
    once an element."""
    keep, sums = set(), {t.buffer for x in kernel.stages for t in x.targets if t.init is not None}
    inside: dict[str, list[str]] = {}  # what an element of an inlined stage computes
    for stage in kernel.stages:
        readers = sum(stage.buffer in other.reads for other in kernel.stages)
        if readers and stage.buffer in s.temporaries and not stage.reduction and stage.targets[0].init is None:
            ops = [*_operations(stage), *(op for b in sorted(stage.reads) for op in inside.get(b, ()))]
            # what is done once a row is computed for all rows of a task, before the loops that wait for it
            once = _expensive(_operations(stage)) and bool(stage.reads & sums)
            once = once and _elements(stage) < _elements(kernel.stages[-1])
            default = once or (readers > 1 and _expensive(ops))
            if (readers > 1 or once) and s.sample_choice(f"keep_{stage.name}", (True, False), default):
                keep.add(stage.name)
            elif _elements(stage) >= _elements(kernel.stages[-1]):  # not what is one number a row
                inside[stage.buffer] = ops
    inline_producers(s, keep)


def _elements(stage: Stage) -> int:
    return prod(n for _, n in stage.parallel)


def _operations(stage: Stage) -> list[str]:
    return [x.op for t in stage.targets for x in walk(t.value) if isinstance(x, Op) and x.dtype != "index"]


def _expensive(ops: list[str]) -> bool:
    """Whether computing this again takes longer than to read it."""
    cheap = {
        "addf",
        "subf",
        "mulf",
        "negf",
        "maximumf",
        "minimumf",
        "select",
        "addi",
        "subi",
        "muli",
        "absf",
        "extf",
        "truncf",
    }
    return any(o not in cheap for o in ops) or len(ops) > 4


def row_loops(s: Schedule, kernel: Kernel, root: str) -> list[str] | None:
    """The loops of the last stage that enumerate rows: those that index what the reductions made."""
    stage = s.store(root)
    if stage.targets[0].init is not None:
        return [v for v in s.loops(root) if v not in stage.reduction]
    if not s.loops(root):
        return []  # one number: all is one row
    found = _row_variables(s, kernel, root, all_ranges(s.body))
    return None if found is None else [v for v in s.loops(root) if v in found]


def _row_variables(s: Schedule, kernel: Kernel, block: str, ranges: dict[str, tuple[int, int]]) -> set[str] | None:
    """The variables of a block that index what reductions made, or the rows of another result that it reads."""
    made = {x.buffer: x for x in kernel.stages if exists(s, x.name) and x.name != block}
    found: set[str] = set()
    seen = False
    for x in dict.fromkeys(x for v in s.loops(block) for x, _ in load_strides(s, s.store(block), v)):
        if x.buffer not in made:
            continue
        positions: list[int] | None = list(range(len(x.indices)))
        if made[x.buffer].targets[0].init is None:
            inner = _row_variables(s, kernel, made[x.buffer].name, ranges)
            own = s.store(made[x.buffer].name).targets[0].indices
            positions = None if inner is None else [d for d, i in enumerate(own) if variables(i) & inner]
        if positions is not None:
            seen = True
            found |= set().union(*[variables(simplify(x.indices[d], ranges)) for d in positions])
    return found if seen else None


def _vectorize(s: Schedule, block: str, inner: list[str], machine: Machine, vectors: int) -> None:
    """Vectorize the contiguous inner loop of a block, laying out some vectors; reductions along it get an accumulator
    for each lane of so many. (A block whose elements a sum takes in goes in steps of the sum's.)"""
    if not inner:
        return
    store = s.store(block)
    width = lanes(machine)
    n = _contiguous(s, store, inner)
    if n is None or s.extent_or_zero(n) < 4:
        return
    if n != inner[-1]:
        try:
            s.reorder(*[v for v in inner if v != n], n)
        except ScheduleError:
            return
    size = typical(s.extent(n))
    if n not in store.reduction:
        if size > width:
            counts = [v for v in (1, 2, 4) if v * width <= size]
            chosen = s.sample_choice(f"vectors_{block}", counts, min(vectors, size // width))
            n = s.split(n, chosen * width)[1]
            if chosen > 1:
                unrolled, n = s.split(n, width)
                s.unroll(unrolled)
        s.vectorize(n)
        return
    t = store.targets[0]
    known = isinstance(t.value, Op) and t.value.op in COMBINERS and len(store.targets) == 1
    if not known:
        return
    if size < width:
        s.vectorize(n)
        return
    most = size // width
    if is_open(s.extent(n)):  # of an unknown number of elements so many accumulators as are never empty
        most = max(lowest(s.extent(n)) // width, 1)
    counts = [c for c in (1, 2, 4, 8) if c <= most]
    count = s.sample_choice(f"accumulators_{block}", counts, min(vectors, most))
    _, part = s.split(n, count * width)
    combine = s.rfactor(block, part)
    buffer = next(b for b in s.temporaries if b.startswith(f"{t.buffer}_r"))
    s.set_scope(buffer, "register")
    for b in (block, combine):
        v = s.loops(b)[-1]
        o, lane = s.split(v, width)
        s.unroll(o)
        s.vectorize(lane)


def _contiguous(s: Schedule, store: Store, inner: list[str]) -> str | None:
    """The inner loop along which most accesses are contiguous."""
    best: tuple[int, str] | None = None
    for v in reversed(inner):
        strides = [c for _, c in load_strides(s, store, v)]
        if v not in store.reduction:
            strides.append(store_stride(s, store, v))
        bad = sum(c not in (0, 1) for c in strides)
        if 1 in strides and (best is None or bad < best[0]):
            best = (bad, v)
    return best[1] if best else None


__all__ = ["apply", "coefficient", "flat"]
