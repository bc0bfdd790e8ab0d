"""The last steps on a scheduled nest, the same for every target: reductions get their initialization, partial tiles are
split off from full ones, and index arithmetic is simplified with the known ranges."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace

from ..support.sizes import Undecided, at_most, current, is_open, larger, smaller, surely, typically
from ..tensor.expr import (
    Const,
    Expr,
    Load,
    Op,
    Target,
    Var,
    bounds,
    const_value,
    linear,
    rebuild,
    simplify,
    substitute,
    variables,
    walk,
)
from ..tensor.expr import transform as transform_expr
from .nest import (
    THREAD,
    Alloc,
    AsyncCopy,
    Barrier,
    For,
    If,
    Nest,
    Seq,
    Stmt,
    Store,
    children,
    map_exprs,
    path_to,
    seq,
    stores,
    substitute_vars,
    transform,
    transform_exprs,
    walk_stmts,
    with_children,
)
from .open_tiles import row_by_row
from .producers import PRODUCER
from .region import all_ranges

#: names of the registers of the nest at hand
_IN_REGISTERS: ContextVar[frozenset[str]] = ContextVar("registers", default=frozenset())
#: what `simplify_value` found for the nest at hand, by expression and the ranges of its variables: tiles that are laid
#: out or split repeat a few expressions many times
_SIMPLIFIED: ContextVar[dict[tuple[object, ...], Expr] | None] = ContextVar("simplified", default=None)


def finish(nest: Nest) -> Nest:
    """decompose -> partition -> simplify; the result has no `init` left and only constant extents wherever possible."""
    token = _SIMPLIFIED.set({})
    try:
        with typically(False):
            return _finish(nest)
    finally:
        _SIMPLIFIED.reset(token)


def _finish(nest: Nest) -> Nest:
    body = nest.body
    for s in stores(body):
        if any(t.init is not None for t in s.targets):
            body = decompose(body, s.block)
    if any(s.reduction for s in body.stores):

        def plain(s: Stmt) -> Stmt:
            return Store(s.targets, s.block) if isinstance(s, Store) and s.reduction else s

        body = transform(body, plain) or body
    # simplified first: a term must look the same wherever it appears
    token = _IN_REGISTERS.set(
        frozenset(x.buffer.name for x in walk_stmts(body) if isinstance(x, Alloc) and x.buffer.scope == "register")
    )
    try:
        body = simplify_nest(body, {})
        all_ranges(body)  # every extent can be bounded
        body = simplify_nest(partition(body, {}), {})
    finally:
        _IN_REGISTERS.reset(token)
    if current() is None:
        return replace(nest, body=body)
    rows = row_by_row(body)
    done = body if rows is body else simplify_nest(rows, {})
    lost = {s.block for s in stores(nest.body)} - {s.block for s in stores(done)}
    lost -= {
        s.block for loop in walk_stmts(nest.body) if isinstance(loop, For) and loop.trip == 0 for s in stores(loop)
    }
    if lost:  # a loop was taken for an empty one
        raise Undecided(f"block {', '.join(sorted(lost))} would not run")
    return replace(nest, body=done)


# ---- reductions ----------------------------------------------------------------------------------------------------


def decompose(root: Stmt, block: str, at: str | None = None) -> Stmt:
    """Split the reduction `block` into its initialization and its update.

    The initialization gets loops of its own and stands just before loop `at` (default: the outermost reduction loop):

        for k: for i: acc[i] += a[i, k]     ->     for i: acc[i] = 0
                                                   for k: for i: acc[i] += a[i, k]
    """

    def sums(s: Stmt) -> bool:
        return isinstance(s, Store) and s.block == block and s.targets[0].init is not None

    path = path_to(root, sums, {block})
    assert path is not None
    target = path[-1]
    assert isinstance(target, Store)
    loops = [s for s in path if isinstance(s, For)]
    first = next((i for i, f in enumerate(loops) if f.var == at or (at is None and f.var in target.reduction)), None)
    update = replace(target, targets=tuple(replace(t, init=None) for t in target.targets), reduction=())
    init: Stmt = Store(
        tuple(Target(t.buffer, t.indices, t.init) for t in target.targets if t.init is not None), f"{block}.init"
    )
    if first is None:  # no reduction loop left (all of extent 1): initialize and update in place
        return _swap(root, target, seq(init, update))
    used = set().union(*[variables(i) for t in target.targets for i in t.indices])
    # a partial last tile only makes loops shorter: the first iteration of the reduction loops covers every element
    start: dict[str, Expr] = {f.var: Const(0, "index") for f in loops[first:] if f.var in target.reduction}
    for f in reversed(loops[first:]):
        if f.var in used and f.var not in target.reduction:
            kind = "serial" if f.kind == THREAD else f.kind
            # what the update asks for ahead is of no use here, and may be placed by the loops that are left out
            init = replace(f, extent=substitute(f.extent, start), body=init, kind=kind, prefetch=())
    if any(f.var in used and f.var in target.reduction for f in loops):
        raise AssertionError(f"{block}: a reduction loop indexes the accumulator")
    anchor = loops[first]
    return _swap(_swap(root, target, update), anchor.var, None, before=init)


def _swap(root: Stmt, old: Stmt | str, new: Stmt | None, before: Stmt | None = None) -> Stmt:
    """Replace statement `old` (an object, or the For over the variable of that name) by `new`, or put `before` ahead of
    it."""
    if root is old or (isinstance(root, For) and root.var == old):
        return seq(before, new if new is not None else root)
    if not ({old} if isinstance(old, str) else old.facts.names) <= root.facts.names:
        return root
    return with_children(root, tuple([_swap(c, old, new, before) for c in children(root)]))


def _stays(s: For) -> bool:
    """Whether a loop is one: that with a single iteration is not, but for lanes and instructions."""
    return s.trip != 1 or s.kind == "vector" or _instruction(s)


def _instruction(s: For) -> bool:
    """Whether a loop stands for an instruction, or has a producer (`producers`) or the steps of one, and stays even if
    it has one iteration."""
    return any(s.note(n) is not None for n in ("dot", "tiles", PRODUCER)) or _steps(s)


def _steps(s: For) -> bool:
    first = s.body.stmts if isinstance(s.body, Seq) else ()
    return len(first) > 1 and isinstance(first[0], Barrier) and any(isinstance(x, AsyncCopy) and x.bulk for x in first)


# ---- partial tiles -------------------------------------------------------------------------------------------------


def partition(s: Stmt, ranges: dict[str, tuple[int, int]]) -> Stmt:
    """Give the last, partial iteration of a loop its own copy of the body, so that all extents become constants.

    for o in 4: for i in min(16, 50 - o*16): ...
    ->  for o in 4: if o < 3: for i in 16: ...   else: for i in 2: ...
    """
    if all(type(f.extent) is Const and not isinstance(f.body, If) and _stays(f) for f in s.loops):
        return s
    if not isinstance(s, For):
        return with_children(s, tuple([partition(c, ranges) for c in s.parts]))
    extent = simplify(s.extent, ranges)
    trip = const_value(extent)
    limit = bounds(extent, ranges)
    inner = {**ranges, s.var: (0, larger((limit[1] if limit else 1) - 1, 0))}
    s = s if extent is s.extent else replace(s, extent=extent)
    if not _stays(s):
        return partition(substitute_all(s.body, {s.var: Const(0, "index")}), ranges)
    if s.kind == "unroll" and trip is not None and _deciding_term(s.body, s.var, inner) is not None:
        if not is_open(trip):
            return seq(*[partition(substitute_all(s.body, {s.var: Const(i, "index")}), ranges) for i in range(trip)])
        if _registers(s):
            raise Undecided(
                f"laid-out loop {s.var} decides how long others are, and has {trip} iterations, of sizes that "
                "are not known"
            )
        s = replace(s, kind="serial")  # the last tile alone: the others are laid out
    body = _split_tail(s.body, s.var, inner)
    return _without_test(s if body is s.body else replace(s, body=body))


def _registers(s: For) -> bool:
    """Whether a laid-out loop decides which registers are meant: iterations of a serial one cannot."""
    kept = _IN_REGISTERS.get()
    touched: list[Target | Load] = []
    for x in walk_stmts(s):
        touched += [*x.targets, *x.loads] if isinstance(x, Store) else []
    return any(p.buffer in kept and s.var in variables(i) for p in touched for i in p.indices)


def _without_test(s: For) -> Stmt:
    """A serial loop that does something else in its last iteration, as a loop of the others and that one; unless its
    iterations ask for memory ahead, the last one too.

    for o in 4: if o < 3: a[o]   else: b[o]     ->     for o in 3: a[o]
                                                       b[3]
    """
    if s.kind != "serial" or s.trip is None or s.prefetch:
        return s
    last = Const(s.trip - 1, "index")
    if not isinstance(s.body, If) or s.body.cond != Op("cmpi.slt", (Var(s.var), last), "i1"):
        return s
    one: dict[str, Expr] = {s.var: Const(0, "index")}
    others = replace(s, extent=last, body=s.body.then) if last.value != 1 else substitute_all(s.body.then, one)
    return seq(others, *([substitute_all(s.body.otherwise, {s.var: last})] if s.body.otherwise else []))


def _split_tail(body: Stmt, var: str, ranges: dict[str, tuple[int, int]]) -> Stmt:
    """Separate the last value of the term of `var` that decides an extent in `body` from the others."""
    term = _deciding_term(body, var, ranges)
    limit = bounds(term, ranges) if term is not None else None
    if term is None or limit is None or surely(lambda: limit[1] <= limit[0]):
        return partition(body, ranges)
    stand_in = Var("%term")
    narrowed = {**ranges, stand_in.name: (limit[0], limit[1] - 1)}

    def narrow(e: Expr) -> Expr:
        found = simplify_value(_replace_expr(e, term, stand_in), {**narrowed, **_inner_ranges})
        return _replace_expr(found, stand_in, term)

    def full_extent(s: Stmt) -> Stmt:
        if isinstance(s, For):
            return replace(s, extent=narrow(s.extent))
        if isinstance(s, If) and isinstance(decided := narrow(s.cond), Const):
            return (s.then if decided.value else s.otherwise) or seq()
        return s

    _inner_ranges = all_ranges(body, ranges)
    full = transform(body, full_extent)
    assert full is not None
    last = transform_exprs(body, lambda e: _replace_expr(e, term, Const(limit[1], "index")))
    if _deciding_term(last, var, ranges) == term:  # it appears in another form: leave the extents to the target
        return partition(body, ranges)
    # what the first case could not settle stays as it is: splitting again would not end
    settled = _deciding_term(full, var, ranges) != term
    if settled:
        full = _split_tail(full, var, ranges)
    elif term == Var(var) and _never_runs(last, ranges):  # there are fewer iterations than could be shown
        full = _split_tail(full, var, {**ranges, var: (limit[0], limit[1] - 1)})
    else:
        full = partition(full, ranges)
    end = _split_tail(simplify_nest(last, ranges) if is_open(limit[1]) else last, var, ranges)
    return If(Op("cmpi.slt", (term, Const(limit[1], "index")), "i1"), full, end)


def _never_runs(body: Stmt, ranges: dict[str, tuple[int, int]]) -> bool:
    """Whether a tile does not exist: one of its laid-out or vectorized loops is empty."""
    tiles = [f for f in body.loops if f.kind in ("unroll", "vector")]
    trips = [const_value(simplify(s.extent, ranges)) for s in tiles]
    return any(n is not None and at_most(n, 0) for n in trips)


def _deciding_term(body: Stmt, var: str, ranges: dict[str, tuple[int, int]]) -> Expr | None:
    """The part of `var` (itself, or its quotient or remainder) on which the extent of an unrolled or vectorized loop
    depends."""
    tiles = [f for f in body.loops if f.kind in ("unroll", "vector") and var in variables(f.extent)]
    if not tiles:
        return None
    ranges = {**ranges, **all_ranges(body, ranges)}
    below = {f.var for f in body.loops}
    for f in tiles:
        extent = simplify(f.extent, ranges)
        if var in variables(extent):
            term = _term_of(extent, var)
            if term is None or not variables(term) & below:  # else it is settled inside those loops
                return term
    return None


def _term_of(e: Expr, var: str) -> Expr | None:
    """The term of `var` inside the innermost minimum that it appears in."""
    for x in walk(e):
        if isinstance(x, Op) and x.op == "minsi" and var in variables(x):
            inner = next(
                (y for a in x.args for y in walk(a) if isinstance(y, Op) and y.op == "minsi" and var in variables(y)),
                None,
            )
            if inner is None:
                return next((t for a in x.args for t in linear(a)[0] if var in variables(t)), None)
    return next((t for t in linear(e)[0] if var in variables(t)), None)


def _replace_expr(e: Expr, old: Expr, new: Expr) -> Expr:
    """Replace every occurrence of a sub-expression, which is a term of variables."""
    if not variables(old) <= variables(e):
        return e
    return transform_expr(e, lambda x, a: new if x == old else rebuild(x, a))


def substitute_all(s: Stmt, values: dict[str, Expr]) -> Stmt:
    return substitute_vars(s, values)


# ---- simplification ------------------------------------------------------------------------------------------------


def simplify_nest(s: Stmt, ranges: dict[str, tuple[int, int]]) -> Stmt:
    """Simplify all index arithmetic; drop loops of extent 1, empty loops and decided conditions."""
    s = map_exprs(s, lambda e: simplify_value(e, ranges))
    if isinstance(s, For):
        trip = const_value(s.extent)
        if not _stays(s):
            return simplify_nest(substitute_all(s.body, {s.var: Const(0, "index")}), ranges)
        if trip is not None and surely(lambda: trip <= 0):
            return Seq(())
        limit = bounds(s.extent, ranges)
        once = limit is not None and limit[1] == 1 and s.kind != "vector" and not _instruction(s)
        body = substitute_all(s.body, {s.var: Const(0, "index")}) if once else s.body  # or not at all
        body = simplify_nest(body, {**ranges, **({s.var: (0, limit[1] - 1)} if limit else {})})
        return Seq(()) if body == Seq(()) else s if body is s.body else replace(s, body=body)
    if isinstance(s, If):
        if isinstance(s.cond, Const):
            chosen = s.then if s.cond.value else s.otherwise
            return simplify_nest(chosen, ranges) if chosen else Seq(())
        narrowed = _narrow(s.cond, ranges)
        other = simplify_nest(s.otherwise, ranges) if s.otherwise else None
        then, other = simplify_nest(s.then, narrowed), None if other == Seq(()) else other
        return s if then is s.then and other is s.otherwise else If(s.cond, then, other)
    return with_children(s, tuple([simplify_nest(c, ranges) for c in s.parts]))


def _narrow(cond: Expr, ranges: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Ranges inside ``if var < constant``."""
    if isinstance(cond, Op) and cond.op == "cmpi.slt" and isinstance(cond.args[0], Var):
        limit = const_value(cond.args[1])
        name = cond.args[0].name
        if limit is not None and name in ranges:
            return {**ranges, name: (ranges[name][0], smaller(ranges[name][1], limit - 1))}
    return ranges


