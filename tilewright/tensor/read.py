"""Kernels read from linalg: one stage for each operation that writes memory.

Views (reshapes, slices) and constants become index arithmetic and literals inside the stages that read them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch_mlir import ir

from ..ir.builder import unwrapped
from ..ir.types import type_of
from ..support.errors import CompileError
from ..support.sizes import at_most, decode
from .affine import affine
from .expr import Buffer, Const, Expr, Load, Op, Target, Var, floordiv, map_loads, mod, simplify_node, transform
from .kernel import Kernel, Opaque, Stage
from .predicates import with_predicate
from .reshape import reshape_index

#: reads one element of a level-3 value at given indices
Ref = Callable[[tuple[Expr, ...]], Expr]
#: names of loops, outermost first
_LETTERS = "ijklmnpqrs"


def read_kernel(function: ir.OpView) -> Kernel:
    """Read a private ``func.func`` of a fused level-3 module; CompileError for an operation a kernel cannot hold."""
    return Reader(function).read()


@dataclass
class Reader:
    function: ir.OpView
    refs: dict[ir.Value, Ref] = field(default_factory=dict)
    names: dict[ir.Value, str] = field(default_factory=dict)  # values that are whole buffers
    fills: dict[ir.Value, Const] = field(default_factory=dict)
    undefined: dict[ir.Value, Const] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    opaque: Opaque | None = None
    in_kernel: bool = True  # reading a kernel's function, not analysing a whole @main

    def read(self) -> Kernel:
        f = self.function
        name = ir.StringAttr(f.attributes["sym_name"]).value
        block = f.regions[0].blocks[0]
        flags = list(f.attributes["arg_attrs"]) if "arg_attrs" in f.attributes else [{}] * len(block.arguments)
        inputs = []
        constants = set()
        for i, (a, flag) in enumerate(zip(block.arguments, flags, strict=True)):
            t = type_of(a)
            b = Buffer(f"p{i}", t.dims, t.dtype)
            inputs.append(b)
            self.bind(a, b)
            if "tw.constant" in flag:
                constants.add(b.name)
        for op in block.operations:
            if op.operation.name == "func.return":
                returned = list(op.operands)
                break
            self.operation(op.operation)
        outputs, rename = self.outputs(returned, len(inputs))
        temporaries = tuple(b for b in self.buffers if b.name not in rename)
        stages = tuple(_rename(s, rename) for s in self.stages)
        opaque = self.opaque
        if opaque:
            opaque = replace(opaque, results=tuple(rename.get(r, r) for r in opaque.results))
        params = (*inputs, *outputs)
        return Kernel(name, params, tuple(o.name for o in outputs), temporaries, stages, frozenset(constants), opaque)

    def outputs(self, returned: list[ir.Value], first: int) -> tuple[list[Buffer], dict[str, str]]:
        """Output parameters; a returned temporary is renamed to its parameter, anything else is copied into one."""
        outputs: list[Buffer] = []
        rename: dict[str, str] = {}
        for j, v in enumerate(returned):
            name = f"p{first + j}"
            source = self.names.get(v) or self.whole_view(v)
            own = next((b for b in self.buffers if b.name == source), None)
            if own is not None and own.name not in rename:
                rename[own.name] = name
                outputs.append(Buffer(name, own.shape, own.dtype))
            else:
                t = type_of(v)
                outputs.append(Buffer(name, t.dims, t.dtype))
                dims, index = self.dims(t.dims)
                self.stage(dims, (Target(name, index, self.refs[v](index)),))
        return outputs, rename

    def whole_view(self, v: ir.Value) -> str | None:
        """The buffer that a chain of reshapes covers entirely (its memory is the same)."""
        while not isinstance(v.owner, ir.Block) and v.owner.operation.name in (
            "tensor.collapse_shape",
            "tensor.expand_shape",
        ):
            v = v.owner.operation.operands[0]
        return self.names.get(v)

    # ---- operations ----

    def operation(self, op: ir.Operation) -> None:
        short = op.name.replace(".", "_")
        handler = getattr(self, f"op_{short}", None)
        if handler is not None:
            handler(op)
        elif op.name.startswith("tw."):
            self.op_opaque(op)
        else:
            raise CompileError(f"a kernel cannot contain {op.name}", stage="schedule", operator=str(op.location))

    def bind(self, v: ir.Value, b: Buffer) -> None:
        self.names[v] = b.name
        self.refs[v] = lambda index: Load(b.name, index, b.dtype)

    def temporary(self, v: ir.Value) -> Buffer:
        t = type_of(v)
        b = Buffer(f"t{len(self.buffers)}", t.dims, t.dtype, "local")
        self.buffers.append(b)
        self.bind(v, b)
        return b

    def dims(self, extents: tuple[int, ...]) -> tuple[tuple[tuple[str, int], ...], tuple[Expr, ...]]:
        """Loops and index of a stage; dimensions of size 1 get no loop and index 0."""
        names = [f"{_LETTERS[d] if d < len(_LETTERS) else f'd{d}_'}{len(self.stages)}" for d in range(len(extents))]
        loops = tuple((n, e) for n, e in zip(names, extents, strict=True) if e != 1)
        return loops, tuple(Const(0, "index") if e == 1 else Var(n) for n, e in zip(names, extents, strict=True))

    def stage(
        self, dims: tuple[tuple[str, int], ...], targets: tuple[Target, ...], reduction: tuple[str, ...] = ()
    ) -> None:
        """Add a stage, with the indices that views left behind simplified by the extents of its loops: once these are
        split, less can be proved."""
        ranges = {v: (0, n - 1) for v, n in dims}
        memo: dict[Expr, Expr] = {}

        def visit(x: Expr, args: tuple[Expr, ...]) -> Expr:
            return simplify_node(x, args, ranges)

        def tidy(e: Expr) -> Expr:
            return transform(e, visit, memo)

        kept = [Target(t.buffer, tuple(map(tidy, t.indices)), tidy(t.value), t.init) for t in targets]
        self.stages.append(Stage(f"s{len(self.stages)}", dims, tuple(kept), reduction))

    def op_arith_constant(self, op: ir.Operation) -> None:
        attr = op.attributes["value"]
        v = op.results[0]
        if isinstance(v.type, ir.RankedTensorType):
            elements = ir.DenseElementsAttr(attr)
            if not elements.is_splat:
                raise CompileError(
                    "a constant array stands inside a kernel", stage="schedule", operator=str(op.location)
                )
            c = Const(elements.get_splat_value().value, type_of(v).dtype)
            self.fills[v] = c
            self.refs[v] = lambda index: c
        else:
            kind = str(v.type)
            self.fills[v] = Const(decode(attr.value) if kind == "index" else attr.value, kind)

    def op_tensor_empty(self, op: ir.Operation) -> None:
        """Only a shape (a pooling window); a body that read its elements would read nothing defined."""
        self.undefined[op.results[0]] = Const(0, type_of(op.results[0]).dtype)

    def op_linalg_fill(self, op: ir.Operation) -> None:
        c = self.scalar(op.operands[0])
        if not isinstance(c, Const):
            raise CompileError(
                "linalg.fill of a value that is not constant", stage="schedule", operator=str(op.location)
            )
        self.fills[op.results[0]] = c
        self.refs[op.results[0]] = lambda index: c

    def scalar(self, v: ir.Value) -> Expr:
        return self.fills[v]

    def op_tensor_collapse_shape(self, op: ir.Operation) -> None:
        self.reshape(op)

    def op_tensor_expand_shape(self, op: ir.Operation) -> None:
        self.reshape(op)

    def reshape(self, op: ir.Operation) -> None:
        source, result = op.operands[0], op.results[0]
        inner, old, new = self.refs[source], type_of(source).dims, type_of(result).dims
        if result.type != source.type or old != new:
            self.refs[result] = lambda index: inner(reshape_index(index, new, old))
        else:
            self.refs[result] = inner
        if source in self.fills:
            self.fills[result] = self.fills[source]

    def op_tensor_extract_slice(self, op: ir.Operation) -> None:
        source, result = op.operands[0], op.results[0]
        offsets, sizes, steps = (_static(op, n) for n in ("static_offsets", "static_sizes", "static_strides"))
        shape = type_of(result).dims
        kept = _kept_dims(sizes, shape)
        inner = self.refs[source]

        def ref(index: tuple[Expr, ...]) -> Expr:
            full: list[Expr] = [Const(o, "index") for o in offsets]
            for i, d in zip(index, kept, strict=True):
                full[d] = i * steps[d] + offsets[d]
            return inner(tuple(full))

        self.refs[result] = ref

    def op_tensor_insert_slice(self, op: ir.Operation) -> None:
        source, into = op.operands[0], op.operands[1]
        offsets, sizes, steps = (_static(op, n) for n in ("static_offsets", "static_sizes", "static_strides"))
        out = self.temporary(op.results[0])
        if into in self.refs:  # not a fresh tensor: its elements are kept
            dims, index = self.dims(out.shape)
            self.stage(dims, (Target(out.name, index, self.refs[into](index)),))
        shape = type_of(source).dims
        dims, index = self.dims(shape)
        where: list[Expr] = [Const(o, "index") for o in offsets]
        for i, d in zip(index, _kept_dims(sizes, shape), strict=True):
            where[d] = i * steps[d] + offsets[d]
        self.stage(dims, (Target(out.name, tuple(where), self.refs[source](index)),))

    def op_tensor_concat(self, op: ir.Operation) -> None:
        axis = ir.IntegerAttr(op.attributes["dim"]).value
        out = self.temporary(op.results[0])
        offset = 0
        for piece in op.operands:
            shape = type_of(piece).dims
            if shape[axis]:
                dims, index = self.dims(shape)
                where = tuple(i + offset if d == axis else i for d, i in enumerate(index))
                self.stage(dims, (Target(out.name, where, self.refs[piece](index)),))
            offset += shape[axis]

    def op_tensor_pad(self, op: ir.Operation) -> None:
        low = _static(op, "static_low")
        source = op.operands[0]
        yielded = op.regions[0].blocks[0].operations[0].operands[0]
        fill = self.fills.get(yielded)
        if fill is None:
            fill = Const(yielded.owner.attributes["value"].value, type_of(source).dtype)
        out = self.temporary(op.results[0])
        if self.only_returned(op.results[0]) or self.between_sums(op):
            self.pad_in_parts(self.refs[source], type_of(source).dims, low, out, fill)
        else:
            self.pad_guarded(self.refs[source], type_of(source).dims, low, out, fill)

    def pad_guarded(self, inner: Ref, shape: tuple[int, ...], low: list[int], out: Buffer, fill: Const) -> None:
        """One stage that chooses for every element; its reader can inline it."""
        dims, index = self.dims(out.shape)
        where = tuple(i - p for i, p in zip(index, low, strict=True))
        value = inner(where)
        cond: Expr | None = None
        for i, n, p, total in zip(where, shape, low, out.shape, strict=True):
            for test in ([Op("cmpi.sge", (i, Const(0, "index")), "i1")] if p else []) + (
                [] if at_most(total, p + n) else [Op("cmpi.slt", (i, Const(n, "index")), "i1")]
            ):
                cond = test if cond is None else Op("andi", (cond, test), "i1")
        if cond is not None:
            value = Op("guard", (cond, value, fill), out.dtype)
        self.stage(dims, (Target(out.name, index, value),))

    def pad_in_parts(self, inner: Ref, shape: tuple[int, ...], low: list[int], out: Buffer, fill: Const) -> None:
        """The border as slabs of `fill`, then the inside as a copy without conditions, which can follow what makes
        it."""
        for d, (n, p, total) in enumerate(zip(shape, low, out.shape, strict=True)):
            for start, size in ((0, p), (p + n, total - p - n)):
                if size:
                    # dimensions before d only where no earlier slab has written
                    extents = tuple(size if e == d else shape[e] if e < d else out.shape[e] for e in range(len(shape)))
                    dims, index = self.dims(extents)
                    at = tuple(i + (start if e == d else low[e] if e < d else 0) for e, i in enumerate(index))
                    self.stage(dims, (Target(out.name, at, fill),))
        dims, index = self.dims(shape)
        self.stage(dims, (Target(out.name, tuple(i + p for i, p in zip(index, low, strict=True)), inner(index)),))

    def only_returned(self, v: ir.Value) -> bool:
        """Whether a value is a result of the kernel that nothing in it reads."""
        for use in v.uses:
            user = use.owner.operation
            if user.name in ("tensor.collapse_shape", "tensor.expand_shape"):
                if not self.only_returned(user.results[0]):
                    return False
            elif user.name != "func.return":
                return False
        return self.in_kernel

    def between_sums(self, op: ir.Operation) -> bool:
        """Whether a pad lies between two sums of one kernel: it stays, as its reader reads every element several
        times."""
        summed = any(s.reduction for s in self.stages)
        users = [use.owner.operation for use in op.results[0].uses]
        kinds = [str(u.attributes["iterator_types"]) if u.name == "linalg.generic" else "" for u in users]
        return self.in_kernel and summed and all("reduction" in k for k in kinds)

    def op_opaque(self, op: ir.Operation) -> None:
        from ..ir import dialect

        operands: list[str | None] = []
        for v in dialect.arguments(op):
            if v is None:
                operands.append(None)
                continue
            if v not in self.names:
                t = type_of(v)
                b = Buffer(f"t{len(self.buffers)}", t.dims, t.dtype, "local")
                self.buffers.append(b)
                dims, index = self.dims(t.dims)
                self.stage(dims, (Target(b.name, index, self.refs[v](index)),))
                self.names[v] = b.name
            operands.append(self.names[v])
        results = tuple(self.temporary(r).name for r in op.results)
        about = dialect.mnemonic(op) or "", dialect.attributes(op), tuple(operands), results, _level2_dtypes(op)
        self.opaque = Opaque(*about, *_processor(op))

    def op_linalg_generic(self, op: ir.Operation) -> None:
        maps = [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
        kinds = [str(k) for k in ir.ArrayAttr(op.attributes["iterator_types"])]
        outs = len(op.results)
        ins = len(op.operands) - outs
        extents = _extents(
            maps, [type_of(v).dims if isinstance(v.type, ir.RankedTensorType) else () for v in op.operands], len(kinds)
        )
        dims, variables = self.dims(extents)
        reducing = any("reduction" in k for k in kinds)
        reduction = tuple(
            v.name for v, k in zip(variables, kinds, strict=True) if "reduction" in k and isinstance(v, Var)
        )
        block = op.regions[0].blocks[0]
        values: dict[ir.Value, Expr] = {}
        for i, (v, m) in enumerate(zip(list(op.operands)[:ins], maps, strict=False)):
            index = tuple(affine(e, variables, _index) for e in _places(m, v))
            values[block.arguments[i]] = (
                self.refs[v](index) if v in self.refs else self.fills.get(v) or self.undefined[v]
            )
        targets = []
        for j in range(outs):
            start, result = op.operands[ins + j], op.results[j]
            index = tuple(affine(e, variables, _index) for e in _places(maps[ins + j], start))
            initial = (
                self.fills[start] if start in self.fills else self.refs[start](index) if start in self.refs else None
            )
            b = self.temporary(result)
            values[block.arguments[ins + j]] = (
                Load(b.name, index, b.dtype) if reducing else initial or Const(0, b.dtype)
            )
            targets.append((b, index, initial))
        yielded = self.body(block, values, variables)
        built = []
        for (b, index, initial), value in zip(targets, yielded, strict=True):
            if reducing and initial is None:
                raise CompileError(
                    "a reduction starts from an uninitialized tensor", stage="schedule", operator=str(op.location)
                )
            built.append(Target(b.name, index, value, initial if reducing else None))
        self.stage(dims, tuple(built), reduction)

    def body(self, block: ir.Block, values: dict[ir.Value, Expr], variables: tuple[Expr, ...]) -> list[Expr]:
        """The scalar body of a linalg operation as expressions."""

        def get(v: ir.Value) -> Expr:
            return values[v] if v in values else self.scalar(v)

        for op in block.operations:
            o = op.operation
            dialect_name, _, short = o.name.partition(".")
            if o.name == "linalg.yield":
                return [get(v) for v in o.operands]
            result = o.results[0]
            if o.name == "linalg.index":
                values[result] = variables[ir.IntegerAttr(o.attributes["dim"]).value]
            elif o.name == "arith.constant":
                kind = str(result.type)
                number = o.attributes["value"].value
                values[result] = Const(decode(number) if kind == "index" else number, kind)
            elif o.name == "tensor.extract":
                values[result] = self.refs[o.operands[0]](tuple(get(v) for v in list(o.operands)[1:]))
            elif o.name == "arith.mulsi_extended":
                args = tuple(get(v) for v in o.operands)
                for name, half in zip(("muli", "mulhsi"), o.results, strict=True):
                    values[half] = Op(name, args, str(half.type))
            elif dialect_name in ("arith", "math"):
                args = tuple(get(v) for v in o.operands)
                values[result] = _index_op(Op(with_predicate(o, short), args, str(result.type)))
            else:
                raise CompileError(f"a kernel body cannot contain {o.name}", stage="schedule", operator=str(o.location))
        raise AssertionError("a linalg body without a yield")


def _level2_dtypes(op: ir.Operation) -> tuple[str | None, ...]:
    """The dtypes that `lower` found at level 2 (kept where one is unsigned); None for an absent operand."""
    from ..ir import dialect

    kept = iter([ir.StringAttr(a).value for a in op.attributes["tw.dtypes"]] if "tw.dtypes" in op.attributes else [])
    return tuple(None if v is None else next(kept, type_of(v).dtype) for v in dialect.arguments(op))


def _processor(op: ir.Operation) -> tuple[str, tuple[str, ...]]:
    """Who computes an operator as it is, and the results' dtypes at level 2; ("", ()) for the others."""
    from ..ir import dialect

    if dialect.WHOLE not in op.attributes:
        return "", ()
    kept = iter(op.attributes.get("tw.result_dtypes", ()))
    made = [type_of(r).dtype if (a := next(kept, None)) is None else ir.StringAttr(a).value for r in op.results]
    return ir.StringAttr(op.attributes[dialect.WHOLE]).value, tuple(made)


