"""A compiled model that can be called.

    run = tw.compile("model.onnx")          # or tw.load("model.tw")
    y, = run(x)                             # arrays in the order of run.inputs, list of arrays out
    y, = run(x=x)                           # or by name, or as one dict: run({"x": x})
    run.save("model.tw")

It may be called from several threads at the same time. With states (`tw.compile(..., states={"past": "present"})`,
docs/states.md) calls have an order, and what one leaves is what the next one finds:

    run.states["past"]                      # a view of what is there now; may be assigned
    run.reset()                             # zeros again
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..program.package import MAIN, Package
from ..program.program import TensorInfo
from ..program.states import StateBuffers
from ..program.timeline import Stamps, Timeline
from ..support import providers
from ..support.aligned import address, aligned_copy
from ..support.errors import PackageError, UsageError
from ..support.notebook import NotebookText
from ..support.numbers import count
from ..support.options import get
from ..targets import base
from . import arrays, indices, random_seed
from .copies import Copyable
from .export import export
from .states import States

if TYPE_CHECKING:
    from .profile import Profile

#: runs of one executable at the same time, from several Python threads; each has its own arena and threads
MAX_CONTEXTS = 8
#: who waits for a context looks this often whether one was lost; one that is given back wakes it at once
_LOOK_AGAIN_SECONDS = 0.05


@dataclass(frozen=True)
class MemoryUsage:
    """Bytes an executable needs. `peak`: weights, states (with the second buffers of those that have two) and one
    context, which is what calls one after the other use; inputs and outputs belong to the caller and are not counted.
    Where weights and code are used in the place in which they are
    stored (`in_place`, a microcontroller's flash), `peak` is of RAM: the arena and the scratch memory.
    """

    weights: int
    arena: int
    arena_bound: int
    scratch: int
    code: int
    in_place: bool = False
    states: int = 0

    @property
    def peak(self) -> int:
        return self.states + self.arena + self.scratch + (0 if self.in_place else self.weights + self.code)


def threads_of(kept: Mapping[str, Any]) -> int:
    """Threads for what was compiled with the option `threads`, or without: at most those there are for it here."""
    here: int = get("TILEWRIGHT_THREADS")
    threads = kept.get("threads")
    return min(threads, here) if type(threads) is int and threads > 0 else here


class Executable(Copyable):
    """A loaded model. Made by `tilewright.compile` and `tilewright.load`.

    Calls from several Python threads run at the same time (the GIL is released), each with a memory and a team of
    threads of its own; the ninth waits. The same input gives the same result, bit for bit, for a given `threads`.

    States belong to the executable: another executable of the same package has its own. With states calls run one after
    the other, each waits for the one before it, and the results depend on their order. A process made by fork has a
    copy of the states as they were.
    """

    def __init__(self, package: Package, threads: int | None = None, buffers: StateBuffers | None = None) -> None:
        """Load a package into this process; PackageError if it does not link or is for another machine. `buffers` has
        its states where it shares them."""
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise UsageError(f"threads must be an integer of at least 1 or None, not {threads!r}")
        self._target = base.recorded(package.target)
        self._target.check(package.description)
        for i, constant in enumerate(package.constants):
            # Kernels rely on the alignment. One after the other: the memory of the copied ones can go at once.
            package.constants[i] = aligned_copy(constant)
        self._package = package
        program = package.program
        #: all that the program reads: the inputs, and the key of random numbers if it draws any (`random_seed`)
        self.arguments: list[TensorInfo] = list(program.inputs)
        self.inputs: list[TensorInfo] = [t for t in program.inputs if t.name != random_seed.KEY]
        self._draws = len(self.inputs) < len(self.arguments)
        #: all that the program gives: the outputs, then what says whether indices were in range (`indices`)
        self.results: list[TensorInfo] = list(program.outputs)
        self.outputs: list[TensorInfo] = [t for t in program.outputs if not t.name.startswith(indices.PREFIX)]
        self._checked = self.results[len(self.outputs) :]
        self._expected = [(t.numpy_dtype, t.shape) for t in program.inputs]
        self._names = [t.name for t in program.inputs]
        self._makers = [arrays.maker(t) for t in program.outputs]
        self._buffers = StateBuffers(program.states) if buffers is None else buffers
        #: contexts there may be: calls that share states run one after the other
        self._most_contexts = 1 if program.states else MAX_CONTEXTS
        self._runner = self._load(threads if threads is not None else threads_of(package.report))
        self._timed: base.Context | None = None  # the program with time stamps, when it was asked for
        self._timed_lock = threading.RLock()
        self._forget_contexts()
        _all.add(self)

    def _load(self, threads: int) -> base.ProgramRunner:
        if self._package.program.states and not self._target.keeps_states:
            raise PackageError(f"the package has states, target {self._package.target!r} has none", stage="load")
        return self._target.load(self._package, threads, self._buffers)

    def _forget_contexts(self) -> None:
        """No contexts yet. An exception may come between any two steps of Python (Ctrl-C, a signal's handler), and a
        context that was in somebody's hands then is gone: nothing is counted by hand, and who waits looks again."""
        self._free: list[base.Context] = []
        self._contexts: weakref.WeakSet[base.Context] = weakref.WeakSet()  # those there are, in use or free
        self._making = threading.Lock()
        self._waiting: set[object] = set()
        self._returned = threading.Lock()  # released for one who waits when a context is free
        self._returned.acquire()

    # ---- running ----

    def __call__(
        self, /, *args: object, out: Sequence[np.ndarray] | Mapping[str, np.ndarray] | None = None, **named: object
    ) -> list[np.ndarray]:
        """Run the model: arrays in the order of `inputs`, by keyword, or as one dict by name; returns a list of arrays.
        States are no inputs or outputs: the program reads what the call before has left.

        Inputs are NumPy arrays or objects with ``__dlpack__`` or ``__array__``, of exactly the shapes and dtypes of
        `inputs`; contiguous ones are used in place. `out` gives arrays to write the outputs into. InputError says what
        is wrong with an argument and what is expected. An input that is itself called ``out`` needs the dict.
        """
        if named:
            args = arrays.with_named(self.inputs, args, named)
        if out is None:
            results = [make() for make in self._makers]
        elif (type(out) is list or type(out) is tuple) and len(out) == len(self.outputs):
            results = list(out)
            if self._checked:
                results += [make() for make in self._makers[len(out) :]]
        else:
            return self._run_checked(args, out)
        given: Iterable[object]
        given = args = self._with_key(args) if self._draws else args
        if len(args) == 1 and type(args[0]) is dict and len(args[0]) == len(self._names):
            given = map(args[0].get, self._names)
        try:
            context = self._free.pop()  # `_take` and `_give`, without two calls of Python functions
        except IndexError:
            context = self._take()
        try:
            done = context.enter(*given, *results)
            if done > 1:
                context.judge()
        finally:
            self._free.append(context)
            if self._waiting:
                self._notify()
        if done:
            return self._judged(results) if self._checked else results
        return self._run_checked(args, results[: len(self.outputs)] if out is None else out)

    def _run_checked(
        self, args: tuple[object, ...], out: Sequence[np.ndarray] | Mapping[str, np.ndarray] | None
    ) -> list[np.ndarray]:
        """A call whose arguments are not what `Context.enter` takes as they are: made so, or an InputError."""
        return self._judged(self.run_all(args, out))

    def run_all(
        self, args: tuple[object, ...], out: Sequence[np.ndarray] | Mapping[str, np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """A call that gives all `results` and judges none of them."""
        given = self._bind(args)
        pointers = [address(a) for a in given]
        results, addresses = self._outputs(out, given, pointers)
        context = self._take()
        try:
            context.run(pointers, addresses)
        finally:
            self._give(context)
        return results

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """A call by addresses: of memory with the elements of each of `arguments`, and for those of each of `results`,
        dense and aligned to their size, which the caller answers for. Nothing is looked at."""
        context = self._take()
        try:
            context.run(inputs, outputs)
        finally:
            self._give(context)

    def _judged(self, results: list[np.ndarray]) -> list[np.ndarray]:
        """The outputs; InputError if the others say that an index was out of range."""
        count = len(self.outputs)
        indices.check(self._checked, results[count:])
        return results[:count]

    def run(self, inputs: object) -> list[np.ndarray]:
        """The same with all inputs in one argument: a dict by name, a list in order, or the only input itself."""
        return self(*arrays.spread(inputs))

    def profile(self, inputs: Mapping[str, object] | Sequence[object], repeats: int = 20) -> Profile:
        """Profile a run: seconds of every kernel on every thread, with the roofline bound of this machine.

        `inputs` as for a call; states are afterwards what they were before. The first time, the program is linked anew
        with time stamps (a call of the executable itself has none), and the first time on a machine its ceilings are
        measured (see docs/profiling.md).

            print(run.profile([x]))
        """
        from .profile import make_profile

        return make_profile(self, inputs, repeats)

    def time_calls(self, inputs: Mapping[str, object] | Sequence[object], runs: int, warm: bool = True) -> np.ndarray:
        """[runs, calls]: seconds of every call, from where the first thread begins to where the last one ends (see
        `Timeline.seconds`); `warm` runs the program once before.

        What one thread sees is no measure: one that comes late finds the others nearly done with the work of all."""
        return np.array([line.seconds() for line in self.timelines(inputs, runs, int(warm))])

    def timelines(self, inputs: Mapping[str, object] | Sequence[object], runs: int, warm: int = 2) -> list[Timeline]:
        """What every thread did in each of `runs` runs."""
        return [Timeline.of(s, self._runner.seconds_per_tick) for s in self._stamped(inputs, runs, warm)]

    def _stamped(self, inputs: Mapping[str, object] | Sequence[object], runs: int, warm: int) -> list[Stamps]:
        """The time stamps of each of `runs` runs, close behind each other so that no thread goes to sleep."""
        if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
            raise UsageError(f"the number of runs must be an integer of at least 1, not {runs!r}")
        with self._timed_lock, self._states_restored():
            given, results, prepare = self._for_timing(arrays.spread(inputs))  # arrays must live until the last run
            pointers, addresses = ([address(a) for a in some] for some in (given, results))
            if self._timed is None:
                self._timed = self._runner.timed().context()
            prepare(self._timed)
            threads, calls = self._runner.threads, len(self._package.program.calls)
            found = [Stamps(threads, calls) for _ in range(runs)]
            for stamps in (*[Stamps(threads, calls) for _ in range(warm)], *found):
                self._timed.run(pointers, addresses, stamps)
        return found

    def _for_timing(
        self, args: tuple[object, ...]
    ) -> tuple[list[np.ndarray], list[np.ndarray], Callable[[base.Context], None]]:
        """Inputs as they are run, arrays for all results, and how a context is prepared before."""
        return self._bind(args), [make() for make in self._makers], lambda context: None

    # ---- states ----

    @property
    def states(self) -> States:
        """The states by name, readable and assignable; see `States`. Empty if the model was compiled without any."""
        return States(self._buffers, self._between_calls)

    def reset(self) -> None:
        """Set all states to zeros, as they were at first; waits until no call is running."""
        if self._buffers.infos:
            with self._between_calls():
                for buffer in self._buffers.buffers:
                    buffer.clear()

    @contextlib.contextmanager
    def _between_calls(self) -> Iterator[None]:
        """While no call runs: the one context that an executable with states has is taken."""
        context = self._take()
        try:
            yield
        finally:
            self._give(context)

    @contextlib.contextmanager
    def _states_restored(self) -> Iterator[None]:
        """Whatever runs meanwhile, the states are afterwards what they were; calls wait."""
        numbers = range(len(self._buffers.infos))
        if not numbers:
            yield
            return
        with self._between_calls():
            before = [self._buffers.value(i).copy() for i in numbers]
            try:
                yield
            finally:
                for i in numbers:
                    self._buffers.buffers[i].assign(before[i])

    def _with_key(self, args: tuple[object, ...]) -> tuple[object, ...]:
        """The arguments with a new key for random numbers, if they have none."""
        if len(args) == 1 and isinstance(args[0], Mapping):
            return (args[0] if random_seed.KEY in args[0] else {**args[0], random_seed.KEY: random_seed.next_key()},)
        return (*args, random_seed.next_key()) if len(args) == len(self.inputs) else args

    def _bind(self, args: tuple[Any, ...]) -> list[np.ndarray]:
        infos = self.arguments
        if self._draws:
            args = self._with_key(args)
        given = list(args)
        if len(given) != len(infos) or (len(args) == 1 and type(args[0]) is not np.ndarray):
            given = arrays.bind(infos, args)
        for i, (value, (dtype, shape)) in enumerate(zip(given, self._expected, strict=True)):
            # The usual case without a function call; everything else, and every error, in to_array.
            if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
                flags = value.flags
                if flags.c_contiguous and flags.aligned:
                    continue
            given[i] = arrays.to_array(value, infos[i], infos)
        return given

    def _outputs(
        self, out: Sequence[np.ndarray] | Mapping[str, np.ndarray] | None, given: list[np.ndarray], pointers: list[int]
    ) -> tuple[list[np.ndarray], list[int]]:
        """The arrays to write to, with their addresses; `pointers` are those of the inputs."""
        if out is not None:
            results, addresses = arrays.check_outputs(out, self.outputs, given, pointers)
            others = [make() for make in self._makers[len(results) :]]
            return [*results, *others], [*addresses, *map(address, others)]
        results = [make() for make in self._makers]
        return results, [address(a) for a in results]

    def _take(self) -> base.Context:
        """An idle context; a new one if there are not too many; else wait.

        Taking from a list and adding to it need no lock."""
        try:
            return self._free.pop()
        except IndexError:
            pass
        me = object()
        self._waiting.add(me)  # before the list is looked at again: who gives one back after that releases
        try:
            while True:
                with contextlib.suppress(IndexError):
                    return self._free.pop()
                with self._making:
                    if len(self._contexts) < self._most_contexts:
                        context = self._runner.context()
                        self._contexts.add(context)
                        return context
                self._returned.acquire(timeout=_LOOK_AGAIN_SECONDS)
        finally:
            self._waiting.discard(me)
            if self._waiting and self._free:
                self._notify()

    def _give(self, context: base.Context) -> None:
        self._free.append(context)
        if self._waiting:
            self._notify()

    def _notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is released already, and no thread has taken it yet
            self._returned.release()

    # ---- what it is ----

    @property
    def entries(self) -> Mapping[str, Executable]:
        """The one entry that there is, ``main``; see `MultiExecutable`."""
        return {MAIN: self}

    def entry(self, name: str | None = None) -> Executable:
        """The entry of that name; UsageError if it is another than ``main``."""
        return find_entry(self.entries, name)

    __getitem__ = entry

    @property
    def threads(self) -> int:
        """The threads of one run (1 if no kernel of the model divides its work)."""
        return self._runner.threads

    @property
    def package(self) -> Package:
        """What `save` writes: program, code, constants and the IR of the levels."""
        return self._package

    @property
    def memory(self) -> MemoryUsage:
        program = self._package.program
        return MemoryUsage(
            weights=sum(t.nbytes for t in program.constants),
            arena=program.arena_size,
            arena_bound=program.arena_bound,
            scratch=program.thread_bytes * self._runner.threads,
            code=sum(map(len, self._package.objects.values())),
            in_place=self._target.settings is not None,
            states=self._buffers.nbytes,
        )

    def explain(self) -> NotebookText:
        """What was compiled, as text: inputs and outputs, the levels, the kernels, the memory."""
        return NotebookText(providers.ask("explain")(self._package, self.memory, self.threads))

    def facts(self) -> dict[str, Any]:
        """What `explain` says, as JSON data; see `tilewright.report.explain.facts`."""
        data: dict[str, Any] = providers.ask("explain_facts")(self._package, self.memory, self.threads)
        return data

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled model to one file that `tilewright.load` reads; UsageError if that is not possible."""
        self._package.save(path)

    def export(
        self, folder: str | os.PathLike[str], *, beside: Sequence[Executable] = (), **settings: str
    ) -> list[Path]:
        """Write the model as files for other tools (source code, a library), and the plan of its memory.

        Only for targets that make such files; `settings` are theirs. `beside`: the same model compiled for targets
        whose files belong to these (for ``web``: ``wasm``). Returns the paths. UsageError says what is not possible.
        """
        self._unchecked("exported")
        return export(self._target, self._package, Path(folder), settings, [e.package for e in beside])

    def emulate(self, *args: object) -> base.Emulated:
        """Run once on a simulated machine of the target's kind: outputs, instructions, sizes. Arguments as for a
        call."""
        self._unchecked("emulated")
        return self._target.emulate(self._package, [self._bind(args)])

    def _unchecked(self, what: str) -> None:
        if self._checked:
            raise UsageError(
                f"a program that checks its indices cannot be {what}: nothing would look at the result of the checks",
                hint="compile it without check_indices",
            )

    def close(self) -> None:
        """End the threads of all contexts that are free; the executable can still be called."""
        contexts: list[base.Context] = []
        with contextlib.suppress(IndexError):
            while True:
                contexts.append(self._free.pop())
        self._contexts.difference_update(contexts)
        with self._timed_lock:
            if self._timed is not None:
                contexts.append(self._timed)
                self._timed = None
        for context in contexts:
            context.close()

    def _repr_html_(self) -> str:
        """For notebooks: what it takes and gives, and its memory; the kernels unfold."""
        text: str = providers.ask("explain_page")(self._package, self.memory, self.threads)
        return text

    def __repr__(self) -> str:
        inputs, outputs = ("; ".join(map(str, infos)) for infos in (self.inputs, self.outputs))
        kept = "; ".join(map(str, self._buffers.infos))
        states = f"states ({kept}), " if kept else ""
        return (
            f"<Executable ({inputs}) -> ({outputs}), {states}{self._package.target}, {count(self.threads, 'thread')}>"
        )


def find_entry(entries: Mapping[str, Executable], name: str | None = None) -> Executable:
    """The entry of that name, without a name the only one; UsageError lists those that there are."""
    names = list(entries)
    if name is None and len(names) == 1:
        return entries[names[0]]
    if name is None:
        hint = f"choose one: run[{names[0]!r}](...), or --entry {names[0]}"
        raise UsageError(f"the model has several entries: {', '.join(names)}", stage="run", hint=hint)
    if name not in names:
        raise UsageError(f"there is no entry {name!r}", stage="run", hint=f"entries: {', '.join(names)}")
    return entries[name]


_all: weakref.WeakSet[Executable] = weakref.WeakSet()


def _after_fork() -> None:
    """The threads of contexts made before a fork live in the parent only: the child makes its own."""
    for executable in list(_all):
        executable._forget_contexts()
        executable._timed, executable._timed_lock = None, threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
