"""Scheduling rules for GPUs: machines with a grid of thread blocks, whose threads share a memory. Kernels that none of
them takes are scheduled by the general rules, as parallel loops distributed over all threads."""

from __future__ import annotations

from ...machine import Machine
from .thread_binding import has_blocks


def serves(machine: Machine) -> bool:
    """Whether rules of this folder can apply."""
    return has_blocks(machine)
