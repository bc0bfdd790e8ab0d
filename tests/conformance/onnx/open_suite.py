"""ONNX's own node tests with open dimensions: compiled once, run at the test's sizes and others.

A test says nothing of which of its dimensions may change. That is tried with ONNX's reference evaluator and with the
importer at other sizes: each dimension alone, dimensions of one size together, then all that may change at once. What
a model needs as constants (axes, target shapes ...) stays what the test has.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from conformance_suite import data_sets, flatten
from conformance_table import not_comparable
from isolated import run_isolated

#: seconds for one test, bytes for a worker
TIMEOUT, MEMORY = 120, 8 << 30
MODES = ("first", "all")
#: what a test ends in; `invalid`: none of its dimensions may change, or it does not work at fixed sizes
OUTCOMES = ("pass", "refused", "invalid", "wrong", "error", "crash", "hang")

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Result:
    """One test in one mode: with one dimension open, or all."""

    name: str
    operator: str
    mode: str
    outcome: str
    detail: str = ""
    dims: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Symbol:
    """A dimension that may change: its places as (input, axis), and its size in the test."""

    name: str
    size: int
    places: tuple[tuple[str, int], ...]

    @property
    def largest(self) -> int:
        return self.size + min(self.size, 6) + 1


class Case:
    """A test with its inputs by name; those that have to be constants apart."""

    def __init__(self, case: Any) -> None:
        import onnx

        self.case, self.name = case, case.name
        self.model = onnx.ModelProto()
        self.model.CopyFrom(case.model)
        if any(i.type.WhichOneof("value") != "tensor_type" for i in self.model.graph.input):
            raise Invalid("an input is no tensor")
        names = [i.name for i in self.model.graph.input]
        self.sets = [(dict(zip(names, map(np.asarray, ins), strict=True)), outs) for ins, outs in data_sets(case, None)]
        self.feed: dict[str, np.ndarray] = self.sets[0][0]
        for i in self.model.graph.input:
            for axis, d in enumerate(i.type.tensor_type.shape.dim):
                d.Clear()
                d.dim_param = f"{i.name}_{axis}"
        for o in self.model.graph.output:
            if o.type.HasField("tensor_type"):
                o.type.tensor_type.ClearField("shape")
        del self.model.graph.value_info[:]
        self._fix(self._constants())
        self.truth = self._truth()

    @property
    def operator(self) -> str:
        """The operators that the test is of: the last one where a function was written out."""
        return operator_of(self.case)

    def load(self, feed: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray] = MappingProxyType({})) -> None:
        """Import the model at the sizes of a feed; raises what the importer raises."""
        from tilewright.frontends.onnx import load

        load(self.model, inputs={k: constants.get(k, v.shape) for k, v in feed.items()})

    def _fix(self, constants: Mapping[str, np.ndarray]) -> None:
        """Make initializers of these inputs."""
        from onnx import numpy_helper

        graph = self.model.graph
        inputs = [i for i in graph.input if i.name not in constants]
        del graph.input[:]
        graph.input.extend(inputs)
        graph.initializer.extend(numpy_helper.from_array(x, n) for n, x in constants.items())
        self.sets = [
            ({n: x for n, x in feed.items() if n not in constants}, want)
            for feed, want in self.sets
            if all(np.array_equal(feed[n], x) for n, x in constants.items())
        ]
        self.feed = self.sets[0][0]

    def _constants(self) -> dict[str, np.ndarray]:
        """The inputs that have to be constants; Invalid where the model cannot be imported with these either."""
        from tilewright.support.errors import UnsupportedError

        found: dict[str, np.ndarray] = {}
        for _ in range(4):
            try:
                self.load(self.feed, found)
                return found
            except UnsupportedError as e:
                needed = getattr(e, "needs", frozenset()) - set(found)
                if not needed or any(self.feed[n].size > 64 for n in needed):
                    raise Invalid(f"at fixed sizes: {e.message}") from None
                found |= {n: self.feed[n] for n in needed}
        raise Invalid("more and more inputs have to be constants")

    def _truth(self) -> Callable[[Mapping[str, np.ndarray]], list[Any]] | None:
        """What computes the model: ONNX Runtime if it gives what the test expects, else the reference evaluator, which
        takes minutes for some images."""
        from onnx.reference import ReferenceEvaluator

        def runtime():
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.log_severity_level, options.intra_op_num_threads = 4, 1
            return onnxruntime.InferenceSession(self.model.SerializeToString(), options)

        for make in (runtime, lambda: ReferenceEvaluator(self.model)):
            try:
                session = make()
                if not self.differs(self.sets[0][1], session.run(None, self.feed)):
                    return lambda feed: session.run(None, dict(feed))
            except Exception:
                continue
        return None

    def differs(self, wanted: Sequence[Any], got: Sequence[Any]) -> str:
        """Why results are not those expected, "" if they are."""
        from onnx.backend.test.runner import Runner

        wanted, got, special = list(flatten(wanted)), list(flatten(got)), not_comparable(self.name)
        try:
            if special is None or special[1] is not None:
                atol = self.case.atol if special is None else special[1]
                halves = any(x.dtype.itemsize == 2 and x.dtype.kind not in "iu" for x in wanted)
                rtol, atol = (2e-2, 5e-3) if halves else (self.case.rtol, atol)  # the suite rounds every step
                Runner.assert_similar_outputs(wanted, got, rtol=rtol, atol=atol)
            elif [(x.shape, x.dtype) for x in got] != [(x.shape, x.dtype) for x in wanted]:
                return "shapes or types differ"
        except AssertionError as e:
            return " ".join(str(e).split()) or "differs"
        return ""

    # ---- sizes ----

    def at(self, symbols: Iterable[Symbol], sizes: Sizes, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Inputs of these sizes: the test's own, again and again."""
        shapes = {name: list(x.shape) for name, x in feed.items()}
        for s in symbols:
            for name, axis in s.places:
                shapes[name][axis] = sizes[s.name]
        return {n: x if list(x.shape) == shapes[n] else np.resize(x, shapes[n]) for n, x in feed.items()}

    def valid(self, symbols: Sequence[Symbol], sizes: Sizes) -> bool:
        """Whether the model is one at these sizes."""
        if self.truth is None:
            return False
        feed = self.at(symbols, sizes, self.feed)
        try:
            self.load(feed)
            return bool(self.truth(feed) is not None)
        except Exception:
            return False

    def may_change(self, symbols: Sequence[Symbol]) -> bool:
        """Whether the model is one at two sets of other sizes, no two of which are equal."""
        return all(
            self.valid(symbols, {s.name: s.largest + more + step * i for i, s in enumerate(symbols)})
            for more, step in ((0, 7), (4, 9))
        )

    def symbols(self) -> list[Symbol]:
        """The dimensions that may change, together; Invalid if there are none."""
        places = [(n, a, d) for n, x in self.feed.items() for a, d in enumerate(x.shape) if d]
        alone = [Symbol(f"d{i}", d, ((n, a),)) for i, (n, a, d) in enumerate(places)]
        free = [s for s in alone if self.may_change([s])]
        bound = [s for s in alone if s not in free]
        groups = [self._together(bound, size) for size in dict.fromkeys(s.size for s in bound) if size > 1]
        found = free + [s for s in groups if self.may_change([s])]
        if not self.may_change(found):
            groups = [self._together(alone, size) for size in dict.fromkeys(s.size for s in alone)]
            found = [s for s in groups if self.may_change([s])]
        while found and not self.may_change(found):
            found.pop()
        if not found:
            raise Invalid("none of its dimensions may change" if places else "no dimensions")
        return sorted(found, key=lambda s: s.name)

    @staticmethod
    def _together(symbols: Sequence[Symbol], size: int) -> Symbol:
        same = [s for s in symbols if s.size == size]
        return Symbol(same[0].name, size, tuple(p for s in same for p in s.places))

    def ranges(self, symbols: Sequence[Symbol]) -> list[Any]:
        """Open dimensions around the sizes of the test, from 1 on where the model is one then."""
        import tilewright as tw

        low = {
            s.name: 1 if all(self.valid([s], {s.name: n}) for n in range(1, min(s.size, 4))) else s.size
            for s in symbols
        }
        if not self.valid(symbols, low):
            low = {s.name: s.size for s in symbols}
        return [tw.Dim(s.name, low[s.name], s.largest) for s in symbols]


