"""The states of an executable (KV caches, running statistics) as a mapping for its caller: `Executable.states`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..program.program import TensorInfo
from ..program.states import StateBuffers
from ..support.errors import InputError
from . import arrays

if TYPE_CHECKING:
    import numpy.typing as npt


class States(Mapping[str, np.ndarray]):
    """Name of the input that a state replaces -> its value, an array of the shape and dtype of that input.

        run.states["past_key"]              # a view: no copy is made
        run.states["past_key"] = cache      # copied into the state
        run.states["past_key"][:, :4] = 0   # a part of it

    A view shows the memory that has the value now. After the next call that may be the memory of an older value, and
    the call after that writes to it: take a copy of what is to be kept. To read and to assign waits until no call is
    running. An array of another shape or dtype is an InputError. A state that grows is as long as it is now, and takes
    arrays of any length that it has room for.
    """

    def __init__(self, buffers: StateBuffers, between_calls: Callable[[], AbstractContextManager[object]]) -> None:
        self._buffers, self._between_calls = buffers, between_calls
        self._numbers = {s.name: i for i, s in enumerate(buffers.infos)}

    def __getitem__(self, name: str) -> np.ndarray:
        number = self._numbers[name]
        with self._between_calls():
            return self._buffers.value(number)

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        infos = [s.tensor for s in self._buffers.infos]
        if name not in self._numbers:
            known = f"states: {', '.join(self._numbers)}" if infos else "this executable has no states"
            raise InputError(f"there is no state {name!r}", stage="run", hint=known)
        number = self._numbers[name]
        if self._buffers.infos[number].growth is not None:
            infos[number] = self._as_long_as(value, number)
        array = arrays.to_array(value, infos[number], infos, "state")
        with self._between_calls():
            self._buffers.buffers[number].assign(array)

    def rows(self, name: str, at: Sequence[int]) -> np.ndarray:
        """Copies of rows along the first dimension. On a device the rest of the state stays there, as in `put` and
        `move`."""
        with self._between_calls():
            return self._buffers.buffers[self._numbers[name]].rows(at)

    def put(self, name: str, at: Sequence[int], values: np.ndarray) -> None:
        """The inverse of `rows`."""
        with self._between_calls():
            self._buffers.buffers[self._numbers[name]].put(at, values)

    def move(self, name: str, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy rows to other rows: pairs of from and to, one after the other."""
        with self._between_calls():
            self._buffers.buffers[self._numbers[name]].move(pairs)

    def _as_long_as(self, value: npt.ArrayLike, number: int) -> TensorInfo:
        """A state that grows, as long as a value that it is to have; as long as may be if that is longer."""
        info = self._buffers.infos[number]
        assert info.growth is not None
        most, axis = info.tensor.shape, info.growth.axis
        given = np.shape(value)
        length = min(given[axis], most[axis]) if len(given) == len(most) else most[axis]
        return replace(info.tensor, shape=(*most[:axis], length, *most[axis + 1 :]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return f"<States {'; '.join(map(str, self._buffers.infos)) or 'none'}>"
