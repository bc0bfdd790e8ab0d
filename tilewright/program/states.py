"""The memory of states: buffers that live between the runs of a program, or of several programs that share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..support.aligned import address
from ..support.zeroed import ZeroedMemory
from .program import StateInfo


class StateOnDevice(Protocol):
    """Where the value of a state is while its programs run, if that is not the host's memory."""

    def fetch(self, array: np.ndarray) -> None:
        """Bring the value to the host's array, which has it from now on; nothing if it has it already."""

    def replaced(self) -> None:
        """The host's array has another value now."""

    def rows(self, at: Sequence[int], out: np.ndarray) -> bool:
        """Copy rows along the first dimension to the host; nothing, and False, if the value is not there or only
        brought as a whole."""
        return False

    def put(self, at: Sequence[int], values: np.ndarray) -> bool:
        """The inverse of `rows`."""
        return False

    def move(self, pairs: Sequence[tuple[int, int]]) -> bool:
        """Copy rows to other rows, pairs of from and to, one after the other; see `rows`."""
        return False


class StateBuffer:
    """The memory of one state, zeros at first: one buffer, or two that change places after every run.

    A cell of two addresses says where its value is and where its next value goes. The code that runs exchanges the two
    when it is done; a program that writes in place uses the first alone. Of a state that grows the buffer has room for
    the largest value.
    """

    def __init__(self, info: StateInfo) -> None:
        self.tensor = info.tensor
        self.axis = None if info.growth is None else info.growth.axis
        #: of a state that grows along `axis`: how many rows of the buffer are its value
        self.length = 0
        self._memory: list[ZeroedMemory] = []
        self._buffers = [self._zeros()]
        self._cell = np.array([address(self._buffers[0])] * 2, np.int64)
        self.on_device: StateOnDevice | None = None

    def double(self) -> None:
        """Have a second buffer, for a program that cannot write in place."""
        if len(self._buffers) == 1:
            self._buffers.append(self._zeros())
            self._cell[1] = address(self._buffers[1])

    def _zeros(self) -> np.ndarray:
        self._memory.append(ZeroedMemory(self.tensor.nbytes))
        return self._memory[-1].array.view(self.tensor.numpy_dtype).reshape(self.tensor.shape)

    @property
    def value(self) -> np.ndarray:
        """The buffer that has the value now, of a state that grows the part that is filled."""
        if self.on_device is not None:
            self.on_device.fetch(self.array)
        return self._filled()

    @property
    def array(self) -> np.ndarray:
        """The whole buffer on the host that has the value, or had it last."""
        return next(b for b in self._buffers if address(b) == self._cell[0])

    def _filled(self) -> np.ndarray:
        return self.array if self.axis is None else self.array[(slice(None),) * self.axis + (slice(self.length),)]

    def rows(self, at: Sequence[int]) -> np.ndarray:
        """Copies of rows along the first dimension; of a large state on a device no others are brought to the host."""
        out = np.empty((len(at), *self.tensor.shape[1:]), self.tensor.numpy_dtype)
        if self.on_device is None or not self.on_device.rows(at, out):
            out[...] = self.value[np.asarray(at, np.intp)]
        return out

    def put(self, at: Sequence[int], values: np.ndarray) -> None:
        """The inverse of `rows`."""
        if self.on_device is None or not self.on_device.put(at, values):
            self.value[np.asarray(at, np.intp)] = values

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy rows to other rows: pairs of from and to, one after the other."""
        if self.on_device is None or not self.on_device.move(pairs):
            value = self.value
            for old, new in pairs:
                value[new] = value[old]

    def assign(self, value: np.ndarray) -> None:
        """Copy a value, of a state that grows one of any length that there is room for."""
        if self.axis is not None:
            self.length = value.shape[self.axis]
        self._filled()[...] = value
        if self.on_device is not None:
            self.on_device.replaced()

    def clear(self) -> None:
        """Zeros, or nothing, as it was at first; a large state's memory is given back."""
        for memory in self._memory:
            memory.clear()
        self.length = 0
        if self.on_device is not None:
            self.on_device.replaced()

    @property
    def addresses(self) -> tuple[int, int]:
        """Where its value is, and where its next value goes."""
        return int(self._cell[0]), int(self._cell[1])

    @property
    def following(self) -> np.ndarray:
        """The whole buffer on the host that its next value goes to."""
        return next(b for b in self._buffers if address(b) == self._cell[1])

    def exchange(self) -> None:
        """Let the two buffers change places: after a run of a program that does not do so itself."""
        self._cell[:] = self._cell[::-1].copy()

    @property
    def cell_address(self) -> int:
        return address(self._cell)

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes * len(self._buffers)


class StateBuffers:
    """The states of a program, in its order, and the table of the addresses of their cells that its code reads. Those
    in `known`, by name, are shared with other programs; new ones are added to it.

    >>> from tilewright.program.program import TensorInfo
    >>> buffers = StateBuffers([StateInfo(TensorInfo("past", (2, 2), "f32"), "present", swapped=True)])
    >>> buffers.value(0).tolist(), buffers.nbytes
    ([[0.0, 0.0], [0.0, 0.0]], 32)
    """

    def __init__(self, infos: Sequence[StateInfo], known: dict[str, StateBuffer] | None = None) -> None:
        self.infos = tuple(infos)
        known = {} if known is None else known
        self.buffers = [known.setdefault(s.name, StateBuffer(s)) for s in self.infos]
        for buffer, info in zip(self.buffers, self.infos, strict=True):
            if info.swapped:
                buffer.double()
        self._table = np.array([b.cell_address for b in self.buffers], np.int64)

    @property
    def table_address(self) -> int:
        """Where the table begins; 0 if there are no states."""
        return address(self._table) if self.infos else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(b.nbytes for b in self.buffers)

    def value(self, state: int) -> np.ndarray:
        """The buffer that has the value of a state now."""
        return self.buffers[state].value
