"""Attention without the score matrix: each task takes a block of queries of one head and keeps only their scores, in
cache.

For a block of queries (the vector lanes `i`):

    qt[d, i]  = scale * q[i, d]                          # transposed once
    s[j, i]   = sum_d k[j, d] * qt[d, i]  (+ mask);  m[i] = max_j s[j, i]  # keys are the rows of a register tile
    s[j, i]   = exp(s[j, i] - m[i]);  l[i] = sum_j s[j, i]                 # no horizontal reductions
    o[i, e]   = (sum_j s[j, i] * v[j, e]) / l[i]         # queries are the rows, v is read as it lies

A causal mask also shortens the loops over keys. With few queries (a decode step) the lanes run along the head dimension
instead. Where it is not known how many there are, both are there, and each block of queries asks how many it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....support.dtypes import wide
from ....support.sizes import decode, highest, is_open, lowest
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, ceildiv, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, For, If, Stmt, Store, loop, seq, store
from ...open_tiles import TOGETHER
from ...planner.candidates import best_tile
from ...planner.instructions import vectors as vector_sums
from ...planner.product import sized
from .. import Choose, direct
from .nests import add, mul

#: how many more lanes two vectors of queries may take than one (measured: at 1.2, one is 10% faster)
MAX_LANES_RATIO = 1.15


@dataclass(frozen=True)
class Pages:
    """Of keys and values in pages (`ops/paged_attention.py`): how many there are, the positions of one, and the names
    of the table and of the lengths."""

    count: int
    length: int
    table: str
    lengths: str | None


@dataclass(frozen=True)
class Shape:
    """Sizes and operand names of one attention."""

    batch: int
    heads: int
    group: int
    queries: int
    keys: int
    depth: int
    width: int
    q: str
    k: str
    v: str
    mask: str | None
    out: str
    scale: float
    causal: bool
    offset: int
    mask_shape: tuple[int, ...]
    dtype: str
    parts: int = 1  # of the keys, with results of their own (`attention_parts`)
    partials: tuple[str, ...] = ()  # a part's largest scores, and its sums of weights
    pages: Pages | None = None

    def number(self, x: float) -> Const:
        return Const(x, self.dtype)


def shape_of(kernel: Kernel) -> Shape:
    """What a kernel of ``tw.attention`` computes, or of one of its relatives."""
    assert kernel.opaque is not None
    q, k, v, *rest = kernel.opaque.operands
    assert q and k and v
    pages = None
    (b, h, sq, d), (n, hk, sk, _), dv = kernel.buffer(q).shape, kernel.buffer(k).shape, kernel.buffer(v).shape[3]
    if kernel.opaque.mnemonic.startswith("paged"):
        table, lengths, *rest = (*rest, None)[:3]
        assert table
        pages, hk, sk = Pages(n, hk, table, lengths), sk, hk * kernel.buffer(table).shape[1]
    mask = (*rest, None)[0]
    a, (out, *partials) = kernel.opaque.attributes, kernel.opaque.results
    return Shape(
        b, h, h // hk, sq, sk, d, dv, q, k, v, mask, out, float(a["scale"]), bool(a["causal"]),
        decode(a["offset"]),
        kernel.buffer(mask).shape if mask else (), wide(kernel.buffer(q).dtype),
        int(a.get("parts", 1)), tuple(partials), pages,
    )  # fmt: skip


@direct("attention", writes_once=True, typical_sizes=True)
def build(kernel: Kernel, machine: Machine, choose: Choose) -> Stmt:
    """The loop nest of ``tw.attention``; halves are converted to f32 as they are read."""
    shape = shape_of(kernel)
    if 0 in kernel.buffer(shape.out).shape:
        return seq()
    reader = Reader(kernel)
    few = lanes(machine, shape.dtype) // 2
    if highest(shape.queries) <= few:
        return _few_queries(shape, reader, machine)
    from . import bf16_attention, tile_attention

    if tile_attention.applies(shape, reader, machine):
        return bf16_attention.build(shape, reader, machine, choose, tile_attention.Block)
    if bf16_attention.applies(shape, reader, machine):
        return bf16_attention.build(shape, reader, machine, choose)
    return _blocked(shape, reader, machine, choose, few if lowest(shape.queries) <= few else 0)


class Reader:
    """Loads halves as f32 and stores in the result's type."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __call__(self, buffer: str, *indices: Expr) -> Expr:
        dtype = self.kernel.buffer(buffer).dtype
        x: Expr = Load(buffer, indices, dtype)
        return x if dtype == wide(dtype) else Op("extf", (x,), wide(dtype))

    def write(self, buffer: str, indices: tuple[Expr, ...], value: Expr, block: str) -> Store:
        dtype = self.kernel.buffer(buffer).dtype
        return store(buffer, indices, value if dtype == wide(dtype) else Op("truncf", (value,), dtype), block)


