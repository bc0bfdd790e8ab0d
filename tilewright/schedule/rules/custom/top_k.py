"""Top-k along an axis on a processor, of equal elements the first; lines are independent.

Four ways, by sizes: many short lines in vector lanes (`top_k_lanes`), few of a long line by radix select of a threshold
(`top_k_select`), and here the other ones. For few, a short sorted list takes every element that beats its last one;
blocks of elements of which the best does not are passed over. For many, the line is sorted by merging runs of 1, 2, 4
... elements (merge sort): every step of a merge picks from one of two runs without a branch.
"""

from __future__ import annotations

from math import prod

from ....support.dtypes import FLOATS, wide
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, minimum, neutral
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, For, If, Stmt, Store, loop, seq, store, substitute_vars
from .. import direct
from .nests import Access, at_least, before, both, divide, either, index, less, select, unflatten
from .top_k_lanes import lanes_pay, lists
from .top_k_select import ThresholdSelect, select_pays

#: up to this many elements are kept in a list
LIST = 64
#: vectors of a block of elements that are compared with the list at once
BLOCK = 4
#: what the vector form keeps in registers beside a block: a machine with fewer computes without vectors
LEAST_REGISTERS = 16
I64 = "i64"


class TopKKernel(Access):
    """One ``tw.top_k``: shapes, order, and where results go."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.x = self.operand(0)
        self.values, self.positions = self.opaque.results
        shape = self.shape(self.x)
        self.axis = self.opaque.attributes["axis"] % len(shape)
        self.size, self.k = shape[self.axis], self.opaque.attributes["k"]
        self.lead = (*shape[: self.axis], *shape[self.axis + 1 :])
        self.key = wide(self.dtype(self.x))
        self.order_dtype = "i64" if self.key.endswith("64") else "i32"

    def at(self, line: Expr, i: Expr) -> tuple[Expr, ...]:
        outer = unflatten(line, self.lead)
        return (*outer[: self.axis], i, *outer[self.axis :])

    def lanes(self, machine: Machine, dtype: str) -> int:
        """Lanes of a vector; 1 where there are few registers: 32-bit machines cannot mix vectors and i64 positions."""
        return lanes(machine, dtype) if machine.vector_registers >= LEAST_REGISTERS else 1

    def ahead(self, a: Expr, b: Expr) -> Expr:
        return before(a, b, largest=self.opaque.attributes["largest"], unsigned=self.unsigned(0))

    def order(self, x: Expr) -> Expr:
        """An integer for an element: the larger, the further in front; NaN counts as the largest number."""
        dtype = self.order_dtype
        bits = int(dtype[1:])
        most, all_ones = Const((1 << bits - 1) - 1, dtype), Const(-1, dtype)
        if self.key in FLOATS:
            zero = Const(0.0, self.key)
            x = select(Op("cmpf.oeq", (x, zero), "i1"), zero, x)  # -0 and 0 are equal
            number: Expr = Op("bitcast", (x,), dtype)
            sign = Op("shrsi", (number, Const(bits - 1, dtype)), dtype)
            number = Op("xori", (number, Op("andi", (sign, most), dtype)), dtype)
            number = select(Op("cmpf.uno", (x, x), "i1"), most, number)
        elif self.key == dtype:
            number = Op("xori", (x, Const(-1 << bits - 1, dtype)), dtype) if self.unsigned(0) else x
        else:
            number = Op("extui" if self.unsigned(0) else "extsi", (x,), dtype)
        return number if self.opaque.attributes["largest"] else Op("xori", (number, all_ones), dtype)

    def result(self, line: Expr, i: Expr, value: Expr, position: Expr) -> Store:
        at = self.at(line, i)
        return Store(
            (Target(self.values, at, self.narrow(self.values, value)), Target(self.positions, at, position)), "result"
        )


@direct("top_k")
def build(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.top_k``; halves are compared in f32."""
    t = TopKKernel(kernel)
    lines = prod(t.lead)
    if lines * t.k == 0:
        return seq()
    if lanes_pay(t, machine):
        return lists(t, machine)
    tasks = divide(lines, lines * t.size * 4, machine)
    line = tasks.first + Var("line")
    if select_pays(t, machine):
        body = ThresholdSelect(t, line, machine).build()
    else:
        body = _listed(t, line, machine) if t.k <= LIST else _sorted(t, line)
    return tasks.parallel(loop("line", tasks.extent, body))


