"""The primitive for places of extreme elements (arg max)."""

from __future__ import annotations

from dataclasses import dataclass

from ...tensor.expr import Const, Expr, Load, Op, Target, Var, neutral, substitute, walk
from ..nest import For, Seq, Store
from .state import ScheduleError, State, primitive

#: what finds an extreme -> what says that an element is ahead of another: strictly, and if equal ones are too. A
#: comparison with what is not a number holds in the first form ("unordered or"), not in the second ("ordered and")
AHEAD = {
    "maximumf": ("cmpf.ugt", "cmpf.oge"), "minimumf": ("cmpf.ult", "cmpf.ole"),
    "maxsi": ("cmpi.sgt", "cmpi.sge"), "minsi": ("cmpi.slt", "cmpi.sle"),
    "maxui": ("cmpi.ugt", "cmpi.uge"), "minui": ("cmpi.ult", "cmpi.ule"),
}  # fmt: skip


@dataclass(frozen=True)
class Places:
    """``place = op(select(x == extreme (or x is no number), here, none), place)``: `last` if op is the maximum."""

    x: Expr
    extreme: Load
    here: Expr
    last: bool


class ExtremePrimitives(State):
    """Extreme elements with their places."""

    @primitive
    def one_pass(self, extreme: str, place: str) -> None:
        """Find where the extreme element is while it is found: the first one, or the last one, of equal elements. What
        is not a number counts as the extreme one. The blocks become one, named `place`.

        Refused unless block `place`, next after block `extreme`, looks through the same elements for the extreme one,
        both in one reduction loop and no other loop is split or laid out.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: i32[8], y: out(i32[1])):
        ...     t = local(i32[1])
        ...     for k in serial(8):
        ...         s0: t[0] = reduce(maxsi(x[k], t[0]), init=i32(-2147483648), over=(k,))
        ...     for l in serial(8):
        ...         s1: y[0] = reduce(minsi(select(cmpi.eq(x[l], t[0]), index_cast[i32](l), i32(8)), y[0]), init=i32(8),
        ...                           over=(l,))'''))
        >>> s.one_pass("s0", "s1")
        >>> print(s)
        def k(x: i32[8], y: out(i32[1])):
            t = local(i32[1])
            for k in serial(8):
                s1: (t[0], y[0]) = reduce(select(cmpi.sgt(x[k], t[0]), x[k], t[0]), select(cmpi.sgt(x[k], t[0]), index_cast[i32](k), y[0]), init=(i32(-2147483648), i32(0)), over=(k,))
        """  # noqa: E501
        first, second = self.store(extreme), self.store(place)
        outer, inner = self._same_loops(first, second)
        (kept,), (t,) = first.targets, second.targets
        found = _places(t, second.reduction[0], self.extent(second.reduction[0]))
        if found is None or not isinstance(kept.value, Op) or kept.value.op not in AHEAD:
            raise ScheduleError(f"{place} does not look for an extreme element", stage="schedule")
        own = Load(kept.buffer, kept.indices, kept.value.dtype)
        if kept.init != neutral(kept.value.op, own.dtype):
            raise ScheduleError(f"{extreme} does not begin with nothing", stage="schedule")
        moved: dict[str, Expr] = {b.var: Var(a.var) for a, b in zip(outer, inner, strict=True)}
        x, here, sought = (substitute(e, moved) for e in (found.x, found.here, found.extreme))
        same = kept.value in (Op(kept.value.op, pair, own.dtype) for pair in ((x, own), (own, x)))
        if sought != own or not same or {kept.buffer, t.buffer} & {y.buffer for y in walk(x) if isinstance(y, Load)}:
            raise ScheduleError(f"{place} does not look for what {extreme} finds", stage="schedule")
        at = tuple(substitute(i, moved) for i in t.indices)
        ahead = _ahead(kept.value.op, x, own, last=found.last)
        dtype = t.value.dtype
        position = Op("select", (ahead, here, Load(t.buffer, at, dtype)), dtype)
        both = Store(
            (
                Target(kept.buffer, kept.indices, Op("select", (ahead, x, own), own.dtype), kept.init),
                Target(t.buffer, at, position, Const(0, dtype)),
            ),
            place,
            first.reduction,
        )
        self._replace(inner[0], None)
        self._replace(self.store(extreme), both)

    def _same_loops(self, first: Store, second: Store) -> tuple[list[For], list[For]]:
        """The loops of two blocks that follow each other, from where they part; ScheduleError unless they do the
        same."""
        if first is second:
            raise ScheduleError(f"{first.block} is one block, not two", stage="schedule")
        a, b = self._path(first.block), self._path(second.block)
        apart = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x is not y)
        around, own, other = a[apart - 1], a[apart:-1], b[apart:-1]
        adjacent = isinstance(around, Seq) and around.stmts.index(other[0] if other else second) == 1 + (
            around.stmts.index(own[0] if own else first)
        )
        loops = [s for s in own if isinstance(s, For)], [s for s in other if isinstance(s, For)]
        moved: dict[str, Expr] = {y.var: Var(x.var) for x, y in zip(*loops, strict=False)}
        same = len(loops[0]) == len(own) == len(loops[1]) == len(other) and all(
            x.extent == substitute(y.extent, moved) and x.kind == y.kind == "serial"
            for x, y in zip(*loops, strict=True)
        )
        if not adjacent or not same or not own:
            raise ScheduleError(f"{second.block} does not follow {first.block} in the same loops", stage="schedule")
        sums = tuple(str(moved[v]) for v in second.reduction if v in moved)
        if len(first.reduction) != 1 or sums != first.reduction or len(first.targets) != 1 or len(second.targets) != 1:
            raise ScheduleError(f"{first.block} and {second.block} are not reductions in one loop", stage="schedule")
        return loops


def _ahead(op: str, x: Expr, best: Expr, *, last: bool) -> Expr:
    """Whether x takes the place of the best so far. What is not a number is ahead of all others."""
    strictly, or_equal = AHEAD[op]
    if not op.endswith("f"):
        return Op(or_equal if last else strictly, (x, best), "i1")
    if last:
        return Op("ori", (Op(or_equal, (x, best), "i1"), Op("cmpf.uno", (x, x), "i1")), "i1")
    return Op("andi", (Op(strictly, (x, best), "i1"), Op("cmpf.ord", (best, best), "i1")), "i1")


def _places(t: Target, loop: str, extent: int) -> Places | None:
    """The parts of the update of a place, a number of `loop`; None if it is another update."""
    v = t.value
    if not isinstance(v, Op) or v.op not in ("minsi", "maxsi") or t.init is None:
        return None
    for found, own in (v.args, v.args[::-1]):
        if own == Load(t.buffer, t.indices, v.dtype) and isinstance(found, Op) and found.op == "select":
            hit, here, none = found.args
            if here != Op("index_cast", (Var(loop),), v.dtype) or none != t.init or not isinstance(none, Const):
                return None
            if extent < 1 or (none.value > 0 if v.op == "maxsi" else none.value < extent - 1):
                return None
            number = None
            if isinstance(hit, Op) and hit.op == "ori":
                hit, number = hit.args
            if not isinstance(hit, Op) or hit.op != ("cmpf.oeq" if number else "cmpi.eq"):
                return None
            x, extreme = hit.args
            if number not in (None, Op("cmpf.une", (x, x), "i1")) or not isinstance(extreme, Load):
                return None
            return Places(x, extreme, here, v.op == "maxsi")
    return None
