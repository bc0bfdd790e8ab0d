"""Address computation: index expressions as MLIR text, and the offsets of a vector's lanes from the first one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import itemgetter

from ...support.errors import CompileError
from ...support.sizes import at_most
from ...tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, bounds, from_linear, linear, loads, variables
from .builder import Builder
from .values import Place, Value


class Indices:
    """`ranges` has the smallest and the largest value of each loop variable. Numbers that stand in an index are emitted
    by `expr`, those from memory by `load`."""

    #: given when there is an emitter of expressions
    expr: Callable[[Expr], Value]
    load: Callable[[Load], Value]

    def __init__(self, text: Builder, buffers: dict[str, Buffer], ranges: dict[str, tuple[int, int]]) -> None:
        self.text, self.buffers, self.ranges = text, buffers, ranges
        self._places: dict[tuple[str, tuple[Expr, ...]], Place] = {}

    # ---- as text ----

    def index(self, e: Expr) -> Value:
        """An index expression: constants folded, terms added outermost loop first so that sums can be hoisted."""
        return self.sum_of(*linear(e))

    def sum_of(self, terms: dict[Expr, int], constant: int) -> Value:
        """An index in linear form."""
        text, env = self.text, self.text.env
        rest: list[tuple[int, Expr, int]] = []
        known: list[Hashable] = []  # what the sum is made of, where that is no element of memory and no vector
        for t, c in terms.items():
            if isinstance(t, Var):
                bound = env.get(t.name)
                if isinstance(bound, int):
                    constant += c * bound
                    continue
                rest.append((text.depth[t.name] if bound is not None else 100, t, c))
                known += bound, c
            else:
                names = [env.get(v) for v in variables(t)]
                inside = [text.depth[v] for v in variables(t) if isinstance(env.get(v), str)]
                rest.append((50 if loads(t) else max(inside, default=1), t, c))
                known += (None,) if loads(t) else (t, *names, c)
        if not rest:
            name = text.const(constant, "index")
            if isinstance(constant, int):
                text.steps[name] = "", constant
            return Value(name, "index")
        rest.sort(key=itemgetter(0))
        if None in known:
            total = self._summed(rest)
        else:
            total = Value(text.once(tuple(known), lambda: self._summed(rest).ssa), "index")
        if constant:
            base, step = total.ssa, Value(text.const(constant, "index"), "index")
            total = text.elementwise("arith.addi", [total, step], "index")
            if isinstance(constant, int):
                text.steps[total.ssa] = base, constant
        return total

    def _summed(self, terms: list[tuple[int, Expr, int]]) -> Value:
        """The sum of terms in this order."""
        text, total = self.text, None
        for _, t, c in terms:
            part = self._term(t)
            if c != 1:
                part = text.elementwise("arith.muli", [part, Value(text.const(c, "index"), "index")], "index")
            total = part if total is None else text.elementwise("arith.addi", [total, part], "index")
        assert total is not None
        return total

    def _term(self, t: Expr) -> Value:
        vector = self.text.vector
        if isinstance(t, Var):
            bound = self.text.env.get(t.name)
            if isinstance(bound, str):
                return Value(bound, "index")
            if vector and t.name == vector.var:
                return Value(self.text.op(f"vector.step : vector<{vector.width}xindex>"), "index", vector.width)
            raise CompileError(f"loop variable {t.name} is not in scope", stage="emit")
        if isinstance(t, Load):
            return self.load(t)
        assert isinstance(t, Op)
        args = [self.expr(a) for a in t.args]
        if t.op in ("floordivsi", "remsi"):
            limit = bounds(t.args[0], self.ranges)
            # not negative: the unsigned form is cheaper
            if t.op == "remsi" or (limit is not None and at_most(0, limit[0])):
                return self.text.elementwise("arith.divui" if t.op == "floordivsi" else "arith.remui", args, "index")
        return self.text.elementwise("arith." + t.op, args, "index")

    def address(self, buffer: Buffer, indices: tuple[Expr, ...], *, lane0: bool = False) -> Value:
        """The flat index; with `lane0` that of the first lane."""
        place = self.located(buffer, indices)
        if lane0:
            assert self.text.vector is not None
            with self.text.bind(self.text.vector.var, 0):
                return self.sum_of(place.terms, place.constant)
        return self.sum_of(place.terms, place.constant)

    # ---- as numbers ----

    def located(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Place:
        """Where an element lies. Found once: an unrolled loop asks for it in every iteration."""
        key = buffer.name, indices
        found = self._places.get(key)
        if found is None:
            terms, constant = dict[Expr, int](), 0
            for i, s in zip(indices, buffer.strides, strict=True):
                parts, offset = linear(i)
                constant += offset * s
                for t, c in parts.items():
                    terms[t] = terms.get(t, 0) + c * s
            terms = {t: c for t, c in terms.items() if c}
            flat = None
            if any(isinstance(t, Op) and t.op == "floordivsi" for t in terms):
                flat = from_linear(terms, constant, self.ranges)  # x // n * n + x % n is x
                terms, constant = linear(flat)
            moves = tuple([(t.name if isinstance(t, Var) else str(t), c) for t, c in terms.items()])
            found = self._places[key] = Place(terms, constant, moves, flat)
        return found

    def flat(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """The index of an element in its flat buffer."""
        place = self.located(buffer, indices)
        if place.flat is None:
            place.flat = Const(0, "index")
            for i, s in zip(indices, buffer.strides, strict=True):
                place.flat = place.flat + i * s
        return place.flat

    def unrolled(self) -> dict[str, Expr]:
        """The loop variables that are numbers here."""
        return {v: Const(x, "index") for v, x in self.text.env.items() if isinstance(x, int)}

    def lane_stride(self, name: str, indices: tuple[Expr, ...]) -> int | None:
        """Elements between neighbouring lanes: 0 invariant, 1 contiguous, None if not regular."""
        assert self.text.vector is not None
        place, var = self.located(self.buffers[name], indices), self.text.vector.var
        if var not in place.strides:
            irregular = any(not isinstance(t, Var) and var in variables(t) for t in place.terms)
            place.strides[var] = None if irregular else place.terms.get(Var(var), 0)
        return place.strides[var]

    def depends_on_lane(self, e: Expr) -> bool:
        return self.text.vector is not None and self.text.vector.var in variables(e)

    def invariant(self, t: Target) -> bool:
        """Whether lanes write the same element."""
        return self.text.vector is not None and self.lane_stride(t.buffer, t.indices) == 0

    def neighbours(self, x: Load, y: Load) -> bool:
        """Whether y is the element behind x."""
        if x.buffer != y.buffer:
            return False
        a, b = (self.located(self.buffers[e.buffer], e.indices) for e in (x, y))
        return a.terms == b.terms and b.constant - a.constant == 1
