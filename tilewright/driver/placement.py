"""On which of several devices each kernel call runs (level 3, with fusion): by what devices can do, then by cost.

Every kernel is tried on every device: scheduled by the rules for its machine, and emitted. A device that refuses one
cannot have it. What the others take is estimated from their ceilings, the threads that a nest keeps busy, and launches;
values that cross take copies (`schedule.device_costs`). The least sum is found by minimal cuts (`program.partition`).
The option ``place`` pins calls to devices.

The result stands in the graph: kernels have an attribute ``tw.device``, one that runs on two devices is there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from torch_mlir import ir

from ..codegen.kernel_info import location_names
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import type_of
from ..program.partition import Crossing, partition, total
from ..schedule.ceilings import known
from ..schedule.device_costs import DeviceCosts
from ..schedule.rules import Scheduled
from ..schedule.rules import schedule as schedule_kernel
from ..schedule.work import work_of
from ..support.errors import ModelError, TilewrightError, UnsupportedError, UsageError
from ..targets.base import Target
from ..tensor.analysis import Node, source_of
from ..tensor.devices import devices_of, name_on, place_argument, place_on
from ..tensor.divide import symbol_of
from ..tensor.fuse import FusionReport
from ..tensor.kernel import Kernel
from ..tensor.read import read_kernel
from .device_pins import Pins
from .states import Found, find_states

if TYPE_CHECKING:
    from ..schedule.nest import Nest

#: the device that inputs come from and outputs go to
HOST = 0


@dataclass(frozen=True)
class Try:
    """A kernel on a device: its seconds, and how it is scheduled; or (infinity) why it cannot run there. Not
    `by_device`: nothing runs there."""

    seconds: float
    made: Scheduled | None = None
    why: str = ""
    by_device: bool = True


@dataclass
class Placement:
    """Where the kernels of a program went. By symbol, `why`, and `tried`: how it was scheduled when it was tried on its
    device. `seconds`: what a run is expected to take; `refused`: whether a device could not have a kernel."""

    seconds: float = 0.0
    refused: bool = False
    why: dict[str, str] = field(default_factory=dict)
    tried: dict[str, Scheduled] = field(default_factory=dict)

    def of(self, symbol: str) -> str:
        """Why a kernel is where it is; parts of one that was cut are there because the whole is."""
        return self.why.get(symbol, "a part of a kernel that was cut")


@dataclass(frozen=True)
class Placed:
    """Where calls run, as a target of several devices says it: by the attributes of a graph's kernels."""

    device_names: Sequence[str]
    numbers: Mapping[str, int]

    @staticmethod
    def of(graph: Graph, names: Sequence[str]) -> Placed:
        """ModelError if a kernel is on no device, or on one that there is not."""
        placed = devices_of(graph)
        if lost := [s for s, d in placed.items() if d not in names]:
            raise ModelError(
                f"kernel {lost[0]} is on {placed[lost[0]] or 'no device'}, and the target has {', '.join(names)}",
                stage="parse",
                hint="continue from what was dumped for this target, or from a stage before `fuse`",
            )
        return Placed(names, {s: list(names).index(d) for s, d in placed.items()})

    def place_call(self, symbol: str, names: Sequence[str]) -> int:
        return self.numbers[symbol]


def devices_in(graph: Graph, target: Target) -> Target | Placed | None:
    """Where the calls of a fused graph run; None for one device."""
    if target.members:
        return Placed.of(graph, target.device_names)
    return target if target.device_names else None


#: makes a fused graph, in which operations are kept apart that are for several devices
Fused = Callable[..., tuple[Graph, FusionReport]]


def place(
    fused: Fused, target: Target, threads: int, pins: Pins, states: Mapping[str, str | tuple[str, ...]] | None
) -> tuple[Graph, FusionReport, Placement]:
    """A fused graph whose kernels each have a device. Where a device refuses a kernel, what it can do of it is kept
    apart from what it cannot, if that is expected to be faster. UnsupportedError if an operation can run on no device,
    UsageError for pins that cannot be."""
    with use():
        trials = Trials(target, threads)
        first = _tried(fused, Apart(target, pins) if pins.devices else None, trials, pins, states)
        if not isinstance(first, TilewrightError) and not first[2].refused:
            return first
        second = _tried(fused, Apart(target, pins, trials), trials, pins, states)
        if isinstance(second, TilewrightError):
            if isinstance(first, TilewrightError):
                raise second
            return first
        return second if isinstance(first, TilewrightError) or second[2].seconds < first[2].seconds else first


