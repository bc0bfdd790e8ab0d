"""Ragged attention over pages: random batches of several sequences against the reference in double precision.

A form is compiled once, with open numbers of tokens, sequences and pages; what no token may look at is not a number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.graph_builder import Maker
from tilewright.ir.types import Type
from tilewright.ops.ragged_attention import RaggedAttention
from tilewright.ops.write_pages import WritePages
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
        first = max(length - n - form.window + 1, 0) if form.window else 0
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
