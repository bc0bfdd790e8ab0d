"""Recognizes paged attention where keys and values are gathered by a block table, and gathers them again where no
kernel reads pages in place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..ir.types import numpy_dtype, type_of
from .passes import PassReport, register
from .rewrite import Rewriter, Rewritten, defined_by, dtype, pattern, rewrite, shape, static
from .simplify_shape import permutation

#: [B, S, H, D] to [B, H, S, D], and the same where S is still N pages of L
_HEADS_FIRST, _HEADS_BEFORE_PAGES = (0, 2, 1, 3), (0, 3, 1, 2, 4)


@register("match-pages")
@dataclass(frozen=True)
class MatchPages:
    """Find attention to keys and values that a table gathers from pages [P, L, Hk, D].

        %0 = "tw.gather"(%pages, %table) : (tensor<100x16x2x64xf16>, tensor<1x32xi32>) -> tensor<1x32x16x2x64xf16>
        %1 = "tw.reshape"(%0) {shape = array<i64: 1, 512, 2, 64>} : ...
        %2 = "tw.transpose"(%1) {permutation = array<i64: 0, 2, 1, 3>} : ...
        %5 = "tw.attention"(%q, %2, %4) {scale = 0.125} : ...
    ->  %0 = "tw.paged_attention"(%q, %pages, %value_pages, %table) {scale = 0.125} : ...
    """

    def run(self, graph: Graph) -> PassReport:
        @pattern("attention")
        def pages(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """attention(q, gathered k, gathered v) -> paged_attention(q, k, v, table)"""
            q, k, v, mask = dialect.arguments(op)
            keys, values = _gathered(k), _gathered(v)
            if keys is None or values is None or keys[1] != values[1] or shape(keys[0])[:3] != shape(values[0])[:3]:
                return None
            return rw.create("paged_attention", q, keys[0], values[0], keys[1], None, mask, **dialect.attributes(op))

        return rewrite(graph, [pages])


def _gathered(x: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """The pages and the table that keys or values [B, Hk, N * L, D] come from: gathered, and then joined and turned, in
    either order."""
    last = defined_by(x, "transpose", "reshape")
    other = {"tw.transpose": "reshape", "tw.reshape": "transpose"}.get(last.name if last is not None else "")
    first = defined_by(last.operands[0], other) if last is not None and other else None
    found = defined_by(first.operands[0], "gather") if first is not None else None
    if last is None or first is None or found is None:
        return None
    pages, table = found.operands
    if dialect.attributes(found)["axis"] or not static(pages, table) or dtype(table) not in ("i32", "i64"):
        return None
    if type_of(pages).rank != 4 or type_of(table).rank != 2:
        return None
    (_, length, heads, depth), (batch, count) = shape(pages), shape(table)
    turn, order = (last, _HEADS_FIRST) if last.name == "tw.transpose" else (first, _HEADS_BEFORE_PAGES)
    right = permutation(turn) == order and shape(x) == (batch, heads, count * length, depth)
    return (pages, table) if right else None


@register("gather-pages")
@dataclass(frozen=True)
class GatherPages:
    """The opposite of `match-pages`, for machines whose kernels read keys that lie one after the other."""

    def run(self, graph: Graph) -> PassReport:
        @pattern("paged_attention")
        def gathered(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """paged_attention(q, k, v, table, lengths) -> attention(q, gathered k, gathered v, mask)"""
            q, k, v, table, lengths, mask = dialect.arguments(op)
            if not static(q, k, v, table):
                return None  # its decomposition knows open sizes
            kept = [_in_order(rw, x, table) for x in (k, v)]
            if lengths is not None:
                mask = _sees(rw, q, shape(kept[0])[2], lengths, mask)
            return rw.create("attention", q, *kept, mask, **dialect.attributes(op))

        return rewrite(graph, [gathered])


def _in_order(rw: Rewriter, pages: ir.Value, table: ir.Value) -> ir.Value:
    (_, length, heads, depth), (batch, count) = shape(pages), shape(table)
    found = rw.reshape(rw.create("gather", pages, table, axis=0), (batch, count * length, heads, depth))
    return rw.create("transpose", found, permutation=_HEADS_FIRST)


def _sees(rw: Rewriter, q: ir.Value, keys: int, lengths: ir.Value, mask: ir.Value | None) -> ir.Value:
    """The mask of queries that are the last of so many positions."""
    kind, (batch, _, queries, _) = numpy_dtype(dtype(lengths)), shape(q)
    own = rw.constant((np.arange(queries) - queries).astype(kind).reshape(1, 1, queries, 1))
    last = rw.create("add", rw.reshape(lengths, (batch, 1, 1, 1)), own)
    place = rw.constant(np.arange(keys).astype(kind).reshape(1, 1, 1, keys))
    number = numpy_dtype(dtype(q))
    kept = rw.create(
        "where",
        rw.create("less_equal", place, last),
        rw.constant(np.zeros((), number)),
        rw.constant(np.asarray(-np.inf, number)),
    )
    return kept if mask is None else rw.create("add", mask, kept)


__all__ = ["GatherPages", "MatchPages"]
