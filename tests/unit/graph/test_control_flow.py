"""Control flow of level 2: what is verified, its text, how it is cut into parts and run, passes over it."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontends.regions import either, loop
from tilewright.graph.cut import Cut
from tilewright.graph.interpret import interpret
from tilewright.graph.passes import parse_pipeline, run_pipeline
from tilewright.ir.context import parse
from tilewright.ir.graph import Graph
from tilewright.ir.graph_builder import Maker
from tilewright.ir.types import Type
from tilewright.support.errors import CompileError, UnsupportedError

F32, I1 = (lambda *shape: Type(shape, "f32")), Type((), "i1")


def below(make, x, limit):
    return make("less", make("reduce_sum", x, axes=(0, 1), keepdims=False), make.constant(np.float32(limit)))


def nested(rows):
    """Doubles x while its sum is small, or halves it and gives it twice; what else there is reads the outer values."""
    make = Maker([("c", I1), ("x", F32(rows, 3))])
    c, x = make.inputs
    y = make("exp", x)

    def doubled():
        def step(state):
            z = make("add", state[0], y)
            return [below(make, z, 50), z]

        return loop(make, below(make, x, 50), [make("relu", x)], step)

    def twice():
        with make.region([]) as unused:  # what is not taken leaves nothing behind
            make("exp", y)
        assert len(list(unused.operations)) == 1
        return [make("concat", make("mul", x, make.constant(np.float32(0.5))), x, axis=0)]

    _, (z,) = either(make, lambda: c, [doubled, twice], lambda values: values)
    return make.finish([("z", make("neg", z)), ("k", make.constant(np.float32(7))), ("x2", x)])


def expected(c, x):
    z = np.maximum(x, 0)
    if not c:
        return -np.concatenate([x * 0.5, x])
    going = x.sum() < 50
    while going:
        z = z + np.exp(x)
        going = z.sum() < 50
    return -z


def some(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)


def run(made, c, x):
    z, k, x2 = made(np.array(c), x)
    np.testing.assert_allclose(z, expected(c, x), rtol=1e-5)
    assert k == 7 and k.shape == ()
    np.testing.assert_array_equal(x2, x)


def test_parts_of_known_and_open_sizes(tmp_path):
    """The sizes of a branch's result depend on data; the text, and what is saved, is the same."""
    for rows in (2, None):
        graph = nested(rows)
        assert "tensor<?x3xf32>" in graph.text()
        again = Graph(parse(graph.text()), graph.constants)
        again.verify()
        made = tw.compile(again, threads=1)
        for c in (True, False):
            run(made, c, some(2))
        made.save(tmp_path / "branch.tw")
        loaded = tw.load(tmp_path / "branch.tw")
        for c, n in ((True, 2), (False, 2), *(((True, 5), (False, 3)) if rows is None else ())):
            run(loaded, c, some(n, seed=n))
            found = interpret(graph, {"c": np.array(c), "x": some(n, seed=n)})
            np.testing.assert_allclose(found["z"], expected(c, some(n, seed=n)), rtol=1e-5)
    with pytest.raises(UnsupportedError, match="no stage 'lower' as a whole"):
        tw.compile(nested(2), stop_after="lower")


def test_bodies_go_with_the_sizes_that_they_are_for():
    """Of open sizes each combination has bodies of its own: those of versions that were dropped are not kept."""
    made = tw.compile(nested(None), threads=1)
    made.staged.limit = 2
    for n in (2, 3, 4, 5, 2):
        for c in (True, False):
            run(made, c, some(n))
    shapes = {name.rpartition(":main")[0] for name in made.staged.bodies}
    assert len(shapes) == 3 and len(made.staged.source()._cuts) == 2  # main itself has no shapes


def test_cut():
    cut = Cut(nested(2))
    assert list(cut.bodies) == ["main", "main/1.0", "main/1.0/3.0", "main/1.1"]
    part = cut.part("main", range(3), {})
    assert [a.kind for a in part.actions] == ["if"] and part.todo == (2,)
    assert [op.name for op in part.graph.operations()] == ["tw.exp", "func.return"]  # what the loop reads of it
    assert part.feeds == ("x",) and part.actions[0].inputs == ("c",)
    later = cut.part("main", part.todo, {})
    assert later.graph.outputs()[0][1] == Type((None, 3), "f32") and not later.actions
    later = cut.part("main", part.todo, dict.fromkeys(part.actions[0].outputs, F32(4, 3)))
    assert later.graph.outputs()[0][1] == F32(4, 3)  # for the sizes that came


def test_names_follow_from_the_text():
    """What is saved and what is made after loading call values the same, whichever parts are made first."""
    a, b = (Cut(Graph(parse(nested(2).text()))) for _ in range(2))
    b.part("main/1.1", (0, 1), {})
    assert [a.info(n) for n in a.bodies] == [b.info(n) for n in reversed(b.bodies)][::-1]
    make = Maker([("%1", F32(2)), ("c", I1)])
    x, c = make.inputs
    _, made = either(make, lambda: c, [lambda: loop(make, c, [x], lambda s: [c, s[0]]), lambda: [x]], lambda v: v)
    assert len({*(cut := Cut(make.finish([("y", made[0])]))).names.values()}) == len(cut.names)


def test_passes_leave_regions_as_they_are():
    graph = nested(2)
    run_pipeline(graph, parse_pipeline("simplify,fold,cse,dce"))
    graph.verify()
    assert graph.text().count('"tw.loop"') == 1
    found = interpret(graph, {"c": np.array(True), "x": some(2)})
    np.testing.assert_allclose(found["z"], expected(True, some(2)), rtol=1e-5)
    with pytest.raises(UnsupportedError, match="no lowering for if"):
        from tilewright.tensor.lower import lower

        lower(graph)


@pytest.mark.parametrize(
    "why", ["one element of i1", "yield 1 and 2 values", "one time", "take no", "its region takes"]
)
def test_what_is_wrong_is_said(why):
    make = Maker([("c", I1), ("x", F32(2, 3)), ("y", F32(2))])
    c, x, y = make.inputs
    with make.region([F32(1)] if why == "take no" else []) as first:
        make("yield", x)
    with make.region() as second:
        make("yield", *([x, x] if why.startswith("yield") else [y] if why == "one time" else [x]))
    with make.region([F32(2, 3)]) as body:
        make("yield", c, make("concat", x, body.arguments[0], axis=0))
    with pytest.raises(CompileError, match=why):
        if why == "its region takes":
            make("loop", c, x, regions=[body])
        else:
            make("if", x if why.startswith("one element") else c, regions=[first, second])
