"""The machine record of several devices, for passes that run before kernels are placed: that of the first device."""

from __future__ import annotations

from collections.abc import Sequence

from ...schedule.machine import Machine


class Machines(Machine):
    """The record that graph passes and fusion see for a combination; each kernel is scheduled by the record of its own
    device. Buffers lie as all of them want."""

    def __init__(self, first: Machine, others: Sequence[Machine]) -> None:
        self.first, self.others = first, tuple(others)

    @property
    def arena_align(self) -> int:
        return max(m.arena_align for m in (self.first, *self.others))

    @property
    def row_chains(self) -> bool:
        """A chain of row by row kernels is one of processors."""
        return False

    def to_json(self) -> dict[str, object]:
        return {"machines": [m.to_json() for m in (self.first, *self.others)]}


#: what belongs to all of them together
_OWN = frozenset(vars(Machines)) | {"minimize_memory", "stream_rows"}


def _forwarded(name: str) -> property:
    return property(lambda self: getattr(self.first, name))


for _name, _value in vars(Machine).items():
    if isinstance(_value, property) and _name not in _OWN:
        setattr(Machines, _name, _forwarded(_name))
