"""The text form of loop nests: valid Python syntax, printed by `format_nest` and read back by `parse_nest`, exactly.

    def dense(
        p0: f32[8, 96],
        p1: packed(f32[5, 96, 16], splits=((), (16,)), order=(1, 0, 2)),
        p2: out(f32[8, 80]),
    ):
        for m in thread(8):
            for n in serial(5):
                acc = register(f32[16])
                for k in serial(96):
                    for l in vector(16, lanes=16):
                        s0: acc[l] = reduce(addf(acc[l], mulf(p0[m, k], p1[n, k, l])), init=f32(0.0), over=(k,))
                for l1 in vector(16, lanes=16):
                    s1: p2[m, n * 16 + l1] = maximumf(acc[l1], f32(0.0))

- A store is ``block: buffer[indices] = value``; the block's name may be absent. For several targets it is
  ``s0: (a[i], b[i]) = x, y``.
- ``reduce(value, init=..., over=(loops))`` is a reduction; with several targets all values come first, and
  `init` is a tuple.
- An allocation lives to the end of the block it stands in; one that must end earlier is ``with local(f32[4]) as t:``.
- ``+ - * // %``, comparisons, ``min`` and ``max`` are index arithmetic. Everything else is called by its MLIR
  mnemonic, ``addf(a, b)``, ``cmpf.olt(a, b)``. Where operands do not tell the result's
  type (casts) it is written: ``sitofp[f32](x)``.
- Loops are ``serial``, ``unroll``, ``vector`` or bound to an axis of the machine, ``thread(8)``, ``grid.x(64)``;
  ``parallel`` is an old name of ``thread``. Memories are those of the machine: ``register``, ``local``, ``shared`` ...
- ``with async_copy(t0):`` begins the copies below it, ``with bulk_copy(t0):`` lets an engine of the machine do so,
  ``wait(t0)`` or ``wait(t0, pending=1)`` waits for them, and ``barrier(block)`` lets the threads of a scope wait for
  each other.
- A loop may have ``prefetch=(b[i * 16 + 64],)`` (flat indices of a parameter) and ``notes={'key': value}``.
- Constants are ``f32(1.0)``, ``i8(-3)``, ``f64(inf)``; plain integers are indices, ``True`` and ``False`` are ``i1``.
- ``x0 = expr`` names an expression that is used more than once below; it is an abbreviation, not a variable.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from ..support.sizes import Size, less
from ..tensor.expr import CASTS, Buffer, Const, Expr, Load, Op, Target, Var, children
from .nest import Alloc, AsyncCopy, Barrier, For, If, Nest, Pack, Seq, Stmt, Store, Wait, exprs, walk_stmts
from .parse import NestSyntaxError, parse_nest

_COMPARE = {"cmpi.eq": "==", "cmpi.ne": "!=", "cmpi.slt": "<", "cmpi.sle": "<=", "cmpi.sgt": ">", "cmpi.sge": ">="}
_BINARY = {"addi": "+", "muli": "*", "floordivsi": "//", "remsi": "%"}
_EXTREME = {"minsi": "min", "maxsi": "max"}
# how tightly an expression binds: comparisons, sums, products, everything else
_TEST, _SUM, _PRODUCT, _ATOM = range(4)
#: a shared expression of at least this many nodes gets a name; so does one nested this deep (Python's
#: parser has a limit)
_SHARED, _DEEP = 8, 40


def format_nest(nest: Nest) -> str:
    """The printed form of a nest; ``parse_nest(format_nest(nest)) == nest``."""
    return _Printer(nest).run()


def result_dtype(op: str, args: tuple[Expr, ...]) -> str | None:
    """The dtype an operation has unless it says otherwise; None for casts, which always say."""
    if op in CASTS or op == "dot2" or not args:
        return None
    if op.startswith("cmp") or op in ("isnan", "isinf", "isfinite"):
        return "i1"
    which = args[1] if op in ("select", "guard") and len(args) > 1 else args[0]
    return which.dtype


@dataclass
class _Printer:
    nest: Nest
    lines: list[str] = field(default_factory=list)
    #: expressions of the statement at hand that have a name
    names: dict[Expr, str] = field(default_factory=dict)
    #: of expressions without a name in them: what `bare` gives, and how many nodes they have where all are written
    known: dict[Expr, tuple[str, int]] = field(default_factory=dict)
    sizes: dict[Expr, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dtypes = {name: b.dtype for name, b in self.nest.buffers().items()}
        self.taken = set(self.dtypes) | {s.var for s in walk_stmts(self.nest.body) if isinstance(s, For)}

    def run(self) -> str:
        params = [f"{p.name}: {self.param(p)}" for p in self.nest.params]
        head = f"def {self.nest.name}({', '.join(params)}):"
        if len(head) > 120:
            head = f"def {self.nest.name}(\n" + "".join(f"    {p},\n" for p in params) + "):"
        self.lines.append(head)
        self.block(self.nest.body, 1)
        return "\n".join(self.lines)

    def param(self, p: Buffer) -> str:
        text = _type(p)
        if p.scope != "param":
            text = f"{p.scope}({text})"
        if p.name in self.nest.packs:
            pack = self.nest.packs[p.name]
            source = "" if pack.source == p.name else f", source={pack.source}"
            repeats = f", repeats={pack.repeats}" if pack.repeats else ""
            text = f"packed({text}, splits={pack.splits}, order={pack.order}{repeats}{source})"
        if p.name in self.nest.outputs:
            place = self.nest.outputs.index(p.name)
            in_order = self.nest.outputs == tuple(q.name for q in self.nest.params if q.name in self.nest.outputs)
            text = f"out({text})" if in_order else f"out({text}, {place})"
        return text

    # ---- statements ----

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def block(self, s: Stmt, depth: int) -> None:
        """A statement as the whole body of something."""
        if isinstance(s, Seq) and len(s.stmts) != 1:
            if not s.stmts:
                self.line(depth, "pass")
            for i, x in enumerate(s.stmts):
                self.stmt(x, depth, last=i == len(s.stmts) - 1)
        else:
            self.stmt(s, depth, last=True)

    def stmt(self, s: Stmt, depth: int, last: bool) -> None:
        self.abbreviate(s, depth)
        if isinstance(s, For):
            lanes = f", lanes={s.lanes}" if s.lanes else ""
            ahead = f", prefetch=({' '.join(f'{b}[{self.expr(i)}],' for b, i in s.prefetch)})" if s.prefetch else ""
            notes = f", notes={dict(s.notes)!r}" if s.notes else ""
            self.line(depth, f"for {s.var} in {s.kind}({self.expr(s.extent)}{lanes}{ahead}{notes}):")
            self.block(s.body, depth + 1)
        elif isinstance(s, If):
            self.line(depth, f"if {self.expr(s.cond)}:")
            self.block(s.then, depth + 1)
            if s.otherwise is not None:
                self.line(depth, "else:")
                self.block(s.otherwise, depth + 1)
        elif isinstance(s, Alloc):
            made = f"{s.buffer.scope}({_type(s.buffer)})"
            if last:
                self.line(depth, f"{s.buffer.name} = {made}")
                if s.body != Seq(()):
                    self.block(s.body, depth)
            else:
                self.line(depth, f"with {made} as {s.buffer.name}:")
                self.block(s.body, depth + 1)
        elif isinstance(s, Seq):  # a sequence inside a sequence
            self.line(depth, "with group():")
            if len(s.stmts) == 1:
                self.stmt(s.stmts[0], depth + 1, last=True)
            else:
                self.block(s, depth + 1)
        elif isinstance(s, AsyncCopy):
            self.line(depth, f"with {'bulk' if s.bulk else 'async'}_copy({s.token}):")
            self.block(s.body, depth + 1)
        elif isinstance(s, Wait):
            self.line(depth, f"wait({s.token}{f', pending={s.pending}' if s.pending else ''})")
        elif isinstance(s, Barrier):
            self.line(depth, f"barrier({s.scope})")
        else:
            assert isinstance(s, Store)
            self.line(depth, self.store(s))

    def store(self, s: Store) -> str:
        label = f"{_label(s.block)}: " if s.block else ""
        if len(s.targets) == 1 and not s.reduction and (t := s.targets[0]).init is None:
            return f"{label}{self.element(t.buffer, t.indices)} = {self.expr(t.value)}"
        where = ", ".join(self.element(t.buffer, t.indices) for t in s.targets)
        values = ", ".join(self.expr(t.value) for t in s.targets)
        if len(s.targets) != 1:
            where = f"({where})"
        if s.reduction or any(t.init is not None for t in s.targets):
            inits = ["None" if t.init is None else self.expr(t.init) for t in s.targets]
            init = inits[0] if len(inits) == 1 else _tuple(inits)
            values = f"reduce({values}, init={init}, over={_tuple(s.reduction)})"
        return f"{label}{where} = {values}"

    def abbreviate(self, s: Stmt, depth: int) -> None:
        """Name the large expressions that a statement uses more than once, and cut those nested too deep."""
        self.names = {}
        found = tuple(exprs(s))
        if sum([self.size(e) for e in found]) < 2 * _SHARED:  # nothing large is there twice
            return
        uses: dict[Expr, int] = {}
        for e in found:
            _count(e, uses)
        deep: dict[Expr, int] = {}
        for e, n in uses.items():
            deep[e] = 1 + max([deep.get(c, 1) for c in children(e)])
            shared = n > 1 and self.size(e) >= (4 * _SHARED if e.dtype == "index" else _SHARED)
            if shared or deep[e] >= _DEEP:
                text = self.expr(e)
                name = f"x{len(self.names)}"
                while name in self.taken:
                    name = f"x{name}"
                self.line(depth, f"{name} = {text}")
                self.names[e] = name
                deep[e] = 1

    def size(self, e: Expr) -> int:
        if e not in self.sizes:
            self.sizes[e] = min(1 + sum([self.size(c) for c in children(e)]), 1 << 40)
        return self.sizes[e]

    # ---- expressions ----

    def element(self, buffer: str, indices: tuple[Expr, ...]) -> str:
        return f"{buffer}[{', '.join([self.expr(i) for i in indices]) or '()'}]"

    def expr(self, e: Expr, least: int = _TEST) -> str:
        """`e`, in parentheses if it binds less tightly than `least`."""
        if self.names:
            if e in self.names:
                return self.names[e]
            text, level = self.bare(e)
        else:
            if e not in self.known:
                self.known[e] = self.bare(e)
            text, level = self.known[e]
        return f"({text})" if level < least else text

    def bare(self, e: Expr) -> tuple[str, int]:
        if isinstance(e, Const):
            return _constant(e)
        if isinstance(e, Var):
            return (e.name if e.dtype == "index" else f"var[{e.dtype}]({e.name})"), _ATOM
        if isinstance(e, Load):
            if self.dtypes.get(e.buffer) == e.dtype:
                return self.element(e.buffer, e.indices), _ATOM
            return f"load[{e.dtype}]({', '.join([e.buffer, *(self.expr(i) for i in e.indices)])})", _ATOM
        assert isinstance(e, Op)
        if len(e.args) == 2 and all(a.dtype == "index" for a in e.args):
            a, b = e.args
            if e.dtype == "i1" and e.op in _COMPARE:
                return f"{self.expr(a, _SUM)} {_COMPARE[e.op]} {self.expr(b, _SUM)}", _TEST
            if e.dtype == "index" and e.op == "addi":
                return self.sum(a, b), _SUM
            if e.dtype == "index" and e.op in _BINARY:
                return f"{self.expr(a, _PRODUCT)} {_BINARY[e.op]} {self.expr(b, _ATOM)}", _PRODUCT
            if e.dtype == "index" and e.op in _EXTREME:
                return f"{_EXTREME[e.op]}({self.expr(a)}, {self.expr(b)})", _ATOM
        dtype = "" if result_dtype(e.op, e.args) == e.dtype else f"[{e.dtype}]"
        return f"{e.op}{dtype}({', '.join(self.expr(a) for a in e.args)})", _ATOM

    def sum(self, a: Expr, b: Expr) -> str:
        """``a + b``; ``a - 3`` stands for ``a + -3``, and ``a - i * 3`` for ``a + i * -3``."""
        if b not in self.names:
            if isinstance(b, Const) and less(b.value, 0):
                return f"{self.expr(a, _SUM)} - {-b.value}"
            if isinstance(b, Op) and b.op == "muli" and b.dtype == "index" and len(b.args) == 2:
                x, c = b.args
                if (
                    isinstance(c, Const)
                    and c not in self.names
                    and c.dtype == "index"
                    and less(c.value, 0)
                    and not isinstance(x, Const)
                ):
                    product = isinstance(x, Op) and x.op == "muli"
                    if less(c.value, -1):
                        return f"{self.expr(a, _SUM)} - {self.expr(x, _PRODUCT)} * {-c.value}"
                    if not product:
                        return f"{self.expr(a, _SUM)} - {self.expr(x, _PRODUCT)}"
        return f"{self.expr(a, _SUM)} + {self.expr(b, _PRODUCT)}"


def _count(e: Expr, uses: dict[Expr, int]) -> None:
    """How often an expression is used, those below it first; leaves never get a name."""
    below = children(e)
    if below and e in uses:
        uses[e] += 1
    elif below:
        for c in below:
            _count(c, uses)
        uses[e] = 1


def _type(b: Buffer) -> str:
    return f"{b.dtype}[{', '.join(map(str, b.shape)) or '()'}]"


def _tuple(items: Iterable[str]) -> str:
    items = list(items)
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


@lru_cache(maxsize=1024)
def _label(block: str) -> str:
    """A block's name as it stands before the colon."""
    parts = block.split(".")
    plain = all(re.fullmatch(r"[A-Za-z_]\w*", p, re.ASCII) and not keyword.iskeyword(p) for p in parts)
    return block if plain else f"block[{block!r}]"


def _constant(e: Const) -> tuple[str, int]:
    value = e.value.item() if hasattr(e.value, "item") else e.value
    if e.dtype == "index":
        # a negative number binds like a sum, so that (-1) * i keeps its parentheses
        return (str(value if isinstance(value, Size) else int(value)), _ATOM)
    if e.dtype == "i1" and value in (0, 1):
        return str(bool(value)), _ATOM
    if isinstance(value, float) and math.isnan(value):
        text = "-nan" if math.copysign(1.0, value) < 0 else "nan"
    else:
        text = repr(value)
    return f"{e.dtype}({text})", _ATOM


__all__ = ["NestSyntaxError", "Pack", "Target", "format_nest", "parse_nest", "result_dtype"]
