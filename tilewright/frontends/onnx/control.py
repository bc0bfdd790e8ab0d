"""Control flow and sequences, as far as they are resolved at import: branches are chosen, short loops unrolled,
sequences are Python lists. What depends on data raises
`DataDependentNode`, and the runtime executes it (`staging`).
"""

from __future__ import annotations

import numpy as np

from ...ir.types import NUMPY
from .registry import onnx_op
from .shape import split as split_parts
from .values import DataDependentNode, OnnxValue, Poison

#: loops with more iterations than this are not unrolled
MAX_ITERATIONS = 4096
#: nor, where the runtime can drive them, those of more nodes than this in all iterations
MAX_UNROLLED = 256


@onnx_op("If", since=1)
def if_(n, condition):
    branches = n.required("then_branch"), n.required("else_branch")
    known = condition.known()
    if known is not None:
        if known.size != 1:
            raise n.error(f"the condition has shape {known.shape}, it needs one element")
        return n.importer.subgraph(branches[0] if known.item() else branches[1], [], n.scope)
    if n.importer.lazy and any(costly(g) for g in branches):
        raise n.needs(condition, "the condition depends on the data, and its branches are costly")
    one = n.reshape(condition, ())
    sides = one, n("not", one)
    if n.scope.condition is not None:  # both are computed in a branch of which both are
        sides = n("and", sides[0], n.scope.condition), n("and", sides[1], n.scope.condition)
    results = [n.importer.subgraph(g, [], n.scope, condition=c) for g, c in zip(branches, sides, strict=True)]
    return [select(n, condition, x, y) for x, y in zip(*results, strict=True)]


def costly(graph) -> bool:
    """Whether a branch is worth a jump: it has more than a few operators, or one that is not elementwise."""
    return len(graph.node) > 4 or any(node.op_type not in CHEAP or len(node.input) > 2 for node in graph.node)


#: operators for which computing both branches costs less than waiting for the condition
CHEAP = frozenset({
    "Identity", "Constant", "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Relu", "Cast", "Not", "And", "Or", "Min", "Max",
    "Reshape", "Squeeze", "Unsqueeze",
})  # fmt: skip


def select(n, condition, x, y):
    """Both branches are computed (operators have no side effects) and one result is taken."""
    if isinstance(x, Poison) or isinstance(y, Poison):
        return x if isinstance(x, Poison) else y
    if not isinstance(x, OnnxValue) or not isinstance(y, OnnxValue) or x.type != y.type:
        raise n.needs(condition, "the condition depends on the data, and the branches give different types")
    return n("where", n.reshape(condition, ()), x, y)


def truth(n, condition, what) -> bool:
    """Whether a condition holds; it has to be known."""
    return condition is None or bool(n.scalar(condition, what))


