"""Lowers scalar expressions to LLVM IR for GPUs: arithmetic as instructions, math functions as polynomials
(`tensor.mathlib`) or as the vendor's intrinsics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...support.errors import UnsupportedError
from ...tensor.expr import CASTS, Const, Expr, Load, Op, Var, interned
from ...tensor.mathlib import expand
from ...tensor.mathlib.build import V
from ...tensor.mathlib.double import expand_f64
from ..gpu.indices import GpuIndices
from .builder import GpuLlvmBuilder, GpuLlvmValue, literal, llvm_type
from .family import Family
from .memory import GpuLlvmMemory

if TYPE_CHECKING:
    from typing_extensions import Self

_BINARY = {"addf": "fadd", "subf": "fsub", "mulf": "fmul", "divf": "fdiv", "remf": "frem"}
_BINARY |= {"addi": "add", "subi": "sub", "muli": "mul", "divsi": "sdiv", "divui": "udiv", "remsi": "srem"}
_BINARY |= {"remui": "urem", "andi": "and", "ori": "or", "xori": "xor", "shli": "shl", "shrsi": "ashr", "shrui": "lshr"}
_INTRINSICS = {
    "absf": "fabs", "fma": "fma", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
    "round": "round", "roundeven": "roundeven", "copysign": "copysign", "maximumf": "maximum", "minimumf": "minimum",
    "maxnumf": "maxnum", "minnumf": "minnum", "maxsi": "smax", "minsi": "smin", "maxui": "umax", "minui": "umin",
    "ctpop": "ctpop",
}  # fmt: skip
_CASTS = {"extf": "fpext", "truncf": "fptrunc", "extsi": "sext", "extui": "zext", "trunci": "trunc"}
_CASTS |= {"sitofp": "sitofp", "uitofp": "uitofp", "bitcast": "bitcast"}


class GpuLlvmExpressions:
    """`operator` is the kernel's name, for messages."""

    def __init__(
        self, text: GpuLlvmBuilder, at: GpuIndices, memory: GpuLlvmMemory, operator: str, family: Family
    ) -> None:
        self.text, self.at, self.memory, self.operator, self.family = text, at, memory, operator, family

    def expr(self, e: Expr) -> GpuLlvmValue:
        return self._expr(e, {})

    def _expr(self, e: Expr, memo: dict[int, GpuLlvmValue]) -> GpuLlvmValue:
        found = memo.get(id(e))
        if found is None:
            found = memo[id(e)] = self._emit(e, memo)
        return found

    def _emit(self, e: Expr, memo: dict[int, GpuLlvmValue]) -> GpuLlvmValue:
        if isinstance(e, Const):
            return GpuLlvmValue(literal(e.value, e.dtype), e.dtype)
        if isinstance(e, Load):
            return self.memory.load(e)
        if isinstance(e, _Emitted):
            return e.value
        if isinstance(e, Var):
            return GpuLlvmValue(self.at.index(e), e.dtype)
        assert isinstance(e, Op)
        if e.dtype == "index" and not e.op.startswith("index_cast") and e.op != "select":
            return GpuLlvmValue(self.at.index(e), "index")
        if e.op == "guard":
            return self.guard(e)
        args = [self._expr(a, memo) for a in e.args]
        expanded = self.expanded(e.op, tuple(_Emitted(f"%{i}", a.dtype, a) for i, a in enumerate(args)), e.dtype)
        return self._expr(expanded, {}) if expanded is not None else self.machine(e, args)

    def expanded(self, op: str, args: tuple[Expr, ...], dtype: str) -> Expr | None:
        """A function in operations of these GPUs; None if it is one itself."""
        if dtype == "f64":
            return expand_f64(op, args)
        own = self.family.functions.get(op)
        if own is None or dtype not in ("f32", "f16", "bf16"):
            return expand(op, args, dtype)
        if dtype == "f32":
            return own(V(args[0])).e
        return Op("truncf", (own(V(Op("extf", args, "f32"))).e,), dtype)

    def machine(self, e: Op, args: list[GpuLlvmValue]) -> GpuLlvmValue:
        """One operation on emitted operands."""
        text, kind = self.text, llvm_type(e.dtype)
        name, _, predicate = e.op.partition(".")
        if name in ("cmpi", "cmpf"):
            return GpuLlvmValue(
                text.op(f"{'icmp' if name == 'cmpi' else 'fcmp'} {predicate} {args[0].typed}, {args[1].ssa}"), "i1"
            )
        if name in ("select", "seldom"):
            return GpuLlvmValue(text.op(f"select i1 {args[0].ssa}, {args[1].typed}, {args[2].typed}"), e.dtype)
        if (name, e.dtype) == ("remf", "bf16"):  # which not all GPUs have
            return self.remainder_of_bf16(args)
        if name in self.family.instructions:
            function = self.family.instructions[name]
            return GpuLlvmValue(text.call(function, kind, [a.typed for a in args], pure=True), e.dtype)
        if name in _BINARY:
            return GpuLlvmValue(text.op(f"{_BINARY[name]} {kind} {args[0].ssa}, {args[1].ssa}"), e.dtype)
        if name == "negf":
            return GpuLlvmValue(text.op(f"fneg {kind} {args[0].ssa}"), e.dtype)
        if name in _INTRINSICS:
            return self.intrinsic(_INTRINSICS[name], args, e.dtype)
        if name in CASTS:
            return self.cast(name, args[0], e.dtype)
        if name in _COMPOSED:
            return _COMPOSED[name](self, args, e.dtype)
        raise UnsupportedError(
            f"the code generator for {self.family.name} has no operation {e.op} of {e.dtype}",
            stage="emit", operator=self.operator,
        )  # fmt: skip

    def intrinsic(self, name: str, args: list[GpuLlvmValue], dtype: str, extra: tuple[str, ...] = ()) -> GpuLlvmValue:
        """One of LLVM's own functions, named after its type."""
        suffix = f"f{dtype[1:]}" if dtype in ("f16", "f32", "f64") else dtype
        function = f"llvm.{name}.{suffix}"
        return GpuLlvmValue(
            self.text.call(function, llvm_type(dtype), [*(a.typed for a in args), *extra], pure=True), dtype
        )

    def remainder_of_bf16(self, args: list[GpuLlvmValue]) -> GpuLlvmValue:
        """In f32, whose upper half is the result: it is exact. LLVM makes one operation again of casts around it."""
        op = self.text.op
        a, b = (op(f"fpext {x.typed} to float") for x in args)
        rest = op(f"frem float {a}, {b}")
        upper = op(f"lshr i32 {op(f'bitcast float {rest} to i32')}, 16")
        return GpuLlvmValue(op(f"bitcast i16 {op(f'trunc i32 {upper} to i16')} to bfloat"), "bf16")

    def cast(self, name: str, x: GpuLlvmValue, dtype: str) -> GpuLlvmValue:
        """A conversion. A float that does not fit an integer saturates."""
        kind, text = llvm_type(dtype), self.text
        if name in ("fptosi", "fptoui"):
            source = f"f{x.dtype[1:]}" if x.dtype in ("f16", "f32", "f64") else x.dtype
            return GpuLlvmValue(text.call(f"llvm.{name}.sat.{kind}.{source}", kind, [x.typed], pure=True), dtype)
        if name.startswith("index_cast"):
            wide, narrow = ("zext" if name.endswith("ui") else "sext"), "trunc"
            bits = [32 if d == "index" else int(d[1:]) for d in (x.dtype, dtype)]
            if bits[0] == bits[1]:
                return GpuLlvmValue(x.ssa, dtype)
            return GpuLlvmValue(text.op(f"{wide if bits[1] > bits[0] else narrow} {x.typed} to {kind}"), dtype)
        if name == "extf" and x.dtype == "bf16" and dtype == "f64":  # what has no instruction of its own
            x = GpuLlvmValue(text.op(f"fpext {x.typed} to float"), "f32")
        return GpuLlvmValue(text.op(f"{_CASTS[name]} {x.typed} to {kind}"), dtype)

    def guard(self, e: Op) -> GpuLlvmValue:
        """guard(c, x, y): x where c holds, else y; x's loads happen only where c holds."""
        cond, other, text = self.expr(e.args[0]), self.expr(e.args[2]), self.text
        before = text.label
        with text.where(cond.ssa, "guarded"), self.memory.one_lane():
            x = self.expr(e.args[1])
            inside = text.label
        phi = f"phi {llvm_type(e.dtype)} [ {x.ssa}, %{inside} ], [ {other.ssa}, %{before} ]"
        return GpuLlvmValue(text.result(phi), e.dtype)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class _Emitted(Var):
    """An emitted value that stands in an expansion."""

    value: GpuLlvmValue  # type: ignore[misc]

    def __new__(cls, name: str, dtype: str, value: GpuLlvmValue) -> Self:
        return interned(cls, (name, dtype, value), (cls, name, dtype, value))


