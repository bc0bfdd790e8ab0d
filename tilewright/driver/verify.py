"""Check a compilation against its references: what `tw.compile(verify=True)` and `--verify` do.

The model runs on seeded random inputs with the results of all kernels kept. Then four comparisons, each of which finds
the errors of one part of the compiler:

1. every kernel call against the reference interpreter of level 3, in float64, on the very inputs that the kernel had:
finds
   errors of schedules, code generation and LLVM, and names the first kernel that is wrong;
2. the results of the model with the kernels' results kept against those of the executable as it will be used: finds
   errors of the memory plan and of the order of calls;
3. the first level-2 graph (what the front end made) against the last one, both interpreted in float64 by the NumPy
   references of the operators: finds errors of the level-2 passes;
4. the results of the model against that interpretation: finds errors of the lowering to linalg and of fusion.

With a precision below f32 the last two comparisons only find gross errors, and the error of every kernel against f32
is reported instead (see `precision`).

An error is relative to the largest value of its array. In quantized models the last two comparisons allow what rounding
to the neighbouring quantum explains (`quantized_tolerance`). Integers and booleans must be equal; where they come from
comparing floats, which float64 may decide otherwise, equal to the same IR evaluated in the model's own precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import func

from ..codegen.kernel_info import location_names
from ..graph.interpret import interpret
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import type_of
from ..program.package import Package
from ..runtime.executable import Executable
from ..support.dtypes import DTYPES, FLOATS, NUMPY
from ..support.errors import CheckError, CompileError
from ..support.numbers import count
from ..tensor.analysis import VIEWS
from ..tensor.interpret import interpret_function, signed
from .build_program import build_program
from .compare import largest_error, random_inputs
from .compile_state import State
from .compiler import compile_state
from .kernel_errors import KernelError, Results, errors_against_f32, table
from .placement import devices_in
from .quantized_tolerance import allowed

#: largest difference of one kernel, relative to the largest value of the array, by dtype
KERNEL_TOLERANCE = {"f64": 1e-10, "f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}
#: largest difference of a whole model, by dtype of the output
MODEL_TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 1e-1}
#: the same, where the user has asked for less than f32: how far errors grow depends on the model
REDUCED_TOLERANCE = {"bf16": 0.5, "f16": 0.1}

#: name and array of every output of a model, in order
Outputs = list[tuple[str, np.ndarray]]


@dataclass(frozen=True)
class Verified:
    """What was compared, with the largest errors found."""

    calls: int
    kernel_error: float
    model_error: float | None
    against_f32: tuple[KernelError, ...] = ()

    def __str__(self) -> str:
        model = "" if self.model_error is None else f", of an output {self.model_error:.1e}"
        lines = [
            f"verified {count(self.calls, 'kernel call')}: largest error of a kernel {self.kernel_error:.1e}{model}"
        ]
        if self.against_f32:
            lines += ["error of each kernel call against f32, with what it inherits:", *table(self.against_f32)]
        return "\n  ".join(lines)


def verify_kernels(state: State, executable: Executable) -> Verified:
    """Run the four comparisons; CheckError names the first kernel and source node (or the part) that is wrong.

    `state` is that of a finished compilation with ``options.verify``, `executable` its result. Takes memory for all
    intermediate results and a second copy of the weights.
    """
    signature = [(name, t.dims, NUMPY[t.dtype]) for name, t in state.module.inputs()]
    arrays = random_inputs(signature, 0)
    arguments = [arrays[name] for name, _ in state.module.inputs()]
    outputs = _run(state, executable, arrays)
    probe, kept = _probe(state, executable.threads, arguments)
    kernel_error = _check_calls(probe, arguments, kept)
    _check_plan(probe, kept, outputs)
    if not state.journal.references:
        return Verified(len(kept), kernel_error, None)
    model_error = _check_graphs(state, arrays, outputs)
    against: list[KernelError] = []
    if state.options.precision != "f32":
        chosen = {n: getattr(state.options, n) for n in ("target", "threads", "jobs", "cache", "tuned")}
        other, _ = compile_state(state.journal.references[0].clone(), precision="f32", winograd=False, **chosen)
        against = errors_against_f32(_named(probe, kept), call_results(other, arguments, executable.threads))
    return Verified(len(kept), kernel_error, model_error, tuple(against))


def _run(state: State, executable: Executable, arrays: dict[str, np.ndarray]) -> Outputs:
    """All outputs of the model, in order, the next values of states among them; the states are zeros afterwards."""
    states = executable.states
    for name in set(states) & set(arrays):  # one of several entries may only write it
        states[name] = arrays[name]
    results = iter(executable.run_all(tuple(arrays[i.name] for i in executable.arguments)))
    following = {s.output: states[s.name].copy() for s in executable.package.program.states}
    executable.reset()
    names = [name for name, _ in state.module.outputs()]
    return [(name, following[name] if name in following else next(results)) for name in names]


def call_results(state: State, arguments: list[np.ndarray], threads: int) -> Results:
    """(symbol, source nodes, results) of every kernel call of a finished compilation, in order."""
    return _named(*_probe(state, threads, arguments))


def _probe(state: State, threads: int, arguments: list[np.ndarray]) -> tuple[Graph, list[list[np.ndarray]]]:
    with use():
        probe = _with_all_results(state.module)
    return probe, _run_probe(state, probe, threads, arguments)


def _named(probe: Graph, kept: list[list[np.ndarray]]) -> Results:
    with use():
        calls = [
            (ir.FlatSymbolRefAttr(op.attributes["callee"]).value, location_names(op.location)) for op in _calls(probe)
        ]
    return [(symbol, names, made) for (symbol, names), made in zip(calls, kept, strict=True)]


def _calls(graph: Graph) -> list[ir.Operation]:
    return [op for op in graph.operations() if op.name == "func.call"]


def _with_all_results(graph: Graph) -> Graph:
    """A copy of a fused graph that returns the results of all calls, in order."""
    probe = graph.clone()
    results = [r for op in _calls(probe) for r in op.results]
    end = list(probe.operations())[-1]
    probe.main.attributes["tw.returned"] = ir.DenseI64ArrayAttr.get(_returned(end, results))
    with ir.InsertionPoint(end):
        func.ReturnOp(results)
    end.erase()
    inputs = [a.type for a in probe.block.arguments]
    probe.main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, [r.type for r in results]))
    if "res_attrs" in probe.main.attributes:
        del probe.main.attributes["res_attrs"]
    return probe


def _returned(end: ir.Operation, results: Sequence[ir.Value]) -> list[int]:
    """For each output of the model its position among the results of all calls; -1 for an input or a constant."""
    positions = {r: i for i, r in enumerate(results)}
    out = []
    for v in end.operands:
        while v not in positions and not isinstance(v.owner, ir.Block) and v.owner.operation.name in VIEWS:
            v = v.owner.operation.operands[0]
        out.append(positions.get(v, -1))
    return out


def _run_probe(state: State, probe: Graph, threads: int, arguments: list[np.ndarray]) -> list[list[np.ndarray]]:
    """The results of every kernel call, from the compiled kernels."""
    with use():
        program, constants = build_program(probe, state.infos, devices=devices_in(probe, state.target))
        counts = [len(op.results) for op in _calls(probe)]
    package = Package(
        target=state.target.recorded,
        description=state.description.to_json(),
        program=program,
        objects=state.target.link(program, state.objects, state.description),
        constants=[np.ascontiguousarray(c) for c in constants],
    )
    results = iter(Executable(package, threads)(*arguments))
    return [[next(results) for _ in range(n)] for n in counts]


# ---- 1: kernels ----------------------------------------------------------------------------------------------------


def _check_calls(probe: Graph, arguments: list[np.ndarray], kept: list[list[np.ndarray]]) -> float:
    """Follow @main with the kernels' own results; CheckError for the first that its IR does not give."""
    worst = 0.0
    with use():
        functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in probe.functions()}
        values = dict(zip(probe.block.arguments, map(signed, arguments), strict=True))
        rest = iter(kept)
        for op in probe.operations():
            if op.name == "func.call":
                symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
                inputs, got = [values[v] for v in op.operands], [signed(a) for a in next(rest)]
                worst = max(worst, _check_call(op, symbol, functions[symbol], inputs, got))
                values.update(zip(op.results, got, strict=True))
            elif op.name == "tw.constant":
                values[op.results[0]] = signed(np.asarray(probe.constant_value(op.results[0])))
            elif op.name in VIEWS:
                values[op.results[0]] = values[op.operands[0]].reshape(type_of(op.results[0]).dims)
    return worst


