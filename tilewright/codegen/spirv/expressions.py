"""Lowers scalar expressions to operations of MLIR's `spirv` dialect.

Integers of 8 and 16 bits are computed in 32, 16-bit floats in f32, and brought back to their type after every
operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...support.dtypes import FLOATS
from ...support.errors import CompileError, UnsupportedError
from ...tensor.evaluate import NUMPY
from ...tensor.expr import CASTS, Const, Expr, Load, Op, Var
from ...tensor.mathlib import expand
from ...tensor.mathlib.build import V
from ...tensor.mathlib.double import expand_f64
from ..clike.rounding import rounded
from ..gpu.indices import GpuIndices
from ..gpu.text import SsaValue
from ..vector.values import float_text
from . import legal
from .builder import KINDS, SpirvText

_FLOATS = {"addf": "FAdd", "subf": "FSub", "mulf": "FMul", "divf": "FDiv", "negf": "FNegate"}
_FLOATS |= {"absf": "GL.FAbs", "sqrt": "GL.Sqrt", "floor": "GL.Floor", "ceil": "GL.Ceil", "trunc": "GL.Trunc"}
_FLOATS |= {"roundeven": "GL.RoundEven", "fma": "GL.Fma"}
_INTEGERS = {"addi": "add", "subi": "sub", "muli": "mul", "andi": "and", "ori": "or", "xori": "xor"}
_TRUTHS = {"andi": "LogicalAnd", "ori": "LogicalOr", "xori": "LogicalNotEqual"}
_ORDERED = {"oeq": "FOrdEqual", "olt": "FOrdLessThan", "ole": "FOrdLessThanEqual", "ogt": "FOrdGreaterThan"}
_ORDERED |= {"oge": "FOrdGreaterThanEqual"}
_CONVERSIONS = {"bitcast": "Bitcast", "fconvert": "FConvert", "sext": "SConvert", "strunc": "SConvert"}
_CONVERSIONS |= {"stof": "ConvertSToF", "ftos": "ConvertFToS"}
_SHIFTS = {"shli": "shl", "shrsi": "ashr", "shrui": "lshr"}
#: dtypes -> what they are computed in
WIDE = {"i8": "i32", "i16": "i32", "index": "i32", "f16": "f32", "bf16": "f32"}


class Leaf(Var):
    """An emitted value that stands in an expression."""

    __slots__ = ()


class SpirvExpressions:
    """`load` reads memory; `operator` is the kernel's name, for messages."""

    load: Callable[[Load], SsaValue]

    def __init__(self, text: SpirvText, at: GpuIndices, operator: str) -> None:
        self.text, self.at, self.operator = text, at, operator

    def expr(self, e: Expr) -> SsaValue:
        return self._expr(e, {})

    def _expr(self, e: Expr, memo: dict[int, SsaValue]) -> SsaValue:
        found = memo.get(id(e))
        if found is None:
            found = memo[id(e)] = self._emit(e, memo)
        return found

    def _emit(self, e: Expr, memo: dict[int, SsaValue]) -> SsaValue:
        if isinstance(e, Leaf):
            return SsaValue(e.name, e.dtype)
        if isinstance(e, Const):
            return self.constant(e)
        if isinstance(e, Load):
            return self.load(e)
        if isinstance(e, Var):
            return SsaValue(self.at.index(e), e.dtype)
        assert isinstance(e, Op)
        if e.dtype == "index" and not e.op.startswith("index_cast") and e.op != "select":
            return SsaValue(self.at.index(e), "index")
        if e.op in ("guard", "seldom"):
            return self.guard(e, memo)
        return self.operation(e, [self._expr(a, memo) for a in e.args])

    def constant(self, e: Const) -> SsaValue:
        text = self.text
        if e.dtype == "i1":
            return SsaValue(text.constant("true" if e.value else "false", "i1"), "i1")
        if e.dtype in FLOATS:
            value = float(np.asarray(e.value).astype(NUMPY[e.dtype]))
            kind = WIDE.get(e.dtype, e.dtype)
            if np.isfinite(value):
                return SsaValue(text.constant(float_text(value, kind), kind), e.dtype)
            number = int(np.asarray(value, kind.replace("f", "float")).view(f"i{int(kind[1:]) // 8}"))
            whole = f"si{kind[1:]}"
            return SsaValue(text.convert("Bitcast", text.constant(str(number), whole), whole, kind), e.dtype)
        return SsaValue(text.constant(str(int(e.value)), KINDS[e.dtype]), e.dtype)

    # ---- operations

    def operation(self, e: Op, args: Sequence[SsaValue]) -> SsaValue:
        """One on emitted operands: in a wide type, then brought back to its own."""
        given = zip(args, e.args, strict=True)
        wide = [V(x if isinstance(x, Const) and x.dtype not in FLOATS else leaf(v)) for v, x in given]
        wide = [V(Const(x.e.value, WIDE.get(x.e.dtype, x.e.dtype))) if isinstance(x.e, Const) else x for x in wide]
        return self.narrowed(self.wide(e, [a.dtype for a in args], wide), e.dtype)

    def wide(self, e: Op, dtypes: list[str], args: list[V]) -> SsaValue:
        name, _, predicate = e.op.partition(".")
        dtype = WIDE.get(e.dtype, e.dtype)
        if name == "spirv":
            return self.own(predicate, e.dtype, [self.expr(a.e) for a in args])
        if name in CASTS:
            return self.expr(self.cast(name, args[0], dtypes[0], e.dtype).e)
        if name == "cmpf":
            return self.compared(predicate, *args)
        if name == "cmpi":
            a, b = (self.expr(x.e) for x in args)
            if dtypes[0] == "i1":  # one signed bit: true is the smaller one
                a, b = (SsaValue(self.text.truth(x.ssa), "i32") for x in ((b, a) if predicate[0] == "s" else (a, b)))
            return SsaValue(self.text.compare(predicate, KINDS[a.dtype], a.ssa, b.ssa), "i1")
        if name in _SHIFTS:
            width = int(e.dtype[1:]) if e.dtype != "index" else 32
            moved = legal.low(args[0], width) if name == "shrui" and width < 32 else args[0]
            return self.expr(legal.shift(_SHIFTS[name], moved, args[1], width).e)
        if name == "remf":
            return self.remainder(self.expr(args[0].e).ssa, self.expr(args[1].e).ssa, dtype)
        if name in ("divui", "remui", "ceildivui") and e.dtype in ("i8", "i16"):
            args = [legal.low(a, int(e.dtype[1:])) for a in args]
        if name in legal.TREES:
            return self.expr(legal.TREES[name](*args).e)
        if (expanded := expand(name, tuple(a.e for a in args), dtype)) is not None:
            return self.expr(rounded(expanded))
        if dtype == "f64" and (expanded := expand_f64(name, tuple(a.e for a in args))) is not None:
            return self.expr(expanded)
        return self.plain(name, e, dtype, [self.expr(a.e) for a in args])

    def plain(self, name: str, e: Op, dtype: str, args: list[SsaValue]) -> SsaValue:
        """What SPIR-V has."""
        text, kind, names = self.text, KINDS[dtype], [a.ssa for a in args]
        if name == "select":
            return SsaValue(text.select(names[0], names[1], names[2], kind), dtype)
        if name in _FLOATS and dtype in FLOATS:
            return SsaValue(text.apply(_FLOATS[name], kind, *names), dtype)
        if name in _TRUTHS and dtype == "i1":
            return SsaValue(text.apply(_TRUTHS[name], kind, *names), dtype)
        if name in _INTEGERS:
            return SsaValue(text.whole(_INTEGERS[name], kind, *names), dtype)
        raise UnsupportedError(
            f"SPIR-V has no operation {e.op} of {e.dtype}", stage="emit", operator=self.operator,
            hint="vulkan:text=wgsl may have it",
        )  # fmt: skip

    def own(self, name: str, dtype: str, args: list[SsaValue]) -> SsaValue:
        """An operation of `legal.own`."""
        text, kind, x = self.text, KINDS[dtype], args[0]
        of = KINDS[x.dtype]
        if name in _CONVERSIONS:
            return SsaValue(text.convert(_CONVERSIONS[name], x.ssa, of, kind), dtype)
        if name == "opposite":
            return SsaValue(text.opposite(x.ssa), dtype)
        if name in ("utof", "uext"):  # from what has no sign
            without = text.convert("Bitcast", x.ssa, of, of.replace("s", "u"))
            if name == "utof":
                return SsaValue(text.convert("ConvertUToF", without, of.replace("s", "u"), kind), dtype)
            longer = text.convert("UConvert", without, of.replace("s", "u"), kind.replace("s", "u"))
            return SsaValue(text.convert("Bitcast", longer, kind.replace("s", "u"), kind), dtype)
        if name == "ftou":
            without = text.convert("ConvertFToU", x.ssa, of, kind.replace("s", "u"))
            return SsaValue(text.convert("Bitcast", without, kind.replace("s", "u"), kind), dtype)
        return SsaValue(text.whole(name, kind, x.ssa, args[1].ssa), dtype)

    def compared(self, predicate: str, a: V, b: V) -> SsaValue:
        if predicate in ("true", "false"):
            return SsaValue(self.text.constant(predicate, "i1"), "i1")
        if a.e == b.e:  # whether it is a number
            predicate = {"une": "uno", "oeq": "ord"}.get(predicate, predicate)
        if predicate not in _ORDERED:
            return self.expr(legal.compare(predicate, a, b).e)
        x, y = self.expr(a.e), self.expr(b.e)
        return SsaValue(self.text.apply(_ORDERED[predicate], KINDS[x.dtype], x.ssa, y.ssa), "i1")

    def narrowed(self, x: SsaValue, dtype: str) -> SsaValue:
        """What was computed in a wide type as a value of its own."""
        wide = V(leaf(x))
        if dtype in legal.HALVES:
            value, bits = legal.HALVES[dtype]
            return SsaValue(self.expr(value(bits(wide)).e).ssa, dtype)
        if dtype in ("i8", "i16"):
            return SsaValue(self.expr(legal.narrowed(wide, int(dtype[1:])).e).ssa, dtype)
        return SsaValue(x.ssa, dtype)

    # ---- conversions

    def cast(self, name: str, x: V, of: str, to: str) -> V:
        wide, unsigned = WIDE.get(to, to), name in ("extui", "uitofp", "index_castui")
        if of == "f64" and to in legal.HALVES:
            return legal.odd(x)
        if name in ("extf", "truncf"):
            return legal.own("fconvert", wide, x)
        if name == "fptosi":
            return legal.fptosi(x, wide, 32 if to == "index" else int(to[1:]))
        if name == "fptoui":
            return legal.fptoui(x, wide, 32 if to == "index" else int(to[1:]))
        if name == "bitcast":
            return self.bitcast(x, of, to)
        if of == "i1":
            kind = V(Const(0.0 if to in FLOATS else 0, wide))
            return legal.choose(x, kind.like(1 if unsigned else -1), kind)
        if unsigned and of in ("i8", "i16"):
            x = legal.low(x, int(of[1:]))
        if to in FLOATS:
            return legal.own("utof" if unsigned else "stof", wide, x)
        if to == "i1":
            return (x & 1).ne(0)
        if x.dtype == wide:
            return x
        return legal.own("uext" if unsigned and of not in ("i8", "i16") and wide == "i64" else "sext", wide, x)

    def bitcast(self, x: V, of: str, to: str) -> V:
        if of in legal.HALVES and to == "i16":
            return legal.HALVES[of][1](x)
        if of == "i16" and to in legal.HALVES:
            return legal.HALVES[to][0](legal.low(x, 16))
        if of == to or {of, to} in ({"f32", "i32"}, {"f64", "i64"}):
            return legal.own("bitcast", to, x)
        raise UnsupportedError(f"SPIR-V has no bitcast from {of} to {to}", stage="emit", operator=self.operator)

    # ---- of several blocks

    def guard(self, e: Op, memo: dict[int, SsaValue]) -> SsaValue:
        """guard(c, x, y), seldom(c, x, y): x where c holds, else y; x is computed only where c holds."""
        text, kind = self.text, KINDS[e.dtype]
        cond, other = self._expr(e.args[0], memo), self._expr(e.args[2], memo)
        where = text.variable(kind)
        text.store(where, other.ssa, kind)
        with text.where(cond.ssa, "guarded"):
            text.store(where, self._expr(e.args[1], dict(memo)).ssa, kind)
        return SsaValue(text.load(where, kind), e.dtype)

    def remainder(self, a: str, b: str, dtype: str) -> SsaValue:
        """Of a division of floats rounded toward zero, exactly: multiples of b by powers of two are taken off."""
        text, kind = self.text, KINDS[dtype]
        rest, step = text.variable(kind), text.variable(kind)
        by = text.apply("GL.FAbs", kind, b)
        text.store(rest, text.apply("GL.FAbs", kind, a), kind)
        half = self.constant(Const(0.5, dtype)).ssa
        first = V(leaf(SsaValue(a, dtype)))
        fine = self.expr((legal.isfinite(first) & (V(leaf(SsaValue(by, dtype))) > 0.0)).e).ssa

        def below() -> str:
            return text.apply("FOrdGreaterThanEqual", kind, text.load(rest, kind), by)

        def twice() -> str:
            limit = text.apply("FMul", kind, text.load(rest, kind), half)
            return text.apply("FOrdLessThanEqual", kind, text.load(step, kind), limit)

        with text.where(fine, "finite"), text.repeated(below):
            text.store(step, by, kind)
            with text.repeated(twice):
                now = text.load(step, kind)
                text.store(step, text.apply("FAdd", kind, now, now), kind)
            text.store(rest, text.apply("FSub", kind, text.load(rest, kind), text.load(step, kind)), kind)
        found = V(leaf(SsaValue(text.load(rest, kind), dtype)))
        signed = legal.copysign(found, first)
        return self.expr(legal.choose(V(leaf(SsaValue(fine, "i1"))), signed, signed.like(legal.NAN)).e)


def leaf(x: SsaValue) -> Leaf:
    """In the type that it is computed in."""
    if not x.ssa.startswith("%"):
        raise CompileError(f"{x.ssa} is no value", stage="emit")
    return Leaf(x.ssa, WIDE.get(x.dtype, x.dtype))


__all__ = ["SpirvExpressions", "Leaf", "leaf"]
