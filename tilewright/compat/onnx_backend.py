"""Tilewright as an ONNX backend (`onnx.backend.base`), for the standard's test runner and for tools that drive
backends.

import tilewright.compat.onnx_backend as backend

rep = backend.prepare(model)          # onnx.ModelProto
y, = rep.run([x])
y, = backend.run_model(model, [x])
y, = backend.run_node(node, [x])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep

from ..driver.service import compile
from ..support.errors import UsageError
from ..support.options import Options

__all__ = ["TilewrightBackend", "TilewrightRep", "prepare", "run_model", "run_node", "supports_device"]

_OPTIONS = {f.name for f in fields(Options)}


class TilewrightRep(BackendRep):
    """A compiled model; `executable` is what `tilewright.compile` gave."""

    def __init__(self, executable: Any) -> None:
        self.executable = executable

    def run(self, inputs: Any, **kwargs: object) -> list[Any]:  # type: ignore[override]
        """Outputs in the model's order; `inputs` is a list in the order of the model's inputs, a dict, or one array.

        Raises InputError if the inputs do not fit, and what `tilewright.compile` raises where shapes become known.
        """
        if isinstance(inputs, Mapping):
            return self.executable(inputs)
        return self.executable(*(inputs if isinstance(inputs, Sequence) else [inputs]))


class TilewrightBackend(Backend):
    """The interface as class methods.

    >>> node = helper.make_node("Relu", ["x"], ["y"])
    >>> TilewrightBackend.run_node(node, [np.array([-1, 2], np.float32)])
    [array([0., 2.], dtype=float32)]
    """

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models run on this device: ``"CPU"`` only."""
        return device.split(":")[0].upper() == "CPU"

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: object) -> bool:
        return True  # what is not supported is said when the model is compiled

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: object) -> TilewrightRep:
        """Compile a model; keyword arguments that are options of `tilewright.compile` count, others are ignored.

        UsageError for a device other than the CPU, and what `tilewright.compile` raises.
        """
        if not cls.supports_device(device):
            raise UsageError(f"device {device!r} is not supported", hint="use device='CPU'")
        options = Options.of(**{k: v for k, v in kwargs.items() if k in _OPTIONS})
        return TilewrightRep(compile(model, **vars(options)))

    @classmethod
    def run_model(  # type: ignore[override]
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: object
    ) -> list[np.ndarray]:
        """Compile and run once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(  # type: ignore[override]
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> list[np.ndarray]:
        """Run one node on arrays, in the order of its inputs that have a name.

        `opset_version` chooses the version of the operator; the newest one is the default.
        """
        given = inputs if isinstance(inputs, (Sequence, Mapping)) else [inputs]
        names = list(dict.fromkeys(i for i in node.input if i))
        arrays = [given[n] for n in names] if isinstance(given, Mapping) else list(given)
        if len(arrays) != len(names):
            raise UsageError(f"the node has {len(names)} inputs, {len(arrays)} arrays were given")
        arrays = [np.asarray(a) for a in arrays]
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip(names, arrays, strict=True)
        ]
        outputs = [onnx.ValueInfoProto(name=o) for o in node.output if o]
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        opsets = [helper.make_opsetid(node.domain, version)]
        model = helper.make_model(helper.make_graph([node], "node", infos, outputs), opset_imports=opsets)
        return cls.run_model(model, arrays, device, **kwargs)


prepare = TilewrightBackend.prepare
run_model = TilewrightBackend.run_model
run_node = TilewrightBackend.run_node
supports_device = TilewrightBackend.supports_device
