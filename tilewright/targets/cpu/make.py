"""What a worker process makes of a kernel at level 3: its loop nest, its MLIR, its object code.

The stages of the pipeline do the same one after the other for all kernels, and the result is the same; here kernels go
all the way by themselves, each on a core.
"""

from __future__ import annotations

import time
from typing import Any

from torch_mlir import ir

from ...codegen.kernel_info import kernel_info
from ...codegen.llvm.memo_entry import MemoEntry
from ...codegen.llvm.worker import compile_kernel
from ...ir.context import parse, use
from ...schedule.facts import about
from ...schedule.rules import Scheduled, schedule
from ...schedule.split import Divided, split
from ...tensor.read import read_kernel
from .description import CpuDescription
from .emit import emit

#: the schedules of parts that a process made last (see `split`), and for what; it keeps so many
_parts: tuple[CpuDescription | None, dict[str, Scheduled]] = (None, {})
_MOST_PARTS = 64


def _kept_parts(description: CpuDescription) -> dict[str, Scheduled]:
    global _parts
    if _parts[0] != description or len(_parts[1]) > _MOST_PARTS:
        _parts = description, {}
    return _parts[1]


def make_kernel(text: str, description: CpuDescription) -> tuple[MemoEntry | Divided, bytes, dict[str, Any]]:
    """What is made of a kernel (a ``func.func`` on tensors) by the default rules, its object, and the statistics of
    `compile_kernel`, with the seconds of each stage as ``stages``; or the parts that it is better cut into, and no
    object. Raises what the stages raise."""
    begin = time.perf_counter()
    module = parse(f"module {{\n{text}\n}}", "a kernel")
    with use():
        function: ir.OpView = module.body.operations[0]
        kernel = read_kernel(function)
    parts = _kept_parts(description)
    known = parts.get(function.operation.get_asm(use_local_scope=True))
    scheduled = known or schedule(kernel, description)
    if (divided := split(function, scheduled, description, parts)) is not None:
        return divided, b"", {"stages": {"schedule": time.perf_counter() - begin}}
    nest, middle = scheduled.nest, time.perf_counter()
    emitted = emit(nest, description)
    end = time.perf_counter()
    data, stats = compile_kernel(kernel.name, emitted.text, description)
    seconds = {k: v for k, v in stats.items() if k.endswith("seconds")}
    info = kernel_info(nest, emitted.scratch, emitted.refused)
    entry = MemoEntry(str(nest), emitted.text, info, info.told(about(kernel, scheduled, seconds)))
    stages = {"schedule": middle - begin, "emit": end - middle, "assemble": time.perf_counter() - end}
    return entry, data, {**stats, "stages": stages}
