"""Turns groups of operations into private functions, one a kernel, and @main into calls; equal kernels become one
function."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_mlir import ir
from torch_mlir.dialects import func

from ..ir.graph import Graph
from .analysis import FREE, VIEWS, Analysis, Node
from .kernel import Kernel
from .read import read_kernel

if TYPE_CHECKING:
    from .fuse import Group

#: the kind of groups that another processor runs; their functions have the attribute ``tw.taken``
TAKEN = "taken"
_SLICES = VIEWS | {"tensor.extract_slice"}


def outline(graph: Graph, analysis: Analysis, groups: list[Group]) -> Graph:
    """A new module: ``@main`` with constants, views and calls, and the kernels it calls."""
    return _Outliner(graph, analysis, groups).run()


def outlined(graph: Graph, analysis: Analysis, group: Group) -> Kernel:
    """The kernel that a group becomes."""
    return _Outliner(graph, analysis, [group]).alone(group)


class _Outliner:
    def __init__(self, graph: Graph, analysis: Analysis, groups: list[Group]) -> None:
        self.graph, self.analysis, self.groups = graph, analysis, groups
        self.group_of = {analysis.nodes[n].op: g for g in groups for n in g.nodes}
        self.values: dict[ir.Value, ir.Value] = {}  # old @main value -> new one
        self.kernels: dict[str, str] = {}  # digest of a kernel's text -> symbol
        self.used: set[str] = set()

    def run(self) -> Graph:
        old = self.graph.main
        self.module = ir.Module.create()
        with ir.InsertionPoint(self.module.body), ir.Location.unknown():
            main = func.FuncOp("main", ir.TypeAttr(old.attributes["function_type"]).value)
            for name in ("arg_attrs", "res_attrs"):
                if name in old.attributes:
                    main.attributes[name] = old.attributes[name]
            entry = main.add_entry_block()
        self.main = main
        self.values.update(zip(self.graph.block.arguments, entry.arguments, strict=True))
        self.point = ir.InsertionPoint(entry)
        done: set[int] = set()
        for g in self.groups:
            self.emit(g, done)
        terminator = self.graph.block.operations[len(self.graph.block.operations) - 1]
        results = [self.value(v, done) for v in terminator.operands]
        with self.point, ir.Location.unknown():
            func.ReturnOp(results)
        return Graph(self.module, self.graph.constants)

    # ---- @main ----

    def value(self, v: ir.Value, done: set[int]) -> ir.Value:
        """The new value for an old one; constants and views are copied on first use, kernels called before their
        readers."""
        if v in self.values:
            return self.values[v]
        op = v.owner.operation
        g = self.group_of.get(op)
        if g is not None:
            self.emit(g, done)
            return self.values[v]
        operands = [self.value(o, done) for o in op.operands]
        copy = op.clone(self.point)
        for i, o in enumerate(operands):
            copy.operation.operands[i] = o
        self.values[v] = copy.operation.results[0]
        return self.values[v]

    def emit(self, g: Group, done: set[int]) -> None:
        if id(g) in done:
            return
        done.add(id(g))
        members, inputs, body, outputs = self.parts(g)
        arguments = [self.value(v, done) for v in inputs]
        name = self.kernel(members, inputs, body, outputs, arguments, g.kind == TAKEN)
        location = _fused_location([m.op.location for m in members])
        with self.point, location:
            call = func.CallOp([o.type for o in outputs], name, arguments)
        self.values.update(zip(outputs, call.operation.results, strict=True))

    def alone(self, g: Group) -> Kernel:
        """The kernel of a group, from a module that holds nothing else."""
        self.module = ir.Module.create()
        with ir.InsertionPoint(self.module.body), ir.Location.unknown():
            self.main = func.FuncOp("main", ([], []))
        members, inputs, body, outputs = self.parts(g)
        self.kernel(members, inputs, body, outputs, inputs)
        return read_kernel(self.module.body.operations[0])

    def parts(self, g: Group) -> tuple[list[Node], list[ir.Value], list[ir.Operation], list[ir.Value]]:
        """The operations that compute in a group, the outside values they read, all operations to copy, and the values
        that are used outside."""
        members = [self.analysis.nodes[n] for n in g.nodes]
        inside = {m.op for m in members}
        inputs: dict[ir.Value, None] = {}
        body: dict[ir.Operation, None] = {}
        for m in members:
            self.need(m.op.results[0], inside, inputs, body)
        outputs = [r for m in members for r in m.op.results if self.used_outside(r, inside)]
        return members, list(inputs), list(body), outputs

    def need(
        self, v: ir.Value, inside: set[ir.Operation], inputs: dict[ir.Value, None], body: dict[ir.Operation, None]
    ) -> None:
        """Collect the operations to copy for a value, and the outside values that they read."""
        owner = v.owner
        if isinstance(owner, ir.Block):
            inputs[v] = None
            return
        op = owner.operation
        if op in body:
            return
        name = op.name
        if op in inside or name in FREE or (name in _SLICES and self.comes_from(op, inside)):
            for o in _all_operands(op):
                self.need(o, inside, inputs, body)
            body[op] = None
        elif name == "tensor.extract_slice":
            self.need(op.operands[0], inside, inputs, body)
            body[op] = None
        else:
            inputs[v] = None

    def comes_from(self, op: ir.Operation, inside: set[ir.Operation]) -> bool:
        """Whether a view looks at a value made inside the kernel."""
        if isinstance(op.operands[0].owner, ir.Block):
            return False
        source = op.operands[0].owner.operation
        return source in inside or source.name in FREE or (source.name in _SLICES and self.comes_from(source, inside))

    def used_outside(self, value: ir.Value, inside: set[ir.Operation]) -> bool:
        for use in value.uses:
            user = self.top_level(use.owner.operation)
            if user in inside:
                continue
            if user.name in _SLICES:
                if self.used_outside(user.results[0], inside):
                    return True
                continue
            return True
        return False

    def top_level(self, op: ir.Operation) -> ir.Operation:
        """The operation of @main that holds `op` (which may be inside a linalg body)."""
        while op.parent.operation.name != "func.func":
            op = op.parent.operation
        return op

    # ---- kernels ----

    def kernel(
        self,
        members: Sequence[Node],
        inputs: Sequence[ir.Value],
        body: Sequence[ir.Operation],
        outputs: Sequence[ir.Value],
        arguments: Sequence[ir.Value],
        taken: bool = False,
    ) -> str:
        constant = [_is_constant(a) for a in arguments]
        with ir.InsertionPoint(self.module.body), ir.Location.unknown():
            function = func.FuncOp(
                "kernel", ([v.type for v in inputs], [o.type for o in outputs]), visibility="private"
            )
            empty = ir.DictAttr.get({})
            flag = ir.DictAttr.get({"tw.constant": ir.UnitAttr.get()})
            function.attributes["arg_attrs"] = ir.ArrayAttr.get([flag if c else empty for c in constant])
            block = function.add_entry_block()
        local: dict[ir.Value, ir.Value] = dict(zip(inputs, block.arguments, strict=True))
        with ir.InsertionPoint(block), ir.Location.unknown():
            for op in body:
                copy = op.clone().operation
                _remap(copy, local)
                local.update(zip(op.results, copy.results, strict=True))
            func.ReturnOp([local[o] for o in outputs])
        text = function.operation.get_asm(use_local_scope=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]  # of a kernel that may yet be taken, too (`alone`)
        key = digest + (TAKEN if taken else "")
        if key in self.kernels:
            function.operation.erase()
            return self.kernels[key]
        name = f"{'_'.join(_labels(members))}_{digest}"
        if name in self.kernels.values():  # the same, on another processor
            name += "_taken" if taken else "_left"
        if taken:
            function.attributes["tw.taken"] = ir.UnitAttr.get()
        function.attributes["sym_name"] = ir.StringAttr.get(name)
        function.operation.move_before(self.main.operation)
        self.kernels[key] = name
        return name


def _all_operands(op: ir.Operation) -> list[ir.Value]:
    """Operands of an operation and the outside values that its regions use."""
    found = list(op.operands)
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                for v in _all_operands(inner.operation):
                    owner = v.owner
                    scope = owner.owner if isinstance(owner, ir.Block) else owner.operation.parent
                    if scope.operation.name == "func.func" and v not in found:
                        found.append(v)
    return found


def _remap(op: ir.Operation, values: dict[ir.Value, ir.Value]) -> None:
    """Redirect operands, also inside regions, to the copies."""
    for i, o in enumerate(op.operands):
        if o in values:
            op.operands[i] = values[o]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                _remap(inner.operation, values)


def _is_constant(v: ir.Value) -> bool:
    if isinstance(v.owner, ir.Block):
        return _is_constant_argument(v)
    op = v.owner.operation
    while op.name in VIEWS:
        if isinstance(op.operands[0].owner, ir.Block):
            return _is_constant_argument(op.operands[0])
        op = op.operands[0].owner.operation
    return op.name == "tw.constant"


def _is_constant_argument(v: ir.Value) -> bool:
    """Whether an argument is marked as a constant: that of a kernel, of which parts are made."""
    function = v.owner.owner
    marks = function.attributes.get("arg_attrs", [])
    return any(i == ir.BlockArgument(v).arg_number and "tw.constant" in mark for i, mark in enumerate(marks))


def _labels(members: Sequence[Node]) -> list[str]:
    """A short readable name: the operators in order, each once, at most four."""
    labels = list(dict.fromkeys(m.label for m in members))
    return labels[:4]


def _fused_location(locations: list[ir.Location]) -> ir.Location:
    unique = list(dict.fromkeys(locations))
    return unique[0] if len(unique) == 1 else ir.Location.fused(unique)
