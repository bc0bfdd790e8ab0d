"""Analysis for fusion: stages and kinds of the operations of a level-3 function, and how they index each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_mlir import ir

from ..ir import dialect
from ..ir.types import type_of
from ..support.budget import check_time
from ..support.sizes import ordered
from .expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    Var,
    from_linear,
    linear,
    loads,
    rebuild,
    simplify,
    substitute,
    transform,
)
from .kernel import Stage
from .mixed_radix import Digit, loop_digits, position_digits
from .read import Reader

#: operations that belong to no kernel of their own: they are copied into every kernel that uses them
FREE = {"arith.constant", "tensor.empty", "linalg.fill"}
VIEWS = {"tensor.collapse_shape", "tensor.expand_shape"}


@dataclass
class Node:
    """One operation that computes: its stages, the values it reads (through views) and who uses it."""

    index: int
    op: ir.Operation
    kind: str  # injective | reduction | contraction | copy | opaque
    stages: list[Stage]
    result: str  # buffer name of its (first) result
    label: str
    producers: set[int] = field(default_factory=set)
    consumers: set[int] = field(default_factory=set)
    escapes: bool = False  # used by the function's return

    @property
    def stage(self) -> Stage:
        return self.stages[0]


class Analysis(Reader):
    """Reads a whole function as stages, remembering which operation made which buffer."""

    def __init__(self, function: ir.OpView) -> None:
        super().__init__(function, in_kernel=False)
        self.nodes: list[Node] = []
        self.maker: dict[str, int] = {}  # buffer -> node index
        self.shapes: dict[str, Buffer] = {}
        self.opaque_reads: dict[int, list[Load]] = {}
        block = function.regions[0].blocks[0]
        for i, a in enumerate(block.arguments):
            self.bind(a, self._shape(Buffer(f"arg{i}", type_of(a).dims, type_of(a).dtype)))
        for op in block.operations:
            check_time("fuse")
            self._visit(op.operation)

    def _shape(self, b: Buffer) -> Buffer:
        self.shapes[b.name] = b
        return b

    def _visit(self, op: ir.Operation) -> None:
        if op.name == "tw.constant":
            t = type_of(op.results[0])
            self.bind(op.results[0], self._shape(Buffer(f"c{len(self.shapes)}", t.dims, t.dtype)))
            return
        if op.name == "func.return":
            for v in op.operands:
                for b in self.sources(v):
                    if b in self.maker:
                        self.nodes[self.maker[b]].escapes = True
            return
        first, made = len(self.stages), len(self.buffers)
        self.operation(op)
        if op.name in FREE | VIEWS or op.name == "tensor.extract_slice":
            return
        for buffer in self.buffers[made:]:
            self._shape(buffer)
            self.maker[buffer.name] = len(self.nodes)
        node = Node(
            len(self.nodes), op, self._kind(op, first), self.stages[first:], self.names[op.results[0]], _label(op)
        )
        reads = {x.buffer for x in self.opaque_reads.get(node.index, [])}.union(*[s.reads for s in node.stages])
        for b in reads:
            maker = self.maker.get(b)
            if maker is not None and maker != node.index:
                node.producers.add(maker)
                self.nodes[maker].consumers.add(node.index)
        self.nodes.append(node)

    def _kind(self, op: ir.Operation, first: int) -> str:
        if op.name.startswith("tw."):
            return "opaque"
        if op.name in ("tensor.concat", "tensor.insert_slice") or len(op.results) != 1:
            return "copy" if op.name != "linalg.generic" else "opaque"
        stage = self.stages[first]
        if stage.targets[0].init is None:
            return "injective"
        return "contraction" if is_contraction(stage) else "reduction"

    def sources(self, v: ir.Value) -> set[str]:
        """Buffers that a value reads: itself, or what it is a view of."""
        if v in self.names:
            return {self.names[v]}
        if v in self.refs:
            index = tuple(Const(0, "index") for _ in type_of(v).dims)
            return {x.buffer for x in loads(self.refs[v](index))}
        return set()

    def op_opaque(self, op: ir.Operation) -> None:
        """Only the reads are recorded: fusion wants to know how each operand is indexed."""
        reads: list[Load] = []
        for v in dialect.arguments(op):
            if v is not None:
                index = tuple(Var(f"o{d}") if n != 1 else Const(0, "index") for d, n in enumerate(type_of(v).dims))
                reads += loads(self.refs[v](index))
        self.opaque_reads[len(self.nodes)] = reads
        for r in op.results:
            self.temporary(r)


def source_of(v: ir.Value) -> ir.Value:
    """What a value is a view of."""
    while not isinstance(v.owner, ir.Block) and v.owner.operation.name in VIEWS:
        v = v.owner.operation.operands[0]
    return v


def _label(op: ir.Operation) -> str:
    if "tw.op" in op.attributes:
        return ir.StringAttr(op.attributes["tw.op"]).value
    return (
        op.name.split(".")[1]
        if op.name.startswith("tw.")
        else {"tensor.concat": "concat", "tensor.pad": "pad"}.get(op.name, "op")
    )


def is_contraction(stage: Stage) -> bool:
    """acc + (product of two or more tensors), summed over at least one loop."""
    t = stage.targets[0]
    v = t.value
    if len(stage.targets) != 1 or not isinstance(v, Op) or v.op not in ("addf", "addi"):
        return False
    for acc, product in (v.args, v.args[::-1]):
        if isinstance(acc, Load) and acc.buffer == t.buffer:
            return _is_product(product) and len(loads(product)) >= 2
    return False


def _is_product(e: Expr) -> bool:
    while isinstance(e, Op) and e.op in ("extf", "extsi", "extui", "truncf", "sitofp"):
        e = e.args[0]
    return isinstance(e, Op) and e.op in ("mulf", "muli")


def movement(stage: Stage) -> bool:
    """Whether a stage only moves data: its value is a load at indices that are arithmetic of loop variables."""
    v = stage.targets[0].value
    return isinstance(v, Load) and not looked_up(v)


def looked_up(x: Load) -> bool:
    """Whether data says which element is read (a table, an embedding): neighbours are gathered along any loop."""
    return any(loads(i) for i in x.indices)


def widening(stage: Stage) -> bool:
    """Whether a stage only converts halves to f32, which their reader can do as it reads them."""
    v = stage.targets[0].value
    return isinstance(v, Op) and v.op == "extf" and isinstance(v.args[0], Load) and len(stage.targets) == 1


def flat(buffer: Buffer, indices: Sequence[Expr]) -> Expr:
    """The row-major position of an element."""
    total: Expr = Const(0, "index")
    for i, s in zip(indices, buffer.strides, strict=True):
        total = total + i * s
    return total


def loads_of(stage: Stage, buffer: str) -> list[Load]:
    """Distinct loads of a buffer in a stage's values."""
    found = (x for t in stage.targets for x in loads(t.value) if x.buffer == buffer)
    return list(dict.fromkeys(found))


