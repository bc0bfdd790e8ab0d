"""Operations of AVX-512 that mathematical functions use (`tensor.mathlib.tabled`), on vectors of 16 lanes:

pick(i, t0 ... t15)   ->   vpermps    # the low four bits of i count
scalef(x, k)          ->   vscalefps  # x * 2^floor(k), rounded once
limit(x, y)           ->   vrangeps   # the smaller magnitude with the sign of x, y if x is NaN
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ...codegen.vector.expressions import Handler
from ...codegen.vector.part import Core, Part
from ...codegen.vector.values import Value, float_text
from ...tensor.expr import Const, Expr, Op

LANES = 16
#: the rounding argument of the intrinsics: as the mode says
CURRENT = 4
#: what ``range`` selects: the smaller magnitude, with the sign of the first operand
SMALLER_MAGNITUDE = 2


def table_lanes(features: Collection[str]) -> int:
    """The lanes of vectors with these operations, 0 on a processor without them."""
    return LANES if {"avx512f", "avx512dq"} <= {*features} else 0


class Tables(Part):
    """``limit``, ``pick`` and ``scalef``."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._known: dict[tuple[Expr, ...], str] = {}  # the tables there are

    @property
    def operations(self) -> Mapping[str, Handler]:
        return dict.fromkeys(("limit", "pick", "scalef"), self._emit)

    def _emit(self, e: Op, emit: Callable[[Expr], Value]) -> Value:
        text, args = self.text, [emit(a) for a in e.args]
        if e.op == "pick":
            index, table, shape = text.as_vector(args[0], LANES), self._table(e), Value("", "f32", LANES)
            types = f"({shape.type}, {index.type}) -> {shape.type}"
            name = "llvm.x86.avx512.permvar.sf.512"
            return text.op_value(f'llvm.call_intrinsic "{name}"({table}, {index.ssa}) : {types}', shape)
        x, y = (text.as_vector(a, LANES) for a in args)
        mask, rounding, v = text.const(-1, "i16"), text.const(CURRENT, "i32"), x.type
        if e.op == "scalef":
            name, call = "scalef", f"({x.ssa}, {y.ssa}, {x.ssa}, {mask}, {rounding}) : ({v}, {v}, {v}, i16, i32) -> {v}"
        else:
            how, types = text.const(SMALLER_MAGNITUDE, "i32"), f"({v}, {v}, i32, {v}, i16, i32) -> {v}"
            name, call = "range", f"({x.ssa}, {y.ssa}, {how}, {x.ssa}, {mask}, {rounding}) : {types}"
        return text.op_value(f'llvm.call_intrinsic "llvm.x86.avx512.mask.{name}.ps.512"{call}', x)

    def _table(self, e: Op) -> str:
        """The constant vector of the numbers to pick from."""
        name = self._known.get(e.args[1:])
        if name is None:
            numbers = ", ".join([float_text(x.value, x.dtype) for x in e.args[1:] if isinstance(x, Const)])
            name = self.text.at_first(f"arith.constant dense<[{numbers}]> : vector<{LANES}xf32>")
            self._known[e.args[1:]] = name
        return name
