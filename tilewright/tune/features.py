"""Feature vectors of scheduled loop nests, for the learned cost model.

They are those of the main statement (the one that does the most work) and of the nest as a whole: work, loops from the
inside out with their kinds, bytes that each operand touches at each depth, how these compare with the caches, and what
is wasted in partial tiles."""

from __future__ import annotations

import math

from ..schedule.machine import Machine
from ..schedule.nest import Alloc, For, Nest, Stmt, Store, children, exprs, walk_stmts
from ..support.dtypes import LOOP_TYPES
from ..tensor.analysis import flat
from ..tensor.expr import Buffer, Expr, Load, Op, bounds, linear, walk
from ..tensor.kernel import Kernel

#: raised when a feature comes to mean something else; the pretrained model holds for one version
VERSION = 1
#: loops and operands that are described one by one
LOOPS, OPERANDS = 9, 4
#: iterations of the outermost loop whose common data is described
TASKS = (8, 64)
KINDS = {"serial": 0.0, "unroll": 2.0, "vector": 3.0}  # 1: bound to an axis
_CHEAP = {"addf", "subf", "mulf", "negf", "absf", "maximumf", "minimumf", "fma"}

Ranges = dict[str, tuple[int, int]]


def names() -> list[str]:
    """The names of the features, in order."""
    out = [
        "work",
        "flops",
        "heavy_ops",
        "integer_ops",
        "loads",
        "statements",
        "allocated",
        "register_vectors",
        "intensity",
        "waste",
    ]
    out += ["parallel", "imbalance", "unrolled", "lanes", "code", "reduction_trips", "other_work", "reduction_inside"]
    out += ["prefetches", "prefetch_distance"]
    for i in range(LOOPS):
        out += [f"loop{i}_trip", f"loop{i}_kind", f"loop{i}_reduction", f"loop{i}_bytes", f"loop{i}_l1", f"loop{i}_l2"]
    for i in range(OPERANDS):
        out += [f"operand{i}_bytes", f"operand{i}_stride", f"operand{i}_aligned"]
        out += [f"operand{i}_bytes{d}" for d in range(1, LOOPS, 2)]
        out += [f"operand{i}_moves{d}" for d in range(4)]
        out += [f"operand{i}_moves_outer", *(f"operand{i}_tasks{n}" for n in TASKS)]
    return out


def features(kernel: Kernel, nest: Nest, machine: Machine) -> tuple[float, ...]:
    """The features of a nest (best before `finish`, when every loop stands once); sizes are logarithms to base 2."""
    paths = _paths(nest.body)
    main = max(paths, key=lambda p: _work(p) * _operations(p[-1])[0])
    buffers = nest.buffers()
    total = sum(_work(p) for p in paths)
    return tuple(
        float(x)
        for x in (
            *_overall(kernel, nest, main, total, buffers, machine),
            *_loops(main, buffers, machine),
            *_operands(main, buffers),
        )
    )


def log(x: float) -> float:
    return math.log2(1.0 + max(x, 0.0))


def _paths(s: Stmt, above: tuple[Stmt, ...] = ()) -> list[tuple[Stmt, ...]]:
    """For every store the statements from the root down to it."""
    here = (*above, s)
    if isinstance(s, Store):
        return [here]
    return [p for c in children(s) for p in _paths(c, here)]


def _nest(path: tuple[Stmt, ...]) -> list[For]:
    return [s for s in path if isinstance(s, For)]


def _trip(f: For, ranges: Ranges) -> int:
    """Iterations of a loop, at most."""
    if f.trip is not None:
        return max(f.trip, 1)
    limit = bounds(f.extent, ranges)
    return max(limit[1], 1) if limit else 1


def _trips(path: tuple[Stmt, ...]) -> list[int]:
    ranges: Ranges = {}
    out = []
    for f in _nest(path):
        n = _trip(f, ranges)
        ranges[f.var] = (0, n - 1)
        out.append(n)
    return out


def _work(path: tuple[Stmt, ...]) -> float:
    return float(math.prod(_trips(path)))


def _operations(s: Stmt) -> tuple[float, float, float, float]:
    """(weight, float operations, expensive ones, integer ones) of one iteration."""
    cheap = heavy = integer = 0
    for e in exprs(s):
        for x in walk(e):
            if isinstance(x, Op):
                if x.dtype == "index" or x.dtype.startswith("i"):
                    integer += 1
                elif x.op in _CHEAP:
                    cheap += 1
                else:
                    heavy += 1
    return 1.0 + cheap + 10.0 * heavy + 0.2 * integer, cheap, heavy, integer


def _loads(s: Stmt) -> list[tuple[str, tuple[Expr, ...]]]:
    """Distinct places a store reads and writes: (buffer, indices)."""
    assert isinstance(s, Store)
    found: dict[str, tuple[str, tuple[Expr, ...]]] = {}
    for t in s.targets:
        found[f"{t.buffer}{t.indices}"] = (t.buffer, t.indices)
        for x in walk(t.value):
            if isinstance(x, Load):
                found.setdefault(f"{x.buffer}{x.indices}", (x.buffer, x.indices))
    return list(found.values())


def _footprint(b: Buffer, indices: tuple[Expr, ...], ranges: Ranges) -> int:
    """Bytes of a buffer that one access touches while the loops run over `ranges`."""
    elements = 1
    for i, n in zip(indices, b.shape, strict=True):
        limit = bounds(i, ranges)
        elements *= min(n, limit[1] - limit[0] + 1) if limit else n
    return elements * LOOP_TYPES[b.dtype].nbytes


