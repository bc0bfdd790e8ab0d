"""Reading loop nests from their text form; `text` describes the form and prints it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeGuard

from ..support.dtypes import FLOATS, LOOP_TYPES
from ..support.errors import TilewrightError
from ..tensor.expr import CASTS, Buffer, Const, Expr, Load, Op, Target, Var
from ..tensor.predicates import CMPF, CMPI
from .machine import Machine, axis_names, barriers
from .nest import KINDS, OLD_AXES, Alloc, AsyncCopy, Barrier, For, If, Nest, Pack, Seq, Stmt, Store, Wait

#: operands of every operation
ARITY: dict[str, int] = dict.fromkeys(CASTS, 1) | dict.fromkeys(
    [
        "negf", "absf", "sqrt", "rsqrt", "floor", "ceil", "trunc", "round", "roundeven", "isnan", "isinf",
        "isfinite", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "sinh",
        "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "cbrt", "erf", "erfc", "sigmoid",
        "absi", "ctlz", "cttz", "ctpop",
    ],
    1,
) | dict.fromkeys(
    [
        "addf", "subf", "mulf", "divf", "remf", "maximumf", "minimumf", "maxnumf", "minnumf", "copysign",
        "atan2", "powf", "fpowi", "addi", "subi", "muli", "andi", "ori", "xori", "shli", "shrsi", "shrui",
        "divsi", "floordivsi", "ceildivsi", "divui", "ceildivui", "remsi", "remui", "maxsi", "minsi", "maxui",
        "minui", "ipowi", "mulhsi",
    ],
    2,
) | dict.fromkeys(["select", "guard", "fma"], 3) | {"dot2": 4, "dot4": 5, "table4": 5}  # fmt: skip
ARITY |= {f"cmpi.{p}": 2 for p in CMPI} | {f"cmpf.{p}": 2 for p in CMPF}

_BINARY: dict[type, str] = {ast.Mult: "muli", ast.FloorDiv: "floordivsi", ast.Mod: "remsi"}
_COMPARE: dict[type, str] = {
    ast.Eq: "cmpi.eq", ast.NotEq: "cmpi.ne", ast.Lt: "cmpi.slt", ast.LtE: "cmpi.sle", ast.Gt: "cmpi.sgt",
    ast.GtE: "cmpi.sge",
}  # fmt: skip


class NestSyntaxError(TilewrightError):
    """The text of a loop nest is not well formed; the message has the line and what was expected."""


def parse_nest(text: str, machine: Machine | None = None) -> Nest:
    """The nest that `format_nest` printed, with the axes, memories and barriers of a machine (None: those of a
    processor with threads).

    Raises NestSyntaxError with the line number and what was expected there: for text that is not a nest, unknown
    operations, loops, axes, memories, buffers and dtypes, and wrong numbers of indices or operands.

    >>> nest = parse_nest('''def scale(p0: f32[4], p1: out(f32[4])):
    ...     for i in serial(4):
    ...         s0: p1[i] = mulf(p0[i], f32(2.0))''')
    >>> nest.outputs, nest.body.body.block
    (('p1',), 's0')
    """
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        reason = getattr(e, "msg", None) or str(e) or type(e).__name__
        raise NestSyntaxError(f"line {getattr(e, 'lineno', None) or 1}: {reason}", stage="parse") from None
    if len(module.body) != 1 or not isinstance(module.body[0], ast.FunctionDef):
        _fail(module.body[0] if module.body else None, "one function, `def name(parameters):`")
    return _Parser(machine or Machine()).function(module.body[0])


def _fail(node: ast.AST | None, expected: str) -> NoReturn:
    """Raise the error: where, what was expected, what is there."""
    found = ""
    if isinstance(node, ast.AST) and hasattr(node, "lineno"):
        written = ast.unparse(node).splitlines()[0]
        found = f", not `{written if len(written) <= 60 else written[:57] + '...'}`"
    raise NestSyntaxError(f"line {getattr(node, 'lineno', 1)}: expected {expected}{found}", stage="parse")


@dataclass
class _Parser:
    machine: Machine
    buffers: dict[str, Buffer] = field(default_factory=dict)
    loops: set[str] = field(default_factory=set)
    names: dict[str, Expr] = field(default_factory=dict)  # abbreviations

    def __post_init__(self) -> None:
        self.memories = [m.name for m in self.machine.memories]
        self.kinds = [*KINDS, *axis_names(self.machine)]

    # ---- the function and its parameters ----

    def function(self, f: ast.FunctionDef) -> Nest:
        a = f.args
        if a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or a.defaults or f.decorator_list or f.returns:
            _fail(f, "plain parameters `name: dtype[shape]`")
        packs: dict[str, Pack] = {}
        placed: list[tuple[int, str]] = []
        params = [self.param(p, packs, placed) for p in a.args]
        outputs = tuple(name for _, name in sorted(placed, key=lambda x: x[0]))
        return Nest(f.name, tuple(params), outputs, self.block(f.body), packs)

    def param(self, p: ast.arg, packs: dict[str, Pack], outputs: list[tuple[int, str]]) -> Buffer:
        node = p.annotation
        scope = "param"
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            kind, keywords = node.func.id, {k.arg: k.value for k in node.keywords}
            if kind == "out" and not keywords:
                outputs.append((self.integer(node.args[1]) if len(node.args) > 1 else len(outputs), p.arg))
            elif kind == "packed" and {"splits", "order"} <= set(keywords) <= {"splits", "order", "repeats", "source"}:
                packs[p.arg] = self.pack(p, keywords)
            elif kind in self.memories:
                scope = kind
            else:
                _fail(node, "`dtype[shape]`, `out(...)` or `packed(..., splits=..., order=...)`")
            node = node.args[0]
        return self.declare(p, p.arg, node, scope)

    def pack(self, p: ast.arg, keywords: dict[str | None, ast.expr]) -> Pack:
        source = keywords.get("source")
        if source is not None and not isinstance(source, ast.Name):
            _fail(source, "the name of a parameter")
        rows = keywords["splits"]
        if not isinstance(rows, ast.Tuple):
            _fail(rows, "a tuple of tuples of integers")
        splits = tuple(self.integers(x) for x in rows.elts)
        repeats = self.integers(keywords["repeats"]) if "repeats" in keywords else ()
        return Pack(source.id if source is not None else p.arg, splits, self.integers(keywords["order"]), repeats)

    def declare(self, node: ast.AST, name: str, kind: ast.expr | None, scope: str) -> Buffer:
        if not (isinstance(kind, ast.Subscript) and isinstance(kind.value, ast.Name)):
            _fail(kind or node, "a type such as `f32[4, 16]` (`f32[()]` for a single element)")
        dtype = self.dtype(kind.value)
        shape = self.integers(kind.slice) if isinstance(kind.slice, ast.Tuple) else (self.integer(kind.slice),)
        if any(n < 0 for n in shape):
            _fail(kind, "sizes that are not negative")
        if name in self.buffers:
            _fail(node, f"a new name: buffer {name} is declared already")
        self.buffers[name] = Buffer(name, shape, dtype, scope)
        return self.buffers[name]

    def dtype(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Name) or node.id not in LOOP_TYPES:
            _fail(node, f"a dtype ({' '.join(LOOP_TYPES)})")
        return node.id

    def integer(self, node: ast.expr) -> int:
        negated = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else None
        inner = node if negated is None else negated
        if not isinstance(inner, ast.Constant) or type(inner.value) is not int:
            _fail(node, "an integer")
        return inner.value if negated is None else -inner.value

    def integers(self, node: ast.expr) -> tuple[int, ...]:
        if not isinstance(node, ast.Tuple):
            _fail(node, "a tuple of integers")
        return tuple(self.integer(x) for x in node.elts)

    # ---- statements ----

    def block(self, body: list[ast.stmt]) -> Stmt:
        """Statements in their own scope; the names they introduce end with them."""
        buffers, names = dict(self.buffers), dict(self.names)
        parsed = self.sequence(body)
        self.buffers, self.names = buffers, names
        return parsed[0] if len(parsed) == 1 else Seq(tuple(parsed))

    def sequence(self, body: list[ast.stmt]) -> list[Stmt]:
        done: list[Stmt] = []
        for i, node in enumerate(body):
            made = self.allocation(node)
            if made is not None:
                rest = self.sequence(body[i + 1 :])
                return [*done, Alloc(made, rest[0] if len(rest) == 1 else Seq(tuple(rest)))]
            s = self.stmt(node)
            if s is not None:
                done.append(s)
        return done

    def allocation(self, node: ast.stmt) -> Buffer | None:
        """The buffer of ``name = local(f32[4])``; None if the statement is something else."""
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            call = node.value
            if _names_type(call):
                return self.allocated(node, node.targets[0].id, call)
        return None

    def allocated(self, node: ast.stmt, name: str, call: ast.Call) -> Buffer:
        assert isinstance(call.func, ast.Name)
        if call.func.id not in self.memories:
            _fail(call, f"a memory of the machine ({', '.join(self.memories)})")
        if len(call.args) != 1 or call.keywords:
            _fail(call, f"`{call.func.id}(dtype[shape])`")
        return self.declare(node, name, call.args[0], call.func.id)

    def stmt(self, node: ast.stmt) -> Stmt | None:
        if isinstance(node, ast.For):
            return self.loop(node)
        if isinstance(node, ast.If):
            cond = self.expr(node.test)
            if cond.dtype != "i1":
                _fail(node.test, "a condition (i1)")
            return If(cond, self.block(node.body), self.block(node.orelse) if node.orelse else None)
        if isinstance(node, ast.With):
            return self.scope(node)
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                if target.id in self.loops or target.id in self.buffers:
                    _fail(node, f"a new name: {target.id} is a loop or a buffer")
                self.names[target.id] = self.expr(node.value)
                return None
            return self.store(node, "", target, node.value)
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            return self.store(node, self.label(node.target), node.annotation, node.value)
        if isinstance(node, ast.Pass):
            return None
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            return self.waiting(node.value, node.value.func.id)
        _fail(node, "a loop, `if`, an allocation or a store `block: buffer[indices] = value`")

    def loop(self, node: ast.For) -> For:
        call = node.iter
        if not isinstance(node.target, ast.Name) or node.orelse:
            _fail(node, "`for name in kind(extent):`")
        kind = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
        kind = OLD_AXES.get(kind, kind)
        if not (isinstance(call, ast.Call) and kind in self.kinds and len(call.args) == 1):
            _fail(call, f"a kind of loop with its extent: {', '.join(f'{k}(n)' for k in self.kinds)}")
        var = node.target.id
        if var in self.loops:
            _fail(node, f"a new name: {var} is the variable of an enclosing loop")
        extent = self.index(call.args[0])
        given = {str(k.arg): k.value for k in call.keywords}
        if not set(given) <= {"lanes", "prefetch", "notes"}:
            _fail(call, "no argument but `lanes`, `prefetch` and `notes`")
        self.loops.add(var)
        lanes = self.integer(given["lanes"]) if "lanes" in given else 0
        ahead = self.prefetch(given["prefetch"]) if "prefetch" in given else ()
        notes = self.notes(given["notes"]) if "notes" in given else ()
        body = self.block(node.body)
        self.loops.discard(var)
        return For(var, extent, body, kind, lanes, ahead, notes)

    def prefetch(self, node: ast.expr) -> tuple[tuple[str, Expr], ...]:
        """``(b[i * 16 + 64],)``: buffers with flat indices."""
        found = []
        for x in node.elts if isinstance(node, ast.Tuple) else (node,):
            if not (isinstance(x, ast.Subscript) and isinstance(x.value, ast.Name) and x.value.id in self.buffers):
                _fail(x, "an element `buffer[flat index]`")
            found.append((x.value.id, self.index(x.slice)))
        return tuple(found)

    def notes(self, node: ast.expr) -> tuple[tuple[str, Any], ...]:
        try:
            found = ast.literal_eval(node)
        except ValueError:
            found = None
        if not (isinstance(found, dict) and all(isinstance(k, str) for k in found)):
            _fail(node, "notes `{'key': value}` with plain values")
        return tuple(sorted(found.items()))

    def scope(self, node: ast.With) -> Stmt:
        """``with local(f32[4]) as name:``, ``with async_copy(token):`` (or ``bulk_copy``), or ``with group():`` for a
        sequence inside a sequence."""
        call = node.items[0].context_expr
        name = node.items[0].optional_vars
        if len(node.items) == 1 and isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            if call.func.id == "group" and not call.args and name is None:
                buffers, names = dict(self.buffers), dict(self.names)
                inner = Seq(tuple(self.sequence(node.body)))
                self.buffers, self.names = buffers, names
                return inner
            if call.func.id in ("async_copy", "bulk_copy") and name is None:
                token = self.one_name(call, f"{call.func.id}(token)")
                return AsyncCopy(token, self.block(node.body), bulk=call.func.id == "bulk_copy")
            if _names_type(call) and isinstance(name, ast.Name):
                buffers = dict(self.buffers)
                b = self.allocated(node, name.id, call)
                body = self.block(node.body)
                self.buffers = buffers
                return Alloc(b, body)
        _fail(node, "`with local(dtype[shape]) as name:` or `with async_copy(token):`")

    def waiting(self, call: ast.Call, name: str) -> Stmt:
        """``barrier(scope)``, ``wait(token)`` or ``wait(token, pending=1)``."""
        if name == "barrier":
            scope, known = self.one_name(call, "barrier(scope)"), barriers(self.machine)
            if scope not in known:
                _fail(call, f"a barrier of the machine ({', '.join(known) or 'it has none'})")
            return Barrier(scope)
        if name != "wait" or {k.arg for k in call.keywords} - {"pending"}:
            _fail(call, "`barrier(scope)` or `wait(token, pending=0)`")
        pending = self.integer(call.keywords[0].value) if call.keywords else 0
        return Wait(self.one_name(call, "wait(token, pending=0)"), pending)

    def one_name(self, call: ast.Call, form: str) -> str:
        if len(call.args) != 1 or not isinstance(call.args[0], ast.Name):
            _fail(call, f"`{form}`")
        return call.args[0].id

    def label(self, node: ast.expr) -> str:
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "block":
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                return node.slice.value
        elif isinstance(node, (ast.Name, ast.Attribute)):
            return ast.unparse(node)
        _fail(node, "the name of a block before `:`")

    def store(self, node: ast.stmt, block: str, where: ast.expr, value: ast.expr) -> Store:
        elements = where.elts if isinstance(where, ast.Tuple) else [where]
        reduction: tuple[str, ...] = ()
        inits: list[Expr | None] = [None] * len(elements)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "reduce":
            values = value.args
            reduction, inits = self.reduction(value, len(elements))
        else:
            values = value.elts if isinstance(value, ast.Tuple) else [value]
        if len(values) != len(elements):
            _fail(node, f"{len(elements)} values, one for each target")
        targets = []
        for element, v, init in zip(elements, values, inits, strict=True):
            to = self.expr(element)
            if not isinstance(to, Load):
                _fail(element, "an element `buffer[indices]` to write")
            e = self.expr(v)
            for x in (e, init):
                if x is not None and x.dtype != to.dtype:
                    _fail(node, f"a value of type {to.dtype}, which {to.buffer} has, got {x.dtype}")
            targets.append(Target(to.buffer, to.indices, e, init))
        return Store(tuple(targets), block, reduction)

    def reduction(self, call: ast.Call, count: int) -> tuple[tuple[str, ...], list[Expr | None]]:
        given = {k.arg: k.value for k in call.keywords}
        if set(given) != {"init", "over"}:
            _fail(call, "`reduce(value, init=..., over=(loops,))`")
        over, init = given["over"], given["init"]
        elements = over.elts if isinstance(over, ast.Tuple) else None
        names = [x.id for x in elements or () if isinstance(x, ast.Name) and x.id in self.loops]
        if elements is None or len(names) != len(elements):
            _fail(over, "a tuple of enclosing loops")
        inits = init.elts if isinstance(init, ast.Tuple) and count != 1 else [init]
        if len(inits) != count:
            _fail(init, f"{count} initial values")
        none = [isinstance(x, ast.Constant) and x.value is None for x in inits]
        return tuple(names), [None if n else self.expr(x) for n, x in zip(none, inits, strict=True)]

    # ---- expressions ----

    def index(self, node: ast.expr) -> Expr:
        e = self.expr(node)
        if e.dtype != "index":
            _fail(node, "index arithmetic (for other types use addf, addi, ...)")
        return e

    def expr(self, node: ast.expr) -> Expr:
        if isinstance(node, ast.Name):
            if node.id in self.names:
                return self.names[node.id]
            if node.id not in self.loops:
                _fail(node, "the variable of an enclosing loop")
            return Var(node.id)
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return Const(node.value, "i1")
        if isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)):
            return Const(self.integer(node), "index")
        if isinstance(node, ast.BinOp):
            return self.binary(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
            return Op(_COMPARE[type(node.ops[0])], (self.index(node.left), self.index(node.comparators[0])), "i1")
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return self.load(node, node.value.id, parts, None)
        if isinstance(node, ast.Call) and not node.keywords:
            return self.call(node)
        _fail(
            node,
            "an expression: an operation `addf(a, b)`, `buffer[indices]`, a constant `f32(1.0)` or index arithmetic",
        )

    def binary(self, node: ast.BinOp) -> Expr:
        if type(node.op) not in (ast.Add, ast.Sub, *_BINARY):
            _fail(node, "one of + - * // % in index arithmetic (for other types use addf, addi, ...)")
        a, b = self.index(node.left), self.index(node.right)
        if isinstance(node.op, ast.Sub):
            named = isinstance(node.right, ast.Name)  # an abbreviation is taken as it is
            if isinstance(b, Const) and not named:
                b = Const(-b.value, "index")
            elif isinstance(b, Op) and b.op == "muli" and isinstance(b.args[1], Const) and not named:
                b = Op("muli", (b.args[0], Const(-b.args[1].value, "index")), "index")
            else:
                b = Op("muli", (b, Const(-1, "index")), "index")
            return Op("addi", (a, b), "index")
        return Op(_BINARY.get(type(node.op), "addi"), (a, b), "index")

    def load(self, node: ast.expr, name: str, parts: list[ast.expr], dtype: str | None) -> Load:
        b = self.buffers.get(name)
        if b is None:
            _fail(node, f"a buffer declared before ({', '.join(self.buffers)})")
        if len(parts) != len(b.shape):
            _fail(node, f"{len(b.shape)} indices for {name}, which has shape {list(b.shape)}")
        return Load(name, tuple(self.index(i) for i in parts), dtype or b.dtype)

    def call(self, node: ast.Call) -> Expr:
        f = node.func
        dtype = None
        if isinstance(f, ast.Subscript):  # op[dtype](...)
            dtype, f = self.dtype(f.slice), f.value
        name = ast.unparse(f) if isinstance(f, (ast.Name, ast.Attribute)) else ""
        if name in LOOP_TYPES and dtype is None:
            return self.constant(node, name)
        if name == "var" and dtype and len(node.args) == 1 and isinstance(node.args[0], ast.Name):
            return Var(node.args[0].id, dtype)
        if name == "load" and dtype and node.args and isinstance(node.args[0], ast.Name):
            return self.load(node, node.args[0].id, node.args[1:], dtype)
        if name in ("min", "max") and dtype is None and len(node.args) == 2:
            return Op(f"{name}si", (self.index(node.args[0]), self.index(node.args[1])), "index")
        return self.operation(node, name, dtype)

    def operation(self, node: ast.Call, name: str, dtype: str | None) -> Expr:
        from .text import result_dtype

        if name not in ARITY:
            _fail(node, "an operation (an MLIR mnemonic such as addf, cmpf.olt, exp)")
        if len(node.args) != ARITY[name]:
            _fail(node, f"{ARITY[name]} operand{'s' * (ARITY[name] != 1)} of {name}")
        args = tuple(self.expr(a) for a in node.args)
        dtype = dtype or result_dtype(name, args)
        if dtype is None:
            _fail(node, f"the result's type: `{name}[dtype](...)`")
        return Op(name, args, dtype)

    def constant(self, node: ast.Call, dtype: str) -> Const:
        if len(node.args) != 1:
            _fail(node, f"one number, `{dtype}(...)`")
        value, sign = node.args[0], 1
        if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
            value, sign = value.operand, -1
        if isinstance(value, ast.Name) and value.id in ("inf", "nan") and dtype not in ("index", "i1"):
            return Const(sign * float(value.id), dtype)
        number = value.value if isinstance(value, ast.Constant) else None
        if not isinstance(number, (int, float)) or (isinstance(number, float) and not _is_float(dtype)):
            _fail(node, f"a number of type {dtype}")
        return Const(sign * number if sign < 0 else number, dtype)


def _names_type(call: ast.expr) -> TypeGuard[ast.Call]:
    """Whether this is ``memory(dtype[shape])``, whatever the memory is."""
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args):
        return False
    kind = call.args[0]
    return isinstance(kind, ast.Subscript) and isinstance(kind.value, ast.Name) and kind.value.id in LOOP_TYPES


def _is_float(dtype: str) -> bool:
    return dtype in FLOATS
