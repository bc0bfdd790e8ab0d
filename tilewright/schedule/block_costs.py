"""GPU cost record: cycles of accesses, barriers, shuffles and tensor core instructions, by which GPU rules rank their
candidates.

The numbers are estimates: from NVIDIA's documents where a comment says from what they follow, from what its assembler
makes of kernels, and else by judgement; none was timed. They are those of every GPU whose record (`machine.Machine`)
says no better ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ThreadCosts:
    """In operations of a thread: an addition, or a number from shared memory."""

    #: an access of global memory: hundreds of cycles, most of which other threads of the multiprocessor hide
    far: int = 16
    #: the same in a loop over tiles, whose many multiply-adds hide most of what is left
    far_in_tile: int = 4
    #: a barrier of a block: the multiprocessor runs other blocks meanwhile
    barrier: int = 8
    #: the same where one block fills the multiprocessor, as tiles of attention do: it idles
    barrier_of_tile: int = 16
    #: a barrier of the lanes of a warp, which run together anyway
    warp_barrier: int = 2
    #: a number of another lane of the warp
    shuffle: int = 2
    #: an exponential: special function units have a quarter of the rate, and there are multiply-adds around it
    exponential: int = 12
    #: operations of all threads of a multiprocessor in the time that memory takes for a byte
    per_byte: int = 8
    #: so many threads in the place of one hide the latency of memory
    hiding: int = 16
    #: threads that run at the same time at least: fewer leave a machine with a grid idle
    least_threads: int = 1 << 13
    #: blocks of fewer threads than this part of the largest leave a multiprocessor idle: it runs a limited number
    small_block: int = 8


@dataclass(frozen=True)
class MatrixCosts:
    """In multiply-adds of the tensor cores of a multiprocessor (1,024 a cycle of f16 on an A100)."""

    #: a number from shared memory, which gives 64 halves a cycle (128 bytes)
    near: int = 16
    #: a number from global memory, by the second-level cache, which gives a multiprocessor about 25 halves a cycle
    far: int = 40
    #: until a copy from global memory has come: 600 cycles
    latency: int = 600 << 10
    #: a barrier of a block between two steps: 40 cycles
    barrier: int = 40 << 10
    #: warps that keep a multiprocessor busy: each of its four parts has a tensor core
    warps: int = 4
    #: how many times as fast warpgroup instructions are (H100): numbers from memory are worth so many times as much
    group_speed: int = 2


@dataclass(frozen=True)
class Occupancy:
    """What a multiprocessor holds at the same time, and what it has on its way from memory."""

    #: registers that each thread of the largest block may have: 65,536 for 1,024 threads
    registers: int = 64
    #: the largest blocks that it has threads for: 2,048
    blocks: int = 2
    #: registers of a thread beside its numbers: addresses and counters, as NVIDIA's assembler reports them
    addresses: int = 20
    #: the same in kernels with copies, fragments or long accesses on their way
    beside: int = 40
    #: accesses of a thread that a compiler leaves on their way, of those that could be (read in what NVIDIA's makes)
    in_flight: int = 4
    #: how much more than its part of the memory's speed it can read where others are idle
    alone: float = 1.5
    #: how much faster it reads what lies in its cache than its part of the memory
    cached: int = 5


__all__ = ["MatrixCosts", "Occupancy", "ThreadCosts"]
