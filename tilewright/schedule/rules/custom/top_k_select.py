"""Top-k of a line without sorting it: radix select of a threshold that few more than k elements reach, then a ranking.

Numbers become integers of the same order (`TopKKernel.order`), so that counting decides: bit by bit, from the highest
one, ``bar`` (the threshold) grows while at least k integers reach it. It begins with the largest of every 64th integer,
say (of `groups`): the k-th of them is not above the k-th of all, and few more than k integers reach it.

    for every integer: groups[j % 64] = max(groups[j % 64], keys[j])
    bar = the k-th of groups                                     # about
    for blocks of keys whose largest one reaches bar: copy those that do
    if these are many (equal ones, say): bar = the k-th of the copies; keep those above it, and the first equal ones
    for each one left: its place in the result is the number of those that come before it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....support.dtypes import FLOATS
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, minimum
from ...machine import Machine
from ...nest import Alloc, For, If, Stmt, Store, loop, seq, store
from .nests import at_least, both, either, index, less, select

if TYPE_CHECKING:
    from .top_k import TopKKernel

#: lines from so many elements on, and up to so many, for their integers are kept; k up to this, for k * k are compared
SHORT, LONG, MOST = 96, 1 << 20, 1024
#: groups for one of the k, and the least number of them: with 4, a seventh more than k integers reach the first
#: threshold
GROUPS, LEAST = 4, 64
#: bits of the first threshold where integers stand for floats: sign, exponent, and enough for few more than k to reach
#: it
ROUGH = {"i32": 20, "i64": 24}
#: vectors that are compared with the threshold at once, where at most one block of SPARSE integers holds one that is
#: taken
BLOCK, SPARSE = 4, 128


def select_pays(t: TopKKernel, machine: Machine) -> bool:
    """Whether a line is long enough, and its integers and their ranks are not too many."""
    return SHORT <= t.size <= LONG and t.k <= MOST and t.lanes(machine, t.order_dtype) > 1


class ThresholdSelect:
    """The loops for one line."""

    def __init__(self, t: TopKKernel, line: Expr, machine: Machine) -> None:
        self.t, self.line = t, line
        self.dtype = t.order_dtype
        self.width = t.lanes(machine, self.dtype)
        self.vectors = -(-t.size // self.width)
        self.least = Const(-(1 << int(self.dtype[1:]) - 1), self.dtype)
        groups = max(LEAST, 1 << (GROUPS * t.k - 1).bit_length())
        self.groups = min(groups // self.width, self.vectors)  # in vectors
        self.most = min(2 * t.k + LEAST, self.vectors * self.width)  # integers that are ranked

    def build(self) -> Stmt:
        t, w = self.t, self.width
        padded = self.vectors * w
        many = Op("cmpi.sgt", (Load("count", (), "index"), index(self.most)), "i1")
        narrow = If(many, seq(self.kth("close", self.copied_vectors(padded)), self.keep()))
        body = seq(
            self.keys(),
            self.kth("groups", index(self.groups), ROUGH[self.dtype] if t.key in FLOATS else None),
            store("count", (), index(0), "none"),
            *self.copy(),
            self.pad("close"),
            *([narrow] if self.most < padded else []),
            self.rank(),
        )
        buffers = [
            self.register("bar", self.dtype), self.register("count", "index"),
            Buffer("keys", (padded,), self.dtype, "local"), Buffer("groups", (self.groups * w,), self.dtype, "local"),
            Buffer("close", (padded + w,), self.dtype, "local"), Buffer("found", (padded,), "i32", "local"),
        ]  # fmt: skip
        for b in buffers:
            body = Alloc(b, body)
        return body

    # ---- pieces ----

    def register(self, name: str, dtype: str) -> Buffer:
        return Buffer(name, (), dtype, "register")

    def load(self, buffer: str, i: Expr) -> Load:
        return Load(buffer, (i,), self.dtype)

    def vector(self, body: Stmt, extent: int | None = None) -> Stmt:
        return For("l", index(extent or self.width), body, "vector", self.width)

    def pad(self, buffer: str) -> Stmt:
        """A vector of the least integer behind the others, so that what walks in vectors counts nothing there."""
        last = Load("count", (), "index") if buffer == "close" else index(self.t.size // self.width * self.width)
        return self.vector(store(buffer, (last + Var("l"),), self.least, "pad"))

    def copied(self, most: int) -> Expr:
        """How many integers ``close`` holds, with a bound that loops need."""
        return minimum(Load("count", (), "index"), most)

    def copied_vectors(self, most: int) -> Expr:
        return (self.copied(most) + (self.width - 1)) // self.width

    def larger(self, a: Expr, b: Expr) -> Expr:
        return Op("maxsi", (a, b), self.dtype)

    # ---- steps ----

    def keys(self) -> Stmt:
        """The integers of a line, and the largest of every `groups` vectors' lane."""
        w, size, lane = self.width, self.t.size, Var("l")

        def one(first: Expr, group: Expr, extent: int = w) -> Stmt:
            x = self.t.read(self.t.x, self.t.at(self.line, first + lane))
            here = group * w + lane
            most = self.larger(self.load("groups", here), self.load("keys", first + lane))
            key = self.vector(store("keys", (first + lane,), self.t.order(x), "key"), extent)
            return seq(key, self.vector(store("groups", (here,), most, "group")))

        turns, rest = divmod(size // w, self.groups)
        turn, g = Var("turn"), Var("g")
        steps: list[Stmt] = [loop("g", self.groups, self.vector(store("groups", (g * w + lane,), self.least, "start")))]
        if turns:
            steps.append(loop("turn", turns, loop("g", self.groups, one((turn * self.groups + g) * w, g))))
        if rest:
            steps.append(loop("g", rest, one((g + turns * self.groups) * w, g)))
        if size % w:
            last = index(size // w * w)
            steps += [self.pad("keys"), one(last, index(rest), size % w)]
        return seq(*steps)

    def count(self, buffer: str, vectors: Expr, holds: str, bar: Expr, name: str) -> Stmt:
        """``name`` = how many integers of a buffer compare so with a threshold."""
        lane, w = Var("l"), self.width
        part = Load("part", (lane,), self.dtype)
        hit = Op(f"cmpi.{holds}", (self.load(buffer, Var("v") * w + lane), bar), "i1")
        one, none = Const(1, self.dtype), Const(0, self.dtype)
        add = store("part", (lane,), Op("addi", (part, select(hit, one, none)), self.dtype), "count")
        total = store(name, (), Op("addi", (Load(name, (), self.dtype), part), self.dtype), "across")
        return Alloc(
            Buffer("part", (w,), self.dtype, "register"),
            seq(
                self.vector(store("part", (lane,), none, "start")),
                loop("v", vectors, self.vector(add)),
                store(name, (), none, "start"),
                self.vector(total),
            ),
        )

    def kth(self, buffer: str, vectors: Expr, rough: int | None = None) -> Stmt:
        """``bar`` = the k-th largest integer of a buffer, or that with all but the first `rough` bits 0."""
        bits = int(self.dtype[1:])
        place = Op("index_cast", (index(bits - 1) - Var("bit"),), self.dtype)
        step = Op("shli", (Const(1, self.dtype), place), self.dtype)
        bar, higher, number = (Load(n, (), self.dtype) for n in ("bar", "higher", "number"))
        enough = Op("cmpi.sge", (number, Const(self.t.k, self.dtype)), "i1")
        one_bit = seq(
            store("higher", (), Op("addi", (bar, step), self.dtype), "higher"),
            self.count(buffer, vectors, "sge", higher, "number"),
            store("bar", (), select(enough, higher, bar), "bar"),
        )
        for name in ("higher", "number"):
            one_bit = Alloc(self.register(name, self.dtype), one_bit)
        return seq(store("bar", (), self.least, "start"), loop("bit", rough or bits, one_bit))

    def copy(self) -> Sequence[Stmt]:
        """Integers that reach the threshold, and their positions, to ``close`` and ``found``."""
        sparse = self.t.size >= SPARSE * self.t.k
        blocks = self.vectors // BLOCK if sparse else 0
        steps = []
        if blocks:
            steps.append(loop("block", blocks, self.block(Var("block") * (BLOCK * self.width), BLOCK)))
        if blocks * BLOCK < self.vectors:
            first = (Var("block") + blocks * BLOCK) * self.width
            steps.append(loop("block", self.vectors - blocks * BLOCK, self.block(first, 1)))
        return steps

    def block(self, first: Expr, vectors: int) -> Stmt:
        """Look at a block's integers one by one if the largest reaches the threshold; without a branch for each."""
        w, lane, top, count = self.width, Var("l"), Load("top", (), self.dtype), Load("count", (), "index")
        part = Load("part", (lane,), self.dtype)
        steps = [self.vector(store("part", (lane,), self.load("keys", first + lane), "first"))]
        for v in range(1, vectors):
            more = self.larger(part, self.load("keys", first + v * w + lane))
            steps.append(self.vector(store("part", (lane,), more, "block")))
        steps += [
            store("top", (), self.least, "start"),
            self.vector(store("top", (), self.larger(top, part), "across")),
        ]
        i = first + Var("i")
        reaches = Op("cmpi.sge", (self.load("keys", i), Load("bar", (), self.dtype)), "i1")
        one = seq(
            store("close", (count,), self.load("keys", i), "copy"),
            store("found", (count,), Op("index_cast", (i,), "i32"), "copy"),
            store("count", (), count + select(reaches, index(1), index(0)), "next"),
        )
        hit = Op("cmpi.sge", (top, Load("bar", (), self.dtype)), "i1")
        body: Stmt = seq(*steps, If(hit, loop("i", vectors * w, one)))
        return Alloc(self.register("top", self.dtype), Alloc(Buffer("part", (w,), self.dtype, "register"), body))

    def keep(self) -> Stmt:
        """Of the copies only the k that count stay; of equal ones the first."""
        i, bar, most = Var("i"), Load("bar", (), self.dtype), self.vectors * self.width
        left, kept = Load("left", (), "index"), Load("kept", (), "index")
        key = self.load("close", i)
        tie = both(Op("cmpi.eq", (key, bar), "i1"), at_least(left, 1))
        wanted = either(Op("cmpi.sgt", (key, bar), "i1"), tie)
        one = Store((
            Target("close", (kept,), key), Target("found", (kept,), Load("found", (i,), "i32")),
            Target("kept", (), kept + select(wanted, index(1), index(0))),
            Target("left", (), left - select(tie, index(1), index(0))),
        ), "keep")  # fmt: skip
        above = Op("index_cast", (Load("above", (), self.dtype),), "index")
        body = seq(
            self.count("close", self.copied_vectors(most), "sgt", bar, "above"),
            store("left", (), index(self.t.k) - above, "left"),
            store("kept", (), index(0), "none"),
            loop("i", self.copied(most), one),
            store("count", (), index(self.t.k), "count"),
            self.pad("close"),
        )
        for b in (self.register("above", self.dtype), self.register("left", "index"), self.register("kept", "index")):
            body = Alloc(b, body)
        return body

    def rank(self) -> Stmt:
        """Write the copies to their places. They lie in the order of their positions: of equal ones the first wins."""
        w, lane, i, v, here = self.width, Var("l"), Var("i"), Var("v"), Var("i") // self.width
        part, place = Load("part", (lane,), self.dtype), Load("place", (), self.dtype)
        one, none = Const(1, self.dtype), Const(0, self.dtype)

        def compared(holds: str, first: Expr) -> Expr:
            return Op(f"cmpi.{holds}", (self.load("close", first + lane), self.load("close", i)), "i1")

        def counted(hit: Expr) -> Stmt:
            return self.vector(store("part", (lane,), Op("addi", (part, select(hit, one, none)), self.dtype), "rank"))

        earlier = both(compared("eq", here * w), less(here * w + lane, i))
        after = v + here + 1
        behind = minimum(self.copied_vectors(self.most) - here - 1, -(-self.most // w))
        position = Load("found", (i,), "i32")
        value = self.t.read(self.t.x, self.t.at(self.line, Op("index_cast", (position,), "index")))
        write = self.t.result(self.line, Op("index_cast", (place,), "index"), value, Op("extsi", (position,), "i64"))
        body: Stmt = seq(
            self.vector(store("part", (lane,), none, "start")),
            loop("v", here, counted(compared("sge", v * w))),
            counted(either(compared("sgt", here * w), earlier)),
            loop("v", behind, counted(compared("sgt", after * w))),
            store("place", (), none, "start"),
            self.vector(store("place", (), Op("addi", (place, part), self.dtype), "across")),
            If(Op("cmpi.slt", (place, Const(self.t.k, self.dtype)), "i1"), write),
        )
        for b in (Buffer("part", (w,), self.dtype, "register"), self.register("place", self.dtype)):
            body = Alloc(b, body)
        return loop("i", self.copied(self.most), body)
