"""Which kernels run row by row (`tensor.row_chains`), for machines with little memory: chains that lower the arena's
peak.

Starting from single kernels, whatever is alive at the peak is lowered as far as it goes: by joining a kernel with those
around it, so that what lies between them never exists whole, or by copying the rows of its operand ahead into a ring,
so that its result may take the operand's place. What proves to be unnecessary for the peak that was reached is undone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, prod
from typing import TypeVar

from torch_mlir import ir
from torch_mlir.dialects import func

from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import type_of
from ..program.order import best_order
from ..program.plan import CallEffects, StorageValue, live_profile, plan_memory
from ..program.program import align_up
from ..schedule.finish import finish
from ..schedule.inplace import inplace_pairs
from ..schedule.machine import Machine
from ..schedule.nest import Alloc, Nest, Stmt, children
from ..schedule.rules import Scheduled, schedule
from ..support.dtypes import NUMPY
from ..support.sizes import Undecided, highest, typical
from ..tensor.analysis import VIEWS
from ..tensor.kernel import Kernel
from ..tensor.row_chains import Chain, RowKernel, chain, copy_rows, row_kernel

_T = TypeVar("_T")
#: how often a row must use each weight: a matrix's rows share theirs only if they run together
REUSE = 4
#: kernels joined in one step, and in one chain
JOINED, LONGEST = 4, 12
#: a chain that saves less than this part of the peak is not worth its instructions
WORTH = 1 / 50


@dataclass(frozen=True)
class Part:
    """Calls of @main, by number, that run as one; with `copies` rows of the first operand are copied ahead."""

    calls: tuple[int, ...]
    copies: bool = False

    @property
    def single(self) -> bool:
        return len(self.calls) == 1 and not self.copies


@dataclass(frozen=True)
class Streamed:
    """A chain with its schedule, its finished nest, pairs (output, input) of parameters that may share memory, and the
    bytes of its rings."""

    kernel: Chain
    scheduled: Scheduled
    nest: Nest
    inplace: tuple[tuple[int, int], ...]
    local: int


@dataclass
class _Call:
    op: ir.Operation
    symbol: str
    reads: list[int]
    writes: list[int]


@dataclass
class Streamer:
    """Decides for one graph. `kernels` and `nests` are those of its functions, by name."""

    graph: Graph
    kernels: Mapping[str, Kernel]
    nests: Mapping[str, Nest]
    machine: Machine
    align: int
    limit: int | None = None
    values: list[StorageValue] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)
    made: dict[tuple[object, ...], Streamed | None] = field(default_factory=dict)

    def run(self) -> list[tuple[Part, Streamed]]:
        """The chains to make; none if the graph is well as it is."""
        self.read()
        self.infos = {n: (inplace_positions(nest), local_bytes(nest.body)) for n, nest in self.nests.items()}
        cut = {n: decided(partial(row_kernel, k)) for n, k in self.kernels.items()}
        self.rows = {n: r for n, r in cut.items() if not isinstance(r, str) and self.worth(r)}
        if not self.rows:
            return []
        self.links = self.find_links()
        single = [Part((n,)) for n in range(len(self.calls))]
        order = best_order(self.values, [self.step(p)[0] for p in single], self.returned, self.align).steps
        self.place = {n: i for i, n in enumerate(order)}
        parts = self.undo(self.lower(single), single)
        return [(p, s) for p in parts if not p.single for s in [self.streamed(p)] if s is not None]

    # ---- the program ----

    def read(self) -> None:
        ids: dict[ir.Value, int] = {}

        def number(v: ir.Value) -> int:
            if v not in ids:  # a constant, or a view of one
                ids[v] = self.value(StorageValue(type_of(v).nbytes, home=("constant", len(self.values))))
            return ids[v]

        for i, a in enumerate(self.graph.block.arguments):
            ids[a] = self.value(StorageValue(type_of(a).nbytes, home=("input", i)))
        for op in self.graph.operations():
            if op.name == "func.call":
                reads = [number(v) for v in op.operands]
                for r in op.results:
                    ids[r] = self.value(StorageValue(type_of(r).nbytes))
                symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
                self.calls.append(_Call(op, symbol, reads, [ids[r] for r in op.results]))
            elif op.name in VIEWS:
                ids[op.results[0]] = self.value(
                    StorageValue(type_of(op.results[0]).nbytes, view_of=number(op.operands[0]))
                )
            elif op.name == "func.return":
                self.returned = [number(v) for v in op.operands]

    def value(self, v: StorageValue) -> int:
        """Of the largest sizes, where memory is scarce."""
        self.values.append(replace(v, nbytes=highest(v.nbytes)))
        return len(self.values) - 1

    def root(self, v: int) -> int:
        while (up := self.values[v].view_of) is not None:
            v = up
        return v

    def worth(self, row: RowKernel) -> bool:
        """Whether a row uses the weights often enough to read them anew for each."""
        return self.limit is not None or reuse(row) >= REUSE

    def find_links(self) -> dict[int, tuple[int, str]]:
        """Call -> (the only call that reads its only result, the parameter that does), where both have rows."""
        users: dict[int, list[tuple[int, int]]] = {}
        for n, c in enumerate(self.calls):
            for position, v in enumerate(c.reads):
                users.setdefault(self.root(v), []).append((n, position))
        kept = {self.root(v) for v in self.returned}
        found = {}
        for n, c in enumerate(self.calls):
            using = users.get(c.writes[0], []) if len(c.writes) == 1 and c.writes[0] not in kept else []
            if len(using) == 1 and {c.symbol, self.calls[using[0][0]].symbol} <= set(self.rows):
                reader, position = using[0]
                found[n] = reader, self.kernels[self.calls[reader].symbol].params[position].name
        return found

    # ---- chains ----

    def streamed(self, part: Part) -> Streamed | None:
        """The chain of a part; None if it cannot run row by row."""
        symbols = tuple(self.calls[n].symbol for n in part.calls)
        if not set(symbols) <= set(self.rows) or (part.copies and self.copied(part.calls[0]) is None):
            return None
        links = tuple(self.links[n][1] for n in part.calls[:-1])
        key = (symbols, links, part.copies)
        if key not in self.made:
            made = decided(lambda: self.build(symbols, links, part.copies))
            self.made[key] = None if isinstance(made, str) else made
        return self.made[key]

    def build(self, symbols: tuple[str, ...], links: tuple[str, ...], copies: bool) -> Streamed | None:
        kernels: list[Kernel] = [self.kernels[s] for s in symbols]
        taken: list[str | None] = [None, *links]
        if copies:
            operand = self.moving(symbols[0])[0]
            kernels, taken = [copy_rows(kernels[0], operand), *kernels], [None, operand, *links]
        digest = hashlib.sha256(repr((symbols, links, copies)).encode()).hexdigest()[:10]
        made = chain(f"rows_{symbols[-1].rsplit('_', 1)[0]}_{digest}", kernels, taken)
        if isinstance(made, str):
            return None
        scheduled = schedule(made, self.machine)
        nest = finish(scheduled.schedule.nest())
        return Streamed(made, scheduled, nest, inplace_positions(nest), local_bytes(nest.body))

    def moving(self, symbol: str) -> list[str]:
        """The operands of a kernel whose rows move with those of its result."""
        steps = self.rows[symbol].steps
        return [p.name for p in self.kernels[symbol].inputs if any(steps.get(p.name, ()))]

    def copied(self, call: int) -> int | None:
        """The position of the operand whose rows would be copied ahead; None if there is none."""
        symbol = self.calls[call].symbol
        names = [p.name for p in self.kernels[symbol].inputs]
        return next((names.index(n) for n in self.moving(symbol)), None)

    # ---- what is alive ----

    def step(self, part: Part, first: int | None = None) -> tuple[CallEffects, int]:
        """The step of a part, with the bytes of its rings as a value of its own; value `first` is free for that."""
        c = self.calls[part.calls[-1]]
        if part.single:
            pairs, local = self.infos[c.symbol]
            reads = c.reads
        else:
            streamed = self.streamed(part)
            assert streamed is not None
            pairs, local = streamed.inplace, streamed.local
            reads = [self.calls[n].reads[i] for n, i in self.operands(part)]
        own = (first,) if first is not None and local else ()
        return CallEffects(tuple(reads), (*c.writes, *own), tuple((o - len(reads), i) for o, i in pairs)), local

    def operands(self, part: Part) -> list[tuple[int, int]]:
        """(call, position) of what a chain takes, in the order of its parameters."""
        inside = {self.calls[n].writes[0] for n in part.calls[:-1]}
        found = [(n, i) for n in part.calls for i, v in enumerate(self.calls[n].reads) if self.root(v) not in inside]
        if part.copies:  # the operand that is copied comes first
            position = self.copied(part.calls[0])
            assert position is not None
            first = (part.calls[0], position)
            found = [first, *(f for f in found if f != first)]
        return found

    def program(self, parts: list[Part]) -> tuple[list[StorageValue], list[CallEffects]]:
        values, steps = list(self.values), []
        for p in self.ordered(parts):
            s, local = self.step(p, len(values))
            if local:
                values.append(StorageValue(local))
            steps.append(s)
        return values, steps

    def ordered(self, parts: list[Part]) -> list[Part]:
        """A chain stands where its last call stood: what it takes has been made, what takes its result comes later."""
        return sorted(parts, key=lambda p: self.place[p.calls[-1]])

    def profile(self, parts: list[Part]) -> list[int]:
        """The bytes alive during each part, in order."""
        return live_profile(*self.program(parts), self.returned, self.align)

    def fits(self, parts: list[Part]) -> bool:
        """Whether the limit is kept, as far as it can be said before kernels are emitted."""
        return self.limit is not None and (
            plan_memory(*self.program(parts), self.returned, self.align, tight=True).arena_size <= self.limit
        )

    # ---- the search ----

    def lower(self, parts: list[Part]) -> list[Part]:
        """Join and copy as long as that lowers what is alive at the peak."""
        while True:
            now = self.profile(parts)
            high = max(now)
            if self.fits(parts):
                return parts
            found = [
                (sorted(self.profile(new), reverse=True), self.cost(new), new)
                for p, live in zip(self.ordered(parts), now, strict=False)
                if live == high
                for new in self.around(parts, p)
            ]
            best = min(found, key=lambda f: f[:2], default=None)
            if best is None or best[0] >= sorted(now, reverse=True):
                return parts
            parts = best[2]

    def around(self, parts: list[Part], p: Part) -> Iterator[list[Part]]:
        """`parts` with some of those around `p` joined, with and without copies, or with `p` cut in two."""
        for cut in range(1, len(p.calls)):
            pieces = [Part(p.calls[:cut], p.copies), Part(p.calls[cut:])]
            if all(q.single or self.streamed(q) is not None for q in pieces):
                yield [*(q for q in parts if q is not p), *pieces]
        after = {q.calls[0]: q for q in parts}
        before = {self.links[q.calls[-1]][0]: q for q in parts if q.calls[-1] in self.links}
        line = [p]
        at = 0  # where p stands in the line
        while line[0].calls[0] in before and at < JOINED - 1:
            line, at = [before[line[0].calls[0]], *line], at + 1
        while line[-1].calls[-1] in self.links and len(line) - at < JOINED:
            reader = after.get(self.links[line[-1].calls[-1]][0])
            if reader is None:
                break
            line.append(reader)
        for i in range(at + 1):
            for j in range(at, len(line)):
                group = line[i : j + 1]
                calls = tuple(n for q in group for n in q.calls)
                if len(calls) > LONGEST or j - i >= JOINED or any(q.copies for q in group[1:]):
                    continue
                for new in (Part(calls), Part(calls, copies=True)):
                    found = None if new.single else self.streamed(new)
                    if found is not None and new not in group:
                        yield [*(q for q in parts if q not in group), new]
                    if found is not None and found.inplace:
                        break  # its result takes the operand's place without copies

    def cost(self, parts: list[Part]) -> int:
        """Which of two ways that need the same memory is better: bytes that are copied, then kernels in chains."""
        total = 0
        for p in parts:
            if p.copies:
                n, i = self.operands(p)[0]
                total += 16 * self.values[self.calls[n].reads[i]].nbytes
            total += 0 if p.single else len(p.calls)
        return total

    def undo(self, parts: list[Part], single: list[Part]) -> list[Part]:
        """Without what the peak does not need, the most expensive first."""
        peak, before = max(self.profile(parts)), max(self.profile(single))
        if peak >= before or self.fits(single):
            return single
        needed, allowed = self.fits(parts), peak + int(peak * WORTH)
        for p in sorted((p for p in parts if not p.single), key=lambda p: -self.cost([p])):
            rest = [q for q in parts if q is not p]
            for smaller in self.smaller(p):
                new = [*rest, *smaller]
                if self.fits(new) if needed else max(self.profile(new)) <= allowed:
                    parts = new
                    break
        return parts

    def smaller(self, p: Part) -> Iterator[list[Part]]:
        """A part in pieces: all single, without its ends, without copies."""
        yield [Part((n,)) for n in p.calls]
        pieces: list[list[Part]] = []
        for i in range(len(p.calls)):
            for j in range(i + 1, len(p.calls) + 1):
                copies = p.copies and i == 0
                options = {Part(p.calls[i:j], False), Part(p.calls[i:j], copies)}
                for middle in options:
                    if middle != p and not middle.single and self.streamed(middle) is not None:
                        ends = [Part((n,)) for n in (*p.calls[:i], *p.calls[j:])]
                        pieces.append([*ends, middle])
        yield from sorted(pieces, key=self.cost)


def decided(find: Callable[[], _T]) -> _T | str:
    """What a function finds; why not, if that hangs on sizes that are not known."""
    try:
        return find()
    except Undecided as e:
        return e.message


def reuse(row: RowKernel) -> float:
    """How often one row uses each number of the constants that it multiplies by."""
    least = inf
    for s in row.kernel.stages:
        used = [row.kernel.buffer(b).size for b in s.reads if b in row.kernel.constants]
        if s.reduction and used:
            least = min(least, typical(prod(s.extents.values())) / max(typical(sum(used)), 1))
    return least


def inplace_positions(nest: Nest) -> tuple[tuple[int, int], ...]:
    """`inplace_pairs` by the positions of the parameters."""
    positions = {p.name: i for i, p in enumerate(nest.params)}
    return tuple((positions[o], positions[i]) for o, i in inplace_pairs(nest))


def local_bytes(s: Stmt) -> int:
    """About how many bytes of scratch memory a nest needs."""
    below = [local_bytes(c) for c in children(s)]
    own = 0
    if isinstance(s, Alloc) and s.buffer.scope == "local":
        own = align_up(highest(s.buffer.size) * (8 if s.buffer.dtype == "index" else NUMPY[s.buffer.dtype].itemsize))
    return own + max(below, default=0)


# ---- the graph -----------------------------------------------------------------------------------------------------


def replace_calls(graph: Graph, calls: list[ir.Operation], streamed: Streamed, taken: list[tuple[int, int]]) -> None:
    """Make one call of several: the kernel of a chain as a function of its own, called with operands ``taken``: (which
    of the calls, position)."""
    name, last = streamed.kernel.name, calls[-1]
    operands = [calls[n].operands[i] for n, i in taken]
    if name not in {ir.StringAttr(f.attributes["sym_name"]).value for f in graph.functions()}:
        _function(graph, calls, name, taken)
    locations = list(dict.fromkeys(c.location for c in calls))
    location = locations[0] if len(locations) == 1 else ir.Location.fused(locations)
    with ir.InsertionPoint(last), location:
        new = func.CallOp([r.type for r in last.results], name, operands)
    for old, result in zip(last.results, new.operation.results, strict=True):
        old.replace_all_uses_with(result)
    for c in reversed(calls):
        _erase(c)


def _erase(op: ir.Operation) -> None:
    """Erase an operation and the views of its results, which nothing else uses."""
    for r in op.results:
        for u in list(r.uses):
            _erase(u.owner.operation)
    op.erase()


def _function(graph: Graph, calls: list[ir.Operation], name: str, taken: list[tuple[int, int]]) -> None:
    """The bodies of the kernels called, one behind the other."""
    bodies = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in graph.functions()}
    callees = [bodies[ir.FlatSymbolRefAttr(c.attributes["callee"]).value] for c in calls]
    last = calls[-1]
    with ir.InsertionPoint(graph.main), ir.Location.unknown():
        types = [calls[n].operands[i].type for n, i in taken]
        function = func.FuncOp(name, (types, [r.type for r in last.results]), visibility="private")
        flags = [_flags(callees[n], i) for n, i in taken]
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(flags)
        block = function.add_entry_block()
    arguments = dict(zip(taken, block.arguments, strict=True))
    values: dict[ir.Value, ir.Value] = {}
    with ir.InsertionPoint(block), ir.Location.unknown():
        for n, (c, callee) in enumerate(zip(calls, callees, strict=True)):
            given = [arguments.get((n, i)) or _inside(v, values) for i, v in enumerate(c.operands)]
            values.update(zip(c.results, _inlined(callee, given), strict=True))
        func.ReturnOp([values[r] for r in last.results])


def _flags(callee: ir.OpView, position: int) -> ir.Attribute:
    """What is said of an argument of a function: that it is a constant, or nothing."""
    return callee.attributes["arg_attrs"][position] if "arg_attrs" in callee.attributes else ir.DictAttr.get({})


def _inside(v: ir.Value, values: dict[ir.Value, ir.Value]) -> ir.Value:
    """The value of the function for one that a kernel of the chain made, through views."""
    if v not in values:
        source = _inside(v.owner.operation.operands[0], values)
        copy = v.owner.operation.clone().operation
        copy.operands[0] = source
        values[v] = copy.results[0]
    return values[v]


def _inlined(callee: ir.OpView, given: list[ir.Value]) -> list[ir.Value]:
    """Copies of a function's operations at the current point; what it returns."""
    from ..tensor.outline import _remap

    block = callee.regions[0].blocks[0]
    local: dict[ir.Value, ir.Value] = dict(zip(block.arguments, given, strict=True))
    for op in block.operations:
        if op.operation.name == "func.return":
            return [local[v] for v in op.operation.operands]
        copy = op.operation.clone().operation
        _remap(copy, local)
        local.update(zip(op.operation.results, copy.results, strict=True))
    raise AssertionError("a kernel without a return")


def stream(
    graph: Graph,
    kernels: dict[str, Kernel],
    nests: Mapping[str, Nest],
    machine: Machine,
    align: int,
    limit: int | None,
) -> list[Streamed]:
    """Replace calls of @main by chains where that lowers the arena's peak, or gets it below `limit` if that is given;
    returns the chains. Functions that are not called any more go."""
    with use():
        s = Streamer(graph, kernels, nests, machine, align, limit)
        made = s.run()
        for part, streamed in made:
            ops = [s.calls[n].op for n in part.calls]
            number = {n: i for i, n in enumerate(part.calls)}
            replace_calls(graph, ops, streamed, [(number[n], i) for n, i in s.operands(part)])
        called = {
            ir.FlatSymbolRefAttr(op.attributes["callee"]).value for op in graph.operations() if op.name == "func.call"
        }
        for f in graph.functions():
            if ir.StringAttr(f.attributes["sym_name"]).value not in called:
                f.operation.erase()
    return [streamed for _, streamed in made]
