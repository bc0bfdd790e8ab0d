"""The devices of kernels and states, where a program has several: an attribute ``tw.device = "opencl"`` of functions
and of arguments of @main."""

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


def place_argument(graph: Graph, number: int, device: str) -> None:
    """Say where an argument of @main lies: a state."""
    attributes = graph.main.attributes
    empty = [ir.DictAttr.get({})] * len(graph.block.arguments)
    told = list(attributes["arg_attrs"]) if "arg_attrs" in attributes else empty
    told[number] = ir.DictAttr.get({**{a.name: a.attr for a in told[number]}, ATTRIBUTE: ir.StringAttr.get(device)})
    attributes["arg_attrs"] = ir.ArrayAttr.get(told)


def argument_device(graph: Graph, number: int) -> str:
    """The device that an argument of @main was placed on; "" if it was placed on none."""
    attributes = graph.main.attributes
    told = attributes["arg_attrs"][number] if "arg_attrs" in attributes else {}
    return ir.StringAttr(told[ATTRIBUTE]).value if ATTRIBUTE in told else ""


def name_on(symbol: str, device: str, placed: dict[str, str]) -> str:
    """What a kernel is called on a device, where others of its name may be on other devices (`placed`, by symbol).

    >>> name_on("softmax_1", "cuda:sm_90a", {"softmax_1": "cpu"}), name_on("softmax_1", "cpu", {"softmax_1": "cpu"})
    ('softmax_1_cuda_sm_90a', 'softmax_1')
    """
    if placed.get(symbol, device) == device:
        return symbol
    return f"{symbol}_{re.sub(r'[^0-9A-Za-z]+', '_', device)}"


__all__ = [
    *("ATTRIBUTE", "argument_device", "device_of", "devices_of", "name_on", "place_argument", "place_on"),
]