def _index_op(e: Op) -> Expr:
    """Index arithmetic goes through the folding constructors."""
    if e.dtype != "index":
        return e
    if e.op == "index_cast" and isinstance(e.args[0], Const):
        return Const(decode(int(e.args[0].value)), "index")
    fold = {
        "addi": lambda a, b: a + b,
        "subi": lambda a, b: a - b,
        "muli": lambda a, b: a * b,
        "divui": floordiv,
        "floordivsi": floordiv,
        "remui": mod,
    }.get(e.op)
    return fold(*e.args) if fold else e


def _rename(s: Stage, names: dict[str, str]) -> Stage:
    if not names:
        return s

    def rename(x: Load) -> Expr:
        return Load(names[x.buffer], x.indices, x.dtype) if x.buffer in names else x

    targets = tuple(
        Target(
            names.get(t.buffer, t.buffer),
            tuple(map_loads(i, rename) for i in t.indices),
            map_loads(t.value, rename),
            None if t.init is None else map_loads(t.init, rename),
        )
        for t in s.targets
    )
    return Stage(s.name, s.dims, targets, s.reduction)


def _static(op: ir.Operation, name: str) -> list[int]:
    values = [decode(v) for v in ir.DenseI64ArrayAttr(op.attributes[name])]
    if ir.ShapedType.get_dynamic_size() in values:
        raise CompileError(f"{op.name} with sizes known only at run time", stage="schedule", operator=str(op.location))
    return values


