"""Prefix sums and products (``cumsum``, ``cumprod``) along an axis, a line by the threads of a block: each thread scans
a run of it in registers, a scan over threads gives what those before it have. Longer lines go in pieces, one after the
other.

    for each piece of the line:
        each thread: x = its run;  run sums in x
        scan of the threads' last sums -> before[thread], all
        each thread: result = carry + before + x
        carry = carry + all

Threads go along a line, or, where lines are contiguous with each other, neighbouring threads have neighbouring lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....support.dtypes import wide
from ....support.sizes import is_open
from ....tensor.expr import Const, Expr, Load, Op, Var
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import For, Stmt, loop, seq, store
from ...schedule import Schedule
from ..custom.nests import Access, add, mul, unflatten
from .block_scans import BlockRows, Scanned, meeting
from .row_mapping import at_once
from .tactics import operator_rule
from .thread_binding import BLOCK, all_of, axis, only_if, within

NAME = "block_scan"
PRIORITY = 7
#: neighbours that a thread may have in registers
RUNS = (4, 1, 2, 8)
_LANE = "lane_of_vector"


@dataclass(frozen=True)
class ScanPlan:
    """`rows` lines of a block, `threads` a line, each with `run` neighbours of a piece."""

    rows: int
    threads: int
    run: int

    def pieces(self, size: int) -> int:
        return -(-size // (self.threads * self.run))

    @property
    def numbers(self) -> tuple[int, int, int]:
        return self.rows, self.threads, self.run


@dataclass(frozen=True)
class Lines:
    """The lines of a kernel: how many, of so many elements; `along`: neighbours of a line lie side by side."""

    count: int
    size: int
    along: bool
    dtype: str


def write(s: Schedule, machine: Machine) -> Stmt | str:
    scan = ScanKernel(s.kernel)
    if any(map(is_open, scan.sizes)):
        return "its sizes are open"
    if prod(scan.sizes) == 0:
        return "it has no elements"
    found = plans(scan.lines, machine)
    best = min(found, key=lambda p: cost(p, scan.lines, machine))
    plan = ScanPlan(*s.sample_choice("team", [p.numbers for p in found], best.numbers))
    pieces = plan.pieces(scan.lines.size)
    s.plan = f"{plan.rows} lines of a block on {plan.threads} threads each, runs of {plan.run}, {pieces} pieces"
    return scan.nest(plan, machine)


apply = operator_rule(NAME, write, ("cumsum", "cumprod"), "it is no running sum")


def plans(lines: Lines, machine: Machine) -> list[ScanPlan]:
    """All that fit the machine: shared memory has two numbers for each thread."""
    block, memory = axis(machine, BLOCK), _shared_bytes(machine)
    assert block is not None
    limit = min(block.limit or 1, memory // 16)
    found = []
    for run in RUNS:
        for threads in _powers(min(limit, -(-lines.size // run))):
            found += [ScanPlan(rows, threads, run) for rows in _powers(min(limit // threads, lines.count))]
    return found


def _shared_bytes(machine: Machine) -> int:
    return next(m.bytes for m in machine.memories if BLOCK in m.shared_by)


def _powers(limit: int) -> list[int]:
    """Powers of two up to a limit."""
    return [1 << i for i in range(max(limit, 1).bit_length())]


def cost(p: ScanPlan, lines: Lines, machine: Machine) -> float:
    """The time of all threads, so many at once, and of one after all, in operations of a thread."""
    block = axis(machine, BLOCK)
    limit = (block.limit if block is not None else None) or 1
    beside = p.threads * p.run if lines.along else p.rows
    far, spread = machine.thread_costs.far, max(machine.line_bytes / 4 / beside, 1.0)
    # a thread's loads do not wait for each other, those of another piece wait for its sums
    each = 2 * far * spread / min(p.run, 4) + 3
    one = p.pieces(lines.size) * (p.run * each + far + meeting(p.threads, lines.along, machine))
    blocks = -(-lines.count // p.rows)
    everyone = blocks * max(p.rows * p.threads, limit / machine.thread_costs.small_block)
    return one * everyone / at_once(machine) + one


class ScanKernel(Access):
    """One ``tw.cumsum`` or ``tw.cumprod``; halves are added up in f32."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.x, self.out = self.operand(0), self.opaque.results[0]
        self.sizes = self.shape(self.x)
        a = self.opaque.attributes
        self.axis, self.reverse, self.exclusive = a["axis"] % len(self.sizes), a["reverse"], a["exclusive"]
        self.product = self.opaque.mnemonic == "cumprod"
        self.sum_dtype = wide(self.dtype(self.x))
        self.lead = (*self.sizes[: self.axis], *self.sizes[self.axis + 1 :])

    @property
    def lines(self) -> Lines:
        behind = prod(self.sizes[self.axis + 1 :])
        return Lines(prod(self.lead), self.sizes[self.axis], behind == 1, self.sum_dtype)

    def combine(self, a: Expr, b: Expr) -> Expr:
        return (mul if self.product else add)(a, b)

    def nest(self, plan: ScanPlan, machine: Machine) -> Stmt:
        return _ScanWriter(self, plan, machine).nest()


