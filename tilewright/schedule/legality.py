"""Legality checks of loop nests, whatever primitives made them. `check` gives the first reason why a nest is not legal.

Primitives refuse what they can see to be wrong; what depends on the whole nest (threads, lanes, unfinished sums,
variables out of scope) is checked here after each of them, and a primitive that breaks a rule is undone. Of a rule's
steps only the last is checked, and each if that is not legal (`rules.schedule`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial, reduce
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from ..support.sizes import current, is_open, larger, less, smaller, surely, typically
from ..tensor.analysis import flat
from ..tensor.expr import (
    COMBINERS,
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    Target,
    Var,
    bounds,
    const_value,
    from_linear,
    linear,
    loads,
    simplify,
    variables,
)
from .nest import THREAD, For, Seq, Stmt, Store, children, reads, stores, substitute_vars, walk_stmts, writes
from .partial_tiles import Ranges, Tiles
from .region import all_ranges

#: the memories of every machine, which each thread has for itself
PRIVATE = ("local", "register")
#: note on a loop that may run in one with those before and after it: by how many iterations it is behind the first
LAG = "lag"
#: loops up to this long are enumerated to see whether iterations collide
_ENUMERATE = 1 << 20


def check(body: Stmt, params: dict[str, Buffer], temporaries: dict[str, Buffer]) -> str | None:
    """The first rule that a nest breaks, in words; None if it is legal."""
    buffers = {**temporaries, **params}
    top = body.stmts if isinstance(body, Seq) else (body,)
    reason = next((r for s in top if (r := _known(s, "alone", partial(_alone, s, buffers), params, buffers))), None)
    return reason or (_order(body) if _out_of_order(top) else None) or _parallel(top, params, buffers)


def _alone(s: Stmt, buffers: dict[str, Buffer]) -> str | None:
    """The first rule that an outermost statement breaks by itself."""
    shadowed = s.facts.free or any(f.var in f.body.facts.names for f in s.loops)  # perhaps: then in words
    reason = (_scopes(s, set()) if shadowed else None) or _accumulators(s, buffers) or _order(s)
    lanes = [f for f in s.loops if f.kind == "vector"]
    return reason or next((r for f in lanes if (r := _vector(f, buffers))), None)


T = TypeVar("T")


def _known(
    s: Stmt, what: object, find: Callable[[], T], params: Mapping[str, Buffer], buffers: Mapping[str, Buffer]
) -> T:
    """What is found out about a statement, once for the same memory: most steps of a schedule leave most loops alone,
    so that a step costs what it changes and not what there is."""
    key = what, tuple([(n, buffers[n].shape, n in params) for n in s.used if n in buffers])
    if key not in s.known:
        s.known[key] = find()
    found: T = s.known[key]
    return found


# ---- scopes and sums -----------------------------------------------------------------------------------------------


def _scopes(s: Stmt, bound: set[str]) -> str | None:
    if free := s.variables - bound:
        return f"loop variable {', '.join(sorted(free))} would be used outside its loop"
    if isinstance(s, For):
        if s.var in bound:
            return f"two nested loops would have the name {s.var}"
        bound = bound | {s.var}
        ahead = {v for _, i in s.prefetch for v in variables(i)} - bound
        if ahead:
            return f"{', '.join(sorted(ahead))} would be no loop around what {s.var} prefetches"
    if isinstance(s, Store) and not set(s.reduction) <= bound:
        return f"block {s.block} would reduce over {', '.join(set(s.reduction) - bound)}, a loop that is not around it"
    return next((r for c in children(s) if (r := _scopes(c, bound))), None)


def _accumulators(body: Stmt, buffers: dict[str, Buffer]) -> str | None:
    """Nothing may touch a sum while its reduction loops run, and they must not select the element."""

    def touched(s: Stmt, other: Stmt) -> bool:
        """Whether a block touches elements that may be those of a sum."""
        both = writes(s) & (writes(other) | reads(other))
        return any(n not in buffers or not _apart(s, other, n, buffers[n], all_ranges(body)) for n in both)

    for s in [x for x in body.stores if x.reduction]:
        mixed = set(s.reduction) & {v for t in s.targets for i in t.indices for v in variables(i)}
        if mixed:
            return f"loop {', '.join(mixed)} would both sum over and select the element that block {s.block} writes"
        outermost = next(f for f in body.loops if f.var in s.reduction and any(x is s for x in f.body.stores))
        for other in outermost.stores:
            if other is not s and touched(s, other):
                own = ", ".join(sorted(writes(s)))
                return f"block {other.block} would use {own} before block {s.block} has finished it"
    return None


def _out_of_order(top: tuple[Stmt, ...]) -> bool:
    """Whether an outermost statement reads what a later one writes."""
    last = {name: i for i, s in enumerate(top) for name in writes(s)}
    return any(last.get(name, i) > i for i, s in enumerate(top) for name in reads(s))


def _order(body: Stmt) -> str | None:
    """What a block reads must have been written by the blocks before it."""
    everything = stores(body)
    last = {name: i for i, s in enumerate(everything) for name in writes(s)}
    for i, s in enumerate(everything):
        for name in reads(s) - writes(s):
            if last.get(name, -1) > i:
                return f"block {s.block} would read {name} before block {everything[last[name]].block} has written it"
    return None


def is_update(t: Target) -> bool:
    """Whether a target's new value is ``combine(old value, something else)`` with a combiner that may be reordered."""
    v = t.value
    if not (isinstance(v, Op) and v.op in COMBINERS and len(v.args) == 2):
        return False
    own = [isinstance(a, Load) and a.buffer == t.buffer and a.indices == t.indices for a in v.args]
    other = v.args[0] if own[1] else v.args[1]
    return any(own) and not any(x.buffer == t.buffer for x in loads(other))