def _kept_dims(sizes: list[int], shape: tuple[int, ...]) -> list[int]:
    """Dimensions of a slice that its (possibly rank-reduced) type keeps."""
    if len(sizes) == len(shape):
        return list(range(len(sizes)))
    kept, rest = [], list(shape)
    for d, n in enumerate(sizes):
        if rest and rest[0] == n and (n != 1 or len(sizes) - d <= len(rest)):
            kept.append(d)
            rest.pop(0)
    return kept


def _places(m: ir.AffineMap, operand: ir.Value) -> list[ir.AffineExpr]:
    """The indices of an operand."""
    sizes = type_of(operand).dims if isinstance(operand.type, ir.RankedTensorType) else ()
    return list(map(unwrapped, m.results, sizes))


def _index(value: int) -> Expr:
    return Const(decode(value), "index")


def _extents(maps: list[ir.AffineMap], shapes: list[tuple[int, ...]], rank: int) -> tuple[int, ...]:
    """Loop extents: read off the operand dimensions indexed by a plain loop variable."""
    extents: list[int | None] = [None] * rank
    for m, shape in zip(maps, shapes, strict=True):
        for e, n in zip(m.results, shape, strict=True):
            if isinstance(e, ir.AffineDimExpr):
                extents[e.position] = n
    if None in extents:
        raise CompileError("a loop of a linalg operation has no extent", stage="schedule")
    return tuple(extents)  # type: ignore[arg-type]
