"""Buffer bindings under WebGPU's rules: aligned offsets, no aliasing, and large buffers split at the binding limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .device import BufferSlice, Dispatch, Move


@dataclass(frozen=True)
class Bindable:
    """A call whose arguments can all be bound, and the copies around it."""

    call: Dispatch
    before: tuple[Move, ...] = ()
    after: tuple[Move, ...] = ()


def bindable(step: Dispatch, align: int, allocate: Callable[[int], object]) -> Bindable:
    """The call with arguments of their own in place of those that begin elsewhere than at multiples of `align` bytes (a
    part of a concatenation) or are given twice; these are copied there before it, and back if it writes them."""
    parts: list[BufferSlice] = []
    before, after = [], []
    kernel = step.kernel
    for i, part in enumerate(step.arguments):
        if part.offset % align or any(_overlap(part, p) for p in step.arguments[:i]):
            own = BufferSlice(allocate(part.nbytes), 0, part.nbytes)
            before.append(Move(part, own))
            if kernel.writes[len(parts)]:
                after.append(Move(own, part))
            part = own
        parts += pieces(part, kernel.pieces[i], kernel.piece_bytes)
    return Bindable(replace(step, arguments=tuple(parts)), tuple(before), tuple(after))


def pieces(part: BufferSlice, count: int, nbytes: int) -> list[BufferSlice]:
    """A part as so many, one behind the other, of so many bytes each but for the last one."""
    if count == 1:
        return [part]
    sizes = [nbytes] * (count - 1) + [part.nbytes - nbytes * (count - 1)]
    return [BufferSlice(part.buffer, part.offset + n * nbytes, size) for n, size in enumerate(sizes)]


def _overlap(a: BufferSlice, b: BufferSlice) -> bool:
    return a.buffer == b.buffer and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
