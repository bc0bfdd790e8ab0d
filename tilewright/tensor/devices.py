"""The devices of kernels: an attribute of their functions, ``tw.device = "opencl"``, where a program has several."""

from __future__ import annotations

import re

from torch_mlir import ir

from ..ir.graph import Graph

ATTRIBUTE = "tw.device"


def device_of(function: ir.OpView) -> str:
    """The device that a kernel was placed on; "" if it was placed on none."""
    attributes = function.operation.attributes
    return ir.StringAttr(attributes[ATTRIBUTE]).value if ATTRIBUTE in attributes else ""


def place_on(function: ir.OpView, device: str) -> None:
    """Say that a kernel runs on a device."""
    with function.operation.context:
        function.operation.attributes[ATTRIBUTE] = ir.StringAttr.get(device)


def devices_of(graph: Graph) -> dict[str, str]:
    """The device of every kernel, by symbol."""
    return {ir.StringAttr(f.attributes["sym_name"]).value: device_of(f) for f in graph.functions()}


def name_on(symbol: str, device: str, placed: dict[str, str]) -> str:
    """What a kernel is called on a device, where others of its name may be on other devices (`placed`, by symbol).

    >>> name_on("softmax_1", "cuda:sm=sm_90a", {"softmax_1": "cpu"}), name_on("softmax_1", "cpu", {"softmax_1": "cpu"})
    ('softmax_1_cuda_sm_sm_90a', 'softmax_1')
    """
    if placed.get(symbol, device) == device:
        return symbol
    return f"{symbol}_{re.sub(r'[^0-9A-Za-z]+', '_', device)}"


__all__ = ["ATTRIBUTE", "device_of", "devices_of", "name_on", "place_on"]