def _tried(
    fused: Fused, apart: Apart | None, trials: Trials, pins: Pins, states: Mapping[str, str | tuple[str, ...]] | None
) -> tuple[Graph, FusionReport, Placement] | TilewrightError:
    """A fused graph with devices, or why there are none for it."""
    graph, report = fused(apart=apart)
    try:
        return graph, report, _place(graph, trials, pins, states)
    except (UnsupportedError, UsageError) as e:
        return e


def _place(graph: Graph, trials: Trials, pins: Pins, states: Mapping[str, str | tuple[str, ...]] | None) -> Placement:
    """Give every kernel of a fused graph a device."""
    names = trials.names
    functions = {symbol_of(f): f for f in graph.functions()}
    calls = [op for op in graph.operations() if op.name == "func.call"]
    tried = {s: trials.of(read_kernel(f)) for s, f in functions.items()}
    sources = [PlacedCall(_callee(c), location_names(c.location)) for c in calls]
    wanted = pins.of([(t.symbol, t.names) for t in sources], names)
    costs = [_costs(t, tried[t.symbol], w, names) for t, w in zip(sources, wanted, strict=True)]
    found = [s for s in find_states(graph, states) if s.input is not None]
    values = _values(graph, calls, found)
    # more tasks: the host, which makes the inputs and reads the outputs, and the states, which may lie anywhere
    tasks = [*costs, [0.0 if n == HOST else inf for n in range(len(names))], *([0.0] * len(names) for _ in found)]
    devices = partition(tasks, values, trials.copy)
    made = Placement(seconds=total(tasks, values, trials.copy, devices))
    for state, d in zip(found, devices[len(calls) + 1 :], strict=True):
        place_argument(graph, state.input or 0, names[d])
    devices = devices[: len(calls)]
    symbols = _mark(graph, functions, calls, [names[d] for d in devices])
    for t, symbol, d, w in zip(sources, symbols, devices, wanted, strict=True):
        made.why[symbol] = _why(tried[t.symbol], d, names, w is not None)
        made.refused |= any(x.seconds == inf and x.by_device for x in tried[t.symbol])
        scheduled = tried[t.symbol][d].made
        if scheduled is not None and symbol == t.symbol:
            made.tried[symbol] = scheduled
    if len(set(devices)) > 1:
        _together(graph, calls, devices)
    return made


@dataclass(frozen=True)
class Apart:
    """What `tensor.fuse` may join: not operations that are pinned to several devices; with `trials`, only those that
    the same devices can run, or the one that they are pinned to."""

    target: Target
    pins: Pins
    trials: Trials | None = None

    def __call__(self, nodes: Sequence[Node], alone: Callable[[Sequence[int]], Kernel]) -> Callable[..., bool]:
        names = self.target.device_names
        pinned = [self.pins.of_node(n.label, location_names(n.op.location), names) for n in nodes]
        able = None if self.trials is None else [self.trials.devices(alone([n.index])) for n in nodes]

        def together(several: Sequence[int]) -> bool:
            wanted = {pinned[n] for n in several} - {None}
            if able is None or len(wanted) > 1:
                return len(wanted) <= 1
            found = {able[n] for n in several}
            return all(w in f for w in wanted for f in found) if wanted else len(found) == 1

        return together


@dataclass(frozen=True)
class PlacedCall:
    """A call: its kernel, and the nodes of the source."""

    symbol: str
    names: tuple[str, ...]


# ---- what devices can do, and what it takes -------------------------------------------------------------------------


