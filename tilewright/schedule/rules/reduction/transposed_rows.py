"""Reductions over short contiguous rows: tiles of them are transposed in registers, then every lane has a row of its
own.

    for some of the rows:               # softmax of rows of 7 elements, 64 at a time
      copy x[64 rows, 7] as [7, 64]     # vectors of full width from here on
      max, exp, sum, quotient           # each lane its row: no sum across lanes, no vectors that are half empty
      copy [7, 64] to y[64 rows, 7]

The rule `rows`, which asks whether to do so, runs along each row instead: it adds up across lanes once a row, what
follows waits for that, and the last vector of a row is as empty as the row is short. Turning costs about eight shuffles
a vector, there and back; so it is for rows of a few vectors.
"""

from __future__ import annotations

from math import prod

from ....tensor.analysis import flat
from ....tensor.expr import Const, Expr, Op, Var, loads, substitute, variables, walk
from ...machine import Machine, lanes
from ...nest import Store
from ...schedule import Schedule, ScheduleError
from ..common import fuse_outer, load_strides, places_in_one_pass, seeks_place, store_stride
from .memory_hints import FUNCTIONS, has_function, item, keeps_functions, past_caches

#: columns for every sum up to which turning pays off, and times how many with functions such as exp between the sums
MAX_COLUMNS, FUNCTION_TIMES = 20, 2
#: columns up to which it does if functions of all elements are kept until a sum of them is known (softmax): those are
#: written and read once more
MAX_KEPT_COLUMNS = 31
#: and where places of extreme elements are sought: lanes with a row each find them in one pass
MAX_PLACE_COLUMNS = 64
#: steps of a sum that are laid out, at most: code stays small
MAX_UNROLLED = 16


def possible(s: Schedule, alive: list[str], rows: list[str], machine: Machine) -> bool:
    """Whether all operands and results are rows of one loop of columns, one after the other, or the same for all rows;
    and there are vectors full of rows."""
    if not rows or lanes(machine) < 4 or s.extent_or_zero(rows[-1]) < lanes(machine):
        return False
    stores = [s.store(b) for b in alive]
    if any(len(x.targets) != 1 for x in stores) or not any(s.params.get(y) for x in stores for y in _reads(x)):
        return False
    inner = [v for v in s.loops(alive[-1]) if v not in rows]
    if len(inner) > 1 or not 2 <= _columns(s, alive, rows) <= 16 * lanes(machine):
        return False
    return stores[-1].targets[0].init is not None or not inner or store_stride(s, stores[-1], inner[0]) == 1


def _columns(s: Schedule, alive: list[str], rows: list[str]) -> int:
    """How many columns a row has: those of the result, or those that are added up; 0 if that is not constant, or there
    are none (sums over dimensions of one element)."""
    inner = [v for v in s.loops(alive[-1]) if v not in rows]
    sums = [v for b in alive for v in s.store(b).reduction]
    return next((s.extent_or_zero(v) for v in (*inner, *sums)), 0)


def worthwhile(s: Schedule, alive: list[str], rows: list[str], machine: Machine) -> bool:
    """Whether to turn rows, untuned."""
    targets = [s.store(b).targets[0] for b in alive]
    functions = {x.op for t in targets for x in walk(t.value) if isinstance(x, Op)} & FUNCTIONS
    places = any(seeks_place(s, b) for b in alive)
    far = sum(b.size * item(b.dtype) for b in s.params.values()) > machine.l3_bytes
    if far and not functions and not places:
        return False  # far memory takes longer than the sums
    most = MAX_COLUMNS * sum(t.init is not None for t in targets) * (FUNCTION_TIMES if functions else 1)
    most = MAX_PLACE_COLUMNS if places else MAX_KEPT_COLUMNS if keeps_functions(s, alive, rows) else most
    enough = prod(map(s.extent_or_zero, rows)) >= 4 * lanes(machine) * machine.cores
    return lanes(machine) >= 8 and _columns(s, alive, rows) <= most and enough


