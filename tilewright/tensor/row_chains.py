"""Kernels that run row by row, each some rows behind the one before: the rows that a kernel reads, and chains of such
kernels.

A convolution needs few rows of its operand for a row of its result. A chain (a 1x1 convolution, a depthwise one,
another 1x1) can therefore run row by row: of what lies between two kernels only the rows that the reader still needs
exist. `row_kernel` cuts a kernel down to its first row and says how the others follow from it; a `Chain` is a kernel
whose members are cut so. The rule `streaming` makes the loop nest, and `driver.choose_streaming` decides where it is
worth it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from .analysis import flat
from .expr import Buffer, Const, Expr, Load, Target, Var, bounds, linear, loads, map_loads, simplify, substitute, walk
from .kernel import Kernel, Stage
from .reshape import reshape_index

ZERO = Const(0, "index")
_ROW = Var("row of the result")


@dataclass(frozen=True)
class RowKernel:
    """A kernel cut down to the first row that it computes.

    `kernel` computes row `first` of dimension `dim` of the result; for row ``first + r`` each index of a parameter p
    grows by ``r * steps[p][d]``. There are `count` such rows; the other ones of all `total` rows are filled with
    `border`. A row has `size` elements.
    """

    kernel: Kernel
    steps: dict[str, tuple[int, ...]]
    dim: int
    first: int
    count: int
    total: int
    size: int
    border: Const | None

    @property
    def result(self) -> Buffer:
        return self.kernel.buffer(self.kernel.outputs[0])

    @property
    def contiguous(self) -> bool:
        """Whether a row's elements are neighbours, and rows follow each other."""
        return prod(self.result.shape[: self.dim]) == 1


@dataclass(frozen=True)
class Window:
    """How a kernel reads the rows of an operand: result row r needs rows ``r * step`` up to ``r * step + rows``.

    `dim` is the dimension of the parameter that counts the rows, None if only one row at a time is read.
    """

    step: int
    rows: int
    dim: int | None


@dataclass(frozen=True)
class Chain(Kernel):
    """A kernel made of several, each reading the rows that the one before it makes.

    ``links[i]`` is the parameter of member i that takes them (None for the first member); ``names[i]`` says what the
    parameters of member i are called here.
    """

    members: tuple[RowKernel, ...] = ()
    links: tuple[str | None, ...] = ()
    names: tuple[dict[str, str], ...] = field(default=())


# ---- one row of a kernel -------------------------------------------------------------------------------------------