def self_dependent(s: Store) -> bool:
    """Whether a store reads what it writes anywhere but at the element that it writes."""
    own: dict[str, list[tuple[Expr, ...]]] = {}
    for t in s.targets:
        own.setdefault(t.buffer, []).append(t.indices)
    return any(x.buffer in own and own[x.buffer] != [x.indices] for x in s.loads)


# ---- iterations of two loops ----------------------------------------------------------------------------------------


def crosses_iterations(var: str, a: Stmt, b: Stmt, buffers: dict[str, Buffer], ranges: Ranges) -> str | None:
    """The first buffer of which an iteration of ``for var: a`` and another one of ``for var: b`` may touch the same
    element, one of them writing; None if there is none."""
    inner = {x.var for s in (a, b) for x in walk_stmts(s) if isinstance(x, For)}
    for name in sorted((writes(a) & (writes(b) | reads(b))) | (reads(a) & writes(b))):
        if _rows_of_their_own(var, [p for s in (a, b) for x in stores(s) for p in _places(x, name)], inner):
            continue
        spans = {
            _span(flat(buffers[name], p), var, s, ranges) for s in (a, b) for x in stores(s) for p in _places(x, name)
        }
        parts = {x[0] for x in spans if x is not None}
        if None in spans or len(parts) != 1:
            return name
        step = abs(dict(next(iter(parts))).get(Var(var), 0))
        reach = reduce(larger, (x[2] for x in spans if x)) - reduce(smaller, (x[1] for x in spans if x))
        if not less(reach, step):
            return name
    return None


def iterations_cross(loops: list[For], buffers: dict[str, Buffer], ranges: Ranges) -> str | None:
    """Why the iterations of loops that follow each other cannot take turns, each in its order; None if they can."""
    if any(f.kind != "serial" or f.extent != loops[0].extent for f in loops):
        return f"{', '.join(f.var for f in loops)} do not have the same iterations one by one"
    v = loops[0].var
    bodies = [substitute_vars(f.body, {f.var: Var(v)}) for f in loops]
    for i, a in enumerate(bodies):
        for f, b in zip(loops[i + 1 :], bodies[i + 1 :], strict=True):
            crossing = crosses_iterations(v, a, b, buffers, ranges)
            if crossing:
                return f"an iteration of {f.var} would touch what another one of {loops[i].var} does to {crossing}"
    return None


def _rows_of_their_own(var: str, places: list[tuple[Expr, ...]], inner: set[str]) -> bool:
    """Whether some index is the same at all places, another one in every iteration of `var`."""
    for indices in zip(*places, strict=True):
        terms = linear(indices[0])[0]
        if terms.get(Var(var)) and all(i == indices[0] for i in indices):
            others = {v for t in terms if t != Var(var) for v in variables(t)}
            if not others & (inner | {var}) and not any(loads(t) for t in terms):
                return True
    return False


