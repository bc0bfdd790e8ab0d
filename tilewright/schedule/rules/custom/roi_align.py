"""Regions pooled from images: how many samples a bin takes may depend on the region, so that the loops over them are
dynamic."""

from __future__ import annotations

from math import prod

from ....support.dtypes import wide
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine
from ...nest import Alloc, Stmt, loop, seq, store
from .. import direct
from .nests import Access, add, both, divide, extreme, index, mul, select, unflatten, wrapped

#: samples along one side of a bin, at most
MOST = 1 << 14


class Regions(Access):
    """One ``tw.roi_align``: the arithmetic of places."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.x, self.rois, self.batch = (self.operand(i) for i in range(3))
        self.a = self.opaque.attributes
        self.key = wide(self.dtype(self.x))
        self.images, self.channels, self.tall, self.broad = self.shape(self.x)

    def number(self, x: float) -> Const:
        return Const(float(x), self.key)

    def op(self, name: str, *args: Expr) -> Expr:
        return Op(name, args, self.key)

    def float(self, i: Expr) -> Expr:
        return self.op("sitofp", Op("index_cast", (i,), "i64"))

    def index(self, x: Expr) -> Expr:
        return Op("index_cast", (Op("fptosi", (x,), "i64"),), "index")

    def corner(self, region: Expr, i: int) -> Expr:
        place = mul(self.read(self.rois, (region, index(i))), self.number(self.a["scale"]))
        return self.op("subf", place, self.number(0.5)) if self.a["half_pixel"] else place

    def side(self, region: Expr, axis: int, bins: int) -> tuple[Expr, Expr, Expr]:
        """First place, size of a bin and samples in it along y (axis 0) or x (axis 1)."""
        first = self.corner(region, 1 - axis)
        size = self.op("subf", self.corner(region, 3 - axis), first)
        if not self.a["half_pixel"]:
            size = self.op("maximumf", size, self.number(1))
        part = self.op("divf", size, self.number(bins))
        if self.a["samples"]:
            return first, part, index(self.a["samples"])
        count = self.op("minimumf", self.op("ceil", part), self.number(MOST))
        return first, part, minimum(Op("maxsi", (self.index(count), index(0)), "index"), MOST)

    def place(self, side: tuple[Expr, Expr, Expr], bin_: Expr, sample: Expr) -> Expr:
        first, part, count = side
        within = self.op("divf", mul(add(self.float(sample), self.number(0.5)), part), self.float(count))
        return add(add(first, mul(self.float(bin_), part)), within)

    def neighbours(self, place: Expr, size: int) -> tuple[Expr, Expr, Expr]:
        """Positions before and behind a place, and how far it is from the first."""
        place = self.op("minimumf", self.op("maximumf", place, self.number(0)), self.number(size))
        low = minimum(Op("maxsi", (self.index(place), index(0)), "index"), size - 1)
        part = self.op("subf", place, self.float(low))
        last = Op("cmpi.sge", (low, index(size - 1)), "i1")
        return low, minimum(low + 1, size - 1), select(last, self.number(0), part)

    def inside(self, place: Expr, size: int) -> Expr:
        low = Op("cmpf.oge", (place, self.number(-1)), "i1")
        return both(low, Op("cmpf.ole", (place, self.number(size)), "i1"))


@direct("roi_align", writes_once=True)
def build(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.roi_align``."""
    r = Regions(kernel)
    out = r.opaque.results[0]
    shape = r.shape(out)
    if prod(shape) == 0:
        return seq()
    if prod(r.shape(r.x)) == 0:
        return loop("i", prod(shape), r.write(out, unflatten(Var("i"), shape), r.number(0), "empty"))
    lines = divide(shape[0] * shape[1], prod(shape) * 16, machine)
    line = lines.first + Var("line")
    region, channel = line // r.channels, line % r.channels
    image = wrapped(Load(r.batch, (region,), r.dtype(r.batch)), r.images)
    sides = (r.side(region, 0, r.a["height"]), r.side(region, 1, r.a["width"]))
    i, j = Var("i"), Var("j")
    y, x = r.place(sides[0], i, Var("p")), r.place(sides[1], j, Var("q"))
    (y0, y1, fy), (x0, x1, fx) = r.neighbours(y, r.tall), r.neighbours(x, r.broad)
    gy, gx = (r.op("subf", r.number(1), f) for f in (fy, fx))
    parts = [
        mul(mul(a, c), r.read(r.x, (image, channel, p, q)))
        for a, c, p, q in ((gy, gx, y0, x0), (gy, fx, y0, x1), (fy, gx, y1, x0), (fy, fx, y1, x1))
    ]
    maximum = r.a["maximum"]
    value = parts[0]
    for part in parts[1:]:
        value = extreme(value, part, largest=True) if maximum else add(value, part)
    value = Op("guard", (both(r.inside(y, r.tall), r.inside(x, r.broad)), value, r.number(0)), r.key)
    total = Load("total", (), r.key)
    step = store("total", (), extreme(total, value, largest=True) if maximum else add(total, value), "sample")
    samples = loop("p", sides[0][2], loop("q", sides[1][2], step))
    count = sides[0][2] * sides[1][2] if not r.a["samples"] else index(r.a["samples"] ** 2)
    none = Op("cmpi.sle", (count, index(0)), "i1")
    result: Expr = total if maximum else r.op("divf", total, r.float(Op("maxsi", (count, index(1)), "index")))
    result = select(none, r.number(0), result)
    start = store("total", (), r.number(float("-inf") if maximum else 0), "start")
    body: Stmt = seq(start, samples, r.write(out, (region, channel, i, j), result, "result"))
    body = loop("i", shape[2], loop("j", shape[3], Alloc(Buffer("total", (), r.key, "register"), body)))
    return lines.parallel(loop("line", lines.extent, body))
