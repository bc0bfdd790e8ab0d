"""Executables with several entry functions (prefill and decode), which share constants and states (a KV cache).

run = tw.compile({"prefill": "prefill.onnx", "decode": "decode.onnx"}, states={"past": "present"})
run["prefill"](prompt)                  # writes the cache
y, = run["decode"](token)               # reads it and adds to it
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from ..program.package import Package, save_entries
from ..program.states import StateBuffer, StateBuffers
from ..support.errors import UnsupportedError
from ..support.notebook import NotebookText, fragment
from ..support.numbers import size
from ..targets import base
from .copies import Copyable
from .executable import Executable, find_entry
from .open_executable import OpenExecutable, make
from .states import States


class EntryExecutable(Executable):
    """One of several programs that share states. Its calls wait for those of all the others: `turn` has their lock."""

    def __init__(self, package: Package, threads: int | None, buffers: StateBuffers, turn: SimpleNamespace) -> None:
        self._turn = turn
        super().__init__(package, threads, buffers)

    def __call__(
        self, /, *args: object, out: Sequence[np.ndarray] | Mapping[str, np.ndarray] | None = None, **named: object
    ) -> list[np.ndarray]:
        with self._turn.lock:
            return super().__call__(*args, out=out, **named)

    def run_all(
        self, args: tuple[object, ...], out: Sequence[np.ndarray] | Mapping[str, np.ndarray] | None = None
    ) -> list[np.ndarray]:
        with self._turn.lock:
            return super().run_all(args, out)

    @contextlib.contextmanager
    def _between_calls(self) -> Iterator[None]:
        with self._turn.lock, super()._between_calls():
            yield

    def _forget_contexts(self) -> None:
        self._turn.lock = threading.RLock()  # after a fork no other thread is left that could hold it
        super()._forget_contexts()


class OpenEntryExecutable(EntryExecutable, OpenExecutable):
    """One with open dimensions."""


class MultiExecutable(Copyable):
    """A loaded model of several entries, made by `tilewright.compile` of several models, and by `tilewright.load`.

    `entries` are executables by name, which are called, profiled and explained like others; `run["decode"]` is one.
    Constants that entries share are one array, states of one name one buffer: calls of entries with states run one
    after the other. UnsupportedError for a target without states: only those that have them share memory.
    """

    def __init__(self, packages: Mapping[str, Package], threads: int | None = None) -> None:
        check_target(base.recorded(next(iter(packages.values())).target))
        known: dict[str, StateBuffer] = {}
        self.entries: dict[str, Executable] = {}
        self._turn = SimpleNamespace()
        for name, package in packages.items():
            if package.program.states:
                buffers = StateBuffers(package.program.states, known)
                kind = EntryExecutable if package.program.open is None else OpenEntryExecutable
                self.entries[name] = kind(package, threads, buffers, self._turn)
            else:
                self.entries[name] = make(package, threads)
        infos = {s.name: s for p in packages.values() for s in p.program.states}
        self._buffers = StateBuffers(list(infos.values()), known)

    def entry(self, name: str | None = None) -> Executable:
        """The entry of that name; UsageError lists those that there are."""
        return find_entry(self.entries, name)

    __getitem__ = entry

    def __call__(self, *args: object, **named: object) -> NoReturn:
        find_entry(self.entries)
        raise AssertionError("there is one entry")

    @property
    def states(self) -> States:
        """The states of all entries by name, readable and assignable; see `States`."""
        return States(self._buffers, lambda: self._turn.lock)

    def reset(self) -> None:
        """Set all states to zeros, as they were at first; waits until no call is running."""
        for entry in self.entries.values():
            entry.reset()

    def explain(self) -> NotebookText:
        """What was compiled, as text: each entry as `Executable.explain` has it, then what they have together."""
        memory = self.facts()["memory"]
        each = sum(e.memory.weights for e in self.entries.values())
        parts = [f"entry {name}\n\n{e.explain()}\n" for name, e in self.entries.items()]
        weights = f"{size(memory['weights'])} ({size(each)} if none were shared)"
        return NotebookText(
            "\n".join([*parts, f"all entries\n  weights  {weights}\n  states   {size(memory['states'])}"])
        )

    def facts(self) -> dict[str, Any]:
        """What `explain` says, as JSON data: ``entries``, each as `Executable.facts`, ``memory`` of all together."""
        arrays = {id(c): c.nbytes for e in self.entries.values() for c in e.package.constants}
        memory = {"weights": sum(arrays.values()), "states": self._buffers.nbytes}
        return {"entries": {n: e.facts() for n, e in self.entries.items()}, "memory": memory}

    @property
    def threads(self) -> int:
        """The threads of one run of the entry that has most."""
        return max(e.threads for e in self.entries.values())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all entries to one file that `tilewright.load` reads; UsageError if that is not possible."""
        save_entries({n: e.package for n, e in self.entries.items()}, path)

    def close(self) -> None:
        """End the threads of all entries; they can still be called."""
        for entry in self.entries.values():
            entry.close()

    def _repr_html_(self) -> str:
        """For notebooks: the entries, each with what it takes and gives; the rest unfolds."""
        return fragment("several entries", [(n, repr(e)) for n, e in self.entries.items()], self.explain(), "explain")

    def __repr__(self) -> str:
        return f"<MultiExecutable {'; '.join(f'{n}: {e}' for n, e in self.entries.items())}>"


def check_target(target: base.Target) -> None:
    """UnsupportedError if a package for this target has one entry only."""
    if not target.keeps_states:
        raise UnsupportedError(
            f"target {target.name!r} has one entry a package: its programs share no memory",
            stage="import",
            hint=f"compile each model by itself; several entries: {base.able(lambda t: t.keeps_states)}",
        )
