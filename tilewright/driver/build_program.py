"""Assembles the program of a fused graph and its compiled kernels: buffers, packed constants, the memory plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from torch_mlir import ir

from ..codegen.kernel_info import KernelInfo, location_names, pack_array, packed_shape
from ..ir.graph import Graph
from ..ir.types import Type, type_of
from ..program.open_plan import plan_open
from ..program.open_sizes import SizeTable
from ..program.order import best_order
from ..program.plan import CallEffects, MemoryPlan, StorageValue, plan_memory
from ..program.program import ALIGN, COPY, BufferRef, Call, DeviceInfo, Growth, Program, StateInfo, TensorInfo
from ..program.small_calls import Effort, with_small_calls
from ..schedule.nest import Pack
from ..schedule.open_nest import typical_sizes
from ..schedule.primitives.memory import keeps_order
from ..support.aligned import address, aligned_copy
from ..support.errors import CompileError
from ..support.formulas import formula
from ..support.huge_pages import HugePagePool, release_pages
from ..support.lazy_array import LazyArray, Stored
from ..support.sizes import current, highest, value_at
from ..targets.base import Target
from ..tensor.analysis import VIEWS, source_of
from ..tensor.devices import argument_device
from .open_program import open_plan
from .states import find_states

if TYPE_CHECKING:
    from .placement import Placed
    from .request import PackedBefore


def build_program(
    graph: Graph,
    kernels: dict[str, KernelInfo],
    *,
    align: int = ALIGN,
    minimize: bool = False,
    consume: bool = False,
    lazy: bool = False,
    states: Mapping[str, str] | None = None,
    devices: Target | Placed | None = None,
    growing: Mapping[str, Growth] | None = None,
    before: PackedBefore | None = None,
    small: int = 0,
) -> tuple[Program, list[np.ndarray]]:
    """The program of a fused graph, and its constants as arrays in the order of ``program.constants``.

    Buffers of the arena lie at multiples of `align`; with `minimize` the kernels are called in the order that needs the
    smallest arena, in which their scratch memory lies too. With `consume` the graph's constants go as they are packed:
    the graph cannot be used afterwards. With `lazy` those that are packed are each a `LazyArray`, whose elements are
    gone when the next one is read. `states`: inputs that live between runs -> the outputs that follow them.
    `growing`: those of them that grow in a buffer for their largest value. `devices` says which of several each call
    runs on; inputs and outputs are on the first, a state and a constant where they are used. `before`: what other
    entries of the package have packed. `small`: the most statements that a call runs which is not worth dividing
    (`program.small_calls`).
    """
    return _Builder(graph, kernels, align, minimize, consume, lazy, states, devices, growing or {}, before, small).run()


class _Builder:
    def __init__(
        self,
        graph: Graph,
        kernels: dict[str, KernelInfo],
        align: int,
        minimize: bool,
        consume: bool,
        lazy: bool,
        states: Mapping[str, str] | None,
        devices: Target | Placed | None,
        growing: Mapping[str, Growth],
        before: PackedBefore | None,
        small: int,
    ) -> None:
        self.graph, self.align, self.minimize, self.devices = graph, align, minimize, devices
        self.small = 0 if minimize else small
        self.kernels = {**kernels, COPY: KernelInfo()}
        self.here = 0  # the device of the call at hand
        self.copied: dict[tuple[int, int], int] = {}  # value, device -> its copy there
        self.begun: dict[int, int] = {}  # device -> its first call
        self.uses: dict[str, int] | None = self.count_uses() if consume else None
        self.signature = _Signature.of(graph, states, growing)
        self.values: list[StorageValue] = []
        self.before = before
        self.lazy, self.pool = lazy, HugePagePool(reused=lazy)
        self.ids: dict[ir.Value, int] = {}
        self.constants: list[np.ndarray] = []
        self.infos: list[TensorInfo] = []
        self.constant_ids: dict[tuple[object, ...], int] = {}
        self.calls: list[tuple[str, list[int], list[int], tuple[str, ...]]] = []

    def run(self) -> tuple[Program, list[np.ndarray]]:
        signature = self.signature
        arguments = zip(self.graph.block.arguments, signature.homes, self.graph.inputs(), strict=True)
        for number, (argument, home, (_, t)) in enumerate(arguments):
            where = 0 if home[0] == "input" else self.device_of_state(number, argument)
            self.ids[argument] = self.value(StorageValue(t.nbytes, home=home, device=where))
        returned: list[int] = []
        for op in self.graph.operations():
            if op.name == "func.call":
                self.call(op)
            elif op.name == "func.return":
                self.here = 0
                returned = [self.returned(i, self.id_of(v)) for i, v in enumerate(op.operands)]
            elif op.name in VIEWS and not self.is_constant(op.results[0]):
                result = op.results[0]
                source = self.id_of(op.operands[0])
                device = self.values[source].device
                self.ids[result] = self.value(StorageValue(type_of(result).nbytes, view_of=source, device=device))
        self.scratch = [self.scratch_value(c) for c in self.calls]
        steps = [self.step(c, s) for c, s in zip(self.calls, self.scratch, strict=True)]
        if self.minimize:
            largest = [replace(v, nbytes=highest(v.nbytes)) for v in self.values]  # where memory is scarce
            order = best_order(largest, steps, returned, self.align).steps
            self.calls, steps = [self.calls[i] for i in order], [steps[i] for i in order]
            self.scratch = [self.scratch[i] for i in order]
        plan, sizes = self.plan(steps, returned)
        calls = [self.place(c, plan.refs, s) for c, s in zip(self.calls, self.scratch, strict=True)]
        calls += [Call(COPY, pair, (1,), device=self.device_at(pair[1])) for pair in plan.copies]
        scratch = 0 if self.minimize else max((self.kernels[c[0]].scratch for c in self.calls), default=0)
        program = Program(
            signature.inputs,
            signature.outputs,
            tuple(self.infos),
            tuple(calls),
            plan.arena_size,
            scratch,
            plan.bound,
            tuple(
                replace(s, tensor=replace(s.tensor, device=self.state_device(i)), swapped=i in plan.swapped)
                for i, s in enumerate(signature.states)
            ),
            self.device_infos(plan.arenas),
            sizes,
        )
        program = with_small_calls(program, [self.effort(n, c) for n, c in enumerate(program.calls)], self.small)
        program.check()
        return program, self.constants

    def plan(self, steps: list[CallEffects], returned: list[int]) -> tuple[MemoryPlan, SizeTable | None]:
        following = self.signature.following
        if current() is None:
            return plan_memory(self.values, steps, returned, self.align, self.minimize, following), None
        signature = self.signature
        given = [t for (_, t), (space, _) in zip(self.graph.inputs(), signature.homes, strict=True) if space == "input"]
        made = [t for o, (_, t) in enumerate(self.graph.outputs()) if o not in following]
        plan = plan_open(self.values, steps, returned, following, self.align, self.minimize)
        return open_plan(*plan, given, made)

    def effort(self, number: int, call: Call) -> Effort | None:
        """What is known of what a call takes."""
        info = self.kernels[call.symbol]
        if info.iterations == -1 or (info.copies and any(call.args[o] != call.args[i] for o, i in info.inplace)):
            return None
        results = [self.values[v].nbytes for v in self.calls[number][2]]
        return info.iterations, tuple((formula(n), highest(n)) for n in results)

    def value(self, v: StorageValue) -> int:
        self.values.append(v)
        return len(self.values) - 1

    def id_of(self, v: ir.Value) -> int:
        if v not in self.ids:
            self.ids[v] = self.constant(v, None)
        return self.ids[v]

    # ---- devices ----

    def device_infos(self, arenas: tuple[int, ...]) -> tuple[DeviceInfo, ...]:
        names = self.devices.device_names if self.devices else ()
        return tuple(DeviceInfo(n, arenas[i] if i < len(arenas) else 0) for i, n in enumerate(names))

    def device_of(self, call: ir.Operation) -> int:
        symbol = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
        return self.devices.place_call(symbol, location_names(call.location)) if self.devices else 0

    def device_of_state(self, number: int, argument: ir.Value) -> int:
        """Where a state lies: as it was placed, else with the first call that reads it."""
        if self.devices and (placed := argument_device(self.graph, number)):
            return list(self.devices.device_names).index(placed)
        calls = (
            op
            for op in self.graph.operations()
            if op.name == "func.call" and argument in [source_of(v) for v in op.operands]
        )
        return next(map(self.device_of, calls), 0)

    def state_device(self, state: int) -> int:
        return next((v.device for v in self.values if v.home == ("state", state)), 0)

    def device_at(self, ref: BufferRef) -> int:
        """Where an output or a state lies."""
        return self.state_device(ref.index) if ref.space in ("state", "next") else 0

    def returned(self, position: int, value: int) -> int:
        state = self.signature.following.get(position)
        return self.brought(value, 0 if state is None else self.state_device(state))

    def brought(self, value: int, device: int) -> int:
        """The value on a device: itself, or a copy, which is made once."""
        if self.values[value].device == device:
            return value
        if (value, device) not in self.copied:
            made = self.copied[value, device] = self.value(StorageValue(self.values[value].nbytes, device=device))
            at = self.begun.get(device, len(self.calls)) if self.is_input(value) else len(self.calls)
            self.calls.insert(at, (COPY, [value], [made], ()))
            self.begun = {d: n + (n > at) for d, n in self.begun.items()}
        return self.copied[value, device]

    def is_input(self, value: int) -> bool:
        """Whether a value is there from the beginning: it comes to a device before that has begun."""
        while (source := self.values[value].view_of) is not None:
            value = source
        return (self.values[value].home or ("", 0))[0] == "input"

    # ---- constants ----

    def is_constant(self, v: ir.Value) -> bool:
        v = source_of(v)
        return not isinstance(v.owner, ir.Block) and v.owner.operation.name == "tw.constant"

    def constant(self, v: ir.Value, pack: Pack | None) -> int:
        """The value id of a constant, packed if its reader wants it so; equal ones are shared."""
        t, source = type_of(v), v
        while source.owner.operation.name in VIEWS:
            source = source.owner.operation.operands[0]
        attrs = source.owner.operation.attributes
        name = ir.StringAttr(attrs["symbol"]).value if "symbol" in attrs else str(attrs["value"])
        if pack is not None and t.dims and not any(pack.repeats) and keeps_order(t.dims, pack.splits, pack.order):
            pack = None
        form = None if pack is None else (pack.splits, pack.order, pack.repeats)
        key = (name, t.shape if pack else t.size, form, self.here)
        if key not in self.constant_ids:
            array = self.graph.stored_constant(source)
            if array is None:
                raise CompileError("a kernel wants a constant that is not one", stage="package", operator=str(v))
            called, dtype = name if len(name) < 200 else "constant", _array_type(array).dtype
            place: tuple[object, ...] = key
            if not pack:  # one array in two shapes is one
                array = array if isinstance(array, LazyArray) else np.ascontiguousarray(array)
                same: object = array.whole if isinstance(array, LazyArray) else address(array)
                place = (same, array.nbytes, dtype, self.here)
            if place not in self.constant_ids:
                array = self.packed(array, t.dims, pack) if pack else self.plain(array)
                self.constants.append(array)  # type: ignore[arg-type]  # `Package.constants` says who may have lazy ones
                self.infos.append(TensorInfo(called, array.shape, dtype, self.here))
                home = ("constant", len(self.constants) - 1)
                self.constant_ids[place] = self.value(StorageValue(array.nbytes, home=home, device=self.here))
            self.constant_ids[key] = self.constant_ids[place]
        if self.uses is not None and name in self.uses:
            self.uses[name] -= 1
            if not self.uses[name]:
                self.graph.constants.discard(name)
        return self.constant_ids[key]

    def packed(self, array: Stored, shape: tuple[int, ...], pack: Pack) -> Stored:
        def make() -> np.ndarray:
            read = np.asarray(array)
            made = pack_array(read.reshape(shape), pack, self.pool)
            release_pages(read)
            return made

        def stored() -> Stored:
            return LazyArray(packed_shape(shape, pack), array.dtype, make) if self.lazy else make()

        return self.shared(array, (shape, pack.splits, pack.order, pack.repeats), stored)

    def plain(self, array: Stored) -> Stored:
        if isinstance(array, np.ndarray):
            return array
        whole = array.whole if array.whole.dtype == array.dtype else array.whole.view(array.dtype)
        return self.shared(array, (), lambda: whole if self.lazy else aligned_copy(whole))

    def shared(self, array: Stored, form: tuple[object, ...], make: Callable[[], Stored]) -> Stored:
        """What `make` gives, or has given for another entry."""
        source = array.whole if isinstance(array, LazyArray) else array
        return make() if self.before is None else self.before.array(source, (array.dtype, *form), make)

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
        info, self.here = self.kernels[symbol], self.device_of(op)
        reads = []
        for i, v in enumerate(op.operands):
            pack = info.packs.get(i)
            reads.append(self.constant(v, pack) if self.is_constant(v) else self.brought(self.id_of(v), self.here))
        writes = []
        for r in op.results:
            self.ids[r] = self.value(StorageValue(type_of(r).nbytes, device=self.here))
            writes.append(self.ids[r])
        self.begun.setdefault(self.here, len(self.calls))
        self.calls.append((symbol, reads, writes, location_names(op.location)))

    def scratch_value(self, call: tuple[str, list[int], list[int], tuple[str, ...]]) -> int | None:
        """The scratch memory of a call as a value that lives during its step only."""
        size = self.kernels[call[0]].scratch
        return self.value(StorageValue(size)) if self.minimize and size else None

    def step(self, call: tuple[str, list[int], list[int], tuple[str, ...]], scratch: int | None) -> CallEffects:
        symbol, reads, writes, _ = call
        first = len(reads)
        inplace = tuple((o - first, i) for o, i in self.kernels[symbol].inplace)
        return CallEffects(tuple(reads), (*writes, *([] if scratch is None else [scratch])), inplace)

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
        device = self.values[writes[0]].device if writes else 0
        return Call(symbol, args, writes_at, names, kernel.parallel, own, kernel.pieces, device, kernel.sizes)


@dataclass(frozen=True)
class _Signature:
    """What the caller gives and gets, and the states. `homes`: where each argument of @main lies; `following`:
    positions of outputs of @main that are a state's next value."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    states: tuple[StateInfo, ...]
    homes: tuple[tuple[str, int], ...]
    following: dict[int, int]

    @staticmethod
    def of(
        graph: Graph, states: Mapping[str, str | tuple[str, ...]] | None, growing: Mapping[str, Growth]
    ) -> _Signature:
        found = find_states(graph, states)
        inputs, outputs = ([_info(n, t) for n, t in infos] for infos in (graph.inputs(), graph.outputs()))
        read = {s.input: number for number, s in enumerate(found) if s.input is not None}
        following = {s.output: number for number, s in enumerate(found) if s.output is not None}
        given = [i for i in range(len(inputs)) if i not in read]
        told = []
        for s in found:
            t = outputs[s.output or 0] if s.input is None else inputs[s.input]
            output = "" if s.output is None else outputs[s.output].name
            told.append(
                StateInfo(replace(t, name=s.name), output, read=s.input is not None, growth=growing.get(s.name))
            )
        return _Signature(
            tuple(inputs[i] for i in given),
            tuple(t for o, t in enumerate(outputs) if o not in following),
            tuple(told),
            tuple(("state", read[i]) if i in read else ("input", given.index(i)) for i in range(len(inputs))),
            following,
        )


def _info(name: str, t: Type) -> TensorInfo:
    typical = typical_sizes()
    return TensorInfo(name, tuple(value_at(d, typical) for d in t.dims), t.dtype)


def _array_type(array: Stored) -> Type:
    from ..ir.types import from_array

    return from_array(array)
