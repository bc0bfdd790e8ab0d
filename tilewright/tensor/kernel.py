"""A kernel: parameters, and one stage for each operation that writes memory. `read` makes them from linalg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .expr import Buffer, Target, loads


@dataclass(frozen=True)
class Stage:
    """A perfect loop nest around one Store: `dims` are (variable, extent) in order, `reduction` the variables summed
    over."""

    name: str
    dims: tuple[tuple[str, int], ...]
    targets: tuple[Target, ...]
    reduction: tuple[str, ...] = ()

    @property
    def parallel(self) -> tuple[tuple[str, int], ...]:
        return tuple(d for d in self.dims if d[0] not in self.reduction)

    @property
    def buffer(self) -> str:
        return self.targets[0].buffer

    @cached_property
    def reads(self) -> set[str]:
        return {x.buffer for t in self.targets for x in loads(t.value)} - {t.buffer for t in self.targets}

    @property
    def extents(self) -> dict[str, int]:
        return dict(self.dims)


@dataclass(frozen=True)
class Opaque:
    """A `tw` operator that has a loop nest of its own: operands are buffers (None: absent), results are buffers.

    `dtypes` are the operands' dtypes at level 2, where integers may be unsigned (``ui8``), which those of buffers never
    are. `processor` is who computes it if that was settled before; then `made` are the results' dtypes at level 2.
    """

    mnemonic: str
    attributes: dict[str, Any]
    operands: tuple[str | None, ...]
    results: tuple[str, ...]
    dtypes: tuple[str | None, ...]
    processor: str = field(default="", repr=False)  # no part of what tuned kernels are known by
    made: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Kernel:
    """What to compute: inputs then outputs as parameters, temporaries, and the stages in order.

    `one_thread`: it is a part of another kernel, and whichever thread is there runs all of it. `layouts`: how another
    program has packed its constants (`nest.Pack`: splits and order), which this one should do too.
    """

    name: str
    params: tuple[Buffer, ...]
    outputs: tuple[str, ...]
    temporaries: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    constants: frozenset[str] = frozenset()
    opaque: Opaque | None = None
    one_thread: bool = False
    layouts: Mapping[str, tuple[object, object]] = field(default_factory=dict, hash=False)

    def buffer(self, name: str) -> Buffer:
        return next(b for b in (*self.params, *self.temporaries) if b.name == name)

    def holds(self, dtype: str) -> bool:
        """Whether a parameter or a temporary has this dtype: what has none reads none, however stages are inlined."""
        return any(b.dtype == dtype for b in (*self.params, *self.temporaries))

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        return tuple(p for p in self.params if p.name not in self.outputs)
