"""Where the maximum of each pooling window lies: lanes run along the last dimension, the window is walked in order."""

from __future__ import annotations

from functools import reduce
from math import prod

from ....ops.pool import visited
from ....support.dtypes import FLOATS, wide
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, For, Stmt, Store, loop, seq
from .. import direct
from .nests import (
    Access,
    at_least,
    before,
    both,
    divide,
    either,
    flatten,
    index,
    less,
    select,
    unflatten,
    variables,
)

I64 = "i64"
#: the position where a window holds nothing but padding
BEYOND = (1 << 63) - 1


@direct("max_pool_indices", writes_once=True)
def build(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.max_pool_indices``: of equal elements (or several NaNs) the first, which has the smallest
    position."""
    a = Access(kernel)
    x, out = a.operand(0), a.opaque.results[0]
    sizes, shape = a.shape(x), a.shape(out)
    if prod(shape) == 0:
        return seq()
    attributes, dtype = a.opaque.attributes, wide(a.dtype(x))
    zero = 0.0 if dtype in FLOATS else 0
    window, pads, dilations = visited(sizes[2:], shape[2:], attributes)
    r = len(window)
    width = min(lanes(machine, dtype), 1 << max(shape[-1] - 1, 0).bit_length())
    blocks = -(-shape[-1] // width)
    lead = shape[:-1]
    tasks = divide(prod(lead) * blocks, prod(shape) * prod(window), machine)
    task = tasks.first + Var("run")
    block, lane = task % blocks, Var("l")
    outer = (*unflatten(task // blocks, lead), block * width + lane)
    at = tuple(
        o * attributes["strides"][i] + k * dilations[i] - pads[i]
        for i, (o, k) in enumerate(zip(outer[2:], variables("k", window), strict=True))
    )
    tests = [t for i, n in zip(at, sizes[2:], strict=True) for t in (at_least(i, 0), less(i, n))]
    inside = reduce(both, tests)
    best, where = Load("best", (lane,), dtype), Load("where", (lane,), I64)
    value = Op("guard", (inside, a.read(x, (*outer[:2], *at)), Const(zero, dtype)), dtype)
    empty = Op("cmpi.slt", (where, Const(0, I64)), "i1")
    better = both(inside, either(empty, before(value, best, largest=True, unsigned=a.unsigned(0))))
    spatial, extents, order = at, sizes[2:], range(r)
    if attributes["order"]:  # positions and the walk through the window count column-major
        spatial, extents, order = at[::-1], sizes[:1:-1], range(r - 1, -1, -1)
    position = Op("index_cast", (flatten((*outer[:2], *spatial), (*sizes[:2], *extents)),), I64)
    step = Store(
        (
            Target("best", (lane,), select(better, value, best)),
            Target("where", (lane,), select(better, position, where)),
        ),
        "better",
    )
    start = Store((Target("best", (lane,), Const(zero, dtype)), Target("where", (lane,), Const(-1, I64))), "start")
    extent: Expr = index(width) if shape[-1] % width == 0 else minimum(width, shape[-1] - block * width)

    def over(body: Stmt) -> Stmt:
        return For("l", extent, body, "vector", width) if width > 1 else loop("l", 1, body)

    walk = over(step)
    for d in reversed(order):
        walk = loop(f"k{d}", window[d], walk)
    found = select(empty, Const(BEYOND, I64), where)
    body: Stmt = seq(over(start), walk, over(a.write(out, outer, found, "result")))
    for b in (Buffer("where", (width,), I64, "register"), Buffer("best", (width,), dtype, "register")):
        body = Alloc(b, body)
    return tasks.parallel(loop("run", tasks.extent, body))