def check_length(n, body, done, steps) -> None:
    """Ask if a loop is too long to unroll: `done` iterations so far, `steps` in all (None: not known)."""
    each = max(1, len(body.node)) * n.scope.repeats  # in all iterations of the loops around it
    longest = max(1, MAX_UNROLLED // each) if n.importer.lazy else MAX_ITERATIONS
    if done >= longest or (steps or 0) > longest:
        raise DataDependentNode(f"it has more than {longest} iterations")


@onnx_op("Loop", since=1)
def loop(n, count, condition, *carried):
    body = n.required("body")
    limit = None if count is None else int(n.scalar(count, "the trip count"))
    state = list(carried)
    scans: list[list] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    going, i = truth(n, condition, "the condition"), 0
    while going and (limit is None or i < limit):
        # with a condition the loop may end before its limit
        check_length(n, body, i, limit if condition is None else None)
        arguments = [n.constant(np.array(i), "i64"), n.constant(np.array(True)), *state]
        again, *results = n.importer.subgraph(body, arguments, n.scope, limit if condition is None else i + 1)
        if any(isinstance(r, Poison) for r in (again, *results)):
            return [again] * len(n.proto.output)
        state, step = results[: len(carried)], results[len(carried) :]
        for scan, item in zip(scans, step, strict=True):
            scan.append(item)
        going, i = truth(n, again, "the condition"), i + 1
    if i == 0 and scans:
        raise DataDependentNode("it runs no iteration, so the shape of its scan outputs is unknown")
    return [*state, *[stack(n, scan, 0) for scan in scans]]


@onnx_op("Scan", since=8)
def scan_batch(n, lengths, *operands):
    """Each element of the batch on its own; the first dimension of all operands counts them."""
    body, count = n.required("body"), n.required("num_scan_inputs")
    states = len(operands) - count
    backwards = n.attr("directions") or [0] * count
    batch, steps = operands[-1].shape[:2]
    check_length(n, body, 0, batch * steps)
    sizes = [steps] * batch if lengths is None else n.ints(lengths, "sequence_lens")
    results: list[list] = [[] for _ in body.output]
    for b in range(batch):
        state = [n.pick(x, 0, b) for x in operands[:states]]
        xs = [n.pick(x, 0, b) for x in operands[states:]]
        scans: list[list] = [[] for _ in body.output[states:]]
        for i in range(sizes[b]):
            items = [n.pick(x, 0, sizes[b] - 1 - i if back else i) for x, back in zip(xs, backwards, strict=True)]
            found = n.importer.subgraph(body, [*state, *items], n.scope, batch * steps)
            if any(isinstance(r, Poison) for r in found):
                return [found[0]] * len(n.proto.output)
            state = found[:states]
            for s, item in zip(scans, found[states:], strict=True):
                s.append(item)
        if not sizes[b] and scans:
            raise DataDependentNode("it runs no iteration, so the shape of its scan outputs is unknown")
        for s in scans:  # positions after the end of a short sequence are zero
            s += [n.constant(np.zeros(s[0].shape, NUMPY[s[0].dtype]))] * (steps - sizes[b])
        for r, item in zip(results, [*state, *[stack(n, s, 0) for s in scans]], strict=True):
            r.append(item)
    return [stack(n, r, 0) for r in results]


@onnx_op("Scan", since=9)
def scan(n, *operands):
    body, count = n.required("body"), n.required("num_scan_inputs")
    state, xs = list(operands[: len(operands) - count]), operands[len(operands) - count :]
    outputs = len(body.output) - len(state)
    in_axes = n.attr("scan_input_axes") or [0] * count
    in_back = n.attr("scan_input_directions") or [0] * count
    out_axes = n.attr("scan_output_axes") or [0] * outputs
    out_back = n.attr("scan_output_directions") or [0] * outputs
    steps = xs[0].shape[in_axes[0]] if xs else 0
    if not steps:
        raise DataDependentNode("it runs no iteration, so the shape of its scan outputs is unknown")
    check_length(n, body, 0, steps)
    scans: list[list] = [[] for _ in range(outputs)]
    for i in range(steps):
        items = [
            n.pick(x, a % x.rank, steps - 1 - i if back else i) for x, a, back in zip(xs, in_axes, in_back, strict=True)
        ]
        results = n.importer.subgraph(body, [*state, *items], n.scope, steps)
        if any(isinstance(r, Poison) for r in results):
            return [results[0]] * len(n.proto.output)
        state = results[: len(state)]
        for found, item in zip(scans, results[len(state) :], strict=True):
            found.append(item)
    ordered = [list(reversed(s)) if back else s for s, back in zip(scans, out_back, strict=True)]
    return [*state, *[stack(n, s, axis) for s, axis in zip(ordered, out_axes, strict=True)]]


def stack(n, items, axis):
    """Tensors of one shape joined along a new dimension."""
    axis = axis % (items[0].rank + 1)
    return n.concat([n.unsqueeze(item, axis) for item in items], axis)


# ---- sequences -----------------------------------------------------------------------------------------------------


@onnx_op("SequenceConstruct", since=11)
def sequence_construct(n, *items):
    return [list(items)]


@onnx_op("SequenceEmpty", since=11)
def sequence_empty(n):
    return [[]]


@onnx_op("SequenceLength", since=11)
def sequence_length(n, items):
    return n.constant(np.array(len(items)), "i64")


def position(n, items, at, limit):
    i = n.scalar(at, "position")
    if not -len(items) <= i < limit:
        raise n.error(f"position {i} is outside of a sequence of {len(items)}")
    return i + len(items) if i < 0 else i


@onnx_op("SequenceAt", since=11)
def sequence_at(n, items, at):
    return [items[position(n, items, at, len(items))]]


@onnx_op("SequenceInsert", since=11)
def sequence_insert(n, items, item, at=None):
    i = len(items) if at is None else position(n, items, at, len(items) + 1)
    return [[*items[:i], item, *items[i:]]]


@onnx_op("SequenceErase", since=11)
def sequence_erase(n, items, at=None):
    i = len(items) - 1 if at is None else position(n, items, at, len(items))
    return [[*items[:i], *items[i + 1 :]]]


@onnx_op("ConcatFromSequence", since=11)
def concat_from_sequence(n, items):
    axis = n.required("axis")
    if not items:
        raise n.error("the sequence is empty")
    if n.attr("new_axis", 0):
        return [stack(n, items, axis)]
    return [n.concat(items, axis)]


@onnx_op("SplitToSequence", since=11)
def split_to_sequence(n, x, split=None):
    axis = n.axis(0, x.rank)
    size = x.shape[axis]
    if split is None:
        items = [n.pick(x, axis, i) for i in range(size)]
        return [items if not n.attr("keepdims", 1) else [n.unsqueeze(item, axis) for item in items]]
    array = n.known(split, "split")
    if array.ndim:
        sizes = [int(s) for s in array]
    else:
        part = int(array)
        sizes = [min(part, size - at) for at in range(0, size, part)]
    return [list(split_parts(n, x, sizes, axis))]


# ---- optionals: an absent one is None ------------------------------------------------------------------------------


@onnx_op("Optional", since=15)
def optional(n, item=None):
    return [item]


@onnx_op("OptionalHasElement", since=15)
def optional_has_element(n, item=None):
    return n.constant(np.array(item is not None))


@onnx_op("OptionalGetElement", since=15)
def optional_get_element(n, item):
    if item is None:
        raise n.error("the optional is empty")
    return [item]