def _check_call(
    op: ir.Operation, symbol: str, function: ir.OpView, inputs: list[np.ndarray], got: list[np.ndarray]
) -> float:
    wide = interpret_function(function, inputs, float64=True)
    same: list[np.ndarray] | None = None
    worst = 0.0
    for i, (r, have) in enumerate(zip(op.results, got, strict=True)):
        limit = KERNEL_TOLERANCE.get(type_of(r).dtype, 0.0)
        error = largest_error(have, wide[i])
        if error > limit:
            same = same or interpret_function(function, inputs)
            error = min(error, largest_error(have, same[i]))
        worst = max(worst, error)
        if not error <= limit:
            which = f"result {i} of " if len(got) > 1 else ""
            raise CheckError(
                f"{which}kernel {symbol} is wrong: it differs by {error:.2e} of its largest value from its IR",
                stage="verify",
                operator=f"{', '.join(location_names(op.location))} (kernel {symbol})",
                hint=f"{limit:g} is allowed; kernels before it are right. tilewright bisect finds the step",
            )
    return worst


# ---- 2: the memory plan --------------------------------------------------------------------------------------------


def _check_plan(probe: Graph, kept: list[list[np.ndarray]], outputs: Outputs) -> None:
    """Outputs that kernels made must be the same numbers when buffers share memory."""
    flat = [a for results in kept for a in results]
    with use():
        returned = list(ir.DenseI64ArrayAttr(probe.main.attributes["tw.returned"]))
    for (name, output), position in zip(outputs, returned, strict=True):
        if position >= 0 and output.tobytes() != flat[position].tobytes():
            raise CheckError(
                f"output {name!r} is wrong, though every kernel is right: the memory plan or the order of calls",
                stage="verify",
                hint="this is a bug in Tilewright, please report it",
            )


