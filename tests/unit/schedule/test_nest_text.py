"""The text form of loop nests: what is printed is read back exactly, and bad text gives one located error."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.schedule.nest import Alloc, For, If, Nest, Pack, Seq, Stmt, Store, Target
from tilewright.schedule.parse import ARITY
from tilewright.schedule.text import NestSyntaxError, format_nest, parse_nest
from tilewright.tensor.expr import CASTS, Buffer, Const, Expr, Load, Op, Var

MODELS = sorted((Path(__file__).parents[3] / "benchmarks" / "models").glob("*_tiny.onnx"))


class Random:
    """Random well-typed nests that use everything the text form has."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.buffers = {
            "p0": Buffer("p0", (4, 8), "f32"),
            "p1": Buffer("p1", (), "i32"),
            "p2": Buffer("p2", (2, 4, 4), "f32"),
            "p3": Buffer("p3", (8,), "f64"),
            "p4": Buffer("p4", (8,), "i1"),
        }
        self.params = tuple(self.buffers.values())
        self.made = 0

    def nest(self) -> Nest:
        packs = {"p2": Pack("p2", ((), (4,)), (1, 0, 2))} if self.rng.random() < 0.5 else {}
        outputs = self.rng.choice([(), ("p3",), ("p3", "p4"), ("p4", "p3")])
        return Nest("kernel", self.params, outputs, self.stmt(4, ()), packs)

    def name(self, base: str) -> str:
        self.made += 1
        return f"{base}{self.made}"

    def stmt(self, depth: int, loops: tuple[str, ...]) -> Stmt:
        kind = self.rng.choice(["for", "for", "if", "alloc", "seq", "store"]) if depth else "store"
        if kind == "for":
            var = self.name("i")
            what, lanes = self.rng.choice([("serial", 0), ("thread", 0), ("unroll", 0), ("vector", 16), ("vector", 0)])
            return For(var, self.index(2, loops), self.stmt(depth - 1, (*loops, var)), what, lanes)
        if kind == "if":
            other = self.stmt(depth - 1, loops) if self.rng.random() < 0.5 else None
            return If(self.expr("i1", 2, loops), self.stmt(depth - 1, loops), other)
        if kind == "alloc":
            b = Buffer(
                self.name("t"), self.rng.choice([(), (4,), (2, 3)]), "f32", self.rng.choice(["local", "register"])
            )
            self.buffers[b.name] = b
            body = self.stmt(depth - 1, loops)
            del self.buffers[b.name]
            return Alloc(b, body)
        if kind == "seq":  # also sequences in sequences, of one statement, and empty
            return Seq(tuple(self.stmt(depth - 1, loops) for _ in range(self.rng.choice([0, 1, 2, 3, 3]))))
        return self.store(loops)

    def store(self, loops: tuple[str, ...]) -> Store:
        targets = []
        reduction = tuple(v for v in loops if self.rng.random() < 0.2)
        for _ in range(self.rng.choice([1, 1, 1, 2])):
            b = self.rng.choice(list(self.buffers.values()))
            init = self.expr(b.dtype, 1, loops) if self.rng.random() < 0.3 else None
            targets.append(
                Target(b.name, tuple(self.index(2, loops) for _ in b.shape), self.expr(b.dtype, 3, loops), init)
            )
        return Store(tuple(targets), self.rng.choice(["", "s0", "s0.init", "odd name", "class"]), reduction)

    def index(self, depth: int, loops: tuple[str, ...]) -> Expr:
        kind = self.rng.choice(["const", "var", "op", "op"]) if depth else self.rng.choice(["const", "var"])
        if kind == "var" and loops:
            return Var(self.rng.choice(loops))
        if kind != "op":
            return Const(self.rng.choice([-16, -1, 0, 1, 3, 100]), "index")
        if self.rng.random() < 0.1:
            return Op("index_cast", (self.expr("i32", depth - 1, loops),), "index")
        rare = ["floordivsi", "remsi", "minsi", "maxsi", "subi", "divui"]
        name = self.rng.choice(["addi", "addi", "addi", "muli", "muli", *rare])
        return Op(name, (self.index(depth - 1, loops), self.index(depth - 1, loops)), "index")

    def expr(self, dtype: str, depth: int, loops: tuple[str, ...]) -> Expr:
        if depth == 0 or self.rng.random() < 0.2:
            matching = [b for b in self.buffers.values() if b.dtype == dtype]
            if matching and self.rng.random() < 0.6:
                b = self.rng.choice(matching)
                return Load(b.name, tuple(self.index(1, loops) for _ in b.shape), dtype)
            if self.rng.random() < 0.1:
                return Var("scalar", dtype)
            floats = [0.0, -0.0, 1.5, -1e-30, float("inf"), float("-inf"), 3]
            values = {"i1": [True, False], "i32": [0, -7, 2**31 - 1], "i8": [-128, 127]}.get(dtype, floats)
            return Const(self.rng.choice(values), dtype)
        again = [self.expr(dtype, depth - 1, loops) for _ in range(3)]
        if self.rng.random() < 0.2:
            return Op(self.rng.choice(["select", "guard"]), (self.expr("i1", depth - 1, loops), *again[:2]), dtype)
        if dtype == "i1":
            if self.rng.random() < 0.5:
                predicate = self.rng.choice(["cmpi.eq", "cmpi.slt", "cmpi.sge", "cmpi.ult"])
                return Op(predicate, (self.index(1, loops), self.index(1, loops)), "i1")
            other = self.expr("f32", depth - 1, loops)
            return Op(self.rng.choice(["cmpf.olt", "cmpf.une"]), (other, other), "i1")
        if dtype in ("i32", "i8"):
            if self.rng.random() < 0.3:
                return Op("fptosi", (self.expr("f32", depth - 1, loops),), dtype)
            return Op(self.rng.choice(["addi", "minsi", "shrui"]), tuple(again[:2]), dtype)
        if self.rng.random() < 0.2:
            return Op("sitofp", (self.expr("i32", depth - 1, loops),), dtype)
        name = self.rng.choice(["addf", "mulf", "fma", "exp", "maximumf"])
        shared = again[0]
        return Op(
            name, {1: (shared,), 2: (shared, self.rng.choice(again)), 3: (shared, shared, again[1])}[ARITY[name]], dtype
        )


