"""The error report of a compilation in reduced precision: which kernels multiply what, and the error of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ir.context import use
from ..schedule.nest import For, Nest, stores, walk_stmts
from ..support.numbers import count
from ..tensor.analysis import is_contraction
from ..tensor.expr import Op, walk
from ..tensor.kernel import Kernel
from ..tensor.read import read_kernel
from .compare import largest_error
from .compile_state import State


def precision_notes(state: State) -> list[str]:
    """One line on the arithmetic of a model with less than f32: how many kernels multiply the smaller type, how many
    only read it; nothing for f32."""
    small = state.options.precision
    if small == "f32":
        return []
    fast = {n for n, nest in state.nests.items() if _pairs(nest)}
    fast |= {n for n, known in state.recalled.items() if "dot2[" in known.nest}
    tiles = {n for n, nest in state.nests.items() if _tiles(nest)}
    tiles |= {n for n, known in state.recalled.items() if "'tiles': '" in known.nest}
    with use():
        kernels = [read_kernel(f) for f in state.module.functions()]
    tiles &= {k.name for k in kernels if any(p.dtype == small for p in k.inputs)}  # others multiply bytes
    slow = [k.name for k in kernels if k.name not in fast | tiles and _multiplies(k, small)]
    if small == "bf16" and not tiles and state.description.pairs is None:
        why = "this machine has no instruction for it: it is storage only, and the arithmetic is f32"
        return [f"bf16: {why}; {count(len(slow), 'kernel')}"]
    parts = [f"{count(len(tiles), 'kernel')} with products of tiles"] if tiles else []
    pairs = fast - tiles
    parts += [f"{count(len(pairs), 'kernel')} with products of pairs"] if pairs else []
    parts += [f"{count(len(slow), 'kernel')} with storage only, multiplying in f32"] if slow else []
    return [f"{small}: {', '.join(parts) or 'no contraction reads it'}"]


def _pairs(nest: Nest) -> bool:
    """Whether a nest multiplies pairs of bf16 in one instruction."""
    return any(
        isinstance(x, Op) and x.op == "dot2" for s in stores(nest.body) for t in s.targets for x in walk(t.value)
    )


def _tiles(nest: Nest) -> bool:
    """Whether a nest multiplies registers that hold matrices."""
    return any(isinstance(s, For) and s.note("tiles") is not None for s in walk_stmts(nest.body))


def _multiplies(kernel: Kernel, small: str) -> bool:
    """Whether a kernel multiplies elements of the smaller type."""
    if kernel.opaque is not None:
        own = kernel.opaque.mnemonic.removeprefix("paged_").removesuffix("_parts")
        return own == "attention" and any(p.dtype == small for p in kernel.params)
    return any(map(is_contraction, kernel.stages)) and any(p.dtype == small for p in kernel.inputs)


# ---- the error of every kernel -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelError:
    """How far the result of a kernel call is from that of the same model in f32; `names` are its source nodes."""

    symbol: str
    names: tuple[str, ...]
    error: float


Results = Sequence[tuple[str, tuple[str, ...], list[np.ndarray]]]


def errors_against_f32(results: Results, in_f32: Results) -> list[KernelError]:
    """The results of kernels beside those with the same source nodes and sizes of the same model in f32.

    Results are (symbol, source nodes, results) of the calls. Errors are relative to the largest value, and hold what
    the kernels before have brought along. Calls that are made otherwise in f32 are left out.
    """
    expected = {names: made for _, names, made in in_f32}
    found = []
    for symbol, names, made in results:
        want = expected.get(names)
        if want is not None and [a.size for a in want] == [a.size for a in made][: len(want)]:
            pairs = zip(made, want, strict=False)
            found.append(KernelError(symbol, names, max(largest_error(a.reshape(-1), b.reshape(-1)) for a, b in pairs)))
    return found


def table(errors: Sequence[KernelError]) -> list[str]:
    """The errors as lines, in the order of the program."""
    if not errors:
        return []
    width = max(len(e.symbol) for e in errors)
    return [f"{e.symbol.ljust(width)}  {e.error:.1e}  {', '.join(e.names[:2])}" for e in errors]