def _is(kind: str) -> Callable[[GpuLlvmExpressions, list[GpuLlvmValue], str], GpuLlvmValue]:
    """isnan and the like, by comparisons."""

    def test(x: GpuLlvmExpressions, args: list[GpuLlvmValue], dtype: str) -> GpuLlvmValue:
        (a,) = args
        if kind == "nan":
            return GpuLlvmValue(x.text.op(f"fcmp uno {a.typed}, {a.ssa}"), "i1")
        size, infinity = x.intrinsic("fabs", [a], a.dtype), literal(float("inf"), a.dtype)
        return GpuLlvmValue(x.text.op(f"fcmp {'oeq' if kind == 'inf' else 'one'} {size.typed}, {infinity}"), "i1")

    return test


def _zeros(name: str) -> Callable[[GpuLlvmExpressions, list[GpuLlvmValue], str], GpuLlvmValue]:
    return lambda x, args, dtype: x.intrinsic(name, args, dtype, ("i1 false",))


def _rounded(up: bool) -> Callable[[GpuLlvmExpressions, list[GpuLlvmValue], str], GpuLlvmValue]:
    """Signed division rounded down or up: one less, or more, where the remainder has the other, or the same, sign."""

    def divide(x: GpuLlvmExpressions, args: list[GpuLlvmValue], dtype: str) -> GpuLlvmValue:
        op, kind, (a, b) = x.text.op, llvm_type(dtype), args
        quotient, rest = op(f"sdiv {kind} {a.ssa}, {b.ssa}"), op(f"srem {kind} {a.ssa}, {b.ssa}")
        signs = op(f"icmp {'sge' if up else 'slt'} {kind} {op(f'xor {kind} {rest}, {b.ssa}')}, 0")
        off = op(f"and i1 {op(f'icmp ne {kind} {rest}, 0')}, {signs}")
        one = op(f"zext i1 {off} to {kind}")
        return GpuLlvmValue(op(f"{'add' if up else 'sub'} {kind} {quotient}, {one}"), dtype)

    return divide


