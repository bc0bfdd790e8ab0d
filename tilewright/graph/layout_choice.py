"""Which convolutions keep their channels first: those that stand alone, or in a short chain, where the transposes at
the chain's ends would cost more than channels last gain.

A chain is what transposes would pass through (`layout`): convolutions and the elementwise operators, pads and
concatenations between them. It is decided as a whole, by estimated cycles of one core:

    channels last    each convolution with lanes along filters, and a transpose where a result leaves the chain
    channels first   each convolution with lanes along pixels: full where an image is wide, however few the filters

Both forms of a kernel reach their estimate within some percent (measured: 170 convolutions of random sizes, with
vectors of 64 bytes), so what decides is how full vectors are, and the borders. Long chains keep channels last: their
kernels know more of each other (Winograd's method, depthwise convolutions row by row, weights asked for ahead of time).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..support.sizes import is_open, typical, typically
from .choose_winograd import CHANNELS, Layer, choose
from .machine_costs import ImageCosts, WinogradCosts
from .rewrite import defined_by, dtype, elementwise, shape, static, users
from .simplify_shape import permutation

#: a chain of more convolutions keeps channels last, and one whose estimate with channels first is not at most WORTH of
#: the other: estimates are as good as that, and in a long chain kernels know more of each other
LONE, WORTH = 3, 0.92
#: operators through which a chain goes on beside elementwise ones
THROUGH = ("batch_norm", "softmax", "log_softmax", "pad", "slice", "concat", "split")
#: operators that `layout` gives channels last, and others that follow: a chain with one keeps them
KEEP = (
    "conv_transpose", "integer_conv", "max_pool", "avg_pool", "lp_pool", "group_norm", "hardmax", "lp_norm", "resample",
    "cumsum", "requantize", "quantize_linear", "dequantize_linear", "lookup", "tile",
)  # fmt: skip


@dataclass
class Chain:
    """Estimated cycles with channels last and first, and the results of the convolutions; `keep`: channels last in any
    case."""

    last: float = 0.0
    first: float = 0.0
    convolutions: list[ir.Value] = field(default_factory=list)
    keep: bool = False


@dataclass(frozen=True)
class Sizes:
    """A convolution: n x out results of `filters` channels, from `channels` in `groups`."""

    n: int
    channels: int
    filters: int
    out: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    groups: int = 1


def stay_first(graph: Graph, lanes: int, costs: ImageCosts, winograd: WinogradCosts) -> set[ir.Value]:
    """The results of the convolutions to leave with their channels first, for a machine with vectors of `lanes` f32."""
    with typically():  # what is faster
        chains = _Chains(lanes, costs, winograd)
        for op in graph.operations():
            chains.add(op)
        return {
            v
            for c in chains.all()
            if not c.keep and len(c.convolutions) <= LONE and c.first <= WORTH * c.last
            for v in c.convolutions
        }


def cycles(c: Sizes, lanes: int, x: ImageCosts) -> tuple[float, float]:
    """Estimated cycles of a convolution with channels last and with channels first."""
    depth, places = c.channels // c.groups, c.n * prod(c.out)
    products, far = depth * prod(c.window), c.strides[-1] > 1
    columns = c.n * prod(c.out[:-1]) * -(-c.out[-1] // lanes)  # vectors of one channel
    if depth == 1 and c.filters == c.groups:
        vectors = places * -(-c.channels // lanes)
        merged = vectors if far else min(vectors, x.merged * places * c.channels / lanes)
        last, first = (x.last_product, x.last_beside), (x.first_product, x.first_beside)
        if far:
            last, first = (x.last_far_product, x.last_far_beside), (x.first_far_product, x.first_far_beside)
        return (last[0] * products + last[1]) * merged, (first[0] * products + first[1]) * columns * c.channels
    result = products / x.per_cycle + x.result
    channels_last = places * c.groups * -(-(c.filters // c.groups) // lanes) * result
    if depth * c.window[-1] >= x.long_sum:
        channels_last = min(channels_last, x.along_sums * places * c.filters / lanes * products / x.per_cycle)
    if prod(c.window) == 1 and not far:
        return channels_last, c.n * -(-prod(c.out) // lanes) * c.filters * result
    return channels_last, columns * c.filters * result * (x.striding if far else x.sliding)


class _Chains:
    """Finds the chains of a graph: every value of one leads to it."""

    def __init__(self, lanes: int, costs: ImageCosts, winograd: WinogradCosts) -> None:
        self.lanes, self.costs, self.winograd = lanes, costs, winograd
        self.of: dict[ir.Value, Chain] = {}
        self.left: set[ir.Value] = set()

    def all(self) -> list[Chain]:
        return list({id(c): c for c in self.of.values()}.values())

    def add(self, op: ir.Operation) -> None:
        name = dialect.mnemonic(op) or ""
        if name == "conv" and dialect.attributes(op)["layout"] == "nchw" and static(op.results[0], op.operands[0]):
            self.convolution(op)
        elif self.follows(op, name):
            self.join(op, keep=name in KEEP)
        elif name in KEEP and static(*op.results, *op.operands):
            self.of[op.results[0]] = Chain(keep=True)
            self.leave(op)
        elif name == "transpose":
            if (chain := self.of.get(op.operands[0])) is not None and permutation(op)[-1] == 1:
                chain.first += self.costs.transposed * _turned(op.operands[0])  # wanted with its channels last
        elif not self.absorbed(op, name):
            self.leave(op)

    def convolution(self, op: ir.Operation) -> None:
        x, w = op.operands[0], op.operands[1]
        chain = self.join(op) if x in self.of else self.of.setdefault(op.results[0], Chain())
        chain.convolutions.append(op.results[0])
        a, out = dialect.attributes(op), shape(op.results[0])
        plain = all(dtype(v) == "f32" for v in (x, w, op.results[0])) and static(w) and prod(shape(w)) > 0
        if not plain or a["x_layout"] is not None or _by_winograd(op, self.winograd) or 0 in out:
            chain.keep = True
            return
        window = shape(w)[2:]
        if is_open(out[-1]) and shape(w)[1] > 1 and (prod(window) > 1 or max(a["strides"]) > 1):
            chain.keep = True  # a tile of columns has no last one whose length is known at run time
            return
        sizes = Sizes(out[0], shape(x)[1], out[1], out[2:], window, a["strides"], a["groups"])
        last, first = cycles(sizes, self.lanes, self.costs)
        if prod(window) == 1 and x not in self.of:
            last *= self.costs.read_across
        chain.last, chain.first = chain.last + last, chain.first + first
        if any(a["pads"]):
            outside = x not in self.of  # else who makes x writes the border
            chain.last += self.costs.padded_last * prod(shape(x)) * outside
            rows, row = prod(shape(x)[:-1]), shape(x)[-1]
            chain.first += self.costs.padded_first * rows * -(-row // self.lanes)
        turned = defined_by(x, "transpose")
        if turned is not None and permutation(turned)[-1] == 1:  # given with its channels last
            chain.first += self.costs.transposed * prod(shape(x))
        elif turned is None and x not in self.of and shape(w)[1] == 1 and not any(a["pads"]):
            # other transposes are done with the padding, or by who reads
            chain.last += self.costs.transposed * _turned(x)

    def follows(self, op: ir.Operation, name: str) -> bool:
        """Whether the transposes of its operands would pass through an operation, see `layout`."""
        if not static(*op.results, *op.operands) or not any(v in self.of for v in op.operands):
            return False
        if elementwise(op):
            rank = len(shape(op.results[0]))
            return all(self._passes(v, rank) for v in op.operands)
        if name == "concat":
            return all(v in self.of or defined_by(v, "constant") is not None for v in op.operands)
        if name.startswith("reduce_"):
            return op.operands[0] in self.of and bool(dialect.attributes(op)["keepdims"])
        return name in (*THROUGH, *KEEP) and op.operands[0] in self.of

    def _passes(self, v: ir.Value, rank: int) -> bool:
        dims = shape(v)
        if v in self.of:
            return len(dims) == rank
        return defined_by(v, "constant") is not None or sum(d != 1 for d in dims) <= 1

    def absorbed(self, op: ir.Operation, name: str) -> bool:
        """Whether a transpose in front of an operation costs nothing: it sums up the image, or flattens it for constant
        weights."""
        if name == "reshape":
            readers = users(op.results[0])
            return bool(readers) and all(
                r.name == "tw.matmul" and defined_by(r.operands[1], "constant") is not None for r in readers
            )
        return name.startswith("reduce_")

    def join(self, op: ir.Operation, keep: bool = False) -> Chain:
        """Make one chain of those that an operation reads, which its results belong to."""
        found = list({id(c): c for v in op.operands if (c := self.of.get(v)) is not None}.values())
        chain, others = found[0], found[1:]
        for c in others:
            chain.last, chain.first = chain.last + c.last, chain.first + c.first
            chain.convolutions += c.convolutions
            chain.keep |= c.keep
        if others:
            self.of.update({v: chain for v, c in self.of.items() if any(c is o for o in others)})
        chain.keep |= keep
        self.of.update(dict.fromkeys(op.results, chain))
        return chain

    def leave(self, op: ir.Operation) -> None:
        """What an operation outside reads of a chain is transposed, once."""
        for v in op.operands:
            chain = self.of.get(v)
            if chain is not None and v not in self.left:
                self.left.add(v)
                chain.last += self.costs.transposed * _turned(v)


def _turned(v: ir.Value) -> int:
    """How many elements move when the channels of an image become last."""
    _, channels, *places = shape(v)
    return 0 if channels == 1 or prod(places) == 1 else prod(shape(v))


def _by_winograd(op: ir.Operation, costs: WinogradCosts) -> bool:
    """Whether a convolution with its channels last would be computed by Winograd's method."""
    a, w, out = dialect.attributes(op), shape(op.operands[1]), shape(op.results[0])
    plain = a["strides"] == a["dilations"] == (1, 1) and a["groups"] == 1 and w[2:] == (3, 3)
    if not plain or w[0] % CHANNELS or w[1] % CHANNELS or defined_by(op.operands[1], "constant") is None or 0 in out:
        return False
    return choose(Layer(typical(out[0]), typical(out[2]), typical(out[3]), w[1], w[0]), costs) != "direct"


__all__ = ["Sizes", "cycles", "stay_first"]
