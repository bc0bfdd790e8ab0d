"""Evaluates a level-3 graph in NumPy, operation by operation: the check that lowerings compute what references do.

Loaded by the tests of this folder with `runpy` (tests are not a package). Slow, for small tensors.
"""

from __future__ import annotations

import itertools

import numpy as np
from torch_mlir import ir

from tilewright.ir.context import use
from tilewright.ir.types import NUMPY, Type, is_unsigned, signless, type_of
from tilewright.tensor.evaluate import evaluate
from tilewright.tensor.expr import Const, Expr, Load, Op, Var

CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
CMPF = (
    "false",
    "oeq",
    "ogt",
    "oge",
    "olt",
    "ole",
    "one",
    "ord",
    "ueq",
    "ugt",
    "uge",
    "ult",
    "ule",
    "une",
    "uno",
    "true",
)


def run_linalg(graph, inputs):
    """Outputs by name of a level-3 graph (every operation linalg on tensors) for arrays by input name."""
    with use():
        env = {}
        for argument, (name, _) in zip(graph.block.arguments, graph.inputs(), strict=True):
            env[argument] = to_signless(np.asarray(inputs[name]))
        for op in graph.operations():
            if op.name == "func.return":
                results = zip(graph.outputs(), op.operands, strict=True)
                return {name: from_signless(env[v], t) for (name, t), v in results}
            env[op.results[0]] = run_operation(graph, op, env)
            expected = type_of(op.results[0]) if isinstance(op.results[0].type, ir.RankedTensorType) else None
            got = env[op.results[0]]
            assert expected is None or (got.shape == expected.dims and got.dtype == NUMPY[expected.dtype]), op.name
    raise AssertionError("no return")


def to_signless(array):
    return array.view(f"i{array.dtype.itemsize}") if array.dtype.kind == "u" else array


def from_signless(array, t: Type):
    return array.view(NUMPY[t.dtype]) if is_unsigned(t.dtype) else array


def static(op, name):
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def run_operation(graph, op, env):
    xs = [env.get(v) for v in op.operands]
    if op.name == "tw.constant":
        return to_signless(np.asarray(graph.constant_value(op.results[0])))
    if op.name == "arith.constant":
        return np.asarray(op.attributes["value"].value).astype(NUMPY[signless(str(op.results[0].type))])
    t = type_of(op.results[0])
    if op.name == "tensor.empty":
        return np.full(t.dims, 77).astype(NUMPY[t.dtype])  # must never be read
    if op.name == "linalg.fill":
        return np.full(t.dims, xs[0], NUMPY[t.dtype])
    if op.name in ("tensor.collapse_shape", "tensor.expand_shape"):
        return xs[0].reshape(t.dims)
    if op.name == "tensor.concat":
        return np.concatenate(xs, ir.IntegerAttr(op.attributes["dim"]).value)
    if op.name == "tensor.pad":
        width = list(zip(static(op, "static_low"), static(op, "static_high"), strict=True))
        block = op.regions[0].blocks[0]
        return np.pad(xs[0], width, constant_values=env[block.operations[len(block.operations) - 1].operands[0]])
    if op.name == "tensor.extract_slice":
        parts = zip(*(static(op, f"static_{n}") for n in ("offsets", "sizes", "strides")), strict=True)
        return xs[0][tuple(slice(o, o + (n - 1) * s + 1 if n else o, s) for o, n, s in parts)].reshape(t.dims)
    if op.name == "linalg.generic":
        return run_generic(op, xs, env)
    raise AssertionError(f"no rule for {op.name}")


def affine(e, index):
    """The value of an affine expression for loop indices."""
    if isinstance(e, ir.AffineConstantExpr):
        return e.value
    if isinstance(e, ir.AffineDimExpr):
        return index[e.position]
    kind = ir.AffineAddExpr if isinstance(e, ir.AffineAddExpr) else ir.AffineMulExpr
    a, b = affine(e.lhs, index), affine(e.rhs, index)
    return a + b if kind is ir.AffineAddExpr else a * b


