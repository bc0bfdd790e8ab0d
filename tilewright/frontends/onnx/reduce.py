"""Reductions, positions of extremes, running sums, top-k."""

from __future__ import annotations

from .registry import onnx_op

REDUCTIONS = {
    "ReduceSum": "reduce_sum",
    "ReduceMean": "reduce_mean",
    "ReduceMax": "reduce_max",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
    "ReduceL1": "reduce_l1",
    "ReduceL2": "reduce_l2",
    "ReduceLogSum": "reduce_log_sum",
    "ReduceLogSumExp": "reduce_log_sum_exp",
    "ReduceSumSquare": "reduce_sum_square",
}
BOOLS = {"ReduceMax": "reduce_any", "ReduceMin": "reduce_all"}


def reduce(n, x, axes):
    if not axes:
        if n.attr("noop_with_empty_axes", 0):
            if n.proto.op_type in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
                return [x]
            return n(REDUCTIONS[n.proto.op_type], x, axes=(), keepdims=True)  # of one element: its square, ...
        axes = range(x.rank)
    name = BOOLS[n.proto.op_type] if x.dtype == "i1" and n.proto.op_type in BOOLS else REDUCTIONS[n.proto.op_type]
    return n(name, x, axes=tuple(axes), keepdims=bool(n.attr("keepdims", 1)))


@onnx_op(*REDUCTIONS, since=1)
def reduce_1(n, x):
    return reduce(n, x, n.attr("axes"))


@onnx_op("ReduceSum", since=13)
def reduce_sum_13(n, x, axes=None):
    return reduce(n, x, None if axes is None else n.ints(axes, "axes"))


@onnx_op(*(name for name in REDUCTIONS if name != "ReduceSum"), since=18)
def reduce_18(n, x, axes=None):
    return reduce(n, x, None if axes is None else n.ints(axes, "axes"))


@onnx_op("ArgMax", "ArgMin", since=1)
def arg_extreme(n, x):
    name = "arg_max" if n.proto.op_type == "ArgMax" else "arg_min"
    keepdims, last = bool(n.attr("keepdims", 1)), bool(n.attr("select_last_index", 0))
    return n(name, x, axis=n.attr("axis", 0), keepdims=keepdims, last=last)


@onnx_op("CumProd", "CumSum", since=11)
def cumsum(n, x, axis):
    exclusive, reverse = bool(n.attr("exclusive", 0)), bool(n.attr("reverse", 0))
    return n(n.proto.op_type.lower(), x, axis=n.scalar(axis, "axis"), exclusive=exclusive, reverse=reverse)


def top_k(n, x, k):
    axis, largest = n.axis(-1, x.rank), bool(n.attr("largest", 1))
    return n("top_k", x, k=int(k), axis=axis, largest=largest)


@onnx_op("TopK", since=1)
def top_k_1(n, x):
    return top_k(n, x, n.required("k"))


@onnx_op("TopK", since=10)
def top_k_10(n, x, k):
    return top_k(n, x, n.scalar(k, "K"))