def _listed(t: TopKKernel, line: Expr, machine: Machine) -> Stmt:
    """Insert every element into a sorted list of the best so far; places not yet taken have position -1."""
    v, p = Buffer("best", (t.k,), t.key, "local"), Buffer("where", (t.k,), I64, "local")
    new = Buffer("new", (), t.key, "register")
    i, j = Var("i"), Var("j")
    value = Load("new", (), t.key)

    def beats(place: Expr, value: Expr = value) -> Expr:
        """Whether an element, the new one, stands before the one at a place of the list."""
        empty = Op("cmpi.slt", (Load("where", (place,), I64), Const(0, I64)), "i1")
        return either(empty, t.ahead(value, Load("best", (place,), t.key)))

    place = (t.k - 1) - i  # from the end, so that the rest moves over
    previous = Op("maxsi", (place - 1, index(0)), "index")
    shifted = both(at_least(place, 1), beats(previous))
    here = beats(place)

    def moved(name: str, own: Expr, dtype: str) -> Expr:
        return select(shifted, Load(name, (previous,), dtype), select(here, own, Load(name, (place,), dtype)))

    position = Op("index_cast", (j,), I64)
    insert = Store(
        (
            Target("best", (place,), moved("best", value, t.key)),
            Target("where", (place,), moved("where", position, I64)),
        ),
        "insert",
    )
    empty = Store(
        (Target("best", (i,), Const(0.0 if t.key in FLOATS else 0, t.key)), Target("where", (i,), Const(-1, I64))),
        "empty",
    )
    take = store("new", (), t.read(t.x, t.at(line, j)), "take")
    one = Alloc(new, seq(take, If(beats(index(t.k - 1)), loop("i", t.k, insert))))

    def scan(first: Expr | int, count: int) -> Stmt:
        """Insert `count` elements."""
        return loop("n", count, substitute_vars(one, {"j": first + Var("n")}))

    width = t.lanes(machine, t.key)
    block = BLOCK * width
    blocks = t.axis == len(t.lead) and width > 1 and t.key != "i1" and t.size >= 2 * block
    whole = t.size // block if blocks else 0
    parts: list[Stmt] = [loop("i", t.k, empty)]
    if whole:
        first, top = Var("block") * block, Load("top", (), t.key)
        inside = seq(_extreme(t, line, first, width), If(beats(index(t.k - 1), top), scan(first, block)))
        parts.append(loop("block", whole, Alloc(Buffer("top", (), t.key, "register"), inside)))
    if whole * block < t.size:
        parts.append(scan(whole * block, t.size - whole * block))
    result = t.result(line, i, Load("best", (i,), t.key), Load("where", (i,), I64))
    return Alloc(v, Alloc(p, seq(*parts, loop("i", t.k, result))))


def _extreme(t: TopKKernel, line: Expr, first: Expr, width: int) -> Stmt:
    """``top`` = the first element in the order of a block; NaN is the largest number."""
    largest = t.opaque.attributes["largest"]
    kind = ("max" if largest else "min") + ("u" if t.unsigned(0) else "s") + "i"
    if t.key in FLOATS:
        kind = "maximumf" if largest else "minnumf"
    lane = Var("l")
    part, top, none = Load("part", (lane,), t.key), Load("top", (), t.key), neutral(kind, t.key)

    def vector(body: Stmt) -> Stmt:
        return For("l", index(width), body, "vector", width)

    steps = [vector(store("part", (lane,), none, "start"))]
    for n in range(BLOCK):
        x = t.read(t.x, t.at(line, first + n * width + lane))
        steps.append(vector(store("part", (lane,), Op(kind, (x, part), t.key), "block")))
    across = vector(store("top", (), Op(kind, (part, top), t.key), "across"))
    lines = Alloc(Buffer("part", (width,), t.key, "register"), seq(*steps, across))
    return seq(store("top", (), none, "start"), lines)


def _sorted(t: TopKKernel, line: Expr) -> Stmt:
    """A stable merge sort between two rows of local buffers: each pass merges neighbours into runs twice as long."""
    counter = "i32" if t.size < 1 << 31 else I64
    passes = max(t.size - 1, 0).bit_length()
    i, run = Var("i"), Load("run", (), "index")
    zero = index(0)
    first = Op("index_cast", (i,), counter)
    fill = Store((Target("keys", (zero, i), t.read(t.x, t.at(line, i))), Target("where", (zero, i), first)), "fill")
    one_pass = seq(_merge(t, counter), store("run", (), run * 2, "run"))
    row = index(passes % 2)
    position: Expr = Load("where", (row, i), counter)
    position = position if counter == I64 else Op("extsi", (position,), I64)
    body: Stmt = seq(
        loop("i", t.size, fill),
        store("run", (), index(1), "run.start"),
        loop("turn", passes, one_pass),
        loop("i", t.k, t.result(line, i, Load("keys", (row, i), t.key), position)),
    )
    for name, dtype in (("where", counter), ("keys", t.key)):
        body = Alloc(Buffer(name, (2, t.size), dtype, "local"), body)
    return Alloc(Buffer("run", (), "index", "register"), body)


def _merge(t: TopKKernel, counter: str) -> Stmt:
    """One pass: every step takes from the left or the right run, and begins with the next two runs where these end."""
    i, run = Var("i"), Load("run", (), "index")
    source, target = Var("turn") % 2, (Var("turn") + 1) % 2
    begins = Op("cmpi.eq", (i, Load("end", (), "index")), "i1")

    def state(name: str, start: Expr) -> Expr:
        return select(begins, start, Load(name, (), "index"))

    left, middle = state("left", i), state("middle", minimum(i + run, t.size))
    right, end = state("right", minimum(i + run, t.size)), state("end", minimum(i + run * 2, t.size))
    # past the end of a run the element that is read does not count
    a, b = minimum(left, t.size - 1), minimum(right, t.size - 1)
    ahead = t.ahead(Load("keys", (source, b), t.key), Load("keys", (source, a), t.key))
    take = both(less(right, end), either(at_least(left, middle), ahead))  # the left one of equal ones: stable
    chosen = select(take, b, a)
    new = {"left": select(take, left, left + 1), "right": select(take, right + 1, right), "middle": middle, "end": end}
    step = Store((
        Target("keys", (target, i), Load("keys", (source, chosen), t.key)),
        Target("where", (target, i), Load("where", (source, chosen), counter)),
        *[Target(name, (), value) for name, value in new.items()],
    ), "merge")  # fmt: skip
    body: Stmt = seq(Store(tuple(Target(name, (), index(0)) for name in new), "runs"), loop("i", t.size, step))
    for name in new:
        body = Alloc(Buffer(name, (), "index", "register"), body)
    return body