# ---- 3 and 4: level 2 ----------------------------------------------------------------------------------------------


def _check_graphs(state: State, arrays: dict[str, np.ndarray], outputs: Outputs) -> float:
    first, last = state.journal.references[0], state.journal.references[-1]
    try:
        expected = interpret(first, arrays, float64=True)
        after = expected if last is first else interpret(last, arrays, float64=True)
    except CompileError as e:
        raise CheckError(f"the model cannot be interpreted: {e.message}", stage="verify", operator=e.operator) from None
    worst = 0.0
    quanta: dict[str, float] = {}
    for name, output in outputs:
        dtype = DTYPES[output.dtype]
        limit = MODEL_TOLERANCE.get(dtype, 0.0)
        if limit:
            limit = max(limit, REDUCED_TOLERANCE.get(state.options.precision, 0.0))
        error = largest_error(output, expected[name])
        if dtype not in FLOATS and error > 0:  # decided by comparing floats: as the model's own precision does
            error = min(error, largest_error(output, interpret(first, arrays)[name]))
        worst = max(worst, error)
        if not error <= limit:
            quanta = quanta or allowed(first, lambda c: interpret(first, arrays, float64=True, change=c), expected)
            limit = max(limit, quanta.get(name, 0.0))
        if error <= limit:
            continue
        passes = largest_error(after[name], expected[name]) > limit
        raise CheckError(
            f"output {name!r} is wrong: it differs by {error:.2e} of its largest value from its reference, "
            + ("and so does level 2 after its passes" if passes else "though every kernel does what its IR says"),
            stage="verify",
            hint="tilewright bisect finds the pass"
            if passes
            else "the error is in the lowering to linalg or in fusion: tilewright bisect finds it",
        )
    return worst
