"""Bisection of wrong results: finds the first pass, kernel, schedule step or native code that makes a number wrong.

Each level is judged by its own reference interpreter on the same inputs:

1. The graph as it was imported, in float64, is the reference. The graphs that the passes of level 2, the lowering and
   the fusion leave are interpreted in float64 too; of those that are wrong the first is found by halving.
2. Each kernel of the fused graph is interpreted in float64 on the inputs that it has in the model, and its finished
   loop nest on the same. Where the nest is wrong, the nests after each step of its schedule are halved likewise.
3. Each kernel runs as native code on those inputs, and at last the whole model does.

Whatever is found is written into a folder with a script that shows it again (`reproduce`). An error is relative to the
largest value of its array; the tolerances are those of `verify`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from torch_mlir import ir

from ..codegen.kernel_info import location_names
from ..graph.interpret import interpret
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import type_of
from ..runtime.executable import Executable
from ..support.dtypes import FLOATS
from ..support.errors import CompileError, UsageError
from ..tensor.interpret import interpret_function, interpret_graph, signed
from . import bisect_kernel, reproduce
from .bisect_kernel import first_wrong
from .bisect_operator import first_wrong_lowering
from .compare import largest_error, random_inputs
from .compile_state import State
from .compiler import compile_state
from .verify import KERNEL_TOLERANCE, MODEL_TOLERANCE, REDUCED_TOLERANCE, call_results

#: the pass that defines a model of integers anew, within a quantum: what comes after it is compared with its result
REDEFINES = "simplify/integers"


@dataclass(frozen=True)
class Tried:
    """A place that was judged, and its error; `note` says why it has none."""

    place: str
    error: float
    note: str = ""


@dataclass(frozen=True)
class Culprit:
    """The first place where the error jumps: the stage, what in it (a pass, a kernel, a step), where in the model, the
    error before and after, what was allowed, and the folder with the reproducer."""

    stage: str
    what: str
    operator: str
    before: float
    after: float
    allowed: float
    folder: Path | None = None
    why: str = ""

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"{self.what} makes it wrong: the error is {self.before:.1e} before and {self.after:.1e} after it{why}"


@dataclass
class Bisection:
    """What was tried, in the order of the pipeline, and what was found: None if nothing is wrong. `error` is that of
    the compiled model's outputs, None where it did not come to that, or cannot run here."""

    tried: list[Tried] = field(default_factory=list)
    culprit: Culprit | None = None
    error: float | None = None
    allowed: float = 0.0


def bisect(
    source: object,
    arrays: Mapping[str, np.ndarray] | None = None,
    *,
    rtol: float | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    **options: Any,
) -> Bisection:
    """Find the first pass, kernel or schedule step that makes a number of a model wrong.

    Args:
        source: a model, as `tilewright.compile` takes it; its shapes must be known, from `arrays` or `options`.
        arrays: inputs by name; random ones of `seed` where there are none.
        rtol: largest error of an output, relative to its largest value; None: that of `verify`, by dtype.
        folder: where the reproducer is written; None: nowhere.
        options: those of a compilation.

    Takes memory for a copy of every graph on the way, which share the weights. Raises UsageError for options that have
    no meaning here, CompileError if the imported graph cannot be interpreted, and what the compilation raises.

        found = bisect("model.onnx", folder="wrong")
        print(found.culprit)
    """
    if options.get("precision") == "auto" or options.get("stop_after") or options.get("verify"):
        raise UsageError("bisect compiles a whole model in one precision", hint="leave out verify and stop_after")
    if options.get("states"):
        raise UsageError(
            "bisect judges one call, states matter from one call to the next",
            stage="bisect",
            hint="leave out states: what is a state is an input then, and can be given",
        )
    if arrays is not None and not options.get("inputs"):
        options["inputs"] = {name: np.shape(array) for name, array in arrays.items()}
    graphs: list[_Snapshot] = []
    state, executable = compile_state(source, observe=_Keeper(graphs), keep=True, **{**options, "cache": False})
    if not isinstance(executable, Executable):
        raise UsageError("the model leaves shapes open", stage="bisect", hint="give them with inputs")
    found = _Search(state, executable, graphs, arrays, rtol, seed, Path(folder) if folder else None)
    found.run()
    found.result.tried.sort(key=lambda t: found.order.index(t.place))
    return found.result


# ---- graphs --------------------------------------------------------------------------------------------------------


@dataclass
class _Snapshot:
    """A graph on the way: what left it, and that as a pass ("" for a stage)."""

    place: str
    graph: Graph
    text: str


@dataclass
class _Keeper:
    """Keeps a copy of each graph that differs from the one before."""

    graphs: list[_Snapshot]
    last: str = ""

    def __call__(self, place: str, graph: Graph, text: str) -> None:
        with use():
            printed = graph.module.operation.get_asm(enable_debug_info=True)
        if printed != self.last:
            self.graphs.append(_Snapshot(place, graph.clone(), text))
            self.last = printed


