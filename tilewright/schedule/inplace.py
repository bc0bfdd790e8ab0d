"""In-place analysis: which results of a kernel may share memory with an operand. Those that read each element just
where they write it, those of chains that run row by row, if what is written lies behind what is still read, and
those that begin as a copy of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..tensor.analysis import flat
from ..tensor.expr import Buffer, Expr, Load, Var, bounds, from_linear, linear, walk
from .nest import Alloc, For, Nest, Seq, Stmt, Store, rename_loads, seq, stores, transform
from .region import all_ranges

#: note on the loop over the rows of a chain's result
ROWS = "rows"
#: note on loops that do nothing but copy the input named to the same places of the output. Where both are one memory,
#: there is nothing to do: a target leaves the loops out
COPIES = "copies"


def inplace_pairs(nest: Nest) -> list[tuple[str, str]]:
    """(output, input) pairs of parameters of one dtype that may share memory: of one size, or, where a loop over rows
    goes on ahead of what it writes, the output not larger than the input.

    Every read of the input must be in a statement that writes the output, at the same flat position, and no other
    statement may write the output (a reduction's start would overwrite what its sum still has to read, and a sum reads
    twice); then, whatever the order of the iterations, no element is read after it was overwritten. Loops that copy the
    input (`COPIES`) do not run then.
    """
    params = {p.name: p for p in nest.params}
    everything = stores(nest.body)
    pairs = []
    rows = _rows_loop(nest)
    copies: dict[str, set[int]] = {}  # input -> the statements that copy it
    for loop in nest.body.loops:
        if loop.note(COPIES):
            copies.setdefault(loop.note(COPIES), set()).update(map(id, stores(loop.body)))
    for o in nest.outputs:
        writers = [s for s in everything if any(t.buffer == o for t in s.targets)]
        for i in params:
            if i in nest.outputs or i in nest.packs or params[i].dtype != params[o].dtype:
                continue
            same = params[i].size == params[o].size and bool(writers)
            same = same and all(_same_place(s, o, i, params) for s in everything)
            same = same and _written_once([s for s in writers if id(s) not in copies.get(i, ())], o, i)
            if same or (rows and params[o].size <= params[i].size and _reads_ahead(rows, nest, o, i)):
                pairs.append((o, i))
    return pairs


def in_place(nest: Nest, pairs: Iterable[tuple[str, str]]) -> Nest:
    """The nest of a kernel whose outputs take the place of these inputs (some of `inplace_pairs`): one parameter for
    both, and no loops that copy one to the other. An output may be that of several inputs, which are the same then.

    >>> from tilewright.schedule.text import parse_nest
    >>> nest = parse_nest("def f(x: f32[8], y: out(f32[8])):\\n  for i in serial(8):\\n    y[i] = addf(x[i], x[i])")
    >>> print(str(in_place(nest, inplace_pairs(nest))))
    def f(y: out(f32[8])):
        for i in serial(8):
            y[i] = addf(y[i], y[i])
    """
    place = {i: o for o, i in pairs}
    params = {p.name: p for p in nest.params}

    def kept(s: Stmt) -> Stmt | None:
        return None if isinstance(s, For) and s.note(COPIES) in place else s

    def moved(x: Load) -> Expr:
        if x.buffer not in place:
            return x
        b = params[place[x.buffer]]
        return Load(b.name, _same_element(x, params[x.buffer], b), x.dtype)

    body = transform(nest.body, kept) or seq()
    return replace(nest, params=tuple(p for p in nest.params if p.name not in place), body=rename_loads(body, moved))


def _same_element(x: Load, of: Buffer, b: Buffer) -> tuple[Expr, ...]:
    """The indices in a parameter of as many elements, whose shape may be another one."""
    if of.shape == b.shape:
        return x.indices
    at, found = flat(of, x.indices), list[Expr]()
    for d, stride in enumerate(b.strides):
        found.append(at // stride if d == 0 else at // stride % b.shape[d])
    return tuple(found)


def _rows_loop(nest: Nest) -> For | None:
    s = nest.body
    while isinstance(s, Alloc):
        s = s.body
    return s if isinstance(s, For) and s.note(ROWS) else None


def _reads_ahead(rows: For, nest: Nest, output: str, given: str) -> bool:
    """Whether each iteration of the loop over rows reads only beyond what all before it, and itself until then, have
    written."""
    params, ranges, row = {p.name: p for p in nest.params}, all_ranges(nest.body), Var(rows.var)
    parts = rows.body.stmts if isinstance(rows.body, Seq) else (rows.body,)
    first = next((n for n, part in enumerate(parts) if any(_writes(s, output) for s in stores(part))), 0)
    reads, written = [], []
    for n, part in enumerate(parts):
        for s in stores(part):
            places = [_place(flat(params[output], t.indices), row, ranges) for t in s.targets if t.buffer == output]
            at = [linear(flat(params[output], t.indices)) for t in s.targets if t.buffer == output]
            for x in _loads(s, given):
                position = flat(params[given], x.indices)
                # read before anything is written, or by the statement that writes this very element
                reads.append((_place(position, row, ranges), n < first or linear(position) in at))
            written += places
    if any(p is None for p, _ in reads) or any(p is None for p in written) or rows.trip is None:
        return False
    for (step, low, _), before in reads:  # type: ignore[misc]
        for moved, _, high in written:  # type: ignore[misc]
            late = 1 if before else 0
            ends = [t for t in (late, rows.trip - 1) if t >= late]  # what lies between them follows: it is linear
            if moved < 0 or any(step * t + low <= moved * (t - late) + high for t in ends):
                return False
    return True


def _place(position: Expr, row: Var, ranges: dict[str, tuple[int, int]]) -> tuple[int, int, int] | None:
    """(what a position grows by with each row, its lowest and its highest value in row 0); None if it is not known."""
    terms, constant = linear(position)
    step = terms.pop(row, 0)
    if any(row in set(walk(t)) for t in terms):
        return None
    limits = bounds(from_linear(terms, constant), ranges)
    return None if limits is None else (step, *limits)


def _writes(s: Store, buffer: str) -> bool:
    return any(t.buffer == buffer for t in s.targets)


def _same_place(s: Store, output: str, given: str, params: Mapping[str, Buffer]) -> bool:
    """Whether a statement reads `given` only at the positions where it writes `output`."""
    found = _loads(s, given)
    if not found:
        return True
    if len(s.targets) != 1 or s.targets[0].buffer != output:
        return False
    position = linear(flat(params[output], s.targets[0].indices))
    return all(linear(flat(params[given], x.indices)) == position for x in found)


def _written_once(writers: list[Store], output: str, given: str) -> bool:
    """Whether no statement overwrites an element of `given` that a later one, or itself again, reads."""
    if not any(_loads(s, given) for s in writers):
        return True
    return all(_loads(s, given) and not _loads(s, output) for s in writers)


def _loads(s: Store, buffer: str) -> list[Load]:
    return [x for x in s.loads if x.buffer == buffer]
