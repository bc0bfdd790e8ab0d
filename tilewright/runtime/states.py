"""The states of an executable, for its caller: what `Executable.states` is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ..program.states import StateBuffers
from ..support.errors import InputError
from . import arrays


class States(Mapping[str, np.ndarray]):
    """Name of the input that a state replaces -> its value, an array of the shape and dtype of that input.

        run.states["past_key"]              # a view: no copy is made
        run.states["past_key"] = cache      # copied into the state
        run.states["past_key"][:, :4] = 0   # a part of it

    A view shows the memory that has the value now. After the next call that may be the memory of an older value, and
    the call after that writes to it: take a copy of what is to be kept. To read and to assign waits until no call is
    running. An array of another shape or dtype is an InputError.
    """

    def __init__(self, buffers: StateBuffers, between_calls: Callable[[], AbstractContextManager[Any]]) -> None:
        self._buffers, self._between_calls = buffers, between_calls
        self._numbers = {s.name: i for i, s in enumerate(buffers.infos)}

    def __getitem__(self, name: str) -> np.ndarray:
        number = self._numbers[name]
        with self._between_calls():
            return self._buffers.value(number)

    def __setitem__(self, name: str, value: Any) -> None:
        infos = [s.tensor for s in self._buffers.infos]
        if name not in self._numbers:
            known = f"states: {', '.join(self._numbers)}" if infos else "this executable has no states"
            raise InputError(f"there is no state {name!r}", stage="run", hint=known)
        number = self._numbers[name]
        array = arrays.to_array(value, infos[number], infos, "state")
        with self._between_calls():
            self._buffers.value(number)[...] = array

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return f"<States {'; '.join(map(str, self._buffers.infos)) or 'none'}>"