def run_generic(op, xs, env):
    """One linalg.generic with a single result: vectorized over parallel loops, one step a reduction point."""
    assert len(op.results) == 1
    maps = [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
    kinds = ["reduction" in str(k) for k in ir.ArrayAttr(op.attributes["iterator_types"])]
    sizes = [None] * len(kinds)
    for x, m in zip(xs, maps, strict=True):
        for d, e in zip(x.shape, m.results, strict=True):
            if isinstance(e, ir.AffineDimExpr) and sizes[e.position] is None:
                sizes[e.position] = d
    block = op.regions[0].blocks[0]
    value, loads = body(block, env)
    out = xs[-1].copy()
    parallel = [i for i, r in enumerate(kinds) if not r]
    grid = dict(zip(parallel, np.indices([sizes[i] for i in parallel], sparse=True), strict=True)) if parallel else {}
    for point in itertools.product(*[range(sizes[i]) for i, r in enumerate(kinds) if r]):
        index = {**grid, **dict(zip([i for i, r in enumerate(kinds) if r], map(np.asarray, point), strict=True))}
        at = [tuple(affine(e, index) for e in m.results) for m in maps]
        for x, places in zip(xs, at, strict=True):
            for n, i in zip(x.shape, places, strict=True):
                assert np.size(i) == 0 or (np.min(i) >= 0 and np.max(i) < n), f"{op} reads outside of its operand"
        variables = {f"arg{k}": x[i] if i else x for k, (x, i) in enumerate(zip([*xs[:-1], out], at, strict=True))}
        variables |= {f"d{i}": v for i, v in index.items()}
        result = evaluate(value, variables, lambda name, i, _: checked(loads[name], i))
        shape = np.broadcast_shapes(*[np.shape(v) for v in index.values()]) if index else ()
        if at[-1]:
            out[at[-1]] = np.broadcast_to(result, shape)
        else:
            out[...] = result
    return out


def checked(array, index):
    """array[index]; a position outside is an error, never wrapped."""
    index = np.broadcast_arrays(*index) if index else ()
    for n, i in zip(array.shape, index, strict=True):
        assert np.size(i) == 0 or (np.min(i) >= 0 and np.max(i) < n), "a load outside of its tensor"
    return array[tuple(index)]


def body(block, env) -> tuple[Expr, dict]:
    """The yielded expression of a linalg body, and the tensors it loads from by name."""
    values = {a: Var(f"arg{i}", str(a.type)) for i, a in enumerate(block.arguments)}
    loads = {}

    def get(v):
        if v not in values:
            values[v] = Const(env[v].item(), str(v.type))  # a scalar from outside
        return values[v]

    for view in block.operations:
        op = view.operation
        short = op.name.split(".")[1]
        if op.name == "linalg.yield":
            return get(op.operands[0]), loads
        t = str(op.results[0].type)
        if op.name == "linalg.index":
            values[op.results[0]] = Var(f"d{ir.IntegerAttr(op.attributes['dim']).value}", "index")
        elif op.name == "arith.constant":
            values[op.results[0]] = Const(op.attributes["value"].value, t)
        elif op.name == "arith.mulsi_extended":
            for half, result in zip(("muli", "mulhsi"), op.results, strict=True):
                values[result] = Op(half, tuple(get(v) for v in op.operands), t)
        elif op.name == "tensor.extract":
            name = f"t{len(loads)}"
            loads[name] = env[op.operands[0]]
            values[op.results[0]] = Load(name, tuple(get(v) for v in list(op.operands)[1:]), t)
        else:
            if short in ("cmpi", "cmpf"):
                predicate = ir.IntegerAttr(op.attributes["predicate"]).value
                short = f"{short}.{(CMPI if short == 'cmpi' else CMPF)[predicate]}"
            values[op.results[0]] = Op(short, tuple(get(v) for v in op.operands), t)
    raise AssertionError("a body without a yield")
