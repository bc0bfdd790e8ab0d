"""Emits the instructions of a tile: the innermost loops, which contain only instructions.

What a block becomes depends on few numbers of the loops around it: the slots of its tiles, how many iterations the last
tiles have, whether sums begin. Blocks that have these in common are emitted once; only what they wait for differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...schedule.nest import Alloc, For, Seq, Stmt, Store, walk_stmts
from ...tensor.analysis import flat
from ...tensor.expr import Const, Expr, Load, children, variables, walk
from .binary import Issue, fields_of
from .dependences import Touched
from .describe import Instruction, Operand
from .tiles import CHIP, DIM

if TYPE_CHECKING:
    from .emit import ChipProgramEmitter

Env = dict[str, int]


def is_block(s: Stmt) -> bool:
    """Whether there are instructions in it, and loops around them, and nothing else."""
    if isinstance(s, For):
        return s.note(CHIP) is not None or is_block(s.body)
    return isinstance(s, Seq) and all(map(is_block, s.stmts))


class InstructionLoop:
    """Emits the instructions of a loop that is an instruction, or contains only such loops."""

    def __init__(self, emitter: ChipProgramEmitter, s: For) -> None:
        self.e, self.s = emitter, s
        self.regions: dict[int, InstructionTemplate] = {}
        self.made: dict[tuple[int, ...], list[tuple[Issue, Touched]]] = {}
        self.key = self.outside(s)

    def issues(self, env: Env) -> list[tuple[Issue, Touched]]:
        """The instructions where the loops around have these values, without what they wait for."""
        key = self.key(env)
        if key not in self.made:
            self.made[key] = [(i, self.e.dependences.touched(i)) for i in self.run(self.s, dict(env))]
        return self.made[key]

    def run(self, s: Stmt, env: Env) -> Iterator[Issue]:
        if isinstance(s, Seq):
            for x in s.stmts:
                yield from self.run(x, env)
            return
        assert isinstance(s, For)
        if (said := s.note(CHIP)) is not None:
            if id(s) not in self.regions:
                self.regions[id(s)] = InstructionTemplate(self.e, s, said)
            issue = self.regions[id(s)].issue(env)
            if issue is not None:
                yield issue
            return
        for n in range(self.e.compile(s.extent)(env)):
            env[s.var] = n
            yield from self.run(s.body, env)
        env.pop(s.var, None)

    def outside(self, s: For) -> Callable[[Env], tuple[int, ...]]:
        """All that the block takes from the loops around it, as one function of them: the largest parts of extents and
        addresses that nothing of the block is in, and which sums have begun."""
        own = {x.var for x in walk_stmts(s) if isinstance(x, For)}
        parts: dict[str, None] = {}

        def look(e: Expr) -> None:
            if isinstance(e, Const):
                return
            if variables(e) & own:
                for x in children(e):
                    look(x)
                return
            parts.setdefault(self.e.python(e))

        for x in walk_stmts(s):
            if isinstance(x, For):
                look(x.extent)
            elif isinstance(x, Store):
                for buffer, indices in places(x):
                    look(flat(self.e.buffers[buffer], indices))
                for v in x.reduction:
                    if v not in own:
                        parts.setdefault(f"v[{v!r}] == 0")
        made: Callable[[Env], tuple[int, ...]] = eval(f"lambda v: ({''.join(f'{p}, ' for p in parts)})")
        return made


def places(s: Store) -> list[tuple[str, tuple[Expr, ...]]]:
    """The elements that a store reads and writes."""
    t = s.targets[0]
    return [(x.buffer, x.indices) for x in walk(t.value) if isinstance(x, Load)] + [(t.buffer, t.indices)]


@dataclass(frozen=True)
class Loop:
    """A loop of an instruction: the dimension that it is, and how many iterations it has."""

    var: str
    dim: str
    extent: Callable[[Env], int]


class InstructionTemplate:
    """The loops of an instruction, analyzed once: emitted again for each iteration of the loops around it."""

    def __init__(self, emitter: ChipProgramEmitter, s: For, said: str) -> None:
        self.e = emitter
        name, *pairs = said.split()
        given = dict(p.split("=") for p in pairs)
        known = emitter.listing.instructions
        if name not in known:
            emitter.fail(f"the chip has no instruction {name!r}", f"instructions: {', '.join(known)}")
        self.meaning: Instruction = known[name]
        self.form = emitter.formats.form(name)
        self.operands = {o.name: given.pop(o.name) for o in self.meaning.operands}
        self.fields = {k: int(v) for k, v in given.items()}
        self.loops: dict[str, Loop] = {}
        self.places: dict[str, tuple[Expr, ...]] = {}
        self.reduction: tuple[str, ...] = ()
        self.read(s, ())

    def read(self, s: Stmt, path: tuple[str, ...]) -> None:
        """Collect loops and the places of operands."""
        if isinstance(s, For):
            dim = s.note(DIM)
            if dim is not None:
                self.loops[s.var] = Loop(s.var, dim, self.e.compile(s.extent))
            elif s.trip != 1:
                self.e.fail(f"loop {s.var} of {self.meaning.name} is none of its dimensions", "tensorize last")
            self.read(s.body, (*path, s.var))
        elif isinstance(s, Seq):
            for x in s.stmts:
                self.read(x, path)
        elif isinstance(s, Alloc):
            self.read(s.body, path)
        elif isinstance(s, Store):
            self.store(s, path)

    def store(self, s: Store, path: tuple[str, ...]) -> None:
        t = s.targets[0]
        for buffer, indices in places(s):
            for o in (o for o, b in self.operands.items() if b == buffer):
                self.places.setdefault(o, indices)
        if t.buffer == self.operands[self.meaning.outputs[0].name]:
            self.path, self.reduction = path, s.reduction

    def issue(self, env: Env) -> Issue | None:
        """The instruction where the loops around have these values; None if it has nothing to do."""
        e = self.e
        zero = {**env, **dict.fromkeys(self.loops, 0)}
        for v in self.path:
            zero.setdefault(v, 0)
        counts = {v: f.extent(zero) for v, f in self.loops.items()}
        if min(counts.values(), default=1) <= 0:
            return None
        values: dict[str, Any] = dict(self.fields)
        for d in self.meaning.dims:
            own = [counts[v] for v in self.path if v in self.loops and self.loops[v].dim == d.name]
            total = 1
            for c in own:
                total *= c
            if total > d.limit:
                e.fail(f"{self.meaning.name} takes {d.limit} along {d.name}, not {total}", "cut the loops")
            values[d.name] = own if d.levels else [total]
        for o in self.meaning.operands:
            self.operand(o, zero, counts, values)
        if self.meaning.accumulates:
            values["start"] = int(all(not zero[v] for v in self.reduction))
        return Issue(self.form, fields_of(self.form, values))

    def operand(self, o: Operand, zero: Env, counts: Mapping[str, int], values: dict[str, Any]) -> None:
        """Where an operand lies, and its strides."""
        if o.name not in self.places:
            self.e.fail(f"{o.name} of {self.meaning.name} is not {self.operands[o.name]}", "tensorize last")
        e, indices = self.e, self.places[o.name]
        address = e.address(self.operands[o.name], indices)
        start, word = address(zero), e.listing.memories[o.memory].word
        if start % word:
            e.fail(f"{o.name} of {self.meaning.name} does not begin at a word of {o.memory}")
        values[o.name] = start // word
        if not o.dims:
            return
        steps = {v: address({**zero, v: 1}) - start if c > 1 else 0 for v, c in counts.items()}
        end = address({**zero, **{v: c - 1 for v, c in counts.items()}})
        if end != start + sum(s * (counts[v] - 1) for v, s in steps.items()):
            e.fail(f"{o.name} of {self.meaning.name} does not lie evenly in {o.memory}")
        run = [v for v, f in self.loops.items() if f.dim == o.dims[-1] and counts[v] > 1]
        if any(steps[v] not in (0, o.numpy.itemsize) for v in run):
            e.fail(f"{o.name} of {self.meaning.name} is no run along {o.dims[-1]}")
        length = max((counts[v] for v in run), default=1) * o.numpy.itemsize
        pitch = -(-length // word) * word
        strides: list[int] = []
        for dim in o.dims[-2::-1]:
            d = self.meaning.dim(dim)
            before = len(strides)
            for v in [v for v in reversed(self.path) if v in self.loops and self.loops[v].dim == dim]:
                if d.levels and not o.dense:
                    strides.insert(0, steps[v])
                elif counts[v] > 1 and steps[v] != pitch:
                    e.fail(f"rows of {o.name} of {self.meaning.name} do not follow one another")
                pitch *= counts[v]
            if d.levels and not o.dense:  # levels that no loop is, outside of those that one is
                strides = [0] * (before + d.levels - len(strides)) + strides
        if any(s % word for s in strides):
            e.fail(f"rows of {o.name} of {self.meaning.name} do not begin at words of {o.memory}")
        if any(strides):
            values[f"{o.name}_stride"] = [s // word for s in strides]