def _span(position: Expr, var: str, s: Stmt, ranges: Ranges) -> tuple[frozenset[Any], int, int] | None:
    """A position as its terms in `var` and outer loops, and the least and largest rest that the loops inside `s` add;
    None if it is not linear in `var`."""
    inner = {x.var for x in walk_stmts(s) if isinstance(x, For)}
    terms, low = linear(simplify(position, ranges))
    high, fixed = low, {}
    for t, c in terms.items():
        if not variables(t) & inner and not loads(t):
            if var in variables(t) and t != Var(var):
                return None
            fixed[t] = c
            continue
        limit = bounds(t, ranges)
        if limit is None or var in variables(t):
            return None
        ends = c * limit[0], c * limit[1]
        low, high = low + smaller(*ends), high + larger(*ends)
    return frozenset(fixed.items()), low, high


# ---- lanes ---------------------------------------------------------------------------------------------------------


def _vector(f: For, buffers: dict[str, Buffer]) -> str | None:
    """Statements of a vector loop run for all lanes at once, one statement after another."""
    if any(isinstance(s, For) and s.note("dot") is None for s in walk_stmts(f.body)):
        return f"vectorized loop {f.var} would not be innermost"
    inside = stores(f.body)
    for s in inside:
        if self_dependent(s):
            return f"block {s.block} reads elements that other lanes of {f.var} write"
        for t in s.targets:
            fixed = all(f.var not in variables(i) for i in t.indices)
            if fixed and not (len(s.targets) == 1 and is_update(t)):
                return (
                    f"lanes of {f.var} would write one element of {t.buffer}, "
                    f"and block {s.block} has no known way to combine them"
                )
        for other in inside:
            shared = writes(s) & (reads(other) | writes(other)) if other is not s else set()
            for name in shared:
                places = set(_places(s, name)) | set(_places(other, name))
                if name not in reads(s) | reads(other) and _in_turns(places, buffers[name], f.var):
                    continue
                if len(places) != 1 or all(f.var not in variables(i) for i in next(iter(places))):
                    return (
                        f"blocks {s.block} and {other.block} use different elements of {name} in the lanes of {f.var}"
                    )
    return None


def _in_turns(places: set[tuple[Expr, ...]], buffer: Buffer, var: str) -> bool:
    """Whether lanes write elements between each other's: less apart in one lane than neighbouring lanes are."""
    forms = [linear(from_linear(*linear(flat(buffer, p)))) for p in places]  # x // n * n + x % n is x
    terms, constants = forms[0][0], [c for _, c in forms]
    others = {v for t in terms if t != Var(var) for v in variables(t)}
    apart = abs(terms.get(Var(var), 0))
    return (
        all(t == terms for t, _ in forms)
        and var not in others
        and surely(lambda: max(constants) - min(constants) < apart)
    )


def _places(s: Store, name: str) -> Iterator[tuple[Expr, ...]]:
    yield from (t.indices for t in s.targets if t.buffer == name)
    yield from (x.indices for x in s.loads if x.buffer == name)


# ---- threads -------------------------------------------------------------------------------------------------------


def _parallel(top: tuple[Stmt, ...], params: dict[str, Buffer], buffers: dict[str, Buffer]) -> str | None:
    """Iterations run on different threads, and no thread waits for another before the kernel ends."""
    if any(THREAD in c.facts.axes for s in top for c in s.parts):
        return "a parallel loop would not be outermost"
    if not any(map(_is_parallel, top)):
        return None
    writers = Counter(n for s in top for n in writes(s))
    for s in top:
        if isinstance(s, For) and s.kind == THREAD:
            outside = frozenset(n for n in writes(s) if writers[n] > 1)
            find = partial(_iterations, s, outside, params, buffers)
            reason: str | None = _known(s, ("iterations", outside), find, params, buffers)
            if reason:
                return reason
    users: dict[str, list[Stmt]] = {n: [] for n in sorted(writers)}
    for s in top:
        for n in (writes(s) | reads(s)) & users.keys():
            users[n].append(s)
    return next((r for n, at in users.items() if len(at) > 1 and (r := _between(at, n, params, buffers))), None)


def _is_parallel(s: Stmt) -> bool:
    return isinstance(s, For) and s.kind == THREAD


