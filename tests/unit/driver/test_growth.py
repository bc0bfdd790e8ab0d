"""The work of a compilation grows with the model and not faster: calls of functions are counted, of n and of 2n."""

from __future__ import annotations

import sys
from functools import cache

import numpy as np
import pytest

from tests.support.onnx_models import model, node, value
from tilewright.driver.compiler import compile_state
from tilewright.tensor.expr import Const, Op, Var, bounds, linear, simplify, substitute, variables, walk
from tilewright.tensor.kernel_size import MOST_OPERATIONS


def chain(step, n, shape=(4, 5), **constants):
    """`step` gives the nodes from one value to the next."""
    nodes = [x for i in range(n) for x in step(i, f"v{i}", f"v{i + 1}")]
    return model(nodes, [value("v0", shape)], [value(f"v{n}")], constants)


def several(operator, n, **attributes):
    names = [f"x{i}" for i in range(n)]
    return model([node(operator, " ".join(names), "y", **attributes)], [value(x, (2, 3)) for x in names], [value("y")])


def fibonacci(n):
    nodes = [node("Sin", "x", "v0"), node("Cos", "x", "v1")]
    for i in range(2, n):
        nodes += [node("Add", f"v{i - 1} v{i - 2}", f"w{i}"), node("Tanh", f"w{i}", f"v{i}")]
    return model(nodes, [value("x", (4, 5))], [value(f"v{n - 1}")])


