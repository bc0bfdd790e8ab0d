"""Programs with dynamic dimensions: planned for typical sizes, with formulas for all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..ir.types import Type
from ..program.open_plan import OpenPlan
from ..program.open_sizes import Formula, SizeTable
from ..program.plan import MemoryPlan
from ..program.program import BufferRef
from ..schedule.open_nest import typical_sizes
from ..support.errors import UnsupportedError, UsageError
from ..support.formulas import formula, symbol
from ..support.options import Options
from ..support.sizes import Dim, Sizes, current, is_open, value_at
from ..targets.base import Target, able


def check_open(options: Options, dims: Sequence[Dim], target: Target) -> None:
    """An error if this compilation can have no open dimensions: UnsupportedError for what is missing, UsageError for
    options that contradict them."""
    named = ", ".join(map(str, dims))
    if not target.takes_sizes:
        raise UnsupportedError(
            f"target {target.name!r} has no open dimensions ({named})",
            stage="import",
            hint=f"give the sizes: inputs={{name: (1, 128)}}; with open dimensions: {able(lambda t: t.takes_sizes)}",
        )
    if options.states and options.specialize == "background":
        raise UnsupportedError(
            f"programs for single sizes of {named} have no part in the states",
            stage="import",
            hint="leave out specialize='background': the program for all sizes serves all calls",
        )
    if options.buckets:
        raise UsageError(
            f"buckets pad to sizes that programs are made for, and {named} is one program for all",
            stage="import",
            hint="leave out buckets, or the ranges",
        )
    for name, wanted in (("precision", "auto"), ("verify", True)):
        if getattr(options, name) == wanted:
            raise UnsupportedError(
                f"{name}={wanted!r} runs the model, and the sizes of {named} are not known",
                stage="import",
                hint="use it at fixed sizes: inputs={name: (1, 128)}",
            )
    if options.arena_limit is not None:
        raise UnsupportedError(
            f"the working memory of a program with open dimensions ({named}) is known when it runs: there is no "
            "arena_limit for it",
            stage="import",
            hint="compile it for the largest sizes to see what they take",
        )


def open_plan(
    plan: MemoryPlan, places: OpenPlan, inputs: Sequence[Type], outputs: Sequence[Type]
) -> tuple[MemoryPlan, SizeTable]:
    """The plan of `plan_open` at typical sizes, and the formulas of all sizes; of inputs and outputs that the caller
    gives and gets."""
    known, typical = current(), typical_sizes()
    assert known is not None
    starts, arena = tuple(value_at(s, typical) for s in places.starts), value_at(places.arena, typical)
    copies = tuple((_settled(a, starts, typical), _settled(b, starts, typical)) for a, b in plan.copies)
    sizes = SizeTable(
        known.dims,
        tuple(tuple(_declared(d, known) for d in t.dims) for t in inputs),
        tuple(tuple(map(formula, t.dims)) for t in outputs),
        tuple(map(formula, places.starts)),
        formula(places.arena),
        tuple(formula(a.nbytes) for a, _ in plan.copies),
    )
    refs = tuple(_settled(r, starts, typical) for r in plan.refs)
    return replace(plan, refs=refs, copies=copies, arena_size=arena, bound=arena, arenas=(arena,)), sizes


def _declared(size: int, known: Sizes) -> Formula:
    """A dimension of an input: a number, an open dimension, or a formula of such."""
    return next((symbol(i) for i, s in enumerate(known.symbols) if s == size), formula(size))


def _settled(ref: BufferRef, starts: Sequence[int], typical: Mapping[str, int]) -> BufferRef:
    if is_open(ref.offset) or (ref.space == "arena" and ref.offset):
        raise UnsupportedError("a part of a buffer of open size has a place that is known at run time", stage="package")
    offset = starts[ref.slot] if ref.slot >= 0 else ref.offset
    return replace(ref, offset=offset, nbytes=value_at(ref.nbytes, typical))
