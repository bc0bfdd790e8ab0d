"""From a fused graph and its compiled kernels to a program: buffers, constants in the layouts kernels want, the memory
plan."""

from __future__ import annotations

from collections import Counter

import numpy as np
from torch_mlir import ir

from ..codegen.kernel_info import KernelInfo, location_names, pack_array
from ..ir.graph import Graph
from ..ir.types import Type, type_of
from ..program.order import best_order
from ..program.plan import Step, Value, plan_memory
from ..program.program import ALIGN, COPY, BufferRef, Call, Program, TensorInfo
from ..schedule.nest import Pack
from ..support.errors import CompileError
from ..support.huge_pages import Pool, release_pages
from ..tensor.analysis import VIEWS


def build_program(
    graph: Graph, kernels: dict[str, KernelInfo], *, align: int = ALIGN, minimize: bool = False, consume: bool = False
) -> tuple[Program, list[np.ndarray]]:
    """The program of a fused graph, and its constants as arrays in the order of ``program.constants``.

    Buffers of the arena lie at multiples of `align`; with `minimize` the kernels are called in the order that needs the
    smallest arena, in which their scratch memory lies too. With `consume` the graph's constants go as they are packed:
    the graph cannot be used afterwards.
    """
    return _Builder(graph, kernels, align, minimize, consume).run()


