"""Rows written into pages: how the keys and values of a step of a language model come into its cache."""

from __future__ import annotations

from ..ir.dialect import Operator
from ..support.dtypes import wide
from ..support.errors import OpError
from .common import need, need_shape


class WritePages(Operator):
    """Pages [P, L, ...] of L positions in which row t of `rows` [T, ...] takes the place of row ``slots[t] % L`` of
    page ``slots[t] // L`` (i32 [T]). -1, and any other number that is none of a row, writes nothing. No two slots may
    be the same row. Rows are converted to the dtype of the pages, as from f32 to bf16.

    Opaque: where the result lies in the memory of `pages`, as for a state, the rows alone are written.

    ``"tw.write_pages"(%pages, %rows, %slots) : (tensor<100x16x2x64xbf16>, tensor<6x2x64xf32>, tensor<6xi32>) -> ...``
    """

    kind = "opaque"

    @staticmethod
    def infer(pages, rows, slots):
        need("float", pages, rows)
        if pages.rank < 2 or rows.rank != pages.rank - 1:
            raise OpError(f"pages are [P, L, ...] and rows [T, ...], got {pages} and {rows}")
        if rows.dtype not in (pages.dtype, wide(pages.dtype)):
            raise OpError(f"rows {rows} do not become elements of {pages}")
        need_shape("rows", rows, (rows.shape[0], *pages.shape[2:]))
        if slots.dtype != "i32":
            raise OpError(f"slots are of i32, got {slots}")
        need_shape("slots", slots, (rows.shape[0],))
        return pages

    @staticmethod
    def reference(pages, rows, slots):
        out = pages.copy()
        flat = out.reshape(-1, *pages.shape[2:])
        there = (slots >= 0) & (slots < len(flat))
        flat[slots[there]] = rows[there].astype(pages.dtype)
        return out

    @staticmethod
    def decompose(b, pages, rows, slots):
        (count, length), tokens = pages.shape[:2], rows.shape[0]
        hits = b.compute(
            pages.type.with_shape((count, length, tokens)).with_dtype("i32"),
            lambda p, j, t: b.select(b.cast(b.load(slots, [t]), "index").eq(p * length + j), b.cast(t + 1, "i32"), 0),
        )
        found = b.reduce(lambda x, n: b.larger(x, n), 0, hits, [2])  # one more than the number of the row, 0: none

        def element(p, j, *at):
            row = b.cast(b.load(found, [p, j]), "index") - 1
            new = b.load(rows, [b.larger(row, 0), *at])
            return b.select(row < 0, b.load(pages, [p, j, *at]), b.cast(new, pages.dtype))

        return b.compute(pages.type, element)


__all__ = ["WritePages"]