def _depths(loops: list[For], trips: list[int]) -> list[Ranges]:
    """Ranges of all loops when only the innermost 0, 1, 2 ... run."""
    out = []
    for d in range(LOOPS + 1):
        first = len(loops) - d
        out.append(
            {f.var: (0, n - 1) if i >= first else (0, 0) for i, (f, n) in enumerate(zip(loops, trips, strict=True))}
        )
    return out


def _overall(
    kernel: Kernel, nest: Nest, main: tuple[Stmt, ...], total: float, buffers: dict[str, Buffer], machine: Machine
) -> list[float]:
    loops, trips, store = _nest(main), _trips(main), main[-1]
    assert isinstance(store, Store)
    _, flops, heavy, integer = _operations(store)
    work = math.prod(trips)
    allocated = [s.buffer for s in walk_stmts(nest.body) if isinstance(s, Alloc)]
    sizes = [(b.scope == "register", b.size * LOOP_TYPES[b.dtype].nbytes) for b in allocated]
    registers = sum(n for held, n in sizes if held) / machine.vector_bytes
    memory = sum(n for held, n in sizes if not held)
    everything = {f.var: (0, n - 1) for f, n in zip(loops, trips, strict=True)}
    touched = sum(_footprint(buffers[b], i, everything) for b, i in _loads(store))
    parallel = math.prod(n for f, n in zip(loops, trips, strict=True) if f.bound)
    share = -(-parallel // machine.cores) * machine.cores / parallel
    unrolled = math.prod(n for f, n in zip(loops, trips, strict=True) if f.kind == "unroll")
    lanes = math.prod(n for f, n in zip(loops, trips, strict=True) if f.kind == "vector")
    exact = max((math.prod(n for _, n in s.dims) for s in kernel.stages), default=1)
    code = sum(
        math.prod(n for f, n in zip(_nest(p), _trips(p), strict=True) if f.kind == "unroll") for p in _paths(nest.body)
    )
    reducing = [(f, n) for f, n in zip(loops, trips, strict=True) if f.var in store.reduction]
    inside = float(bool(loops) and loops[-1].var in store.reduction)
    ahead = [i for f in walk_stmts(nest.body) if isinstance(f, For) for _, i in f.prefetch]
    return [
        log(work), log(work * flops), heavy, integer, len(_loads(store)), len(_paths(nest.body)),
        log(memory), registers,
        math.log2(work * (flops + 1) / max(touched, 1)), work / max(exact, 1), log(parallel), share,
        log(unrolled), log(lanes), log(code),
        log(math.prod(n for _, n in reducing)), log(total / max(work, 1)), inside,
        log(len(ahead)), log(min((linear(i)[1] for i in ahead), default=0)),
    ]  # fmt: skip


def _loops(main: tuple[Stmt, ...], buffers: dict[str, Buffer], machine: Machine) -> list[float]:
    """The innermost loops one by one: trips, kind, and the working set while they run."""
    loops, trips, store = _nest(main), _trips(main), main[-1]
    assert isinstance(store, Store)
    places = _loads(store)
    out: list[float] = []
    depths = _depths(loops, trips)
    for d in range(LOOPS):
        at = len(loops) - 1 - d
        if at < 0:
            out += [0.0, -1.0, 0.0, 0.0, 0.0, 0.0]
            continue
        f = loops[at]
        size = sum(_footprint(buffers[b], i, depths[d + 1]) for b, i in places if buffers[b].scope != "register")
        out += [
            log(trips[at]), KINDS.get(f.kind, 1.0), float(f.var in store.reduction), log(size),
            math.log2((size + 1) / machine.l1_bytes), math.log2((size + 1) / machine.l2_bytes),
        ]  # fmt: skip
    return out


def _operands(main: tuple[Stmt, ...], buffers: dict[str, Buffer]) -> list[float]:
    """The largest operands one by one: bytes touched at every other depth, and which of the inner loops move them."""
    loops, trips = _nest(main), _trips(main)
    depths = _depths(loops, trips)
    everything = {f.var: (0, n - 1) for f, n in zip(loops, trips, strict=True)}
    places = [(b, i) for b, i in _loads(main[-1]) if buffers[b].scope != "register"]
    places.sort(key=lambda p: -_footprint(buffers[p[0]], p[1], everything))
    out: list[float] = []
    for n in range(OPERANDS):
        if n >= len(places):
            out += [0.0] * (8 + len(TASKS) + len(range(1, LOOPS, 2)))
            continue
        b, index = buffers[places[n][0]], places[n][1]
        where = flat(b, index)
        moves = [_stride(where, loops[len(loops) - 1 - d], everything) if d < len(loops) else 0.0 for d in range(4)]
        out += [log(_footprint(b, index, everything)), moves[0], float(b.shape[-1] % 16 == 0) if b.shape else 1.0]
        out += [log(_footprint(b, index, depths[d])) for d in range(1, LOOPS, 2)]
        out += [*moves, _stride(where, loops[0], everything) if loops else 0.0]
        for count in TASKS:
            ranges = {**everything, loops[0].var: (0, min(count, trips[0]) - 1)} if loops else everything
            out.append(log(_footprint(b, index, ranges)))
    return out


def _stride(e: Expr, f: For, ranges: Ranges) -> float:
    """Logarithm of how far one step of a loop moves an access, in elements."""
    at: Ranges = dict.fromkeys(ranges, (0, 0))
    first, second = bounds(e, at), bounds(e, {**at, f.var: (1, 1)})
    return log(abs(second[0] - first[0])) if first and second else -1.0


__all__ = ["features", "names"]