_COMPARE = {
    "slt": lambda a, b: True if a[1] < b[0] else False if a[0] >= b[1] else None,
    "sle": lambda a, b: True if a[1] <= b[0] else False if a[0] > b[1] else None,
    "sgt": lambda a, b: True if a[0] > b[1] else False if a[1] <= b[0] else None,
    "sge": lambda a, b: True if a[0] >= b[1] else False if a[1] < b[0] else None,
    "eq": lambda a, b: True if a[0] == a[1] == b[0] == b[1] else False if a[1] < b[0] or b[1] < a[0] else None,
    "ne": lambda a, b: False if a[0] == a[1] == b[0] == b[1] else True if a[1] < b[0] or b[1] < a[0] else None,
}


def _known(
    rule: Callable[[tuple[int, int], tuple[int, int]], bool | None], a: tuple[int, int], b: tuple[int, int]
) -> bool | None:
    try:
        return rule(a, b)
    except Undecided:
        return None


def simplify_value(e: Expr, ranges: dict[str, tuple[int, int]]) -> Expr:
    """`simplify`, and comparisons of indices, `select` and `guard` with a known condition."""
    if not e.parts:
        return e
    if (known := _SIMPLIFIED.get()) is None:
        return _simplified(e, ranges)
    key = (e, *[ranges.get(v) for v in variables(e)])
    if (found := known.get(key)) is None:
        found = known[key] = _simplified(e, ranges)
    return found


def _simplified(e: Expr, ranges: dict[str, tuple[int, int]]) -> Expr:
    def visit(x: Expr, args: tuple[Expr, ...]) -> Expr:
        x = rebuild(x, args)
        if not isinstance(x, Op):
            return x
        if x.op.startswith("cmpi.") and x.args[0].dtype == "index":
            a, b = bounds(x.args[0], ranges), bounds(x.args[1], ranges)
            rule = _COMPARE.get(x.op[5:])
            known = _known(rule, a, b) if a and b and rule else None
            return x if known is None else Const(known, "i1")
        if x.op in ("select", "guard") and isinstance(x.args[0], Const):
            return x.args[1] if x.args[0].value else x.args[2]
        if x.op == "andi" and x.dtype == "i1":
            for p, q in (x.args, x.args[::-1]):
                if isinstance(p, Const):
                    return q if p.value else p
        if (
            x.op == "index_cast"
            and isinstance(x.args[0], Op)
            and x.args[0].op == "index_cast"
            and x.args[0].args[0].dtype == x.dtype
        ):
            return x.args[0].args[0]
        return x

    return simplify(e, ranges, visit)
