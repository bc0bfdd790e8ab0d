"""Ragged attention over pages: random batches of several sequences against the reference in double precision.

A form is compiled once, with open numbers of tokens, sequences and pages; what no token may look at is not a number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import tilewright as tw
from tilewright.graph.interpret import interpret
from tilewright.graph.split_ragged_attention import SplitRaggedAttention
from tilewright.ir.graph_builder import Maker
from tilewright.ir.types import Type
from tilewright.ops.ragged_attention import RaggedAttention
from tilewright.ops.write_pages import WritePages
from tilewright.ops.write_quantized_pages import WriteQuantizedPages, rotated, unquantized
from tilewright.support.dtypes import NUMPY

TOKENS, SEQUENCES, PAGES = 48, 6, 60


@dataclass(frozen=True)
class Form:
    heads: int
    shared: int
    depth: int
    page: int
    q: str = "f32"
    k: str = "f32"
    width: int = 0  # of values with pages of their own; below 0: of the first so many numbers of the keys
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    parts: int = 0

    @property
    def attributes(self):
        return {
            "scale": self.depth**-0.5, "window": self.window, "softcap": self.softcap, "width": max(-self.width, 0),
        }  # fmt: skip

    def compile(self, threads=2):
        n = PAGES * SEQUENCES + 1
        inputs = [("q", Type((None, self.heads, self.depth), self.q))]
        inputs += [("k", Type((n, self.page, self.shared, self.depth), self.k))]
        inputs += [("v", Type((n, self.page, self.shared, self.width), self.k))] if self.width > 0 else []
        inputs += [(name, Type((None,) * rank, "i32")) for name, rank in (("table", 2), ("starts", 1), ("lengths", 1))]
        inputs += [("sinks", Type((self.heads,), "f32"))] if self.sinks else []
        make = Maker(inputs)
        x = dict(zip(make.names, make.inputs, strict=True))
        operands = [x.get(name) for name in ("q", "k", "v", "table", "starts", "lengths", "sinks")]
        if self.parts:
            made = make("ragged_attention_parts", *operands, **self.attributes, parts=self.parts)
            y = make("reshape", make("attention_join", *made, to=self.q), shape=(-1, self.heads, abs(self.width)))
        else:
            y = make("ragged_attention", *operands, **self.attributes)
        sizes = {
            "q": (tw.Dim("T", 1, TOKENS), self.heads, self.depth), "starts": ("B+1",), "lengths": ("B",),
            "table": (tw.Dim("B", 1, SEQUENCES), tw.Dim("N", 1, PAGES)),
        }  # fmt: skip
        return tw.compile(make.finish([("y", y)]), inputs=sizes, threads=threads)


def batch(form, rng):
    """Operands by name: sequences with none, one or many tokens, in pages of any order."""
    count = rng.integers(1, SEQUENCES + 1)
    most = rng.choice([1, 3, TOKENS // count])
    tokens = rng.integers(rng.integers(0, 2), most + 1, count)
    tokens[rng.integers(count)] += not tokens.any()
    lengths = tokens + rng.integers(0, PAGES * form.page - most + 1, count) * rng.integers(0, 2, count)
    pages = max(1, *-(-lengths // form.page)) + rng.integers(0, 3)
    pages = min(pages, PAGES)
    order = iter(rng.permutation(PAGES * SEQUENCES) + 1)
    table = np.zeros((count, pages), np.int32)  # page 0 is nobody's
    x = {"q": rng.standard_normal((tokens.sum(), form.heads, form.depth)).astype(NUMPY[form.q])}
    for name, width in (("k", form.depth), ("v", form.width)):
        if width > 0:
            x[name] = np.full((PAGES * SEQUENCES + 1, form.page, form.shared, width), np.nan, NUMPY[form.k])
    for b, (n, length) in enumerate(zip(tokens, lengths, strict=True)):
        for i in range(-(-length // form.page)):
            table[b, i] = next(order)
        first = max(length - n - form.window + 1, 0) // form.page * form.page if form.window else 0
        at = np.arange(first if n else length, length)
        for name in {"k", "v"} & x.keys():
            x[name][table[b, at // form.page], at % form.page] = rng.standard_normal((len(at), *x[name].shape[2:]))
    x |= {"table": table, "starts": np.cumsum([0, *tokens]).astype(np.int32), "lengths": lengths.astype(np.int32)}
    return x | ({"sinks": rng.standard_normal(form.heads).astype(np.float32)} if form.sinks else {})


def expected(form, x):
    given = {n: np.nan_to_num(a.astype(np.float64)) if n in "qkv" else a for n, a in x.items()}
    return RaggedAttention.reference(
        *(given.get(n) for n in ("q", "k", "v", "table", "starts", "lengths", "sinks")), **form.attributes
    )


FORMS = [
    Form(6, 2, 64, 16, width=64),
    Form(8, 8, 32, 4, "f32", "bf16", width=32, window=9),
    Form(4, 1, 20, 5, "f32", "f16", width=12, window=70, softcap=3.0, sinks=True),
    Form(40, 1, 40, 32, "f32", "bf16", width=-24),
    Form(6, 3, 128, 1, "bf16", "bf16", width=128, sinks=True),
    Form(9, 3, 64, 32, "bf16", "bf16", width=80, window=90, softcap=4.0, sinks=True, parts=2),
    Form(10, 1, 128, 16, "bf16", "bf16", width=-32),
    Form(6, 3, 64, 16, "f32", "bf16", width=64, sinks=True, parts=3),
    Form(4, 2, 32, 3, "bf16", "bf16", width=48, window=90, softcap=4.0, parts=2),
    Form(2, 1, 80, 7, "f64", "f64", width=80, softcap=20.0),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_ragged_batches(form):
    run, rng = form.compile(), np.random.default_rng(7)
    limit = {"f64": 1e-12, "f32": 2e-5, "bf16": 2e-2}[form.q]
    for _ in range(20):
        x = batch(form, rng)
        (y,) = run(**x)
        assert y.dtype == x["q"].dtype
        np.testing.assert_allclose(y.astype(np.float64), expected(form, x), rtol=0, atol=limit)


def test_threads_do_not_change_the_result():
    form = FORMS[0]
    one, three = form.compile(threads=1), form.compile(threads=3)
    rng = np.random.default_rng(3)
    for _ in range(4):
        x = batch(form, rng)
        assert np.array_equal(one(**x)[0], three(**x)[0])


# ---- write_pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, row", [("f32", (3, 40)), ("bf16", (2, 64)), ("f16", (520,)), ("f32", ())])
def test_rows_go_to_their_pages(dtype, row):
    """Threads that share the work, with pages that are copied and with a state, which is not."""
    make = Maker(
        [("k", Type((9, 5, *row), dtype)), ("rows", Type((None, *row), "f32")), ("slots", Type((None,), "i32"))]
    )
    graph = make.finish([("k2", make("write_pages", *make.inputs))])
    sizes = {"rows": (tw.Dim("T", 1, 600), *row), "slots": ("T",)}
    copies = tw.compile(graph, inputs=sizes, threads=2)
    state = tw.compile(graph, inputs=sizes, threads=2, states={"k": "k2"})
    assert "in place" in str(state)
    rng, pages = np.random.default_rng(5), np.zeros((9, 5, *row), NUMPY[dtype])
    for count in (1, 40, 600):
        rows = rng.standard_normal((count, *row)).astype(np.float32)
        slots = np.concatenate([rng.permutation(45), rng.choice([-1, 45, 1 << 30, -7], 600)])[:count]
        slots = rng.permutation(slots).astype(np.int32)
        (new,) = copies(pages, rows, slots)
        state(rows, slots)
        pages = WritePages.reference(pages, rows, slots)
        assert np.array_equal(new, pages) and np.array_equal(state.states["k"], pages)


# ---- pages of 8 and 4 bits -----------------------------------------------------------------------------------------

#: bits, heads, heads of keys, numbers of a key and of a value, page length, dtype of scales
SMALL = [
    (8, 6, 2, 64, 64, 16, "f32"),
    (4, 2, 2, 80, 48, 5, "f16"),
    (4, 2, 1, 192, -64, 3, "f32"),
    (8, 3, 3, 7, 2, 4, "f32"),
]


@pytest.mark.parametrize("bits, heads, shared, depth, width, page, dtype", SMALL)
def test_pages_of_few_bits(bits, heads, shared, depth, width, page, dtype):
    """Rows of 40 tokens are written by three calls, the states are what the reference says, and the error is that of
    the cut: 0.65% and 12% of a row."""
    count, names = 30, ("k", "v") if width > 0 else ("k",)
    sizes = {"k": depth, "v": width}
    inputs = [("q", Type((None, heads, depth), "f32")), ("slots", Type((None,), "i32"))]
    inputs += [(name, Type((None,) * rank, "i32")) for name, rank in (("table", 2), ("starts", 1), ("lengths", 1))]
    for n in names:
        inputs += [(f"{n}_rows", Type((None, shared, sizes[n]), "f32"))]
        inputs += [(n, Type((count, page, shared, sizes[n] * bits // 8), "i8"))]
        inputs += [(f"{n}_scales", Type((count, page, shared), dtype))]
    make = Maker(inputs)
    x, new = dict(zip(make.names, make.inputs, strict=True)), {}
    for n in names:
        written = make("write_quantized_pages", x[n], x[f"{n}_scales"], x[f"{n}_rows"], x["slots"])
        new |= {n: written[0], f"{n}_scales": written[1]}
    attributes = {"scale": depth**-0.5, "width": max(-width, 0)}
    operands = [x["table"], x["starts"], x["lengths"], None, new["k_scales"], new.get("v_scales")]
    y = make("ragged_attention", x["q"], new["k"], new.get("v"), *operands, **attributes)
    tokens = tw.Dim("T", 1, 40)
    dims = {"q": (tokens, heads, depth), "slots": ("T",), "table": (1, tw.Dim("N", 1, count)), "starts": (2,)}
    dims |= {"lengths": (1,), **{f"{n}_rows": (tokens, shared, sizes[n]) for n in names}}
    graph = make.finish([("y", y), *((f"new_{n}", value) for n, value in new.items())])
    run = tw.compile(graph, inputs=dims, states={n: f"new_{n}" for n in new}, threads=2)
    assert str(run).count("in place") == len(new)
    rng = np.random.default_rng(2)
    rows = {n: rng.standard_normal((40, shared, sizes[n])).astype(np.float32) for n in names}
    table = rng.permutation(count)[None].astype(np.int32)
    at = np.arange(40)
    slots = (table[0, at // page] * page + at % page).astype(np.int32)
    state = {n: np.zeros((count, page, shared, sizes[n] * bits // 8), np.int8) for n in names}
    scales = {n: np.zeros((count, page, shared), NUMPY[dtype]) for n in names}
    for first, last in ((0, 33), (33, 34), (34, 40)):
        q = rng.standard_normal((last - first, heads, depth)).astype(np.float32)
        part = {f"{n}_rows": rows[n][first:last] for n in names}
        rest = {"table": table, "starts": np.array([0, last - first], np.int32), "lengths": np.array([last], np.int32)}
        (y,) = run(q=q, slots=slots[first:last], **part, **rest)
        for n in names:
            state[n], scales[n] = WriteQuantizedPages.reference(
                state[n], scales[n], rows[n][first:last], slots[first:last]
            )
            np.testing.assert_allclose(run.states[f"{n}_scales"], scales[n], rtol=1e-3 if dtype == "f16" else 1e-6)
            assert np.mean(run.states[n] != state[n]) < 0.01  # a number in the middle of two may be rounded to either
            state[n], scales[n] = run.states[n].copy(), run.states[f"{n}_scales"].copy()
        full = {**attributes, "window": 0, "softcap": 0.0}
        given = [state["k"], state.get("v"), *rest.values(), None, scales["k"], scales.get("v")]
        want = RaggedAttention.reference(q, *given, **full)
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-5)
    for n in names:
        back = rotated(unquantized(state[n], scales[n], sizes[n]))[table[0, at // page], at % page]
        error = np.sqrt(np.mean((back - rows[n]) ** 2) / np.mean(rows[n] ** 2))
        assert error < {8: 0.01, 4: 0.15}[bits]


def test_one_sequence_is_shared_by_threads():
    """A pass takes keys in parts where heads are fewer than threads; parts are what the reference says."""
    page = Type((20, 16, 3, 32), "f32")
    numbers = [(n, Type(s, "i32")) for n, s in (("table", (1, 20)), ("starts", (2,)), ("lengths", (1,)))]
    make = Maker([("q", Type((4, 6, 32), "f32")), ("k", page), ("v", page), *numbers])
    graph = make.finish([("y", make("ragged_attention", *make.inputs, scale=0.2))])
    rng = np.random.default_rng(1)
    x = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("q", (4, 6, 32)), ("k", (20, 16, 3, 32)))}
    x |= {"v": x["k"][::-1].copy(), "table": rng.permutation(20)[None].astype(np.int32)}
    x |= {"starts": np.array([0, 4], np.int32), "lengths": np.array([290], np.int32)}
    (want,) = interpret(graph, x, float64=True).values()
    SplitRaggedAttention(threads=2).run(graph)
    graph.verify()
    assert "ragged_attention_parts" in graph.text() and "parts = 2" in graph.text()
    (parts,) = interpret(graph, x, float64=True).values()
    (y,) = tw.compile(graph, threads=2).run(x)
    np.testing.assert_allclose(parts, want, rtol=0, atol=1e-12)
    np.testing.assert_allclose(y, want, rtol=0, atol=1e-5)