class Trials:
    """Kernels on all devices of a target; what was tried is known by its name, which is that of its text."""

    def __init__(self, target: Target, threads: int) -> None:
        self.names = list(target.device_names)
        self.members: list[Target | None] = list(target.members)
        self.machines = [None if m is None else m.describe() for m in self.members]
        self.costs: list[DeviceCosts | None] = [
            None if machine is None else machine.device_costs(threads).measured(known(m, threads if n == HOST else 1))
            for n, (m, machine) in enumerate(zip(self.members, self.machines, strict=True))
        ]
        self.known: dict[str, list[Try]] = {}

    def copy(self, a: int, b: int, nbytes: int) -> float:
        """Seconds of a copy: between two devices it goes by the host."""
        return sum(c.copy(nbytes) for n in (a, b) if n != HOST and (c := self.costs[n]) is not None)

    def of(self, kernel: Kernel) -> list[Try]:
        """A kernel on each device, by number."""
        if kernel.name not in self.known:
            self.known[kernel.name] = [self.on(kernel, n) for n in range(len(self.members))]
        return self.known[kernel.name]

    def devices(self, kernel: Kernel) -> frozenset[int]:
        """The devices that can run a kernel."""
        return frozenset(n for n, t in enumerate(self.of(kernel)) if t.seconds < inf)

    def on(self, kernel: Kernel, number: int) -> Try:
        member, machine, costs = self.members[number], self.machines[number], self.costs[number]
        if member is None or machine is None or costs is None:
            return Try(inf, why="it only keeps inputs and outputs", by_device=False)
        if number == HOST and kernel.opaque is None:  # it takes all, and its work needs no schedule to be counted
            return Try(_seconds(kernel, None, costs, 1))
        try:
            made = schedule_kernel(kernel, machine)
            threads = member.thread_count(made.nest, kernel.constants)
        except TilewrightError as e:
            return Try(inf, why=e.message)
        return Try(_seconds(kernel, made, costs, threads), made)


def _seconds(kernel: Kernel, made: Scheduled | None, costs: DeviceCosts, threads: int) -> float:
    """The estimate for a kernel; what its schedule computes again counts again."""
    nest = None if made is None else made.nest
    work = work_of(kernel, nest)
    written = sum(n for p, n in zip(_params(kernel, nest), work.touched, strict=True) if p in kernel.outputs)
    again = 1.0 if made is None or made.executed is None else max(made.executed.recomputation, 1.0)
    precision = _precision(kernel, work.precision)
    return costs.kernel(work.operations * again, sum(work.touched) - written, written, precision, threads)


def _params(kernel: Kernel, nest: Nest | None) -> list[str]:
    """The names of what `work_of` counts bytes of."""
    return [p.name for p in (kernel.params if kernel.opaque is None or nest is None else nest.params)]


def _precision(kernel: Kernel, counted: str) -> str:
    """What is multiplied: sums of halves are counted in f32."""
    halves = {b.dtype for b in kernel.inputs} & {"bf16", "f16"}
    wide = {b.dtype for b in kernel.inputs if b.size > 1} & {"f32", "f64"}
    return halves.pop() if counted == "f32" and halves and not wide else counted


# ---- the choice -----------------------------------------------------------------------------------------------------


def _costs(call: PlacedCall, tried: Sequence[Try], wanted: int | None, names: Sequence[str]) -> list[float]:
    """Seconds of a call by device; only one where it is pinned."""
    if wanted is not None:
        if tried[wanted].seconds == inf:
            raise UsageError(
                f"option 'place' puts it on {names[wanted]}, which cannot run it: {tried[wanted].why}",
                stage="fuse",
                operator=_operator(call),
                hint="leave it to another device",
            )
        return [t.seconds if n == wanted else inf for n, t in enumerate(tried)]
    if all(t.seconds == inf for t in tried):
        why = "; ".join(f"{n}: {t.why}" for n, t in zip(names, tried, strict=True))
        raise UnsupportedError(
            f"none of the devices can run it: {why}",
            stage="fuse",
            operator=_operator(call),
            hint="add the processor to the target: ...+cpu takes what others cannot",
        )
    return [t.seconds for t in tried]


def _operator(call: PlacedCall) -> str:
    return f"X (kernel {call.symbol})".strip()


def _why(tried: Sequence[Try], device: int, names: Sequence[str], pinned: bool) -> str:
    """Why a kernel is where it is, in words."""
    if pinned:
        return "pinned"
    refused = [f"{names[n]} cannot: {t.why}" for n, t in enumerate(tried) if t.seconds == inf and n != HOST]
    can = [n for n, t in enumerate(tried) if t.seconds < inf]
    if can == [device]:
        return "; ".join(refused) or "no other device could"
    times = ", ".join(f"{_time(tried[n].seconds)} on {names[n]}" for n in sorted(can, key=lambda n: n != device))
    near = "" if tried[device].seconds == min(t.seconds for t in tried) else "; copies would take longer"
    return "; ".join([f"{times}{near}", *refused])


