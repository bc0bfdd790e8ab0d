"""The primitive for instructions that multiply and add neighbours of a reduction (dot products)."""

from __future__ import annotations

from dataclasses import replace

from ...tensor.expr import Const, Expr, Load, Op, Target, substitute
from ..legality import is_update
from ..nest import Stmt, Store, stores, transform
from .state import ScheduleError, State, primitive


class DotPrimitives(State):
    """Reductions in pairs."""

    @primitive
    def dot(self, block: str, var: str) -> None:
        """Sum the two steps of a reduction loop over products of bf16 elements before they are added: one ``dot2``.

        before: for k in 32: for l in 2: s += extf(a[k*2 + l]) * extf(b[k*2 + l])
        after:  for k in 32: s += dot2(a[k*2], b[k*2], a[k*2 + 1], b[k*2 + 1])      # dot("s", "l")

        ``dot2(a, b, c, d)`` is ``a*b + c*d`` in f32. A machine's instruction may round otherwise: the products and
        their sum are exact in it or rounded, and it may take denormals for zero.
        """
        f, store = self.loop(var), self.store(block)
        t = store.targets[0]
        if var not in store.reduction or len(store.targets) != 1 or not is_update(t):
            raise ScheduleError(f"{block} is not a sum over {var}", stage="schedule")
        if f.trip != 2 or len(stores(f.body)) != 1:
            raise ScheduleError(f"{var} is not a loop of two iterations around {block} alone", stage="schedule")
        factors = product_of_halves(t)
        if factors is None:
            raise ScheduleError(f"{block} does not sum products of bf16 elements", stage="schedule")
        pairs = [substitute(x, {var: Const(i, "index")}) for i in (0, 1) for x in factors]
        total = Op("addf", (Load(t.buffer, t.indices, "f32"), Op("dot2", tuple(pairs), "f32")), "f32")
        new = replace(
            store,
            targets=(Target(t.buffer, t.indices, total, t.init),),
            reduction=tuple(v for v in store.reduction if v != var),
        )

        def visit(s: Stmt) -> Stmt:
            return new if isinstance(s, Store) else s

        body = transform(f.body, visit)
        assert body is not None
        self._replace(f, body)


def product_of_halves(t: Target) -> tuple[Expr, Expr] | None:
    """The two bf16 factors of ``acc + extf(x) * extf(y)`` in f32; None for anything else."""
    v = t.value
    if not (isinstance(v, Op) and v.op == "addf" and v.dtype == "f32"):
        return None
    for acc, product in (v.args, v.args[::-1]):
        if isinstance(acc, Load) and acc.buffer == t.buffer and isinstance(product, Op) and product.op == "mulf":
            x, y = (_narrow(a) for a in product.args)
            return None if x is None or y is None else (x, y)
    return None


def _narrow(e: Expr) -> Expr | None:
    if isinstance(e, Op) and e.op == "extf" and isinstance(e.args[0], Load) and e.args[0].dtype == "bf16":
        return e.args[0]
    return None


__all__ = ["DotPrimitives", "product_of_halves"]
