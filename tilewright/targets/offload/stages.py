"""Pipeline stages of offloaded operators: they have no loop nest; their object is a description of the operator."""

from __future__ import annotations

from dataclasses import dataclass

from ...codegen.kernel_info import KernelInfo
from ..compile_state import CompilationState
from ..multi_device.stages import Taken
from .operation import OperationArguments


@dataclass(frozen=True)
class Offloaded(Taken):
    """A kernel that is one operation, which a function of the program computes."""

    places: OperationArguments | None = None


def _places(state: CompilationState) -> dict[str, OperationArguments]:
    made = {n: s.places for n, s in state.schedules.items() if isinstance(s, Offloaded)}
    return {n: p for n, p in made.items() if p is not None}


def assemble(state: CompilationState) -> None:
    for name, places in _places(state).items():
        state.objects[name] = places.to_bytes()
        state.infos[name] = KernelInfo(parallel=False)


def text(state: CompilationState) -> str:
    return "".join(f"{name}: {p.operation}\n" for name, p in _places(state).items())