def schedule(s: Schedule, alive: list[str], rows: list[str], machine: Machine) -> Schedule:
    """The schedule of a kernel with these stages and rows; ScheduleError where an access is of another form."""
    root, width = alive[-1], lanes(machine)
    columns = _columns(s, alive, rows)
    if set(s.loops(root)) == set(rows) and s.store(root).targets[0].init is None:  # a number a row, from sums
        made, alive = root, alive[:-1]
    else:
        made = s.cache_write(root)
        rows = [s.loops(made)[[v for v in s.loops(root) if v not in s.store(root).reduction].index(v)] for v in rows]
    _rows_last(s, [*alive, made], rows[-1])
    order = [*rows, *(v for v in s.loops(made) if v not in rows)]
    if order != s.loops(made):
        s.reorder(*order)
    vectors = _vectors(s, columns, rows, machine)
    outer, inner = s.split(rows[-1], vectors * width)
    at = fuse_outer(s, [*rows[:-1], outer])
    assert at is not None
    for b in reversed(alive):
        s.compute_at(b, at)
    if any(seeks_place(s, b) for b in alive) and s.sample_choice("one_pass", (True, False), True):
        alive = places_in_one_pass(s, alive)
    across = _read_across(s, alive)
    starts = {buffer: _start(s, buffer, blocks[0], at) for buffer, blocks in across.items()}
    for buffer, blocks in across.items():
        _copy_in(s, _copy(s, buffer, blocks, at), at, width)
    for b in alive:
        _across(s, b, at, width)
    _copy_out(s, made, inner, at, width)
    _prefetch(s, alive, starts, at, vectors * width, machine)
    past_caches(s, made, at, machine)
    s.parallel(at)
    return s


def _start(s: Schedule, buffer: str, block: str, at: str) -> Expr:
    """The flat index at which the rows of a task begin in an operand."""
    indices = next(x.indices for x in loads(s.store(block).targets[0].value) if x.buffer == buffer)
    return substitute(flat(s.buffer(buffer), indices), {v: Const(0, "index") for v in _inside(s, block, at)})


def _prefetch(s: Schedule, blocks: list[str], starts: dict[str, Expr], at: str, rows: int, machine: Machine) -> None:
    """Ask for the rows of the next task in the first loop over columns that stays a loop, of exponentials if any."""
    far = sum(b.size * item(b.dtype) for b in s.params.values()) > machine.l2_bytes
    blocks = sorted(blocks, key=lambda b: not has_function(s, b))
    loops = [v for b in blocks for v in _inside(s, b, at) if s.loop(v).kind == "serial" and s.extent_or_zero(v) > 1]
    if not (loops and far and s.sample_choice("prefetch", (True, False), True)):
        return
    for buffer, start in starts.items():
        first = substitute(start, {at: Var(at) + 1}) + Var(loops[0]) * rows
        line = machine.line_bytes // item(s.buffer(buffer).dtype)
        s.prefetch(loops[0], buffer, [first + i for i in range(0, rows, line)])
    s.annotate(loops[0], "near", True)


def _vectors(s: Schedule, columns: int, rows: list[str], machine: Machine) -> int:
    """Vectors of rows of a task: what it reads and makes stays in the nearest cache, and there are tasks enough."""
    width, count = lanes(machine), prod(map(s.extent_or_zero, rows))
    choices = [
        n
        for n in (1, 2, 4, 8)
        if n == 1 or (n * width <= s.extent(rows[-1]) and count >= 2 * n * width * machine.cores)
    ]
    near = [n for n in choices if n <= machine.fma.in_flight and 3 * n * width * columns * 4 <= machine.l1_bytes]
    return s.sample_choice("turned_vectors", choices, max(near, default=1))


def _reads(store: Store) -> set[str]:
    return {x.buffer for t in store.targets for x in loads(t.value)}


