"""Ragged attention of few tokens in parts of the keys, so that all threads work."""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..support.sizes import highest
from .passes import PassReport, register
from .rewrite import Rewriter, Rewritten, dtype, pattern, rewrite, shape

#: more tokens have tasks enough, or few keys
FEW = 32
#: parts at most, and the part of the threads' time that is enough
MOST, ENOUGH = 16, 0.85


@register("split-ragged-attention")
@dataclass(frozen=True)
class SplitRaggedAttention:
    """Take the keys of a step with few tokens in parts, which a second kernel puts together.

    One sequence has a task for each head of keys: three of them keep two of sixteen threads busy for two turns. The
    number of parts is the least that keeps `threads` busy; short sequences fill one part, the others are empty.

        %0 = "tw.ragged_attention"(%q, %k, %v, %table, %starts, %lengths) {scale = 0.125} : ...
    ->  %0:3 = "tw.ragged_attention_parts"(%q, %k, %v, %table, %starts, %lengths) {parts = 2, scale = 0.125} : ...
        %1 = "tw.attention_join"(%0#0, %0#1, %0#2) {to = "f32"} : ... -> tensor<?x9x1x64xf32>
    """

    threads: int = 1

    def run(self, graph: Graph) -> PassReport:
        @pattern("ragged_attention")
        def split(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """ragged_attention(q, k, v, ...) -> reshape(attention_join(ragged_attention_parts(q, k, v, ...)))"""
            q, k = op.operands[0], op.operands[1]
            attributes = dialect.attributes(op)
            count = parts(shape(k)[2], self.threads)
            if count < 2 or shape(q)[0] is None or highest(shape(q)[0]) > FEW:
                return None
            if dtype(q) == "f64" or attributes["window"] or 0 in shape(op.results[0]):
                return None
            made = dialect.create(
                "ragged_attention_parts", *dialect.arguments(op), location=rw.location, **attributes, parts=count
            )
            joined = rw.create("attention_join", *made, to=dtype(q))
            return rw.create("reshape", joined, shape=shape(op.results[0]))

        return rewrite(graph, [split])


def parts(heads: int, threads: int) -> int:
    """In how many parts the keys of so many heads are taken.

    >>> parts(3, 2), parts(8, 2), parts(8, 16), parts(1, 8), parts(8, 1)
    (2, 1, 2, 7, 1)
    """

    def busy(count: int) -> float:
        return heads * count / (-(-heads * count // threads) * threads)

    return next((n for n in range(1, MOST) if busy(n) >= ENOUGH), MOST)


__all__ = ["SplitRaggedAttention", "parts"]
