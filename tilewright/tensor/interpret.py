"""The reference interpreter of level 3: evaluates linalg on tensors operation by operation, in NumPy.

It reads the IR on its own, and shares no code with the schedules or the emitter, so that a kernel's result can be
compared with the meaning of its IR. `float64=True` computes every float in double precision; otherwise each operation
rounds as the machine does (sums may be added in another order).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.context import use
from ..ir.graph import Graph, from_dense
from ..ir.types import FLOATS, NUMPY, is_unsigned, type_of
from ..support.errors import CompileError
from .affine import affine
from .evaluate import evaluate
from .expr import Const, Expr, Load, Op, Var
from .predicates import with_predicate

#: elements of one evaluation of a body; longer reductions are done in pieces
PIECE = 1 << 21
#: combiners of reductions that NumPy reduces by itself
REDUCE: dict[str, np.ufunc] = {
    "addf": np.add, "addi": np.add, "mulf": np.multiply, "muli": np.multiply, "maximumf": np.maximum,
    "minimumf": np.minimum, "maxsi": np.maximum, "minsi": np.minimum,
}  # fmt: skip


def interpret_function(
    function: ir.OpView, arguments: Sequence[np.ndarray], *, float64: bool = False
) -> list[np.ndarray]:
    """The results of a kernel (a ``func.func`` of linalg on tensors) for its arguments.

    Integers are signless: arrays of unsigned integers are read as the signed ones of the same bits. With `float64`
    arguments and results of a float dtype are float64 arrays.

    Raises CompileError for an operation that level 3 does not have, and for a read outside of a tensor.

    >>> from tilewright.ir.context import parse
    >>> module = parse('''func.func @f(%x: tensor<2x3xf32>) -> tensor<2xf32> {
    ...   %0 = arith.constant 0.0 : f32
    ...   %1 = tensor.empty() : tensor<2xf32>
    ...   %2 = linalg.fill ins(%0 : f32) outs(%1 : tensor<2xf32>) -> tensor<2xf32>
    ...   %3 = linalg.reduce {arith.addf} ins(%x: tensor<2x3xf32>) outs(%2: tensor<2xf32>) dimensions = [1]
    ...   return %3 : tensor<2xf32> }''')
    >>> from tilewright.ir.context import run_passes
    >>> run_passes(module, "builtin.module(func.func(linalg-generalize-named-ops))")
    >>> interpret_function(module.body.operations[0], [np.ones((2, 3), np.float32)])
    [array([3., 3.], dtype=float32)]
    """
    with use(), np.errstate(all="ignore"):
        block = function.regions[0].blocks[0]
        machine = _Interpreter(float64)
        for parameter, array in zip(block.arguments, arguments, strict=True):
            machine.values[parameter] = machine.promote(signed(np.asarray(array)))
        for op in block.operations:
            if op.operation.name == "func.return":
                return [machine.values[v] for v in op.operands]
            machine.run(op.operation)
    raise CompileError("the function does not return", stage="interpret")


def interpret_graph(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    *,
    float64: bool = False,
    call: Callable[[ir.Operation, list[np.ndarray]], list[np.ndarray]] | None = None,
    each: Callable[[ir.Operation, list[np.ndarray]], None] | None = None,
) -> dict[str, np.ndarray]:
    """The outputs of a level-3 graph, fused or not, by name, for arrays by input name.

    `call` gives the results of a call of a kernel for its operands, in place of the kernel's own IR; `each` sees every
    operation with its results. Errors are those of `interpret_function`.

    >>> from tilewright.ir.context import parse
    >>> graph = Graph(parse('''func.func @main(%x: tensor<2xf32> {tw.name = "x"}) -> tensor<2xf32> {
    ...   return %x : tensor<2xf32> }'''))
    >>> interpret_graph(graph, {"x": np.ones(2, np.float32)})
    {'out0': array([1., 1.], dtype=float32)}
    """
    with use(), np.errstate(all="ignore"):
        machine = _Interpreter(float64)
        functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in graph.functions()}
        for parameter, (name, _) in zip(graph.block.arguments, graph.inputs(), strict=True):
            machine.values[parameter] = machine.promote(signed(np.asarray(inputs[name])))
        *operations, end = graph.operations()
        last = {v: i for i, op in enumerate(operations) for v in op.operands}
        kept = set(end.operands)
        for i, op in enumerate(operations):
            if op.name == "func.call":
                given = [machine.values[v] for v in op.operands]
                callee = functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
                made = call(op, given) if call else interpret_function(callee, given, float64=float64)
                machine.values.update(zip(op.results, made, strict=True))
            elif op.name == "tw.constant":
                array = np.asarray(graph.constant_value(op.results[0]))
                machine.values[op.results[0]] = machine.promote(signed(array))
            else:
                machine.run(op)
            if each is not None:
                each(op, [machine.values[r] for r in op.results])
            for v in dict.fromkeys(op.operands):  # big models: nothing is kept longer than it is read
                if last[v] == i and v not in kept:
                    del machine.values[v]
        return {
            name: _unsigned(machine.values[v], t.dtype)
            for v, (name, t) in zip(end.operands, graph.outputs(), strict=True)
        }


def _unsigned(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array as a model sees it: unsigned again where the dtype is."""
    return array.view(NUMPY[dtype]) if is_unsigned(dtype) else array


