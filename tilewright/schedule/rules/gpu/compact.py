"""NonZero: stream compaction of the indices of nonzero elements, in order, by one block with a prefix sum of counts.

for each piece of the elements:
    each thread: found = how many of its run are not zero
    scan of found -> before[thread], all
    each thread: the indices of its own, from number carry + before on
    carry = carry + all
the rest of the result is zero
"""

from __future__ import annotations

from math import prod

from ....support.sizes import is_open
from ....tensor.expr import Const, Expr, Load, Op, Var
from ....tensor.kernel import Kernel
from ...machine import Machine
from ...nest import If, Stmt, loop, seq, store
from ...schedule import Schedule
from ..custom.nests import Access, add, index, is_float, select, unflatten
from .block_scans import BlockRows, Scanned
from .tactics import operator_rule
from .thread_binding import BLOCK, axis, guarded, only_if, within

NAME = "block_compact"
PRIORITY = 7
#: neighbours that a thread looks at in a piece
RUN = 4
_COUNT, _PLACE = "i32", "i64"


def write(s: Schedule, machine: Machine) -> Stmt | str:
    read = Access(s.kernel)
    shape = read.shape(read.operand(0))
    if any(map(is_open, shape)):
        return "its sizes are open"
    if prod(shape) == 0:
        return "it has no elements"
    block = axis(machine, BLOCK)
    limit = (block.limit if block is not None else None) or 1
    sizes = [1 << i for i in range(limit.bit_length()) if 1 << i < 2 * -(-prod(shape) // RUN)]
    threads = s.sample_choice("threads", sizes, sizes[-1])
    s.plan = f"one block of {threads} threads, {RUN} neighbours each"
    return _Places(s.kernel, threads, machine).nest()


apply = operator_rule(NAME, write, ("non_zero",), "it finds no places")


class _Places(Access):
    """The nest of ``tw.non_zero``."""

    def __init__(self, kernel: Kernel, threads: int, machine: Machine) -> None:
        super().__init__(kernel)
        self.x, (self.out, self.number) = self.operand(0), self.opaque.results
        self.sizes, self.threads = self.shape(self.x), threads
        self.size = prod(self.sizes)
        self.team = BlockRows(machine, 1, 1, threads, along=True)
        self.flags = self.team.own("flags", _COUNT, RUN)
        self.found, self.before, self.whole, self.carry, self.next = (
            self.team.own(n, _COUNT) for n in ("found", "before", "whole", "carry", "next")
        )
        self.pieces = -(-self.size // (threads * RUN))

    def nest(self) -> Stmt:
        t = self.team
        counted = Scanned("found", _COUNT, add, Const(0, _COUNT))
        one = seq(
            t.each(self.look),
            t.scan([(counted, self.found)], [self.before], [self.whole]),
            t.each(self.put),
            *(t.barrier() if self.pieces > 1 else []),
        )
        if self.pieces > 1:
            one = loop("piece", self.pieces, one)
        return t.nest(seq(t.each(lambda x: self.set("carry", x, Const(0, _COUNT))), one, t.each(self.rest)))

    def reg(self, name: str, x: Expr) -> Load:
        return Load(name, (self.team.row, x), _COUNT)

    def set(self, name: str, x: Expr, value: Expr) -> Stmt:
        return store(name, (self.team.row, x), value, f"set_{name}")

    def at(self, x: Expr, v: int) -> Expr:
        piece = Var("piece") if self.pieces > 1 else index(0)
        return (piece * self.threads + x) * RUN + v

    def look(self, x: Expr) -> Stmt:
        """Which of a thread's run are not zero, and how many."""
        steps, total = [], Const(0, _COUNT)
        found: Expr = total
        for v in range(RUN):
            value = self.read(self.x, unflatten(self.at(x, v), self.sizes))
            if is_float(value):
                wanted: Expr = Op("cmpf.une", (value, Const(0.0, value.dtype)), "i1")
            else:
                wanted = value if value.dtype == "i1" else Op("cmpi.ne", (value, Const(0, value.dtype)), "i1")
            cond = within(self.at(x, v), self.size, self.pieces * self.threads * RUN)
            flag = select(guarded(cond, wanted, Const(False, "i1")), Const(1, _COUNT), Const(0, _COUNT))
            place = (self.team.row, x, index(v))
            steps.append(store(self.flags.name, place, flag, "flag"))
            found = add(found, Load(self.flags.name, place, _COUNT)) if v else Load(self.flags.name, place, _COUNT)
        return seq(*steps, self.set("found", x, found))

    def put(self, x: Expr) -> Stmt:
        """The places of a thread's own, behind those of all before it."""
        steps = [self.set("next", x, add(self.reg("carry", x), self.reg("before", x)))]
        for v in range(RUN):
            flag = Load(self.flags.name, (self.team.row, x, index(v)), _COUNT)
            place = Op("index_cast", (self.reg("next", x),), "index")
            puts = [
                store(self.out, (index(d), place), Op("index_cast", (i,), _PLACE), "found")
                for d, i in enumerate(unflatten(self.at(x, v), self.sizes))
            ]
            steps.append(If(Op("cmpi.ne", (flag, Const(0, _COUNT)), "i1"), seq(*puts)))
            steps.append(self.set("next", x, add(self.reg("next", x), flag)))
        return seq(*steps, self.set("carry", x, add(self.reg("carry", x), self.reg("whole", x))))

    def rest(self, x: Expr) -> Stmt:
        """Zeros behind the last place, and the number of places, which the first thread writes."""
        steps = -(-self.size // self.threads)
        i = Var("z") * self.threads + x if steps > 1 else x
        behind = Op("cmpi.sge", (Op("index_cast", (i,), _COUNT), self.reg("carry", x)), "i1")
        puts = seq(*(store(self.out, (index(d), i), Const(0, _PLACE), "rest") for d in range(len(self.sizes))))
        one = only_if(within(i, self.size, steps * self.threads), If(behind, puts))
        total = store(self.number, (), Op("extsi", (self.reg("carry", x),), _PLACE), "count")
        first = only_if(Op("cmpi.eq", (x, index(0)), "i1") if self.threads > 1 else None, total)
        return seq(loop("z", steps, one) if steps > 1 else one, first)


__all__: list[str] = []
