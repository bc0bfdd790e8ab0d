"""Recurrent cells: sequences of a batch are independent, and the steps of each run one after the other in cache.

for step:
  g[0:n]  = x[t, b, 0:n] + sum_k h[k] * r[k, 0:n]      # lanes along n, accumulators in registers
  h, c    = gates(g)                                   # lanes along the hidden size
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ....support.dtypes import wide
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, For, Stmt, Store, loop, seq, store
from .. import direct
from .nests import Access, Split, add, divide, index, mul, select, vector_loop


class Cell(Access):
    """One recurrent operator: shapes, names, and the arithmetic of its dtype."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        super().__init__(kernel)
        self.x, self.r, self.h = self.operand(0), self.operand(1), self.operand(2)
        self.attributes = self.opaque.attributes
        self.steps, self.batch, _ = self.shape(self.x)
        self.hidden = self.shape(self.h)[1]
        self.key = wide(self.dtype(self.x))
        self.lanes, self.chains = lanes(machine, self.key), machine.chains
        work = 2 * prod(self.shape(self.x)) * self.hidden
        self.tasks: Split = divide(self.batch, work, machine) if self.batch else Split(1, 1)
        self.b = self.tasks.first + Var("row")

    def optional(self, i: int) -> str | None:
        return self.opaque.operands[i] if i < len(self.opaque.operands) else None

    def number(self, x: float) -> Const:
        return Const(float(x), self.key)

    def local(self, name: str, i: Expr) -> Load:
        return Load(name, (i,), self.key)

    def each(self, size: int, body: Callable[[Expr], Stmt], name: str = "j") -> Stmt:
        return vector_loop(name, size, size, self.lanes, body)

    # ---- arithmetic ----

    def op(self, name: str, *args: Expr) -> Expr:
        return Op(name, args, self.key)

    def exp(self, x: Expr) -> Expr:
        return self.op("exp", x)

    def test(self, predicate: str, a: Expr, b: Expr) -> Expr:
        return Op(f"cmpf.{predicate}", (a, b), "i1")

    def activation(self, k: int) -> Callable[[Expr], Expr]:
        """The k-th activation of the cell, its argument clipped where the operator says so."""
        a = self.attributes
        name, alpha, beta, clip = (
            a["activations"][k],
            self.number(a["alphas"][k]),
            self.number(a["betas"][k]),
            a["clip"],
        )

        def f(x: Expr) -> Expr:
            if clip > 0:
                x = self.op("maximumf", self.op("minimumf", x, self.number(clip)), self.number(-clip))
            return self.function(name, x, alpha, beta)

        return f

    def function(self, name: str, x: Expr, alpha: Expr, beta: Expr) -> Expr:
        zero, one = self.number(0), self.number(1)
        size = self.op("maximumf", x, self.op("negf", x))
        if name == "sigmoid":
            return self.op("divf", one, add(one, self.exp(self.op("negf", x))))
        if name == "tanh":
            return self.op("tanh", x)
        if name == "relu":
            return self.op("maximumf", x, zero)
        if name == "affine":
            return add(mul(alpha, x), beta)
        if name == "leaky_relu":
            return select(self.test("oge", x, zero), x, mul(alpha, x))
        if name == "thresholded_relu":
            return select(self.test("ogt", x, alpha), x, zero)
        if name == "scaled_tanh":
            return mul(alpha, self.op("tanh", mul(beta, x)))
        if name == "hard_sigmoid":
            return self.op("maximumf", self.op("minimumf", add(mul(alpha, x), beta), one), zero)
        if name == "elu":
            return select(self.test("oge", x, zero), x, mul(alpha, self.op("subf", self.exp(x), one)))
        if name == "softsign":
            return self.op("divf", x, add(one, size))
        assert name == "softplus"
        return add(self.op("maximumf", x, zero), self.op("log1p", self.exp(self.op("negf", size))))

    # ---- pieces of the nest ----

    def product(self, vector: str, start: Callable[[Expr], Expr], first: int, count: int, to: str, name: str) -> Stmt:
        """``to[j] = start(j) + sum_k vector[k] * r[k, j]`` for first <= j < first + count."""
        parts: list[Stmt] = []
        wide_block = self.lanes * self.chains
        blocks, rest = divmod(count, wide_block)
        if blocks:
            column = Var(f"{name}_b") * wide_block + first
            wide = self._columns(vector, start, column, self.chains, self.lanes, to, name)
            parts.append(loop(f"{name}_b", blocks, wide))
        at = first + blocks * wide_block
        vectors, tail = divmod(rest, self.lanes)
        if vectors:
            parts.append(self._columns(vector, start, index(at), vectors, self.lanes, to, f"{name}_v"))
        if tail:
            parts.append(self._columns(vector, start, index(at + vectors * self.lanes), 1, tail, to, f"{name}_t"))
        return seq(*parts)

    def _columns(
        self, vector: str, start: Callable[[Expr], Expr], column: Expr, unroll: int, extent: int, to: str, name: str
    ) -> Stmt:
        u, lane = Var(f"{name}_u"), Var(f"{name}_l")
        acc = Buffer(f"{name}_acc", (unroll * self.lanes,), self.key, "register")
        at = u * self.lanes + lane
        j = column + at

        def each(body: Stmt) -> Stmt:
            width = 1 << max(extent - 1, 0).bit_length()
            inner: Stmt = (
                For(lane.name, index(extent), body, "vector", width) if width > 1 else loop(lane.name, 1, body)
            )
            return loop(u.name, unroll, inner, "unroll")

        k = Var(f"{name}_k")
        term = mul(self.local(vector, k), self.read(self.r, (k, j)))
        update = store(acc.name, (at,), add(Load(acc.name, (at,), self.key), term), "product")
        return Alloc(
            acc,
            seq(
                each(store(acc.name, (at,), start(j), "start")),
                loop(k.name, self.hidden, each(update)),
                each(store(to, (j,), Load(acc.name, (at,), self.key), "sum")),
            ),
        )

    def nest(
        self,
        lengths: str | None,
        states: list[tuple[str, str, str]],
        scratch: list[Buffer],
        step: Callable[[Expr], Stmt],
    ) -> Stmt:
        """The loops over sequences and steps; `states` are (local buffer, operand, result), `step(t)` one step."""
        y = self.opaque.results[0]
        steps: Expr = index(self.steps)
        if lengths is not None:
            length = Op("index_cast", (Load(lengths, (self.b,), "i32"),), "index")
            steps = Op("maxsi", (minimum(length, self.steps), index(0)), "index")
        t = steps - 1 - Var("s") if self.attributes["reverse"] else Var("s")
        body: list[Stmt] = [
            self.each(self.hidden, lambda j, a=a, o=o: store(a, (j,), self.read(o, (self.b, j)), "first"))  # type: ignore[misc]
            for a, o, _ in states
        ]
        body.append(loop("s", steps, step(t)))
        body += [
            self.each(self.hidden, lambda j, a=a, r=r: self.write(r, (self.b, j), self.local(a, j), "last"))  # type: ignore[misc]
            for a, _, r in states
        ]
        if lengths is not None:
            after = steps + Var("e")
            rest = index(self.steps) - steps
            body.append(
                loop(
                    "e",
                    rest,
                    self.each(self.hidden, lambda j: self.write(y, (after, self.b, j), self.number(0), "end")),
                )
            )
        inner = seq(*body)
        buffers = [*scratch, *[Buffer(a, (self.hidden,), self.key, "local") for a, _, _ in states]]
        for b in buffers:
            inner = Alloc(b, inner)
        return self.tasks.parallel(loop("row", self.tasks.extent, inner))

    def empty(self) -> bool:
        return self.batch * self.hidden == 0