def signed(array: np.ndarray) -> np.ndarray:
    """An array of unsigned integers as the signed ones of the same bits; others as they are."""
    return array.view(f"i{array.dtype.itemsize}") if array.dtype.kind == "u" else array


@dataclass
class _Body:
    """A linalg body: the yielded expressions over ``a0 a1 ...`` (operands) and ``d0 d1 ...`` (loop indices)."""

    results: list[Expr]
    tensors: dict[str, np.ndarray]


class _Interpreter:
    def __init__(self, float64: bool) -> None:
        self.float64 = float64
        self.values: dict[ir.Value, np.ndarray] = {}

    def promote(self, array: np.ndarray) -> np.ndarray:
        wide = self.float64 and (array.dtype.kind == "f" or array.dtype == NUMPY["bf16"])
        return array.astype(np.float64) if wide else array

    def dtype(self, name: str) -> str:
        return "f64" if self.float64 and name in FLOATS else name

    def run(self, op: ir.Operation) -> None:
        rule: Callable[..., Any] | None = getattr(self, "_" + op.name.replace(".", "_"), None)
        if op.name.startswith("tw."):
            rule = self.operator
        if rule is None:
            raise CompileError(f"cannot interpret {op.name}", stage="interpret", operator=str(op.location))
        results = rule(op, [self.values[v] for v in op.operands])
        for value, result in zip(op.results, results if isinstance(results, list) else [results], strict=True):
            self.values[value] = result

    # ---- operations -------------------------------------------------------------------------------------------------

    def _arith_constant(self, op: ir.Operation, xs: list[np.ndarray]) -> np.ndarray:
        attribute, t = op.attributes["value"], op.results[0].type
        if isinstance(t, ir.RankedTensorType):
            return self.promote(from_dense(attribute, type_of(t)))
        dtype = "i64" if str(t) == "index" else self.dtype(str(t))
        return np.asarray(attribute.value).astype(NUMPY[dtype])

    def _tensor_empty(self, op: ir.Operation, xs: list[np.ndarray]) -> np.ndarray:
        t = type_of(op.results[0])
        return np.zeros(t.dims, NUMPY[self.dtype(t.dtype)])

    def _linalg_fill(self, op: ir.Operation, xs: list[np.ndarray]) -> np.ndarray:
        return np.full(xs[1].shape, xs[0], xs[1].dtype)

    def _reshape(self, op: ir.Operation, xs: list[np.ndarray]) -> np.ndarray:
        return xs[0].reshape(type_of(op.results[0]).dims)

    _tensor_expand_shape = _tensor_collapse_shape = _reshape

    def _tensor_concat(self, op: ir.Operation, xs: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(xs, ir.IntegerAttr(op.attributes["dim"]).value)

    def _tensor_pad(self, op: ir.Operation, xs: list[np.ndarray]) -> np.ndarray:
        width = list(zip(_static(op, "static_low"), _static(op, "static_high"), strict=True))
        block = op.regions[0].blocks[0]
        for inner in list(block.operations)[:-1]:
            self.run(inner.operation)
        value = self.values[block.operations[len(block.operations) - 1].operands[0]]
        return np.pad(xs[0], width, constant_values=value)

    def _tensor_extract_slice(self, op: ir.Operation, xs: list[np.ndarray]) -> np.ndarray:
        parts = zip(*(_static(op, f"static_{n}") for n in ("offsets", "sizes", "strides")), strict=True)
        index = tuple(slice(o, o + (n - 1) * s + 1 if n else o, s) for o, n, s in parts)
        return xs[0][index].reshape(type_of(op.results[0]).dims)

    def operator(self, op: ir.Operation, xs: list[np.ndarray]) -> list[np.ndarray]:
        """A `tw` operator of kind "opaque": its own reference, on the dtypes that it had at level 2."""
        cls, attrs = dialect.operator(op), dialect.attributes(op)
        kept = ir.ArrayAttr(op.attributes["tw.dtypes"]) if "tw.dtypes" in op.attributes else ()
        dtypes = [ir.StringAttr(a).value for a in kept]
        for i, dtype in enumerate(dtypes):
            xs[i] = xs[i].view(NUMPY[dtype]) if is_unsigned(dtype) else xs[i]
        if self.float64:
            attrs |= {k: "f64" for k in ("to", "dtype") if attrs.get(k) in FLOATS}
        rest = iter(xs)
        arguments = [None if v is None else next(rest) for v in dialect.arguments(op)]
        results = dialect.as_list(cls.reference(*arguments, **attrs))
        return [self.promote(signed(np.asarray(r))) for r in results]

    # ---- linalg.generic ---------------------------------------------------------------------------------------------

    def _linalg_generic(self, op: ir.Operation, xs: list[np.ndarray]) -> list[np.ndarray]:
        generic = _Generic(self, op, xs)
        product = generic.product()
        return [product] if product is not None else generic.run()

    def body(self, block: ir.Block) -> _Body:
        values: dict[ir.Value, Expr] = {a: Var(f"a{i}", self.dtype(str(a.type))) for i, a in enumerate(block.arguments)}
        tensors: dict[str, np.ndarray] = {}

        def get(v: ir.Value) -> Expr:
            if v not in values:
                values[v] = Const(self.values[v].item(), self.dtype(str(v.type)))  # a scalar from outside
            return values[v]

        for view in block.operations:
            op = view.operation
            if op.name == "linalg.yield":
                return _Body([get(v) for v in op.operands], tensors)
            dtype = self.dtype(str(op.results[0].type))
            short = op.name.partition(".")[2]
            if op.name == "arith.mulsi_extended":
                args = tuple(get(v) for v in op.operands)
                values.update(zip(op.results, (Op("muli", args, dtype), Op("mulhsi", args, dtype)), strict=True))
            elif op.name == "linalg.index":
                values[op.results[0]] = Var(f"d{ir.IntegerAttr(op.attributes['dim']).value}", "index")
            elif op.name == "arith.constant":
                values[op.results[0]] = Const(op.attributes["value"].value, dtype)
            elif op.name == "tensor.extract":
                name = f"t{len(tensors)}"
                tensors[name] = self.values[op.operands[0]]
                values[op.results[0]] = Load(name, tuple(get(v) for v in list(op.operands)[1:]), dtype)
            elif self.float64 and short in ("extf", "truncf"):
                values[op.results[0]] = get(op.operands[0])
            else:
                values[op.results[0]] = Op(with_predicate(op, short), tuple(get(v) for v in op.operands), dtype)
        raise CompileError("a body does not yield", stage="interpret")


class _Generic:
    """One ``linalg.generic`` with its operands."""

    def __init__(self, machine: _Interpreter, op: ir.Operation, xs: list[np.ndarray]) -> None:
        self.op, self.count = op, len(xs) - len(op.results)
        self.ins, self.outs = xs[: self.count], xs[self.count :]
        self.maps = [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
        kinds = ["reduction" in str(k) for k in ir.ArrayAttr(op.attributes["iterator_types"])]
        self.parallel = [i for i, r in enumerate(kinds) if not r]
        self.reduction = [i for i, r in enumerate(kinds) if r]
        self.sizes = self.extents(xs, len(kinds))
        self.body = machine.body(op.regions[0].blocks[0])

    def extents(self, xs: list[np.ndarray], rank: int) -> list[int]:
        sizes: list[int | None] = [None] * rank
        for x, m in zip(xs, self.maps, strict=True):
            for n, e in zip(x.shape, m.results, strict=True):
                if isinstance(e, ir.AffineDimExpr):
                    sizes[e.position] = n
        found = [n for n in sizes if n is not None]
        if len(found) != rank:
            raise CompileError("a loop without an extent", stage="interpret", operator=str(self.op.location))
        return found

    def grid(self, dims: Sequence[int], point: dict[int, int]) -> dict[int, np.ndarray]:
        """Index arrays of all loops that broadcast over `dims`, with the others fixed by `point`."""
        sparse = np.indices([self.sizes[d] for d in dims], sparse=True) if dims else ()
        return dict(zip(dims, sparse, strict=True)) | {d: np.asarray(i) for d, i in point.items()}

    def run(self) -> list[np.ndarray]:
        """Parallel loops at once; reduction loops one step after the other, or by NumPy where the combiner is known."""
        combiners = [self.combiner(k) for k in range(len(self.outs))]
        whole: list[int] = []
        if self.reduction and all(c is not None for c in combiners):
            room = PIECE // max(1, prod(self.sizes[d] for d in self.parallel))
            for d in reversed(self.reduction):
                room //= max(1, self.sizes[d])
                if not room:
                    break
                whole.insert(0, d)
        stepped = [d for d in self.reduction if d not in whole]
        outs = [o.copy() for o in self.outs]
        for steps in itertools.product(*[range(self.sizes[d]) for d in stepped]):
            index = self.grid([*self.parallel, *whole], dict(zip(stepped, steps, strict=True)))
            shape = tuple(self.sizes[d] for d in (*self.parallel, *whole))
            axes = tuple(range(len(self.parallel), len(shape)))
            env = {f"d{d}": i for d, i in index.items()}
            env |= {f"a{k}": self.take(x, self.maps[k], index) for k, x in enumerate(self.ins)}
            at = [_places(self.maps[self.count + k], index) for k in range(len(outs))]
            if not whole:
                env |= {
                    f"a{self.count + k}": self.take(o, self.maps[self.count + k], index) for k, o in enumerate(outs)
                }
                results = [self.value(e, env, shape) for e in self.body.results]
            else:
                results = []
                for k, combiner in enumerate(combiners):
                    assert combiner is not None
                    name, term = combiner
                    piece = REDUCE[name].reduce(self.value(term, env, shape), axis=axes, dtype=outs[k].dtype)
                    place = tuple(a.reshape(a.shape[: len(self.parallel)]) if a.ndim else a for a in at[k])
                    at[k] = place
                    results.append(REDUCE[name](outs[k][place] if place else outs[k], piece))
            for o, place, r in zip(outs, at, results, strict=True):
                if place:
                    o[place] = r
                else:
                    o[...] = r
        return outs

    def value(self, e: Expr, env: dict[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(evaluate(e, env, lambda name, i, _: self.load(self.body.tensors[name], i)), shape)

    def take(self, x: np.ndarray, m: ir.AffineMap, index: dict[int, np.ndarray]) -> np.ndarray:
        places = _places(m, index)
        return self.load(x, places) if places else x

    def load(self, x: np.ndarray, places: Sequence[np.ndarray]) -> np.ndarray:
        for n, i in zip(x.shape, places, strict=True):
            if np.size(i) and (np.min(i) < 0 or np.max(i) >= n):
                raise CompileError("a read outside of a tensor", stage="interpret", operator=str(self.op.location))
        return x[tuple(places)]

    def combiner(self, k: int) -> tuple[str, Expr] | None:
        """(name, term) if result k is ``combine(old value, term)`` and the term does not read old values."""
        e, old = self.body.results[k], {f"a{self.count + j}" for j in range(len(self.outs))}
        if not isinstance(e, Op) or e.op not in REDUCE or len(e.args) != 2:
            return None
        for own, term in (e.args, e.args[::-1]):
            if isinstance(own, Var) and own.name == f"a{self.count + k}" and not _reads(term, old):
                return e.op, term
        return None

    def product(self) -> np.ndarray | None:
        """A sum of products of two operands: einsum over the plain loops, one step a point of the other reductions."""
        if len(self.outs) != 1 or self.count != 2:
            return None
        combiner = self.combiner(0)
        plain = Op("mulf", (Var("a0", self.out_dtype()), Var("a1", self.out_dtype())), self.out_dtype())
        if combiner != ("addf", plain) or not _is_projection(self.maps[2]):
            return None
        compound = {
            p for m in self.maps[:2] for e in m.results if not isinstance(e, ir.AffineDimExpr) for p in _dims(e)
        }
        stepped = [d for d in self.reduction if d in compound]
        total = self.outs[0].copy()
        letters = [e.position for e in self.maps[2].results]
        for steps in itertools.product(*[range(self.sizes[d]) for d in stepped]):
            point = dict(zip(stepped, steps, strict=True))
            first, second = (self.window(x, m, point) for x, m in zip(self.ins, self.maps[:2], strict=True))
            if first is None or second is None:
                return None
            (x, i), (y, j) = first, second
            total += np.einsum(x, i, y, j, letters, optimize=True)
        return total

    def out_dtype(self) -> str:
        return next(k for k, v in NUMPY.items() if v == self.outs[0].dtype)

    def window(self, x: np.ndarray, m: ir.AffineMap, point: dict[int, int]) -> tuple[np.ndarray, list[int]] | None:
        """A view of `x` with one axis a loop, where an index is ``loop * step + known``; None if it is anything
        else."""
        index: list[int | slice] = []
        dims: list[int] = []
        for n, e in zip(x.shape, m.results, strict=True):
            free = [d for d in dict.fromkeys(_dims(e)) if d not in point]
            origin = affine(e, {**point, **dict.fromkeys(free, 0)})
            if not free:
                index.append(int(origin))
                continue
            if len(free) > 1:
                return None
            step = affine(e, {**point, free[0]: 1}) - origin
            last = origin + (self.sizes[free[0]] - 1) * step
            if step < 1 or origin < 0 or last >= n:
                return None
            index.append(slice(origin, last + 1, step))
            dims.append(free[0])
        return (x[tuple(index)], dims) if len(set(dims)) == len(dims) else None


def _static(op: ir.Operation, name: str) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def _places(m: ir.AffineMap, index: dict[int, np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(affine(e, index)) for e in m.results)


def _dims(e: ir.AffineExpr) -> list[int]:
    if isinstance(e, ir.AffineDimExpr):
        return [e.position]
    return [] if isinstance(e, ir.AffineConstantExpr) else [*_dims(e.lhs), *_dims(e.rhs)]


def _is_projection(m: ir.AffineMap) -> bool:
    positions = [e.position if isinstance(e, ir.AffineDimExpr) else None for e in m.results]
    return None not in positions and len(set(positions)) == len(positions)


def _reads(e: Expr, names: set[str]) -> bool:
    from .expr import variables

    return bool(variables(e) & names)
