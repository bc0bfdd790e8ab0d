"""Level 5 -> 6: serializes a module of MLIR's `spirv` dialect to a SPIR-V binary."""

from __future__ import annotations

from ...ir.context import parse, run_passes, use
from ...support.errors import CompileError

STAGE = "assemble"


def binary(text: str) -> bytes:
    """The words of SPIR-V; CompileError if MLIR does not accept the module."""
    from torch_mlir.dialects import gpu

    with use():
        module = parse(text)
        run_passes(module, "builtin.module(gpu-module-to-binary)", stage=STAGE)
        for op in module.body.operations:
            if "objects" in op.operation.attributes:
                (made,) = op.operation.attributes["objects"]
                return bytes(gpu.ObjectAttr(made).object)
    raise CompileError("MLIR made no SPIR-V of the kernel", stage=STAGE)