def add_tree(n):
    names = level = [f"x{i}" for i in range(n)]
    nodes = []
    while len(level) > 1:
        made = [f"t{len(level)}_{i}" for i in range(len(level) // 2)]
        nodes += [node("Add", f"{level[2 * i]} {level[2 * i + 1]}", t) for i, t in enumerate(made)]
        level = made + level[2 * len(made) :]
    return model(nodes, [value(x, (2, 3)) for x in names], [value(level[0])])


def sliced_sums(n):
    """Each reads two places of the one before, further apart each time: 2^n places in all."""
    nodes, constants = [], {"z": [0], "axis": [1], "end": [1 << 40]}
    for i in range(n):
        constants |= {f"e{i}": [-(1 << i % 8)], f"b{i}": [1 << i % 8]}
        nodes += [node("Slice", f"v{i} z e{i} axis", f"p{i}"), node("Slice", f"v{i} b{i} end axis", f"q{i}")]
        nodes += [node("Add", f"p{i} q{i}", f"v{i + 1}")]
    return model(nodes, [value("v0", (2, 4000))], [value(f"v{n}")], constants)


def moved(i, a, b):
    turn = [(1, 0, 2), (0, 2, 1), (2, 1, 0)][i % 3]
    return [
        node("Reshape", f"{a} parts", f"p{i}"),
        node("Transpose", f"p{i}", f"q{i}", perm=turn),
        node("Reshape", f"q{i} whole", b),
    ]


def where(i, a, b):
    return [node("Greater", f"{a} c", f"g{i}"), node("Neg", a, f"m{i}"), node("Where", f"g{i} m{i} {a}", b)]


FAMILIES = {
    "squares": (lambda n: chain(lambda i, a, b: [node("Mul", f"{a} {a}", b)], n), 24),
    "functions": (lambda n: chain(lambda i, a, b: [node(("Sin", "Relu", "Tanh")[i % 3], a, b)], n), 200),
    "fibonacci": (fibonacci, 30),
    "where": (lambda n: chain(where, n, c=np.float32(0.5)), 24),
    "residuals": (
        lambda n: chain(
            lambda i, a, b: [
                node("Tanh", a, f"p{i}"),
                node("Mul", f"p{i} c", f"q{i}"),
                node("Add", f"{a} q{i}", b),
            ],
            n,
            c=np.float32(0.5),
        ),
        40,
    ),
    "moved": (lambda n: chain(moved, n, (12, 20), parts=[4, 6, 10], whole=[12, 20]), 24),
    "sliced sums": (sliced_sums, 12),
    "padded": (
        lambda n: chain(
            lambda i, a, b: [node("Pad", f"{a} w", f"p{i}"), node("Sin", f"p{i}", b)], n, w=np.array([0, 1, 0, 1])
        ),
        20,
    ),
    "concat": (lambda n: several("Concat", n, axis=1), 40),
    "max": (lambda n: several("Max", n), 80),
    "add tree": (add_tree, 64),
    "split": (
        lambda n: model(
            [node("Split", "x", " ".join(f"s{i}" for i in range(n)), axis=1, num_outputs=n)]
            + [node("Sin", f"s{i}", f"y{i}") for i in range(n)],
            [value("x", (2, 3 * n))],
            [value(f"y{i}") for i in range(n)],
        ),
        30,
    ),
}


def calls(source) -> tuple[int, object]:
    """How many functions are called until there are loop nests."""
    count = 0

    def seen(frame, event, argument):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        state, _ = compile_state(source, stop_after="schedule", cache=False, threads=1)
    finally:
        sys.setprofile(before)
    return count, state


@cache
def warm() -> None:
    compile_state(several("Max", 2), stop_after="schedule", cache=False, threads=1)


@pytest.mark.parametrize("name", FAMILIES)
def test_work(name):
    """Twice the model takes at most 2.3 times the calls (a kernel of many parts a little more: what is asked of each
    part looks at all of them), and kernels end somewhere."""
    warm()
    made, n = FAMILIES[name]
    (small, _), (large, state) = calls(made(n)), calls(made(2 * n))
    assert large <= (2.8 if name == "concat" else 2.3) * small, (small, large)
    for nest in state.nests.values():
        found = {x for s in nest.body.stores for t in s.targets for x in walk(t.value)}
        assert sum(isinstance(x, Op) and x.dtype != "index" for x in found) <= MOST_OPERATIONS


def test_results_of_long_chains():
    """Kernels that were cut give what the chain says."""
    import tilewright as tw

    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    want = x
    for i in range(400):
        want = (np.sin, lambda v: np.maximum(v, 0), np.tanh)[i % 3](want)
    run = tw.compile(FAMILIES["functions"][0](400), cache=False, threads=1)
    np.testing.assert_allclose(run(x)[0], want, rtol=1e-5, atol=1e-6)
    y = np.full((4, 5), 0.999, np.float32)
    run = tw.compile(FAMILIES["squares"][0](12), cache=False, threads=1)
    np.testing.assert_allclose(run(y)[0], y.astype(np.float64) ** 4096, rtol=1e-3)


def doubled(n):
    """A constant concatenated with itself, again and again: 2^n of it."""
    nodes = [node("Concat", f"w{i} w{i}", f"w{i + 1}", axis=0) for i in range(n)]
    nodes += [node("ReduceSum", f"w{n}", "r", keepdims=0), node("Add", "x r", "y")]
    return model(nodes, [value("x", (4,))], [value("y")], {"w0": np.ones(4, np.float32)})


def expanded(n):
    """Many constants that grow to a megabyte each."""
    nodes = [x for i in range(n) for x in (node("Expand", f"c{i} s", f"e{i}"), node("Mul", f"x e{i}", f"y{i}"))]
    constants = {"s": [1 << 18], **{f"c{i}": np.float32([i]) for i in range(n)}}
    return model(nodes, [value("x", (1 << 18,))], [value(f"y{i}") for i in range(n)], constants)


@pytest.mark.parametrize(("source", "most"), [(doubled(34), 2 << 20), (expanded(90), 65 << 20)])
def test_folded_constants_are_bounded(source, most):
    graph = compile_state(source, stop_after="simplify", cache=False)[0].module
    assert graph.constants.nbytes <= most


def test_folding_in_a_chain_keeps_one_array():
    """Constants that have become others are gone at once."""
    from tilewright.graph.fold import Fold

    nodes = [node("Neg", f"w{i}", f"w{i + 1}") for i in range(40)] + [node("Add", "x w40", "y")]
    source = model(nodes, [value("x", (1000,))], [value("y")], {"w0": np.ones(1000, np.float32)})
    graph = compile_state(source, stop_after="import", cache=False)[0].module
    most = 0
    grow = graph.constants.add

    def add(array, hint="c"):
        nonlocal most
        symbol = grow(array, hint)
        most = max(most, len(graph.constants))
        return symbol

    graph.constants.add = add
    Fold().run(graph)
    assert most <= 3 and len(graph.constants) == 1


def test_the_deadline_holds_while_constants_are_folded():
    from tilewright.graph.fold import Fold
    from tilewright.support.budget import limited
    from tilewright.support.errors import CompileError

    graph = compile_state(doubled(8), stop_after="import", cache=False)[0].module
    with limited(None, 1e-9), pytest.raises(CompileError, match="takes longer"):
        Fold().run(graph)


def test_walks_of_shared_expressions():
    """A sum of itself, 200 times: nothing walks its 2^200 paths."""
    e = value_ = Var("i")
    for k in range(200):
        e = Op("addi", (e, e), "index")
        value_ = Op("mulf", (value_, value_), "f32") if k else Op("index_cast", (value_,), "f32")
    assert linear(e) == ({Var("i"): 1 << 200}, 0)
    assert bounds(e, {"i": (0, 3)}) == (0, 3 << 200)
    assert variables(value_) == {"i"} and len(list(walk(value_))) == 201
    assert simplify(e, {"i": (0, 3)}) is simplify(e, {"i": (0, 3)})
    assert len(list(walk(substitute(value_, {"i": Var("j")})))) == 201
    assert hash(value_) == hash(substitute(value_, {"i": Var("i")}))


def test_equal_expressions_are_one():
    import pickle
    from threading import Thread

    assert Op("addf", (Var("x", "f32"), Const(1.0, "f32")), "f32") is Op(
        "addf", (Var("x", "f32"), Const(1.0, "f32")), "f32"
    )
    different = [Const(0.0, "f32"), Const(-0.0, "f32"), Const(0, "f32"), Const(0.0, "f64"), Const(False, "i1")]
    assert len(set(different)) == len(different)
    assert Const(float("nan"), "f32") is Const(float("nan"), "f32")
    e = Op("negf", (Var("y", "f32"),), "f32")
    assert pickle.loads(pickle.dumps(e)) is e
    made: list[list[Op]] = []

    def make():
        made.append([Op("negf", (Const(float(k), "f64"),), "f64") for k in range(3000)])

    threads = [Thread(target=make) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert all(a is b for other in made[1:] for a, b in zip(made[0], other, strict=True))
