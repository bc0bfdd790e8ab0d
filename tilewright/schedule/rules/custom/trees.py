"""Decision trees: lanes are trees, all walk the same number of steps, leaves lead to themselves."""

from __future__ import annotations

from ....ops.trees import COMPARISONS, EQUAL, GREATER, LESS, NAN
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, For, Stmt, loop, seq, store
from .. import direct
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
    always = a.opaque.attributes["always"]
    if always:
        hit: Expr = Op(f"cmpf.{COMPARISONS[always]}", (value, limit), "i1")
    else:
        hit = _by_bits(value, limit, Load(test, (at,), "i32"))
    step = store("node", (lane,), select(hit, Load(yes, (at,), "i32"), Load(no, (at,), "i32")), "step")
    extent: Expr = index(width) if trees % width == 0 else minimum(width, trees - block * width)

    def over(body: Stmt) -> Stmt:
        return For("l", extent, body, "vector", width) if width > 1 else loop("l", 1, body)

    first = store("node", (lane,), Load(roots, (tree,), "i32"), "root")
    body = seq(over(first), loop("d", depth, over(step)), over(store(out, (row, tree), node, "leaf")))
    body = Alloc(Buffer("node", (width,), "i32", "register"), body)
    return tasks.parallel(loop("run", tasks.extent, body))


def _by_bits(value: Expr, limit: Expr, wanted: Expr) -> Expr:
    """Whether one of the `wanted` bits (see `ops.trees`) holds."""
    zero = Const(0, "i32")
    found: Expr = zero
    for bit, predicate, other in ((LESS, "olt", limit), (EQUAL, "oeq", limit), (GREATER, "ogt", limit),
                                  (NAN, "uno", value)):  # fmt: skip
        true = Op(f"cmpf.{predicate}", (value, other), "i1")
        found = Op("ori", (found, select(true, Const(bit, "i32"), zero)), "i32")
    return Op("cmpi.ne", (Op("andi", (found, wanted), "i32"), zero), "i1")