class _Builder:
    def __init__(self, graph: Graph, kernels: dict[str, KernelInfo], align: int, minimize: bool, consume: bool) -> None:
        self.graph, self.kernels, self.align, self.minimize = graph, kernels, align, minimize
        self.uses: dict[str, int] | None = self.count_uses() if consume else None
        self.values: list[Value] = []
        self.pool = Pool()
        self.ids: dict[ir.Value, int] = {}
        self.constants: list[np.ndarray] = []
        self.infos: list[TensorInfo] = []
        self.constant_ids: dict[tuple, int] = {}
        self.calls: list[tuple[str, list[int], list[int], tuple[str, ...]]] = []

    def run(self) -> tuple[Program, list[np.ndarray]]:
        inputs, outputs = self.graph.inputs(), self.graph.outputs()
        for i, (argument, (_, t)) in enumerate(zip(self.graph.block.arguments, inputs, strict=True)):
            self.ids[argument] = self.value(Value(t.nbytes, home=("input", i)))
        returned: list[int] = []
        for op in self.graph.operations():
            if op.name == "func.call":
                self.call(op)
            elif op.name == "func.return":
                returned = [self.id_of(v) for v in op.operands]
            elif op.name in VIEWS and not self.is_constant(op.results[0]):
                result = op.results[0]
                self.ids[result] = self.value(Value(type_of(result).nbytes, view_of=self.id_of(op.operands[0])))
        self.scratch = [self.scratch_value(c) for c in self.calls]
        steps = [self.step(c, s) for c, s in zip(self.calls, self.scratch, strict=True)]
        if self.minimize:
            order = best_order(self.values, steps, returned, self.align).steps
            self.calls, steps = [self.calls[i] for i in order], [steps[i] for i in order]
            self.scratch = [self.scratch[i] for i in order]
        plan = plan_memory(self.values, steps, returned, self.align, tight=self.minimize)
        calls = [self.place(c, plan.refs, s) for c, s in zip(self.calls, self.scratch, strict=True)]
        calls += [Call(COPY, pair, (1,)) for pair in plan.copies]
        scratch = 0 if self.minimize else max((self.kernels[c[0]].scratch for c in self.calls), default=0)
        program = Program(
            tuple(_info(n, t) for n, t in inputs),
            tuple(_info(n, t) for n, t in outputs),
            tuple(self.infos),
            tuple(calls),
            plan.arena_size,
            scratch,
            plan.bound,
        )
        return program, self.constants

    def value(self, v: Value) -> int:
        self.values.append(v)
        return len(self.values) - 1

    def id_of(self, v: ir.Value) -> int:
        if v not in self.ids:
            self.ids[v] = self.constant(v, None)
        return self.ids[v]

    # ---- constants ----

    def is_constant(self, v: ir.Value) -> bool:
        while not isinstance(v.owner, ir.Block) and v.owner.operation.name in VIEWS:
            v = v.owner.operation.operands[0]
        return not isinstance(v.owner, ir.Block) and v.owner.operation.name == "tw.constant"

    def constant(self, v: ir.Value, pack: Pack | None) -> int:
        """The value id of a constant, packed if its reader wants it so; equal ones are shared."""
        t, source = type_of(v), v
        while source.owner.operation.name in VIEWS:
            source = source.owner.operation.operands[0]
        attrs = source.owner.operation.attributes
        name = ir.StringAttr(attrs["symbol"]).value if "symbol" in attrs else str(attrs["value"])
        key = (name, t.shape if pack else t.size, None if pack is None else (pack.splits, pack.order, pack.repeats))
        if key not in self.constant_ids:
            array = self.graph.constant_value(source)
            if array is None:
                raise CompileError("a kernel wants a constant that is not one", stage="package", operator=str(v))
            stored = array
            array = pack_array(array.reshape(t.dims), pack, self.pool) if pack else np.ascontiguousarray(array)
            if pack:
                release_pages(stored)
            del stored
            self.constants.append(array)
            self.infos.append(
                TensorInfo(name if len(name) < 200 else "constant", array.shape, _info("", _array_type(array)).dtype)
            )
            home = ("constant", len(self.constants) - 1)
            self.constant_ids[key] = self.value(Value(array.nbytes, home=home))
        if self.uses is not None and name in self.uses:
            self.uses[name] -= 1
            if not self.uses[name]:
                self.graph.constants.discard(name)
        return self.constant_ids[key]

    def count_uses(self) -> dict[str, int]:
        """How often `constant` will be asked for each symbol."""
        ops = [op for op in self.graph.operations() if op.name in ("func.call", "func.return")]
        found = Counter(self.symbol_of(v) for op in ops for v in op.operands if self.is_constant(v))
        return {name: n for name, n in found.items() if name}

    def symbol_of(self, v: ir.Value) -> str:
        """The symbol of the constant that a value is (a view of); "" if it stands in the IR."""
        while v.owner.operation.name in VIEWS:
            v = v.owner.operation.operands[0]
        attrs = v.owner.operation.attributes
        return ir.StringAttr(attrs["symbol"]).value if "symbol" in attrs else ""

    # ---- calls ----

    def call(self, op: ir.Operation) -> None:
        symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        info = self.kernels[symbol]
        reads = []
        for i, v in enumerate(op.operands):
            pack = info.packs.get(i)
            reads.append(self.constant(v, pack) if self.is_constant(v) else self.id_of(v))
        writes = []
        for r in op.results:
            self.ids[r] = self.value(Value(type_of(r).nbytes))
            writes.append(self.ids[r])
        self.calls.append((symbol, reads, writes, location_names(op.location)))

    def scratch_value(self, call: tuple[str, list[int], list[int], tuple[str, ...]]) -> int | None:
        """The scratch memory of a call as a value that lives during its step only."""
        size = self.kernels[call[0]].scratch
        return self.value(Value(size)) if self.minimize and size else None

    def step(self, call: tuple[str, list[int], list[int], tuple[str, ...]], scratch: int | None) -> Step:
        symbol, reads, writes, _ = call
        first = len(reads)
        inplace = tuple((o - first, i) for o, i in self.kernels[symbol].inplace)
        return Step(tuple(reads), (*writes, *([] if scratch is None else [scratch])), inplace)

    def place(
        self,
        call: tuple[str, list[int], list[int], tuple[str, ...]],
        refs: tuple[BufferRef, ...],
        scratch: int | None,
    ) -> Call:
        symbol, reads, writes, names = call
        args = tuple(refs[v] for v in (*reads, *writes))
        own = None if scratch is None else refs[scratch]
        kernel = self.kernels[symbol]
        writes_at = tuple(range(len(reads), len(args)))
        return Call(symbol, args, writes_at, names, kernel.parallel, own, kernel.pieces)


def _info(name: str, t: Type) -> TensorInfo:
    return TensorInfo(name, t.dims, t.dtype)


def _array_type(array: np.ndarray) -> Type:
    from ..ir.types import from_array

    return from_array(array)