def mixed_radix(e: Expr, extents: dict[str, int], size: int) -> list[tuple[str, int]] | None:
    """If e enumerates 0..size-1 once over its variables: (variable, coefficient) from the largest coefficient down."""
    terms, constant = linear(simplify(e, {v: (0, n - 1) for v, n in extents.items()}))
    if constant or not all(isinstance(t, Var) and t.name in extents for t in terms):
        return None
    order = ordered(((t.name, c) for t, c in terms.items() if isinstance(t, Var)), lambda x: -x[1])
    step = 1
    for name, c in reversed(order):
        if c != step:
            return None
        step *= extents[name]
    return order if step == size else None


def reindex(stage: Stage, source: Buffer) -> Stage | None:
    """An injective stage that reads each element of `source` once, rewritten to loop over the elements of `source`.

        y[b, h, s, d] = f(x[s, h*64 + d])     ->     y[b, n // 64, m, n % 64] = f(x[m, n])
        y[j] = f(x[j // 3 % 2, j // 6, j % 3])     ->     y[n*6 + m*3 + p] = f(x[m, n, p])

    None if the stage does not read `source` at exactly one place, element for element (see `reads_each_once`).
    """
    digits = reads_each_once(stage, source)
    if digits is None:
        return None
    new = [(f"{'mnpqrstu'[d % 8]}{d // 8 or ''}_{stage.name}", n) for d, n in enumerate(source.shape) if n != 1]
    variables = iter(Var(n) for n, _ in new)
    plain = tuple(Const(0, "index") if n == 1 else next(variables) for n in source.shape)
    position = flat(source, plain)
    ranges = {n: (0, e - 1) for n, e in new}
    number, of, within = _number(digits), {}, {f"d{k}": (0, d.extent - 1) for k, d in enumerate(digits)}
    for k, d in enumerate(digits):
        of[f"d{k}"] = simplify((position // d.place) % d.extent, ranges)
    values = {}
    for name, d in loop_digits(stage.dims).items():
        values[name] = simplify(substitute(simplify((number // d.low) % d.extent, within), of), ranges)
    t = stage.targets[0]

    def visit(x: Expr, args: tuple[Expr, ...]) -> Expr:
        if isinstance(x, Load) and x.buffer == source.name:
            return Load(x.buffer, plain, x.dtype)
        return simplify(rebuild(x, args), ranges) if x.dtype == "index" else rebuild(x, args)

    def rewrite(e: Expr) -> Expr:
        return transform(substitute(e, values), visit)

    target = type(t)(t.buffer, tuple(rewrite(i) for i in t.indices), rewrite(t.value), None)
    return Stage(stage.name, tuple(new), (target,), ())


def reads_each_once(stage: Stage, source: Buffer) -> list[Digit] | None:
    """The place of the element of `source` that an iteration of an injective stage reads, if there is one and each
    element is read once."""
    reads = loads_of(stage, source.name)
    if len(reads) != 1 or stage.reduction or len(stage.targets) != 1:
        return None
    return position_digits(flat(source, reads[0].indices), stage.dims, source.size)


def _number(digits: list[Digit]) -> Expr:
    """The number of an iteration of the digits d0, d1 ..., largest first."""
    total: Expr = Const(0, "index")
    for d, k in ordered(((d, k) for k, d in enumerate(digits)), lambda x: -x[0].low):
        total = total + Var(f"d{k}") * d.low
    return total


def row_of(stage: Stage, buffer: Buffer) -> Expr:
    """The flat position of the element a reduction writes: its row."""
    return from_linear(*linear(flat(buffer, stage.targets[0].indices)))
