"""Scalar and vector expressions to MLIR text."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from ...support.errors import CompileError
from ...tensor.expr import CASTS, Const, Expr, Load, Op, Var
from ...tensor.mathlib import expand
from ...tensor.mathlib.double import expand_f64
from .indices import Indices
from .values import Value, Vector

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
        #: functions of values that stand for any, in machine operations, and constants
        self._expansions: dict[tuple[Hashable, ...], Expr | None] = {}
        self._constants: dict[Const, Value] = {}

    def expr(self, e: Expr) -> Value:
        return self.load(e) if type(e) is Load else self._expr(e, {})

    def _expr(self, e: Expr, memo: dict[Expr, Value]) -> Value:
        found = memo.get(e)
        if found is None:
            found = memo[e] = self._emit(e, memo)
        return found

    def _emit(self, e: Expr, memo: dict[Expr, Value]) -> Value:
        if e.dtype == "index":
            return self.at.index(e)
        if isinstance(e, Const):
            return self._constant(e)
        if isinstance(e, Var):
            raise CompileError(f"unknown scalar {e.name}", stage="emit")
        if isinstance(e, Load):
            return self.load(e)
        assert isinstance(e, Op)
        if e.op == "guard":
            return self.guard(e)
        if e.op in self.operations:
            return self.operations[e.op](e, lambda a: self._expr(a, memo))
        return self.apply(e, [self._expr(a, memo) for a in e.args])

    def apply(self, e: Op, args: list[Value]) -> Value:
        """One operation on emitted operands; mathematical functions are expanded into machine operations."""
        if e.op not in ARITH and not e.op.startswith("cmp"):
            leaves = tuple([Var(f"%{args.index(v)}", v.dtype) for v in args])
            tables = 0 < self.table_lanes == max((a.width for a in args), default=0)
            key = e.op, e.dtype, tables, leaves
            if key not in self._expansions:
                f64 = e.op == "expm1" and e.dtype == "f64"  # MLIR's own pass makes exp(x) - 1 of it
                made = expand_f64(e.op, leaves) if f64 else expand(e.op, leaves, e.dtype, tables=tables)
                self._expansions[key] = made
            if (expanded := self._expansions[key]) is not None:
                return self.expanded(expanded, dict(zip(leaves, args, strict=True)))
        # beside a constant, which of two zeros is larger may stay open: then x86 needs one instruction instead of four
        free = e.op in ("maximumf", "minimumf") and any(isinstance(a, Const) for a in e.args)
        return self._machine(e, args, " fastmath<nsz>" if free else "")

    def _machine(self, e: Op, args: list[Value], flags: str = "") -> Value:
        if e.op.startswith("cmp"):
            return self.text.compare(e, args)
        return self.text.elementwise(("arith." if e.op in ARITH else "math.") + e.op, args, e.dtype, flags)

    def _constant(self, e: Const) -> Value:
        found = self._constants.get(e)
        if found is None:
            found = self._constants[e] = Value(self.text.const(e.value, e.dtype), e.dtype)
        return found

    def expanded(self, e: Expr, memo: dict[Expr, Value]) -> Value:
        """Emit an expansion of which the leaves, and what else `memo` has, are already emitted."""
        found = memo.get(e)
        if found is None:
            if isinstance(e, Const):
                found = self._constant(e)
            else:
                assert isinstance(e, Op)
                if e.op == "seldom":
                    found = self.seldom(e, memo)
                elif e.op in self.operations:
                    found = self.operations[e.op](e, lambda a: self.expanded(a, memo))
                else:
                    found = self._machine(e, [self.expanded(a, memo) for a in e.args])
            memo[e] = found
        return found

    def seldom(self, e: Op, memo: dict[Expr, Value]) -> Value:
        """seldom(c, x, y): x where c holds, else y; x is only computed if c holds in one lane or more."""
        cond, y = self.expanded(e.args[0], memo), self.expanded(e.args[2], memo)
        some = cond.ssa
        if cond.width:
            some = self.text.op(f"vector.reduction <or>, {cond.ssa} : vector<{cond.width}xi1> into i1")

        def there() -> Value:
            x = self.expanded(e.args[1], dict(memo))
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
