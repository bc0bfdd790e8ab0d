"""Programs of `torch.export`: how modules become such, what goes in and out of them, and their graph."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions, export
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

from ...ir.graph import Graph
from ...ir.types import Type
from ...support.errors import TilewrightError, UnsupportedError, UsageError
from . import arrays
from .callable import Call, TorchExecutable
from .importer import Importer
from .node import DTYPES

#: overloads that stay whole, for there is an operator for each: PyTorch would make several of them
WHOLE = (
    "linear", "matmul", "einsum", "scaled_dot_product_attention", "layer_norm", "group_norm", "rms_norm",
    "instance_norm", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "softmax.int", "log_softmax.int",
    "_safe_softmax", "softplus", "leaky_relu", "elu", "celu", "selu", "hardtanh", "relu6", "prelu", "_prelu_kernel",
    "addmm", "baddbmm", "addcmul", "embedding", "pixel_shuffle", "upsample_nearest1d.vec", "upsample_nearest2d.vec",
    "upsample_nearest3d.vec", "_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec",
    "_upsample_nearest_exact3d.vec", "upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec",
    "upsample_bicubic2d.vec", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa", "grid_sampler_2d", "grid_sampler_3d", "grid_sampler", "im2col", "col2im", "index_add",
    "index_copy", "logsumexp", "linalg_vector_norm", "stack", "roll", "unbind.int", "split.Tensor", "tril", "triu",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices", "glu",
    "isneginf", "isposinf", "square", "exp2", "signbit", "trunc", "frac", "one_hot", "bucketize.Tensor",
    "searchsorted.Tensor", "cumprod", "any.dims", "all.dims", "_unsafe_index.Tensor", "repeat_interleave.self_int",
)  # fmt: skip
MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@lru_cache(maxsize=1)
def decompositions() -> Any:
    """PyTorch's table of decompositions without `WHOLE`."""
    table = default_decompositions()
    for name in WHOLE:
        packet, _, overload = name.partition(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload or "default"), None)
    return table


class Program:
    """A program of `torch.export` after decomposition."""

    def __init__(self, exported: ExportedProgram, name: str) -> None:
        self.exported, self.name = exported, name
        signature = exported.graph_signature
        state = {**exported.state_dict, **exported.constants}
        written = {s.target for s in signature.output_specs if s.kind == OutputKind.BUFFER_MUTATION}
        #: arrays (and numbers, None) by placeholder, which the graph has built in
        self.known: dict[str, Any] = {}
        self.call = Call(exported)
        self.inputs: list[str] = []
        for spec in signature.input_specs:
            if isinstance(spec.arg, ConstantArgument):
                self.known[spec.arg.name] = spec.arg.value
            elif spec.kind == InputKind.TOKEN:  # the order of side effects, which have no import function
                self.known[spec.arg.name] = None
            elif not isinstance(spec.arg, TensorArgument):
                raise UnsupportedError(f"input {spec.arg.name!r} is no tensor and no constant", stage="import")
            elif spec.kind == InputKind.USER_INPUT:
                self.inputs.append(spec.arg.name)
            elif spec.target in written:
                self.inputs.append(spec.arg.name)
                self.call.buffers[spec.arg.name] = state[spec.target]
            else:
                self.known[spec.arg.name] = arrays.view(state[spec.target])

    @staticmethod
    def of(source: Any, examples: Any, dynamic_shapes: Any) -> Program:
        """A program for a module, an exported program, or a program. UnsupportedError if PyTorch cannot export it."""
        if isinstance(source, Program):
            return source
        if dynamic_shapes is not None:
            raise UnsupportedError(
                "programs of PyTorch with dynamic_shapes are not compiled yet",
                stage="import",
                hint="compile for each shape, or go through ONNX",
            )
        name = type(source).__name__
        if not isinstance(source, ExportedProgram):
            args, kwargs = _arguments(examples)
            try:
                source = export(source, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
            except Exception as e:  # whatever the module's own code raises
                why = str(e).strip().split("\n")[0]
                raise UnsupportedError(
                    f"PyTorch cannot export this module: {type(e).__name__}: {why}",
                    stage="import",
                    hint="torch.export.export(module, example_inputs, strict=False) says more",
                ) from e
        try:
            return Program(source.run_decompositions(decompositions()), name)
        except TilewrightError:
            raise
        except Exception as e:
            raise UnsupportedError(
                f"PyTorch cannot decompose this program: {type(e).__name__}: {e}", stage="import"
            ) from e

    def graph(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        """The level-2 graph. UnsupportedError lists all operators that cannot be imported."""
        if shapes:
            raise UsageError("the shapes of a PyTorch program are those of its examples", stage="import")
        metas = {n.name: n.meta.get("val") for n in self.exported.graph.nodes if n.op == "placeholder"}
        inputs = [(name, _type(name, metas[name])) for name in self.inputs]
        importer = Importer(inputs, self.known, {})
        results = importer.run(self.exported.graph_module)
        outputs = self.call.outputs(results)
        return importer.finish(outputs)

    def wrap(self, executable: Any) -> TorchExecutable:
        """What the caller gets: called as the module was, on tensors."""
        return TorchExecutable(executable, self.call)


def _arguments(examples: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as positional and named arguments: a tuple or list, a dict by name, one tensor alone."""
    if examples is None:
        raise UsageError("a module needs example inputs", stage="import", hint="tw.compile(module, example_inputs)")
    if isinstance(examples, Mapping):
        return (), dict(examples)
    return (tuple(examples), {}) if isinstance(examples, (tuple, list)) else ((examples,), {})


def _type(name: str, meta: torch.Tensor) -> Type:
    if meta.dtype not in DTYPES:
        raise UnsupportedError(f"input {name!r} is a tensor of {meta.dtype}, which is not supported", stage="import")
    if not all(isinstance(d, int) for d in meta.shape):
        raise UnsupportedError(
            f"input {name!r} has open dimensions: {tuple(meta.shape)}",
            stage="import",
            hint="export the program with static shapes",
        )
    return Type(tuple(meta.shape), DTYPES[meta.dtype])


__all__ = ["Program", "decompositions"]
