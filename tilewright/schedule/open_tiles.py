"""The last tile of rows whose number is known at run time: it is computed four rows at a time, then two, then one.

A tile of rows is laid out, so that its sums stay in registers. How many rows the last one has decides nothing but how
often this is done for tiles of a few rows and of one:

    acc = register(f32[6, 16])                       for r in serial(rows % 6):
    for i in unroll(rows % 6): acc[i] = 0                acc = register(f32[6, 16])
    for k in serial(64):                        ->       acc[0] = 0
        for i in unroll(rows % 6): acc[i] += ...         for k in serial(64): acc[0] += ...
    for i in unroll(rows % 6): y[i] = acc[i]             y[r] = acc[0]
"""

from __future__ import annotations

from dataclasses import replace

from ..support.sizes import Undecided, is_open
from ..tensor.expr import Const, Expr, Load, Target, Var, map_loads, substitute, variables
from .nest import Alloc, For, If, Seq, Stmt, Store, children, map_exprs, seq, walk_stmts, with_children

#: rows of such a tile that are computed together: with the vectors of a row beside each other, their sums need not wait
TOGETHER = (4, 2, 1)


def row_by_row(body: Stmt) -> Stmt:
    """A nest whose tiles with an extent known at run time are computed so; itself if it has none.

    Undecided if such a tile is no set of rows that need nothing of each other.
    """
    rows = _rows(body)
    if not rows:
        return body
    if isinstance(body, (If, Seq)) or (isinstance(body, For) and body not in rows) or not _holds_rows(body, rows):
        return with_children(body, tuple(map(row_by_row, children(body))))
    extent = rows[0].extent
    if any(s.extent != extent for s in rows):
        raise Undecided(
            f"laid-out loops of {', '.join(str(s.extent) for s in rows)} iterations are no rows of one tile"
        )
    own = {s.buffer.name for s in walk_stmts(body) if isinstance(s, Alloc)}
    _independent(body, {s.var for s in rows}, own)
    registers = {s.buffer.name for s in walk_stmts(body) if isinstance(s, Alloc) and s.buffer.scope == "register"}
    names, name = {s.var for s in rows}, rows[0].var
    done: Expr = Const(0, "index")
    parts: list[Stmt] = []
    for count in TOGETHER:
        many = (extent - done) // count
        at = Var(name if count == 1 else f"{name}_{count}")
        parts.append(For(at.name, many, _of_some(body, names, done + at * count, count, registers)))
        done = done + many * count
    return seq(*parts)


def _rows(body: Stmt) -> list[For]:
    """Laid-out loops of which it is not known how many iterations they have."""
    return [
        s for s in walk_stmts(body) if isinstance(s, For) and s.kind == "unroll" and (s.trip is None or is_open(s.trip))
    ]


def _holds_rows(s: Stmt, rows: list[For]) -> bool:
    """Whether a statement is a row, or allocates what rows have for themselves."""
    if not isinstance(s, Alloc):
        return True
    names = {r.var for r in rows}
    touched = [p for x in walk_stmts(s) if isinstance(x, Store) for p in _places(x) if p[0] == s.buffer.name]
    return s.buffer.scope == "register" and any(variables(e) & names for _, indices, _ in touched for e in indices)


def _places(s: Store) -> list[tuple[str, tuple[Expr, ...], bool]]:
    """Buffer, indices and whether it is written, of all that a store touches."""
    return [(t.buffer, t.indices, True) for t in s.targets] + [(x.buffer, x.indices, False) for x in s.loads]


def _independent(body: Stmt, rows: set[str], own: set[str]) -> None:
    """Undecided unless every row writes and reads its own part of what the tile holds, and what is no row's is made of
    none."""
    places: dict[str, set[int]] = {}

    def visit(s: Stmt, row: str | None) -> None:
        if isinstance(s, For) and s.var in rows:
            if row is not None:
                raise Undecided("rows of a tile within rows")
            row = s.var
        if isinstance(s, Store):
            for buffer, indices, written in _places(s):
                mine = {d for d, e in enumerate(indices) if row is not None and e == Var(row)}
                if row is not None and written and not (mine or buffer not in own):
                    raise Undecided(f"rows of a tile share {buffer}")
                if buffer in own and (mine or buffer in places):
                    places[buffer] = places.get(buffer, mine) & mine
                    if not places[buffer]:
                        raise Undecided(f"a row of a tile reads {buffer} of others")
            if row is None and any(t.buffer not in own for t in s.targets):
                raise Undecided(f"block {s.block} of a tile belongs to no row")
        for c in children(s):
            visit(c, row)

    for _ in range(2):  # what is read before it is known to be a row's is seen the second time
        visit(body, None)


def _of_some(s: Stmt, rows: set[str], start: Expr, count: int, registers: set[str], inside: str | None = None) -> Stmt:
    """A statement for `count` rows from `start` on; their parts of registers are the first."""
    if isinstance(s, For) and s.var in rows:
        body = _of_some(s.body, rows, start, count, registers, s.var)
        return body if count == 1 else replace(s, extent=Const(count, "index"), body=body)
    if isinstance(s, Store) and inside is not None:
        return replace(s, targets=tuple(_target(t, inside, start, count, registers) for t in s.targets))
    new = tuple(_of_some(c, rows, start, count, registers, inside) for c in children(s))
    made = with_children(s, new) if new else s
    if inside is None or isinstance(made, Store):
        return made
    return map_exprs(made, lambda e: substitute(e, {inside: _row(inside, start, count)}))


def _row(var: str, start: Expr, count: int) -> Expr:
    return start if count == 1 else start + Var(var)


def _target(t: Target, var: str, start: Expr, count: int, registers: set[str]) -> Target:
    first: dict[str, Expr] = {var: Const(0, "index") if count == 1 else Var(var)}
    row = _row(var, start, count)

    def place(buffer: str, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(substitute(i, first if buffer in registers else {var: row}) for i in indices)

    def value(e: Expr) -> Expr:
        held: dict[str, Expr] = {}

        def keep(x: Load) -> Expr:
            name = f"%load {len(held)}"
            # loads that stand in the index of this one are held already
            held[name] = Load(x.buffer, tuple(substitute(i, held) for i in place(x.buffer, x.indices)), x.dtype)
            return Var(name, x.dtype)

        return substitute(substitute(map_loads(e, keep), {var: row}), held)

    return Target(t.buffer, place(t.buffer, t.indices), value(t.value), None if t.init is None else value(t.init))


__all__ = ["row_by_row"]
