"""What a finished loop nest executes, counted like the kernel's own work (`work`), so that the two compare.

A kernel's own work is what its stages say, each element once. A schedule may do more: it computes something again where
it is needed (a fused producer), works without vectors, gathers what lies in a row somewhere else, or keeps more to
itself than a cache holds. Each of these is counted here; `Executed.reasons` says which of them go too far.

Lanes of a vector that are masked off, what an instruction of several threads computes beyond a result, and sums that
several accumulators hold, are no second computation of anything;
an operator with a loop nest of its own (attention, Winograd's method) is what its nest does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, prod

from ..support.dtypes import NUMPY
from ..tensor.analysis import looked_up
from ..tensor.expr import (
    CASTS,
    COMBINERS,
    Const,
    Expr,
    Load,
    Op,
    Var,
    bottom_up,
    bounds,
    const_value,
    linear,
    loads,
    variables,
    walk,
)
from ..tensor.kernel import Kernel, Stage
from .machine import Machine, OperationCycles, lanes
from .nest import THREAD, Alloc, For, If, Nest, Stmt, Store, children
from .warp import NOTE
from .work import Ranges, extent_variables, operations, operations_of

#: more than this many times its own work is too much
TOO_MUCH = 1.5
#: a loop without vectors is large from this many cycles on (some microseconds: on no machine is less worth a word), and
#: if it is this part of the kernel
LARGE, PART = 1 << 15, 0.25
#: what all threads of a machine compute in so many seconds is nothing, however often it is computed
NOTHING = 1e-7
#: values of loop variables that a condition, or the extent of an inner loop, is tried with, at most
_SAMPLES = 256
#: operations of an elementwise stage that may be computed again for each reader
_LITTLE = 4
_INTEGER = frozenset({"addi", "subi", "muli", "andi", "ori", "xori"})
_SIMPLE = frozenset("addf subf mulf negf absf maximumf minimumf maxnumf minnumf fma select guard dot2".split())  # noqa: SIM905


@dataclass(frozen=True)
class Executed:
    """`operations` and `own` are counted as in `Work`, `stored` and `own_stored` are elements written, `bytes` what
    loads and stores of memory move (to and from whichever cache), `private` the bytes of arrays that a thread keeps to
    itself. `cycles` is a rough estimate for one thread, of which `scalar` are in loops that could have vectors and have
    none, and `gathered` in vectors that are gathered although another loop runs along the row.

    >>> Executed(operations=300, own=100, stored=10, own_stored=10).recomputation
    3.0
    """

    operations: float
    own: float
    stored: float
    own_stored: float
    bytes: float = 0.0
    private: int = 0
    cycles: float = 0.0
    scalar: float = 0.0
    gathered: float = 0.0

    @property
    def recomputation(self) -> float:
        """How many times its own work a kernel does; 1.0 where there is none (a copy)."""
        return self.operations / self.own if self.own else 1.0

    @property
    def remark(self) -> str:
        """What is computed again but too little to matter, as a sentence; "" if nothing is.

        >>> Executed(operations=300, own=100, stored=10, own_stored=10).remark
        'it computes 3 times what the kernel asks: 200 operations more, too few to matter'
        """
        more = self.operations - self.own
        if self.recomputation <= TOO_MUCH or more > LARGE:
            return ""
        again = f"it computes {self.recomputation:.3g} times what the kernel asks"
        return f"{again}: {more:.0f} operations more, too few to matter"

    def reasons(self, machine: Machine) -> list[str]:
        """What goes too far, as sentences; empty for a schedule that is well."""
        found = []
        large = max(LARGE, machine.device_costs(1).ceilings.peak("f32") * NOTHING)
        if self.recomputation > TOO_MUCH and self.operations - self.own > large:
            found.append(f"it computes {self.recomputation:.3g} times what the kernel asks")
        for cycles, what in ((self.scalar, "without vectors"), (self.gathered, "in vectors that are gathered")):
            if cycles > max(LARGE, PART * self.cycles):
                found.append(f"{cycles / self.cycles:.0%} of its time is spent {what} where a row would do")
        if self.private > machine.l2_bytes:
            found.append(f"each thread keeps {self.private >> 10} KiB to itself, beyond its cache")
        return found


def executed(nest: Nest, kernel: Kernel, machine: Machine | None = None) -> Executed:
    """What `nest`, the finished nest of a kernel, executes beside what the kernel asks.

    Without a `machine` vectors count as their loops say."""
    count = _Count(nest, machine, frozenset(s.buffer for s in kernel.stages))
    count.visit(nest.body, 1.0, {}, {}, ())
    if kernel.opaque is not None:
        own, own_stored = count.operations, count.stored
    else:
        own = own_operations(kernel)
        own_stored = float(sum(_trips(s) * len(s.targets) for s in kernel.stages))
    return Executed(
        count.operations + min(count.together, own),
        own,
        count.stored,
        own_stored,
        count.bytes,
        _private(nest.body),
        count.cycles,
        count.scalar,
        count.gathered,
    )


def own_operations(kernel: Kernel) -> float:
    """What a kernel's stages ask, each element once; but a little arithmetic counts once for each reader that takes
    every element once: reading what it gave from memory would take as long as computing it again.
    """
    trips = {s.name: _trips(s) for s in kernel.stages}
    makers = {s.buffer: s for s in kernel.stages if s.buffer not in kernel.outputs and _little(s)}
    asked: dict[str, float] = {}  # operations of an iteration, with those of what it reads
    needed = {s.name for s in kernel.stages if s.buffer not in makers}
    for s in kernel.stages:
        places = dict.fromkeys(x for t in s.targets for x in loads(t.value))
        asked[s.name] = sum(operations(s.targets))
        for place in places:
            maker = makers.get(place.buffer)
            if maker is None or maker is s:
                continue
            if trips[s.name] <= trips[maker.name]:
                asked[s.name] += asked[maker.name]
            else:
                needed.add(maker.name)
    plain = sum(trips[s.name] * sum(operations(s.targets)) for s in kernel.stages)
    return float(max(plain, sum(trips[n] * asked[n] for n in needed)))


def _trips(s: Stage) -> int:
    return prod(n for _, n in s.dims)


def _little(s: Stage) -> bool:
    """Whether a stage is elementwise and so cheap that rules compute it again where it is read."""
    found = [x.op for t in s.targets for x in walk(t.value) if isinstance(x, Op) and x.dtype != "index"]
    simple = all(op in _SIMPLE or op in CASTS or op.startswith("cmp") or op in _INTEGER for op in found)
    return all(t.init is None for t in s.targets) and not s.reduction and simple and len(found) <= _LITTLE


@dataclass(frozen=True)
class _Cost:
    """One iteration of a statement: operations, elements written, bytes moved, cycles for as many lanes as it has."""

    operations: float
    stored: int
    bytes: int
    cycles: float
    lanes: int
    needless: str  # "scalar", "gathered" or ""


class _Count:
    """Walks a nest and adds up."""

    def __init__(self, nest: Nest, machine: Machine | None, results: frozenset[str] = frozenset()) -> None:
        self.buffers, self.machine = nest.buffers(), machine
        #: private arrays that no stage of the kernel asks for: they hold parts of sums; and those that threads share
        self.parts = {n for n, b in self.buffers.items() if b.scope in ("register", "local")} - results
        self.shared = {n for n, b in self.buffers.items() if b.scope not in ("param", "register", "local")} - results
        #: whether the machine's threads have vectors, and are not lanes of something larger themselves
        self.vectors = machine is None or (lanes(machine) > 1 and not any(a.inside for a in machine.axes))
        self.together = 0.0  # operations of instructions that several threads run together
        self.operations = self.stored = self.bytes = self.cycles = self.scalar = self.gathered = 0.0
        self.known: dict[int, _Cost] = {}

    def visit(self, s: Stmt, times: float, ranges: Ranges, fixed: dict[str, int], around: tuple[For, ...]) -> None:
        """`times`: how often `s` runs; `fixed`: values of variables that the extents of inner loops depend on."""
        if not times:
            return
        if isinstance(s, Store):
            self.add(s, times, around)
        elif isinstance(s, If):
            here: Ranges = {**ranges, **{v: (n, n) for v, n in fixed.items()}}
            part = _share(s.cond, here)
            then, other = _narrowed(s.cond, ranges)
            self.visit(s.then, times * (1.0 if part is None else part), then, fixed, around)
            if s.otherwise is not None:
                self.visit(s.otherwise, times * (1.0 if part is None else 1 - part), other, fixed, around)
        elif isinstance(s, For):
            for each, inside, values in _iterations(s, ranges, fixed):
                self.visit(s.body, times * each, inside, values, (*around, s))
        else:
            for c in children(s):
                self.visit(c, times, ranges, fixed, around)

    def add(self, s: Store, times: float, around: tuple[For, ...]) -> None:
        cost = self.known.get(id(s))
        if cost is None:
            cost = self.known[id(s)] = self.cost(s, around)
        if any(f.note(NOTE) is not None for f in around):
            self.together += times * cost.operations
        else:
            self.operations += times * cost.operations
        self.stored += times * cost.stored
        self.bytes += times * cost.bytes
        cycles = times * cost.cycles / cost.lanes
        self.cycles += cycles
        self.scalar += cycles if cost.needless == "scalar" else 0.0
        self.gathered += cycles if cost.needless == "gathered" else 0.0

    def cost(self, s: Store, around: tuple[For, ...]) -> _Cost:
        vector = next((f for f in reversed(around) if f.kind == "vector"), None)
        instruction = any(f.note("dot") is not None or f.note("tiles") is not None for f in around)
        wide = vector.lanes if vector is not None else 1
        used = min(wide, vector.trip or wide) if vector is not None else 1
        loads = [x for x in dict.fromkeys(s.loads) if self.buffers[x.buffer].scope != "register"]
        written = [t for t in s.targets if self.buffers[t.buffer].scope != "register"]
        gathers = [
            x for x in loads if vector is not None and self.step(x.buffer, x.indices, vector.var, used) not in (0, 1)
        ]
        asked = self.machine or Machine()
        memory = (len(loads) + len(gathers) * wide) * asked.access.load + len(written) * asked.access.store
        cycles = _arithmetic(s, asked.operations) + memory
        moved = sum(
            NUMPY[self.buffers[n].dtype].itemsize for n in (*(x.buffer for x in loads), *(t.buffer for t in written))
        )
        needless = ""
        spread = any(
            f.bound and f.kind != THREAD for f in around
        )  # threads of a machine beside each other are its lanes
        could = gathers if vector is not None else self.vectors
        if could and not instruction and not spread:
            row = self.row(s, around, 2 if vector is None else max(wide // 2, 2), vector is None)
            needless = ("scalar" if vector is None else "gathered") if row else ""
        combines = _combines(s, self.parts) or all(_adds_up(t.value, self.shared) for t in s.targets)
        operations = 0.0 if combines else _hoisted(s, around)
        return _Cost(operations, len(s.targets), moved, cycles, max(used, 1), needless)

    def row(self, s: Store, around: tuple[For, ...], least: int, gathers: bool) -> bool:
        """Whether a loop around a statement could have vectors: everything lies in a row along it, or is the same, or
        is looked up if vectors may have `gathers`."""
        own = {t.buffer: t.indices for t in s.targets}
        if any(x.buffer in own and x.indices != own[x.buffer] for x in s.loads):
            return False  # an iteration needs what others made
        whole = least if self.machine is None else max(least, lanes(self.machine) // 2)
        for f in around:
            if f.kind == "vector" or f.trip is None or f.trip < whole:
                continue
            steps = [self.step(t.buffer, t.indices, f.var, whole) for t in s.targets]
            for x in s.loads:
                step = self.step(x.buffer, x.indices, f.var, whole)
                steps.append(0 if step is None and gathers and looked_up(x) else step)
            if all(c in (0, 1) for c in steps) and 1 in steps:
                return True
        return False

    def step(self, buffer: str, indices: tuple[Expr, ...], var: str, run: int) -> int | None:
        """How far apart neighbouring iterations of a loop find their elements, at least for runs of `run`; None if that
        varies."""
        found = 0
        for i, stride in zip(indices, self.buffers[buffer].strides, strict=True):
            step, length = _step(i, var)
            if length < run:
                return None
            found += step * stride
        return found


def _step(e: Expr, var: str) -> tuple[int, float]:
    """(step, run): by how much an index grows with a loop variable, and for how many iterations in a row it does.

    >>> _step(Var("f") // 32 % 8 * 100 + Var("f") % 32, "f")
    (1, 32)
    """
    total, run = 0, inf
    for t, c in linear(e)[0].items():
        step, length = (1, inf) if t == Var(var) else _step_of_term(t, var)
        total, run = total + c * step, min(run, length)
    return total, run


def _step_of_term(t: Expr, var: str) -> tuple[int, float]:
    if var not in variables(t):
        return 0, inf
    n = const_value(t.args[1]) if isinstance(t, Op) and t.op in ("floordivsi", "remsi") else None
    if not isinstance(t, Op) or not n:
        return 0, 1
    step, run = _step(t.args[0], var)
    return (step if t.op == "remsi" else 0), min(run, n // max(abs(step), 1) if step else run)


def _combines(s: Store, parts: set[str]) -> bool:
    """Whether a statement adds up the parts of sums that several accumulators held."""
    for t in s.targets:
        own = Load(t.buffer, t.indices, t.value.dtype)
        if not isinstance(t.value, Op) or t.value.op not in COMBINERS or own not in t.value.args:
            return False
        others = [x for x in t.value.args if x != own]
        if not all(isinstance(x, Load) and x.buffer in parts for x in others):
            return False
    return True


def _adds_up(e: Expr, parts: set[str]) -> bool:
    """Whether a value is made of elements of one of these arrays by one combiner: threads add up what they share."""
    ops = {x.op for x in walk(e) if isinstance(x, Op) and x.dtype != "index"}
    arrays = {x.buffer for x in loads(e)}
    values = all(isinstance(x, (Op, Load)) or x.dtype == "index" for x in walk(e))
    return values and len(ops) == 1 and ops <= COMBINERS.keys() and len(arrays) == 1 and arrays <= parts


def _hoisted(s: Store, around: tuple[For, ...]) -> float:
    """Operations of one iteration of a statement; what is the same in all iterations of the innermost loops is computed
    before them (by LLVM)."""
    depth = {f.var: i for i, f in enumerate(around)}
    shorter = [1.0] * (len(around) + 1)  # by how many loops matter: the part of the iterations that compute it
    for i in reversed(range(len(around))):
        shorter[i] = shorter[i + 1] / max(around[i].trip or 1, 1)
    made = {n: i for i, f in enumerate(around) for n in f.body.facts.writes}
    seen: set[Expr] = set()
    whole = sum(operations(s.targets))
    if not whole or all(shorter[i] == 1.0 for i in range(len(around))):
        return whole
    total, matter = 0.0, dict[Expr, int]()  # how many of the loops around decide the value of an expression
    for t in s.targets:
        for x in bottom_up(t.value, matter.__contains__):
            own = depth.get(x.name, -1) if isinstance(x, Var) else made.get(x.buffer, -1) if isinstance(x, Load) else -1
            matter[x] = max(own + 1, *[matter[a] for a in x.parts]) if x.parts else own + 1
        for x in walk(t.value, seen):
            if isinstance(x, Op) and (n := operations_of(x)):
                total += n * shorter[matter[x]]
    return total


def _arithmetic(s: Store, cycles: OperationCycles) -> float:
    """Cycles of the arithmetic of one iteration."""
    slow = {"divf": cycles.divide, "sqrt": cycles.sqrt, "rsqrt": cycles.rsqrt}
    slow |= dict.fromkeys(("divsi", "remsi"), cycles.divide_integers)
    seen: set[Expr] = set()
    total = 0.0
    for t in s.targets:
        for x in walk(t.value, seen):
            if isinstance(x, Op) and x.dtype != "index":
                simple = x.op in _SIMPLE or x.op.startswith("cmp") or not x.dtype.startswith(("f", "bf"))
                fast = simple or "ext" in x.op or "trunc" in x.op
                total += slow.get(x.op, cycles.simple if fast else cycles.function)
    return total


def _iterations(s: For, ranges: Ranges, fixed: dict[str, int]) -> Iterator[tuple[float, Ranges, dict[str, int]]]:
    """(iterations, ranges inside, fixed values inside) of a loop, value by value if inner extents depend on it."""
    known = _value(s.extent, fixed)  # the last rows of a remainder: bounds alone take them for whole tasks
    if known is not None:
        limit: tuple[int, int] | None = (known, known)
    else:
        limit = bounds(s.extent, {**ranges, **{v: (n, n) for v, n in fixed.items()}})
    trip = max(limit[1], 0) if limit else 1
    full = limit if isinstance(s.extent, Const) else bounds(s.extent, ranges)
    inside = {**ranges, s.var: (0, max((full[1] if full else 1) - 1, 0))}
    if trip and s.var in extent_variables(s.body):
        values = range(trip) if trip <= _SAMPLES else _spread(trip)
        for v in values:
            yield trip / len(values), inside, {**fixed, s.var: v}
    elif trip:
        yield float(trip), inside, fixed


def _share(cond: Expr, ranges: Ranges) -> float | None:
    """The part of the values of its variables for which a condition holds; None if data decide."""
    names = sorted(variables(cond))
    if loads(cond) or any(v not in ranges for v in names):
        return None
    split = _threshold(cond, ranges)
    if split is not None:
        return split
    spans = [range(ranges[v][0], ranges[v][1] + 1) for v in names]
    count = prod(map(len, spans))
    numbers = range(count) if count <= _SAMPLES else _spread(count)
    results = [_value(cond, _digits(n, names, spans)) for n in numbers]
    if not results or any(r is None for r in results):
        return None
    return sum(map(bool, results)) / len(results)


def _threshold(cond: Expr, ranges: Ranges) -> float | None:
    """The part of the values for which ``term < constant`` holds, where the term is a variable, or its quotient or
    remainder: each of its values is there as often."""
    if not isinstance(cond, Op) or cond.op != "cmpi.slt" or not isinstance(cond.args[1], Const):
        return None
    term = cond.args[0]
    while isinstance(term, Op) and term.op in ("floordivsi", "remsi") and isinstance(term.args[1], Const):
        term = term.args[0]
    limit = bounds(cond.args[0], ranges)
    if not isinstance(term, Var) or limit is None:
        return None
    return float(min(max(cond.args[1].value - limit[0], 0), limit[1] - limit[0] + 1)) / (limit[1] - limit[0] + 1)


def _spread(count: int) -> list[int]:
    """_SAMPLES numbers below `count`, in step with no power of two or other short period."""
    return [int(i * 0.6180339887498949 % 1 * count) for i in range(_SAMPLES)]


def _digits(n: int, names: list[str], spans: list[range]) -> dict[str, int]:
    """The n-th combination of the values of several variables."""
    found = {}
    for v, span in zip(names, spans, strict=True):
        n, digit = divmod(n, len(span))
        found[v] = span[digit]
    return found


_VALUES: dict[str, Callable[[int, int], int]] = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "floordivsi": lambda a, b: a // b,
    "remsi": lambda a, b: a % b,
    "minsi": min,
    "maxsi": max,
    "cmpi.slt": lambda a, b: a < b,
    "cmpi.sle": lambda a, b: a <= b,
    "cmpi.sgt": lambda a, b: a > b,
    "cmpi.sge": lambda a, b: a >= b,
    "cmpi.eq": lambda a, b: a == b,
    "cmpi.ne": lambda a, b: a != b,
    "andi": lambda a, b: bool(a and b),
    "ori": lambda a, b: bool(a or b),
}


def _value(e: Expr, values: dict[str, int]) -> int | None:
    """The value of a condition or of index arithmetic; None if it has something else in it."""
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Var):
        return values.get(e.name)
    if not isinstance(e, Op) or e.op not in _VALUES or len(e.args) != 2:
        return None
    a, b = (_value(x, values) for x in e.args)
    return None if a is None or b is None else _VALUES[e.op](a, b)


def _narrowed(cond: Expr, ranges: Ranges) -> tuple[Ranges, Ranges]:
    """The ranges where ``variable < constant`` holds, and where it does not."""
    if (
        isinstance(cond, Op)
        and cond.op == "cmpi.slt"
        and isinstance(cond.args[0], Var)
        and isinstance(cond.args[1], Const)
    ):
        v, n = cond.args[0].name, cond.args[1].value
        if v in ranges and ranges[v][0] < n <= ranges[v][1]:
            return {**ranges, v: (ranges[v][0], n - 1)}, {**ranges, v: (n, ranges[v][1])}
    return ranges, ranges


def _private(s: Stmt) -> int:
    """Bytes of private arrays that live at once."""
    below = max((_private(c) for c in children(s)), default=0)
    if isinstance(s, Alloc) and s.buffer.scope == "local":
        return below + s.buffer.size * NUMPY[s.buffer.dtype].itemsize
    return below


__all__ = ["TOO_MUCH", "Executed", "executed", "own_operations"]
