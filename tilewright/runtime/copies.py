"""Copying and pickling of executables: `save` to bytes and load, with the values of states."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..support import providers


class Copyable:
    """An executable that can be copied and pickled.

    A copy has weights, states and threads of its own. A pickle is native code, as the file that `save` writes is: load
    it only from where you trust, and on a machine of the same kind. UsageError or UnsupportedError if the executable
    cannot be saved.
    """

    def __reduce__(self: Any) -> tuple[Callable[..., object], tuple[object, ...]]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.tw"
            self.save(path)
            data = path.read_bytes()
        states = {name: np.array(self.states[name]) for name in getattr(self, "states", ())}
        return _restored, (data, self.threads, states)


def _restored(data: bytes, threads: int, states: Mapping[str, np.ndarray]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tw"
        path.write_bytes(data)
        made: Any = providers.ask("load")(path, threads=threads, copy=True)
    for name, value in states.items():
        made.states[name] = value
    return made


__all__ = ["Copyable"]