class Invalid(Exception):
    """The test says nothing about open dimensions."""


def operator_of(case: Any) -> str:
    """The operator that a test is about, from its graph or (for a function that was written out) its name."""
    nodes = case.model.graph.node
    return nodes[0].op_type if len(nodes) == 1 else f"{case.name.removeprefix('test_').split('_')[0]} (several nodes)"


def refuses(e: Exception) -> bool:
    """Whether an error says what cannot be compiled; false for one that stands for an exception of another kind."""
    from tilewright.support.errors import CompileError, TilewrightError
    from tilewright.support.sizes import Undecided

    if isinstance(e.__cause__, Exception) and not isinstance(e.__cause__, TilewrightError):
        return False
    return isinstance(e, TilewrightError) and (not isinstance(e, CompileError) or isinstance(e.__cause__, Undecided))


def check(case: Case, symbols: Sequence[Symbol]) -> tuple[str, str, str]:
    """Outcome, detail and dimensions of one test with these dimensions open."""
    import tilewright as tw

    dims = case.ranges(symbols)
    text = ", ".join(map(str, dims))
    inputs: dict[str, Any] = {n: list(x.shape) for n, x in case.feed.items()}
    for s, dim in zip(symbols, dims, strict=True):
        for name, axis in s.places:
            inputs[name][axis] = dim
    given = {n: tuple(shape) for n, shape in inputs.items()}
    try:
        run = tw.compile(case.model, inputs=given, threads=1, cache=False)
    except Exception as e:
        return ("refused" if refuses(e) else "error"), f"{type(e).__name__}: {e}", text
    calls = [(feed, want, "the test") for feed, want in case.sets if _same_shapes(feed, case.feed)]
    for sizes in ({d.name: d.high for d in dims}, {d.name: d.low for d in dims}):
        feed = case.at(symbols, sizes, case.feed)
        if case.truth is not None and case.valid(symbols, sizes):
            calls.append((feed, case.truth(feed), str(sizes)))
    for feed, want, where in calls:
        try:
            got = run(feed)
        except Exception as e:
            return "error", f"{where}: {type(e).__name__}: {e}", text
        why = case.differs(want, got)
        if why and (where == "the test" or case.differs(closed(case, feed), got)):
            return "wrong", f"{where}: {why}", text
    return "pass", "", text