def _iterations(f: For, outside: Set[str], params: dict[str, Buffer], buffers: dict[str, Buffer]) -> str | None:
    """Each iteration must write elements of its own, and read no results but those.

    So must it of memory that every thread has for itself, if that is written `outside` of the loop too: what another
    iteration has put there may be on another thread."""
    ranges, tiles = all_ranges(f), Tiles.of(f)
    for s in stores(f.body):
        if f.var in s.reduction:
            return f"block {s.block} reduces over the parallel loop {f.var}"
        for t in s.targets:
            if t.buffer in params and not _own_element(t, params[t.buffer], f, ranges, tiles):
                return f"iterations of {f.var} cannot be shown to write different elements of {t.buffer}"
    trip = f.trip
    if trip is not None and surely(lambda: trip <= 1):
        return None
    made = {n for n in writes(f) if n in params or n in outside}
    written = [t for s in stores(f) for t in s.targets]
    for name in made:
        own = [t for t in written if t.buffer == name]
        if name not in reads(f) and len(own) == 1 and own[0].init is not None:
            continue  # a sum, of which `distinct` has shown all
        places = {flat(buffers[name], p) for s in stores(f.body) for p in _places(s, name)}
        known = {**ranges, **tiles.ranges}
        parts = {own_part(tiles.merged(p, ranges), f.var, known) for p in places}
        if len(parts) > 1 or (None in parts and (name in reads(f) or len(places) > 1)):
            # tiles that are one loop with others do not merge: then none may
            parts = {own_part(simplify(p, ranges), f.var, ranges) for p in places}
            if (len(parts) > 1 or None in parts) and not _own_enumerated(name, f, ranges):
                return f"iterations of {f.var} would read or write each other's elements of {name}"
    return None


def _own_element(t: Target, buffer: Buffer, f: For, ranges: Ranges, tiles: Tiles) -> bool:
    """Whether different iterations of a loop write different elements: by their indices, or by where these lie."""
    if distinct(t.indices, f, ranges, tiles):
        return True
    if not is_open(*buffer.shape):
        return False
    terms, constant = linear(simplify(flat(buffer, t.indices), ranges))
    return distinct((from_linear(terms, constant, ranges),), f, ranges, tiles)


def distinct(indices: tuple[Expr, ...], f: For, ranges: Ranges, tiles: Tiles | None = None) -> bool:
    """Whether different iterations of a loop always have different indices, whatever the loops inside do."""
    trip = f.trip
    if trip is not None and surely(lambda: trip <= 1):
        return True
    tiles = tiles or Tiles()
    known = decode([tiles.merged(i, ranges) for i in indices], {**ranges, **tiles.ranges}, tiles)
    if Var(f.var) in known:
        return True
    if is_open(trip) and Var(f.var) in decode([simplify(i, ranges) for i in indices], ranges, Tiles()):
        return True  # tiles of tiles do not merge; what is known is enumerated
    own = [t for t in known if variables(t) == {f.var}]
    computed = not any(loads(t) for t in own)
    short = own and computed and trip and not is_open(trip) and trip <= _ENUMERATE
    if short and len({*zip(*_values(own, {f.var: np.arange(f.trip or 0)}).tolist(), strict=True)}) == f.trip:
        return True
    return _distinct_enumerated([simplify(i, ranges) for i in indices], f, ranges)


def covers(indices: tuple[Expr, ...], loops: list[For], size: int, ranges: Ranges) -> bool:
    """Whether constant loops around a store visit every element of a buffer of `size` elements, each once."""
    total = 1
    for f in loops:
        total *= f.trip or 0
    return total == size and all(distinct(indices, f, ranges) for f in loops)


def decode(known: list[Expr], ranges: Ranges, tiles: Tiles) -> set[Expr]:
    """The terms whose values follow from the values of some index expressions.

    ``8*i + j`` with j in 0..7 tells i and j, and ``x // 8`` together with ``x % 8`` tells x.
    """
    found: set[Expr] = set()
    todo = list(known)
    while todo:
        e = todo.pop()
        reach = 0
        for c, t in _by_step(linear(e)[0]):
            limit = bounds(t, ranges)
            if limit is not None and limit[0] == limit[1]:
                continue  # it has one value only
            if limit is None or not less(reach, c):
                break  # this and the larger ones cannot be told apart
            reach += c * (limit[1] - limit[0])
        else:
            fresh = set(linear(e)[0]) - found
            found |= fresh
            for t in fresh:
                if isinstance(t, Var) and t.name in tiles.parts:
                    todo += tiles.parts[t.name]
                if isinstance(t, Op) and t.op in ("floordivsi", "remsi"):
                    other = Op("remsi" if t.op == "floordivsi" else "floordivsi", t.args, "index")
                    if other in found:
                        todo.append(t.args[0])
                    todo += _quotients(t, found)
    return found


