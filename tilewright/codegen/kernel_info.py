"""What code generation leaves of a kernel for the program that calls it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch_mlir import ir

from ..ir.graph import Graph
from ..schedule.inplace import inplace_pairs
from ..schedule.nest import Alloc, For, Nest, Pack, Seq, Stmt, walk_stmts, writes
from ..support.huge_pages import HugePagePool


@dataclass(frozen=True)
class KernelInfo:
    """What the program must know of a kernel: scratch bytes of one thread, packed parameters by position, whether it
    divides its work, pairs (output, input) of parameters that may share memory, whether all of its work is divided (see
    `Call`), sentences: what its nest asked for by notes and did not get, and whether it takes the table of sizes."""

    scratch: int = 0
    packs: dict[int, Pack] = field(default_factory=dict)
    parallel: bool = True
    inplace: tuple[tuple[int, int], ...] = ()
    pieces: bool = False
    unmet: tuple[str, ...] = ()
    sizes: bool = False

    def told(self, report: dict[str, Any]) -> dict[str, Any]:
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
    pads, shape = [], []
    array = array.reshape(array.shape or (1,) * len(pack.splits))
    if any(pack.repeats):
        array = np.pad(array, [(0, r) for r in pack.repeats], mode="wrap")
    for n, factors in zip(array.shape, pack.splits, strict=True):
        whole = int(np.prod(factors)) if factors else 1
        pads.append((0, -n % whole))
        shape += [-(-n // whole), *factors]
    if any(p for _, p in pads):
        array = np.pad(array, pads)
    array = array.reshape(shape).transpose(pack.order)
    out = (pool or HugePagePool()).empty(array.shape, array.dtype)
    out[...] = array
    return out


def location_names(location: ir.Location) -> tuple[str, ...]:
    """The source node names in a (fused) location.

    The bindings give no access to the parts of a fused location, so they are read off its printed form.
    """
    return tuple(dict.fromkeys(re.findall(r'"((?:[^"\\]|\\.)*)"(?!:\d)', str(location))))


def divides_all(nest: Nest) -> bool:
    """Whether threads do nothing but what they share: no thread fills a buffer of its own before a parallel loop."""
    shared = {p.name for p in nest.params}

    def divided(s: Stmt) -> bool:
        if isinstance(s, Seq):
            return all(map(divided, s.stmts))
        if isinstance(s, Alloc) and has_parallel(s.body):
            return divided(s.body)
        return (isinstance(s, For) and s.bound) or bool(writes(s) & shared)

    return divided(nest.body)


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
    return KernelInfo(scratch, {positions[n]: p for n, p in nest.packs.items()}, parallel, pairs, pieces, unmet, sizes)


def call_names(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Source node names of the first call of every kernel."""
    found: dict[str, tuple[str, ...]] = {}
    for op in graph.operations():
        if op.name == "func.call":
            found.setdefault(ir.FlatSymbolRefAttr(op.attributes["callee"]).value, location_names(op.location))
    return found
