"""Fusion: which operations of a level-3 function run as one kernel, and the functions that hold them.

Rules, by the kind of operation (`Node.kind`); every join keeps the graph of kernels acyclic:

- **epilogue**: an injective operation that reads the only result of a contraction (or opaque operation) element for
  element joins it.
- **rows**: reductions over the same rows, and injective operations on those rows, join (softmax, layer norm: one pass
  over each row).
- **padding**: a pad that is the only reader joins a contraction (or an opaque operation that writes its result once),
  which then writes into the inside of the padded tensor.
- **inline**: an injective operation with one reader joins its reader; into contractions and opaque kernels only if it
  merely moves data, or widens halves, and not into opaque ones that read their operands many times.
- **device**: operations that are for several devices (`apart`) do not join each other.
- **size**: no kernel grows beyond what is scheduled and emitted in little time (`kernel_size`).
- **taken**: what another processor claims is a kernel of its own there; nothing joins it.
- **chain**: a depthwise convolution joins the contractions before and behind it where its rule says so (`chains`).

Every kernel becomes a private ``func.func`` and @main a list of calls; equal kernels share one function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

from ..ir.graph import Graph
from ..support.budget import check_time
from ..support.sizes import Undecided, current
from .analysis import Analysis, Node, flat, loads_of, mixed_radix, movement, reads_each_once, reindex, row_of, widening
from .chains import Joiner, Joins
from .expr import Const, Expr, Load, Var, from_linear, linear, simplify, substitute, walk
from .kernel import Kernel
from .kernel_size import KernelSize

#: whose kernel an operation joins first: a contraction's epilogue is free, while its other operands can still be
#: inlined later
_PREFERENCE = ("contraction", "opaque", "reduction", "copy", "injective", "taken")
#: of a group's nodes: the kernel that they make alone
Alone = Callable[[Sequence[int]], Kernel]
#: groups as they would be made here -> those nodes that run together on another processor, a tuple a kernel
Claims = Callable[[Sequence[Sequence[int]], Alone], Sequence[Sequence[int]]]

#: whether nodes may run as one kernel, whatever they compute
Together = Callable[[Sequence[int]], bool]
#: the nodes of a graph, and the kernel that some of them make alone -> which of them may be one
Apart = Callable[[Sequence[Node], Alone], Together]

_ZERO = Const(0, "index")


@dataclass
class Group:
    """Nodes that become one kernel. `kind` is that of its anchor; `rows` maps node -> its row expression in a rows
    group."""

    nodes: list[int]
    kind: str
    tail: int
    rows: dict[int, Expr] = field(default_factory=dict)


@dataclass
class FusionReport:
    """Kernels made and why operations did not join their producers (node label -> reason)."""

    kernels: int = 0
    operations: int = 0
    reasons: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.operations} operations in {self.kernels} kernels"]
        return "\n".join(lines + [f"  {label}: {reason}" for label, reason in self.reasons])


class Fuser:
    """Decides the groups; `outline.outline` builds the functions."""

    def __init__(
        self,
        analysis: Analysis,
        writes_once: frozenset[str],
        reuses: frozenset[str],
        piece: int,
        taken: Sequence[Sequence[int]] = (),
        together: Together | None = None,
        paired: frozenset[str] = frozenset(),
    ) -> None:
        self.together, self.paired, self.size = together, paired, KernelSize(analysis)
        self.taken = {n: Group(sorted(nodes), "taken", max(nodes)) for nodes in taken for n in nodes}
        self.taken = {n: self.taken[g.nodes[0]] for n, g in self.taken.items()}
        self.a, self.nodes, self.writes_once, self.reuses = analysis, analysis.nodes, writes_once, reuses
        self.piece = piece
        self.group_of: dict[int, Group] = {}
        self.report = FusionReport(operations=len(self.nodes))

    def run(self) -> list[Group]:
        for node in self.nodes:
            check_time("fuse", node.label)
            if node.index in self.taken:
                self.group_of[node.index] = self.taken[node.index]
                continue
            self.group_of[node.index] = Group([node.index], node.kind, node.index, self._own_rows(node))
            self.forward(node)
        for g in {id(g): g for g in self.group_of.values() if g.kind == "reduction"}.values():
            self.one_end(g)
        for node in reversed(self.nodes):
            check_time("fuse", node.label)
            self.backward(node)
        found = {id(g): g for g in (self.group_of[node.index] for node in self.nodes)}
        self.report.kernels = len(found)
        return list(found.values())

    def _own_rows(self, node: Node) -> dict[int, Expr]:
        if node.kind != "reduction":
            return {}
        return {node.index: row_of(node.stage, self.a.shapes[node.result])}

    # ---- forward: join a producer's kernel ----

    def forward(self, node: Node) -> None:
        if node.kind not in ("injective", "reduction"):
            return
        reasons = []
        for p in sorted(node.producers, key=lambda p: (_PREFERENCE.index(self.group_of[p].kind), -p)):
            g = self.group_of[p]
            if g is self.group_of[node.index]:
                continue
            try:
                why = self.why_not_join(node, self.nodes[p], g)
            except Undecided as e:
                why = e.message
            if why is None:
                why = self.why_not_one(g, self.group_of[node.index])
            if why is None and self.cyclic(g, self.group_of[node.index]):
                why = "would make kernels wait for each other"
            if why is None:
                return self.join(g, node)
            reasons.append((node.label, f"not into {self.nodes[p].label}: {why}"))
        self.report.reasons += reasons

    def why_not_one(self, g: Group, h: Group) -> str | None:
        """None if the devices of two groups, and what they compute together, allow for one."""
        if self.together is not None and not self.together([*g.nodes, *h.nodes]):
            return "it runs on another device"
        return None if self.size.fits([*g.nodes, *h.nodes]) else "the kernel would hold too much"

    def why_not_join(self, node: Node, producer: Node, g: Group) -> str | None:
        """None if `node` may join `producer`'s group, else the reason."""
        if g.kind == "taken":
            return "another processor computes it"
        if g.kind == "reduction":
            return self.why_not_rows(node, g)
        if node.kind == "reduction":
            return "a reduction joins only kernels that work row by row"
        if g.tail != producer.index or producer.consumers != {node.index} or producer.escapes:
            return "its result is needed elsewhere"
        if producer.op.name == "tensor.pad" and g.kind != "injective":
            return "it writes a border around its result"
        if producer.op.name == "tensor.pad" and self.inlined_later(node):
            return "a contraction reads the padded tensor through it"
        if g.kind == "injective":
            return None
        once = g.kind == "opaque" and self.anchor_of(g) in self.writes_once
        if node.op.name == "tensor.pad" and (g.kind == "contraction" or once):
            return "its vectors lie across rows" if self.across_rows(producer, g) else None
        if g.kind == "copy":
            return "it writes its result piece by piece"
        if g.kind == "opaque" and not once:
            return "its loop nest reads its own result"
        if len(producer.op.results) != 1:
            return "it has several results"
        reads = reads_each_once if current() is None else reindex  # that may ask for sizes that are not known
        if reads(node.stage, self.a.shapes[producer.result]) is None:
            return "it does not read the result element for element"
        return "it would scatter the results" if self.scatters(node, producer) else None

    def scatters(self, node: Node, producer: Node) -> bool:
        """Whether neighbours in a producer's result are no neighbours in the result of a node that only moves data:
        a kernel that transposes is faster than one that writes its vectors element by element."""
        if not movement(node.stage) or len(node.stages) != 1:
            return False
        (read,) = loads_of(node.stage, producer.result)[:1]
        extents = dict(node.stage.dims)
        last = simplify(read.indices[-1], {v: (0, n - 1) for v, n in extents.items()}) if read.indices else _ZERO
        steps, _ = linear(last)
        run = next((v for v, step in steps.items() if step == 1), None)
        if not isinstance(run, Var) or extents.get(run.name, 1) < 4:
            return len(steps) > 1  # rows in pieces that are shorter than a vector
        terms, _ = linear(flat(self.a.shapes[node.result], node.stage.targets[0].indices))
        return terms.get(run, 0) != 1 or (len(steps) > 1 and extents[run.name] % self.piece != 0)

    def across_rows(self, tail: Node, g: Group) -> bool:
        """Whether the last loop of a contraction walks through several rows of its group's result (all pixels of an
        image as one): a border between the rows would cut its vectors into pieces."""
        row = self.a.shapes[tail.result].shape[-1:]
        last = [self.nodes[n].stage for n in g.nodes if self.nodes[n].kind == "contraction"][:1]
        inner = [s.extents[i.name] for s in last for i in s.targets[0].indices[-1:] if isinstance(i, Var)]
        return bool(row and inner) and inner[0] > row[0] and row[0] % self.piece != 0

    def inlined_later(self, node: Node) -> bool:
        """Whether a node only moves data for one contraction, which will read through it (see `backward`)."""
        readers = [self.nodes[c] for c in node.consumers]
        one = len(readers) == 1 and readers[0].kind == "contraction" and not node.escapes
        return one and movement(node.stage) and self.reads(readers[0], node) == 1

    def anchor_of(self, g: Group) -> str:
        """Mnemonic of the opaque operator of a group ("" for other opaque operations)."""
        return next((self.nodes[n].op.name[3:] for n in g.nodes if self.nodes[n].op.name.startswith("tw.")), "")

    def why_not_rows(self, node: Node, g: Group) -> str | None:
        if node.op.name == "tensor.pad":
            return "it writes a border around its result"
        row = self.row_in(node, g)
        if isinstance(row, str):
            return row
        if node.kind == "reduction":
            own = row_of(node.stage, self.a.shapes[node.result])
            if linear(own) != linear(row) or self.a.shapes[node.result].size != self.row_count(g):
                return "it reduces over other rows"
        return None

    def one_end(self, g: Group) -> None:
        """Let a kernel of rows end in one operation, which reads all that was made before: what else would end it, or
        would read only a part of what is needed elsewhere too (slices of a normalized tensor), leaves it again."""
        while True:
            inside = set(g.nodes)
            ends = [n for n in g.nodes if not self.nodes[n].consumers & inside]
            leaving = [n for n in ends if self.nodes[n].kind == "injective" and (len(ends) > 1 or self.part(n, inside))]
            if not leaving or len(leaving) == len(inside):
                return
            for n in leaving:
                self.group_of[n] = Group([n], "injective", n)
                g.rows.pop(n, None)
                self.report.reasons.append((self.nodes[n].label, "not into its rows: they are needed elsewhere too"))
            g.nodes = [n for n in g.nodes if n not in leaving]
            g.tail = max(g.nodes)

    def part(self, n: int, inside: set[int]) -> bool:
        """Whether an operation reads only a part of a result that is needed outside of its kernel as well."""
        node = self.nodes[n]
        made = [self.nodes[p] for p in node.producers & inside]
        outside = [p for p in made if p.escapes or p.consumers - inside]
        trips = prod(extent for _, extent in node.stage.dims)
        return any(p.kind == "injective" and trips < self.a.shapes[p.result].size for p in outside)

    def row_count(self, g: Group) -> int:
        first = next(n for n in g.nodes if self.nodes[n].kind == "reduction")
        return self.a.shapes[self.nodes[first].result].size

    def row_in(self, node: Node, g: Group) -> Expr | str:
        """The row of the group that an iteration of `node` works on, or why there is none."""
        found: Expr | None = None
        if len(node.stages) != 1:
            return "it writes its result piece by piece"
        ranges = {v: (0, n - 1) for v, n in node.stage.dims}
        for m in g.nodes:
            member = self.nodes[m]
            for read in loads_of(node.stage, member.result):
                row = self.row_at(member, g, read, ranges)
                if row is None:
                    return "it does not read whole rows in order"
                if found is not None and linear(found) != linear(row):
                    return "it reads different rows at once"
                found = row
        if found is None:
            return "it does not read the kernel's rows"
        variables = {x.name for x in walk(found) if isinstance(x, Var)}
        if variables & set(node.stage.reduction):
            return "it reduces over the rows"
        extents = {v: n for v, n in node.stage.dims if v in variables}
        if mixed_radix(found, extents, self.row_count(g)) is None:
            return "it does not work on each row once"
        return found

    def row_at(self, member: Node, g: Group, read: Load, ranges: dict[str, tuple[int, int]]) -> Expr | None:
        """The row of the element that `read` takes from a member's result."""
        stage = member.stage
        values = {}
        for target, index in zip(stage.targets[0].indices, read.indices, strict=True):
            if isinstance(target, Var):
                values[target.name] = index
            elif not isinstance(target, Const):
                return None
        row = g.rows[member.index]
        if not {x.name for x in walk(row) if isinstance(x, Var)} <= set(values):
            return None
        row = simplify(substitute(row, values), ranges)
        terms, _ = linear(row)
        return from_linear(terms, linear(row)[1]) if all(isinstance(t, Var) for t in terms) else None

    def join(self, g: Group, node: Node) -> None:
        if g.kind == "reduction":
            row = self.row_in(node, g)
            assert not isinstance(row, str)
            g.rows[node.index] = row
        old = self.group_of[node.index]
        g.nodes = sorted({*g.nodes, *old.nodes})
        g.tail = node.index
        for n in old.nodes:
            self.group_of[n] = g

    # ---- backward: injective kernels into their only reader ----

    def backward(self, node: Node) -> None:
        g = self.group_of[node.index]
        if g.kind != "injective" or g.tail != node.index or node.escapes or not node.consumers:
            return
        targets = {id(self.group_of[c]): self.group_of[c] for c in node.consumers}
        if len(targets) != 1:
            return
        (h,) = targets.values()
        if h is g or self.cyclic(h, g) or not self.may_inline(g, node, h) or self.why_not_one(h, g):
            return
        if h.kind == "reduction":
            for n in g.nodes:
                h.rows[n] = Const(0, "index")  # only the tail is read by others; its row follows from its readers
        h.nodes = sorted({*h.nodes, *g.nodes})
        for n in g.nodes:
            self.group_of[n] = h

    def may_inline(self, g: Group, node: Node, h: Group) -> bool:
        readers = [self.nodes[c] for c in node.consumers]
        if h.kind == "taken":
            return False
        if h.kind == "opaque" and self.anchor_of(h) in self.reuses:
            return False
        if h.kind in ("contraction", "opaque"):
            return (
                len(readers) == 1
                and all(movement(self.nodes[n].stage) or widening(self.nodes[n].stage) for n in g.nodes)
                and self.reads(readers[0], node) == 1
                and not self.turns_lanes(readers[0], node)
                and not self.turns_sum(readers[0], node)
                and not any(self.reverses(self.nodes[n]) for n in g.nodes)
            )
        if h.kind in ("injective", "copy"):
            return len(readers) == 1 and self.reads(readers[0], node) == 1
        if node.op.name == "tensor.pad" and any(self.in_windows(r, node) for r in readers):
            return False  # every element would be compared with the border again for each of its windows
        return all(self.plain(r, node) for r in readers)

    def in_windows(self, reader: Node, node: Node) -> bool:
        """Whether a stage reads an element of `node` several times, at sums of its loop variables."""
        loads = [x for s in reader.stages for x in loads_of(s, node.result)]
        return any(len(linear(i)[0]) > 1 for x in loads for i in x.indices)

    def turns_lanes(self, reader: Node, node: Node) -> bool:
        """Whether a contraction's operand is contiguous along the lanes of its result, but would not be if it read
        through a node that only moves data: one transpose is faster than gathering every vector. Not where the operand
        would lie along the sum: then the schedule lets lanes run that way, or turns round what a tile needs."""
        if not reader.stages or not movement(node.stage):
            return False
        target, (read, *_) = reader.stage.targets[0], loads_of(reader.stage, node.result)
        lanes = [t for t, c in linear(flat(self.a.shapes[target.buffer], target.indices))[0].items() if c == 1]
        if len(lanes) != 1 or linear(flat(self.a.shapes[node.result], read.indices))[0].get(lanes[0]) != 1:
            return False
        written = node.stage.targets[0].indices
        value = node.stage.targets[0].value
        assert isinstance(value, Load)
        ranges = {v: (0, n - 1) for v, n in node.stage.dims}
        along = linear(flat(self.a.shapes[value.buffer], [simplify(i, ranges) for i in value.indices]))[0]
        if along.get(written[-1], 0) == 1:
            return False
        near = [read.indices[d] for d, v in enumerate(written) if along.get(v, 0) == 1]
        summed = len(near) == 1 and isinstance(near[0], Var) and near[0].name in reader.stage.reduction
        return not (summed and self.a.shapes[value.buffer].dtype == "f32")

    def turns_sum(self, reader: Node, node: Node) -> bool:
        """Whether an operand of pairs (`paired`) is contiguous along a contraction's sum, but would not be if it were
        read through a node that only moves data: one transpose is much faster than products without pairs."""
        if not reader.stages or not movement(node.stage) or self.a.shapes[node.result].dtype not in self.paired:
            return False
        (read, *_) = loads_of(reader.stage, node.result)
        steps, _ = linear(flat(self.a.shapes[node.result], read.indices))
        run = next((v for v, step in steps.items() if step == 1 and isinstance(v, Var)), None)
        if run is None or run.name not in reader.stage.reduction:
            return False
        written, value = node.stage.targets[0].indices, node.stage.targets[0].value
        assert isinstance(value, Load)
        ranges = {v: (0, n - 1) for v, n in node.stage.dims}
        along, _ = linear(flat(self.a.shapes[value.buffer], [simplify(i, ranges) for i in value.indices]))
        turned = [along.get(w, 0) for w, i in zip(written, read.indices, strict=True) if run in linear(i)[0]]
        return turned != [1]

    def reverses(self, node: Node) -> bool:
        """Whether a node only moves data, against its order: a contraction would bring them element by element."""
        if not node.stages or not movement(node.stage) or not isinstance(node.stage.targets[0].value, Load):
            return False
        value = node.stage.targets[0].value
        ranges = {v: (0, n - 1) for v, n in node.stage.dims}
        indices = [simplify(i, ranges) for i in value.indices]
        return any(c < 0 for c in linear(flat(self.a.shapes[value.buffer], indices))[0].values() if isinstance(c, int))

    def reads(self, reader: Node, node: Node) -> int:
        if reader.index in self.a.opaque_reads:
            return len([x for x in self.a.opaque_reads[reader.index] if x.buffer == node.result])
        return sum(len(loads_of(s, node.result)) for s in reader.stages)

    def plain(self, reader: Node, node: Node) -> bool:
        """Whether a row stage reads `node` at its own loop variables, so that it can be computed row by row."""
        for s in reader.stages:
            for x in loads_of(s, node.result):
                terms, constant = linear(flat(self.a.shapes[node.result], x.indices))
                if constant or not all(isinstance(t, Var) for t in terms):
                    return False
        return True

    # ---- cycles ----

    def cyclic(self, into: Group, other: Group) -> bool:
        """Whether merging the two groups would close a cycle: a path between them through a third group."""
        return self.reaches(into, other) or self.reaches(other, into)

    def reaches(self, start: Group, end: Group) -> bool:
        """Whether `end` depends on `start` through some other group."""
        stack = [c for n in start.nodes for c in self.nodes[n].consumers]
        seen: set[int] = set()
        while stack:
            n = stack.pop()
            if n in seen or n not in self.group_of:
                continue
            seen.add(n)
            g = self.group_of[n]
            if g is start or g is end:
                continue
            for m in g.nodes:
                for c in self.nodes[m].consumers:
                    if c in self.group_of and self.group_of[c] is end:
                        return True
                    stack.append(c)
        return False