def closed(case: Case, feed: Mapping[str, np.ndarray]) -> list[Any]:
    """What a program for these sizes computes: the reference evaluator takes some inputs that have no meaning."""
    import tilewright as tw

    given = {n: x.shape for n, x in feed.items()}
    return tw.compile(case.model, inputs=given, threads=1, cache=False)(feed)


def _same_shapes(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> bool:
    return all(a[n].shape == b[n].shape for n in a)


def run(item: tuple[Any, Sequence[str]]) -> list[Result]:
    """One test, in these modes."""
    test, modes = item
    results, begun = [], time.perf_counter()

    def add(mode: str, outcome: str, detail: str = "", dims: str = "") -> None:
        nonlocal begun
        seconds, begun = time.perf_counter() - begun, time.perf_counter()
        results.append(Result(test.name, operator_of(test), mode, outcome, detail[:2000], dims, round(seconds, 3)))

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            case = Case(test)
            symbols = case.symbols()
        except Exception as e:
            why = str(e) if isinstance(e, Invalid) else f"at fixed sizes: {type(e).__name__}: {e}"
            for mode in modes:
                add(mode, "invalid", why)
            return results
        for mode in modes:
            if mode == "all" and len(symbols) == 1 and results:
                add(mode, results[0].outcome, results[0].detail, results[0].dims)
            else:
                add(mode, *check(case, symbols[:1] if mode == "first" else symbols))
    return results


def reason(result: Result) -> str:
    """What refusals have in common: their message without numbers and names."""
    text = result.detail
    for start in ("at once: ", "cannot be imported:"):
        text = text.split(start)[-1]
    for end in ("stage", "saved", "operator", "hint"):
        text = text.split(f"\n  {end}:")[0]
    text = " ".join(text.split())
    text = re.sub(r"kernel \S+|\"[^\"]*\"|'[^']*'", "...", text)
    text = re.sub(r"\(?[^\s(]*\bd\d+\b[^\s]*( [-+*] [^\s]*\d[^\s]*)*\)?", "SIZE", text)
    return re.sub(r"\b\d+\b", "N", text)[:150]


def run_all(
    tests: Sequence[Any],
    *,
    modes: Sequence[str] = MODES,
    workers: int = 2,
    timeout: float = TIMEOUT,
    seconds: float | None = None,
    progress: Callable[[list[Result]], None] | None = None,
) -> list[Result]:
    """The results of tests in worker processes; one that dies is one crash."""

    def lost(item: tuple[Any, Sequence[str]], outcome: str, detail: str, seconds: float) -> list[Result]:
        return [Result(item[0].name, operator_of(item[0]), m, outcome, detail, "", seconds) for m in item[1]]

    items = [(t, modes) for t in tests]
    found = run_isolated(
        items, run, lost, workers=workers, timeout=timeout, memory=MEMORY, progress=progress, seconds=seconds
    )
    return [r for results in found for r in results]
