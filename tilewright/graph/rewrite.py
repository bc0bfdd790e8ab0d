"""Helpers for rewriting @main: the pattern driver, matching, and building operators that keep the names they replace.

A pattern is a function that gets a `Rewriter` and an operation, and returns the value (or values) to put in its place,
or None if it does not apply. It must finish matching before it creates anything, and never erases: the driver does.

    @pattern("relu")
    def relu_of_relu(rw, op):
        '''relu(relu(x)) -> relu(x)'''
        inner = defined_by(op.operands[0], "relu")
        return inner and inner.results[0]

    rewrite(graph, [relu_of_relu])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import numpy_dtype, type_of
from ..ops.common import Elementwise
from ..support.budget import check_time
from ..support.errors import CompileError
from ..support.sizes import Undecided, current

if TYPE_CHECKING:
    import numpy.typing as npt

#: what a pattern puts in the place of an operation; None where it does not apply
Rewritten: TypeAlias = "ir.Value | Sequence[ir.Value] | None"
Rewrite = Callable[["Rewriter", ir.Operation], Rewritten]


class Pattern(Protocol):
    """A `Rewrite` and the mnemonics that it is tried on (see `pattern`)."""

    __name__: str
    roots: tuple[str, ...]

    def __call__(self, rw: Rewriter, op: ir.Operation, /) -> Rewritten: ...


#: sweeps over the graph after which the driver concludes that two patterns undo each other
MAX_SWEEPS = 200


def pattern(*names: str) -> Callable[[Rewrite], Pattern]:
    """Decorator: the pattern is tried on operators with these mnemonics (``"*"``: on all, after the others)."""

    def mark(f: Rewrite) -> Pattern:
        marked = cast(Pattern, f)
        marked.roots = names
        return marked

    return mark


# ---- looking -------------------------------------------------------------------------------------------------------


def definition(value: ir.Value | None) -> ir.Operation | None:
    """The operation that makes a value, None for an argument (and for no value)."""
    owner = None if value is None else value.owner
    return None if owner is None or isinstance(owner, ir.Block) else owner.operation


def defined_by(value: ir.Value | None, *names: str) -> ir.Operation | None:
    """The operation that makes a value if it is ``tw.<one of names>``."""
    op = definition(value)
    return op if op is not None and (name := op.name)[:3] == "tw." and name[3:] in names else None


def users(value: ir.Value) -> list[ir.Operation]:
    """The operations that use a value, one entry a use."""
    return [u.owner.operation for u in value.uses]


def uses(op: ir.Operation) -> Iterator[ir.Value]:
    """The values that an operator reads, those that its regions read from outside of them included."""
    yield from op.operands
    for region in op.regions:
        own: set[ir.Value] = {*region.blocks[0].arguments}
        for inner in region.blocks[0].operations:
            yield from (v for v in uses(inner.operation) if v not in own)
            own.update(inner.operation.results)


def is_dead(op: ir.Operation) -> bool:
    """A pure `tw` operation none of whose results is used."""
    for r in op.results:
        for _ in r.uses:
            return False
    name = dialect.mnemonic(op)
    return name is not None and dialect.OPERATORS[name].pure


def elementwise(op: ir.Operation | None) -> bool:
    """A `tw` operator that computes each element from one element of every operand, operands broadcast."""
    name = dialect.mnemonic(op) if op is not None else None
    return name is not None and issubclass(dialect.OPERATORS[name], Elementwise)


def has_one_use(value: ir.Value) -> bool:
    uses = iter(value.uses)
    return next(uses, None) is not None and next(uses, None) is None


def either_order(op: ir.Operation) -> Iterator[tuple[ir.Value, ir.Value]]:
    """The two operands of a commutative operator, in both orders."""
    a, b = op.operands
    yield a, b
    yield b, a


def names(op: ir.Operation | ir.OpView) -> list[str]:
    """The source node names in an operation's location, without repeats."""
    return list(dict.fromkeys(_names(op.operation.location)))


def _names(location: ir.Location) -> Iterator[str]:
    if isinstance(location, ir.NameLoc):
        yield location.name_str
    elif isinstance(location, ir.FusedLoc):
        for part in location.locations:
            yield from _names(part)


