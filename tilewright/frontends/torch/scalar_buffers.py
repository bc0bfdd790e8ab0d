"""Integer scalar buffers (a stride, a sample count) on which a module branches while it is traced.

`torch.export` takes every buffer for data that is not known, and cannot follow a branch on one. Here such buffers are
constants of the trace, as if the module had written ``torch.tensor(3)`` in their place. That is right unless the module
writes to one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram

from ...support import internal_errors
from .tracing import traced


class FrozenBuffers:
    """What became of the buffers: `written` if the module gave one of them another value."""

    def __init__(self) -> None:
        self.written = False
        self._given: list[torch.Tensor] = []

    def give(self, value: torch.Tensor) -> torch.Tensor:
        made = torch.tensor(value.item(), dtype=value.dtype)
        self._given.append(made)
        return made

    def check(self) -> None:
        self.written |= any(t._version > 0 for t in self._given)


def whole_numbers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers of a module itself that are integers or bools without dimensions, by name."""
    return {
        name: b
        for name, b in module._buffers.items()
        if b is not None and not b.dim() and not b.is_floating_point() and not b.is_complex()
    }


@contextmanager
def as_constants(source: torch.nn.Module) -> Iterator[FrozenBuffers]:
    """Within, reading such a buffer of `source` or of a module in it gives a constant of its value."""
    frozen, classes = FrozenBuffers(), {}
    try:
        for module in source.modules():
            if found := whole_numbers(module):
                classes[module] = type(module)
                module.__class__ = _reading(type(module), found, frozen)
        yield frozen
    finally:
        for module, kind in classes.items():
            module.__class__ = kind
        frozen.check()


def _reading(
    kind: type[torch.nn.Module], values: dict[str, torch.Tensor], frozen: FrozenBuffers
) -> type[torch.nn.Module]:
    """The class of a module with properties in place of buffers."""

    def setter(self: Any, name: str, value: Any) -> None:
        frozen.written |= name in values
        kind.__setattr__(self, name, value)

    def reader(value: torch.Tensor) -> property:
        return property(lambda self: frozen.give(value))

    return type(kind.__name__, (kind,), {"__setattr__": setter, **{n: reader(v) for n, v in values.items()}})


def export_with_constants(
    source: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, Any], shapes: Any
) -> ExportedProgram | None:
    """The program of a module that PyTorch cannot trace otherwise; None if it cannot in this way either."""
    if not any(whole_numbers(m) for m in source.modules()):
        return None
    try:
        with as_constants(source) as frozen:
            exported = traced(source, args, kwargs, shapes)
    except Exception as e:  # the first error says what is in the way
        internal_errors.note_own(e, "buffers stay what they are")
        return None
    return None if frozen.written else exported


__all__ = ["as_constants", "export_with_constants", "whole_numbers"]
