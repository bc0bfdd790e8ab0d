"""Stream compaction (NonZero, non-maximum suppression): one thread goes through all elements and counts."""

from __future__ import annotations

from math import prod

from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var
from ....tensor.kernel import Kernel
from ...machine import Machine
from ...nest import Alloc, If, Stmt, loop, seq, store
from .. import direct
from .nests import Access, both, index, is_float, loops, select, variables

I64 = "i64"
F32 = "f32"


def _to_i64(i: Expr) -> Expr:
    return Op("index_cast", (i,), I64)


def _counted(count: str, body: Stmt) -> Stmt:
    """`body` with a counter called "n", whose last value goes to the result `count`."""
    n = Load("n", (), "index")
    ends = store(count, (), _to_i64(n), "count")
    return Alloc(Buffer("n", (), "index", "register"), seq(store("n", (), index(0), "start"), body, ends))


def _zeros(out: str, shape: tuple[int, ...]) -> Stmt:
    return loops("z", shape, store(out, variables("z", shape), Const(0, I64), "rest"))


@direct("non_zero")
def non_zero(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.non_zero``."""
    a = Access(kernel)
    x, (out, count) = a.operand(0), a.opaque.results
    shape = a.shape(x)
    at = variables("i", shape)
    n = Load("n", (), "index")
    value = a.read(x, at)
    if is_float(value):
        wanted: Expr = Op("cmpf.une", (value, Const(0.0, value.dtype)), "i1")
    else:
        wanted = value if value.dtype == "i1" else Op("cmpi.ne", (value, Const(0, value.dtype)), "i1")
    found = [store(out, (index(d), n), _to_i64(i), "found") for d, i in enumerate(at)]
    body = If(wanted, seq(*found, store("n", (), n + 1, "next")))
    return seq(_zeros(out, (len(shape), prod(shape))), _counted(count, loops("i", shape, body)))


@direct("non_max_suppression")
def non_max_suppression(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.non_max_suppression``: take the best box that is left until none is, or enough are kept."""
    s = _Suppression(kernel)
    left = Buffer("left", (max(s.boxes, 1),), I64, "local")
    registers = [Buffer(n, (), t, "register") for n, t in (("best", I64), ("score", F32), ("kept", I64))]
    start = seq(
        loop("k", s.boxes, store("left", (Var("k"),), Const(1, I64), "all")),
        store("kept", (), Const(0, I64), "none"),
        store("best", (), Const(0, I64), "go"),
    )
    one_class: Stmt = seq(start, loop("turn", s.boxes, s.turn()))
    for b in (left, *registers):
        one_class = Alloc(b, one_class)
    body = loop("b", s.batch, loop("c", s.classes, one_class))
    return seq(_zeros(s.out, (s.batch * s.classes * s.boxes, 3)), _counted(s.count, body))


class _Suppression(Access):
    """One ``tw.non_max_suppression``. `best` is the box found last, -1 once there is none."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.out, self.count = self.opaque.results
        self.batch, self.classes, self.boxes = self.shape(self.operand(1))

    def turn(self) -> Stmt:
        """Find the best box that is left; keep it, and drop those that overlap it too much."""
        best, kept = Load("best", (), I64), Load("kept", (), I64)
        going = both(Op("cmpi.sge", (best, Const(0, I64)), "i1"), Op("cmpi.slt", (kept, self.scalar(2)), "i1"))
        found = Op("cmpi.sge", (best, Const(0, I64)), "i1")
        n = Load("n", (), "index")
        row = (_to_i64(Var("b")), _to_i64(Var("c")), best)
        keep = seq(
            *[store(self.out, (n, index(i)), v, "keep") for i, v in enumerate(row)],
            store("n", (), n + 1, "next"),
            store("kept", (), Op("addi", (kept, Const(1, I64)), I64), "kept"),
            loop("o", self.boxes, self.drop(Var("o"))),
        )
        return If(going, seq(self.search(), If(found, keep)))

    def search(self) -> Stmt:
        """best and score: the first of the largest scores above the threshold."""
        i = Var("i")
        value = self.read(self.operand(1), (Var("b"), Var("c"), i))
        better = Op("cmpf.ogt", (value, Load("score", (), F32)), "i1")
        here = Op("cmpi.ne", (Load("left", (i,), I64), Const(0, I64)), "i1")
        take = seq(store("score", (), value, "score"), store("best", (), _to_i64(i), "best"))
        return seq(
            store("score", (), self.scalar(4), "least"),
            store("best", (), Const(-1, I64), "none"),
            loop("i", self.boxes, If(both(here, better), take)),
        )

    def drop(self, o: Expr) -> Stmt:
        """Box o is not left if it overlaps the best one (which overlaps itself) too much."""
        best = Op("index_cast", (Load("best", (), I64),), "index")
        mine: Expr = Const(1.0, F32)
        theirs: Expr = mine
        common: Expr = mine
        for axis in (0, 1):
            (low, high), (other_low, other_high) = self.span(best, axis), self.span(o, axis)
            mine, theirs = self.times(mine, high, low), self.times(theirs, other_high, other_low)
            end, begin = Op("minimumf", (high, other_high), F32), Op("maximumf", (low, other_low), F32)
            size: Expr = Op("maximumf", (Op("subf", (end, begin), F32), Const(0.0, F32)), F32)
            common = Op("mulf", (common, size), F32)
        union = Op("subf", (Op("addf", (mine, theirs), F32), common), F32)
        share: Expr = Op("divf", (common, select(self.above(union), union, Const(1.0, F32))), F32)
        share = select(self.above(union), share, Const(0.0, F32))
        same = Op("cmpi.eq", (o, best), "i1")
        gone = Op("ori", (same, Op("cmpf.ogt", (share, self.scalar(3)), "i1")), "i1")
        return If(gone, store("left", (o,), Const(0, I64), "drop"))

    def above(self, x: Expr) -> Expr:
        return Op("cmpf.ogt", (x, Const(0.0, F32)), "i1")

    def times(self, area: Expr, high: Expr, low: Expr) -> Expr:
        return Op("mulf", (area, Op("subf", (high, low), F32)), F32)

    def span(self, box: Expr, axis: int) -> tuple[Expr, Expr]:
        """Begin and end of a box along an axis."""
        a, b = (self.read(self.operand(0), (Var("b"), box, index(i))) for i in (axis, axis + 2))
        if self.opaque.attributes["center"]:
            half = Op("mulf", (b, Const(0.5, F32)), F32)
            return Op("subf", (a, half), F32), Op("addf", (a, half), F32)
        return Op("minimumf", (a, b), F32), Op("maximumf", (a, b), F32)

    def scalar(self, i: int) -> Expr:
        return self.read(self.operand(i), ())
