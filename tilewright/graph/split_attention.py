"""Split-K attention (flash decoding): few queries to many keys in parts of the keys, so that all multiprocessors
work."""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..ir.types import type_of
from ..support.dtypes import NUMPY
from .machine_costs import GridCosts, required
from .passes import PassReport, register
from .rewrite import Rewriter, Rewritten, dtype, pattern, rewrite, shape, static

#: more queries have tiles of their own for a grid, and parts are no shorter than so many keys
FEW, SHORTEST = 64, 128
#: what is tried, and the rows of queries that a block has
MOST_PARTS, BLOCK_ROWS = 256, 8
#: keys of a step; parts that are no whole steps need conditions, which take this part of the time
STEP, CONDITIONS = 64, 0.03
#: what parts must save of the time
WORTH = 0.9
#: how much more than its part of the memory's speed a processor has where others have nothing to do, and how many times
#: as long an access takes when memory gives all it can
ALONE, WAITING = 1.5, 3


@register("split-attention")
@dataclass(frozen=True)
class SplitAttention:
    """Take the keys of an attention with few queries in parts, which a second kernel puts together.

    A block goes along all keys of a head, so that a decode step of 8 heads has work for 8 processors. Each part has a
    softmax of its own; what joins them is `attention_join`, which what follows joins in turn. The number of parts is
    one that makes memory give what it can, by `costs`, or `parts` for all.

        %0 = "tw.attention"(%q, %k, %v) {scale = 0.125} : (tensor<1x8x1x64xf16>, tensor<1x8x8192x64xf16>, ...) -> ...
    ->  %0:3 = "tw.attention_parts"(%q, %k, %v) {parts = 16, scale = 0.125} : ...
        %1 = "tw.attention_join"(%0#0, %0#1, %0#2) {to = "f16"} : ... -> tensor<1x8x1x64xf16>
    """

    costs: GridCosts | None = None
    parts: int = 0

    def run(self, graph: Graph) -> PassReport:
        costs = None if self.parts else required(self.costs, "split-attention", "costs")

        @pattern("attention", "paged_attention")
        def split(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """attention(q, k, v) -> attention_join(attention_parts(q, k, v))"""
            there = [v for v in dialect.arguments(op) if v is not None]
            if not static(*there) or dtype(op.operands[0]) == "f64" or 0 in shape(op.results[0]):
                return None
            count = self.parts or (costs is not None and parts(op, costs)) or 1
            if count < 2:
                return None
            name, attributes = f"{dialect.mnemonic(op)}_parts", dialect.attributes(op)
            made = dialect.create(name, *dialect.arguments(op), location=rw.location, **attributes, parts=count)
            return rw.create("attention_join", *made, to=dtype(op.results[0]))

        return rewrite(graph, [split])


def parts(op: ir.Operation, costs: GridCosts) -> int:
    """In how many parts the keys of an attention are taken; 1 for those that stay together."""
    q, k, v, *rest = dialect.arguments(op)
    (batch, heads, queries, depth), width = shape(q), shape(v)[3]
    shared, keys = shape(k)[1:3]
    if dialect.mnemonic(op) == "paged_attention":
        length, shared = shape(k)[1:3]
        keys = length * shape(rest[0])[1]
    rows = queries * (heads // shared)
    if queries > FEW:
        return 1
    blocks = batch * shared * -(-rows // BLOCK_ROWS)
    nbytes = NUMPY[type_of(k).dtype].itemsize * (depth + width)
    results = batch * heads * queries * 4 * (width + 2)
    return best(blocks, keys, nbytes, results, costs)


def best(blocks: int, keys: int, nbytes: int, results: int, costs: GridCosts) -> int:
    """The number of parts for so many blocks without parts, bytes of a key, and bytes of a part's results.

    >>> h100 = GridCosts(132, 3, (128, 1024, 2048), far=1900, near=48, begin=1200, kernel=3000)
    >>> best(32, 32768, 512, 32 * 4 * 130, h100), best(8, 4096, 512, 32 * 4 * 130, h100), best(1024, 4096, 512, 1, h100)
    (16, 32, 1)
    """
    own = costs.far / costs.processors

    def cycles(n: int) -> float:
        run = -(-keys // (n * STEP)) * STEP
        busiest = -(-blocks * n // costs.processors)
        loaded = min(blocks * n / (costs.processors * costs.beside), 1.0)
        speed = min(busiest / costs.beside * WAITING / (1 + (WAITING - 1) * loaded), ALONE) * own
        read = max(blocks * n * run * nbytes / costs.far, busiest * run * nbytes / speed)
        turns = -(-busiest // costs.beside)
        join = costs.kernel + costs.begin + 2 * results * n / costs.far if n > 1 else 0
        return read * (1 + (CONDITIONS if keys % (n * STEP) else 0)) + turns * costs.begin + join

    tried = [n for n in range(1, MOST_PARTS + 1) if n == 1 or keys >= n * SHORTEST]
    found = min(tried, key=lambda n: (cycles(n), n))
    return found if cycles(found) < WORTH * cycles(1) else 1


__all__ = ["SplitAttention", "best", "parts"]
