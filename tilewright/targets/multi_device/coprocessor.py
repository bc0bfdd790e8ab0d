"""Base of targets of a host and a coprocessor that works in its memory: ``cpu+systolic32``, or what `tw.offload`
makes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

from ...schedule.machine import Machine
from ..base import Target
from .segments import link

if TYPE_CHECKING:
    from ...program.program import Program


class HostWithCoprocessor(Target):
    """See `tilewright.targets.base.Target`: most is the host's. `other` is the coprocessor's name, `recorded` that in
    packages; `added` is what it does."""

    def __init__(self, host: Target, other: str, recorded: str, added: str) -> None:
        self.host, self.name, self._recorded = host, f"{host.name}+{other}", f"{host.name}+{recorded}"
        self.doc = f"{host.doc}; {added} beside it"
        self.keeps_states = host.keeps_states

    @property
    def recorded(self) -> str:
        return self._recorded

    @abstractmethod
    def taken(self, objects: Mapping[str, bytes]) -> Set[str]:
        """The symbols of the coprocessor's kernels, of all objects."""

    def describe(self) -> Machine:
        return self.host.describe()

    def start(self, workers: int) -> None:
        self.host.start(workers)

    def link(self, program: Program, objects: dict[str, bytes], description: Any) -> dict[str, bytes]:
        return link(program, objects, self.host, self.host.describe(), self.taken(objects))

    def check(self, description: dict[str, Any]) -> None:
        self.host.check(description)


__all__ = ["HostWithCoprocessor"]
