"""Decision trees: lanes are trees, all walk the same number of steps, leaves lead to themselves."""

from __future__ import annotations

from ...tensor.expr import Buffer, Const, Expr, Load, Op, Var, minimum
from ...tensor.kernel import Kernel
from ..machine import Machine, lanes
from ..nest import Alloc, For, Stmt, loop, seq, store
from . import direct
from .nests import Access, divide, index, select


@direct("tree_leaves", writes_once=True)
def build(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.tree_leaves``."""
    a = Access(kernel)
    x, feature, split, test, yes, no, roots = (a.operand(i) for i in range(7))
    out, (rows, trees), depth = a.opaque.results[0], a.shape(a.opaque.results[0]), a.opaque.attributes["depth"]
    if rows * trees == 0:
        return seq()
    width = min(lanes(machine, "f64"), 1 << max(trees - 1, 0).bit_length())  # positions have 64 bits
    blocks = -(-trees // width)
    tasks = divide(rows * blocks, rows * trees * (depth + 1) * 8, machine)
    task = tasks.first + Var("run")
    row, block, lane = task // blocks, task % blocks, Var("l")
    tree = block * width + lane
    node = Load("node", (lane,), "i32")
    at: Expr = Op("index_cast", (node,), "index")
    place = Op("index_cast", (Load(feature, (at,), "i32"),), "index")
    value, limit = a.read(x, (row, place)), a.read(split, (at,))
    zero = Const(0, "i32")
    found: Expr = zero
    for bit, predicate, other in ((1, "olt", limit), (2, "oeq", limit), (4, "ogt", limit), (8, "uno", value)):
        found = Op(
            "ori", (found, select(Op(f"cmpf.{predicate}", (value, other), "i1"), Const(bit, "i32"), zero)), "i32"
        )
    hit = Op("cmpi.ne", (Op("andi", (found, Load(test, (at,), "i32")), "i32"), zero), "i1")
    step = store("node", (lane,), select(hit, Load(yes, (at,), "i32"), Load(no, (at,), "i32")), "step")
    extent: Expr = index(width) if trees % width == 0 else minimum(width, trees - block * width)

    def over(body: Stmt) -> Stmt:
        return For("l", extent, body, "vector", width) if width > 1 else loop("l", 1, body)

    first = store("node", (lane,), Load(roots, (tree,), "i32"), "root")
    body = seq(over(first), loop("d", depth, over(step)), over(store(out, (row, tree), node, "leaf")))
    body = Alloc(Buffer("node", (width,), "i32", "register"), body)
    return tasks.parallel(loop("run", tasks.extent, body))