@pytest.mark.parametrize("start", range(0, 1000, 250))
def test_random_nests_are_read_back(start):
    for seed in range(start, start + 250):
        nest = Random(seed).nest()
        text = format_nest(nest)
        assert parse_nest(text) == nest, text
        assert format_nest(parse_nest(text)) == text


@pytest.mark.skipif(not MODELS, reason="the benchmark models are not here: run `make models`")
@pytest.mark.parametrize("model", MODELS, ids=lambda p: p.stem)
def test_nests_of_models_are_read_back(model):
    state = tw.compile(str(model), stop_after="schedule").state
    assert state.nests
    for name, finished in state.nests.items():
        for nest in (state.schedules[name].schedule.nest(), finished):
            text = format_nest(nest)
            assert parse_nest(text) == nest
            assert format_nest(parse_nest(text)) == text


def expression(e: Expr) -> str:
    """How an f32 expression is printed."""
    nest = Nest("k", (Buffer("y", (), "f32"),), ("y",), For("i", Const(4, "index"), Store((Target("y", (), e),), "s")))
    assert parse_nest(str(nest)) == nest
    return str(nest).split(" = ", 1)[1]


def test_expressions():
    i, one = Var("i"), Const(1.0, "f32")
    assert expression(Const(float("-inf"), "f32")) == "f32(-inf)"
    assert expression(Op("sitofp", (Op("addi", (i, i), "index"),), "f32")) == "sitofp[f32](i + i)"
    raw = Op("addi", (i, Op("muli", (i, Const(-3, "index")), "index")), "index")
    assert expression(Op("sitofp", (raw,), "f32")) == "sitofp[f32](i - i * 3)"
    assert expression(Op("addf", (one, one), "f32")) == "addf(f32(1.0), f32(1.0))"
    compare = Op("cmpi.slt", (i, Const(3, "index")), "i1")
    assert expression(Op("select", (compare, one, one), "f32")) == "select(i < 3, f32(1.0), f32(1.0))"


def test_texts_and_traces_of_before_are_read():
    """Loops of threads were called parallel, and their axis threads."""
    text = "def k(x: f32[4], y: out(f32[4])):\n    for i in {}(4):\n        s0: y[i] = x[i]"
    assert format_nest(parse_nest(text.format("parallel"))) == text.format("thread")
    kernel = tw.te.from_nest(text.format("serial"))
    for step in ("s.parallel('i')", "s.bind('i', 'threads')", "s.bind('i', 'thread')"):
        trace = f"# loops: i\n# blocks: s0\n# buffers: x, y\n{step}\n"
        assert str(tw.Schedule.replay(kernel, trace)) == text.format("thread")


def test_nan_keeps_its_sign():
    for sign in (1.0, -1.0):
        nest = Nest(
            "k", (Buffer("y", (), "f32"),), ("y",), Store((Target("y", (), Const(sign * float("nan"), "f32")),))
        )
        assert str(parse_nest(str(nest))) == str(nest)


def test_deep_and_shared_expressions_stay_short():
    e: Expr = Load("x", (), "f32")
    for _ in range(300):  # a tree of 2**300 nodes
        e = Op("addf", (e, Op("exp", (e,), "f32")), "f32")
    nest = Nest("k", (Buffer("x", (), "f32"), Buffer("y", (), "f32")), ("y",), Store((Target("y", (), e),), "s0"))
    text = format_nest(nest)
    assert len(text.splitlines()) < 310
    assert format_nest(parse_nest(text)) == text