def _time(seconds: float) -> str:
    """
    >>> _time(0.0021), _time(4.2e-7)
    ('2.1 ms', '0.42 us')
    """
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _callee(op: ir.Operation) -> str:
    return str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)


def _values(graph: Graph, calls: Sequence[ir.Operation], states: Sequence[Found]) -> list[Crossing]:
    """All values that calls read or give, with who makes them and who reads them: calls by number, then the host, then
    the states, which give their value and take the next one."""
    host = len(calls)
    task = {r: n for n, op in enumerate(calls) for r in op.results}
    task.update(dict.fromkeys(graph.block.arguments, host))
    task.update({graph.block.arguments[s.input or 0]: host + 1 + n for n, s in enumerate(states)})
    following = {s.output: host + 1 + n for n, s in enumerate(states)}
    readers: dict[ir.Value, list[int]] = {}
    for n, op in enumerate(calls):
        for v in map(source_of, op.operands):
            readers.setdefault(v, []).append(n)
    for position, v in enumerate(map(source_of, list(graph.operations())[-1].operands)):
        readers.setdefault(v, []).append(following.get(position, host))
    return [Crossing(task[v], tuple(r), type_of(v).nbytes) for v, r in readers.items() if v in task]


# ---- the graph ------------------------------------------------------------------------------------------------------


def _mark(
    graph: Graph, functions: Mapping[str, ir.OpView], calls: Sequence[ir.Operation], devices: Sequence[str]
) -> list[str]:
    """Let functions say where they run, with a copy for each further device; the new names of what is called."""
    placed: dict[str, str] = {}
    symbols = []
    for op, device in zip(calls, devices, strict=True):
        symbol = _callee(op)
        name = name_on(symbol, device, placed)
        if name not in placed:
            placed[name] = device
            f = functions[symbol]
            if name != symbol:
                f = f.operation.clone(ir.InsertionPoint(graph.main.operation))
                f.operation.attributes["sym_name"] = ir.StringAttr.get(name)
            place_on(f, device)
        op.attributes["callee"] = ir.FlatSymbolRefAttr.get(name)
        symbols.append(name)
    return symbols


def _together(graph: Graph, calls: Sequence[ir.Operation], devices: Sequence[int]) -> None:
    """Order calls so that a device runs all that it can before another one does: fewer copies and fewer launches."""
    number = {op: n for n, op in enumerate(calls)}
    needs = []
    for op in calls:
        sources = [source_of(v) for v in op.operands]
        makers = (v.owner.operation for v in sources if not isinstance(v.owner, ir.Block))
        needs.append({number[m] for m in makers if m in number})
    readers: list[list[int]] = [[] for _ in calls]
    for n, needed in enumerate(needs):
        for m in needed:
            readers[m].append(n)
    end = list(graph.operations())[-1]
    missing, here, moved = [len(x) for x in needs], HOST, set[ir.Operation]()
    ready: dict[int, list[int]] = {d: [] for d in devices}  # heaps, by device
    for n in (n for n, count in enumerate(missing) if not count):
        heappush(ready[devices[n]], n)
    while any(ready.values()):
        if not ready.get(here):
            here = min((heap[0], d) for d, heap in ready.items() if heap)[1]
        n = heappop(ready[here])
        _move(calls[n], end, moved)
        for r in readers[n]:
            missing[r] -= 1
            if not missing[r]:
                heappush(ready[devices[r]], r)
    for v in end.operands:
        if not isinstance(v.owner, ir.Block):
            _move(v.owner.operation, end, moved)


def _move(op: ir.Operation, end: ir.Operation, moved: set[ir.Operation]) -> None:
    """Put a call before the end, behind the views and constants that it reads."""
    if op in moved:
        return
    moved.add(op)
    for v in op.operands:
        if not isinstance(v.owner, ir.Block) and v.owner.operation.name != "func.call":
            _move(v.owner.operation, end, moved)
    op.move_before(end)


__all__ = ["Fused", "Placed", "Placement", "devices_in", "place"]