@dataclass
class _Search:
    state: State
    executable: Executable
    graphs: list[_Snapshot]
    given: Mapping[str, np.ndarray] | None
    rtol: float | None
    seed: int
    folder: Path | None
    result: Bisection = field(default_factory=Bisection)
    order: list[str] = field(default_factory=list)
    #: kernels whose own loop nests the interpreter refuses
    unjudged: set[str] = field(default_factory=set)

    def run(self) -> None:
        signature = [(i.name, i.shape, i.numpy_dtype) for i in self.executable.arguments]
        arrays = dict(self.given) if self.given is not None else random_inputs(signature, self.seed)
        self.inputs: dict[str, np.ndarray] = arrays
        redefined = [i for i, g in enumerate(self.graphs) if g.place.startswith(REDEFINES)]
        self.graphs = self.graphs[max(redefined, default=0) :]
        self.first = self.graphs[0].graph
        self.reference = self.interpreted(self.first)  # in float64
        self.errors: dict[int, tuple[float, float, str, str]] = {0: (0.0, 0.0, "", "")}
        self.order += [g.place for g in self.graphs]
        last = len(self.graphs) - 1
        if last and self.wrong(last):
            self.graph_is_wrong(first_wrong(last + 1, self.wrong))
        else:
            self.kernels()

    def interpreted(self, graph: Graph, float64: bool = True) -> dict[str, np.ndarray]:
        if graph.level == 2:
            return interpret(graph, self.inputs, float64=float64)
        return interpret_graph(graph, self.inputs, float64=float64)

    def judge(self, outputs: Mapping[str, np.ndarray], graph: Graph | None = None) -> tuple[float, float, str]:
        """(error, allowed, name) of the output that is furthest from the reference, by what is allowed."""
        found = []
        for name, t in self.first.outputs():
            error, allowed = largest_error(outputs[name], self.reference[name]), self.allowed(t.dtype)
            if error > 0 and t.dtype not in FLOATS:  # decided by comparing floats: as the model's own precision does
                own = self.interpreted(self.first, float64=False)[name]
                have = outputs[name] if graph is None else self.interpreted(graph, float64=False)[name]
                error = min(error, largest_error(have, own))
            found.append((error, allowed, name))
        return max(found, key=lambda x: (not x[0] <= x[1], x[0]))

    def allowed(self, dtype: str) -> float:
        if self.rtol is not None:
            return self.rtol
        usual = MODEL_TOLERANCE.get(dtype, 0.0)
        return max(usual, REDUCED_TOLERANCE.get(self.state.options.precision, 0.0)) if usual else 0.0

    def wrong(self, i: int) -> bool:
        """Whether a graph gives other outputs than the reference; one that cannot be interpreted does."""
        if i not in self.errors:
            note = ""
            try:
                error, allowed, name = self.judge(self.interpreted(self.graphs[i].graph), self.graphs[i].graph)
            except CompileError as e:
                error, allowed, name, note = inf, 0.0, "", e.message
            self.errors[i] = error, allowed, name, note
            self.result.tried.append(Tried(self.graphs[i].place, error, note))
        return not self.errors[i][0] <= self.errors[i][1]

    def graph_is_wrong(self, i: int) -> None:
        self.wrong(i - 1)
        self.wrong(i)
        before, found = self.graphs[i - 1], self.graphs[i]
        stage, slash, _ = found.place.partition("/")
        error, allowed, output, note = self.errors[i]
        operator = f"output {output!r}" if output else ""
        if found.text == "lower":
            operator = self.lowered_wrong(before.graph) or operator
        elif stage == "fuse":
            operator = self.fused_wrong(before.graph, found.graph) or operator
        what = f"pass {found.place}" if slash else f"stage {stage}"
        culprit = Culprit(stage, what, operator, self.errors[i - 1][0], error, allowed, self.folder, note)
        self.result.culprit = culprit
        if self.folder is not None:
            given = before.graph, self.inputs
            reproduce.write_graph(self.folder, str(culprit), *given, found.text, stage, self.options())

    def options(self) -> dict[str, object]:
        """What of the options decides what a stage does."""
        chosen = self.state.options
        return {n: getattr(chosen, n) for n in ("target", "precision", "winograd", "stream")}

    def lowered_wrong(self, graph: Graph) -> str:
        """The first operator that is lowered to something else than its reference gives, on its inputs in the model."""
        return first_wrong_lowering(graph, self.inputs, self.allowed)

    def fused_wrong(self, before: Graph, after: Graph) -> str:
        """The first kernel that gives nothing which the graph had before it was fused."""
        known: dict[int, list[np.ndarray]] = {}

        def keep(op: ir.Operation, results: Sequence[np.ndarray]) -> None:
            for r in results:
                known.setdefault(r.size, []).append(r.reshape(-1))

        wrong: list[str] = []

        def compare(op: ir.Operation, results: Sequence[np.ndarray]) -> None:
            if op.name == "func.call" and not wrong:
                for r, v in zip(results, op.results, strict=True):
                    errors = [largest_error(r.reshape(-1), k) for k in known.get(r.size, ())]
                    if min(errors, default=inf) > self.allowed(type_of(v).dtype):
                        wrong.append(_described(op))

        interpret_graph(before, self.inputs, float64=True, each=keep)
        interpret_graph(after, self.inputs, float64=True, each=compare)
        return wrong[0] if wrong else ""

    # ---- kernels ----

    def kernels(self) -> None:
        """The nests of all kernels, then their native code, then the whole model."""
        graph = self.graphs[-1].graph
        functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in graph.functions()}
        self.functions = functions
        seen: set[str] = set()

        def nest(op: ir.Operation, inputs: list[np.ndarray]) -> list[np.ndarray]:
            symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            if self.result.culprit is None and symbol not in seen:
                seen.add(symbol)
                call = self.call(op, symbol, inputs)
                if bisect_kernel.points(self.state.nests[symbol].body) <= bisect_kernel.FEW_POINTS:
                    self.check_nest(call)
            return interpret_function(functions[symbol], inputs)

        interpret_graph(graph, self.inputs, call=nest)
        if self.result.culprit is None:
            self.native(graph)

    def call(self, op: ir.Operation, symbol: str, inputs: list[np.ndarray]) -> bisect_kernel.Call:
        wanted = interpret_function(self.functions[symbol], inputs, float64=True)
        own = interpret_function(self.functions[symbol], inputs)
        allowed = [KERNEL_TOLERANCE.get(type_of(r).dtype, 0.0) for r in op.results]
        return bisect_kernel.Call(symbol, _described(op), inputs, wanted, own, allowed)

    def check_nest(self, call: bisect_kernel.Call) -> None:
        """Judge a kernel's finished nest, and look for the step where it is wrong."""
        place = f"nest of {call.symbol}"
        if place in self.order:
            return
        self.order.append(place)
        error, note = bisect_kernel.error_of(self.state.nests[call.symbol], call)
        found = None if error <= call.limit else bisect_kernel.first_wrong_step(self.state, call)
        if found is None and note:
            self.unjudged.add(call.symbol)
            error, note = 0.0, f"not judged: {note}"
        self.result.tried.append(Tried(place, error, note))
        if found is None:
            return
        what = f"{found.name} of kernel {call.symbol}"
        self.result.culprit = Culprit(
            "schedule", what, call.operator, found.before, found.after, call.limit, self.folder, found.why
        )
        if self.folder is not None:
            trace = str(self.state.schedules[call.symbol].schedule.trace)
            reproduce.write_step(self.folder, str(self.result.culprit), found, call, trace)

    def native(self, graph: Graph) -> None:
        arguments = [self.inputs[i.name] for i in self.executable.arguments]
        try:
            rest = iter(call_results(self.state, arguments, self.executable.threads))
        except UsageError as e:  # the target's code does not run on this machine
            self.order.append("native code")
            self.result.tried.append(Tried("native code", 0.0, f"not run: {e.message}"))
            return

        def run(op: ir.Operation, inputs: list[np.ndarray]) -> list[np.ndarray]:
            symbol, _, results = next(rest)
            made = [signed(a) for a in results]
            if self.result.culprit is None:
                self.check_native(self.call(op, symbol, inputs), made)
            return made

        composed = interpret_graph(graph, self.inputs, call=run)
        if self.result.culprit is None:
            self.whole(arguments, composed)

    def check_native(self, call: bisect_kernel.Call, made: list[np.ndarray]) -> None:
        place = f"native code of {call.symbol}"
        error = call.error(made)
        if place not in self.order:
            self.order.append(place)
            self.result.tried.append(Tried(place, error))
        if error <= call.limit:
            return
        self.check_nest(call)
        if self.result.culprit is None:
            before = next(t.error for t in self.result.tried if t.place == f"nest of {call.symbol}")
            nest = "own nest was not judged" if call.symbol in self.unjudged else "nest is right"
            what = f"the native code of kernel {call.symbol}, whose {nest},"
            self.result.culprit = Culprit("emit", what, call.operator, before, error, call.limit, self.folder)
            if self.folder is not None:
                function = self.functions[call.symbol]
                reproduce.write_kernel(self.folder, str(self.result.culprit), function, call, self.options())

    def whole(self, arguments: list[np.ndarray], composed: Mapping[str, np.ndarray]) -> None:
        """The compiled model against its kernels one by one, and against the reference."""
        names = [name for name, _ in self.first.outputs()]
        outputs = dict(zip(names, self.executable.run_all(tuple(arguments)), strict=False))
        error, allowed, name = self.judge(outputs)
        self.order.append("the compiled model")
        self.result.tried.append(Tried("the compiled model", error))
        self.result.error, self.result.allowed = error, allowed
        before, _, _ = self.judge(composed)
        if error > allowed >= before:
            what = "the memory plan or the order of calls, with every kernel right,"
            self.result.culprit = Culprit("package", what, f"output {name!r}", before, error, allowed)


def _described(op: ir.Operation) -> str:
    """A kernel call by its source nodes."""
    symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
    return f"{', '.join(location_names(op.location))} (kernel {symbol})"


__all__ = ["Bisection", "Culprit", "Tried", "bisect"]
