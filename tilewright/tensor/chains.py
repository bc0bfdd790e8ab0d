"""Kernels around a depthwise convolution that run as one, row by row: a convolution, the depthwise one that reads its
result, a 1x1 convolution that reads that.

Between them only the rows exist that the reader still needs. `row_chain` says what a row of each member is and which
rows its reader needs; `Joiner` finds such neighbours in a level-3 graph; the rule `depthwise_chain` makes the loop
nest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ..support.sizes import typical
from .analysis import is_contraction
from .expr import Const, Expr, Load, Target, Var, loads, map_loads, variables
from .kernel import Kernel, Stage
from .row_chains import ZERO, RowKernel, Window, row_kernel, window

if TYPE_CHECKING:
    from .analysis import Node
    from .fuse import Fuser, Group

#: whether a kernel with several sums shall be: the rule for it decides
Joins = Callable[[Kernel], bool]


@dataclass(frozen=True)
class RowChain:
    """Members in order, each cut down to a row of its first image, or from the depthwise one on to a block of rows.

    Member i makes ``together[i]`` rows at once. Member i + 1 reads them as its parameter ``links[i]``, by
    ``windows[i]``. ``moved[i]`` are the parameters of member i that hold one part for each of the `images`.
    """

    members: tuple[RowKernel, ...]
    together: tuple[int, ...]
    links: tuple[str, ...]
    windows: tuple[Window, ...]
    moved: tuple[frozenset[str], ...]
    images: int

    @property
    def rows(self) -> int:
        """The rows of the result, without those of a border."""
        return self.members[-1].count * self.together[-1]


def depthwise(stage: Stage) -> bool:
    """Whether a stage is a depthwise convolution: a sum of products over a window, both factors by channel."""
    t = stage.targets[0]
    if not is_contraction(stage) or not t.indices or not isinstance(t.indices[-1], Var):
        return False
    reads = [x for x in loads(t.value) if x.buffer != t.buffer]
    inside = [variables(i) for x in reads for i in x.indices[:-1]]
    return all(x.indices and x.indices[-1] == t.indices[-1] for x in reads) and any(
        v & set(stage.reduction) for v in inside
    )


def row_chain(kernel: Kernel, together: int = 1, depthwise_rows: int | None = None) -> RowChain | str:
    """A kernel with two or three sums of products as members that run row by row, or why it is none.

    From the depthwise convolution on (of two that follow each other, the second), `together` rows are one block; with
    `depthwise_rows` that one makes so many.
    """
    parts = _parts(kernel)
    if isinstance(parts, str):
        return parts
    links = [k.outputs[0] for k in parts[:-1]]
    sums = [s for s in kernel.stages if s.targets[0].init is not None]
    if not (depthwise(sums[1]) or (len(sums) == 2 and depthwise(sums[0]))):
        return "it has no depthwise convolution"
    results = [k.buffer(k.outputs[0]) for k in parts]
    if any(b.dtype != "f32" or len(b.shape) != 4 or b.shape[0] != results[0].shape[0] for b in results):
        return "its results are not images of f32"
    constants = [k.constants for k in parts]
    if any(a & b for i, a in enumerate(constants) for b in constants[i + 1 :]):
        return "two members read the same constant"
    members: list[RowKernel] = []
    moved: list[frozenset[str]] = []
    blocks = [1 if depthwise(sums[1]) else together, *[together] * (len(parts) - 1)]
    if depthwise_rows is not None and len(parts) == 3:
        blocks[1] = depthwise_rows
    for k, n in zip(parts, blocks, strict=True):
        cut = _first_image(k)
        if isinstance(cut, str):
            return cut
        row = row_kernel(cut[0], 1, n)
        if isinstance(row, str):
            return row
        if members and len(members) + 1 < len(parts) and (row.first, row.count * n) != (0, row.total):
            return "there is a border behind the depthwise convolution"
        members.append(row)
        moved.append(cut[1])
    windows: list[Window] = []
    for maker, reader, link in zip(members, members[1:], links, strict=False):
        found = window(maker, reader, link)
        if isinstance(found, str):
            return found
        if found.dim != 1 or found.step > found.rows:
            return "a reader skips rows"
        windows.append(found)
    if any(w.rows != w.step for w, s in zip(windows, sums[1:], strict=True) if not depthwise(s)):
        return "the last member needs several rows for one"
    if any(n > 1 and w.rows != w.step for n, w in zip(blocks, windows, strict=False)):
        return "a member needs parts of several blocks"
    return RowChain(tuple(members), tuple(blocks), tuple(links), tuple(windows), tuple(moved), results[0].shape[0])


def _parts(kernel: Kernel) -> list[Kernel] | str:
    """The members of a kernel as kernels of their own, with its names: each begins with its sum."""
    sums = [i for i, s in enumerate(kernel.stages) if s.targets[0].init is not None]
    if not 2 <= len(sums) <= 3 or kernel.opaque is not None or len(kernel.outputs) != 1:
        return "it is no chain of two or three sums"
    bounds = [0, *sums[1:], len(kernel.stages)]
    parts: list[Kernel] = []
    for a, b in pairwise(bounds):
        stages = kernel.stages[a:b]
        made = {s.buffer for s in stages}
        later = set().union(*[s.reads for s in kernel.stages[b:]]) | set(kernel.outputs)
        results = [n for n in dict.fromkeys(s.buffer for s in stages) if n in later]
        reads = set().union(*[s.reads for s in stages]) - made
        link = parts[-1].outputs[0] if parts else None
        inside = {t.name for t in kernel.temporaries}
        if len(results) != 1 or (reads & inside) - {link} or (link is not None and link not in reads):
            return "its sums do not follow each other"
        given = [p for p in (*kernel.params, *kernel.temporaries) if p.name in reads]
        result = replace(kernel.buffer(results[0]), scope="param")
        own = tuple(t for t in kernel.temporaries if t.name in made and t.name != results[0])
        params = (*(replace(p, scope="param") for p in given), result)
        constants = kernel.constants & reads
        parts.append(Kernel(f"{kernel.name}_{len(parts)}", params, (result.name,), own, stages, constants))
    return parts


def _first_image(kernel: Kernel) -> tuple[Kernel, frozenset[str]] | str:
    """What a kernel does for the first image of a batch, and which parameters hold one part for each image."""
    images = kernel.buffer(kernel.outputs[0]).shape[0]
    if images == 1:
        return kernel, frozenset()
    shapes = {b.name: b.shape for b in (*kernel.params, *kernel.temporaries)}
    batched = {n for n, shape in shapes.items() if len(shape) > 1 and shape[0] == images and n not in kernel.constants}
    stages = []
    for s in kernel.stages:
        v = s.targets[0].indices[0] if s.buffer in batched else None
        if not isinstance(v, Var) or s.extents.get(v.name) != images or len(s.targets) != 1:
            return "a stage does not work image by image"
        cut = _without(s, v, batched)
        if cut is None:
            return "a stage mixes images"
        stages.append(cut)
    params, temporaries = (
        tuple(replace(b, shape=(1, *b.shape[1:])) if b.name in batched else b for b in group)
        for group in (kernel.params, kernel.temporaries)
    )
    return replace(kernel, params=params, temporaries=temporaries, stages=tuple(stages)), frozenset(batched)


def _without(s: Stage, v: Var, batched: set[str]) -> Stage | None:
    """A stage for the image 0 of its loop `v`; None if `v` is used for anything else."""
    mixed = False

    def load(x: Load) -> Load:
        nonlocal mixed
        if x.buffer not in batched:
            return x
        mixed |= x.indices[0] != v
        return Load(x.buffer, (ZERO, *x.indices[1:]), x.dtype)

    def cut(e: Expr) -> Expr:
        return map_loads(e, load)

    t = s.targets[0]
    target = Target(t.buffer, (ZERO, *t.indices[1:]), cut(t.value), None if t.init is None else cut(t.init))
    left = [*target.indices, target.value, *([] if target.init is None else [target.init])]
    if mixed or any(v.name in variables(e) for e in left):
        return None
    return replace(s, dims=tuple(d for d in s.dims if d[0] != v.name), targets=(target,))


@dataclass(frozen=True)
class Columns:
    """A kernel cut down to the first `width` columns (indices of the result's last dimension); ``moves[p][d]`` says
    whether dimension d of parameter p moves with the columns."""

    kernel: Kernel
    width: int
    moves: dict[str, tuple[int, ...]]


def first_columns(kernel: Kernel, width: int) -> Columns | str:
    """The first columns of a kernel whose other columns are made alike, each from its own or from all of an operand."""
    (result,) = kernel.outputs
    total, temporaries = kernel.buffer(result).shape[-1], {b.name for b in kernel.temporaries}
    moves: dict[str, tuple[int, ...]] = {}
    cut, stages = {result}, list[Stage]()
    for s in reversed(kernel.stages):
        t = s.targets[0]
        c = t.indices[-1] if s.buffer in cut else None  # of what is no part of the columns all is made
        if c is not None and (not isinstance(c, Var) or s.extents[c.name] != total or c.name in s.reduction):
            return "a stage has other columns"
        for e in (t.value, *(() if t.init is None else (t.init,))):
            if isinstance(c, Var) and c.name in variables(map_loads(e, lambda x: Const(0, x.dtype))):
                return "it computes with the number of a column"
            for x in loads(e):
                along = tuple(int(i == c) for i in x.indices)
                if isinstance(c, Var) and any(c.name in variables(i) and i != c for i in x.indices):
                    return "it reads other columns"
                if moves.setdefault(x.buffer, along) != along or (any(along[:-1]) and x.buffer in temporaries):
                    return "it reads an operand in several ways"
                if any(along) and x.buffer in temporaries:
                    cut.add(x.buffer)
        names = {c.name} if isinstance(c, Var) else set()
        stages.insert(0, replace(s, dims=tuple((v, width if v in names else n) for v, n in s.dims)))
    parts = tuple(replace(b, shape=(*b.shape[:-1], width)) if b.name in cut else b for b in kernel.temporaries)
    return Columns(replace(kernel, temporaries=parts, stages=tuple(stages)), width, moves)


# ---- finding them in a graph ---------------------------------------------------------------------------------------


class Joiner:
    """Makes one group of those around each depthwise convolution where `joins` says so of its kernel, which
    `kernel_of` reads."""

    def __init__(self, fuser: Fuser, kernel_of: Callable[[Group], Kernel], joins: Joins) -> None:
        self.fuser, self.kernel_of, self.joins = fuser, kernel_of, joins

    def run(self) -> list[Group]:
        """All groups, in the order of their first nodes. Those that read most choose first."""
        group_of, shapes = self.fuser.group_of, self.fuser.a.shapes
        found = [n for n in self.fuser.nodes if n.kind == "contraction" and depthwise(n.stage)]
        for node in sorted(found, key=lambda n: -max(typical(shapes[b].size) for b in n.stage.reads)):
            for chain in self.around(node):
                joined = replace(chain[-1], nodes=[n for g in chain for n in g.nodes])
                if self.joins(self.kernel_of(joined)):
                    group_of.update(dict.fromkeys(joined.nodes, joined))
                    break
        return list({id(g): g for _, g in sorted(group_of.items())}.values())

    def around(self, node: Node) -> list[list[Group]]:
        """The chains that a depthwise convolution may be part of, the longest first."""
        own = self.fuser.group_of[node.index]
        before = [self.fuser.group_of[p] for p in node.producers]
        maker = before if len(before) == 1 and self.follows(before[0], own) else []
        readers = {id(g): g for g in (self.fuser.group_of[c] for c in self.fuser.nodes[own.tail].consumers)}
        reader = [g for g in readers.values() if len(readers) == 1 and self.follows(own, g)]
        found = [[*maker, own, *reader], [*maker, own], [own, *reader]]
        return [c for i, c in enumerate(found) if len(c) > 1 and c not in found[:i]]

    def follows(self, a: Group, b: Group) -> bool:
        """Whether two sums of products follow each other: all that reads the result of `a` is in `b`."""
        tail = self.fuser.nodes[a.tail]
        inside = all(self.fuser.nodes[n].consumers <= {*a.nodes, *b.nodes} for n in a.nodes)
        alone = inside and not any(self.fuser.nodes[n].escapes for n in a.nodes) and bool(tail.consumers)
        return a is not b and a.kind == b.kind == "contraction" and alone and max(a.nodes) < min(b.nodes)
