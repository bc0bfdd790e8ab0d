"""The callables that the `torch.compile` backend returns: they run programs on the memory of tensors in place."""

from __future__ import annotations

import ctypes
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..frontends.torch.fx_graph import GraphOutput, GraphSignature, StridedLayout
from ..runtime.executable import Executable

#: bytes in each of the places where a tensor that is built in is looked at in every call
WINDOW = 64
#: programs run on the addresses of their inputs, and of the memory for their outputs
Run = Callable[[Sequence[int], Sequence[int]], None]
#: calls take all arguments as one list, which they empty, so that memory is given back early
Call = Callable[[list[Any]], list[Any]]
#: the version counter of a tensor, and where its elements begin
_version, _place = operator.attrgetter("_version"), torch.Tensor.data_ptr


def boxed(call: Callable[[list[Any]], list[Any]]) -> Call:
    """The function, marked as one that takes a list."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def call_of(layout: GraphSignature, executable: Executable | None, run_at: Run | None = None) -> Call:
    """A call of the program of a graph, which is None where nothing is to be computed. `run_at` runs it on addresses of
    inputs and of outputs; None: as the executable does."""
    results = _results(layout.results)
    if executable is None:
        return boxed(lambda args: results(args, []))
    run, draws = run_at or executable.run_at, len(executable.arguments) > len(executable.inputs)
    inputs, outputs = layout.inputs, [(f.sizes, f.strides, f.dtype) for f in layout.outputs]
    strided = [i for i, f in enumerate(layout.outputs) if f.order is None]
    checks = [(i, f.sizes, f.strides if f.order is not None else _plain_strides(f.sizes)) for i, f in inputs]
    make = torch.empty_strided

    def call(args: list[Any]) -> list[Any]:
        given = []
        for i, sizes, strides in checks:
            t = args[i]
            if t.stride() != strides or t.shape != sizes:
                t = _laid_out(t, sizes, strides)
            given.append(t)
        pointers = [t.data_ptr() for t in given]
        if draws:
            key = torch.randint(-(1 << 31), 1 << 31, (), dtype=torch.int32)
            pointers.append(key.data_ptr())
        made = [make(sizes, strides, dtype=dtype) for sizes, strides, dtype in outputs]
        filled = made if not strided else [torch.empty(t.shape, dtype=t.dtype) if i in strided else t
                                           for i, t in enumerate(made)]  # fmt: skip
        run(pointers, [t.data_ptr() for t in filled])
        for i in strided:
            made[i].copy_(filled[i])
        return results(args, made)

    return boxed(call)


def _plain_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


def _laid_out(tensor: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor itself where it lies as the program expects, else a copy that does."""
    if tuple(tensor.shape) != sizes:
        raise RuntimeError(f"a graph made for a tensor of {sizes} was called with one of {tuple(tensor.shape)}")
    dense = all(s == 1 or a == b for s, a, b in zip(sizes, tensor.stride(), strides, strict=True))
    if dense or not tensor.numel():
        return tensor
    with torch.no_grad():
        return torch.empty_strided(sizes, strides, dtype=tensor.dtype).copy_(tensor)


def _results(results: Sequence[GraphOutput]) -> Callable[[list[Any], list[Any]], list[Any]]:
    """A function from the arguments and the program's outputs to what the graph returns; it empties the arguments."""
    if [(r.kind, r.what, r.view) for r in results] == [("output", i, None) for i in range(len(results))]:

        def plain(args: list[Any], made: list[Any]) -> list[Any]:
            args.clear()
            return made

        return plain

    def collect(args: list[Any], made: list[Any]) -> list[Any]:
        found = [
            r.what if r.kind == "value" else _viewed((args if r.kind == "argument" else made)[r.what], r.view)
            for r in results
        ]
        args.clear()
        return found

    return collect


def _viewed(tensor: torch.Tensor, view: StridedLayout | None) -> torch.Tensor:
    if view is None:
        return tensor
    return tensor.as_strided(view.sizes, view.strides, tensor.storage_offset() + view.offset)


class FrozenCall:
    """A call with tensors built in, as long as none of them is written to or replaced; from then on one that reads them
    anew in every call, which `make` makes.

    A call compares the tensors, their version counters and their places. What is written past the counters (through
    `tensor.data`, or NumPy) is seen by bytes of them: the first, those in the middle and the last.
    """

    _boxed_call = True

    def __init__(self, call: Call, frozen: Mapping[int, torch.Tensor], make: Callable[[], Call]) -> None:
        self._call, self._make = call, make
        self._tensors = list(frozen.values())
        self._numbers = list(frozen)
        self._versions = list(map(_version, self._tensors))
        self._places = list(map(_place, self._tensors))
        self._windows = [w for t in self._tensors for w in _windows(t)]
        self._content = b"".join(self._windows)
        self._thawed = False
        self._lock = threading.Lock()

    def __call__(self, args: list[Any]) -> list[Any]:
        if not (self._thawed or self._same(args)):
            self._thaw()
        return self._call(args)

    def _same(self, args: Sequence[Any]) -> bool:
        """Whether all is as it was; models have hundreds of tensors, so there is no loop of Python's."""
        return (
            all(map(operator.is_, map(args.__getitem__, self._numbers), self._tensors))
            and list(map(_version, self._tensors)) == self._versions
            and list(map(_place, self._tensors)) == self._places
            and b"".join(self._windows) == self._content  # after the places, which it reads
        )

    def _thaw(self) -> None:
        with self._lock:
            if not self._thawed:
                self._call, self._thawed = self._make(), True


def _windows(tensor: torch.Tensor) -> list[memoryview]:
    """The first bytes of the memory of a tensor, those in the middle and the last, to be read as they are then."""
    if not tensor.numel():
        return []
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    size = (last + 1) * tensor.element_size()
    part = min(size, WINDOW)
    places = sorted({0, (size - part) // 2, size - part})
    return [memoryview((ctypes.c_char * part).from_address(tensor.data_ptr() + p)).cast("B") for p in places]


__all__ = ["Call", "FrozenCall", "boxed", "call_of"]
