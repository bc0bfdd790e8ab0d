"""The worker process that runs and times candidates, isolated because they may crash or hang.

It reads pickled requests from stdin and writes pickled answers to stdout, each behind its length, until stdin ends. All
variants of a request are linked into one program whose calls take turns, so that whatever else the machine does hits
them alike."""

from __future__ import annotations

import os
import pickle
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from ..codegen.kernel_info import KernelInfo, pack_array
from ..driver.compare import largest_error, random_inputs
from ..ir.types import NUMPY
from ..program.package import Package
from ..program.program import BufferRef, Call, Program, TensorInfo
from ..program.timeline import Stamps, Timeline
from ..support.aligned import address
from ..support.huge_pages import HugePagePool
from ..targets.base import Built, recorded

#: largest difference from the reference, relative to the largest value of the array
TOLERANCE = {"f64": 1e-10, "f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}
#: the fraction of the fastest runs whose mean is the time of a variant: what other processes take from us is never
#: negative
FASTEST = 0.3


@dataclass(frozen=True)
class Subject:
    """The kernel to run: parameters as (name, shape, dtype), which of them are results and constants, and its meaning
    as MLIR text."""

    params: tuple[tuple[str, tuple[int, ...], str], ...]
    outputs: tuple[str, ...]
    constants: frozenset[str]
    target: str
    threads: int
    meaning: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """Run `variants` (symbol -> object); the first is what the others are compared with.

    Each takes part until `seconds` are used, or only a few times if it is more than `drop` times slower than the
    fastest."""

    subject: Subject
    variants: dict[str, Built]
    seconds: float = 0.3
    drop: float = 1.3
    reference: bool = False
    bursts: int = 1


@dataclass(frozen=True)
class KernelTiming:
    """Seconds of one call (one number a burst), and how far the results are from the first variant's and from the
    reference."""

    seconds: tuple[float, ...] = ()
    error: float = 0.0
    reference_error: float | None = None
    repeatable: bool = True


@dataclass
class RunnerReply:
    timings: dict[str, KernelTiming] = field(default_factory=dict)
    failed: str = ""


class KernelBench:
    """The arrays of one subject, made once; runs requests on them."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.target = recorded(subject.target)
        self.description = self.target.describe()
        inputs = [p for p in subject.params if p[0] not in subject.outputs]
        made = random_inputs([(n, s, NUMPY[d]) for n, s, d in inputs], subject.seed)
        pool = HugePagePool()
        self.arrays = {n: _laid_out(pool, a) for n, a in made.items()}
        self._reference: list[np.ndarray] | None = None

    # ---- one request ----

    def run(self, request: Request) -> RunnerReply:
        results, second = self.outputs(request.variants)
        first = next(iter(results.values()))
        answer = RunnerReply()
        for symbol, got in results.items():
            again = second[symbol]
            same = all(a.tobytes() == b.tobytes() for a, b in zip(got, again, strict=True))
            far = self.reference_error(got) if request.reference else None
            answer.timings[symbol] = KernelTiming((), self.error(got, first), far, same)
        times = self.time(request.variants, 0.0, 1)
        fastest = min(t[0] for t in times.values())
        keep = {
            s: b for n, (s, b) in enumerate(request.variants.items()) if n == 0 or times[s][0] <= request.drop * fastest
        }
        if len(keep) > 1 or len(request.variants) == 1:
            times.update(self.time(keep, request.seconds, request.bursts))
        for symbol, seconds in times.items():
            t = answer.timings[symbol]
            answer.timings[symbol] = KernelTiming(seconds, t.error, t.reference_error, t.repeatable)
        return answer

    def error(self, got: list[np.ndarray], expected: Sequence[np.ndarray]) -> float:
        """The largest error as a multiple of what its dtype allows; integers must be equal."""
        worst = 0.0
        for (_, _, dtype), a, b in zip(self.results, got, expected, strict=True):
            e = largest_error(a, b)
            worst = max(worst, e / TOLERANCE[dtype] if dtype in TOLERANCE else (float("inf") if e else 0.0))
        return worst

    def reference_error(self, got: list[np.ndarray]) -> float | None:
        """The same against the meaning of the kernel's IR in float64; None if its IR is not known."""
        if self.subject.meaning is None:
            return None
        if self._reference is None:
            from ..ir.context import parse
            from ..tensor.interpret import interpret_function

            module = parse(self.subject.meaning, "kernel")
            inputs = [self.arrays[n] for n, _, _ in self.subject.params if n not in self.subject.outputs]
            self._reference = interpret_function(module.body.operations[0], inputs, float64=True)
        return self.error(got, self._reference)

    # ---- programs ----

    @property
    def results(self) -> list[tuple[str, tuple[int, ...], str]]:
        return [p for p in self.subject.params if p[0] in self.subject.outputs]

    def outputs(self, variants: dict[str, Built]) -> tuple[dict[str, list[np.ndarray]], dict[str, list[np.ndarray]]]:
        """The results of two runs of every variant."""
        context, _, inputs = self.load(variants, list(variants), separate=True)
        runs: list[dict[str, list[np.ndarray]]] = []
        try:
            for _ in range(2):
                made = {s: self.results_memory() for s in variants}
                context.run(inputs, [address(a) for group in made.values() for a in group])
                runs.append(made)
        finally:
            context.close()
        return runs[0], runs[1]

    def results_memory(self) -> list[np.ndarray]:
        made, pool = [], HugePagePool()
        for _, shape, dtype in self.results:
            info = TensorInfo("", shape, dtype)
            array = pool.empty((info.nbytes,), np.uint8)
            array[:] = 0xAA  # what a kernel leaves unwritten must not look right by chance
            made.append(array.view(info.numpy_dtype).reshape(shape))
        return made

    def time(self, variants: dict[str, Built], seconds: float, bursts: int) -> dict[str, tuple[float, ...]]:
        """The time of one call of each variant, one number a burst."""
        symbols = list(variants)
        # the first call of a run wakes the other threads, so it is made once more than needed, and not counted
        order = [symbols[0], *symbols, *reversed(symbols), *symbols]
        context, made, addresses = self.load(variants, order, timed=True)
        stamps = Stamps(self.threads, len(order))
        outputs = [address(a) for a in made]
        found: dict[str, list[float]] = {s: [] for s in symbols}
        try:
            context.run(addresses, outputs, stamps)
            for burst in range(bursts):
                if burst:
                    time.sleep(0.03)
                rows: list[np.ndarray] = []
                end = time.perf_counter() + seconds / bursts
                while len(rows) < 2 or (time.perf_counter() < end and len(rows) < 2000):
                    context.run(addresses, outputs, stamps)
                    rows.append(Timeline.of(stamps, self.tick).seconds())
                table = np.array(rows)
                for s in symbols:
                    taken = np.sort(table[:, [i for i, o in enumerate(order) if o == s and i]].ravel())
                    found[s].append(float(taken[: max(1, round(len(taken) * FASTEST))].mean()))
        finally:
            context.close()
        return {s: tuple(t) for s, t in found.items()}

    def load(
        self, variants: dict[str, Built], order: list[str], separate: bool = False, timed: bool = False
    ) -> tuple[Any, list[np.ndarray], list[int]]:
        """A loaded program that makes the calls in `order`, arrays for its outputs, and the addresses of its inputs.

        All variants write the same outputs, so that each waits for the one before, unless they are to be `separate`.
        """
        s = self.subject
        inputs = [p for p in s.params if p[0] not in s.outputs and p[0] not in s.constants]
        constants: list[np.ndarray] = []
        pool = HugePagePool()
        infos: list[TensorInfo] = []
        refs: dict[str, tuple[BufferRef, ...]] = {}
        for number, (symbol, built) in enumerate(variants.items()):
            row = []
            for position, (name, shape, dtype) in enumerate(s.params):
                if name in s.constants:
                    pack = built.info.packs.get(position)
                    array = self.arrays[name] if pack is None else _laid_out(pool, pack_array(self.arrays[name], pack))
                    row.append(BufferRef("constant", len(constants), 0, array.nbytes))
                    constants.append(array)
                    infos.append(TensorInfo(name, array.shape, dtype))
                else:
                    space, group = ("output", self.results) if name in s.outputs else ("input", inputs)
                    index = next(i for i, p in enumerate(group) if p[0] == name)
                    index += number * len(group) if separate and space == "output" else 0
                    row.append(BufferRef(space, index, 0, TensorInfo(name, shape, dtype).nbytes))
            refs[symbol] = tuple(row)
        writes = tuple(i for i, p in enumerate(s.params) if p[0] in s.outputs)
        program = Program(
            tuple(TensorInfo(*p) for p in inputs),
            tuple(TensorInfo(*p) for p in self.results) * (len(variants) if separate else 1),
            tuple(infos),
            tuple(self._call(o, refs[o], writes, variants[o].info) for o in order),
            scratch_size=max(v.info.scratch for v in variants.values()),
        )
        objects = self.target.link(program, {o: v.data for o, v in variants.items()}, self.description)
        package = Package(s.target, self.description.to_json(), program, objects, constants)
        runner = self.target.load(package, s.threads)
        runner = runner.timed() if timed else runner
        self.tick, self.threads = runner.seconds_per_tick, runner.threads
        return runner.context(), self.results_memory(), [address(self.arrays[p[0]]) for p in inputs]

    @staticmethod
    def _call(symbol: str, refs: tuple[BufferRef, ...], writes: tuple[int, ...], info: KernelInfo) -> Call:
        """As in a model: threads that are done help others. With fixed shares, and seen from one thread, a kernel took
        6 to 20% less beside itself at two threads, by the place in the order (measured); like this 1%."""
        return Call(symbol, refs, writes, (), info.parallel, None, info.pieces)


def _laid_out(pool: HugePagePool, array: np.ndarray) -> np.ndarray:
    """A copy in large pages, as the weights and the arena of a model have them: with small ones what counts would be
    how often a candidate goes from page to page."""
    copy = pool.empty(array.shape, array.dtype)
    copy[...] = array
    return copy


# ---- the process ---------------------------------------------------------------------------------------------------


def write_message(stream: IO[bytes], message: object) -> None:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def read_message(stream: IO[bytes]) -> Any:
    """The next message; EOFError if the other side is gone."""
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    data = stream.read(struct.unpack("<Q", head)[0])
    if len(data) < struct.unpack("<Q", head)[0]:
        raise EOFError
    return pickle.loads(data)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    bench: KernelBench | None = None
    while True:
        try:
            request = read_message(requests)
        except EOFError:
            return
        try:
            if bench is None or bench.subject != request.subject:
                bench = KernelBench(request.subject)
            answer = bench.run(request)
        except Exception as e:  # the tuner must hear of everything that is not a crash
            answer = RunnerReply(failed=f"{type(e).__name__}: {e}")
        try:
            write_message(answers, answer)
        except BrokenPipeError:
            return


def main() -> int:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)
    return 0