def _quotients(t: Op, found: Set[Expr]) -> list[Expr]:
    """``x // a`` where ``x // (a*n)`` and ``x // a % n`` are known, of which `t` is one."""
    rests = [t] if t.op == "remsi" else [r for r in found if isinstance(r, Op) and r.op == "remsi"]
    known: list[Expr] = []
    for r in rests:
        y, n = r.args[0], const_value(r.args[1])
        a = const_value(y.args[1]) if isinstance(y, Op) and y.op == "floordivsi" else None
        if n and a and isinstance(y, Op):
            whole = Op("floordivsi", (y.args[0], Const(a * n, "index")), "index")
            if whole == t or (r is t and whole in found):
                known.append(y)
    return known


def _by_step(terms: Mapping[Expr, int]) -> list[tuple[int, Expr]]:
    """Terms with how far apart their values are, small steps first. Of sizes that are not known this is a guess: in
    another order less can be shown."""
    with typically():
        return sorted(((abs(c), t) for t, c in terms.items()), key=lambda x: x[0])


def _values(terms: list[Expr], env: dict[str, np.ndarray]) -> np.ndarray:
    from ..tensor.evaluate import evaluate

    count = len(next(iter(env.values())))
    return np.stack([np.broadcast_to(evaluate(t, {v: env[v] for v in variables(t)}), count) for t in terms])


def _distinct_enumerated(indices: list[Expr], f: For, ranges: Ranges) -> bool:
    indices = _connected(indices, f.var)
    if not indices:
        return ranges[f.var][1] == 0
    grid = _grid(indices, f, ranges)
    return grid is not None and one_owner(_values(indices, grid), grid[f.var])


def _own_enumerated(name: str, f: For, ranges: Ranges) -> bool:
    """Whether no two iterations of a loop touch the same element of a buffer, in whichever statements: tried one by
    one, in the dimensions where the loop has a part."""
    places = {tuple(simplify(i, ranges) for i in p) for s in stores(f.body) for p in _places(s, name)}
    shown = [{id(i) for i in _connected(list(p), f.var)} for p in places]
    dims = [d for d in range(len(next(iter(places)))) if all(id(p[d]) in x for p, x in zip(places, shown, strict=True))]
    chosen = [[p[d] for d in dims] for p in places]
    grids = [_grid(c, f, ranges) if c else None for c in chosen]
    known = [(c, g) for c, g in zip(chosen, grids, strict=True) if g is not None]
    if len(known) < len(chosen) or sum(len(g[f.var]) for _, g in known) > _ENUMERATE:
        return False
    values = np.concatenate([_values(c, g) for c, g in known], axis=1)
    return one_owner(values, np.concatenate([g[f.var] for _, g in known]))


def _grid(indices: list[Expr], f: For, ranges: Ranges) -> dict[str, np.ndarray] | None:
    """All combinations of the values that the variables of some indices and of a loop have; None for too many."""
    names = sorted({v for i in indices for v in variables(i)} | {f.var})
    total = 1
    for v in names:
        total *= ranges[v][1] + 1
    if is_open(total) or total > _ENUMERATE or any(loads(i) for i in indices):
        return None
    axes = np.meshgrid(*[np.arange(ranges[v][1] + 1) for v in names], indexing="ij")
    return dict(zip(names, (g.reshape(-1) for g in axes), strict=True))


