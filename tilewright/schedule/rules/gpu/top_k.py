"""Top-k along an axis, a line by the threads of a block: by ranking, by radix select, or by sorting; of equal elements
the first wins.

Elements become integers of the same order (`TopKKernel.order`). Three forms:

    rank:    each thread has some elements, and counts for each how many of the line come before it: that is its place.
             The line goes through shared memory in pieces; blocks divide the elements of a line
    select:  one block a line, for few of many: radix select. Two bits at a time, the highest first, threads count how
             many elements reach a threshold, until it is the k-th largest, and then up to which position equal ones are
             among the first k; these are copied to shared memory, and ranked there
    sort:    bitonic sort of a line in shared memory

Nothing depends on the order of threads, and all of them come to every barrier whatever the numbers are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2, prod
from typing import Any

from ....support.sizes import is_open
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, minimum
from ...machine import Machine
from ...nest import If, Stmt, Store, loop, seq, store
from ...schedule import Schedule
from ..custom.nests import add, both, either, index, less, select
from ..custom.top_k import TopKKernel
from .block_scans import BlockRows, Scanned, meeting
from .row_mapping import at_once
from .tactics import operator_rule
from .thread_binding import BLOCK, all_of, axis, guarded, only_if, shared, within

NAME = "block_top_k"
PRIORITY = 7
#: elements of a thread in the form that ranks, which each number from shared memory is compared with
ELEMENTS = (1, 2, 4)
#: bits of the threshold that are found in a pass (a radix of 4), with so many counts
DIGIT = 2
#: most elements that are ranked after they were selected
MOST = 2048
#: numbers of a line in shared memory at once
PIECE = 1024
#: so many times as many operations as where each line is one thread's are worth it: those accesses do not coalesce
WORTH = 8
#: what an element takes in each comparison, in operations of a thread
COMPARED = 3
#: what a step of sorting takes a pair
SWAPPED = 16
_RANK = "i32"


@dataclass(frozen=True)
class TopKPlan:
    """`form`: "rank", "select" or "sort"; `rows` lines of a block, `threads` a line; `each`: elements of a thread,
    which are ranked, or kept in registers (0: they are read again and again)."""

    form: str
    rows: int
    threads: int
    each: int

    @property
    def numbers(self) -> tuple[str, int, int, int]:
        return self.form, self.rows, self.threads, self.each


def write(s: Schedule, machine: Machine) -> Stmt | str:
    t = TopKKernel(s.kernel)
    if any(map(is_open, (*t.lead, t.size))) or is_open(t.k):
        return "its sizes are open"
    lines = prod(t.lead)
    if lines * t.k == 0:
        return "it has no elements"
    if t.order_dtype != _RANK and t.unsigned(0):
        return "browsers have no 64-bit numbers without sign"
    found = plans(t, machine)
    best = min(found, key=lambda p: cost(p, t, machine))
    if not s.fixed_decisions.get("plan") and cost(best, t, machine) > WORTH * alone(t, machine):
        return "sorting a line by one thread takes less"
    plan = TopKPlan(*s.sample_choice("plan", [p.numbers for p in found], best.numbers))
    kept = f", {plan.each} elements of each thread" if plan.each else ""
    s.plan = f"{plan.form}: {plan.rows} lines of a block, {plan.threads} threads each{kept}"
    nest: Stmt = _FORMS[plan.form](t, plan, machine).nest()
    return nest


apply = operator_rule(NAME, write, ("top_k",), "it is no selection of the first elements")


def plans(t: TopKKernel, machine: Machine) -> list[TopKPlan]:
    """All that fit the machine."""
    block, memory, lines = axis(machine, BLOCK), shared(machine), prod(t.lead)
    assert block is not None and memory is not None
    limit, size = block.limit or 1, 8 if t.order_dtype.endswith("64") else 4
    found = []
    for each in ELEMENTS:
        for threads in _powers(min(limit, -(-t.size // each))):
            room = memory.bytes // (size * min(t.size, PIECE))
            found += [
                TopKPlan("rank", rows, threads, each) for rows in _powers(min(limit // threads, lines, max(room, 1)))
            ]
    if t.order_dtype == _RANK and t.k <= MOST and t.k < t.size:
        for threads in [n for n in _powers(limit) if n >= 32 or n == limit]:
            each = -(-t.size // threads)
            registers = machine.vector_registers * limit // threads  # of a thread, where others have theirs too
            kept = [each] if each <= min(machine.vector_registers // 4, registers // 12) else []
            if 8 * t.k + 7 * 4 * threads + 64 <= memory.bytes:
                found += [TopKPlan("select", 1, threads, e) for e in [*kept, 0]]
    whole = _whole(t)
    fits = whole > 1 and (t.order_dtype == _RANK or whole == t.size)  # browsers have no least number of 64 bits
    for threads in _powers(min(limit, whole // 2)) if fits else ():
        room = memory.bytes // ((size + 4) * whole)
        found += [TopKPlan("sort", rows, threads, 0) for rows in _powers(min(limit // threads, lines, room)) if room]
    return found


def _whole(t: TopKKernel) -> int:
    """The length of a line, filled up to a power of two."""
    return 1 << int(t.size - 1).bit_length()


def _steps(t: TopKKernel) -> int:
    """The steps of sorting a line."""
    log = _whole(t).bit_length() - 1
    return log * (log + 1) // 2


def _powers(limit: int) -> list[int]:
    """Powers of two up to a limit.

    >>> _powers(1), _powers(5), _powers(8)
    ([1], [1, 2, 4], [1, 2, 4, 8])
    """
    return [1 << i for i in range(max(limit, 1).bit_length())]


def alone(t: TopKKernel, machine: Machine) -> float:
    """What lines take where each is a single thread's, in operations."""
    turns, passes = -(-prod(t.lead) // at_once(machine)), log2(t.size) if t.k > 1 and t.size > 1 else 1.0
    return float(turns * t.size * machine.thread_costs.far * passes)


def cost(p: TopKPlan, t: TopKKernel, machine: Machine) -> float:
    """The time of all threads, so many at once, and of one after all, in operations of a thread."""
    block, lines, n = axis(machine, BLOCK), prod(t.lead), int(t.size)
    limit, costs = (block.limit if block is not None else None) or 1, machine.thread_costs
    one, far = 0.0, costs.far
    if p.form == "rank":
        one = n * (1 + COMPARED * p.each) + -(-n // p.threads) * far + 4 * far
        blocks = -(-lines // p.rows) * -(-n // (p.threads * p.each))
    elif p.form == "sort":
        one = _steps(t) * (_whole(t) // 2 // p.threads * SWAPPED + costs.barrier) + -(-_whole(t) // p.threads) * 2 * far
        blocks = -(-lines // p.rows)
    else:
        passes = 32 // DIGIT + -(-(n - 1).bit_length() // DIGIT)
        steps, counts = -(-n // p.threads), (1 << DIGIT) - 1
        one = passes * (steps * ((far if not p.each else 0) + 2 * counts) + 2 * meeting(p.threads, True, machine))
        one += 2 * steps * far + int(-(-t.k // p.threads) * t.k) * (1 + COMPARED)
        blocks = lines
    everyone = blocks * max(p.rows * p.threads, limit / costs.small_block)
    return one * everyone / at_once(machine) + one


class _Lines:
    """What all forms share: where a thread's elements lie. `parts`: blocks that share a line."""

    def __init__(self, t: TopKKernel, plan: TopKPlan, machine: Machine, parts: int) -> None:
        self.t, self.plan, self.parts = t, plan, parts
        lines = prod(t.lead)
        blocks = -(-lines // plan.rows) * parts
        self.team = BlockRows(machine, blocks, plan.rows, plan.threads, along=True)
        number = self.team.number  # of all rows of all blocks: a line's parts are blocks apart
        block = (number - self.team.row) // plan.rows if plan.rows > 1 else number
        self.part = block % parts if parts > 1 else index(0)
        self.line = (block // parts if parts > 1 else block) * plan.rows + self.team.row
        self.inside = within(self.line, lines, self.team.blocks // parts * plan.rows)
        if self.team.blocks != blocks and self.inside is None:  # more blocks than parts
            self.inside = less(self.line, lines)

    def key(self, at: Expr, otherwise: Const, most: int) -> Expr:
        """The integer of an element of the line; something else beyond the line (positions are less than `most`)."""
        t = self.t
        cond = all_of([self.inside, within(at, t.size, most)])
        return guarded(cond, t.order(t.read(t.x, t.at(self.line, at))), otherwise)

    def result(self, rank: Expr, at: Expr) -> Stmt:
        """Write an element to its place, if that is among the first k."""
        t = self.t
        value = t.read(t.x, t.at(self.line, at))
        put = t.result(self.line, Op("index_cast", (rank,), "index"), value, Op("index_cast", (at,), "i64"))
        return If(Op("cmpi.slt", (rank, Const(t.k, _RANK)), "i1"), put) if t.k < t.size else put

    def comes_before(self, a: Expr, at_a: Expr, b: Expr, at_b: Expr) -> Expr:
        """1 if a stands before b, else 0; `at` are their positions."""
        return select(self.before(a, at_a, b, at_b), Const(1, _RANK), Const(0, _RANK))

    def before(self, a: Expr, at_a: Expr, b: Expr, at_b: Expr) -> Expr:
        """Whether it does."""
        ahead, same = Op("cmpi.sgt", (a, b), "i1"), Op("cmpi.eq", (a, b), "i1")
        return either(ahead, both(same, Op("cmpi.slt", (at_a, at_b), "i1")))


class _Ranked(_Lines):
    def __init__(self, t: TopKKernel, plan: TopKPlan, machine: Machine) -> None:
        super().__init__(t, plan, machine, -(-t.size // (plan.threads * plan.each)))
        self.piece = min(t.size, PIECE)
        self.pieces = -(-t.size // self.piece)
        self.keys = self.team.shared("keys", self.piece, t.order_dtype)
        self.mine = self.team.own("mine", t.order_dtype, plan.each)
        self.rank = self.team.own("rank", _RANK, plan.each)

    def nest(self) -> Stmt:
        one = seq(
            self.team.each(self.bring),
            *self.team.barrier(),
            self.team.each(self.count),
            *(self.team.barrier() if self.pieces > 1 else []),
        )
        if self.pieces > 1:
            one = loop("piece", self.pieces, one)
        return self.team.nest(seq(self.team.each(self.begin), one, self.team.each(self.write)))

    def at(self, x: Expr, e: int) -> Expr:
        p = self.plan
        return (self.part * p.each + e) * p.threads + x

    @property
    def most(self) -> int:
        return self.parts * self.plan.threads * self.plan.each

    def begin(self, x: Expr) -> Stmt:
        zero, t = Const(0, self.t.order_dtype), self.team
        steps = []
        for e in range(self.plan.each):
            place = (t.row, x, index(e))
            steps.append(store(self.mine.name, place, self.key(self.at(x, e), zero, self.most), "mine"))
            steps.append(store(self.rank.name, place, Const(0, _RANK), "first"))
        return seq(*steps)

    @property
    def first(self) -> Expr:
        return Var("piece") * self.piece if self.pieces > 1 else index(0)

    def bring(self, x: Expr) -> Stmt:
        """A piece of the line to shared memory."""
        u, n = self.plan.threads, self.t.size
        steps = -(-self.piece // u)
        j = Var("step") * u + x if steps > 1 else x
        most = self.pieces * self.piece if self.piece % u == 0 else 1 << 30
        value = self.key(self.first + j, Const(0, self.t.order_dtype), n if self.pieces * steps * u <= n else most)
        put: Stmt = only_if(within(j, self.piece, steps * u), store(self.keys.name, (self.team.row, j), value, "bring"))
        return loop("step", steps, put) if steps > 1 else put

    def count(self, x: Expr) -> Stmt:
        """How many of the piece come before each of a thread's elements."""
        t, j = self.team, Var("j")
        key = Load(self.keys.name, (t.row, j), self.keys.dtype)
        steps = []
        for e in range(self.plan.each):
            place = (t.row, x, index(e))
            mine, rank = Load(self.mine.name, place, self.mine.dtype), Load(self.rank.name, place, _RANK)
            more = self.comes_before(key, self.first + j, mine, self.at(x, e))
            steps.append(store(self.rank.name, place, add(rank, more), "count"))
        left = self.t.size - self.first
        return loop("j", self.piece if self.t.size % self.piece == 0 else minimum(self.piece, left), seq(*steps))

    def write(self, x: Expr) -> Stmt:
        steps = []
        for e in range(self.plan.each):
            rank = Load(self.rank.name, (self.team.row, x, index(e)), _RANK)
            cond = all_of([self.inside, within(self.at(x, e), self.t.size, self.most)])
            steps.append(only_if(cond, self.result(rank, self.at(x, e))))
        return seq(*steps)


class _Selected(_Lines):
    def __init__(self, t: TopKKernel, plan: TopKPlan, machine: Machine) -> None:
        super().__init__(t, plan, machine, 1)
        team = self.team
        self.least = Const(-(1 << 31), _RANK)
        self.steps = -(-t.size // plan.threads)
        self.counts = [team.own(f"count_{c}", _RANK) for c in range(1, 1 << DIGIT)]
        self.totals = [team.own(f"reach_{c}", _RANK) for c in range(1, 1 << DIGIT)]
        self.threshold, self.last, self.above = (team.own(n, _RANK) for n in ("bar", "last", "above"))
        self.held = team.own("held", _RANK, self.steps) if plan.each else None
        self.taken, self.slot = team.own("taken", _RANK), team.own("slot", _RANK)
        self.keys, self.places = team.shared("keys", t.k, _RANK), team.shared("places", t.k, _RANK)

    def nest(self) -> Stmt:
        t = self.team
        one = Scanned("taken", _RANK, add, Const(0, _RANK))
        bits = max((self.t.size - 1).bit_length(), 1)
        parts = [
            t.each(self.begin),
            loop("digit", 32 // DIGIT, self.digit(32, self.threshold, self.reaches, enough=True)),
            t.each(self.count_above),
            t.total([(one, self.taken)], [self.above]),
            loop(
                "place", -(-bits // DIGIT), self.digit(-(-bits // DIGIT) * DIGIT, self.last, self.is_tie, enough=False)
            ),
            t.each(self.count_taken),
            t.scan([(one, self.taken)], [self.slot], []),
            t.each(self.copy),
            *t.barrier(),
            t.each(self.write),
        ]
        return t.nest(seq(*parts))

    def reg(self, b: Buffer, x: Expr) -> Load:
        return Load(b.name, (self.team.row, x), b.dtype)

    def set(self, b: Buffer, x: Expr, value: Expr) -> Stmt:
        return store(b.name, (self.team.row, x), value, f"set_{b.name}")

    def begin(self, x: Expr) -> Stmt:
        steps: list[Stmt] = [self.set(self.threshold, x, self.least), self.set(self.last, x, Const(0, _RANK))]
        if self.held is not None:
            for s in range(self.steps):
                value = self.key(self.at(x, index(s)), self.least, self.steps * self.plan.threads)
                steps.append(store(self.held.name, (self.team.row, x, index(s)), value, "hold"))
        return seq(*steps)

    def at(self, x: Expr, step: Expr) -> Expr:
        return step * self.plan.threads + x

    def over(self, x: Expr, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """``body(key, position)`` for each of a thread's elements; beyond the line the key is the least one."""
        if self.held is not None:
            keys = [Load(self.held.name, (self.team.row, x, index(s)), _RANK) for s in range(self.steps)]
            return seq(*(body(k, self.at(x, index(s))) for s, k in enumerate(keys)))
        at = self.at(x, Var("step"))
        return loop("step", self.steps, body(self.key(at, self.least, self.steps * self.plan.threads), at))

    # ---- the threshold

    def reaches(self, key: Expr, at: Expr, threshold: Expr, x: Expr) -> Expr:
        return Op("cmpi.sge", (key, threshold), "i1")

    def is_tie(self, key: Expr, at: Expr, place: Expr, x: Expr) -> Expr:
        """Whether it is the k-th largest, and stands before a place."""
        same = Op("cmpi.eq", (key, self.reg(self.threshold, x)), "i1")
        inside = within(at, self.t.size, self.steps * self.plan.threads)
        found = both(same, Op("cmpi.slt", (Op("index_cast", (at,), _RANK), place), "i1"))
        return found if inside is None else both(found, inside)

    def digit(
        self, bits: int, threshold: Buffer, holds: Callable[[Expr, Expr, Expr, Expr], Expr], enough: bool
    ) -> Stmt:
        """The next two bits of a threshold: the largest of which still `enough` elements hold, k of them, or of which
        not enough do, those that are missing beside the ones above."""
        t = self.team
        var = Var("digit") if enough else Var("place")
        shift = Op("index_cast", (index(bits - DIGIT) - var * DIGIT,), _RANK)

        def tried(x: Expr, c: int) -> Expr:
            return Op("addi", (self.reg(threshold, x), Op("shli", (Const(c, _RANK), shift), _RANK)), _RANK)

        def count(x: Expr) -> Stmt:
            def one(key: Expr, at: Expr) -> Stmt:
                steps = []
                for c, b in enumerate(self.counts, 1):
                    hit = select(holds(key, at, tried(x, c), x), Const(1, _RANK), Const(0, _RANK))
                    steps.append(self.set(b, x, add(self.reg(b, x), hit)))
                return seq(*steps)

            return seq(*(self.set(b, x, Const(0, _RANK)) for b in self.counts), self.over(x, one))

        def choose(x: Expr) -> Stmt:
            found: Expr = self.reg(threshold, x)
            for c, total in enumerate(self.totals, 1):
                n = self.reg(total, x)
                if enough:
                    good = Op("cmpi.sge", (n, Const(self.t.k, _RANK)), "i1")
                else:
                    good = Op("cmpi.slt", (add(n, self.reg(self.above, x)), Const(self.t.k, _RANK)), "i1")
                found = select(good, tried(x, c), found)
            return self.set(threshold, x, found)

        values = [(Scanned(f"digit_{c}", _RANK, add, Const(0, _RANK)), b) for c, b in enumerate(self.counts, 1)]
        return seq(t.each(count), t.total(values, self.totals), t.each(choose))

    # ---- those that are taken

    def count_above(self, x: Expr) -> Stmt:
        def one(key: Expr, at: Expr) -> Stmt:
            hit = select(Op("cmpi.sgt", (key, self.reg(self.threshold, x)), "i1"), Const(1, _RANK), Const(0, _RANK))
            return self.set(self.taken, x, add(self.reg(self.taken, x), hit))

        return seq(self.set(self.taken, x, Const(0, _RANK)), self.over(x, one))

    def is_taken(self, key: Expr, at: Expr, x: Expr) -> Expr:
        above = Op("cmpi.sgt", (key, self.reg(self.threshold, x)), "i1")
        place = add(self.reg(self.last, x), Const(1, _RANK))
        return either(above, self.is_tie(key, at, place, x))

    def count_taken(self, x: Expr) -> Stmt:
        def one(key: Expr, at: Expr) -> Stmt:
            hit = select(self.is_taken(key, at, x), Const(1, _RANK), Const(0, _RANK))
            return self.set(self.taken, x, add(self.reg(self.taken, x), hit))

        return seq(self.set(self.taken, x, Const(0, _RANK)), self.over(x, one))

    def copy(self, x: Expr) -> Stmt:
        """Those that are taken to shared memory, each thread's behind those of the threads before it."""

        def one(key: Expr, at: Expr) -> Stmt:
            wanted, slot = self.is_taken(key, at, x), self.reg(self.slot, x)
            place = (self.team.row, Op("index_cast", (slot,), "index"))
            puts = seq(
                store(self.keys.name, place, key, "copy_key"),
                store(self.places.name, place, Op("index_cast", (at,), _RANK), "copy_place"),
            )
            more = select(wanted, Const(1, _RANK), Const(0, _RANK))
            return seq(only_if(all_of([self.inside, wanted]), puts), self.set(self.slot, x, add(slot, more)))

        return self.over(x, one)

    def write(self, x: Expr) -> Stmt:
        """Each of them to its place, which is the number of those before it."""
        t, k, u = self.team, self.t.k, self.plan.threads
        steps = -(-k // u)
        i = Var("turn") * u + x if steps > 1 else x
        rank, j = self.taken, Var("j")

        def of(b: Buffer, at: Expr) -> Load:
            return Load(b.name, (t.row, at), _RANK)

        more = self.comes_before(of(self.keys, j), of(self.places, j), of(self.keys, i), of(self.places, i))
        count = loop("j", k, self.set(rank, x, add(self.reg(rank, x), more)))
        place = Op("index_cast", (of(self.places, i),), "index")
        cond = all_of([self.inside, within(i, k, steps * u)])
        value = self.t.read(self.t.x, self.t.at(self.line, place))
        position = Op("extsi", (of(self.places, i),), "i64")
        put = self.t.result(self.line, Op("index_cast", (self.reg(rank, x),), "index"), value, position)
        one = seq(self.set(rank, x, Const(0, _RANK)), only_if(cond, seq(count, put)))
        return loop("turn", steps, one) if steps > 1 else one


class _Sorted(_Lines):
    """Bitonic sort. Two registers say how far apart the elements of a pair are (`apart`, as a power of two), and how
    long runs of one direction are (`run`): half as far in each step, and of runs twice as long when they have been
    neighbours."""

    def __init__(self, t: TopKKernel, plan: TopKPlan, machine: Machine) -> None:
        super().__init__(t, plan, machine, 1)
        self.whole = _whole(t)
        self.keys = self.team.shared("keys", self.whole, t.order_dtype)
        self.places = self.team.shared("places", self.whole, _RANK)
        self.apart, self.run = self.team.own("apart", _RANK), self.team.own("run", _RANK)

    def nest(self) -> Stmt:
        t = self.team
        step = seq(t.each(self.step), *t.barrier())
        return t.nest(seq(t.each(self.bring), *t.barrier(), loop("turn", _steps(self.t), step), t.each(self.write)))

    def reg(self, b: Buffer, x: Expr) -> Load:
        return Load(b.name, (self.team.row, x), b.dtype)

    def over(self, x: Expr, count: int, body: Callable[[Expr], Stmt]) -> Stmt:
        """``body(i)`` for every so many of `count` numbers."""
        u = self.plan.threads
        steps = -(-count // u)
        i = Var("i") * u + x if steps > 1 else x
        one = only_if(within(i, count, steps * u), body(i))
        return loop("i", steps, one) if steps > 1 else one

    def bring(self, x: Expr) -> Stmt:
        """What fills up the line comes last: its positions are behind all others."""
        least = Const(-(1 << int(self.t.order_dtype[1:]) - 1), self.t.order_dtype)

        def one(i: Expr) -> Stmt:
            key = store(self.keys.name, (self.team.row, i), self.key(i, least, self.whole), "bring")
            return seq(key, store(self.places.name, (self.team.row, i), Op("index_cast", (i,), _RANK), "place"))

        start = [
            store(b.name, (self.team.row, x), Const(i, _RANK), "start") for b, i in ((self.apart, 0), (self.run, 1))
        ]
        return seq(*start, self.over(x, self.whole, one))

    def step(self, x: Expr) -> Stmt:
        apart, run, one = self.reg(self.apart, x), self.reg(self.run, x), Const(1, _RANK)

        def i32(op: str, a: Expr, b: Expr) -> Expr:
            return Op(op, (a, b), _RANK)

        def pair(n: Expr) -> Stmt:
            number = Op("index_cast", (n,), _RANK)
            low = i32("andi", number, i32("subi", i32("shli", one, apart), one))
            first = i32("ori", i32("shli", i32("subi", number, low), one), low)
            at = [Op("index_cast", (e,), "index") for e in (first, i32("ori", first, i32("shli", one, apart)))]
            a, b = (self.of(self.keys, i) for i in at)
            place_a, place_b = (self.of(self.places, i) for i in at)
            upwards = Op("cmpi.eq", (i32("andi", i32("shrsi", first, run), one), Const(0, _RANK)), "i1")
            before = self.before(a, place_a, b, place_b)
            stays = Op("cmpi.eq", tuple(select(c, one, Const(0, _RANK)) for c in (before, upwards)), "i1")
            pairs = ((self.keys, a, b), (self.places, place_a, place_b))
            targets = [Target(m.name, (self.team.row, at[0]), select(stays, p, q)) for m, p, q in pairs]
            targets += [Target(m.name, (self.team.row, at[1]), select(stays, q, p)) for m, p, q in pairs]
            return Store(tuple(targets), "sort")

        done = Op("cmpi.eq", (apart, Const(0, _RANK)), "i1")
        following = Store(
            (
                Target(self.apart.name, (self.team.row, x), select(done, run, i32("subi", apart, one))),
                Target(self.run.name, (self.team.row, x), select(done, i32("addi", run, one), run)),
            ),
            "next",
        )
        return seq(self.over(x, self.whole // 2, pair), following)

    def of(self, b: Buffer, i: Expr) -> Load:
        return Load(b.name, (self.team.row, i), b.dtype)

    def write(self, x: Expr) -> Stmt:
        def one(i: Expr) -> Stmt:
            place = self.of(self.places, i)
            value = self.t.read(self.t.x, self.t.at(self.line, Op("index_cast", (place,), "index")))
            return self.t.result(self.line, i, value, Op("extsi", (place,), "i64"))

        return only_if(self.inside, self.over(x, self.t.k, one))


_FORMS: dict[str, Callable[..., Any]] = {"rank": _Ranked, "select": _Selected, "sort": _Sorted}

__all__ = ["TopKPlan", "cost", "plans"]
