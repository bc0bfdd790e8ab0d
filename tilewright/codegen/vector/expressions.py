"""Scalar and vector expressions to MLIR text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...support.errors import CompileError
from ...tensor.expr import CASTS, Const, Expr, Load, Op, Var, interned
from ...tensor.mathlib import expand
from ...tensor.mathlib.double import expand_f64
from .indices import Indices
from .values import Value, Vector

if TYPE_CHECKING:
    from typing_extensions import Self

#: operations of the arith dialect; all others are of math
ARITH = CASTS | {
    "addf", "subf", "mulf", "divf", "remf", "negf", "maximumf", "minimumf", "maxnumf", "minnumf", "addi",
    "subi", "muli", "divsi", "divui", "remsi", "remui", "floordivsi", "ceildivsi", "ceildivui", "andi", "ori",
    "xori", "shli", "shrsi", "shrui", "maxsi", "minsi", "maxui", "minui", "select",
}  # fmt: skip
#: emits an operation, given what emits its operands
Handler = Callable[[Op, Callable[[Expr], Value]], Value]


class Expressions:
    """Emits expressions. `load` reads memory and registers, `operations` are those that an instruction does, by name;
    vectors of `table_lanes` have those of `tensor.mathlib.tabled`."""

    def __init__(
        self, at: Indices, load: Callable[[Load], Value], operations: Mapping[str, Handler], table_lanes: int
    ) -> None:
        self.at, self.text, self.load, self.operations, self.table_lanes = at, at.text, load, operations, table_lanes

    def expr(self, e: Expr) -> Value:
        return self.load(e) if type(e) is Load else self._expr(e, {})

    def _expr(self, e: Expr, memo: dict[int, Value]) -> Value:
        found = memo.get(id(e))
        if found is None:
            found = memo[id(e)] = self._emit(e, memo)
        return found

    def _emit(self, e: Expr, memo: dict[int, Value]) -> Value:
        if isinstance(e, _Leaf):
            return Value(e.name, e.dtype, e.width)
        if e.dtype == "index":
            return self.at.index(e)
        if isinstance(e, Const):
            return Value(self.text.const(e.value, e.dtype), e.dtype)
        if isinstance(e, Var):
            raise CompileError(f"unknown scalar {e.name}", stage="emit")
        if isinstance(e, Load):
            return self.load(e)
        assert isinstance(e, Op)
        if e.op == "guard":
            return self.guard(e)
        if e.op == "seldom":
            return self.seldom(e, memo)
        if e.op in self.operations:
            return self.operations[e.op](e, lambda a: self._expr(a, memo))
        return self.apply(e, [self._expr(a, memo) for a in e.args])

    def apply(self, e: Op, args: list[Value]) -> Value:
        """One operation on emitted operands; mathematical functions are expanded into machine operations."""
        if e.op not in ARITH and not e.op.startswith("cmp"):
            leaves = tuple(_Leaf(v.ssa, v.dtype, v.width) for v in args)
            tables = 0 < self.table_lanes == max((a.width for a in args), default=0)
            if e.op == "expm1" and e.dtype == "f64":  # MLIR's own pass makes exp(x) - 1 of it
                expanded = expand_f64(e.op, leaves)
            else:
                expanded = expand(e.op, leaves, e.dtype, tables=tables)
            if expanded is not None:
                return self._expr(expanded, {})
        # beside a constant, which of two zeros is larger may stay open: then x86 needs one instruction instead of four
        free = e.op in ("maximumf", "minimumf") and any(isinstance(a, Const) for a in e.args)
        if e.op.startswith("cmp"):
            return self.text.compare(e, args)
        name, flags = ("arith." if e.op in ARITH else "math.") + e.op, " fastmath<nsz>" if free else ""
        return self.text.elementwise(name, args, e.dtype, flags)

    def seldom(self, e: Op, memo: dict[int, Value]) -> Value:
        """seldom(c, x, y): x where c holds, else y; x is only computed if c holds in one lane or more."""
        cond, y = self._expr(e.args[0], memo), self._expr(e.args[2], memo)
        some = cond.ssa
        if cond.width:
            some = self.text.op(f"vector.reduction <or>, {cond.ssa} : vector<{cond.width}xi1> into i1")

        def there() -> Value:
            x = self._expr(e.args[1], dict(memo))
            return self.text.elementwise("arith.select", [cond, x, y], e.dtype)

        return self.text.branch(some, self.text.region(there), ([], y))

    def guard(self, e: Op) -> Value:
        """guard(c, x, y): x where c holds, else y; x's loads happen only where c holds."""
        cond, text = self.expr(e.args[0]), self.text
        if cond.width:
            vector, mask = text.vector, cond.ssa
            assert vector is not None
            if vector.mask:
                mask = text.op(f"arith.andi {mask}, {vector.mask} : vector<{vector.width}xi1>")
            with text.lanes(Vector(vector.var, vector.width, mask)):
                x = self.expr(e.args[1])
            return text.elementwise("arith.select", [cond, x, self.expr(e.args[2])], e.dtype)
        x_lines, x = self._captured(e.args[1])
        y_lines, y = self._captured(e.args[2], x.width)
        if y.width and not x.width:
            x_lines, x = self._captured(e.args[1], y.width)
        return text.branch(cond.ssa, (x_lines, x), (y_lines, y))

    def _captured(self, e: Expr, width: int = 0) -> tuple[list[str], Value]:
        """Emit `e` into lines of its own, as the body of a region; broadcast to `width` lanes if it is a scalar."""

        def value() -> Value:
            v = self.expr(e)
            return self.text.as_vector(v, width) if width and not v.width else v

        return self.text.region(value)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class _Leaf(Var):
    """An already emitted value standing in an expansion."""

    width: int  # type: ignore[misc]

    def __new__(cls, name: str, dtype: str, width: int) -> Self:
        return interned(cls, (name, dtype, width), (cls, name, dtype, width))