def one_owner(rows: np.ndarray, owner: np.ndarray) -> bool:
    """Whether each place (a column of `rows`) belongs to one iteration: sorted by it and the iteration, a place must
    not change hands."""
    place, trip = numbered(rows), int(owner.max()) + 1
    both = np.sort(place * trip + owner)
    return not ((np.diff(both // trip) == 0) & (np.diff(both) != 0)).any()


def numbered(rows: np.ndarray) -> np.ndarray:
    """A number for each column, the same for equal ones only."""
    place = np.zeros(rows.shape[1], np.int64)
    for row in rows:
        low = int(row.min())
        place = place * (int(row.max()) - low + 1) + (row - low)
        if place.size and int(place.max()) > 1 << 40:  # too far apart to be numbered: only how they compare counts
            place = np.unique(place, return_inverse=True)[1]
    return place


def _connected(indices: list[Expr], var: str) -> list[Expr]:
    """The indices that share variables with `var`, directly or through others: the rest says nothing about it."""
    names, found = {var}, []
    rest = list(indices)
    while near := [i for i in rest if variables(i) & names]:
        found += near
        rest = [i for i in rest if not variables(i) & names]
        names |= {v for i in near for v in variables(i)}
    return found


def own_part(position: Expr, var: str, ranges: Ranges) -> frozenset[Any] | None:
    """The part of a position that a loop selects, if the rest stays within one step of it."""
    terms, constant = linear(position)
    chosen = {t: c for t, c in terms.items() if var in variables(t)}
    low = high = constant
    for t, c in terms.items():
        if t not in chosen:
            limit = bounds(t, ranges)
            if limit is None or c < 0:
                return None
            low, high = low + c * limit[0], high + c * limit[1]
    step = reduce(smaller, (abs(c) for c in chosen.values())) if chosen else 0
    return frozenset(chosen.items()) if surely(lambda: low >= 0 and high < step) else None


def _between(at: list[Stmt], name: str, params: dict[str, Buffer], buffers: dict[str, Buffer]) -> str | None:
    """Statements that use a buffer, of which some are divided among the threads, must not need what others write."""
    results = [bool(writes(s) & params.keys()) for s in at]  # who writes results runs on one thread, the others on all
    own = [_is_parallel(s) for s in at]
    boxes: list[_Box] = []
    if name in params:
        if not any(own) and len(set(results)) == 1:
            return None
        find = partial(_tiled_box, name=name, buffer=buffers[name])
        boxes = [_known(s, ("box", name), partial(find, s), params, buffers) for s in at]
        if any(_in_a_row([b[d] for b in boxes]) for d in range(len(buffers[name].shape))):
            return None
    for j, b in enumerate(at):
        for i, a in enumerate(at[:j]):
            if not (own[i] or own[j] or results[i] != results[j]) or name not in writes(a) | writes(b):
                continue
            if name in params and not _boxes_apart(boxes[i], boxes[j]):
                return f"a thread would use elements of {name} that another thread writes in another loop"
            if name not in params and (own[i] or results[i]):
                return f"{name} is memory of each thread: what one thread writes there another does not see"
    return None


#: the least and the largest index in each dimension, None where that is not known
_Box = tuple[tuple[int, int] | None, ...]


def _apart(a: Stmt, b: Stmt, name: str, buffer: Buffer, ranges: Ranges) -> bool:
    """Whether two statements touch different elements, by the range of some dimension."""
    return _boxes_apart(*(_box(s, name, buffer, lambda i: bounds(i, ranges)) for s in (a, b)))


def _tiled_box(s: Stmt, name: str, buffer: Buffer) -> _Box:
    """Where an outermost statement touches a buffer, with its tiles seen as the loops that they are of."""
    ranges, tiles = all_ranges(s), Tiles.of(s)
    known = {**ranges, **tiles.ranges}
    return _box(s, name, buffer, lambda i: bounds(tiles.merged(i, ranges), known))


def _box(s: Stmt, name: str, buffer: Buffer, limits: Callable[[Expr], tuple[int, int] | None]) -> _Box:
    def span(d: int) -> tuple[int, int] | None:
        found = [limits(p[d]) for p in places]
        if not found or any(f is None for f in found):
            return None
        return reduce(smaller, (f[0] for f in found if f)), reduce(larger, (f[1] for f in found if f))

    places = [p for x in stores(s) for p in _places(x, name)]
    return tuple(span(d) for d in range(len(buffer.shape)))


def _boxes_apart(a: _Box, b: _Box) -> bool:
    return any(p and q and (less(p[1], q[0]) or less(q[1], p[0])) for p, q in zip(a, b, strict=True))


def _in_a_row(spans: list[tuple[int, int] | None]) -> bool:
    """Whether spans follow each other without overlap, as the parts of a concatenation do."""
    if None in spans or (current() is not None and any(is_open(*s) for s in spans if s)):
        return False
    ordered = sorted(filter(None, spans))
    return all(p[1] < q[0] for p, q in pairwise(ordered))


__all__ = ["check", "covers", "crosses_iterations", "is_update", "self_dependent"]