def _rows_last(s: Schedule, alive: list[str], row: str) -> None:
    """Lay out what lies between the stages with rows along the last dimension."""
    lane = {alive[-1]: row}
    for i in reversed(range(len(alive) - 1)):
        block, target = alive[i], s.store(alive[i]).targets[0]
        for x in (x for b in alive[i + 1 :] for x in loads(s.store(b).targets[0].value)):
            if x.buffer == target.buffer:
                reader = next(b for b in alive[i + 1 :] if any(y is x for y in walk(s.store(b).targets[0].value)))
                found = [d for d, e in enumerate(x.indices) if lane[reader] in variables(e)]
                v = target.indices[found[0]] if len(found) == 1 else None
                if not isinstance(v, Var) or lane.get(block, v.name) != v.name:
                    raise ScheduleError(f"the rows of {target.buffer} are no dimension of it", stage="schedule")
                lane[block] = v.name
        if block not in lane:
            raise ScheduleError(f"{target.buffer} does not belong to a row", stage="schedule")
        _to_the_end(s, target.buffer, target.indices.index(Var(lane[block])))


def _to_the_end(s: Schedule, buffer: str, d: int) -> None:
    n = len(s.buffer(buffer).shape)
    if d != n - 1:
        s.set_order(buffer, (*[x for x in range(n) if x != d], d))


def _lane(s: Schedule, b: str) -> str:
    """The loop over rows of a stage that makes a temporary."""
    (name,) = variables(s.store(b).targets[0].indices[-1])
    return name


def _read_across(s: Schedule, blocks: list[str]) -> dict[str, list[str]]:
    """The operands whose rows do not lie side by side, with the stages that read them."""
    found: dict[str, list[str]] = {}
    for b in blocks:
        for x, c in load_strides(s, s.store(b), _lane(s, b)):
            if c not in (0, 1) and b not in found.setdefault(x.buffer, []):
                found[x.buffer].append(b)
    return found


def _copy(s: Schedule, buffer: str, blocks: list[str], at: str) -> str:
    """A copy of the rows of a task with its columns as rows."""
    indices = next(x.indices for x in loads(s.store(blocks[0]).targets[0].value) if x.buffer == buffer)
    across = [d for d, e in enumerate(indices) if _lane(s, blocks[0]) in variables(e)]
    if len(across) != 1:
        raise ScheduleError(f"the rows of {buffer} are no dimension of it", stage="schedule")
    last = len(indices) - 1
    return s.cache_read(tuple(blocks), buffer, at, order=(*[x for x in range(last + 1) if x != across[0]], across[0]))


def _copy_in(s: Schedule, b: str, at: str, width: int) -> None:
    """Copy rows as columns, in tiles that targets can transpose in registers."""
    lane = _lane(s, b)
    inside = _inside(s, b, at)
    column = next((v for v in reversed(inside) if v != lane), None)
    if column is None:
        raise ScheduleError(f"block {b} copies no rows", stage="schedule")
    rest = [v for v in inside if v not in (lane, column)]
    some, lane = s.split(lane, width)
    outer, column = s.split(column, width)
    s.reorder(some, *rest, outer, column, lane)
    s.unroll(column)
    s.vectorize(lane)


def _copy_out(s: Schedule, b: str, lane: str, at: str, width: int) -> None:
    """Copy columns as rows; or results of which each row has one."""
    column = next((v for v in reversed(_inside(s, b, at)) if v != lane), None)
    if column is None:
        unrolled, vector = s.split(lane, width)
        s.unroll(unrolled)
        s.vectorize(vector)
        return
    tile = min(width, 1 << (s.extent(column) - 1).bit_length())
    some, lane = s.split(lane, tile)
    outer, column = s.split(column, tile)
    s.reorder(some, outer, lane, column)
    s.unroll(lane)
    s.vectorize(column)


def _across(s: Schedule, b: str, at: str, width: int) -> None:
    """Let lanes run across rows, innermost; sums stay in registers."""
    lane = _lane(s, b)
    loops = _inside(s, b, at)
    if loops[-1] != lane:
        s.reorder(*[v for v in loops if v != lane], lane)
    if s.store(b).targets[0].init is not None:
        for t in s.store(b).targets:
            s.set_scope(t.buffer, "register")
        for v in s.store(b).reduction:
            if s.extent(v) <= MAX_UNROLLED and len(s.store(b).targets) == 1:
                s.unroll(v)
    unrolled, vector = s.split(lane, width)
    s.unroll(unrolled)
    s.vectorize(vector)


def _inside(s: Schedule, b: str, at: str) -> list[str]:
    return s.loops(b)[s.loops(b).index(at) + 1 :]


__all__ = ["possible", "schedule", "worthwhile"]
