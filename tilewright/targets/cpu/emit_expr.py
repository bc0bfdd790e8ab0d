"""Scalar and vector expressions to MLIR text, with value numbering and register elements kept as SSA values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager

from ...support.errors import CompileError
from ...tensor.expr import CASTS, Buffer, Const, Expr, Load, Op, Target, Var, bounds, from_linear, linear, neutral, walk
from ...tensor.mathlib import expand
from .values import BYTES, Place, Value, Vector, constant_text, element, type_text

#: reductions that leave NaN out, and the comparison that does: `x > acc ? x : acc` is one instruction
LARGER = {"maxnumf": "cmpf.ogt", "minnumf": "cmpf.olt"}
#: those that NaN spreads through. Which of two zeros is larger stays open in a reduction: three instructions on x86, of
#: which two wait for the accumulator, instead of six that all do
SPREADING = ("maximumf", "minimumf")
#: operations of the arith dialect; all others are of math
ARITH = CASTS | {
    "addf", "subf", "mulf", "divf", "remf", "negf", "maximumf", "minimumf", "maxnumf", "minnumf", "addi",
    "subi", "muli", "divsi", "divui", "remsi", "remui", "floordivsi", "ceildivsi", "ceildivui", "andi", "ori",
    "xori", "shli", "shrsi", "shrui", "maxsi", "minsi", "maxui", "minui", "select",
}  # fmt: skip


class ExprEmitter:
    """State shared by expression and statement emission."""

    def __init__(self, buffers: dict[str, Buffer], lanes: int) -> None:
        self.buffers, self.lanes = buffers, lanes
        self.lines: list[str] = []
        self.constants: dict[str, str] = {}
        self.memory: dict[str, str] = {}
        self.env: dict[str, str | int] = {}  # loop variable -> SSA name, or its value in unrolled code
        self.depth: dict[str, int] = {}
        self.ranges: dict[str, tuple[int, int]] = {}  # loop variable -> smallest and largest value
        self.registers: dict[tuple[str, int], Value] = {}
        self.memo: list[dict[str, str]] = [{}]
        self.loaded: list[dict[str, tuple[str, str]]] = [{}]
        self.vector: Vector | None = None
        self.count = 0
        self._places: dict[tuple[str, int], Place] = {}

    # ---- text ----

    def line(self, text: str) -> None:
        self.lines.append("  " * (len(self.memo) - 1) + text)

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def op(self, text: str) -> str:
        """Emit a pure operation once per scope and return its result name."""
        for scope in reversed(self.memo):
            if text in scope:
                return scope[text]
        name = self.fresh()
        self.line(f"{name} = {text}")
        self.memo[-1][text] = name
        return name

    def op_value(self, text: str, like: Value) -> Value:
        return Value(self.op(text), like.dtype, like.width)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A region: values made inside are not visible outside, and neither are register contents unless yielded."""
        self.memo.append({})
        self.loaded.append({})
        saved = dict(self.registers)
        yield
        self.registers = saved
        self.memo.pop()
        self.loaded.pop()

    @contextmanager
    def bind(self, var: str, value: str | int) -> Iterator[None]:
        old = self.env.get(var)
        self.env[var], self.depth[var] = value, len(self.memo)
        yield
        if old is None:
            del self.env[var]
        else:
            self.env[var] = old

    def forget(self, buffers: Set[str]) -> None:
        """Drop remembered loads of buffers that have been written."""
        for scope in self.loaded:
            for key in [k for k, (b, _) in scope.items() if b in buffers]:
                del scope[key]

    @contextmanager
    def no_vector(self) -> Iterator[None]:
        saved, self.vector = self.vector, None
        yield
        self.vector = saved

    # ---- types and constants ----

    def memref(self, b: Buffer) -> str:
        return f"memref<{max(b.size, 1)}x{element(b.dtype)}>"

    def storage_bytes(self, dtype: str) -> int:
        return BYTES[dtype]

    def const(self, value, dtype: str, width: int = 0) -> str:
        text = f"arith.constant {constant_text(value, dtype, width)}"
        if text not in self.constants:
            name = self.fresh()
            self.constants[text] = f"{name} = {text}"
        return self.constants[text].split(" = ", 1)[0]

    def all_true(self, width: int) -> str:
        return self.const(True, "i1", width)

    def as_vector(self, v: Value, width: int | None = None) -> Value:
        if v.width:
            return v
        width = width or (self.vector.width if self.vector else 0)
        return Value(self.op(f"vector.broadcast {v.ssa} : {v.dtype} to vector<{width}x{v.dtype}>"), v.dtype, width)

    def depends_on_lane(self, e: Expr) -> bool:
        if self.vector is None:
            return False
        return any(isinstance(x, Var) and x.name == self.vector.var for x in walk(e))

    # ---- expressions ----

    def expr(self, e: Expr) -> Value:
        return self._expr(e, {})

    def _expr(self, e: Expr, memo: dict[int, Value]) -> Value:
        found = memo.get(id(e))
        if found is None:
            found = memo[id(e)] = self._emit(e, memo)
        return found

    def _emit(self, e: Expr, memo: dict[int, Value]) -> Value:
        if e.dtype == "index":
            return self.index(e)
        if isinstance(e, Const):
            return Value(self.const(e.value, e.dtype), e.dtype)
        if isinstance(e, Var):
            return self.named(e)
        if isinstance(e, Load):
            return self.load(e)
        assert isinstance(e, Op)
        if e.op == "guard":
            return self.guard(e)
        return self.apply(e, [self._expr(a, memo) for a in e.args])

    def named(self, e: Var) -> Value:
        raise CompileError(f"unknown scalar {e.name}", stage="emit")

    def apply(self, e: Op, args: list[Value]) -> Value:
        """One operation on emitted operands; mathematical functions are expanded into machine operations."""
        leaves = tuple(_Leaf(v.ssa, v.dtype, v.width) for v in args)
        if e.op not in ARITH and not e.op.startswith("cmp"):
            expanded = expand(e.op, leaves, e.dtype, tables=self.has_tables(args))
            if expanded is not None:
                return self.expanded(expanded, {})
        name = e.op.split(".")[0]
        if name in ("cmpf", "cmpi"):
            return self.compare(e, args)
        # beside a constant, which of two zeros is larger may stay open: then x86 needs one instruction instead of four
        free = e.op in ("maximumf", "minimumf") and any(isinstance(a, Const) for a in e.args)
        flags = " fastmath<nsz>" if free else ""
        return self.elementwise(("arith." if e.op in ARITH else "math.") + e.op, args, e.dtype, flags)

    def has_tables(self, args: list[Value]) -> bool:
        """Whether the machine has `table_operation` for such operands."""
        return False

    def table_operation(self, e: Op, args: list[Value]) -> Value:
        """One of the operations ``limit``, ``pick`` and ``scalef`` of expansions for machines with tables."""
        raise NotImplementedError

    def expanded(self, e: Expr, memo: dict[int, Value]) -> Value:
        """Emit an expansion whose leaves are already emitted."""
        found = memo.get(id(e))
        if found is None:
            if isinstance(e, _Leaf):
                found = Value(e.name, e.dtype, e.width)
            elif isinstance(e, Const):
                found = Value(self.const(e.value, e.dtype), e.dtype)
            else:
                assert isinstance(e, Op)
                args = [] if e.op == "seldom" else [self.expanded(a, memo) for a in e.args]
                if e.op == "seldom":
                    found = self.seldom(e, memo)
                elif e.op.startswith("cmp"):
                    found = self.compare(e, args)
                elif e.op in ("limit", "pick", "scalef"):
                    found = self.table_operation(e, args)
                else:
                    found = self.elementwise(("arith." if e.op in ARITH else "math.") + e.op, args, e.dtype)
            memo[id(e)] = found
        return found

    def seldom(self, e: Op, memo: dict[int, Value]) -> Value:
        """seldom(c, x, y): x where c holds, else y; x is only computed if c holds in one lane or more."""
        cond, y = self.expanded(e.args[0], memo), self.expanded(e.args[2], memo)
        some = cond.ssa
        if cond.width:
            some = self.op(f"vector.reduction <or>, {cond.ssa} : vector<{cond.width}xi1> into i1")

        def there() -> Value:
            x = self.expanded(e.args[1], dict(memo))
            return self.elementwise("arith.select", [cond, x, y], e.dtype)

        lines, x = self.region(there)
        return self.branch(some, (lines, x), ([], y))

    def _even(self, args: list[Value]) -> tuple[list[Value], int]:
        """Broadcast scalars where there is a vector among the operands."""
        width = max((a.width for a in args), default=0)
        return ([self.as_vector(a, width) for a in args] if width else args), width

    def elementwise(self, name: str, args: list[Value], dtype: str, flags: str = "") -> Value:
        args, width = self._even(args)
        t = type_text(dtype, width)
        names = ", ".join(a.ssa for a in args)
        if name == "arith.select":
            return Value(self.op(f"{name} {names} : {args[0].type}, {t}"), dtype, width)
        if name[6:] in CASTS:
            return Value(self.op(f"{name} {names} : {args[0].type} to {t}"), dtype, width)
        if name == "math.fpowi":
            return Value(self.op(f"{name} {names} : {args[0].type}, {args[1].type}"), dtype, width)
        return Value(self.op(f"{name} {names}{flags} : {t}"), dtype, width)

    def compare(self, e: Op, args: list[Value]) -> Value:
        args, width = self._even(args)
        kind, predicate = e.op.split(".")
        return Value(self.op(f"arith.{kind} {predicate}, {args[0].ssa}, {args[1].ssa} : {args[0].type}"), "i1", width)

    def guard(self, e: Op) -> Value:
        """guard(c, x, y): x where c holds, else y; x's loads happen only where c holds."""
        cond = self.expr(e.args[0])
        if cond.width:
            assert self.vector is not None
            saved = self.vector
            mask = cond.ssa
            if saved.mask:
                mask = self.op(f"arith.andi {mask}, {saved.mask} : vector<{saved.width}xi1>")
            self.vector = Vector(saved.var, saved.width, mask)
            x = self.expr(e.args[1])
            self.vector = saved
            return self.elementwise("arith.select", [cond, x, self.expr(e.args[2])], e.dtype)
        x_lines, x = self.captured(e.args[1])
        y_lines, y = self.captured(e.args[2], x.width)
        if y.width and not x.width:
            x_lines, x = self.captured(e.args[1], y.width)
        return self.branch(cond.ssa, (x_lines, x), (y_lines, y))

    def branch(self, cond: str, there: tuple[list[str], Value], elsewhere: tuple[list[str], Value]) -> Value:
        """One of two values, each with the lines that make it."""
        name, like = self.fresh(), there[1]
        self.line(f"{name} = scf.if {cond} -> ({like.type}) {{")
        self.lines += [*there[0], f"scf.yield {there[1].ssa} : {like.type}"]
        self.line("} else {")
        self.lines += [*elsewhere[0], f"scf.yield {elsewhere[1].ssa} : {like.type}"]
        self.line("}")
        return Value(name, like.dtype, like.width)

    def captured(self, e: Expr, width: int = 0) -> tuple[list[str], Value]:
        """Emit `e` into lines of its own, as the body of a region; broadcast to `width` lanes if it is a scalar."""

        def value() -> Value:
            v = self.expr(e)
            return self.as_vector(v, width) if width and not v.width else v

        return self.region(value)

    def region(self, emit: Callable[[], Value]) -> tuple[list[str], Value]:
        """What `emit` emits, in lines of its own."""
        outer, self.lines = self.lines, []
        with self.scope():
            v = emit()
        lines, self.lines = self.lines, outer
        return lines, v

    def horizontal(self, op: str, lanes: Value, start: Value) -> Value:
        """Combine all lanes into one value, starting from `start`; lanes masked off count as neutral."""
        assert self.vector is not None
        if self.vector.mask:
            fill = self.const(neutral(op, lanes.dtype).value, lanes.dtype, lanes.width)
            lanes = self.op_value(
                f"arith.select {self.vector.mask}, {lanes.ssa}, {fill} : vector<{lanes.width}xi1>, {lanes.type}", lanes
            )
        lanes = self.without_nan(op, lanes)
        # halves are added pairwise: fewer roundings in a row, and a fixed order
        while lanes.width > 2:
            half = lanes.width // 2
            a, b = (
                Value(
                    self.op(
                        f"vector.extract_strided_slice {lanes.ssa} "
                        f"{{offsets = [{o}], sizes = [{half}], strides = [1]}} : "
                        f"{lanes.type} to vector<{half}x{lanes.dtype}>"
                    ),
                    lanes.dtype,
                    half,
                )
                for o in (0, half)
            )
            lanes = self.combine(op, a, b, lanes.dtype)
        last = [
            Value(self.op(f"vector.extract {lanes.ssa}[{i}] : {lanes.dtype} from {lanes.type}"), lanes.dtype)
            for i in range(lanes.width)
        ]
        both = self.combine(op, last[0], last[1], lanes.dtype) if len(last) == 2 else last[0]
        return self.combine(op, both, start, lanes.dtype)

    def without_nan(self, op: str, x: Value) -> Value:
        """The first element of a reduction: what it leaves out becomes its neutral element."""
        if op not in LARGER:
            return x
        fill = Value(self.const(neutral(op, x.dtype).value, x.dtype, x.width), x.dtype, x.width)
        return self.combine(op, x, fill, x.dtype)

    def combine(self, op: str, x: Value, acc: Value, dtype: str) -> Value:
        """One step of a reduction; `acc` has no NaN if the operation leaves them out, as it began with a number."""
        if op in SPREADING:  # LLVM tests the first operand for NaN: the one that does not wait
            return self.elementwise(f"arith.{op}", [x, acc], dtype, " fastmath<nsz>")
        if op not in LARGER:
            return self.elementwise(f"arith.{op}", [acc, x], dtype)
        ahead = self.compare(Op(LARGER[op], (), "i1"), [x, acc])
        return self.elementwise("arith.select", [ahead, x, acc], dtype)

    # ---- indices ----

    def index(self, e: Expr) -> Value:
        """An index expression: constants folded, terms added outermost loop first so that sums can be hoisted."""
        return self.sum_of(*linear(e))

    def sum_of(self, terms: dict[Expr, int], constant: int) -> Value:
        """An index in linear form."""
        rest: list[tuple[int, Expr, int]] = []
        for t, c in terms.items():
            if isinstance(t, Var):
                bound = self.env.get(t.name)
                if isinstance(bound, int):
                    constant += c * bound
                    continue
                rest.append((self.depth.get(t.name, 99) if bound is not None else 100, t, c))
            else:
                rest.append((50, t, c))
        rest.sort(key=lambda x: x[0])
        total: Value | None = None
        for _, t, c in rest:
            part = self.term(t)
            if c != 1:
                part = self.elementwise("arith.muli", [part, Value(self.const(c, "index"), "index")], "index")
            total = part if total is None else self.elementwise("arith.addi", [total, part], "index")
        if total is None:
            return Value(self.const(constant, "index"), "index")
        if constant:
            total = self.elementwise("arith.addi", [total, Value(self.const(constant, "index"), "index")], "index")
        return total

    def term(self, t: Expr) -> Value:
        if isinstance(t, Var):
            bound = self.env.get(t.name)
            if isinstance(bound, str):
                return Value(bound, "index")
            if self.vector and t.name == self.vector.var:
                return Value(self.op(f"vector.step : vector<{self.vector.width}xindex>"), "index", self.vector.width)
            raise CompileError(f"loop variable {t.name} is not in scope", stage="emit")
        if isinstance(t, Load):
            return self.load(t)
        assert isinstance(t, Op)
        args = [self.expr(a) for a in t.args]
        if t.op in ("floordivsi", "remsi"):
            limit = bounds(t.args[0], self.ranges)
            if t.op == "remsi" or (limit is not None and limit[0] >= 0):  # not negative: the unsigned form is cheaper
                return self.elementwise("arith.divui" if t.op == "floordivsi" else "arith.remui", args, "index")
        return self.elementwise("arith." + t.op, args, "index")

    def located(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Place:
        """Where an element lies. Found once: a loop that is laid out asks for it in every iteration."""
        key = buffer.name, id(indices)
        if key not in self._places:
            total: Expr = Const(0, "index")
            for i, s in zip(indices, buffer.strides, strict=True):
                total = total + i * s
            terms, constant = linear(total)
            if any(isinstance(t, Op) and t.op == "floordivsi" for t in terms):
                total = from_linear(terms, constant, self.ranges)  # x // n * n + x % n is x
                terms, constant = linear(total)
            self._places[key] = Place(indices, total, terms, constant)
        return self._places[key]

    def flat(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """The index of an element in its flat buffer."""
        return self.located(buffer, indices).flat

    def lane_stride(self, name: str, indices: tuple[Expr, ...]) -> int | None:
        """Elements between neighbouring lanes: 0 invariant, 1 contiguous, None if not regular."""
        assert self.vector is not None
        place, var = self.located(self.buffers[name], indices), self.vector.var
        if var not in place.strides:
            irregular = any(not isinstance(t, Var) and self.depends_on_lane(t) for t in place.terms)
            place.strides[var] = None if irregular else place.terms.get(Var(var), 0)
        return place.strides[var]

    def address(self, buffer: Buffer, indices: tuple[Expr, ...], *, lane0: bool = False) -> Value:
        """The flat index; with `lane0` that of the first lane."""
        place = self.located(buffer, indices)
        if lane0:
            assert self.vector is not None
            with self.bind(self.vector.var, 0):
                return self.sum_of(place.terms, place.constant)
        return self.sum_of(place.terms, place.constant)

    def write(self, t: Target, value: Value) -> None:
        """Store a value: the part of `emit.Emitter`, for those in between."""
        raise NotImplementedError

    def strided(self, buffer: Buffer, indices: tuple[Expr, ...], shape: Value) -> Value | None:
        """A load of lanes that are no neighbours by other means than a gather: the part of `strided.StridedEmitter`."""
        return None

    # ---- loads ----

    def ends_in_padding(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        """Whether a vector needs no mask: the part of `padding.PaddingEmitter`."""
        return False

    def load(self, e: Load) -> Value:
        buffer = self.buffers[e.buffer]
        if buffer.scope == "register":
            return self.load_register(buffer, e)
        stride = self.lane_stride(e.buffer, e.indices) if self.vector else 0
        memory, kind = self.memory[buffer.name], self.memref(buffer)
        stored = element(buffer.dtype)
        if stride == 0:
            address = self.address(buffer, e.indices).ssa
            return self.from_storage(
                self.remember(buffer, f"memref.load {memory}[{address}] : {kind}", Value("", stored)), buffer.dtype
            )
        vector = self.vector
        assert vector is not None
        shape = Value("", stored, vector.width)
        if stride == 1:
            base = self.address(buffer, e.indices, lane0=True).ssa
            if vector.mask and not self.ends_in_padding(buffer, e.indices):
                zero = self.const(0, stored, vector.width)
                text = (
                    f"vector.maskedload {memory}[{base}], {vector.mask}, {zero} : {kind}, "
                    f"vector<{vector.width}xi1>, {shape.type} into {shape.type}"
                )
            else:
                text = f"vector.load {memory}[{base}] : {kind}, {shape.type}"
        else:
            found = self.strided(buffer, e.indices, shape)
            if found is not None:
                return self.from_storage(found, buffer.dtype)
            where = self.as_vector(self.address(buffer, e.indices))
            mask = vector.mask or self.all_true(vector.width)
            zero, c0 = self.const(0, stored, vector.width), self.const(0, "index")
            text = (
                f"vector.gather {memory}[{c0}] [{where.ssa}], {mask}, {zero} : {kind}, {where.type}, "
                f"vector<{vector.width}xi1>, {shape.type} into {shape.type}"
            )
        return self.from_storage(self.remember(buffer, text, shape), buffer.dtype)

    def remember(self, buffer: Buffer, text: str, shape: Value) -> Value:
        for scope in reversed(self.loaded):
            if text in scope:
                return Value(scope[text][1], shape.dtype, shape.width)
        name = self.fresh()
        self.line(f"{name} = {text}")
        self.loaded[-1][text] = (buffer.name, name)
        return Value(name, shape.dtype, shape.width)

    def from_storage(self, v: Value, dtype: str) -> Value:
        if dtype != "i1":
            return v
        zero = Value(self.const(0, "i8"), "i8")
        return self.compare(Op("cmpi.ne", (), "i1"), [v, zero])

    def to_storage(self, v: Value) -> Value:
        return self.elementwise("arith.extui", [v], "i8") if v.dtype == "i1" else v

    # ---- registers ----

    def slot_key(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[str, int]:
        place = self.located(buffer, indices)
        constant = place.constant
        for t, c in place.terms.items():
            bound = self.env.get(t.name) if isinstance(t, Var) else None
            if isinstance(bound, int):
                constant += c * bound
            elif not (isinstance(t, Var) and self.vector and t.name == self.vector.var and c == 1):
                return self.odd_slot(buffer, indices, t)
        return buffer.name, constant

    def odd_slot(self, buffer: Buffer, indices: tuple[Expr, ...], term: Expr) -> tuple[str, int]:
        """The key of lanes that are no neighbours: the part of `shared_vectors.SharedVectorEmitter`."""
        raise CompileError(f"register buffer {buffer.name} is indexed by {term}, which is not unrolled", stage="emit")

    def slot(self, key: tuple[str, int], shape: tuple[str, int]) -> Value:
        """The current value of a register element (zero if never written)."""
        if key not in self.registers:
            dtype, width = shape
            self.registers[key] = Value(self.const(0, dtype, width), dtype, width)
        return self.registers[key]

    def load_register(self, buffer: Buffer, e: Load) -> Value:
        key = self.slot_key(buffer, e.indices)
        if key not in self.registers:
            raise CompileError(f"register {buffer.name}[{key[1]}] is read before it is written", stage="emit")
        return self.registers[key]


class _Leaf(Var):
    """An already emitted value standing in an expansion."""

    __slots__ = ("width",)
    width: int

    def __init__(self, name: str, dtype: str, width: int) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "width", width)