def _alone(graph: Graph, analysis: Analysis, nodes: Sequence[int]) -> Kernel:
    """The kernel that nodes become."""
    from .outline import outlined

    return outlined(graph, analysis, Group(sorted(nodes), "taken", max(nodes)))


def fuse(
    graph: Graph,
    writes_once: frozenset[str] = frozenset(),
    joins: Joins | None = None,
    reuses: frozenset[str] = frozenset(),
    piece: int = 1,
    claims: Claims | None = None,
    apart: Apart | None = None,
    paired: frozenset[str] = frozenset(),
) -> tuple[Graph, FusionReport]:
    """A level-3 graph whose @main only calls kernels; see the module docstring.

    `writes_once` names the opaque operators that elementwise operations on their result may join, `reuses` those that
    nothing is computed inside, `joins` says of a kernel around a depthwise convolution whether it shall be (None: it
    shall not). Rows of a result that go to several places go there in pieces of multiples of `piece` elements, which
    are whole vectors. `claims` says what runs on another processor, in kernels of its own: their functions have the
    attribute ``tw.taken``. `apart` keeps operations of several devices in kernels of their own. Operands of the types
    `paired` that lie along a contraction's sum are not read through a transposition.
    """
    from ..ir.context import use
    from .outline import outline, outlined

    with use():
        analysis = Analysis(graph.main)
        alone = partial(_alone, graph, analysis)
        together = None if apart is None else apart(analysis.nodes, alone)
        fuser = Fuser(analysis, writes_once, reuses, piece, together=together, paired=paired)
        groups = fuser.run()
        if claims is not None:
            taken = claims([g.nodes for g in groups], alone)
            fuser = Fuser(analysis, writes_once, reuses, piece, taken, paired=paired)
            groups = fuser.run()
        if joins is not None:
            groups = Joiner(fuser, lambda g: outlined(graph, analysis, g), joins).run()
            fuser.report.kernels = len(groups)
        return outline(graph, analysis, groups), fuser.report