def fuse_locations(ops: Iterable[ir.Operation | ir.OpView]) -> ir.Location:
    """One location that keeps the names of all `ops`."""
    ops = list(ops)
    found = dict.fromkeys(n for op in ops for n in names(op))
    if not found:
        return ops[0].operation.location
    parts = [ir.Location.name(n) for n in found]
    return parts[0] if len(parts) == 1 else ir.Location.fused(parts)


# ---- building ------------------------------------------------------------------------------------------------------


class Rewriter:
    """What a pattern uses to look at constants and to build new operations in front of the matched one."""

    def __init__(self, graph: Graph, counts: Counter[str] | None = None) -> None:
        self.graph = graph
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.location: ir.Location | None = None

    def names_of(self, *ops: ir.Operation | None) -> None:
        """Operations created from here on carry the names of these operations (default: of the matched one)."""
        self.location = fuse_locations([op for op in ops if op is not None])

    def create(self, name: str, *operands: ir.Value | None, **attrs: Any) -> ir.Value:
        """A new ``tw.<name>`` with one result, in front of the matched operation."""
        return dialect.create(name, *operands, location=self.location, **attrs)[0]

    def constant(self, array: npt.ArrayLike, hint: str = "c") -> ir.Value:
        return self.graph.constant(np.asarray(array), hint, self.location)

    def like(self, number: npt.ArrayLike, value: ir.Value) -> ir.Value:
        """A rank-0 constant of the dtype of `value`."""
        with np.errstate(over="ignore"):
            return self.constant(np.asarray(number).astype(numpy_dtype(type_of(value).dtype)))

    def array(self, value: ir.Value | None) -> np.ndarray | None:
        """The array of a constant, None for any other value."""
        return self.graph.constant_value(value)

    def scalar(self, value: ir.Value | None) -> Any:
        """The number in a constant of one element, None for any other value."""
        op = defined_by(value, "constant")
        if op is None or type_of(value).size != 1:
            return None
        array = self.array(value)
        return None if array is None else array.reshape(-1)[0].item()

    def splat(self, value: ir.Value | None) -> Any:
        """The number that every element of a constant is; None if they differ or are very many."""
        op = defined_by(value, "constant")
        if op is None or not 0 < type_of(value).size <= 1 << 20:
            return None
        array = self.array(value)
        assert array is not None
        flat = array.reshape(-1)
        return flat[0].item() if flat[0] == flat[-1] and (flat == flat[0]).all() else None

    def symbol(self, value: ir.Value) -> str:
        """The symbol of a constant kept in the table, ``"c"`` for others: a good hint for what is made from it."""
        op = defined_by(value, "constant")
        return ir.StringAttr(op.attributes["symbol"]).value if op is not None and "symbol" in op.attributes else "c"

    def reshape(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """`value` itself if it already has the shape."""
        if type_of(value).shape == tuple(shape):
            return value
        array = self.array(value)
        if array is not None:
            return self.constant(array.reshape(shape), self.symbol(value))
        return self.create("reshape", value, shape=tuple(shape))

    def broadcast(self, value: ir.Value, shape: Sequence[int | None]) -> ir.Value | None:
        """`value` expanded to a shape that it broadcasts to; None if that is not known."""
        if type_of(value).shape == tuple(shape):
            return value
        if None in shape or not type_of(value).static:
            return None
        return self.create("expand", value, shape=tuple(shape))

    def transpose(self, value: ir.Value, permutation: Sequence[int]) -> ir.Value:
        """`value` itself for the identity; constants are transposed in the table."""
        if tuple(permutation) == tuple(range(len(permutation))):
            return value
        array = self.array(value)
        if array is not None:
            return self.constant(np.asarray(array.transpose(permutation), order="C"), self.symbol(value))
        return self.create("transpose", value, permutation=tuple(permutation))

    def again(self, op: ir.Operation, operands: Sequence[ir.Value | None], **changes: Any) -> list[ir.Value]:
        """The same operator on other operands, with some attributes changed."""
        attrs = {**dialect.attributes(op), **changes}
        return dialect.create(dialect.operator(op).mnemonic, *operands, location=self.location, **attrs)


# ---- the driver ----------------------------------------------------------------------------------------------------


def rewrite(graph: Graph, patterns: Sequence[Pattern], limit: int = MAX_SWEEPS) -> dict[str, int]:
    """Apply patterns to @main until none applies; returns how often each did.

    Sweeps run in program order, so a change reaches all later users within the same sweep. CompileError after `limit`
    sweeps (patterns that undo each other), and if a pattern returns a value of another type.
    """
    table: dict[str, list[Pattern]] = {}
    for p in patterns:
        for root in p.roots:
            table.setdefault(f"tw.{root}", []).append(p)
    rw = Rewriter(graph)
    with use():
        erase_dead(graph)
        for _ in range(limit):
            last = _sweep(rw, table)
            if last is None:
                if rw.counts or current() is not None:  # else nothing was made (`_applied`)
                    erase_dead(graph)
                return dict(rw.counts)
    raise CompileError(f"rewriting did not come to an end; pattern {last} still applies", stage="rewrite")


def _sweep(rw: Rewriter, table: dict[str, list[Pattern]]) -> str | None:
    """One pass over @main; the name of the last pattern that changed something."""
    last = None
    everywhere = table.get("tw.*", [])
    tried: dict[str, list[Pattern]] = {}
    for op in list(rw.graph.operations()):
        name = op.name
        if name not in tried:
            tried[name] = [*table.get(name, ()), *everywhere]
        if not tried[name]:
            continue
        check_time("rewrite")
        location, point = op.location, ir.InsertionPoint(op)
        for p in tried[name]:
            rw.location = location
            with point:
                new = _applied(p, rw, op)
            if new is None:
                continue
            last = p.__name__
            rw.counts[last] += 1
            replace(op, new, by=last)
            break
    return last


def _applied(pattern: Pattern, rw: Rewriter, op: ir.Operation) -> Any:
    """What a pattern makes of an operator; None where that hangs on sizes that are not known yet."""
    try:
        return pattern(rw, op)
    except Undecided:
        return None


def replace(op: ir.Operation, new: ir.Value | Sequence[ir.Value], by: str = "rewrite") -> None:
    """Use `new` wherever the results of `op` are used, then erase `op` and all that only it needed."""
    values = list(new) if isinstance(new, (list, tuple)) else [new]
    before, after = [type_of(r) for r in op.results], [type_of(v) for v in values]
    if before != after:
        raise CompileError(
            f"{by} would replace {', '.join(map(str, before))} by {', '.join(map(str, after))}",
            stage="rewrite",
            operator=f"{op.name} {op.location}",
        )
    for r, v in zip(op.results, values, strict=True):
        r.replace_all_uses_with(v)
    erase_if_dead(op)


def erase_if_dead(op: ir.Operation) -> int:
    """Erase an unused pure operation, and what becomes unused by that; returns how many."""
    pending, erased = {op: None}, 0  # a dict: an operation must not be looked at again once erased
    while pending:
        op = pending.popitem()[0]
        if is_dead(op):
            makers = [d for d in map(definition, op.operands) if d is not None]
            op.erase()
            erased += 1
            pending.update(dict.fromkeys(makers))
    return erased


def erase_dead(graph: Graph) -> int:
    """Erase every unused pure operation of @main; returns how many."""
    erased = 0
    for op in reversed(list(graph.operations())):
        if is_dead(op):
            op.erase()
            erased += 1
    return erased


def drop_unused_constants(graph: Graph) -> int:
    """Remove from the table what no operation of the module refers to; returns how many arrays."""
    used: set[str] = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "tw.constant" and "symbol" in op.attributes:
            used.add(ir.StringAttr(op.attributes["symbol"]).value)
        return ir.WalkResult.ADVANCE

    graph.module.operation.walk(visit)
    before = len(graph.constants)
    graph.constants.keep_only(used)
    return before - len(graph.constants)


def static(*values: ir.Value) -> bool:
    """All shapes are known."""
    return all(type_of(v).static for v in values)


def shape(value: ir.Value) -> tuple[Any, ...]:
    return type_of(value).shape


def dtype(value: ir.Value) -> str:
    return type_of(value).dtype