def _upper_word(x: GpuLlvmExpressions, args: list[GpuLlvmValue], dtype: str) -> GpuLlvmValue:
    op = x.text.op
    a, b = (op(f"sext i32 {v.ssa} to i64") for v in args)
    upper = op(f"lshr i64 {op(f'mul nsw i64 {a}, {b}')}, 32")
    return GpuLlvmValue(op(f"trunc i64 {upper} to i32"), dtype)


def _unsigned_up(x: GpuLlvmExpressions, args: list[GpuLlvmValue], dtype: str) -> GpuLlvmValue:
    """Unsigned division rounded up."""
    op, kind, (a, b) = x.text.op, llvm_type(dtype), args
    quotient, rest = op(f"udiv {kind} {a.ssa}, {b.ssa}"), op(f"urem {kind} {a.ssa}, {b.ssa}")
    one = op(f"zext i1 {op(f'icmp ne {kind} {rest}, 0')} to {kind}")
    return GpuLlvmValue(op(f"add {kind} {quotient}, {one}"), dtype)


def _reciprocal_root(x: GpuLlvmExpressions, args: list[GpuLlvmValue], dtype: str) -> GpuLlvmValue:
    root = x.intrinsic("sqrt", args, dtype)
    return GpuLlvmValue(x.text.op(f"fdiv {llvm_type(dtype)} {literal(1.0, dtype)}, {root.ssa}"), dtype)


def _dot_of_bytes(x: GpuLlvmExpressions, args: list[GpuLlvmValue], dtype: str) -> GpuLlvmValue:
    """dot4(w, a, b, c, d): the four bytes of a word, without a sign, times four signed ones."""
    op, total = x.text.op, "0"
    for i, factor in enumerate(args[1:]):
        byte = op(f"and i32 {op(f'lshr i32 {args[0].ssa}, {8 * i}')}, 255")
        wide = op(f"sext i8 {factor.ssa} to i32")
        total = op(f"add i32 {total}, {op(f'mul i32 {byte}, {wide}')}")
    return GpuLlvmValue(total, dtype)


def _bytes_of_table(x: GpuLlvmExpressions, args: list[GpuLlvmValue], dtype: str) -> GpuLlvmValue:
    """table4(w, t0, t1, t2, t3): for each byte of a word, a number below 16, that byte of the table."""
    op, (word, *table), found = x.text.op, (a.ssa for a in args), "0"
    for shift in (0, 8, 16, 24):
        at = op(f"and i32 {op(f'lshr i32 {word}, {shift}')}, 15")
        part = table[3]
        for i in (2, 1, 0):
            below = op(f"icmp ult i32 {at}, {4 * i + 4}")
            part = op(f"select i1 {below}, i32 {table[i]}, i32 {part}")
        bits = op(f"shl i32 {op(f'and i32 {at}, 3')}, 3")
        byte = op(f"and i32 {op(f'lshr i32 {part}, {bits}')}, 255")
        found = op(f"or i32 {found}, {op(f'shl i32 {byte}, {shift}')}")
    return GpuLlvmValue(found, dtype)


#: operations of several instructions
_COMPOSED: dict[str, Callable[[GpuLlvmExpressions, list[GpuLlvmValue], str], GpuLlvmValue]] = {
    "isnan": _is("nan"),
    "isinf": _is("inf"),
    "isfinite": _is("finite"),
    "ctlz": _zeros("ctlz"),
    "cttz": _zeros("cttz"),
    "absi": _zeros("abs"),
    "floordivsi": _rounded(False),
    "ceildivsi": _rounded(True),
    "ceildivui": _unsigned_up,
    "mulhsi": _upper_word,
    "rsqrt": _reciprocal_root,
    "dot4": _dot_of_bytes,
    "table4": _bytes_of_table,
}


__all__ = ["GpuLlvmExpressions"]