@direct("rnn")
def rnn(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.rnn``."""
    c = Cell(kernel, machine)
    if c.empty():
        return seq()
    y, last = c.opaque.results
    f, n = c.activation(0), c.hidden

    def step(t: Expr) -> Stmt:
        def write(j: Expr) -> Stmt:
            value = f(c.local("g", j))
            return Store((Target("h", (j,), value), Target(y, (t, c.b, j), c.narrow(y, value))), "cell")

        return seq(c.product("h", lambda j: c.read(c.x, (t, c.b, j)), 0, n, "g", "p"), c.each(n, write))

    return c.nest(c.optional(3), [("h", c.h, last)], [Buffer("g", (n,), c.key, "local")], step)


@direct("gru")
def gru(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.gru``."""
    c = Cell(kernel, machine)
    if c.empty():
        return seq()
    y, last = c.opaque.results
    f, g, n, bias = c.activation(0), c.activation(1), c.hidden, c.optional(3)
    one = c.number(1)

    def step(t: Expr) -> Stmt:
        def x(j: Expr) -> Expr:
            return c.read(c.x, (t, c.b, j))

        def reset(j: Expr) -> Stmt:
            return store("q", (j,), mul(f(c.local("g", j + n)), c.local("h", j)), "reset")

        def write(j: Expr) -> Stmt:
            z = f(c.local("g", j))
            if bias is None:
                new = g(c.local("g", j + 2 * n))
            else:
                new = g(add(x(j + 2 * n), mul(f(c.local("g", j + n)), c.local("g", j + 2 * n))))
            value = add(mul(c.op("subf", one, z), new), mul(z, c.local("h", j)))
            return Store((Target("h", (j,), value), Target(y, (t, c.b, j), c.narrow(y, value))), "cell")

        gates = c.product("h", x, 0, 2 * n, "g", "p")
        if bias is None:
            return seq(gates, c.each(n, reset, "i"), c.product("q", x, 2 * n, n, "g", "w"), c.each(n, write))
        third = c.product("h", lambda j: c.read(bias, (j - 2 * n,)), 2 * n, n, "g", "w")
        return seq(gates, third, c.each(n, write))

    scratch = [Buffer("g", (3 * n,), c.key, "local"), Buffer("q", (n,), c.key, "local")]
    return c.nest(c.optional(4), [("h", c.h, last)], scratch if bias is None else scratch[:1], step)


@direct("lstm")
def lstm(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.lstm``."""
    c = Cell(kernel, machine)
    if c.empty():
        return seq()
    y, last, last_cell = c.opaque.results
    f, g, out = (c.activation(k) for k in range(3))
    n, peephole, cell = c.hidden, c.optional(4), c.operand(3)

    def step(t: Expr) -> Stmt:
        def gate(j: Expr, k: int, own: Expr, place: int) -> Expr:
            value: Expr = c.local("g", j + k * n)
            return value if peephole is None else add(value, mul(c.read(peephole, (j + place * n,)), own))

        def write(j: Expr) -> Stmt:
            old = c.local("c", j)
            i = f(gate(j, 0, old, 0))
            forget = c.op("subf", c.number(1), i) if c.attributes["coupled"] else f(gate(j, 2, old, 2))
            new = add(mul(forget, old), mul(i, g(c.local("g", j + 3 * n))))
            value = mul(f(gate(j, 1, new, 1)), out(new))
            return Store(
                (Target("c", (j,), new), Target("h", (j,), value), Target(y, (t, c.b, j), c.narrow(y, value))), "cell"
            )

        return seq(c.product("h", lambda j: c.read(c.x, (t, c.b, j)), 0, 4 * n, "g", "p"), c.each(n, write))

    scratch = [Buffer("g", (4 * n,), c.key, "local")]
    return c.nest(c.optional(5), [("h", c.h, last), ("c", cell, last_cell)], scratch, step)


__all__ = ["gru", "lstm", "rnn"]
