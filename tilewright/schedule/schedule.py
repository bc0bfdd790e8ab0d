"""`Schedule`: how a kernel runs, as a sequence of primitives applied to its loop nest.

The primitives stand in `primitives`, one file for each kind. Default rules, the tuner and users write the same traces.
"""

from __future__ import annotations

from typing import Any

from ..support.options import DEFAULT_TARGET
from ..tensor.kernel import Kernel
from .build import Buildable
from .decisions import Decision
from .primitives.blocks import BlockPrimitives
from .primitives.bulk import BulkPrimitives
from .primitives.cuts import CutPrimitives
from .primitives.dots import DotPrimitives
from .primitives.extremes import ExtremePrimitives
from .primitives.loops import LoopPrimitives
from .primitives.memory import MemoryPrimitives, packed_shape
from .primitives.multi_buffer import MultiBufferPrimitives
from .primitives.reductions import ReductionPrimitives
from .primitives.rounds import RoundPrimitives
from .primitives.split_dimension import SplitDimensionPrimitives
from .primitives.stagger import StaggerPrimitives
from .primitives.state import ScheduleError, primitive, stage_nest
from .primitives.swizzle import SwizzlePrimitives
from .primitives.tactics import TacticPrimitives
from .primitives.tensorize import TensorPrimitives
from .trace import replay


class Schedule(
    LoopPrimitives,
    CutPrimitives,
    BlockPrimitives,
    ReductionPrimitives,
    DotPrimitives,
    ExtremePrimitives,
    TensorPrimitives,
    MultiBufferPrimitives,
    MemoryPrimitives,
    BulkPrimitives,
    SwizzlePrimitives,
    RoundPrimitives,
    SplitDimensionPrimitives,
    StaggerPrimitives,
    TacticPrimitives,
    Buildable,
):
    """The loop nest of a kernel while it is being transformed.

    `body` is the current nest; `temporaries` are buffers whose place is still open: `nest()` allocates each as deep as
    its uses allow. Blocks are named after the kernel's stages.
    """

    @staticmethod
    def replay(kernel: Kernel, trace: str, target: Any = DEFAULT_TARGET) -> Schedule:
        """The schedule of a kernel with a trace (the text of another's `trace`) applied; see `trace.replay`."""
        return replay(Schedule(kernel, target), trace)


__all__ = ["Decision", "Schedule", "ScheduleError", "packed_shape", "primitive", "stage_nest"]
