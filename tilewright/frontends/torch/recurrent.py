"""LSTM, GRU and RNN over whole sequences: the products with the inputs of all steps at once, then one `tw` operator a
layer and direction. What has no operator, the LSTM with projected states, is unrolled."""

from __future__ import annotations

from collections.abc import Sequence

from .create import dropped
from .node import FxNode, FxTensor
from .registry import aten

#: for every cell, which of PyTorch's gates are those of `tw`, in order: LSTM i, f, g, o and GRU r, z, n
ORDERS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
#: what PyTorch calls the operators
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@aten(*[f"{kind}.input" for kind in KINDS], *[f"tilewright.{kind}" for kind in KINDS])
def recurrent(
    n: FxNode,
    x: FxTensor,
    states: FxTensor | list[FxTensor],
    params: Sequence[FxTensor],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[FxTensor]:
    """The last layer's h of all steps, and the last states of all layers and directions."""
    kind = n.overload.split(".")[1]
    states = list(states) if isinstance(states, list) else [states]
    directions = 2 if bidirectional else 1
    each = len(params) // (layers * directions)
    projected = each > 2 + 2 * biases
    n.need(all(x.shape), "of nothing")
    x = n.transpose(x, (1, 0, 2)) if batch_first else x
    last: list[list[FxTensor]] = [[] for _ in states]
    for layer in range(layers):
        if layer and train and dropout:
            x, _ = dropped(n, x, dropout)
        results = []
        for d in range(directions):
            at = layer * directions + d
            own = [n.reshape(n.slice(s, 0, at, 1), s.shape[1:]) for s in states]
            given = params[at * each : (at + 1) * each]
            y, *ends = (
                _unrolled(n, x, own, given, bool(d)) if projected else _direction(n, kind, x, own, given, bool(d))
            )
            results.append(y)
            for found, end in zip(last, ends, strict=True):
                found.append(n.unsqueeze(end, 0))
        x = n.concat(results, 2)
    return [n.transpose(x, (1, 0, 2)) if batch_first else x, *[n.concat(ends, 0) for ends in last]]


def _direction(n: FxNode, kind: str, x: FxTensor, states: Sequence[FxTensor], params: Sequence[FxTensor],
               reverse: bool) -> list[FxTensor]:  # fmt: skip
    """x [time, batch, inputs] through one cell: h of all steps, and the last states [batch, hidden]."""
    cell, hidden = kind.partition("_")[0], states[0].shape[1]
    order = ORDERS[cell]

    def arranged(p: FxTensor) -> FxTensor:
        return n.concat([n.slice(p, 0, g * hidden, hidden) for g in order], 0)

    w, r, *bias = map(arranged, params)
    gates, weights = n("matmul", x, n.transpose(w, (1, 0))), n.transpose(r, (1, 0))
    if cell == "gru":  # the recurrent bias of the new state is added before the reset gate
        new = n.full((hidden,), 0, x.dtype)
        if bias:
            first, second = bias
            new = n.slice(second, 0, 2 * hidden, hidden)
            both = n("pad", n.slice(second, 0, 0, 2 * hidden), low=(0,), high=(hidden,))
            gates = n("add", gates, n("add", first, both))
        return n("gru", gates, weights, *states, new, reverse=reverse)
    if bias:
        gates = n("add", gates, n("add", *bias))
    attributes = {} if cell == "lstm" else {"activations": (kind.partition("_")[2],)}
    return n(cell, gates, weights, *states, reverse=reverse, **attributes)


def _unrolled(
    n: FxNode, x: FxTensor, states: Sequence[FxTensor], params: Sequence[FxTensor], reverse: bool
) -> list[FxTensor]:
    """An LSTM whose h [batch, projection] is a product of what its gates let out."""
    (h, c), (w, r, *bias, projection) = states, params
    n.known(x.shape[0])
    hidden, gates = c.shape[1], n("matmul", x, n.transpose(w, (1, 0)))
    for b in bias:
        gates = n("add", gates, b)
    weights, projection = n.transpose(r, (1, 0)), n.transpose(projection, (1, 0))
    steps: list[FxTensor] = []
    for t in range(x.shape[0])[:: -1 if reverse else 1]:
        both = n("add", n.reshape(n.slice(gates, 0, t, 1), gates.shape[1:]), n("matmul", h, weights))
        i, f, g, o = (
            n("tanh" if k == 2 else "sigmoid", n.slice(both, 1, k * hidden, hidden)) for k in range(len(ORDERS["lstm"]))
        )
        c = n("add", n("mul", f, c), n("mul", i, g))
        h = n("matmul", n("mul", o, n("tanh", c)), projection)
        steps.append(n.unsqueeze(h, 0))
    return [n.concat(steps[:: -1 if reverse else 1], 0), h, c]


__all__ = ["KINDS"]
