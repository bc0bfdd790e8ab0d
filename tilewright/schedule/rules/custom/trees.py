"""Decision trees: several walks side by side, all of the same number of steps; leaves lead to themselves.

Each step waits for the one before, so that walks of several examples (or of one example through several trees) go on
together, one instruction each. Vectors would gather from five tables a step, which takes longer (measured on a Zen 4:
1.5 to 2 times).
"""

from __future__ import annotations

from ....ops.trees import COMPARISONS, EQUAL, GREATER, LESS, NAN
from ....support.sizes import highest, typically
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine
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
    with typically():
        by_rows = rows >= machine.load_chains  # then a tree stays in the first-level cache while all examples walk it
    outer, inner = (trees, rows) if by_rows else (rows, trees)
    count = min(machine.load_chains, highest(inner))
    blocks = -(-inner // count)
    tasks = divide(outer * blocks, rows * trees * (depth + 1) * 8, machine)
    task, lane = tasks.first + Var("run"), Var("l")
    one, many = task // blocks, task % blocks * count + lane
    row, tree = (many, one) if by_rows else (one, many)
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
    extent: Expr = index(count) if inner % count == 0 else minimum(count, inner - task % blocks * count)

    def over(body: Stmt) -> Stmt:
        return For("l", extent, body, "unroll")

    first = store("node", (lane,), Load(roots, (tree,), "i32"), "root")
    body = seq(over(first), loop("d", depth, over(step)), over(store(out, (row, tree), node, "leaf")))
    body = Alloc(Buffer("node", (count,), "i32", "register"), body)
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