class _ScanWriter:
    """The nest of one plan."""

    def __init__(self, scan: ScanKernel, plan: ScanPlan, machine: Machine) -> None:
        self.scan, self.plan, self.size = scan, plan, scan.lines.size
        self.team = BlockRows(machine, -(-scan.lines.count // plan.rows), plan.rows, plan.threads, scan.lines.along)
        d = scan.sum_dtype
        self.nothing = Const(float(scan.product) if d in ("f32", "f64") else int(scan.product), d)
        self.held = self.team.own("held", d, plan.run)
        self.last, self.before, self.carry, self.all = (
            self.team.own(n, d) for n in ("last", "before", "carry", "whole")
        )
        self.pieces = plan.pieces(self.size)
        self.piece: Expr = Var("piece") if self.pieces > 1 else Const(0, "index")
        whole = self.team.blocks * plan.rows
        self.inside = within(self.team.number, scan.lines.count, whole)
        wide_access = lanes(machine, scan.dtype(scan.x)) > 1 and scan.lines.along
        self.vector = plan.run if wide_access and not scan.reverse and self.size % plan.run == 0 else 1

    def nest(self) -> Stmt:
        t = self.team
        value = Scanned("sums", self.scan.sum_dtype, self.scan.combine, self.nothing)
        scanned = t.scan([(value, self.last)], [self.before], [self.all])
        one = seq(t.each(self.bring), scanned, t.each(self.finish), *(t.barrier() if self.pieces > 1 else []))
        if self.pieces > 1:
            one = loop("piece", self.pieces, one)
        start = t.each(lambda x: store(self.carry.name, (t.row, x), self.nothing, "start"))
        return t.nest(seq(start, one))

    def place(self, x: Expr, i: Expr | int) -> tuple[Expr, Expr | None]:
        """The position of the i-th of a thread's run, and the condition that there is one."""
        p = self.plan
        at = (self.piece * p.threads + x) * p.run + i
        return at, all_of([self.inside, within(at, self.size, self.pieces * p.threads * p.run)])

    def element(self, at: Expr) -> tuple[Expr, ...]:
        s = self.scan
        j = s.lines.size - 1 - at if s.reverse else at
        outer = unflatten(self.team.number, s.lead)
        return (*outer[: s.axis], j, *outer[s.axis :])

    def of(self, x: Expr, i: Expr | int) -> Load:
        i = Const(i, "index") if isinstance(i, int) else i
        return Load(self.held.name, (self.team.row, x, i), self.held.dtype)

    def run(self, body: Stmt) -> Stmt:
        """A loop over a run: together where its elements are one access."""
        n = self.plan.run
        if self.vector > 1:
            return For(_LANE, Const(n, "index"), body, "vector", n)
        return loop(_LANE, n, body, "unroll") if n > 1 else loop(_LANE, 1, body)

    def bring(self, x: Expr) -> Stmt:
        """Read a thread's run, and add it up from front to back. Registers are set in any case."""
        s, t, i = self.scan, self.team, Var(_LANE)
        at, cond = self.place(x, i)
        read = s.read(s.x, self.element(at))
        mine = self.of(x, i)
        steps: list[Stmt] = []
        if cond is not None and self.vector > 1:  # all of a run are inside, or none
            steps = [self.run(store(mine.buffer, mine.indices, self.nothing, "none"))]
            steps.append(only_if(self.place(x, 0)[1], self.run(store(mine.buffer, mine.indices, read, "bring"))))
        else:
            value = read if cond is None else Op("guard", (cond, read, self.nothing), s.sum_dtype)
            steps = [self.run(store(mine.buffer, mine.indices, value, "bring"))]
        for k in range(1, self.plan.run):
            total = s.combine(self.of(x, k - 1), self.of(x, k))
            steps.append(store(mine.buffer, (t.row, x, Const(k, "index")), total, "add"))
        steps.append(store(self.last.name, (t.row, x), self.of(x, self.plan.run - 1), "last"))
        return seq(*steps)

    def finish(self, x: Expr) -> Stmt:
        """Write what a thread's run comes to, and go on."""
        s, t, i = self.scan, self.team, Var(_LANE)
        carry, before, whole = (t.of(b, x) for b in (self.carry, self.before, self.all))
        start = store(before.buffer, before.indices, s.combine(carry, before), "begin")
        steps: list[Stmt] = [start]
        if s.exclusive:  # each place has what the one before it had
            for k in reversed(range(self.plan.run)):
                one = s.combine(before, self.of(x, k - 1)) if k else before
                steps.append(store(self.held.name, (t.row, x, Const(k, "index")), one, "shift"))
        value: Expr = self.of(x, i) if s.exclusive else s.combine(before, self.of(x, i))
        at, cond = self.place(x, i)
        result = store(s.out, self.element(at), s.narrow(s.out, value), "scan")
        if self.vector > 1:
            at, cond = self.place(x, 0)  # all of a run are inside, or none
            steps.append(only_if(cond, self.run(result)))
        else:
            steps.append(self.run(only_if(cond, result)))
        steps.append(store(carry.buffer, carry.indices, s.combine(carry, whole), "carry"))
        return seq(*steps)


__all__ = ["Lines", "ScanPlan", "ScanKernel", "cost", "plans"]