def test_every_operation_has_an_arity():
    assert set(ARITY) >= CASTS
    from tilewright.tensor.evaluate import _BITWISE_FLOAT, _CASTS, _EXACT, _INTEGER, _TRANSCENDENTAL

    assert {*_BITWISE_FLOAT, *_CASTS, *_EXACT, *_INTEGER, *_TRANSCENDENTAL} <= set(ARITY)


HEAD = "def k(x: f32[4], y: out(f32[4])):\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected one function"),
        ("x = 1", "line 1: expected one function"),
        ("def k(x: f32[4]:\n    pass", "line 1: "),
        ("def k(x: f31[4]):\n    pass", "line 1: expected a dtype (f64 f32"),
        ("def k(x):\n    pass", "line 1: expected a type such as `f32[4, 16]`"),
        ("def k(x: f32[4], x1: f32[-4]):\n    pass", "line 1: expected sizes that are not negative"),
        ("def k(x: twice(f32[4])):\n    pass", "line 1: expected `dtype[shape]`, `out(...)`"),
        (HEAD + "    for i in serial(4):\n        s0: y[i] = expf(x[i])", "line 3: expected an operation"),
        (
            HEAD + "    for i in serial(4):\n        s0: y[j] = x[i]",
            "line 3: expected the variable of an enclosing loop, not `j`",
        ),
        (
            HEAD + "    for i in serial(4):\n        s0: y[i, i] = x[i]",
            "line 3: expected 1 indices for y, which has shape [4]",
        ),
        (HEAD + "    for i in serial(4):\n        s0: z[i] = x[i]", "line 3: expected a buffer declared before (x, y)"),
        (HEAD + "    for i in serial(4):\n        s0: y[i] = addf(x[i])", "line 3: expected 2 operands of addf"),
        (HEAD + "    for i in serial(4):\n        s0: y[i] = x[i] + x[i]", "line 3: expected index arithmetic"),
        (HEAD + "    for i in serial(4):\n        s0: y[i] = i32(1)", "line 3: expected a value of type f32"),
        (
            HEAD + "    for i in serial(4):\n        s0: y[i] = sitofp(i)",
            "line 3: expected the result's type: `sitofp[dtype](...)`",
        ),
        (HEAD + "    for i in serial(4):\n        s0: y[i] = f32(one)", "line 3: expected a number of type f32"),
        (HEAD + "    for i in range(4):\n        pass", "line 2: expected a kind of loop with its extent: serial(n)"),
        (HEAD + "    for i in vector(4, width=4):\n        pass", "line 2: expected no argument but `lanes`"),
        (
            HEAD + "    for i in serial(4):\n        for i in serial(4):\n            pass",
            "line 3: expected a new name: i",
        ),
        (HEAD + "    if x[0]:\n        pass", "line 2: expected a condition (i1)"),
        (HEAD + "    while True:\n        pass", "line 2: expected a loop, `if`, an allocation or a store"),
        (
            HEAD + "    s0: y[0] = reduce(x[0], init=f32(0.0))",
            "line 2: expected `reduce(value, init=..., over=(loops,))`",
        ),
        (HEAD + "    s0: y[0] = reduce(x[0], init=f32(0.0), over=(k,))", "line 2: expected a tuple of enclosing loops"),
        (HEAD + "    s0: (y[0], y[1]) = x[0]", "line 2: expected 2 values, one for each target"),
        (HEAD + "    y = local(f32[4])", "line 2: expected a new name: buffer y is declared already"),
        (
            HEAD + "    with global_(f32[4]) as t:\n        pass",
            "line 2: expected a memory of the machine (local, register)",
        ),
        (
            HEAD + "    t = shared(f32[4])",
            "line 2: expected a memory of the machine (local, register), not `shared(f32[4])`",
        ),
        (
            HEAD + "    with group(1):\n        pass",
            "line 2: expected `with local(dtype[shape]) as name:` or `with async_copy",
        ),
        (
            HEAD + "    for i in grid.x(4):\n        pass",
            "line 2: expected a kind of loop with its extent: serial(n), unroll(n), vector(n), thread(n)",
        ),
        (HEAD + "    barrier(block)", "line 2: expected a barrier of the machine (it has none), not `barrier(block)`"),
        (HEAD + "    barrier(1)", "line 2: expected `barrier(scope)`"),
        (HEAD + "    wait(t, last=1)", "line 2: expected `barrier(scope)` or `wait(token, pending=0)`"),
    ],
)
def test_errors_have_a_line_and_what_was_expected(text, message):
    with pytest.raises(NestSyntaxError) as info:
        parse_nest(text)
    assert message in info.value.message
