"""Rotary positions: threads share the heads of all tokens; both numbers of a pair are read once."""

from __future__ import annotations

from ....support.sizes import highest
from ....tensor.expr import Expr, Op, Target, Var
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Stmt, Store, loop, seq
from .. import direct
from .nests import Access, add, divide, mul, unflatten, vector_loop


@direct("rotary", writes_once=True, typical_sizes=True)
def build(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.rotary``."""
    s = Access(kernel)
    x, cosine, sine, out = s.operand(0), s.operand(1), s.operand(2), s.opaque.results[0]
    (tokens, heads, depth), pairs = s.shape(out), s.shape(cosine)[1]
    if 0 in (tokens, heads, depth):
        return seq()
    tasks = divide(tokens * heads, tokens * heads * depth, machine)
    t, h = unflatten(tasks.first + Var("row"), (tokens, heads))
    together = bool(s.opaque.attributes["interleaved"])

    def element(at: tuple[Expr, ...], value: Expr) -> Target:
        return Target(out, at, s.narrow(out, value))

    def pair(i: Expr) -> Stmt:
        first, second = ((t, h, i * 2 + k) if together else (t, h, i + k * pairs) for k in (0, 1))
        a, b, c, d = s.read(x, first), s.read(x, second), s.read(cosine, (t, i)), s.read(sine, (t, i))
        turned = Op("subf", (mul(a, c), mul(b, d)), a.dtype), add(mul(b, c), mul(a, d))
        return Store((element(first, turned[0]), element(second, turned[1])), "turn")

    def other(i: Expr) -> Stmt:
        at = (t, h, i + 2 * pairs)
        return Store((element(at, s.read(x, at)),), "rest")

    width = lanes(machine, s.dtype(out))
    rest = depth - 2 * pairs
    body = seq(
        vector_loop("pair", pairs, highest(pairs), width, pair) if pairs else None,
        vector_loop("rest", rest, highest(rest), width, other) if rest else None,
    )
    return tasks.parallel(loop("row", tasks.extent, body))
