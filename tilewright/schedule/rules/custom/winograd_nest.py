"""Winograd convolution in one pass: each task takes a block of tiles through all three steps while they are in cache.

For a block of tiles t (and, where tiles are few, a share of the filters):

    v[p, t, c] = (Bt d B)[p]                       # 16 channels at once, sums shared between points +a and -a
    for every panel of filters f:
      m[p, t, f] = sum_c v[p, t, c] * u[p, c, f]   # (tile + 2)^2 matrix products, tiles are rows of a register tile
      y[...]     = (At m A)                        # with whatever is done to the result elementwise
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from ....ops.winograd import matrices
from ....support.sizes import decode, highest, is_open, typical
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, ceildiv, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, For, If, Pack, Stmt, Store, loop, seq, store
from ...planner.cycles import cycles
from ...planner.instructions import Tile, vectors
from ...planner.plan import Plan
from ...planner.product import sized
from .. import Choose, Direct, direct
from .nests import add, index, less, mul


@dataclass(frozen=True)
class Shape:
    """Sizes and operand names of one convolution; `ty` x `tx` tiles an image, p x p positions a tile."""

    n: int
    h: int
    w: int
    channels: int
    filters: int
    tile: int
    x: str
    u: str
    out: str
    dtype: str

    @property
    def p(self) -> int:
        return self.tile + 2

    @property
    def ty(self) -> int:
        return (self.h + self.tile - 1) // self.tile

    @property
    def tx(self) -> int:
        return (self.w + self.tile - 1) // self.tile

    @property
    def tiles(self) -> int:
        return self.n * self.ty * self.tx


@dataclass(frozen=True)
class Blocks:
    """How the work is cut: `tiles` a task, the filters in `shares`, panels of `panel` filters, vectors of `width`."""

    tiles: int
    shares: int
    panel: int
    width: int
    gemm: Tile


@direct("winograd_conv", writes_once=True)
def build(kernel: Kernel, machine: Machine, choose: Choose) -> Direct:
    """The loop nest of ``tw.winograd_conv``."""
    assert kernel.opaque is not None
    x, u = kernel.opaque.operands
    assert x and u
    out, attrs = kernel.opaque.results[0], kernel.opaque.attributes
    h, w = attrs["size"]
    (n, _, _, c), f = kernel.buffer(x).shape, kernel.buffer(u).shape[2]
    s = Shape(n, decode(h), decode(w), c, f, int(attrs["tile"]), x, u, out, kernel.buffer(x).dtype)
    blocks = _blocks(s, machine, choose)
    body = _task(s, blocks, machine, choose)
    packs = (Pack(u, ((), (), (blocks.panel,)), (2, 0, 1, 3)),) if u in kernel.constants else ()
    return Direct(body, packs)


def _blocks(s: Shape, machine: Machine, choose: Choose) -> Blocks:
    """Blocks whose transformed input takes half of the second-level cache; where few tiles fit there (many channels),
    more than fit, so that their products take longer than the weights, which come anew for each block (measured, 2048
    to 512 channels at 28 x 28: 7 times as fast). Cores share tiles, or the filters if that is less work for each of
    them: with a share of the tiles it needs all weights, with one of the filters all inputs."""
    total = typical(s.tiles)
    width = min(lanes(machine, s.dtype), gcd(s.channels, s.filters) & -gcd(s.channels, s.filters))
    fitting_tiles = machine.l2_bytes // 2 // (s.p**2 * s.channels * 4)
    costs = machine.winograd_costs
    most = fitting_tiles if fitting_tiles > costs.weight // 2 else 2 * costs.weight
    cores, inputs = machine.cores, s.p**2 * s.channels * total * costs.transform
    weights = s.p**2 * s.channels * s.filters * costs.weight
    share_tiles = -(-total // (most * cores)) * weights + inputs / cores
    share_filters = -(-total // most) * weights / cores + inputs
    by_filters = cores == 1 or share_filters < share_tiles
    tasks = -(-total // most) if by_filters else cores * -(-total // (most * cores))
    tiles = min(most, highest(s.tiles)) if is_open(s.tiles) else -(-total // tasks)
    product = sized([tiles], s.filters, s.channels, vectors(machine, width))
    sizes = [t for t in product.instruction.tiles([tiles], s.filters) if s.filters % (t[2] * width) == 0]
    gemm = choose("gemm_tile", sizes, min(sizes, key=lambda t: cycles(Plan(tile=t), product, machine)))
    panels = s.filters // (gemm[2] * width)
    halves = [d for d in range(1, panels + 1) if panels % d == 0]
    fitting = [d for d in halves if d % cores == 0] or [max(halves)]
    shares = choose("filter_shares", halves, fitting[0] if by_filters else 1)
    tiles = choose("block_tiles", sorted({tiles, *[-(-total // k) for k in range(1, 4 * cores + 1)]}), tiles)
    return Blocks(tiles, shares, gemm[2] * width, width, gemm)


def _task(s: Shape, k: Blocks, machine: Machine, choose: Choose) -> Stmt:
    count = (s.tiles + k.tiles - 1) // k.tiles
    first = Var("task") // k.shares * k.tiles
    tiles: Expr = index(k.tiles) if s.tiles % k.tiles == 0 else minimum(k.tiles, s.tiles - first)
    # rows that would meet in one set of the first-level cache get a line more (measured: 1.1 to 1.6 times as fast)
    odd = s.channels + (machine.line_bytes // 4 if s.channels * 4 % machine.same_set_bytes == 0 else 0)
    v = Buffer("v", (s.p**2, k.tiles, odd), s.dtype, "local")
    m = Buffer("m", (s.p**2, k.tiles, k.panel), s.dtype, "local")
    panels = s.filters // k.panel // k.shares
    panel = Var("task") % k.shares * panels + Var("fp") if k.shares > 1 else Var("fp")
    each = seq(_products(s, k, tiles, panel, machine, choose), _results(s, k, first, tiles, panel))
    body = seq(_inputs(s, k, first, tiles), loop("fp", panels, Alloc(m, each)))
    return loop("task", count * k.shares, Alloc(v, body), "thread")


def _position(s: Shape, t: Expr) -> tuple[Expr, Expr, Expr]:
    """Image, row and column of the first result of tile `t`."""
    image: Expr = index(0) if s.n == 1 else t // (s.ty * s.tx)
    inside: Expr = t if s.n == 1 else t % (s.ty * s.tx)
    return image, inside // s.tx * s.tile, inside % s.tx * s.tile


def _inputs(s: Shape, k: Blocks, first: Expr, tiles: Expr) -> Stmt:
    """v[p, t, c] for all channels of the block's tiles."""
    _, _, bt = matrices(s.tile)
    p, c = s.p, Var("c_o") * k.width + Var("c_l")
    n, y, x = _position(s, first + Var("t"))
    d = Registers("d", p * p, k.width, "c_l", s.dtype)
    e = Registers("e", p * p, k.width, "c_l", s.dtype)
    v = Registers("half", 2 * p * p, k.width, "c_l", s.dtype)
    out = Registers("r", p * p, k.width, "c_l", s.dtype)
    body: list[Stmt] = []
    for j in range(p):
        body += [d.store(i * p + j, Load(s.x, (n, y + i, x + j, c), s.dtype), "in") for i in range(p)]
        body += transform(bt, [d[i * p + j] for i in range(p)], e, [i * p + j for i in range(p)], v)
    for i in range(p):
        body += transform(bt, [e[i * p + j] for j in range(p)], out, [i * p + j for j in range(p)], v)
        body += [store("v", (index(i * p + j), Var("t"), c), out[i * p + j], "v") for j in range(p)]
    lanes_of = For("c_l", index(k.width), seq(*body), "vector", k.width)
    inner = allocate(lanes_of, d, e, v, out)
    return For("t", tiles, loop("c_o", s.channels // k.width, inner))


def _products(s: Shape, k: Blocks, tiles: Expr, panel: Expr, machine: Machine, choose: Choose) -> Stmt:
    """m[p, t, f] of one panel of filters, as one matrix product a position."""
    rows = k.gemm[0]
    t, f = Var("it") * rows + Var("ir"), Var("f_v") * k.width + Var("f_l")
    acc = Buffer("acc", (rows, k.panel), s.dtype, "register")
    at = (Var("ir"), f)
    whole = isinstance(tiles, Const) and tiles.value % rows == 0
    extent: Expr = index(rows) if whole else minimum(rows, tiles - Var("it") * rows)

    def tile(body: Stmt) -> Stmt:
        lane = For("f_l", index(k.width), body, "vector", k.width)
        return For("ir", extent, loop("f_v", k.gemm[2], lane, "unroll"), "unroll")

    factors = [d for d in (1, 2, 4, 8) if s.channels % d == 0]
    steps = choose("unroll", factors, max(d for d in factors if d <= 4))
    c = Var("c_o") * steps + Var("c_u")
    product = mul(Load("v", (Var("p"), t, c), s.dtype), Load(s.u, (Var("p"), c, panel * k.panel + f), s.dtype))
    update = tile(store("acc", at, add(Load("acc", at, s.dtype), product), "product"))
    along = loop("c_o", s.channels // steps, loop("c_u", steps, update, "unroll"))
    if choose("prefetch", (True, False), s.p**2 * s.channels * s.filters * 4 > machine.l2_bytes // 2):
        along = replace(along, prefetch=_ahead(s, k, panel, steps, machine.line_bytes // 4))
    body = seq(
        tile(store("acc", at, Const(0.0, s.dtype), "product.init")),
        along,
        tile(store("m", (Var("p"), t, f), Load("acc", at, s.dtype), "m")),
    )
    return loop("p", s.p**2, For("it", ceildiv(tiles, rows), Alloc(acc, body)))


def _ahead(s: Shape, k: Blocks, panel: Expr, steps: int, line: int) -> tuple[tuple[str, Expr], ...]:
    """Cache lines (of `line` numbers) of the next packed panel of weights, a share in every step over channels."""
    size = s.channels * k.panel
    passes = -(-k.tiles // k.gemm[0])
    share = -(-size // line // (passes * (s.channels // steps)))
    next_panel = (panel * s.p**2 + Var("p") + 1) * size
    step = Var("it") * (s.channels // steps) + Var("c_o")
    return tuple((s.u, next_panel + (step * share + i) * line) for i in range(share))


def _results(s: Shape, k: Blocks, first: Expr, tiles: Expr, panel: Expr) -> Stmt:
    """The results of the block's tiles for one panel of filters; those outside of the image are dropped."""
    at, _, _ = matrices(s.tile)
    p, tile, f = s.p, s.tile, Var("f_o") * k.width + Var("f_l")
    n, y, x = _position(s, first + Var("t"))
    d = Registers("d", p * p, k.width, "f_l", s.dtype)
    e = Registers("e", tile * p, k.width, "f_l", s.dtype)
    v = Registers("half", p * p, k.width, "f_l", s.dtype)
    out = Registers("r", tile * tile, k.width, "f_l", s.dtype)
    body: list[Stmt] = []
    for j in range(p):
        body += [d.store(i * p + j, Load("m", (index(i * p + j), Var("t"), f), s.dtype), "sum") for i in range(p)]
        body += transform_back(at, [d[i * p + j] for i in range(p)], e, [a * p + j for a in range(tile)], v)
    for a in range(tile):
        row = transform_back(at, [e[a * p + j] for j in range(p)], out, [a * tile + b for b in range(tile)], v)
        for b in range(tile):
            write: Stmt = store(s.out, (n, y + a, x + b, panel * k.panel + f), out[a * tile + b], "out")
            row.append(write if s.w % tile == 0 else If(less(x + b, s.w), write))
        body.append(seq(*row) if s.h % tile == 0 else If(less(y + a, s.h), seq(*row)))
    lanes_of = For("f_l", index(k.width), seq(*body), "vector", k.width)
    inner = allocate(lanes_of, d, e, v, out)
    return For("t", tiles, loop("f_o", k.panel // k.width, inner))


# ---- transforms ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Registers:
    """`count` vectors in registers, written and read at the lane variable `lane`."""

    name: str
    count: int
    width: int
    lane: str
    dtype: str

    @property
    def buffer(self) -> Buffer:
        return Buffer(self.name, (self.count, self.width), self.dtype, "register")

    def __getitem__(self, i: int) -> Load:
        return Load(self.name, (index(i), Var(self.lane)), self.dtype)

    def store(self, i: int, value: Expr, block: str) -> Store:
        return store(self.name, (index(i), Var(self.lane)), value, block)


def allocate(body: Stmt, *buffers: Registers) -> Stmt:
    for b in buffers:
        body = Alloc(b.buffer, body)
    return body


def combine(to: Registers, i: int, terms: Sequence[tuple[float, Expr]], block: str) -> list[Stmt]:
    """``to[i] = sum of c * x``, written so that every term but the first is one multiply-add, or an addition."""
    terms = sorted((t for t in terms if t[0] != 0.0), key=lambda t: t[0] != 1.0)
    (c, x), *rest = terms
    done: list[Stmt] = [to.store(i, x if c == 1.0 else mul(x, Const(c, to.dtype)), block)]
    for c, x in rest:
        if c == -1.0:
            value: Expr = Op("subf", (to[i], x), to.dtype)
        else:
            value = add(to[i], x if c == 1.0 else mul(x, Const(c, to.dtype)))
        done.append(to.store(i, value, block))
    return done


def transform(matrix: np.ndarray, x: list[Load], to: Registers, at: list[int], half: Registers) -> list[Stmt]:
    """``to[at[i]] = sum_j matrix[i, j] x[j]``; rows that differ only in the signs of some terms share their sums.

    Rows i and i + 1 of points +a and -a are e + a o and e - a o with e the terms of equal, a o those of opposite signs.
    """
    done: list[Stmt] = []
    i = 0
    while i < len(matrix):
        row = matrix[i]
        paired = i + 1 < len(matrix) and (np.abs(row) == np.abs(matrix[i + 1])).all()
        if not paired:
            done += combine(to, at[i], list(zip(row.tolist(), x, strict=True)), "transform")
            i += 1
            continue
        same = row == matrix[i + 1]
        a = row[~same][np.flatnonzero(row[~same])[-1]]
        even = [(float(c), v) for c, v, q in zip(row, x, same, strict=True) if q]
        odd = [(float(c / a), v) for c, v, q in zip(row, x, same, strict=True) if not q]
        e, o = at[i], at[i] + half.count // 2
        done += combine(half, e, even, "transform") + combine(half, o, odd, "transform")
        done += combine(to, at[i], [(1.0, half[e]), (float(a), half[o])], "transform")
        done += combine(to, at[i + 1], [(1.0, half[e]), (float(-a), half[o])], "transform")
        i += 2
    return done


def transform_back(matrix: np.ndarray, x: list[Load], to: Registers, at: list[int], half: Registers) -> list[Stmt]:
    """The same for a matrix whose columns come in pairs: their operands are added and subtracted first."""
    sums: list[tuple[np.ndarray, Expr, Expr]] = []  # column of the first, what even rows and odd rows take of it
    done: list[Stmt] = []
    even = np.arange(len(matrix)) % 2 == 0
    j = 0
    while j < len(x):
        column = matrix[:, j]
        after = matrix[:, j + 1] if j + 1 < len(x) else np.zeros(0)
        if len(after) and (column == np.where(even, after, -after)).all():
            done += [
                half.store(j, add(x[j], x[j + 1]), "transform"),
                half.store(j + 1, Op("subf", (x[j], x[j + 1]), to.dtype), "transform"),
            ]
            sums.append((column, half[j], half[j + 1]))
            j += 2
        else:
            sums.append((column, x[j], x[j]))
            j += 1
    for i in range(len(matrix)):
        done += combine(to, at[i], [(float(c[i]), o if i % 2 else e) for c, e, o in sums], "transform")
    return done