def row_kernel(kernel: Kernel, dim: int | None = None, together: int = 1) -> RowKernel | str:
    """The first row of a kernel, or why it has none that stands for the others.

    The rows are those of dimension `dim` of the result, by default of the first that is larger than one. With
    `together` it is a block of so many rows: `count`, `size` and `steps` are then those of blocks.
    """
    if kernel.opaque is not None or len(kernel.outputs) != 1:
        return "it is not an iteration over one result"
    out = kernel.buffer(kernel.outputs[0])
    if dim is None:
        dim = next((d for d, n in enumerate(out.shape) if n > 1), None)
    if dim is None or out.strides[dim] == 1:
        return "its result has no rows"
    size = out.size // out.shape[dim]
    writers = [s for s in kernel.stages if s.buffer == out.name]
    inner = [s for s in writers if s.reads or s.targets[0].init is not None]
    if len(inner) != 1 or any(len(s.targets) != 1 for s in kernel.stages):
        return "it writes its result piece by piece"
    (last,) = inner
    terms, first = linear(last.targets[0].indices[dim])
    row = next(iter(terms), None)
    if len(terms) != 1 or not isinstance(row, Var) or terms[row] != 1 or row.name in last.reduction:
        return "it does not write its result row by row"
    if any(row in linear(i)[0] for d, i in enumerate(last.targets[0].indices) if d != dim):
        return "it does not write its result row by row"
    count = last.extents[row.name]
    if count % together:
        return f"its {count} rows are not blocks of {together}"
    cut = _Cut(kernel, count // together)
    cut.rows[last.name] = {row.name: (together, together)}
    border: Const | None = None
    covered = 0
    for s in writers:
        if s is last:
            continue
        found = _border(s, dim, first, count)
        if isinstance(found, str):
            return found
        var, rows = found
        if var is not None:
            cut.rows[s.name] = {var: (together, together)}
            continue
        value = s.targets[0].value
        if not isinstance(value, Const) or (border is not None and value != border):
            return "its border has several values"
        border, covered = value, covered + rows
        cut.dropped.add(s.name)
        if prod(s.extents.values()) != rows * size:
            return "its border does not fill whole rows"
    if covered != out.shape[dim] - count:
        return "some rows of its result are not written"
    why = cut.run()
    if why is not None:
        return why
    return RowKernel(cut.kernel(), cut.steps, dim, first, count // together, out.shape[dim], size * together, border)


def _border(s: Stage, dim: int, first: int, count: int) -> tuple[str | None, int] | str:
    """(the loop that runs over the computed rows, 0), or (None, how many other rows a stage fills)."""
    terms, at = linear(s.targets[0].indices[dim])
    extents = s.extents
    if not terms:
        rows = 1
    else:
        var = next(iter(terms))
        if len(terms) != 1 or not isinstance(var, Var) or terms[var] != 1:
            return "its border is not written row by row"
        rows = extents[var.name]
        if at == first and rows == count:
            return var.name, 0
    return (None, rows) if at + rows <= first or at >= first + count else "its border covers parts of computed rows"


class _Cut:
    """Goes from the last stage back to the first: which part of each stage one row of the result needs."""

    def __init__(self, kernel: Kernel, count: int) -> None:
        self.source, self.count = kernel, count
        #: stage -> loop -> (extent for one row, what it moves by from one row to the next)
        self.rows: dict[str, dict[str, tuple[int, int]]] = {}
        self.dropped: set[str] = set()
        self.steps: dict[str, tuple[int, ...]] = {}
        #: temporary -> for each dimension (extent for one row, step)
        self.parts: dict[str, list[tuple[int, int]]] = {}

    def run(self) -> str | None:
        """None, or why it cannot be."""
        for s in reversed(self.source.stages):
            if s.name in self.dropped:
                continue
            if s.buffer in self.parts:
                why = self.produced(s)
                if why is not None:
                    return why
            elif s.name not in self.rows:
                return "a stage makes what no row needs"
            why = self.operands(s)
            if why is not None:
                return why
        return None

    def produced(self, s: Stage) -> str | None:
        """The loops of a stage that makes a temporary, from the part of it that is needed."""
        if s.name in self.rows or sum(t.buffer == s.buffer for x in self.source.stages for t in x.targets) > 1:
            return "a temporary is written in several places"
        rows = {}
        for index, (extent, step) in zip(s.targets[0].indices, self.parts[s.buffer], strict=True):
            if isinstance(index, Var):
                if index.name in rows:
                    return "a temporary is written along a diagonal"
                rows[index.name] = (extent, step)
            elif index != ZERO or (extent, step) != (1, 0):
                return "a temporary is not written element for element"
        self.rows[s.name] = rows
        return None

    def operands(self, s: Stage) -> str | None:
        """Which part of its operands a stage reads for one row, and how that moves."""
        moved, ranges, wide = self.moved(s)
        for x in [y for e in self.expressions(s) for y in loads(e)]:
            if x.buffer == s.buffer:
                continue
            if any(loads(i) for i in x.indices):
                return "it looks up where to read"
            found = []
            for i in x.indices:
                at = simplify(substitute(i, moved), wide)
                terms, _ = linear(at)
                step = terms.pop(_ROW, 0)
                if any(_ROW in set(walk(t)) for t in terms):
                    return "its rows do not follow each other evenly"
                limits = bounds(simplify(i, ranges), ranges)
                if limits is None:
                    return "it reads at positions that are not known"
                found.append((*limits, step))
            why = self.read(x.buffer, found)
            if why is not None:
                return why
        moving = {Var(v) for v, (_, step) in self.rows[s.name].items() if step}
        bare = [map_loads(e, lambda x: Const(0, x.dtype)) for e in self.expressions(s)]
        return "it computes with the number of the row" if any(set(walk(e)) & moving for e in bare) else None

    @staticmethod
    def expressions(s: Stage) -> list[Expr]:
        t = s.targets[0]
        return [t.value] if t.init is None else [t.value, t.init]

    def moved(self, s: Stage) -> tuple[dict[str, Expr], dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
        """Each loop variable of a stage as one in row r; the ranges of variables in the first row, and with r."""
        rows = self.rows[s.name]
        ranges = {v: (0, rows.get(v, (n, 0))[0] - 1) for v, n in s.dims}
        values = {v: Var(v) + _ROW * step for v, (_, step) in rows.items() if step}
        return values, ranges, {**ranges, _ROW.name: (0, self.count - 1)}

    def read(self, buffer: str, found: list[tuple[int, int, int]]) -> str | None:
        steps = tuple(step for _, _, step in found)
        if any(p.name == buffer for p in self.source.params):
            if buffer in self.source.constants and any(steps):
                return "it has other constants for other rows"
            if self.steps.setdefault(buffer, steps) != steps:
                return "it reads an operand in several ways"
            return None
        if any(low < 0 for low, _, _ in found):
            return "it reads outside a temporary"
        old = self.parts.get(buffer, [(high + 1, step) for _, high, step in found])
        if tuple(step for _, step in old) != steps:
            return "it reads a temporary in several ways"
        self.parts[buffer] = [(max(n, high + 1), step) for (n, step), (_, high, _) in zip(old, found, strict=True)]
        return None

    def kernel(self) -> Kernel:
        """The stages of the first row; parameters keep their shapes, temporaries hold one row."""
        stages = []
        for s in self.source.stages:
            if s.name in self.dropped:
                continue
            rows = self.rows[s.name]
            dims = [(v, rows[v][0] if v in rows else n) for v, n in s.dims]
            ranges = {v: (0, n - 1) for v, n in dims}
            single: dict[str, Expr] = {v: ZERO for v, n in dims if n == 1 and v not in s.reduction}

            def cut(e: Expr, ranges: dict[str, tuple[int, int]] = ranges, single: dict[str, Expr] = single) -> Expr:
                def load(x: Load) -> Load:
                    return replace(x, indices=tuple(simplify(i, ranges) for i in x.indices))

                return map_loads(substitute(e, single), load)

            targets = tuple(
                Target(
                    t.buffer,
                    tuple(simplify(substitute(i, single), ranges) for i in t.indices),
                    cut(t.value),
                    None if t.init is None else cut(t.init),
                )
                for t in s.targets
            )
            stages.append(replace(s, dims=tuple(d for d in dims if d[0] not in single), targets=targets))
        temporaries = tuple(
            Buffer(b.name, tuple(n for n, _ in self.parts[b.name]), b.dtype, b.scope)
            for b in self.source.temporaries
            if b.name in self.parts
        )
        return replace(self.source, temporaries=temporaries, stages=tuple(stages))


# ---- chains --------------------------------------------------------------------------------------------------------


def window(maker: RowKernel, reader: RowKernel, param: str) -> Window | str:
    """How a kernel reads the rows that another makes as its parameter, or why it cannot take them row by row."""
    b, size = reader.kernel.buffer(param), maker.size
    steps = reader.steps.get(param, (0,) * len(b.shape))
    dim: int | None = maker.dim
    if b.shape == maker.result.shape and all(not n for d, n in enumerate(steps) if d != dim):
        step, over = steps[maker.dim], 0
    elif b.size == maker.result.size and maker.contiguous:  # seen in another shape
        step, over = divmod(sum(n * s for n, s in zip(steps, b.strides, strict=True)), size)
        dim = next((d for d, s in enumerate(b.strides) if s == size and prod(b.shape[:d]) == 1), None)
    else:
        return "its rows are others"
    if step <= 0 or over:
        return "its rows are others"
    rows = 1
    for s in reader.kernel.stages:
        ranges = {v: (0, n - 1) for v, n in s.dims}
        for e in _Cut.expressions(s):
            for x in [y for y in loads(e) if y.buffer == param]:
                limits = bounds(simplify(x.indices[dim] if dim is not None else flat(b, x.indices), ranges), ranges)
                if limits is None or limits[0] < 0:
                    return "it reads at positions that are not known"
                if dim is None and limits[1] >= size:
                    return "it reads parts of several rows"
                rows = max(rows, limits[1] + 1 if dim is not None else 1)
    if (reader.count - 1) * step + rows > maker.total:
        return "it reads beyond the last row"
    return Window(step, rows, dim)


def copy_rows(kernel: Kernel, param: str) -> Kernel:
    """A kernel that copies an operand of another one element for element."""
    b = kernel.buffer(param)
    names = [f"c{d}" for d in range(len(b.shape))]
    dims = tuple((v, n) for v, n in zip(names, b.shape, strict=True) if n != 1)
    index = tuple(ZERO if n == 1 else Var(v) for v, n in zip(names, b.shape, strict=True))
    stage = Stage("copy", dims, (Target("p1", index, Load("p0", index, b.dtype)),))
    return Kernel("copy", (Buffer("p0", b.shape, b.dtype), Buffer("p1", b.shape, b.dtype)), ("p1",), (), (stage,))


def chain(name: str, kernels: Sequence[Kernel], links: Sequence[str | None]) -> Chain | str:
    """Kernels as one that runs row by row: ``links[i]`` is the parameter of kernel i that takes the result of the one
    before it. Returns why not if that cannot be.

    The parameters of the chain are those of the kernels in order, without the links, then the result of the last.
    """
    members: list[RowKernel] = []
    for i, k in reversed(list(enumerate(kernels))):
        dim = None
        if members:  # the dimension along which the reader goes through the result, if it has that shape
            link, reader = links[i + 1], members[0]
            assert link is not None
            if reader.kernel.buffer(link).shape == k.buffer(k.outputs[0]).shape:
                moving = [d for d, n in enumerate(reader.steps.get(link, ())) if n]
                dim = moving[0] if len(moving) == 1 else None
        row = row_kernel(k, dim)
        if isinstance(row, str):
            return row
        if members:
            found = window(row, members[0], str(links[i + 1]))
            if isinstance(found, str):
                return found
        members.insert(0, row)
    params: list[Buffer] = []
    temporaries: list[Buffer] = []
    stages: list[Stage] = []
    names: list[dict[str, str]] = []
    constants: set[str] = set()
    for i, (k, link) in enumerate(zip(kernels, links, strict=True)):
        own = {}
        for b in k.inputs:
            own[b.name] = f"x{i - 1}" if b.name == link else f"p{len(params)}"
            if b.name != link:
                params.append(replace(b, name=own[b.name]))
                constants |= {own[b.name]} if b.name in k.constants else set()
        own[k.outputs[0]] = f"x{i}"
        names.append(own)
    result = kernels[-1].buffer(kernels[-1].outputs[0])
    names[-1][result.name] = f"p{len(params)}"
    params.append(replace(result, name=f"p{len(params)}"))
    for i, (k, link) in enumerate(zip(kernels, links, strict=True)):
        renamed = {**names[i], **{b.name: f"{b.name}_{i}" for b in k.temporaries}}
        source = None if link is None else kernels[i - 1].buffer(kernels[i - 1].outputs[0])
        stages += [_renamed(s, i, renamed, link, k, source) for s in k.stages]
        temporaries += [replace(b, name=renamed[b.name]) for b in k.temporaries]
        if i + 1 < len(kernels):
            out = k.buffer(k.outputs[0])
            temporaries.append(Buffer(f"x{i}", out.shape, out.dtype, "local"))
    return Chain(
        name,
        tuple(params),
        (params[-1].name,),
        tuple(temporaries),
        tuple(stages),
        frozenset(constants),
        members=tuple(members),
        links=tuple(links),
        names=tuple(names),
    )


def _renamed(s: Stage, number: int, names: dict[str, str], link: str | None, k: Kernel, source: Buffer | None) -> Stage:
    """A stage of member `number` with the chain's names; what it reads of `link` has the shape of `source`."""
    values: dict[str, Expr] = {v: Var(f"{v}_{number}") for v, _ in s.dims}

    def load(x: Load) -> Load:
        indices = x.indices
        if x.buffer == link and source is not None:
            indices = reshape_index(indices, k.buffer(link).shape, source.shape)
        return Load(names[x.buffer], indices, x.dtype)

    def rewrite(e: Expr) -> Expr:
        return map_loads(substitute(e, values), load)

    targets = tuple(
        Target(
            names[t.buffer],
            tuple(substitute(i, values) for i in t.indices),
            rewrite(t.value),
            None if t.init is None else rewrite(t.init),
        )
        for t in s.targets
    )
    return Stage(
        f"{s.name}_{number}",
        tuple((f"{v}_{number}", n) for v, n in s.dims),
        targets,
        tuple(f"{v}_{number}" for v in s.reduction),
    )
