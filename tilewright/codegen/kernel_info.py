"""Metadata of a compiled kernel that the program around it needs: scratch memory, packed constants, in-place pairs."""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch_mlir import ir

from ..ir.graph import Graph
from ..schedule.inplace import inplace_pairs
from ..schedule.iterations import copies, iterations
from ..schedule.nest import Alloc, For, Nest, Pack, Seq, Stmt, walk_stmts, writes
from ..support.formulas import formula
from ..support.huge_pages import HugePagePool

#: a last axis of at most so many elements is copied element by element of that axis
SHORT = 8
#: elements of a row that are transposed at a time
ALONG = 256


@dataclass(frozen=True)
class KernelInfo:
    """What the program must know of a kernel: scratch bytes of one thread, packed parameters by position, whether it
    divides its work, pairs (output, input) of parameters that may share memory, whether all of its work is divided (see
    `Call`), sentences: what its nest asked for by notes and did not get, whether it takes the table of sizes, how often
    its statements run (a formula of open dimensions, -1 if that is not known), and whether it copies where a result
    does not take the place of its operand, which is not counted."""

    scratch: int = 0
    packs: dict[int, Pack] = field(default_factory=dict)
    parallel: bool = True
    inplace: tuple[tuple[int, int], ...] = ()
    pieces: bool = False
    unmet: tuple[str, ...] = ()
    sizes: bool = False
    iterations: str | int = -1
    copies: bool = False

    def with_unmet(self, report: dict[str, Any]) -> dict[str, Any]:
        """A kernel's part of the report (`schedule.facts.about`) with what code generation adds to it."""
        return {**report, "unmet": list(self.unmet)} if self.unmet else report


def pack_array(array: np.ndarray, pack: Pack, pool: HugePagePool | None = None) -> np.ndarray:
    """A constant in the layout of a `Pack`, contiguous and padded with zeros; its memory is taken from `pool`.

    >>> pack_array(np.arange(6).reshape(2, 3), Pack("b", ((), (2,)), (1, 0, 2))).tolist()
    [[[0, 1], [3, 4]], [[2, 0], [5, 0]]]
    >>> pack_array(np.arange(3), Pack("b", ((),), (0,), (5,))).tolist()
    [0, 1, 2, 0, 1, 2, 0, 1]
    >>> pack_array(np.array(7), Pack("b", ((),), (0,), (3,))).tolist()
    [7, 7, 7, 7]
    """
    array = array.reshape(array.shape or (1,) * len(pack.splits))
    if any(pack.repeats):
        array = np.pad(array, [(0, r) for r in pack.repeats], mode="wrap")
    pads = [(0, -n % math.prod(factors)) for n, factors in zip(array.shape, pack.splits, strict=True)]
    if any(p for _, p in pads):
        array = np.pad(array, pads)
    array = array.reshape(_split(array.shape, pack)).transpose(pack.order)
    out = (pool or HugePagePool()).empty(array.shape, array.dtype)
    _copy_packed(array, out)
    return out


def packed_shape(shape: tuple[int, ...], pack: Pack) -> tuple[int, ...]:
    """The shape of what `pack_array` gives for an array of a shape.

    >>> packed_shape((2, 3), Pack("b", ((), (2,)), (1, 0, 2)))
    (2, 2, 2)
    """
    shape = shape or (1,) * len(pack.splits)
    split = _split(tuple(map(operator.add, shape, pack.repeats or (0,) * len(shape))), pack)
    return tuple(split[axis] for axis in pack.order)


def _split(shape: tuple[int, ...], pack: Pack) -> list[int]:
    """The dimensions with their factors, before they are put in order."""
    pairs = zip(shape, pack.splits, strict=True)
    return [d for n, factors in pairs for d in (-(-n // math.prod(factors)), *factors)]


def _copy_packed(array: np.ndarray, out: np.ndarray) -> None:
    """``out[...] = array``, where the last axis is short: NumPy would go through the elements of a short axis one by
    one, and through all elements if the array is not aligned (what a file holds often is not)."""
    run = array.shape[-1]
    if array.strides[-1] == array.itemsize and array.size:  # runs of bytes
        whole = np.dtype((np.void, run * array.itemsize))
        if run * array.itemsize in (2, 4, 8) and array.ctypes.data % 8 == 0:
            whole = np.dtype(f"u{run * array.itemsize}")
        _transpose(array.view(whole)[..., 0], out.view(whole)[..., 0])
    elif run <= SHORT:  # rows interleaved: each row goes at once
        for i in range(run):
            out[..., i] = array[..., i]
    else:
        _transpose(array, out)


def _transpose(array: np.ndarray, out: np.ndarray) -> None:
    """``out[...] = array``, where rows of `array` may lie along its last axis but one: then a piece of all rows at a
    time, by way of memory whose rows do not lie so far apart that they fall into one set of the cache (measured: 3
    times as fast)."""
    if array.ndim < 2 or array.shape[-2] < ALONG or array.strides[-2] != array.itemsize or array.shape[-1] <= SHORT:
        out[...] = array
        return
    near = np.empty((array.shape[-1], ALONG + 32), array.dtype)
    for index in np.ndindex(array.shape[:-2]):
        rows, target = array[index].T, out[index]
        for at in range(0, rows.shape[1], ALONG):
            piece = near[:, : min(ALONG, rows.shape[1] - at)]
            piece[...] = rows[:, at : at + ALONG]
            target[at : at + ALONG] = piece.T


def location_names(location: ir.Location) -> tuple[str, ...]:
    """The source node names in a (fused) location.

    The bindings give no access to the parts of a fused location, so they are read off its printed form.
    """
    return tuple(dict.fromkeys(re.findall(r'"((?:[^"\\]|\\.)*)"(?!:\d)', str(location))))


def divides_all(nest: Nest) -> bool:
    """Whether threads do nothing but what they share: no thread fills a buffer of its own before a parallel loop."""
    return _divided(nest.body, {p.name for p in nest.params})


def _divided(s: Stmt, shared: set[str]) -> bool:
    if isinstance(s, Seq):
        return all(_divided(x, shared) for x in s.stmts)
    if isinstance(s, Alloc) and has_parallel(s.body):
        return _divided(s.body, shared)
    return (isinstance(s, For) and s.bound) or bool(writes(s) & shared)


def has_parallel(s: Stmt) -> bool:
    """Whether a statement has a loop that threads share."""
    return any(isinstance(x, For) and x.bound for x in walk_stmts(s))


def kernel_info(nest: Nest, scratch: int, unmet: tuple[str, ...] = (), sizes: bool = False) -> KernelInfo:
    """What a program must know of a kernel made from this nest; `scratch`: bytes of one thread, `unmet` and
    `sizes`: see `KernelInfo`."""
    positions = {p.name: i for i, p in enumerate(nest.params)}
    parallel = any(isinstance(s, For) and s.bound for s in walk_stmts(nest.body))
    pairs = tuple((positions[o], positions[i]) for o, i in inplace_pairs(nest))
    pieces = parallel and divides_all(nest)
    packs, count = {positions[n]: p for n, p in nest.packs.items()}, iterations(nest.body)
    return KernelInfo(
        scratch, packs, parallel, pairs, pieces, unmet, sizes,
        -1 if count is None else formula(count), any(map(copies, nest.body.loops)),
    )  # fmt: skip


def call_names(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Source node names of the first call of every kernel."""
    found: dict[str, tuple[str, ...]] = {}
    for op in graph.operations():
        if op.name == "func.call":
            found.setdefault(ir.FlatSymbolRefAttr(op.attributes["callee"]).value, location_names(op.location))
    return found