def i_loops(width: int, vectors: int, name: str, body: Stmt) -> Stmt:
    """Unrolled vectors of lanes over a block: index is ``name_v * width + name_l``."""
    return loop(f"{name}_v", vectors, For(f"{name}_l", Const(width, "index"), body, "vector", width), "unroll")


def _blocked(s: Shape, read: Reader, machine: Machine, choose: Choose, few: int) -> Stmt:
    """`few`: blocks of up to so many queries go one query at a time; 0 where there are none."""
    w = lanes(machine, s.dtype)
    # two vectors share what is read of the keys, unless much of the last block would be empty (77 queries: 80 or 96)
    waste = -(-s.queries // (2 * w)) * 2 * w / (-(-s.queries // w) * w)
    default = 2 if s.queries > w and machine.many_registers and waste < MAX_LANES_RATIO else 1
    vectors = choose("query_vectors", [v for v in (1, 2, 3, 4) if (v - 1) * w < s.queries], default)
    block = vectors * w
    blocks = -(-s.queries // block)
    task = Var("task")
    head = task // blocks
    b, h, qb = head // s.heads, head % s.heads, task % blocks
    if blocks == 1:
        qb = Const(0, "index")
    first = qb * block  # the first query of the block
    keys: Expr = Const(s.keys, "index")
    if s.causal:
        keys = minimum(keys, first + (block + s.offset)) if s.offset + block > 0 else keys
    qt, sc = Buffer("qt", (s.depth, block), s.dtype, "local"), Buffer("sc", (s.keys, block), s.dtype, "local")
    inverse, top = (Buffer(n, (block,), s.dtype, "local") for n in ("inv", "top"))
    pack = turned(
        "qt", lambda i, d: mul(read(s.q, b, h, i, d), s.number(s.scale)), s.depth, s, first, w, block, "d", "pack"
    )
    if mask_by_query(s):
        pack = seq(pack, turned_mask("sc", s, read, b, h, first, w, block))
    scores = _scores(s, read, b, h, first, keys, w, vectors, block, machine, choose)
    body = seq(
        pack, scores, _softmax(s, keys, w, vectors), _weighted(s, read, b, h, first, keys, block, machine, choose)
    )
    allocated: Stmt = Alloc(qt, Alloc(sc, Alloc(inverse, Alloc(top, body))))
    if few:
        rest = minimum(block, s.queries - first)
        one = For("few", rest, _one_query(s, read, b, h, first + Var("few"), machine))
        allocated = If(Op("cmpi.slt", (rest, Const(few + 1, "index")), "i1"), one, allocated)
    return loop("task", s.batch * s.heads * blocks, allocated, "thread")


def turned(
    to: str,
    of: Callable[[Expr, Expr], Expr],
    extent: int,
    s: Shape,
    first: Expr,
    w: int,
    block: int,
    d: str,
    label: str,
) -> Stmt:
    """What a block of queries has `extent` of each, ``of(query, n)``, as columns, in tiles that targets can transpose
    in registers.

    Lanes beyond the last query are left as they are: no lane looks at another, and their results are not written."""
    n, i = Var(f"{d}_o") * w + Var(f"{d}_r"), Var("i_v") * w + Var("i_l")
    rest: Expr = minimum(block, s.queries - first) if s.queries % block else Const(block, "index")
    lane = minimum(w, rest - Var("i_v") * w) if s.queries % block else Const(w, "index")
    some = minimum(w, extent - Var(f"{d}_o") * w) if extent % w else Const(w, "index")
    row = For("i_l", lane, store(to, (n, i), of(first + i, n), label), "vector", w)
    return For("i_v", ceildiv(rest, w), loop(f"{d}_o", -(-extent // w), For(f"{d}_r", some, row, "unroll")))


def mask_by_query(s: Shape) -> bool:
    """Whether each query has a row of the mask, and rows more than one number: lanes would gather them."""
    return s.mask is not None and len(s.mask_shape) > 1 and 1 not in s.mask_shape[-2:] and not is_open(s.keys)


def mask_of(s: Shape, read: Reader, b: Expr, h: Expr, query: Expr, key: Expr) -> Expr:
    """The number that is added to a score."""
    assert s.mask is not None
    index = (b, h, query, key)[4 - len(s.mask_shape) :]
    return read(s.mask, *(Const(0, "index") if n == 1 else x for n, x in zip(s.mask_shape, index, strict=True)))


def turned_mask(to: str, s: Shape, read: Reader, b: Expr, h: Expr, first: Expr, w: int, block: int) -> Stmt:
    """The rows that a block of queries has of the mask, as columns, where the scores are added to them; zeros behind
    the last query."""
    rows = turned(to, lambda i, j: mask_of(s, read, b, h, i, j), s.keys, s, first, w, block, "m", "mask")
    if s.queries % block == 0:
        return rows
    zero = store(to, (Var("m0"), Var("i_v") * w + Var("i_l")), s.number(0.0), "mask.behind")
    return seq(loop("m0", s.keys, i_loops(w, block // w, "i", zero)), rows)


def _scores(
    s: Shape,
    read: Reader,
    b: Expr,
    h: Expr,
    first: Expr,
    keys: Expr,
    w: int,
    vectors: int,
    block: int,
    machine: Machine,
    choose: Choose,
) -> Stmt:
    rows = best_tile(sized([s.keys], block, 1, vector_sums(machine, w), alone=False), machine)[0]
    most = (machine.vector_registers - 1 - vectors) // vectors
    rows = choose("score_rows", range(1, min(most, s.keys) + 1), min(rows, most))
    i = Var("i_v") * w + Var("i_l")
    start = i_loops(w, vectors, "i", store("top", (i,), s.number(float("-inf")), "max.init"))
    if is_open(s.keys):  # whole tiles, then what is left in smaller ones
        done: Expr = Const(0, "index")
        parts = [start]
        for count in (rows, *(n for n in TOGETHER if n < rows)):
            many, name = (keys - done) // count, "jt" if count == rows else f"jt_{count}"
            key = done + Var(name) * count
            tile = _score_tile(s, read, b, h, first, key, Const(count, "index"), count, w, vectors)
            parts.append(For(name, many, tile))
            done = done + many * count
        return seq(*parts)
    left: Expr = Const(s.keys, "index") - Var("jt") * rows
    extent = Const(rows, "index") if s.keys % rows == 0 else minimum(rows, left)
    body = _score_tile(s, read, b, h, first, Var("jt") * rows, extent, rows, w, vectors)
    return seq(start, For("jt", ceildiv(keys, rows), body))


def _score_tile(
    s: Shape, read: Reader, b: Expr, h: Expr, first: Expr, key: Expr, extent: Expr, rows: int, w: int, vectors: int
) -> Stmt:
    """The scores of up to `rows` keys from `key` on, and the largest so far."""
    block = vectors * w
    i, j = Var("i_v") * w + Var("i_l"), key + Var("jr")
    acc, at = Buffer("acc", (rows, block), s.dtype, "register"), (Var("jr"), i)

    def tile(body: Stmt) -> Stmt:
        return For("jr", extent, i_loops(w, vectors, "i", body), "unroll")

    product = mul(read(s.k, b, h // s.group, j, Var("d1")), Load("qt", (Var("d1"), i), s.dtype))
    update = loop("d1", s.depth, tile(store("acc", at, add(Load("acc", at, s.dtype), product), "qk")))
    value: Expr = Load("acc", at, s.dtype)
    if mask_by_query(s):
        value = add(value, Load("sc", (j, i), s.dtype))
    elif s.mask is not None:
        value = add(value, mask_of(s, read, b, h, minimum(first + i, s.queries - 1), j))
    if s.causal:
        seen = Op("cmpi.sle", (j, first + i + s.offset), "i1")
        value = Op("select", (seen, value, s.number(float("-inf"))), s.dtype)
    # the largest so far waits in memory while the tile needs the registers
    largest = Buffer("largest", (block,), s.dtype, "register")
    m = Load("largest", (i,), s.dtype)
    # one instruction, unlike `maximumf`; a score that is not a number makes its exponential none, and so the sum
    higher = Op("select", (Op("cmpf.ogt", (value, m), "i1"), value, m), s.dtype)
    kept = seq(
        i_loops(w, vectors, "i", store("largest", (i,), Load("top", (i,), s.dtype), "max.load")),
        tile(Store((Target("sc", (j, i), value), Target("largest", (i,), higher)), "score")),
        i_loops(w, vectors, "i", store("top", (i,), m, "max.store")),
    )
    body = seq(tile(store("acc", at, s.number(0.0), "qk.init")), update, Alloc(largest, kept))
    return Alloc(acc, body)


def _softmax(s: Shape, keys: Expr, w: int, vectors: int) -> Stmt:
    """Exponentials and their sum over the keys for every query lane."""
    i = Var("i_v") * w + Var("i_l")
    block = vectors * w
    shift, total = (Buffer(n, (block,), s.dtype, "register") for n in ("shift", "total"))

    def lanes_of(body: Stmt) -> Stmt:
        return i_loops(w, vectors, "i", body)

    m, sum_ = Load("top", (i,), s.dtype), Load("total", (i,), s.dtype)
    score = Load("sc", (Var("j"), i), s.dtype)
    finite = Op("select", (Op("cmpf.oeq", (m, s.number(float("-inf"))), "i1"), s.number(0.0), m), s.dtype)
    e = Op("exp", (Op("subf", (score, Load("shift", (i,), s.dtype)), s.dtype),), s.dtype)
    both = Store((Target("sc", (Var("j"), i), e), Target("total", (i,), add(sum_, e))), "exp")
    nonzero = Op("select", (Op("cmpf.oeq", (sum_, s.number(0.0)), "i1"), s.number(1.0), sum_), s.dtype)
    reciprocal = Op("divf", (s.number(1.0), nonzero), s.dtype)
    return Alloc(shift, Alloc(total, seq(
        lanes_of(store("shift", (i,), finite, "max.finite")),
        lanes_of(store("total", (i,), s.number(0.0), "sum.init")),
        For("j", keys, lanes_of(both)),
        lanes_of(store("inv", (i,), reciprocal, "inverse")),
    )))  # fmt: skip


def _weighted(
    s: Shape, read: Reader, b: Expr, h: Expr, first: Expr, keys: Expr, block: int, machine: Machine, choose: Choose
) -> Stmt:
    """The weighted sum of values: queries are rows of the tile, the value dimension its lanes."""
    w = min(lanes(machine, s.dtype), 1 << max(s.width - 1, 0).bit_length())
    form = sized([min(block, s.queries)], s.width, s.keys, vector_sums(machine, w), alone=False)
    tiles = form.instruction.tiles(form.spans, s.width)
    rows, _, vectors = choose("value_tile", tiles, best_tile(form, machine))
    columns = vectors * w
    e, i = Var("et") * columns + Var("e_v") * w + Var("e_l"), Var("it") * rows + Var("ir")
    acc = Buffer("oacc", (rows, columns), s.dtype, "register")
    at = (Var("ir"), Var("e_v") * w + Var("e_l"))
    rest: Expr = minimum(block, s.queries - first) if s.queries % block else Const(block, "index")
    row_extent = minimum(rows, rest - Var("it") * rows) if block % rows or s.queries % block else Const(rows, "index")
    left: Expr = s.width - Var("et") * columns
    width = minimum(columns, left) if s.width % columns else Const(columns, "index")

    def over(body: Stmt) -> Stmt:
        lane = For("e_l", minimum(w, width - Var("e_v") * w) if s.width % w else Const(w, "index"), body, "vector", w)
        return For("ir", row_extent, For("e_v", ceildiv(width, w), lane, "unroll"), "unroll")

    product = mul(Load("sc", (Var("j"), i), s.dtype), read(s.v, b, h // s.group, Var("j"), e))
    body = seq(
        over(store("oacc", at, s.number(0.0), "pv.init")),
        For("j", keys, over(store("oacc", at, add(Load("oacc", at, s.dtype), product), "pv"))),
        over(
            read.write(s.out, (b, h, first + i, e), mul(Load("oacc", at, s.dtype), Load("inv", (i,), s.dtype)), "out")
        ),
    )
    return loop("et", -(-s.width // columns), For("it", ceildiv(rest, rows), Alloc(acc, body)))


def _few_queries(s: Shape, read: Reader, machine: Machine) -> Stmt:
    task = Var("task")
    head, i = task // s.queries, task % s.queries
    if s.queries == 1:
        head, i = task, Const(0, "index")
    body = _one_query(s, read, head // s.heads, head % s.heads, i, machine)
    return loop("task", s.batch * s.heads * s.queries, body, "thread")


def _one_query(s: Shape, read: Reader, b: Expr, h: Expr, i: Expr, machine: Machine) -> Stmt:
    """Scores are dot products along the head dimension, values are summed row by row."""
    w = min(lanes(machine, s.dtype), 1 << max(s.depth - 1, 0).bit_length())
    wide = lanes(machine, s.dtype)
    keys: Expr = Const(s.keys, "index")
    if s.causal:
        keys = minimum(keys, i + (1 + s.offset))
    sc, dot = Buffer("weights", (s.keys,), s.dtype, "local"), Buffer("dot", (w,), s.dtype, "register")
    one, top, total = (
        Buffer("one", (), s.dtype, "register"),
        Buffer("best", (), s.dtype, "local"),
        Buffer("sum", (), s.dtype, "local"),
    )
    j, d = Var("j"), Var("d_o") * w + Var("d_l")

    def along(body: Stmt) -> Stmt:
        extent = Const(w, "index") if s.depth % w == 0 else minimum(w, s.depth - Var("d_o") * w)
        return loop("d_o", -(-s.depth // w), For("d_l", extent, body, "vector", w))

    lane = (Var("d_l"),)
    product = mul(read(s.q, b, h, i, d), read(s.k, b, h // s.group, j, d))
    value = mul(Load("one", (), s.dtype), s.number(s.scale))
    if s.mask is not None:
        value = add(value, mask_of(s, read, b, h, i, j))
    total_of_lanes = add(Load("one", (), s.dtype), Load("dot", lane, s.dtype))
    scores = For("j", keys, Alloc(dot, Alloc(one, seq(
        For("d_l", Const(w, "index"), store("dot", lane, s.number(0.0), "qk.init"), "vector", w),
        along(store("dot", lane, add(Load("dot", lane, s.dtype), product), "qk")),
        store("one", (), s.number(0.0), "sum.init"),
        For("d_l", Const(w, "index"), store("one", (), total_of_lanes, "sum"), "vector", w),
        store("weights", (j,), value, "score"),
    ))))  # fmt: skip
    score, m, sum_ = Load("weights", (j,), s.dtype), Load("best", (), s.dtype), Load("sum", (), s.dtype)
    infinity = s.number(float("-inf"))
    softmax = seq(
        store("best", (), infinity, "max.init"),
        For("j", keys, store("best", (), Op("maxnumf", (m, score), s.dtype), "max")),
        store("best", (), Op("select", (Op("cmpf.oeq", (m, infinity), "i1"), s.number(0.0), m), s.dtype), "max.finite"),
        store("sum", (), s.number(0.0), "total.init"),
        _vectors_over(
            "j",
            keys,
            s.keys,
            wide,
            lambda jj: store(
                "weights",
                (jj,),
                Op("exp", (Op("subf", (Load("weights", (jj,), s.dtype), m), s.dtype),), s.dtype),
                "exp",
            ),
        ),
        For("j", keys, store("sum", (), add(sum_, score), "sum")),
        store(
            "sum",
            (),
            Op("select", (Op("cmpf.oeq", (sum_, s.number(0.0)), "i1"), s.number(1.0), sum_), s.dtype),
            "total.safe",
        ),
    )
    return Alloc(sc, Alloc(top, Alloc(total, seq(scores, softmax, _few_weighted(s, read, b, h, i, keys, machine)))))


def _vectors_over(name: str, extent: Expr, most: int, w: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """A loop in vectors with a masked rest, if its extent is constant; a plain loop otherwise."""
    if not isinstance(extent, Const):
        return For(name, extent, body(Var(name)))
    index = Var(f"{name}_o") * w + Var(f"{name}_l")
    inner = Const(w, "index") if most % w == 0 else minimum(w, most - Var(f"{name}_o") * w)
    return loop(f"{name}_o", -(-most // w), For(f"{name}_l", inner, body(index), "vector", w))


def _few_weighted(s: Shape, read: Reader, b: Expr, h: Expr, i: Expr, keys: Expr, machine: Machine) -> Stmt:
    w = min(lanes(machine, s.dtype), 1 << max(s.width - 1, 0).bit_length())
    vectors = min(-(-s.width // w), 8)
    columns = vectors * w
    e = Var("et") * columns + Var("e_v") * w + Var("e_l")
    acc, at = Buffer("sums", (columns,), s.dtype, "register"), (Var("e_v") * w + Var("e_l"),)
    width = minimum(columns, s.width - Var("et") * columns) if s.width % columns else Const(columns, "index")

    def over(body: Stmt) -> Stmt:
        lane = For("e_l", minimum(w, width - Var("e_v") * w) if s.width % w else Const(w, "index"), body, "vector", w)
        return For("e_v", ceildiv(width, w), lane, "unroll")

    product = mul(Load("weights", (Var("j"),), s.dtype), read(s.v, b, h // s.group, Var("j"), e))
    result = Op("divf", (Load("sums", at, s.dtype), Load("sum", (), s.dtype)), s.dtype)
    return loop("et", -(-s.width // columns), Alloc(acc, seq(
        over(store("sums", at, s.number(0.0), "pv.init")),
        For("j", keys, over(store("sums", at, add(Load("sums", at, s.dtype), product), "pv"))),
        over(read.write(s.out, (b, h, i, e), result, "out")),
    )))  # fmt: skip
