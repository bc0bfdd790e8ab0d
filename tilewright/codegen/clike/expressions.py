"""Prints scalar expressions in a C-like language: one expression where it is short, named temporaries where it is
shared or long.

Integers wrap as the levels above say they do: signed overflow, shifts by the width and conversions out of range, which
C leaves undefined, never happen in what is written here. Indices have 32 bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ...support.dtypes import HALVES, NUMPY
from ...support.errors import CompileError, UnsupportedError
from ...support.sizes import Size, at_most, current, typical
from ...tensor.expr import CASTS, Buffer, Const, Expr, Load, Op, Var, children, linear, substitute
from ...tensor.mathlib import expand
from ...tensor.mathlib.double import short_power
from .dialect import AND, ATOM, PRODUCT, SUM, TEST, Dialect, LowWords
from .formulas import c_formula, dim_names
from .pieces import element
from .rounding import rounded

#: a longer piece of text gets a name of its own
LONG = 88

FLOATS = ("f32", "f64")
_FLOAT_INFIX = {"addf": ("+", SUM), "subf": ("-", SUM), "mulf": ("*", PRODUCT), "divf": ("/", PRODUCT)}
_MIXED = ("one", "ueq", "ord", "uno")  # more than one comparison
_CMPF = {"oeq": "{a} == {b}", "ogt": "{a} > {b}", "oge": "{a} >= {b}", "olt": "{a} < {b}", "ole": "{a} <= {b}"}
_CMPF |= {"ugt": "!({a} <= {b})", "uge": "!({a} < {b})", "ult": "!({a} >= {b})", "ule": "!({a} > {b})"}
_CMPF |= {"one": "{a} < {b} || {a} > {b}", "ueq": "!({a} < {b} || {a} > {b})", "ord": "{a} == {a} && {b} == {b}"}
_CMPF |= {"uno": "{a} != {a} || {b} != {b}", "une": "{a} != {b}"}
_LARGEST = (2 - 2**-23) * 2.0**127  # of f32
_BITWISE = {"andi": "&", "ori": "|", "xori": "^"}
_WRAPPING = {"addi": "+", "subi": "-", "muli": "*"}
_CMPI = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class ExprWriter:
    """State shared by expressions and statements: the lines written, the names in scope, what helpers are needed."""

    def __init__(self, buffers: dict[str, Buffer], operator: str, dialect: Dialect) -> None:
        self.buffers, self.operator, self.dialect = buffers, operator, dialect
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[str, str] = {}  # buffers -> names in the text
        self.loops: dict[str, str] = {}  # loop variables in scope -> names in the text
        self.terms: dict[Expr, str] = {}  # quotients and remainders of loop variables that have a name
        self.values: dict[str, Expr] = {}  # loop variables of unrolled loops
        self.slots: dict[str, dict[int, str]] = {}  # register buffers: flat index -> variable
        self.written: frozenset[str] = frozenset()  # parameters that are results
        self.recent: dict[str, str] = {}  # words of bytes that have been read, for products that follow each other
        self.words: frozenset[str] = frozenset()  # shared arrays of words of bytes
        self.wholes: frozenset[str] = frozenset()  # arrays of vectors, or of words that are written as a whole
        self.thread_loops: dict[str, str] = {}  # variables of loops whose iterations are threads -> axes
        self.own: dict[str, dict[str, int]] = {}  # register buffers -> elements from one thread to the next, by axis
        self.helpers: set[str] = set()
        self.needs_math = False
        self.count = 0
        self.memo: list[dict[int, tuple[Expr, str]]] = [{}]
        self.uses: dict[int, int] = {}
        self.kept: list[Expr] = []
        known = current()
        self.pieces: dict[str, int] = {}  # parameters that are bound in several -> how many
        self.placed: dict[str, str] = {}  # parts of typed scratch memory -> where they begin
        self.dims = dim_names(known.dims if known else ())  # open dimensions -> names in the text
        self.sizes: set[str] = set()  # those that the text has
        self.quotients: dict[str, str] = {}  # what is made of them by division -> names in the text
        self.signed: frozenset[str] = frozenset()  # variables that may be negative

    # ---- text ----

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, head: str, end: str = "}") -> Iterator[None]:
        self.line(head)
        self.depth += 1
        self.memo.append({})
        self.recent.clear()
        yield
        self.recent.clear()
        self.memo.pop()
        self.depth -= 1
        if end:
            self.line(end)

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def helper(self, name: str) -> str:
        """The name of a helper function, which the file will define."""
        found = self.dialect.helpers.get(name)
        if found is None:
            raise self.unsupported(name)
        self.helpers |= {name, *found.needs}
        self.needs_math |= found.math
        return f"tw_{name}"

    def unsupported(self, what: str) -> UnsupportedError:
        d = self.dialect
        return UnsupportedError(
            f"{what} cannot be written in {d.name}", stage="emit", operator=self.operator, hint=d.hint or None
        )

    def type(self, dtype: str) -> str:
        if dtype not in self.dialect.types:
            raise self.unsupported(f"dtype {dtype}")
        return self.dialect.types[dtype]

    def local_type(self, dtype: str) -> str:
        return self.dialect.truth[0] if dtype == "i1" else self.type(dtype)

    def define(self, kind: str, name: str, text: str) -> None:
        """A line that gives a value a name."""
        self.line(self.dialect.constant.format(type=kind, name=name, value=text))

    def choice(self, test: str, yes: str, no: str) -> str:
        return self.dialect.choice.format(test=test, yes=yes, no=no)

    def cast(self, dtype: str, atom: str) -> str:
        own = self.dialect.conversions.get(dtype)
        return own.format(value=atom) if own else self.dialect.cast(self.type(dtype), atom)

    def unsigned(self, dtype: str, atom: str) -> str:
        """The same bits without a sign."""
        self.type(dtype)
        own = self.dialect.conversions.get(f"u{dtype}")
        return own.format(value=atom) if own else self.dialect.cast(self.dialect.unsigned[dtype], atom)

    # ---- expressions ----

    def statement_expr(self, e: Expr) -> str:
        """An expression of a statement, without outer parentheses; temporaries are written before it."""
        e = self.bound(e)
        self.uses = {}
        self.count_uses(e)
        return self.expr(e)

    def bound(self, e: Expr) -> Expr:
        """Variables of unrolled loops replaced by their values."""
        return substitute(e, self.values)

    def count_uses(self, e: Expr) -> None:
        self.uses[id(e)] = self.uses.get(id(e), 0) + 1
        if self.uses[id(e)] == 1:
            for c in children(e):
                self.count_uses(c)

    def keep(self, e: Expr) -> Expr:
        """An expression that is written in place of another one. What is known of expressions goes by their ids."""
        self.kept.append(e)
        self.count_uses(e)
        return e

    def expr(self, e: Expr, least: int = AND) -> str:
        for scope in reversed(self.memo):
            if id(e) in scope:
                return scope[id(e)][1]
        if isinstance(e, Op) and e.dtype == "index" and e in self.terms:
            return self.terms[e]
        text, level = self.bare(e)
        shared = self.uses.get(id(e), 0) > 1 and isinstance(e, (Op, Load)) and e.dtype != "index"
        if (shared and re.fullmatch(r"\w+", text) is None) or (len(text) > LONG and isinstance(e, Op)):
            name = self.fresh()
            self.define(self.local_type(e.dtype), name, text)
            self.memo[-1][id(e)] = (e, name)  # keeps e alive: its id stays taken
            return name
        return f"({text})" if level < least else text

    def bare(self, e: Expr) -> tuple[str, int]:
        if isinstance(e, Const):
            return self.constant(e)
        if isinstance(e, Var):
            if e.name not in self.loops:
                raise CompileError(f"{e.name} is not in scope", stage="emit", operator=self.operator)
            return self.loops[e.name], ATOM
        if isinstance(e, Load):
            text = self.element(e.buffer, e.indices)
            return (f"({text} != 0)" if e.dtype == "i1" else text), ATOM
        assert isinstance(e, Op)
        if (known := number(e)) is not None:
            return self.constant(known)
        if e.op in ("guard", "seldom"):
            return self.guard(e), ATOM
        if e.dtype == "index":
            return self.index_op(e)
        return self.op(e)

    def constant(self, e: Const) -> tuple[str, int]:
        if isinstance(e.value, Size):
            if e.dtype != "index":
                raise CompileError(f"the size {e.value} stands where a number of dtype {e.dtype} is", stage="emit")
            return self.size(e.value)
        if e.dtype in ("f32", "f64"):
            return self.float_constant(float(e.value), e.dtype)
        if e.dtype == "i1":
            return self.dialect.truth[2 if e.value else 1], ATOM
        if e.dtype == "index":
            return str(int(e.value)), ATOM if e.value >= 0 else SUM
        self.type(e.dtype)
        if e.dtype in HALVES:
            bits = int(np.asarray(e.value, NUMPY[e.dtype]).view(np.uint16))
            return self.literal(str(bits), "ui32"), ATOM
        return self.integer_constant(int(e.value), e.dtype)

    def size(self, size: Size) -> tuple[str, int]:
        """A size that is known at run time; one that divisions make is computed once, at the beginning."""
        if not self.dialect.size:
            raise self.unsupported(f"the size {size}, which is known at run time,")
        made = c_formula(size.text, size.space.dims)
        if made.peak >= 1 << 31:
            raise self.unsupported(f"a size of up to {made.peak} ({size})")
        self.sizes |= made.names
        for h in made.helpers:
            self.helper(h)
        if made.divides:
            return self.quotients.setdefault(made.text, f"size{len(self.quotients)}"), ATOM
        return made.text, made.level

    def integer_constant(self, value: int, dtype: str) -> tuple[str, int]:
        """A literal of a signed type."""
        bits = int(dtype[1:])
        value &= (1 << bits) - 1
        value -= (value >> bits - 1) << bits
        if isinstance(self.dialect.packed.get(dtype), LowWords) and not -(1 << 31) <= value < 1 << 31:
            raise self.unsupported(f"the number {value}")
        if value == -(1 << 31) and dtype in self.dialect.packed and dtype in self.dialect.smallest:
            return self.dialect.smallest[dtype], ATOM
        if value == -(1 << bits - 1) and dtype in self.dialect.smallest:
            return self.dialect.smallest[dtype], ATOM
        return self.literal(str(value), dtype), ATOM if value >= 0 else SUM

    def literal(self, text: str, dtype: str) -> str:
        return self.dialect.literals.get(dtype, "{}").format(text)

    def float_constant(self, value: float, dtype: str) -> tuple[str, int]:
        self.type(dtype)
        if not math.isfinite(value):
            bits = "0x7f800000" if dtype == "f32" else "0x7ff0000000000000"
            if math.isnan(value):
                bits = "0x7fc00000" if dtype == "f32" else "0x7ff8000000000000"
            text = f"{self.helper(f'bits_{dtype}')}({self.literal(bits, f'ui{dtype[1:]}')})"
            return (f"-{text}", SUM) if value < 0 else (text, ATOM)
        return self.literal(float_text(value, dtype), dtype), ATOM if math.copysign(1, value) > 0 else SUM

    # ---- memory ----

    def flat(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """The number of an element."""
        flat: Expr = Const(0, "index")
        for i, s in zip(indices, buffer.strides, strict=True):
            flat = flat + self.bound(i) * s
        return flat

    def shares_words(self, buffer: Buffer) -> bool:
        """Whether elements are parts of words: those of parameters, and bytes that are multiplied as words."""
        return buffer.dtype in self.dialect.packed and (buffer.scope == "param" or buffer.name in self.words)

    def atomic(self, name: str) -> bool:
        """Whether words of a parameter are changed by atomic operations."""
        return name in self.written and name not in self.wholes

    def is_vectors(self, name: str) -> bool:
        """Whether an array has vectors as elements."""
        return name in self.wholes and not self.shares_words(self.buffers[name])

    def element(self, name: str, indices: tuple[Expr, ...]) -> str:
        buffer = self.buffers[name]
        flat = self.flat(buffer, indices)
        if buffer.scope == "register":
            return self.slot(buffer, flat)
        at, whole = self.index(flat)[0], name not in self.pieces
        if self.shares_words(buffer):
            packed = self.dialect.packed[buffer.dtype]
            return packed.load(self.names[name], at, self.atomic(name), whole)
        if name in self.placed:
            return f"{self.names[name]}[{self.placed[name]} + {at}]"
        if self.is_vectors(name) and self.dialect.vectors is not None:
            n = self.dialect.vectors.most
            return f"{element(self.names[name], f'({at}) >> {n.bit_length() - 1}u', whole)}[({at}) & {n - 1}]"
        return element(self.names[name], at, whole)

    def slot(self, buffer: Buffer, flat: Expr) -> str:
        """The variable of an element. What loops bound to axes add to its index is left out: each thread has its
        own."""
        terms, at = linear(flat)
        own = {
            self.thread_loops[t.name]: c for t, c in terms.items() if isinstance(t, Var) and t.name in self.thread_loops
        }
        if len(own) < len(terms) or self.own.setdefault(buffer.name, own) != own:
            what = "not unrolled" if len(own) < len(terms) else "another thread's elsewhere"
            raise CompileError(
                f"register buffer {buffer.name} is indexed by {flat}, which is {what}",
                stage="emit",
                operator=self.operator,
            )
        name = f"{self.names[buffer.name]}_{at}"
        return self.slots[buffer.name].setdefault(at, f"{name}_" if name in self.dims.values() else name)

    def guard(self, e: Op) -> str:
        """guard(c, x, y), seldom(c, x, y): x where c holds, else y; x is computed only where c holds."""
        cond = self.expr(e.args[0])
        if self.dialect.lazy and isinstance(e.args[1], Load) and isinstance(e.args[2], (Const, Load)):
            return self.choice(cond, self.expr(e.args[1]), self.expr(e.args[2]))
        name = self.fresh()
        self.line(self.dialect.variable.format(type=self.local_type(e.dtype), name=name))
        with self.block(f"if ({cond}) {{", "} else {"):
            self.line(f"{name} = {self.expr(e.args[1])};")
        self.depth += 1
        self.memo.append({})
        self.line(f"{name} = {self.expr(e.args[2])};")
        self.memo.pop()
        self.depth -= 1
        self.line("}")
        self.memo[-1][id(e)] = (e, name)
        return name

    # ---- indices ----

    def index(self, e: Expr) -> tuple[str, int]:
        """An index as a sum of products, the largest steps first."""
        terms, constant = linear(e)
        text = ""
        for t, c in sorted(terms.items(), key=lambda x: -abs(typical(x[1]))):
            part, minus = self.expr(t, PRODUCT), at_most(c, -1)
            part = part if c in (1, -1) else f"{part} * {self.number(-c if minus else c, ATOM)}"
            text += (f" {'-' if minus else '+'} " if text else "-" if minus else "") + part
        if constant or not text:
            minus = at_most(constant, -1)
            number = self.number(-constant if minus else constant, PRODUCT)
            text = f"{text} {'-' if minus else '+'} {number}" if text else f"-{number}" if minus else number
        single = len(terms) == 1 and not constant
        only = next(iter(terms.values())) if single else 0
        if not terms and isinstance(constant, Size):
            return self.size(constant)
        return text, ATOM if only == 1 or (not terms and constant >= 0) else PRODUCT if at_most(2, only) else SUM

    def number(self, x: int, least: int) -> str:
        """An integer or a size as an operand of what binds so tightly."""
        text, level = self.size(x) if isinstance(x, Size) else (str(x), ATOM if x >= 0 else SUM)
        return f"({text})" if level < least else text

    def index_op(self, e: Op) -> tuple[str, int]:
        if e.op in ("addi", "subi", "muli") and linear(e)[0] != {e: 1}:
            return self.index(e)
        a, *rest = e.args
        if e.op in ("index_cast", "index_castui"):
            text = self.expr(a, ATOM)
            return self.cast("index", self.unsigned(a.dtype, text) if e.op == "index_castui" else text), ATOM
        if e.op == "muli":
            return f"{self.expr(a, PRODUCT)} * {self.expr(rest[0], ATOM)}", PRODUCT
        if e.op == "floordivsi" and not _never_negative(a, self.signed):  # C rounds toward zero
            return f"{self.helper('floordivsi_i32')}({self.expr(a)}, {self.expr(rest[0])})", ATOM
        if e.op in ("floordivsi", "divui", "divsi"):
            return f"{self.expr(a, ATOM)} / {self.expr(rest[0], ATOM)}", PRODUCT
        if e.op in ("remsi", "remui"):
            return f"{self.expr(a, ATOM)} % {self.expr(rest[0], ATOM)}", PRODUCT
        if e.op in ("minsi", "maxsi"):
            return f"{self.helper(e.op[:3] + '_i32')}({self.expr(a)}, {self.expr(rest[0])})", ATOM
        if e.op == "select":
            return self.choice(self.expr(a, TEST), self.expr(rest[0]), self.expr(rest[1])), ATOM
        raise self.unsupported(f"index arithmetic {e.op}")

    # ---- operations ----

    def op(self, e: Op) -> tuple[str, int]:
        name, _, predicate = e.op.partition(".")
        operand = e.args[0].dtype if e.args else e.dtype
        self.type(e.dtype), self.type(operand)
        if {operand, e.dtype} & set(HALVES) and name not in CASTS and name != "select":
            return self.expr(self.keep(in_f32(e)), ATOM), ATOM
        if name == "cmpf":
            if predicate in ("false", "true"):
                return self.dialect.truth[1 + (predicate == "true")], ATOM
            a, b = (self.simple(x) for x in e.args)
            if e.args[0] == e.args[1]:  # whether it is a number
                predicate = {"une": "uno", "oeq": "ord"}.get(predicate, predicate)
            if self.dialect.not_a_number and (predicate[0] == "u" or predicate == "ord"):
                return self.unordered(predicate, operand, a, b), ATOM
            text = _CMPF[predicate].format(a=a, b=b)
            return (f"({text})", ATOM) if predicate in _MIXED else (text, TEST)
        if name == "cmpi":
            return self.compare(e, predicate, operand), TEST
        if name == "select":
            least = ATOM if e.dtype == "i1" else TEST  # of two comparisons beside each other WGSL makes a template
            return self.choice(*(self.expr(x, least) for x in e.args)), ATOM
        if name in _FLOAT_INFIX:
            sign, level = _FLOAT_INFIX[name]
            return f"{self.expr(e.args[0], level)} {sign} {self.expr(e.args[1], level + 1)}", level
        if name == "negf":
            return f"-{self.expr(e.args[0], ATOM)}", SUM
        if name in self.dialect.math:
            self.needs_math = True
            args = ", ".join(self.expr(a) for a in e.args)
            return f"{self.dialect.math[name]}{self.dialect.suffix.get(e.dtype, '')}({args})", ATOM
        if e.dtype in FLOATS and f"{name}_{e.dtype}" in self.dialect.helpers:
            return self.function(name, e)
        if name in ("isnan", "isinf", "isfinite"):
            return f"{self.helper(f'{name}_{operand}')}({self.expr(e.args[0])})", ATOM
        if name == "bitcast":
            return self.bitcast(e, operand)
        if name in ("dot4", "table4"):
            return f"{self.helper(f'{name}_i32')}({', '.join(self.expr(a) for a in e.args)})", ATOM
        if name in CASTS:
            return self.converted(name, self.expr(e.args[0], ATOM), operand, e.dtype), ATOM
        if not e.dtype.startswith("i"):
            raise self.unsupported(f"operation {name}")
        return self.integer(name, e)

    def unordered(self, predicate: str, dtype: str, a: str, b: str) -> str:
        """A comparison that says something of what is no number, by a helper that looks at bits."""
        tests = [f"{self.helper(f'isnan_{dtype}')}({x})" for x in dict.fromkeys((a, b))]
        if predicate not in ("ord", "uno"):
            ordered = "{a} != {b}" if predicate == "une" else _CMPF[f"o{predicate[1:]}"]
            tests.insert(0, ordered.format(a=a, b=b))
        return f"{'!' if predicate == 'ord' else ''}({' || '.join(tests)})"

    def function(self, name: str, e: Op) -> tuple[str, int]:
        """A call of a helper that is an operation on floats; powers with constant exponents may be products."""
        short = None
        if name == "powf" and isinstance(e.args[1], Const):
            short = short_power(*e.args) if e.dtype == "f64" else expand(name, e.args, e.dtype)
        if short is not None:
            return self.expr(self.keep(rounded(short)), ATOM), ATOM
        return f"{self.helper(f'{name}_{e.dtype}')}({', '.join(self.expr(a) for a in e.args)})", ATOM

    def simple(self, e: Expr) -> str:
        """An operand that will be written more than once, or beside a comparison: a name or a constant."""
        text = self.expr(e, ATOM)
        if re.fullmatch(r"[\w.+]+", text) or isinstance(e, Const):
            return text
        name = self.fresh()
        self.define(self.local_type(e.dtype), name, text)
        self.memo[-1][id(e)] = (e, name)
        return name

    def compare(self, e: Op, predicate: str, operand: str) -> str:
        if predicate in ("ult", "ule", "ugt", "uge"):
            a, b = (self.unsigned(operand, self.expr(x, ATOM)) for x in e.args)
        else:
            a, b = (self.expr(x, SUM) for x in e.args)
        return f"{a} {_CMPI[predicate[-2:]]} {b}"

    def bitcast(self, e: Op, operand: str) -> tuple[str, int]:
        if (operand, e.dtype) in (("f32", "i32"), ("f64", "i64")):
            return self.cast(e.dtype, f"{self.helper(f'float_bits_{operand}')}({self.expr(e.args[0])})"), ATOM
        if (operand, e.dtype) in (("i32", "f32"), ("i64", "f64")):
            bits = self.unsigned(operand, self.expr(e.args[0], ATOM))
            return f"{self.helper(f'bits_{e.dtype}')}({bits})", ATOM
        if (operand in HALVES and e.dtype == "i16") or (operand == "i16" and e.dtype in HALVES):
            return self.cast(e.dtype, self.expr(e.args[0], ATOM)), ATOM
        raise self.unsupported(f"bitcast from {operand} to {e.dtype}")

    def converted(self, name: str, x: str, source: str, to: str) -> str:
        if to == "i1" and name in ("trunci", "fptoui"):
            return self.dialect.lowest.format(value=x) if name == "trunci" else f"({x} >= 1)"
        if {source, to} & set(HALVES):
            return self.half(name, x, source, to)
        if name in ("fptosi", "fptoui"):
            text = f"{self.helper(f'{name}_{source}_{to}')}({x})"
            return text if name == "fptosi" else self.cast(to, text)
        if source == "i1" and name in ("sitofp", "extsi"):
            return self.dialect.spread.format(type=self.type(to), value=x)
        bits = name in ("uitofp", "index_castui") or (name == "extui" and source != "i1")
        if bits and to in self.dialect.extended:
            return self.dialect.extended[to].format(value=self.unsigned(source, x))
        return self.cast(to, self.unsigned(source, x) if bits else x)

    def half(self, name: str, x: str, source: str, to: str) -> str:
        """A conversion from or to a number of 16 bits, by way of f32; of f64 rounded to odd, so that it rounds once."""
        if source in HALVES:
            x = f"{self.helper(f'extf_{source}_f32')}({x})"
            if to in HALVES:
                return f"{self.helper(f'truncf_f32_{to}')}({x})"
            return x if to == "f32" else self.converted(name, x, "f32", to)
        if source != "f32":
            odd = source == "f64"
            x = f"{self.helper('odd_f64_f32')}({x})" if odd else self.converted(name, x, source, "f32")
        return f"{self.helper(f'truncf_f32_{to}')}({x})"

    def integer(self, name: str, e: Op) -> tuple[str, int]:
        d = e.dtype
        if name == "andi" and d == "i1":
            return " && ".join(self.expr(a, AND if a is e.args[0] else TEST) for a in e.args), AND
        args = [self.expr(a, ATOM) for a in e.args]
        if name == "xori" and d == "i1":
            return self.dialect.differ.format(a=args[0], b=args[1]), ATOM
        if name in ("andi", "ori", "xori"):
            return f"({args[0]} {_BITWISE[name]} {args[1]})", ATOM
        if d == "i1":
            return self.boolean(name, args), ATOM
        if name in ("addi", "subi", "muli"):
            sign = _WRAPPING[name]
            level = PRODUCT if name == "muli" else SUM
            if d in ("i32", "i64") and not (d == "i32" and _narrow(e)):
                a, b = (self.unsigned(d, x) for x in args)
                return self.cast(d, f"({a} {sign} {b})"), ATOM
            if d == "i32":
                return f"{args[0]} {sign} {args[1]}", level
            return self.cast(d, f"({args[0]} {sign} {args[1]})"), ATOM
        if name in ("divui", "remui", "shrui", "maxui", "minui", "ceildivui"):
            inner = ", ".join(self.unsigned(d, a) for a in args)
            return self.cast(d, f"{self.helper(f'{name}_{d}')}({inner})"), ATOM
        if name in ("maxsi", "minsi"):
            return f"{self.helper(f'{name[:3]}_{d}')}({args[0]}, {args[1]})", ATOM
        if name == "mulhsi" and d == "i32":
            return f"{self.helper('mulhsi_i32')}({args[0]}, {args[1]})", ATOM
        if name in ("divsi", "remsi", "floordivsi", "ceildivsi", "shli", "shrsi", "absi"):
            if name == "shrsi" and isinstance(e.args[1], Const) and 0 <= e.args[1].value < int(d[1:]):
                return f"({args[0]} >> {e.args[1].value})", ATOM
            return f"{self.helper(f'{name}_{d}')}({', '.join(args)})", ATOM
        raise self.unsupported(f"operation {name} on {d}")

    def boolean(self, name: str, args: list[str]) -> str:
        """Arithmetic modulo two."""
        signs = {"addi": "^", "subi": "^", "muli": "&", "maxui": "|", "minui": "&", "maxsi": "&", "minsi": "|"}
        if name not in signs:
            raise self.unsupported(f"operation {name} on i1")
        if signs[name] == "^":
            return self.dialect.differ.format(a=args[0], b=args[1])
        return f"({args[0]} {signs[name]} {args[1]})"


def number(e: Expr) -> Const | None:
    """The number that a conversion of one is; None for other expressions, and for sizes that are not known.

    >>> print(number(Op("sitofp", (Op("index_cast", (Const(2, "index"),), "i64"),), "f32")))
    2.0:f32
    """
    if isinstance(e, Const):
        return None if isinstance(e.value, Size) else e
    if not isinstance(e, Op) or e.op not in ("index_cast", "extsi", "sitofp") or (x := number(e.args[0])) is None:
        return None
    if x.dtype == "i1" or (e.op == "sitofp" and e.dtype not in FLOATS):
        return None
    return Const(float(x.value) if e.op == "sitofp" else int(x.value), e.dtype)


def in_f32(e: Op) -> Expr:
    """An operation on numbers of 16 bits, computed in f32 and rounded once.

    >>> print(in_f32(Op("mulf", (Var("x", "f16"), Var("y", "f16")), "f16")))
    truncf((extf(x):f32 *. extf(y):f32)):f16
    """
    args = tuple(Op("extf", (a,), "f32") if a.dtype in HALVES else a for a in e.args)
    if e.dtype not in HALVES:
        return Op(e.op, args, e.dtype)
    return Op("truncf", (Op(e.op, args, "f32"),), e.dtype)


def _narrow(e: Op) -> bool:
    """Whether a product of two i32 cannot overflow: both come from 8 or 16 bits."""
    return e.op == "muli" and all(
        isinstance(a, Op) and (a.op, a.args[0].dtype) in (("extsi", "i8"), ("extsi", "i16"), ("extui", "i8"))
        for a in e.args
    )


def float_text(value: float, dtype: str) -> str:
    """A decimal number that reads back as the same.

    >>> float_text(0.1, "f64"), float_text(0.10000000149011612, "f32"), float_text(3.0, "f32")
    ('0.1', '0.1', '3.0')
    >>> float_text(3.4028234663852886e38, "f32")
    '3.4028234663852886e+38'
    """
    import numpy as np

    text = str(np.float32(value)) if dtype == "f32" else repr(float(value))
    if dtype == "f32" and abs(float(text)) > _LARGEST >= abs(value):  # in few digits: WGSL has no such number
        text = repr(float(value))
    return text if "." in text or "e" in text else f"{text}.0"


def _never_negative(e: Expr, signed: frozenset[str]) -> bool:
    """Whether an index is made of variables, but for those that are `signed`, and constants in ways that cannot give a
    negative number."""
    terms, constant = linear(e)
    if not at_most(0, constant) or not all(at_most(0, c) for c in terms.values()):
        return False
    divisions = ("floordivsi", "remsi", "divui", "remui")
    return all(
        (isinstance(t, Var) and t.name not in signed)
        or (isinstance(t, Op) and t.op in divisions and _never_negative(t.args[0], signed))
        or (isinstance(t, Op) and t.op == "muli" and all(_never_negative(a, signed) for a in t.args))
        for t in terms
    )
