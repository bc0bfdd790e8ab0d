"""Level 4 -> 5 on a CPU: the emitter of `codegen.vector`, with what is to be known of the processor's vectors and the
parts for instructions of its own."""

from __future__ import annotations

from functools import partial

from ...codegen.vector.emitter import Emitted
from ...codegen.vector.emitter import emit as emit_vectors
from ...codegen.vector.part import VectorMachine
from ...schedule.machine import lanes
from ...schedule.nest import Nest
from ..instructions import known_dot_products
from . import bf16
from .description import CpuDescription
from .emit_tiles import TileProducts
from .tables import Tables, table_lanes


def vectors(description: CpuDescription) -> VectorMachine:
    """What code for a processor depends on."""
    have = set(description.features)
    return VectorMachine(
        lanes(description),
        tuple(n for n, feature in ((16, "avx512f"), (8, "avx512vl")) if feature in have),
        table_lanes(have),
        bf16.INTRINSICS if bf16.FEATURE in have else {},
        known_dot_products(),
        "llvm.x86.sse.sfence" if "avx512f" in have else "",  # measured on such processors only
        description.chains,
        description.access.load,  # a shuffle takes a cycle
    )


def emit(nest: Nest, description: CpuDescription) -> Emitted:
    """MLIR of a finished nest for a processor."""
    return emit_vectors(nest, vectors(description), (partial(TileProducts, features=description.features), Tables))
