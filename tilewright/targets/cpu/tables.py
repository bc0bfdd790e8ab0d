"""Operations of AVX-512 that mathematical functions use (`tensor.mathlib.tabled`), on vectors of 16 lanes:

pick(i, t0 ... t15)   ->   vpermps    # the low four bits of i count
scalef(x, k)          ->   vscalefps  # x * 2^floor(k), rounded once
limit(x, y)           ->   vrangeps   # the smaller magnitude with the sign of x, y if x is NaN
"""

from __future__ import annotations

from ...tensor.expr import Const, Op
from .emit_expr import ExprEmitter
from .values import Value, float_text

LANES = 16
FEATURES = frozenset(("avx512f", "avx512dq"))
#: the rounding argument of the intrinsics: as the mode says
CURRENT = 4
#: what ``range`` selects: the smaller magnitude, with the sign of the first operand
SMALLER_MAGNITUDE = 2


class TableEmitter(ExprEmitter):
    """Emission of ``limit``, ``pick`` and ``scalef``."""

    #: of the processor
    features: tuple[str, ...] = ()

    def has_tables(self, args: list[Value]) -> bool:
        return set(self.features) >= FEATURES and max((a.width for a in args), default=0) == LANES

    def table_operation(self, e: Op, args: list[Value]) -> Value:
        if e.op == "pick":
            index, table, shape = self.as_vector(args[0], LANES), self.table(e), f"vector<{LANES}xf32>"
            text = f"({table}, {index.ssa}) : ({shape}, {index.type}) -> {shape}"
            return Value(self.op(f'llvm.call_intrinsic "llvm.x86.avx512.permvar.sf.512"{text}'), "f32", LANES)
        x, y = (self.as_vector(a, LANES) for a in args)
        mask, rounding, v = self.const(-1, "i16"), self.const(CURRENT, "i32"), x.type
        if e.op == "scalef":
            name, text = "scalef", f"({x.ssa}, {y.ssa}, {x.ssa}, {mask}, {rounding}) : ({v}, {v}, {v}, i16, i32) -> {v}"
        else:
            how, types = self.const(SMALLER_MAGNITUDE, "i32"), f"({v}, {v}, i32, {v}, i16, i32) -> {v}"
            name, text = "range", f"({x.ssa}, {y.ssa}, {how}, {x.ssa}, {mask}, {rounding}) : {types}"
        return self.op_value(f'llvm.call_intrinsic "llvm.x86.avx512.mask.{name}.ps.512"{text}', x)

    def table(self, e: Op) -> str:
        """The constant vector of the numbers to pick from."""
        numbers = ", ".join(float_text(x.value, x.dtype) for x in e.args[1:] if isinstance(x, Const))
        text = f"arith.constant dense<[{numbers}]> : vector<{LANES}xf32>"
        if text not in self.constants:
            self.constants[text] = f"{self.fresh()} = {text}"
        return self.constants[text].split(" = ", 1)[0]
